"""Faults that real ports had, planted in the reference's own arithmetic: each is Kolibri-1 computed slightly wrongly.

To add one: a function that changes one step of a reference, entered in `FAULTS`. They strike at the torch arms (`bfloat16`,
`float32-blas`), whose steps can be replaced; nothing on disk is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oracle.kolibri1.reference import Reference

Fault = Callable[[Reference], None]


def honest(_: Reference) -> None:
    """No fault."""


def norm_sums_in_bf16(reference: Reference) -> None:
    """Squares and their running sum are rounded to bf16 after every addition, as on a device that accumulates so."""
    m: Any = reference.m

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        squares, total = _bf16(x * x), torch.zeros(x.shape[:-1], dtype=x.dtype)
        for column in range(x.shape[-1]):
            total = _bf16(total + squares[..., column])
        normalized = x * torch.rsqrt(total[..., None] / x.shape[-1] + reference.config.rms_norm_eps)
        return m.r(m.weights[name] * (m.r(normalized) if m.arm.norms == "twice" else normalized))

    m.norm = norm


def norms_scaled(*names: str, by: float = 0.99) -> Fault:
    """The outputs of norms whose weight's name holds one of `names`."""

    def plant(reference: Reference) -> None:
        m: Any = reference.m
        right = m.norm

        def norm(x: torch.Tensor, name: str) -> torch.Tensor:
            y = right(x, name)
            return m.r(y * by) if any(part in name for part in names) else y

        m.norm = norm

    return plant


def neighbours_norm(which: str, layer: int, neighbour: int) -> Fault:
    """One layer's norm `which` uses another layer's weight."""

    def plant(reference: Reference) -> None:
        m: Any = reference.m
        right = m.norm

        def norm(x: torch.Tensor, name: str) -> torch.Tensor:
            mine = f"layers.{layer}." in name and which in name
            return right(x, name.replace(f"layers.{layer}.", f"layers.{neighbour}.") if mine else name)

        m.norm = norm

    return plant


def window(by: int) -> Fault:
    """Sliding layers see `by` positions more."""

    def plant(reference: Reference) -> None:
        size = reference.config.sliding_window + by
        reference.config = reference.config.model_copy(update={"sliding_window": size})

    return plant


def attention_scale(factor: float) -> Fault:
    """Attention scores are `factor` too large before the softmax."""

    def plant(reference: Reference) -> None:
        m: Any = reference.m
        right = m.attend
        m.attend = lambda q, *rest: right(q * factor, *rest)

    return plant


def without_shared_expert(layer: int) -> Fault:
    """One layer's shared expert adds nothing."""

    def plant(reference: Reference) -> None:
        m: Any = reference.m
        right = m.experts

        def experts(x: torch.Tensor, ids: torch.Tensor, prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
            routed, shared = right(x, ids, prefix)
            return routed, torch.zeros_like(shared) if f"layers.{layer}." in prefix else shared

        m.experts = experts

    return plant


def gate_and_up_swapped(layer: int, expert: int) -> Fault:
    """One expert applies silu to its up projection and not to its gate."""

    def plant(reference: Reference) -> None:
        m: Any = reference.m
        right, linear = m._swiglu, m.linear
        other = {"gate_proj": "up_proj", "up_proj": "gate_proj"}

        def swapped(x: torch.Tensor, name: str) -> torch.Tensor:
            which = name.split(".")[-2]
            return linear(x, name.replace(which, other.get(which, which)))

        def swiglu(x: torch.Tensor, prefix: str) -> torch.Tensor:
            if not prefix.endswith(f"layers.{layer}.mlp.experts.{expert}"):
                return right(x, prefix)
            m.linear = swapped
            try:
                return right(x, prefix)
            finally:
                m.linear = linear

        m._swiglu = swiglu

    return plant


def _bf16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).to(x.dtype)
