"""What a subject shows of the regions that its device captured and replayed, and the evidence kept of it. No arithmetic.

A captured region is what a device was asked for between the begin and the end of a capture (a trace): recorded once, then
executed again over what its buffers hold at that moment. What is shown is the device's own record, made where it is asked,
and not the decoder's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Protocol, runtime_checkable

from oracle.subjects.census import OpCounts

OP = "op."
"""What the name of a call that is an op begins with; the op's own name follows, as in `oracle.subjects.ops`."""


@dataclass(frozen=True)
class CapturedRegion:
    """One captured region, or several that are alike.

    Attributes:
        calls: (name, how often) of what the device was asked for between the begin and the end of the capture, sorted by
            name. An op is `op.NAME`. Anything else has its own name: `allocate_tensor_on_device`, `deallocate`,
            `copy_host_to_device_tensor`, `copy_device_to_host_tensor`, `synchronize_device`, ...
        replays: how often it was executed; of several, all of their executions.
        changed: the checkpoint's names of weights, routed experts' too, that its ops take and whose bytes on the device
            the host wrote between the capture's end and an execution: content that changed without capturing anew. Sorted.
        experts: how many tensors of routed experts' weights its ops take.
        alike: how many regions had these calls, changed weights and experts.
    """

    calls: OpCounts
    replays: int
    changed: tuple[str, ...] = ()
    experts: int = 0
    alike: int = 1


@runtime_checkable
class RecordsCaptures(Protocol):
    """An optional ability of a subject whose device can capture; gate `capture` judges what it shows."""

    def captured_regions(self) -> Sequence[CapturedRegion]:
        """All regions captured since `reset`, released ones too, by the device's own record; none where nothing was.

        Called once, after the last step, also where a `DeviceFault` ended it: must not ask the device for anything.
        """
        ...


@runtime_checkable
class Captures(Protocol):
    """An ability of a subject's factory: the same decode with its ops captured and replayed, and with each enqueued anew.

    Attributes:
        dispatch_variants: the two names out of `variants` (`oracle.subjects.repeats.Repeats`), that which replays captured
            regions first. Each fixes how ops are dispatched, whatever the arm, and changes nothing else.
    """

    dispatch_variants: tuple[str, str]


@dataclass(frozen=True)
class CaptureEvidence:
    """Captured regions of a run. The two repeats that are compared stand in `Run.repeats`.

    Attributes:
        prompt: that was repeated.
        replayed, enqueued: names of the two variants.
        executions: how often regions were executed in the repeat of `replayed`, and in that of `enqueued`.
        regions: of all of the run's prompts and repeats, by `merged`.
    """

    prompt: str
    replayed: str
    enqueued: str
    executions: tuple[int, int]
    regions: tuple[CapturedRegion, ...]


def merged(regions: Iterable[CapturedRegion]) -> tuple[CapturedRegion, ...]:
    """One region for all that are alike, their executions added up; in an order that does not depend on theirs.

    Raises:
        TypeError, ValueError: something that should be a whole number, or pairs of name and count, is not.
    """
    known: dict[tuple[OpCounts, tuple[str, ...], int], CapturedRegion] = {}
    for region in regions:
        calls = tuple(sorted((str(name), index(count)) for name, count in region.calls))
        changed, experts = tuple(sorted(str(name) for name in region.changed)), index(region.experts)
        before = known.get((calls, changed, experts), CapturedRegion(calls, 0, changed, experts, alike=0))
        known[calls, changed, experts] = replace(
            before, replays=before.replays + index(region.replays), alike=before.alike + index(region.alike)
        )
    return tuple(known[key] for key in sorted(known))
