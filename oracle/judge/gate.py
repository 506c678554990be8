"""What a gate is: a comparison, what it is blind to, and the fault it must be seen to catch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from oracle.golden.calibration import ClassCalibration, Limits
from oracle.golden.compare import Comparison, compare, concatenate
from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import Golden
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.serialization import canonical_json
from oracle.subjects.run import PromptRun, Run

T = TypeVar("T")
Verdict = Literal["fail", "incomplete", "pass", "not applicable"]


@dataclass(frozen=True)
class Finding:
    """One reason for a gate not to pass.

    Attributes:
        headline: what is wrong, in one line.
        where: the worst place: prompt, position, layer, slot.
        worst: the greatest difference, with its unit.
        allowed: how much was allowed.
        count, of: how many of how many.
        verdict: `fail`, or `incomplete` where something could not be compared.
    """

    headline: str
    where: str = ""
    worst: str = ""
    allowed: str = ""
    count: int = 1
    of: int = 1
    verdict: Literal["fail", "incomplete"] = "fail"

    def __str__(self) -> str:
        facts = [f"{self.count} of {self.of}"]
        facts += [
            f"{name} {value}" for name, value in (("worst", self.worst), ("allowed", self.allowed), ("at", self.where)) if value
        ]
        return f"{self.headline} ({', '.join(facts)})"


@dataclass(frozen=True)
class Judgement:
    """What a gate says: how many things it compared, what it found, and what it measured even where all is well."""

    compared: int
    findings: tuple[Finding, ...] = ()
    measured: Mapping[str, float | int | str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        verdicts = {finding.verdict for finding in self.findings}
        if "fail" in verdicts:
            return "fail"
        return "incomplete" if verdicts or self.compared <= 0 else "pass"


@dataclass(frozen=True)
class Case:
    """What gates judge: a golden, the run that answers it, the checkpoint both came from, the class's calibration.

    Attributes:
        texts: whether the golden's texts are tokenized again where the libraries are installed; not for a stored run, whose
            judgement must not depend on what is.
        base: what this case is a changed copy of; measures of prompts that were not changed are taken from there.
    """

    golden: Golden
    run: Run
    checkpoint: Checkpoint
    calibration: ClassCalibration
    texts: bool = True
    base: Case | None = field(default=None, repr=False, compare=False)

    @cached_property
    def _known(self) -> dict[str, Any]:
        return {}

    def answered(self) -> list[tuple[PromptEvidence, PromptRun]]:
        """Each prompt that the run answered, in the golden's order."""
        return [(p, self.run.prompts[p.name]) for p in self.golden.prompts if p.name in self.run.prompts]

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """By prompt name; measured once, used by several gates."""
        base = self.base if self.base is not None and self.base.golden.probes is self.golden.probes else None
        known = {} if base is None else {id(prompt): run for prompt, run in base.answered()}
        return {
            prompt.name: base.comparisons[prompt.name]
            if base is not None and known.get(id(prompt)) is run
            else compare(prompt, run, self.golden.probes_of(prompt.name))
            for prompt, run in self.answered()
        }

    @cached_property
    def comparison(self) -> Comparison:
        """Over all answered prompts, in the golden's order."""
        return concatenate(self.comparisons.values())

    @cached_property
    def limits(self) -> Limits:
        """What the class allows on the answered prompts."""
        return self.calibration.limits_for([prompt.name for prompt, _ in self.answered()])

    def with_run(self, **changes: Any) -> Case:
        """A copy whose run has other fields."""
        return replace(self, run=replace(self.run, **changes), base=self.base or self)

    def with_golden(self, **changes: Any) -> Case:
        """A copy whose golden has other fields."""
        return replace(self, golden=replace(self.golden, **changes), base=self.base or self)

    def with_prompt(self, name: str, **changes: Any) -> Case:
        """A copy in which one prompt's run has other arrays."""
        return self.with_run(prompts={**self.run.prompts, name: replace(self.run.prompts[name], **changes)})

    def with_prompts(self, change: Callable[[PromptRun], PromptRun]) -> Case:
        """A copy in which every prompt's run is changed."""
        return self.with_run(prompts={name: change(run) for name, run in self.run.prompts.items()})

    def narrowed(self, names: Collection[str]) -> Case:
        """A copy with these of the golden's prompts alone, in its order."""
        golden = replace(self.golden, prompts=tuple(p for p in self.golden.prompts if p.name in names))
        run = replace(self.run, prompts={name: run for name, run in self.run.prompts.items() if name in names})
        return replace(self, golden=golden, run=run, base=self.base or self)

    def once(self, key: str, make: Callable[[Case], T]) -> T:
        """`make` of this case, computed when `key` is first asked for."""
        if key not in self._known:
            self._known[key] = make(self)
        return self._known[key]

    def judged(self, gate: Gate) -> Judgement:
        """What the gate says of this case; asked once."""
        return self.once(f"judged by {gate.name}", gate.judge)

    def place(self, position: int) -> str:
        """Prompt and position of a row of `comparison`."""
        for prompt, _ in self.answered():
            if position < len(prompt.fed):
                return f"{prompt.name}[{position}]"
            position -= len(prompt.fed)
        raise IndexError(position)


class Gate(Protocol):
    """One gate.

    Attributes:
        name: as after `--only`.
        definition: its metric, statistic, multiples and version, all JSON; the digest of it is part of the gate's id.
        blind_to: what it cannot see, in one sentence.
        needs_alignment: whether it may only speak when the subject was fed what the golden was.
    """

    @property
    def name(self) -> str: ...

    @property
    def definition(self) -> Mapping[str, object]: ...

    @property
    def blind_to(self) -> str: ...

    @property
    def needs_alignment(self) -> bool: ...

    def judge(self, case: Case) -> Judgement:
        """Compare. Never raises for what a subject did."""
        ...

    def plants(self, case: Case) -> dict[str, Case]:
        """The negative controls: copies of a passing case, each with one fault that this gate must catch.

        One for each thing the gate compares, so that no part of the comparison can be lost unseen.
        """
        ...


@runtime_checkable
class NeedsEvidence(Protocol):
    """A gate of evidence that a subject may leave out. Where a run does not hold it, the gate compares nothing."""

    def holds(self, run: Run) -> bool:
        """Whether the run holds what this gate compares."""
        ...


@runtime_checkable
class PlantsEvidence(Protocol):
    """A gate of evidence that the perfect subject has not: its controls are made of what an honest device would show."""

    def honest(self, case: Case) -> Case:
        """The perfect subject's case with that evidence."""
        ...


def holds_evidence(gate: Gate, run: Run) -> bool:
    """Whether a run holds what the gate compares; what every run holds needs no saying."""
    return not isinstance(gate, NeedsEvidence) or gate.holds(run)


def shows(run: Run, array: str) -> bool:
    """Whether the run holds that array of `PromptRun` for every prompt it answered."""
    return all(array in prompt.held for prompt in run.prompts.values())


def not_held(what: str) -> Judgement:
    """What a gate says of a run without its evidence: nothing was compared, and that is never green."""
    return Judgement(0, (Finding(f"the run holds no {what}", verdict="incomplete"),))


def gate_id(name: str, definition: Mapping[str, object]) -> str:
    """`name@digest of its definition`: a changed statistic is a visible change."""
    return f"{name}@{hashlib.sha256(canonical_json({'name': name, **definition})).hexdigest()[:8]}"
