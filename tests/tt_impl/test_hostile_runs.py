"""A few of the hostile runs of `benchmarks/hostile.py`, and that they can go wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import hostile
import pytest
from hostile import ROOMS, Draw, Room, hostile_run, two_checkpoints

import tt_impl.attention.kv_pages
from oracle.kolibri1.checkpoint import Checkpoint
from tt_impl.arms import ARMS
from tt_impl.decode import Decoder
from tt_impl.device.protocol import Bytes
from tt_impl.experts.memo import FeedForwardWeights, Memo, MemoKey
from tt_impl.experts.pool import ExpertPool
from tt_impl.plants.of_pool import RecordsLate, ServesStaleMemos

pytestmark = pytest.mark.slow

DRAWS = [Draw.of(seed) for seed in range(12)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Checkpoint]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    return two_checkpoints(folder)


def test_the_draws_reach_every_room_number_of_slots_and_kind_of_schedule() -> None:
    many = [Draw.of(seed) for seed in range(200)]
    assert Draw.of(7) == Draw.of(7)
    for draws in (DRAWS, many):
        assert {draw.room for draw in draws} == set(ROOMS)
        assert {draw.slots_above for draw in draws} == {1, 2, 3}
        assert {draw.schedule.partition(":")[0] for draw in draws} == {"lazy", "eager", "random", "reuse"}
    assert {draw.users for draw in many} == set(range(1, 9))
    assert {draw.arm for draw in [Draw.of(seed) for seed in range(500)]} == set(ARMS)
    assert [len({*draw.prompts}) for draw in many] == [min(draw.users, 6) for draw in many]


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: str(draw.seed))
def test_a_hostile_run_changes_no_id_and_no_logit(checkpoints: Sequence[Checkpoint], draw: Draw) -> None:
    assert hostile_run(draw, *checkpoints).wrong == []


@pytest.mark.parametrize(
    ("pool", "wrong"),
    [(ServesStaleMemos, "ids or logits differ"), (RecordsLate, "not so: the epoch moved")],
)
def test_a_planted_fault_shows(
    checkpoints: Sequence[Checkpoint], monkeypatch: pytest.MonkeyPatch, pool: type[ExpertPool], wrong: str
) -> None:
    draw = replace(DRAWS[0], room="at", slots_above=1, users=1)
    hostile.roomy(checkpoints[0], ARMS[draw.arm].base, draw.prompt)  # honest, and kept
    hostile.roomy(checkpoints[1], ARMS[draw.arm].base, draw.prompt)
    monkeypatch.setattr(hostile, "Decoder", lambda *parts: Decoder(*parts, pool_type=pool))
    assert wrong in hostile_run(draw, *checkpoints).wrong


class NeverHits(Memo):
    """Looks up another key each time."""

    def obtain(self, key: MemoKey, image: Callable[[], Bytes]) -> FeedForwardWeights:
        return super().obtain(key._replace(generation=-self._stats.expert_uses), image)


class NeverHit(ExpertPool):
    memo_type = NeverHits


@pytest.mark.parametrize("room", ["nearly", "at"])
def test_memos_that_nothing_hits_show_where_they_must_be_hit(
    checkpoints: Sequence[Checkpoint], monkeypatch: pytest.MonkeyPatch, room: Room
) -> None:
    draw = replace(DRAWS[0], room=room, slots_above=1, users=1)
    assert hostile_run(draw, *checkpoints).wrong == []
    monkeypatch.setattr(hostile, "Decoder", lambda *parts: Decoder(*parts, pool_type=NeverHit))
    assert any(wrong.startswith("not so: memos hit") for wrong in hostile_run(draw, *checkpoints).wrong)


def test_users_that_share_pages_show(checkpoints: Sequence[Checkpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    draw = replace(DRAWS[0], users=3)
    honest = tt_impl.attention.kv_pages.scattered
    monkeypatch.setattr(
        tt_impl.attention.kv_pages, "scattered", lambda users, *rest: honest(users, *rest)[:1].repeat(users, axis=0)
    )
    assert "ids or logits differ" in hostile_run(draw, *checkpoints).wrong
