"""Forced routing: the experts and weights given are the ones used, for the tokens they are given for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldens import mini_checkpoint
from oracle.errors import UsageError
from oracle.golden.format import load_golden
from oracle.kolibri1.arms import ARMS
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Forward, Reference, Routing, Segment

IDS = np.random.default_rng(11).integers(0, 96, 30).tolist()


def forward(reference: Reference, routing: Routing | None = None, ids: list[int] = IDS) -> Forward:
    return reference.forward(ids, reference.new_cache(), routing=routing)


def differing(one: Forward, other: Forward) -> list[str]:
    return [name for name in Forward.__dataclass_fields__ if not torch.equal(getattr(one, name), getattr(other, name))]


@pytest.fixture(scope="module")
def reference(tiny: Checkpoint) -> Reference:
    return Reference(tiny)


@pytest.fixture(scope="module")
def own(reference: Reference) -> Forward:
    return forward(reference)


@pytest.fixture(scope="module")
def routing(own: Forward) -> Routing:
    return Routing(own.expert_ids, own.expert_weights)


def test_its_own_routing_forced_gives_the_same_bits(reference: Reference, own: Forward, routing: Routing) -> None:
    assert differing(forward(reference, routing), own) == []


def test_its_own_routing_forced_in_a_stream_is_cut_like_the_ids(reference: Reference, own: Forward, routing: Routing) -> None:
    parts = reference.stream(IDS, reference.new_cache(), chunk=7, routing=routing)
    assert differing(Forward.concatenate(list(parts)), own) == []


def test_the_goldens_routing_gives_the_bits_of_the_minis_own() -> None:
    golden, mini = load_golden(mini_checkpoint() / "golden"), Reference(Checkpoint.open(mini_checkpoint()))
    prompt = min(golden.prompts, key=lambda p: len(p.fed))
    ids, weights = torch.from_numpy(prompt.expert_ids.astype(np.int64)), torch.from_numpy(prompt.expert_weights.copy())
    honest = forward(mini, ids=list(prompt.fed))
    forced = forward(mini, Routing(ids, honest.expert_weights), list(prompt.fed))
    assert differing(forced, honest) == []
    stored = forward(mini, Routing(ids, weights), list(prompt.fed))
    assert (stored.logits - honest.logits).abs().max() < 2e-6 * honest.logits.abs().max()
    assert torch.equal(stored.expert_weights, weights)


@pytest.mark.parametrize("arm", ["float32", "float32-blas", "bfloat16"])
def test_another_expert_at_one_token_and_layer_changes_what_follows_and_nothing_before(tiny: Checkpoint, arm: str) -> None:
    reference = Reference(tiny, ARMS[arm])
    own = forward(reference)
    ids = own.expert_ids.clone()
    ids[12, 1, 0] = next(e for e in range(8) if e not in ids[12, 1].tolist())
    forced = forward(reference, Routing(ids, own.expert_weights))
    assert torch.equal(forced.expert_ids, ids)
    assert torch.equal(forced.hidden[:, :2], own.hidden[:, :2])
    assert torch.equal(forced.logits[:12], own.logits[:12])
    assert (forced.hidden[12, 2] - own.hidden[12, 2]).abs().max() > 1e-3
    assert (forced.logits[12] - own.logits[12]).abs().max() > 1e-3
    assert (forced.logits[13:] != own.logits[13:]).any()


def test_forced_weights_are_the_ones_used(reference: Reference, own: Forward, routing: Routing) -> None:
    halved = Routing(routing.ids, routing.weights / 2)
    got = forward(reference, halved)
    assert torch.equal(got.expert_weights, halved.weights)
    assert (got.logits - own.logits).abs().max() > 1e-3
    none = forward(reference, Routing(routing.ids, torch.zeros_like(routing.weights)))
    other = forward(reference, Routing((routing.ids + 1) % 8, torch.zeros_like(routing.weights)))
    assert torch.equal(none.logits, other.logits)  # with weight zero it does not matter which


def test_the_order_of_forced_experts_is_kept_with_their_weights(reference: Reference, own: Forward, routing: Routing) -> None:
    flipped = forward(reference, Routing(routing.ids.flip(-1), routing.weights.flip(-1)))
    assert torch.equal(flipped.expert_ids, routing.ids.flip(-1))
    assert (flipped.logits - own.logits).abs().max() < 2e-6 * own.logits.abs().max()
    mismatched = forward(reference, Routing(routing.ids.flip(-1), routing.weights))
    assert (mismatched.logits - own.logits).abs().max() > 1e-3 * own.logits.abs().max()


def test_the_router_still_says_what_it_would_have_chosen(reference: Reference, own: Forward, routing: Routing) -> None:
    forced = forward(reference, Routing((routing.ids + 1) % 8, routing.weights))
    assert torch.equal(forced.router_logits[:, 0], own.router_logits[:, 0])
    assert torch.equal(forced.router_gap[:, 0], own.router_gap[:, 0])


def test_one_sequence_of_a_batch_may_be_forced_and_the_other_not(reference: Reference, own: Forward, routing: Routing) -> None:
    other = Routing((routing.ids + 1) % 8, routing.weights)
    alone = forward(reference, other)
    free, forced = reference.forward_batch([Segment(IDS, reference.new_cache()), Segment(IDS, reference.new_cache(), other)])
    assert differing(free, own) == []
    assert differing(forced, alone) == []
    assert not torch.equal(free.logits, forced.logits)


@pytest.mark.parametrize(
    ("ids", "weights"),
    [
        ((29, 3, 3), (30, 3, 3)),
        ((30, 3, 3), (29, 3, 3)),
        ((30, 2, 3), (30, 2, 3)),
        ((30, 3, 2), (30, 3, 2)),
        ((30, 9), (30, 9)),
    ],
    ids=str,
)
def test_another_shape_is_refused_and_nothing_cached(
    reference: Reference, ids: tuple[int, ...], weights: tuple[int, ...]
) -> None:
    cache = reference.new_cache()
    routing = Routing(torch.zeros(ids, dtype=torch.int64), torch.zeros(weights))
    with pytest.raises(
        UsageError, match=r"forced routing has ids .* expected \[30, 3, 3\] \(tokens, layers, experts per token\)"
    ):
        reference.forward(IDS, cache, routing=routing)
    assert cache.length == 0
    assert cache.nbytes() == 0


@pytest.mark.parametrize("expert", [-1, 8, 1 << 40])
def test_an_expert_that_does_not_exist_is_refused_and_nothing_cached(
    reference: Reference, routing: Routing, expert: int
) -> None:
    ids, cache = routing.ids.clone(), reference.new_cache()
    ids[29, 2, 2] = expert
    with pytest.raises(UsageError, match=r"forced routing names an expert outside \[0, 8\); check its checkpoint"):
        reference.forward(IDS, cache, routing=Routing(ids, routing.weights))
    assert cache.length == 0


def test_a_batch_needs_sequences_and_each_its_own_cache(reference: Reference) -> None:
    with pytest.raises(UsageError, match="a batch of no sequences computes nothing"):
        reference.forward_batch([])
    cache = reference.new_cache()
    with pytest.raises(UsageError, match="two segments of a batch share a cache; give each sequence its own"):
        reference.forward_batch([Segment([1], cache), Segment([2], cache)])
    assert cache.length == 0
