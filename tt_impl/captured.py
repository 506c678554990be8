"""A device's record of a capture as a judge reads it: the checkpoint's names of weights in place of labels."""

from __future__ import annotations

from collections.abc import Iterable

from oracle.subjects.captures import CapturedRegion
from tt_impl.census import weights_of
from tt_impl.device.protocol import CaptureRecord
from tt_impl.operands import is_expert


def captured_region(record: CaptureRecord) -> CapturedRegion:
    """Of operands that the host wrote before a replay, only weights are named: ids, positions and page tables are its input."""
    return CapturedRegion(
        calls=record.calls,
        replays=record.replays,
        changed=_named(record.changed),
        experts=sum(map(is_expert, record.operands)),
        alike=record.alike,
    )


def _named(labels: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({weight for label in labels for weight in weights_of(label)}))
