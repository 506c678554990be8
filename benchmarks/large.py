"""The large part: a slice of four real layers, the whole release's headers, and what follows for all fifty layers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from processes import Ran, run_worker
from scratch import make_checkpoint, progress
from tables import Mark, print_table
from touched import kv_bytes_per_token

from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.inventory import EXPERT_PROJECTIONS, inventory
from oracle.kolibri1.release import RELEASE_CONFIG, RELEASE_SHARDS
from oracle.kolibri1.synthetic import geometry, tensor_bytes, write_hollow

GIB = 1 << 30
FOUR_LAYERS = geometry(layer_types=["sliding_attention"] * 3 + ["full_attention"])
TOKENS, PREFILL = 16, 64
LIMIT_BYTES = 12 * GIB
"""Anonymous memory after which a worker is stopped, so that a reference that copies its weights cannot take the machine."""
ANONYMOUS_GIB, START_SECONDS = 2.0, 10.0
CONTEXT = 8192


def measure_large(folder: Path, small: dict[str, Any] | None, threads: int) -> tuple[dict[str, Any], list[Mark]]:
    """Run both and print them. `small` takes both geometries' place.

    Returns:
        The figures, and the marks on anonymous memory and start-up.
    """
    sliced, whole = small or FOUR_LAYERS, small or RELEASE_CONFIG
    shards = RELEASE_SHARDS if small is None else 2
    checkpoint = make_checkpoint(folder / "slice", sliced, shards=2 if small else 4)
    ran = run_worker(job(checkpoint, TOKENS, PREFILL), threads)
    shutil.rmtree(checkpoint)
    progress(f"writing the headers of {whole['num_hidden_layers']} layers in {shards} sparse shards")
    hollow = run_worker(job(write_hollow(folder / "hollow", whole, shards=shards), 2, 0), threads)
    figures = {
        name: {"failure": r.failure, "peak_anonymous": r.peak_anonymous, "peak_resident": r.peak_resident, **(r.result or {})}
        for name, r in (("slice", ran), ("headers", hollow))
    }
    print(f"\n## Large, {threads} threads\n")
    print_slices(ran, hollow, sliced, whole, shards)
    if ran.result is None or hollow.result is None:
        return figures, [Mark("GiB of anonymous memory, KV cache apart", None, ANONYMOUS_GIB, at_most=True)]
    return figures, print_extrapolation(ran, hollow, sliced, whole)


def job(folder: Path, tokens: int, prefill: int) -> dict[str, Any]:
    return {
        "kind": "large",
        "checkpoint": str(folder),
        "tokens": tokens,
        "prefill": prefill,
        "limit_bytes": LIMIT_BYTES,
    }


def print_slices(ran: Ran, hollow: Ran, sliced: dict[str, Any], whole: dict[str, Any], shards: int) -> None:
    """What was measured, side by side."""
    columns = [(ran, Kolibri1Config.model_validate(sliced)), (hollow, Kolibri1Config.model_validate(whole))]
    head = [
        "",
        f"slice of {sliced['num_hidden_layers']} layers",
        f"{whole['num_hidden_layers']} layers of zeros, {shards} shards",
    ]
    rows: list[list[str]] = [["bytes of tensors"], ["tensors"], ["start-up, s"], ["first token, ms"], ["later tokens, ms"]]
    rows += [
        ["prefill, s"],
        ["anonymous before, MB"],
        ["anonymous when open, MB"],
        ["peak anonymous, MB"],
        ["peak resident, MB"],
    ]
    rows += [["experts touched"], ["bytes touched"]]
    for r, config in columns:
        result = r.result
        if result is None:
            cells = [f"{total_bytes(config):,}", *[f"failed: {r.failure}"] * 7]
            cells += [f"{r.peak_anonymous / 1e6:.0f}", f"{r.peak_resident / 1e6:.0f}", "", ""]
        else:
            steps = result["decode_ms"]
            cells = [
                f"{total_bytes(config):,}",
                f"{result['tensors']:,}",
                f"{result['start_s']:.2f}",
                f"{steps[0]:.0f}",
                f"{sorted(steps[1:])[len(steps[1:]) // 2]:.0f} (median of {len(steps) - 1})",
                "-" if result["prefill_s"] is None else f"{result['prefill_s']:.2f}",
                f"{result['anonymous_before'] / 1e6:.0f}",
                f"{result['anonymous_open'] / 1e6:.0f}",
                f"{r.peak_anonymous / 1e6:.0f}",
                f"{r.peak_resident / 1e6:.0f}",
                f"{result['experts_touched']:,} of {config.num_hidden_layers * config.num_experts:,}",
                f"{all_but_experts(config) + result['experts_touched'] * expert_bytes(config):,}",
            ]
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)
    print_table(head, rows)


def print_extrapolation(ran: Ran, hollow: Ran, sliced: dict[str, Any], whole: dict[str, Any]) -> list[Mark]:
    """From the slice to the whole, with every step of the arithmetic."""
    few, release = Kolibri1Config.model_validate(sliced), Kolibri1Config.model_validate(whole)
    assert ran.result is not None
    assert hollow.result is not None
    layers, all_layers = few.num_hidden_layers, release.num_hidden_layers
    per_tensor = ran.result["start_s"] / ran.result["tensors"]
    start, tensors = hollow.result["start_s"], hollow.result["tensors"]
    print(
        f"Start-up. Slice: {ran.result['start_s']:.3f} s / {ran.result['tensors']:,} tensors = {per_tensor * 1e6:.1f} us each\n"
        f"x {tensors:,} = {per_tensor * tensors:.2f} s expected. Measured on all {all_layers} layers' headers: {start:.2f} s.\n"
    )
    fixed = hollow.result["anonymous_open"]
    growth = ran.peak_anonymous - ran.result["anonymous_open"]
    bound = fixed + growth * all_layers / layers
    print(
        f"Anonymous memory. With all {all_layers} layers' headers open: {fixed / 1e6:.0f} MB, measured. While the slice runs\n"
        f"{TOKENS} tokens and a prefill of {PREFILL}: + {growth / 1e6:.0f} MB. Were all of that to grow with the layers:\n"
        f"{fixed / 1e6:.0f} + {growth / 1e6:.0f} x {all_layers} / {layers} = {bound / 1e6:.0f} MB.\n"
        f"Measured on all layers of zeros, two tokens: {hollow.peak_anonymous / 1e6:.0f} MB.\n"
    )
    full, sliding = (kv_bytes_per_token(release, sliding=kind) for kind in (False, True))
    kept = min(CONTEXT, release.sliding_window)
    print(
        f"KV cache, fp32, {CONTEXT:,} tokens: full layers {full:,} B x {CONTEXT:,} + sliding layers {sliding:,} B x {kept} =\n"
        f"{(full * CONTEXT + sliding * kept) / 1e6:.0f} MB, to be added.\n"
    )
    return [
        Mark("GiB of anonymous memory at 50 layers, KV cache apart", bound / GIB, ANONYMOUS_GIB, at_most=True),
        Mark("seconds of start-up with the release's headers", start, START_SECONDS, at_most=True),
    ]


def total_bytes(config: Kolibri1Config) -> int:
    return sum(map(tensor_bytes, inventory(config)))


def expert_bytes(config: Kolibri1Config) -> int:
    """One routed expert's weights and scales."""
    kinds = tuple(f"model.layers.0.mlp.experts.0.{projection}." for projection in EXPERT_PROJECTIONS)
    return sum(tensor_bytes(spec) for spec in inventory(config) if spec.name.startswith(kinds))


def all_but_experts(config: Kolibri1Config) -> int:
    return total_bytes(config) - config.num_hidden_layers * config.num_experts * expert_bytes(config)
