"""Sequences decoded side by side: each has exactly the bits that it has alone, whoever begins late, idles or begins anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from oracle.errors import UsageError
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import StepEvidence
from tt_impl.decode import Decoder
from tt_impl.device.protocol import DType
from tt_impl.plans.kv_plan import plan_kv

Open = Callable[..., Decoder]
BASES = [DType.BFLOAT16, DType.FLOAT32]
LENGTH = 12
IDS = np.random.default_rng(11).integers(0, 96, size=(8, LENGTH)).tolist()
"""Of eight users; past the tiny window of 9."""


def bits(step: StepEvidence | None) -> bytes:
    assert step is not None
    return b"".join(np.asarray(getattr(step, field.name)).tobytes() for field in fields(step) if field.name != "sketch")


_ALONE: dict[tuple[DType, tuple[int, ...]], list[bytes]] = {}


def alone(open_decoder: Open, activation: DType, ids: Sequence[int]) -> list[bytes]:
    """What each step shows of a sequence that has the decoder to itself."""
    key = activation, tuple(ids)
    if key not in _ALONE:
        decoder = open_decoder(activation)
        _ALONE[key] = [bits(decoder.step(token)) for token in ids]
    return _ALONE[key]


def check_together(open_decoder: Open, activation: DType, turns: Sequence[Sequence[bool]], **changes) -> Decoder:
    """Each turn says who takes part. Everyone's evidence must be its own, at every step."""
    users = len(turns[0])
    decoder = open_decoder(activation, users=users, **changes)
    done = [0] * users
    for turn in turns:
        tokens = [IDS[user][done[user]] if takes_part else None for user, takes_part in enumerate(turn)]
        shown = decoder.step_users(tokens)
        for user, takes_part in enumerate(turn):
            if takes_part:
                assert bits(shown[user]) == alone(open_decoder, activation, IDS[user])[done[user]], (user, done[user])
                done[user] += 1
            else:
                assert shown[user] is None
    return decoder


def someone(turn: Sequence[bool]) -> bool:
    return any(turn)


turns_of = st.integers(2, 5).flatmap(
    lambda users: st.lists(st.tuples(*[st.booleans()] * users).filter(someone), min_size=4, max_size=LENGTH)
)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([(False, True, True)] + [(True, True, False)] * 2 + [(True, True, True)] * 9)
@given(turns_of)
@pytest.mark.parametrize("activation", BASES, ids=lambda d: d.label)
def test_each_sequence_is_what_it_is_alone(open_decoder: Open, activation: DType, turns) -> None:
    check_together(open_decoder, activation, turns, slots_per_layer=4, memos=6)


@pytest.mark.parametrize("changes", [{"topk": "device"}, {"drain": "fill", "dequant": "reread"}, {"bias": "fetched"}], ids=str)
def test_no_lever_changes_that(open_decoder: Open, changes: dict[str, str]) -> None:
    check_together(open_decoder, DType.BFLOAT16, [(True, False, True), (True, True, True), (False, True, True)], **changes)


@pytest.mark.slow
@pytest.mark.parametrize("activation", BASES, ids=lambda d: d.label)
def test_eight_sequences_past_the_window(open_decoder: Open, activation: DType) -> None:
    turns = [tuple(user == 5 or (at + user) % (2 + user % 4) != 0 for user in range(8)) for at in range(LENGTH)]
    check_together(open_decoder, activation, turns, slots_per_layer=3, block="16")


