"""Taps: what is not asked for is not recorded, and recording changes no bit of what is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracle.kolibri1.arms import ARMS
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import ALL_TAPS, NO_TAPS, Reference, Taps

IDS = np.random.default_rng(11).integers(0, 96, 30).tolist()
ALWAYS = ("logits", "expert_ids", "expert_weights", "router_gap")


@pytest.mark.parametrize("arm", ["float32", "bfloat16"])
@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("router_logits", [True, False])
def test_a_tap_that_is_closed_is_empty_and_changes_nothing_else(
    tiny: Checkpoint, arm: str, hidden: bool, router_logits: bool
) -> None:
    reference = Reference(tiny, ARMS[arm])
    whole = reference.forward(IDS, reference.new_cache(), taps=ALL_TAPS)
    got = reference.forward(IDS, reference.new_cache(), taps=Taps(hidden=hidden, router_logits=router_logits))
    for name in ALWAYS:
        assert torch.equal(getattr(got, name), getattr(whole, name)), name
    assert got.hidden.shape == (30, 4, 64 if hidden else 0)
    assert got.router_logits.shape == (30, 3, 8 if router_logits else 0)
    assert torch.equal(got.hidden, whole.hidden if hidden else whole.hidden[..., :0])
    assert torch.equal(got.router_logits, whole.router_logits if router_logits else whole.router_logits[..., :0])


def test_an_untapped_pass_leaves_the_same_cache(tiny: Checkpoint) -> None:
    reference = Reference(tiny)
    tapped, untapped = reference.new_cache(), reference.new_cache()
    reference.forward(IDS, tapped)
    list(reference.stream(IDS, untapped, chunk=7, taps=NO_TAPS))
    for one, other in zip(tapped.layers, untapped.layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)


def test_what_is_tapped_does_not_change_with_later_passes(tiny: Checkpoint) -> None:
    reference = Reference(tiny)
    cache = reference.new_cache()
    first = reference.forward(IDS[:10], cache)
    kept = first.logits.clone(), first.hidden.clone(), first.router_logits.clone(), first.expert_weights.clone()
    reference.forward(IDS[10:], cache)
    assert all(map(torch.equal, kept, (first.logits, first.hidden, first.router_logits, first.expert_weights)))


def test_parts_of_a_pass_join_to_the_whole(tiny: Checkpoint) -> None:
    reference = Reference(tiny)
    whole = reference.forward(IDS, reference.new_cache())
    joined = type(whole).concatenate([whole[:11], whole[11:]])
    assert len(joined) == len(whole) == 30
    assert all(torch.equal(getattr(joined, name), getattr(whole, name)) for name in type(whole).__dataclass_fields__)
