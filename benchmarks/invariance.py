"""How far logits move when nothing but the run's shape changes: `python benchmarks/invariance.py`.

Threads, prefill chunks, token by token through the cache, and company in a batch must not change what a model computes.
This measures by how much they do: for transformers in fp32 and bf16 by experts implementation, and for this reference,
whose default arm must print exactly 0. One random checkpoint of moderate geometry; logits as the model gives them.

Ends with 0 when the reference's logits are bit-identical throughout, 1 when not. Needs the `reference` extra.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from peers import ReferencePeer, TransformersPeer, open_peer
from scratch import make_checkpoint, progress, scratch_folder
from tables import print_table

from oracle.errors import KolibriError
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.synthetic import TINY, geometry

MODERATE = geometry(
    layer_types=["sliding_attention"] * 3 + ["full_attention"],
    hidden_size=512,
    num_attention_heads=8,
    num_key_value_heads=2,
    num_experts=64,
    moe_intermediate_size=256,
    shared_expert_intermediate_size=256,
    vocab_size=4000,
    sliding_window=129,
)
SEQUENCES, TOKENS, CHUNK = 4, 256, 64

Runner = Callable[[Any, list[list[int]]], torch.Tensor]
"""Logits [sequences, T, V] of one way to run these sequences."""


def alone(peer: Any, sequences: list[list[int]], chunk: int | None = None) -> torch.Tensor:
    """Every sequence by itself, whole or in chunks."""
    logits = []
    for ids in sequences:
        peer.start()
        size = chunk or len(ids)
        logits.append(torch.cat([peer.feed(ids[at : at + size]) for at in range(0, len(ids), size)]))
    return torch.stack(logits)


def in_chunks(peer: Any, sequences: list[list[int]]) -> torch.Tensor:
    return alone(peer, sequences, CHUNK)


def by_token(peer: Any, sequences: list[list[int]]) -> torch.Tensor:
    return alone(peer, sequences, 1)


def together(peer: Any, sequences: list[list[int]]) -> torch.Tensor:
    """All in one batch; the reference takes chunks of all sequences in every pass."""
    if isinstance(peer, TransformersPeer):
        peer.start()
        return peer.feed_batch(sequences)
    return peer.batched(sequences, CHUNK)


def on_two_threads(peer: Any, sequences: list[list[int]]) -> torch.Tensor:
    set_threads(2)
    try:
        return alone(peer, sequences)
    finally:
        set_threads(1)


CHANGES: dict[str, Runner] = {
    "run again": alone,
    "2 threads for 1": on_two_threads,
    f"chunks of {CHUNK}": in_chunks,
    "token by token": by_token,
    f"batch of {SEQUENCES}": together,
}


def set_threads(threads: int) -> None:
    """torch's and numba's, in this process."""
    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, os.cpu_count() or 1))


def measure(peer: ReferencePeer | TransformersPeer, sequences: list[list[int]]) -> dict[str, tuple[float, float]]:
    """By change: the greatest difference over the largest logit, and the share of positions whose argmax changed."""
    set_threads(1)
    base = alone(peer, sequences).double()
    figures = {}
    for name, run in CHANGES.items():
        progress(f"  {name}")
        got = run(peer, sequences).double()
        error = float((got - base).abs().max() / base.abs().max())
        figures[name] = error, float((got.argmax(-1) != base.argmax(-1)).double().mean())
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--small", action="store_true", help="a geometry of seconds, to try this script; its figures mean nothing"
    )
    args = parser.parse_args()
    try:
        with scratch_folder() as folder:
            return run(folder, args.small)
    except KolibriError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was made is deleted", file=sys.stderr)
        return 130


def run(folder: Path, small: bool) -> int:
    checkpoint = Checkpoint.open(make_checkpoint(folder / "moderate", TINY if small else MODERATE, shards=2))
    tokens = CHUNK + 6 if small else TOKENS
    ids = np.random.default_rng(1).integers(0, checkpoint.config.vocab_size, (SEQUENCES, tokens)).tolist()
    rows, reference_moved = [], False
    for name in ("reference", "transformers-fp32", "transformers-bf16"):
        peer = open_peer(name, checkpoint)
        for variant in peer.variants:
            progress(f"{name} {variant}")
            peer.use(variant)
            figures = measure(peer, ids)
            reference_moved |= name == "reference" and any(error > 0 for error, _ in figures.values())
            rows.append(
                [f"{name} {variant}", *(f"{error:.1e} ({moved:.1%})" if error else "0" for error, moved in figures.values())]
            )
    print(
        f"\n{SEQUENCES} sequences of {tokens} ids, {checkpoint.config.num_hidden_layers} layers, threads 1 but for its column."
    )
    print("Greatest difference over the largest logit, and the share of positions whose argmax changed; 0 is bit-identical.\n")
    print_table(["", *CHANGES], rows)
    return 1 if reference_moved else 0


if __name__ == "__main__":
    sys.exit(main())
