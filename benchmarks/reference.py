"""How fast the reference is, against transformers and against the machine: `python benchmarks/reference.py`.

One run, one machine, one number of threads, one random checkpoint (two layers of the real geometry: one sliding, one
full; all 384 experts; a vocabulary of 32,000), every peer in a process of its own, one after the other. All are fed the
same ids and return the logits of every position. `--large` adds a slice of four layers and the whole release's headers.

Ends with 0 when every mark is met, 1 when one is not, 2 on bad input. Needs Linux and the `reference` extra.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from large import measure_large
from machine import busy_share
from memory import available_memory
from peers import PEERS, peer_bytes
from processes import run_worker
from scratch import make_checkpoint, progress, scratch_folder
from tables import Mark, print_marks, print_table
from touched import parameters, touched_bytes

from oracle.errors import KolibriError, UsageError
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.synthetic import geometry

TWO_LAYERS = geometry(layer_types=["sliding_attention", "full_attention"], vocab_size=32_000)
SMALL = geometry(
    layer_types=["sliding_attention", "full_attention"],
    hidden_size=256,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_experts=16,
    moe_intermediate_size=128,
    shared_expert_intermediate_size=128,
    vocab_size=1000,
)
LENGTHS = {"prefill": 512, "context": 128, "warm": 4, "tokens": 32, "rounds": 2}
SMALL_LENGTHS = {"prefill": 32, "context": 8, "warm": 1, "tokens": 4, "rounds": 1}

QUIET = 0.1
"""Share of the cores that other processes may take before the figures are called into doubt."""

# The marks: fractions and ratios that the project set itself.
READ_BANDWIDTH, OVER_BF16, OVER_FP32, PREFILL, TAPS = 0.5, 1.6, 2.8, 0.5, 0.1


def main() -> int:
    args = arguments()
    # A terminated run cleans up as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with ExitStack() as stack:
            report = run(args, stack)
    except KolibriError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was made is deleted", file=sys.stderr)
        return 130
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if args.small or all(mark["met"] for mark in report["marks"]) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="of every peer and of the bandwidth (default: %(default)s)")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS, help="measure only these")
    parser.add_argument("--large", action="store_true", help="also a slice of four real layers, and the release's headers")
    parser.add_argument("--only-large", action="store_true", help="nothing but the large part")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="measure this one instead of making one")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the checkpoint here and keep it for --checkpoint")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure there")
    parser.add_argument(
        "--small", action="store_true", help="a geometry of seconds, to try this script; its figures mean nothing"
    )
    args = parser.parse_args()
    if args.checkpoint and args.keep:
        parser.error("--keep makes a checkpoint and --checkpoint names one; pass one of them")
    if args.json and not args.json.absolute().parent.is_dir():
        parser.error(f"--json: {args.json.absolute().parent} is no folder; make it first")
    return args


def run(args: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    report: dict[str, Any] = {"threads": args.threads, "small": args.small, "marks": []}
    marks: list[Mark] = []
    folder = stack.enter_context(scratch_folder())
    if not args.only_large:
        checkpoint = args.checkpoint
        if checkpoint is None:
            config = SMALL if args.small else TWO_LAYERS
            checkpoint = make_checkpoint(args.keep or folder / "two-layers", config, shards=2)
        report |= measure_peers(args, checkpoint)
        marks += print_peers(report)
        if not args.checkpoint and not args.keep:
            shutil.rmtree(checkpoint)
    if args.large or args.only_large:
        report["large"], large_marks = measure_large(folder, SMALL if args.small else None, args.threads)
        marks += large_marks
    print_marks(marks, small=args.small)
    report["marks"] = [mark.as_dict() for mark in marks]
    return report


def measure_peers(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Bandwidth before and after, and every peer between."""
    config = Checkpoint.open(folder).config
    bandwidth_job = {"kind": "bandwidth", "gigabytes": 0.05 if args.small else 1.5, "rounds": 7}
    bandwidth = [measured(bandwidth_job, args.threads)["gb_per_s"]]
    progress(f"read bandwidth: {bandwidth[0]:.1f} GB/s")
    peers: dict[str, Any] = {}
    busiest = 0.0
    for name in args.peers:
        busy = busy_share()
        busiest = max(busiest, busy)
        if busy > QUIET:
            progress(f"other processes take {busy:.0%} of the cores; for figures that mean something, stop them and run again")
        peers[name] = measure_peer(name, folder, config, args)
    bandwidth.append(measured(bandwidth_job, args.threads)["gb_per_s"])
    progress(f"read bandwidth: {bandwidth[1]:.1f} GB/s")
    lengths = SMALL_LENGTHS if args.small else LENGTHS
    touched = touched_bytes(config)
    return {
        "read_gb_per_s": bandwidth,
        "busiest": busiest,
        "lengths": lengths,
        "touched_bytes": touched,
        "peers": peers,
    }


