"""What is measured: this reference, and transformers by dtype and experts implementation, behind one interface."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from oracle.golden.sketch import sketch
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import ALL_TAPS, NO_TAPS, Reference, Segment

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
EXPERTS = ("eager", "grouped_mm")
PEERS = ("reference", "transformers-bf16", "transformers-fp32")


class Peer(Protocol):
    """One loaded model that can continue one sequence."""

    variants: tuple[str, ...]
    """Settings that can be changed while it is loaded; the names of its rows."""

    def use(self, variant: str) -> None:
        """Choose one of `variants`."""
        ...

    def start(self) -> None:
        """Begin a new sequence, with an empty cache."""
        ...

    def feed(self, ids: list[int]) -> torch.Tensor:
        """Continue the sequence: logits [T, V] of all T positions, as the model gives them."""
        ...


class ReferencePeer:
    """`oracle.kolibri1.reference`, default arm: alone, and with all that a golden records of a position."""

    variants = ("alone", "with taps")

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._reference = Reference(checkpoint)
        self._taps = NO_TAPS
        self.start()

    def use(self, variant: str) -> None:
        self._taps = {"alone": NO_TAPS, "with taps": ALL_TAPS}[variant]

    def start(self) -> None:
        self._cache = self._reference.new_cache()

    def feed(self, ids: list[int]) -> torch.Tensor:
        forward = self._reference.forward(ids, self._cache, taps=self._taps)
        if self._taps is ALL_TAPS:
            sketch(forward.residual.numpy())
        return forward.logits

    def batched(self, sequences: list[list[int]], chunk: int) -> torch.Tensor:
        """Logits [B, T, V] of B sequences of one length, each with its own cache, `chunk` ids of each in every pass."""
        caches = [self._reference.new_cache() for _ in sequences]
        parts: list[list[torch.Tensor]] = [[] for _ in sequences]
        for at in range(0, len(sequences[0]), chunk):
            segments = [Segment(ids[at : at + chunk], cache) for ids, cache in zip(sequences, caches, strict=True)]
            for logits, forward in zip(parts, self._reference.forward_batch(segments), strict=True):
                logits.append(forward.logits)
        return torch.stack([torch.cat(logits) for logits in parts])


class TransformersPeer:
    """`Kolibri1ForCausalLM` with eager attention and its own cache; the variants are its experts implementations."""

    variants = EXPERTS

    def __init__(self, checkpoint: Checkpoint, dtype: str) -> None:
        from transformers_loading import load_transformers  # seconds to import, and the reference needs none of it

        self._model: Any = load_transformers(checkpoint, DTYPES[dtype])
        self.start()

    def use(self, variant: str) -> None:
        self._model.set_experts_implementation(variant)

    def start(self) -> None:
        self._cache: Any = None

    def feed(self, ids: list[int]) -> torch.Tensor:
        return self.feed_batch([ids])[0]

    @torch.no_grad()
    def feed_batch(self, ids: list[list[int]]) -> torch.Tensor:
        """Logits [B, T, V] of B sequences of one length, continued together."""
        out = self._model(input_ids=torch.tensor(ids), cache=self._cache, use_cache=True)
        self._cache = out.cache
        return out.logits


def open_peer(name: str, checkpoint: Checkpoint) -> ReferencePeer | TransformersPeer:
    """Load the peer of that name, one of `PEERS`."""
    return ReferencePeer(checkpoint) if name == "reference" else TransformersPeer(checkpoint, name.split("-")[1])


def peer_bytes(name: str, parameters: int) -> int:
    """Anonymous bytes to expect of a peer: transformers holds every weight in its dtype; the reference maps them.

    A tenth and 1 GB more are for what it computes with.
    """
    width = {"reference": 0, "transformers-bf16": 2, "transformers-fp32": 4}[name]
    return int(parameters * width * 1.1 + 1e9)
