"""One run of one arm: a prompt walked id by id, then a free decode, each step timed, everything else outside the timer."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from oracle.errors import DeviceFault
from oracle.subjects.harness import argmax_lowest_id
from oracle.subjects.modelled_time import ModelsTime, PartTimes, TimeModel
from oracle.subjects.protocol import Subject, SubjectIdentity

WARM_UP = 8
"""Steps that nobody measures, after each opening: programs are compiled, files and tables read. A device's programs don't
depend on the position, so a few show all."""


@dataclass(frozen=True)
class Stage:
    """The prefill or the decode of a run.

    Attributes:
        wall_ns: within `Subject.step` alone.
        counts: increases of the subject's counters, those that are 0 too.
        modelled_ns: by part and cause; None where nobody models it.
    """

    steps: int
    wall_ns: int
    counts: Mapping[str, int]
    modelled_ns: PartTimes | None


@dataclass(frozen=True)
class BenchRun:
    """One run.

    Attributes:
        identity: as opened.
        model: what its modelled time is made of; None where it has none.
        chain: what the last step of the prefill and each step of the decode predicted, lowest id among equals.
        logits_digest: sha256 over the float32 logits of all steps, little-endian, one after the other.
        levels: the counters that do not add up, at the end.
    """

    identity: SubjectIdentity
    model: TimeModel | None
    prefill: Stage
    decode: Stage
    chain: tuple[int, ...]
    logits_digest: str
    levels: Mapping[str, int]


def measure(
    subject: Subject, prompt: tuple[int, ...], steps: int, levels: Collection[str], advance: Callable[[], None]
) -> BenchRun:
    """Warm up, reset, walk `prompt`, and decode `steps` ids more, each the argmax of the step before.

    Args:
        levels: names of counters that do not add up (`oracle.subjects.levels`).
        advance: called after each step.

    Raises:
        DeviceFault: the subject's own; `evidence` where a step consumed something else than it was fed; `non-finite`.
    """
    subject.start()
    for token in prompt[:WARM_UP]:
        subject.step(token)
        advance()
    subject.reset()
    subject.start()
    timed = _Timed(subject, levels, advance)
    token = -1
    for given in prompt:
        token = timed.step(given)
    prefill, chain = timed.stage(), [token]
    for _ in range(steps):
        chain.append(token := timed.step(token))
    decode = timed.stage()
    held = {name: count for name, count in subject.stats().items() if name in levels}
    return BenchRun(subject.identity, timed.model, prefill, decode, tuple(chain), timed.logits_digest, held)


class _Timed:
    """Steps of a new sequence, and what they add up to."""

    def __init__(self, subject: Subject, levels: Collection[str], advance: Callable[[], None]) -> None:
        self._subject = subject
        self._levels = levels
        self._advance = advance
        self._modelled = subject if isinstance(subject, ModelsTime) else None
        self.model = self._modelled.time_model() if self._modelled is not None else None
        if self._modelled is not None:
            self._modelled.model_time(self.model is not None)
        self._logits = hashlib.sha256()
        self._position = 0
        self._begin()

    @property
    def logits_digest(self) -> str:
        return f"sha256:{self._logits.hexdigest()}"

    def step(self, token: int) -> int:
        """Feed one id, and return the one it predicts."""
        begun = time.perf_counter_ns()
        shown = self._subject.step(token)
        self._wall_ns += time.perf_counter_ns() - begun
        if (shown.token, shown.position) != (token, self._position):
            raise DeviceFault(
                "evidence",
                f"step {self._position} was fed id {token} and consumed id {shown.token} at position {shown.position}",
            )
        if bad := int(np.count_nonzero(~np.isfinite(shown.logits))):
            raise DeviceFault("non-finite", f"step {self._position}: {bad} of {len(shown.logits)} logits")
        self._logits.update(np.ascontiguousarray(shown.logits, "<f4").tobytes())
        self._position += 1
        self._steps += 1
        self._advance()
        return argmax_lowest_id(shown.logits)

    def stage(self) -> Stage:
        """What the steps since the stage before add up to."""
        counts, times = self._now()
        counts_before, times_before = self._before
        stage = Stage(
            steps=self._steps,
            wall_ns=self._wall_ns,
            counts={name: count - counts_before.get(name, 0) for name, count in counts.items() if name not in self._levels},
            modelled_ns=None if times is None else _difference(times, times_before or {}),
        )
        self._begin()
        return stage

    def _begin(self) -> None:
        self._steps, self._wall_ns = 0, 0
        self._before = self._now()

    def _now(self) -> tuple[Mapping[str, int], PartTimes | None]:
        modelled = self._modelled if self.model is not None else None
        return dict(self._subject.stats()), None if modelled is None else modelled.modelled_ns()


def _difference(after: PartTimes, before: PartTimes) -> PartTimes:
    return {
        part: {cause: ns - before.get(part, {}).get(cause, 0) for cause, ns in causes.items()} for part, causes in after.items()
    }