def measured(job: dict[str, Any], threads: int) -> dict[str, Any]:
    """The result of a job that must not fail."""
    ran = run_worker(job, threads)
    if ran.result is None:
        raise UsageError(f"the {job['kind']} job failed: {ran.failure}; free memory and run again")
    return ran.result


def measure_peer(name: str, folder: Path, config: Kolibri1Config, args: argparse.Namespace) -> dict[str, Any]:
    """One peer's figures, or `failure` with the reason."""
    needed, available = peer_bytes(name, parameters(config)), available_memory()
    progress(f"{name}: about {needed / 1e9:.1f} GB of memory needed, {available / 1e9:.1f} available")
    if needed > available:
        return {"failure": f"needs {needed / 1e9:.1f} GB of memory, {available / 1e9:.1f} are available"}
    lengths = SMALL_LENGTHS if args.small else LENGTHS
    ran = run_worker({"kind": "measure", "peer": name, "checkpoint": str(folder), **lengths}, args.threads)
    memory = {"peak_anonymous": ran.peak_anonymous, "peak_resident": ran.peak_resident}
    return {"failure": ran.failure, **memory, **(ran.result or {})}


def print_peers(report: dict[str, Any]) -> list[Mark]:
    """The tables of the peers, and their marks."""
    lengths, peers, touched = report["lengths"], report["peers"], report["touched_bytes"]
    bandwidth, total = max(report["read_gb_per_s"]), sum(touched.values())
    print(f"\n## Two layers, {report['threads']} threads\n")
    first, last = report["read_gb_per_s"]
    print(
        f"Read bandwidth: {first:.1f} GB/s before the peers, {last:.1f} after (numba, all threads add up one buffer of 64-bit\n"
        f"words, best of 7). The larger one counts. Decode: median of {lengths['tokens']} tokens after a context of\n"
        f"{lengths['context']}. Prefill: {lengths['prefill']} tokens with all their logits, best of {lengths['rounds']} after\n"
        "one that is not counted.\n"
    )
    if (busy := report["busiest"]) > QUIET:
        print(f"Other processes took up to {busy:.0%} of the cores just before a peer ran: these figures mean little.\n")
    print_table(["bytes a token must read", "MB"], [[n, f"{b / 1e6:.2f}"] for n, b in [*touched.items(), ("sum", total)]])
    ours = best(peers, "reference", "decode_ms")
    prefill = best(peers, "reference", "prefill_s")
    rows = []
    for name, peer in peers.items():
        for variant, figures in peer.get("variants", {}).items():
            rows.append(
                [
                    f"{name} {variant}",
                    f"{figures['decode_ms']:.1f}",
                    f"{figures['decode_ms'] / ours:.2f}" if ours else "-",
                    f"{figures['prefill_s']:.2f}",
                    f"{prefill / figures['prefill_s']:.2f}" if prefill else "-",
                    f"{peer['start_s']:.1f}",
                    f"{peer['peak_anonymous'] / 1e9:.2f}",
                    f"{peer['peak_resident'] / 1e9:.2f}",
                ]
            )
        if peer.get("failure"):
            rows.append([name, f"not measured: {peer['failure']}", *[""] * 6])
    head = ["peer", "decode ms/token", "x ours", "prefill s", "ours / it", "start s", "peak anonymous GB", "peak resident GB"]
    print_table(head, rows)
    print(
        "Start: opening and filling. transformers is filled by this script, not by its own loader, which takes longer and\n"
        "peaks higher. Peak resident counts mapped weights, which the kernel may take back.\n"
    )
    bf16, fp32 = (best(peers, f"transformers-{dtype}", "decode_ms") for dtype in ("bf16", "fp32"))
    fp32_prefill = best(peers, "transformers-fp32", "prefill_s")
    reached = total / 1e6 / ours / bandwidth if ours else None
    if ours and reached:
        print(f"Read: {total / 1e6:.2f} MB / {ours:.2f} ms = {total / 1e6 / ours:.2f} GB/s of {bandwidth:.1f} GB/s\n")
    taps = None
    if variants := peers.get("reference", {}).get("variants"):
        taps = variants["with taps"]["decode_ms"] / variants["alone"]["decode_ms"] - 1
    return [
        Mark("cost of taps (routing, hidden states, sketches) of a token's time", taps, TAPS, at_most=True),
        Mark("fraction of the read bandwidth", reached, READ_BANDWIDTH),
        Mark("times as fast as transformers' best bf16", bf16 / ours if bf16 and ours else None, OVER_BF16),
        Mark("times as fast as transformers' best fp32", fp32 / ours if fp32 and ours else None, OVER_FP32),
        Mark("times transformers' best fp32 prefill", fp32_prefill / prefill if fp32_prefill and prefill else None, PREFILL),
    ]


def best(peers: dict[str, Any], name: str, figure: str) -> float | None:
    """The smallest of a peer's variants; None where it was not measured."""
    return min((variant[figure] for variant in peers.get(name, {}).get("variants", {}).values()), default=None)


if __name__ == "__main__":
    sys.exit(main())
