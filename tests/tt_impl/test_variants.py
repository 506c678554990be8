"""Variants of `tt`: each changes what it says, and no bit of what the decoder shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import tt_impl.attention.kv_pages
import tt_impl.combine
import tt_impl.moe
from oracle.errors import SubjectError
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import StepEvidence, SubjectRequest
from tt_impl.arms import ARMS
from tt_impl.attention.kv_pages import Pages
from tt_impl.attention.rope import RopeTables
from tt_impl.device.protocol import Device, DType, Layout, Tensor
from tt_impl.device.sim import SimDevice
from tt_impl.experts.layout import CheckpointExperts
from tt_impl.lifetimes import Scratch
from tt_impl.opening import open_parts
from tt_impl.plants.catalogue import Parts
from tt_impl.subject import FACTORY
from tt_impl.variants import VARIANTS, occupy

TOKENS = [3, 9, 4, 1, 12, 7, 30, 2, 25, 11]


def shown(folder: Path, variant: str | None, arm: str = "exact") -> tuple[bytes, dict[str, int]]:
    subject = FACTORY.open(SubjectRequest(folder, arm=arm, variant=variant))
    subject.start()
    steps = [subject.step(token) for token in TOKENS]
    arrays = (getattr(step, field.name) for step in steps for field in fields(StepEvidence))
    return b"".join(np.asarray(array).tobytes() for array in arrays), dict(subject.stats())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_changes_no_bit_and_moves_the_counters_that_it_names(tiny_folder: Path, variant: str) -> None:
    evidence, stats = shown(tiny_folder, variant)
    assert evidence == shown(tiny_folder, None)[0]
    moves = VARIANTS[variant].told.moves
    assert [name for name in moves if stats[name] <= 0] == []


@pytest.mark.parametrize("arm", ["exact,drain=fill,verify=first", "exact,policy=lru,dispatch=captured"])
@pytest.mark.parametrize("variant", ["one-read-back", "scarce-memos"])
def test_read_backs_and_memos_are_short_whatever_the_arm_s_levers_are(tiny_folder: Path, variant: str, arm: str) -> None:
    evidence, stats = shown(tiny_folder, variant, arm)
    assert evidence == shown(tiny_folder, None)[0]
    assert [name for name in VARIANTS[variant].told.moves if stats[name] <= 0] == []


def _first_user_s_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = tt_impl.attention.kv_pages.scattered
    monkeypatch.setattr(
        tt_impl.attention.kv_pages, "scattered", lambda users, *rest: honest(users, *rest)[:1].repeat(users, axis=0)
    )


def _another_user_s_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is the earlier one: beyond its own position a user finds poison, which is a fault of its own."""
    honest = Pages._write

    def write(self: Pages, tensor: Tensor, numbers: np.ndarray) -> None:
        queried = "query_position" in tensor.label
        honest(self, tensor, np.minimum(numbers, np.roll(numbers, 1)) if queried else numbers)

    monkeypatch.setattr(Pages, "_write", write)


def _another_user_s_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = tt_impl.moe.combine

    def combine(device, scratch, outputs, routings, *rest):
        others = [replace(r, weights=o.weights) for r, o in zip(routings, [*routings[1:], routings[0]], strict=True)]
        return honest(device, scratch, outputs, others, *rest)

    monkeypatch.setattr(tt_impl.moe, "combine", combine)


def _another_user_s_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = tt_impl.combine._picks
    monkeypatch.setattr(tt_impl.combine, "_picks", lambda *given: np.roll(honest(*given), 1, axis=1))


def _another_user_s_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = RopeTables.rows

    def rows(self: RopeTables, device: Device, scratch: Scratch, positions: Tensor) -> RopeTables:
        held = device.copy_device_to_host_tensor(positions, blocking=True).array()
        device.copy_host_to_device_tensor(np.roll(held, 1), positions)
        return honest(self, device, scratch, positions)

    monkeypatch.setattr(RopeTables, "rows", rows)


@pytest.mark.parametrize(
    "plant",
    [
        _first_user_s_pages,
        _another_user_s_position,
        _another_user_s_weights,
        _another_user_s_rows,
        _another_user_s_turn,
    ],
)
def test_the_variant_batch_shows_what_companions_can_spoil(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    honest = shown(tiny_folder, None)[0]
    plant(monkeypatch)
    assert shown(tiny_folder, None)[0] == honest, "one user alone does not see it"
    assert shown(tiny_folder, "batch")[0] != honest


def test_companions_are_of_other_lengths_begin_late_and_idle(tiny_folder: Path) -> None:
    _, stats = shown(tiny_folder, "batch")
    assert stats["steps"] == len(TOKENS)
    assert stats["companion_steps"] == 7 + 5 + 7, "users 0, 2 and 3; three in every step would be 30"


@pytest.mark.parametrize("variant", ["eager", "random", "reuse"])
def test_a_schedule_is_the_device_s(tiny_folder: Path, variant: str) -> None:
    opened = open_parts(SubjectRequest(tiny_folder, variant=variant))
    assert opened.identity.device["schedule"] == VARIANTS[variant].schedule
    assert opened.identity.device["kind"] == "sim"


@pytest.mark.parametrize("arm", ["exact", "exact,dispatch=captured"])
def test_a_reload_leaves_other_bytes_at_addresses_that_the_decoder_then_gets(tiny: Checkpoint, arm: str) -> None:
    device = SimDevice()
    parts = Parts(tiny.config, tiny, CheckpointExperts(tiny))
    before = device.get_memory_view()
    occupy(device, parts, ARMS[arm].settings(tiny.config))
    assert device.get_memory_view() == before
    assert device.event_counts()["op.linear"] > 0
    assert device.event_counts()["writes"] > len(parts.config.layer_types)
    first = device.allocate_tensor_on_device((64,), DType.UINT8, Layout.ROW_MAJOR, "first")
    assert first.buffer.address == 0, "the first address was used and given back"


def test_an_unknown_variant_is_refused_with_those_there_are(tiny_folder: Path) -> None:
    with pytest.raises(SubjectError, match="no variant 'slow'; its variants are again, eager, random"):
        FACTORY.open(SubjectRequest(tiny_folder, variant="slow"))