@pytest.mark.slow
def test_rings_wrap_each_at_its_own_position(open_decoder: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    long = np.random.default_rng(2).integers(0, 96, size=(8, 72)).tolist()
    monkeypatch.setattr("test_batches.IDS", long)
    decoder = check_together(open_decoder, DType.FLOAT32, [(True, at % 2 == 0) for at in range(72)], block="16")
    assert decoder._cache.layers[0].keys.shape[0] == 2 * 2


def test_more_experts_than_slots_are_walked_in_groups(open_decoder: Open, tiny: Checkpoint) -> None:
    """8 users of 3 experts each ask for nearly all 8 of a layer; 3 slots hold them in three groups, and each is used once."""
    decoder = check_together(open_decoder, DType.FLOAT32, [(True,) * 8] * 2, slots_per_layer=3)
    stats, layers = decoder.stats(), tiny.config.num_hidden_layers
    asked = stats["expert_uses"]
    assert 2 * layers * 6 < asked <= 2 * layers * 8
    assert asked == stats["slot_hits"] + stats["slot_misses"] == stats["memo_hits"] + stats["memo_misses"]
    assert 2 * layers * 2 < stats["drains"] <= 2 * layers * 3
    assert decoder._pool.groups(0, [4, 5]) == [[4, 5]]
    decoder._pool.make_resident(0, [1, 6, 3])
    decoder._pool.release(0)
    assert decoder._pool.groups(0, [0, 1, 2, 3, 4, 5, 6, 7]) == [[1, 3, 6], [0, 2, 4], [5, 7]], "first what slots hold"


def test_what_a_batched_step_counts(open_decoder: Open, tiny: Checkpoint) -> None:
    layers = tiny.config.num_hidden_layers
    decoder = check_together(open_decoder, DType.BFLOAT16, [(True, True, True), (False, True, False), (True, False, True)])
    stats = decoder.stats()
    assert (stats["steps"], stats["companion_steps"]) == (3, 3)
    assert stats["device.blocking_reads"] == 3 * (layers + 1), "one read of all users' router logits a layer"
    assert stats["round_trips"] == stats["device.round_trips"] == 3 * (layers + 1) + stats["drains"]
    assert stats["bytes_written"] == stats["device.bytes_written"]
    assert stats["bytes_read"] == stats["device.bytes_read"]
    assert stats["memory_after"] - stats["memory_before"] == stats["memo_bytes"]
    plan = plan_kv(tiny.config, DType.BFLOAT16, sequences=3, context=512, block_size=32)
    assert stats["kv_bytes"] == plan.device_bytes


def held(decoder: Decoder, user: int) -> bytes:
    """Every byte of a user's blocks in every layer."""
    found = b""
    for layer in decoder._cache.layers:
        read = [decoder._device.copy_device_to_host_tensor(t, blocking=True).array() for t in (layer.keys, layer.values)]
        found += b"".join(cache[np.sort(layer.pages._blocks[user])].tobytes() for cache in read)
    return found


def test_a_user_that_idles_keeps_every_byte_of_its_cache(open_decoder: Open) -> None:
    decoder = open_decoder(users=3)
    decoder.step_users([5, 6, 7])
    before = [held(decoder, user) for user in range(3)]
    decoder.step_users([8, None, 9])
    decoder.step_users([10, None, None])
    after = [held(decoder, user) for user in range(3)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, False]


def test_no_row_of_a_step_is_anything_but_numbers(open_decoder: Open) -> None:
    """Of users that have not begun, too: a row that is no number would spread where rows are multiplied."""
    decoder = open_decoder(users=3)
    read = decoder._device.copy_device_to_host_tensor
    shown = []
    decoder._device.copy_device_to_host_tensor = lambda t, *a, **k: shown.append(read(t, *a, **k)) or shown[-1]  # type: ignore[method-assign]
    for tokens in ([None, 5, None], [6, None, None]):
        decoder.step_users(tokens)
    assert len(shown) > 2 * 3
    assert all(np.isfinite(tap.array().astype(np.float32)).all() for tap in shown if tap.array().shape[0] == 3)


def test_one_begins_anew_and_the_others_go_on(open_decoder: Open) -> None:
    decoder = open_decoder(users=3)
    expected = [alone(open_decoder, DType.FLOAT32, IDS[user]) for user in range(3)]
    for at in range(3):
        decoder.step_users([IDS[user][at] for user in range(3)])
    decoder.start(1)
    for at in range(5):
        shown = decoder.step_users([IDS[0][3 + at], IDS[1][at], IDS[2][3 + at]])
        assert [bits(step) for step in shown] == [expected[0][3 + at], expected[1][at], expected[2][3 + at]]
    decoder.start()
    assert [bits(step) for step in decoder.step_users([ids[0] for ids in IDS[:3]])] == [e[0] for e in expected]


def test_a_layer_alone_is_the_same_whatever_the_decoder_was_opened_for(open_decoder: Open) -> None:
    inputs = np.random.default_rng(3).normal(size=(3, 64)).astype(np.float32)
    assert open_decoder(users=3).layer(1, inputs).tobytes() == open_decoder().layer(1, inputs).tobytes()


def test_what_no_step_can_be_is_refused_and_nobody_moves(open_decoder: Open) -> None:
    decoder = open_decoder(users=2, max_positions=32)
    for tokens, why in (
        ([5], "a step of 1 tokens; the decoder was opened with users=2"),
        ([None, None], "every user idles"),
        ([5, 96], "outside the vocabulary of 96"),
    ):
        with pytest.raises(UsageError, match=why):
            decoder.step_users(tokens)
    with pytest.raises(UsageError, match="there is no user 2"):
        decoder.start(2)
    with pytest.raises(UsageError, match="users=2, so give one for each"):
        decoder.step(5)
    for _ in range(32):
        decoder.step_users([None, 1])
    with pytest.raises(UsageError, match="position 32 does not fit"):
        decoder.step_users([IDS[0][0], 1])
    shown = decoder.step_users([IDS[0][0], None])[0]
    assert bits(shown) == alone(open_decoder, DType.FLOAT32, IDS[0])[0]
