"""Variants of `tt`: each changes what it says, and no bit of what the decoder shows."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from oracle.errors import SubjectError
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import StepEvidence, SubjectRequest
from tt_impl.arms import ARMS
from tt_impl.device.protocol import DType, Layout
from tt_impl.device.sim import SimDevice
from tt_impl.expert_layout import CheckpointExperts
from tt_impl.opening import open_parts
from tt_impl.plants import Parts
from tt_impl.subject import FACTORY
from tt_impl.variants import VARIANTS, occupy

TOKENS = [3, 9, 4, 1, 12, 7, 30, 2, 25, 11]


def shown(folder: Path, variant: str | None) -> tuple[bytes, dict[str, int]]:
    subject = FACTORY.open(SubjectRequest(folder, arm="exact", variant=variant))
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


@pytest.mark.parametrize("variant", ["eager", "random", "reuse"])
def test_a_schedule_is_the_device_s(tiny_folder: Path, variant: str) -> None:
    opened = open_parts(SubjectRequest(tiny_folder, variant=variant))
    assert opened.identity.device["schedule"] == VARIANTS[variant].schedule
    assert opened.identity.device["kind"] == "sim"


def test_a_reload_leaves_other_bytes_at_addresses_that_the_decoder_then_gets(tiny: Checkpoint) -> None:
    device = SimDevice()
    parts = Parts(tiny.config, tiny, CheckpointExperts(tiny))
    before = device.get_memory_view()
    occupy(device, parts, ARMS["exact"].settings(tiny.config))
    assert device.get_memory_view() == before
    assert device.event_counts()["op.linear"] > 0
    assert device.event_counts()["writes"] > len(parts.config.layer_types)
    first = device.allocate_tensor_on_device((64,), DType.UINT8, Layout.ROW_MAJOR, "first")
    assert first.buffer.address == 0, "the first address was used and given back"


def test_an_unknown_variant_is_refused_with_those_there_are(tiny_folder: Path) -> None:
    with pytest.raises(SubjectError, match="no variant 'slow'; its variants are again, eager, random"):
        FACTORY.open(SubjectRequest(tiny_folder, variant="slow"))
