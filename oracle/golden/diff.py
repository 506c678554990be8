"""What moved between two goldens, and by how much against the old one's own floor. Needs no torch.

`diff_goldens` answers with one word for all of it (`Headline`) and the evidence: the recipe, prompts, chains, values where
both goldens were fed the same ids, and each class's floors, bands, limits and budgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from oracle.golden.calibration import ClassCalibration
from oracle.golden.compare import Comparison, concatenate
from oracle.golden.document_diff import Change, ClassDiff, class_diffs, recipe_changes
from oracle.golden.evidence import PromptEvidence
from oracle.golden.floor import statistics
from oracle.golden.format import Golden
from oracle.golden.movement import MovedChoice, Movement, common_beginning, move
from oracle.golden.probe_diff import probe_differences
from oracle.golden.sensitivity import exposures, measure, weakest
from oracle.subjects.protocol import NumericClass

DIFF_SCHEMA = "kolibri-golden-diff/1"
FLOOR_CLASS: NumericClass = "fp32"
"""The class whose floor says how far arithmetic alone moves what a golden stores."""

Headline = Literal["same", "arithmetic", "tie re-roll", "moved", "other recipe", "other checkpoint"]
"""`arithmetic`: values within the floor. `tie re-roll`: chains too, at near ties only. `moved`: beyond the floor."""


@dataclass(frozen=True)
class Divergence:
    """Where two chains part: `generated[index]`, and the choice made there; None where it cannot be compared."""

    index: int
    expected: int
    got: int
    choice: MovedChoice | None


@dataclass(frozen=True)
class PromptDiff:
    """One prompt that both goldens have.

    Attributes:
        name, former_name: in the new and in the old golden.
        same_text, same_ids: of the prompt.
        generated: lengths of the old and the new chain.
        divergence: None where the chains agree as far as the shorter one goes.
        movement: None where nothing is comparable.
    """

    name: str
    former_name: str
    same_text: bool
    same_ids: bool
    generated: tuple[int, int]
    divergence: Divergence | None
    movement: Movement | None

    @property
    def moved(self) -> bool:
        """Whether anything that was computed is not the same."""
        unlike = self.divergence is not None or self.movement is None or bool(self.movement.unequal)
        return unlike or not (self.same_text and self.same_ids)

    @property
    def beyond(self) -> tuple[str, ...]:
        """What moved beyond the floor, a line each."""
        lines = [f"its {what} changed" for what, same in (("text", self.same_text), ("ids", self.same_ids)) if not same]
        if self.movement is not None:
            lines += self.movement.beyond
            if self.divergence is not None and self.divergence.choice is None:
                lines.append(f"the chains part at generated[{self.divergence.index}] where no stored choice differs")
        return tuple(f"{self.name}: {line}" for line in lines)


@dataclass(frozen=True)
class Multiple:
    """One statistic over all compared positions, and the floor's largest; `allowed` times that is within the floor."""

    name: str
    value: float
    floor: float
    allowed: float

    @property
    def ratio(self) -> float | None:
        """None where the floor is zero."""
        return self.value / self.floor if self.floor else None

    @property
    def beyond(self) -> bool:
        return self.value > self.allowed * self.floor

    def __str__(self) -> str:
        times = "" if self.ratio is None else f" (x{self.ratio:.3g})"
        return f"{self.name} is {self.value:.2e}{times}, allowed {self.allowed:g} times the floor's {self.floor:.2e}"


@dataclass(frozen=True)
class GoldenDiff:
    """Everything that differs between two goldens.

    Attributes:
        headline: one word for all of it.
        values: one word for the values alone, whatever the recipe says.
        old, new: the goldens' digests.
        checkpoints: both digests.
        recipe: changed fields; libraries are under `versions`.
        added, removed: prompts that one of them has; `renamed` as (old, new); `reordered` of those that both have.
        prompts: those that both have, in the new golden's order.
        multiples: statistics against the old golden's floor of class fp32.
        classes: changed calibrations.
        sensitivity, weakest: measured of both.
        beyond: what moved further than the floor allows, a line each.
        notes: what could not be compared, and why.
    """

    headline: Headline
    values: Headline
    old: str
    new: str
    checkpoints: tuple[str, str]
    recipe: tuple[Change, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    reordered: bool
    prompts: tuple[PromptDiff, ...]
    multiples: tuple[Multiple, ...]
    classes: tuple[ClassDiff, ...]
    sensitivity: tuple[str, str]
    weakest: tuple[str, str]
    beyond: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def same(self) -> bool:
        return self.headline == "same"

    @property
    def grown(self) -> tuple[str, ...]:
        """Every band, budget, multiple and limit that grew."""
        return tuple(line for each in self.classes for line in each.grown)

    @property
    def line(self) -> str:
        """All of it on one line, as a golden's history keeps it."""
        parted = sum(p.divergence is not None for p in self.prompts)
        facts = [f"values {self.values}"] if self.values != self.headline else []
        facts += [f"{what} {', '.join(names)}" for what, names in (("added", self.added), ("removed", self.removed)) if names]
        facts += [f"{parted} of {len(self.prompts)} chains part"] if parted else []
        return "; ".join([self.headline, *facts, *self.grown])

    def to_json(self) -> dict[str, Any]:
        """The document that `golden diff --json` writes."""
        document = asdict(self)
        for each, shown in zip(self.multiples, document["multiples"], strict=True):
            shown |= {"ratio": each.ratio, "beyond": each.beyond}
        return {"schema": DIFF_SCHEMA, "line": self.line, "grown": list(self.grown), **document}


def diff_goldens(old: Golden, new: Golden) -> GoldenDiff:
    """Compare two goldens that were loaded, so that each is whole and consistent in itself."""
    floor = old.document.classes.get(FLOOR_CLASS)
    pairs = _pairs(old.prompts, new.prompts)
    taken = {o.name for o, _ in pairs}, {n.name for _, n in pairs}
    added = tuple(p.name for p in new.prompts if p.name not in taken[1])
    removed = tuple(p.name for p in old.prompts if p.name not in taken[0])
    renamed = tuple((o.name, n.name) for o, n in pairs if o.name != n.name)
    order = [p.name for p in old.prompts if p.name in taken[0]]
    reordered = [o.name for o, _ in pairs] != order
    recipe, classes = recipe_changes(old, new), class_diffs(old, new)
    notes = _notes(old, new, floor)
    fit = not any(note.startswith(_UNFIT) for note in notes)
    moved = {n.name: move(o, n, (old.probes_of(o.name), new.probes_of(n.name)), floor) if fit else None for o, n in pairs}
    prompts = tuple(_prompt_diff(o, n, moved[n.name]) for o, n in pairs)
    compared = {o.name: result[1] for o, n in pairs if (result := moved[n.name]) is not None}
    multiples = _multiples(compared, floor) if compared and floor is not None else ()
    probes_off, probes_unequal = probe_differences(old, new, _comparable(prompts)) if fit else ((), ())
    beyond = [line for prompt in prompts for line in prompt.beyond]
    beyond += [str(multiple) for multiple in multiples if multiple.beyond]
    beyond += probes_off
    moved_at_all = bool(probes_unequal) or any(p.moved for p in prompts)
    structure = bool(added or removed or renamed or reordered or [c for c in recipe if c.path[0] != "versions"])
    if classes and not (moved_at_all or structure or recipe):
        beyond.append("the calibration changed although nothing that it is measured from did")
    values = _values(beyond, moved_at_all, any(p.divergence is not None for p in prompts))
    return GoldenDiff(
        headline=_headline(old, new, structure or bool(recipe and values == "same"), values),
        values=values,
        old=old.digest,
        new=new.digest,
        checkpoints=(old.document.checkpoint_digest, new.document.checkpoint_digest),
        recipe=recipe,
        added=added,
        removed=removed,
        renamed=renamed,
        reordered=reordered,
        prompts=prompts,
        multiples=multiples,
        classes=classes,
        sensitivity=(_sensitivity(old)[0], _sensitivity(new)[0]),
        weakest=(_sensitivity(old)[1], _sensitivity(new)[1]),
        beyond=tuple(beyond),
        notes=notes,
    )


def _comparable(prompts: Sequence[PromptDiff]) -> Mapping[tuple[str, str], int]:
    """By old and new name, up to where full values can be compared: before the first expert set that differs."""
    return {
        (p.former_name, p.name): p.movement.sets[0].position if p.movement.sets else p.movement.positions
        for p in prompts
        if p.movement is not None
    }


def _headline(old: Golden, new: Golden, other_recipe: bool, values: Headline) -> Headline:
    if old.document.checkpoint_digest != new.document.checkpoint_digest:
        return "other checkpoint"
    return "other recipe" if other_recipe else values


def _values(beyond: Sequence[str], moved: bool, parted: bool) -> Headline:
    if beyond:
        return "moved"
    if not moved:
        return "same"
    return "tie re-roll" if parted else "arithmetic"


def _pairs(old: Sequence[PromptEvidence], new: Sequence[PromptEvidence]) -> list[tuple[PromptEvidence, PromptEvidence]]:
    """Prompts of one name, and those of the others that were given the same ids; in the new golden's order."""
    by_name = {p.name: p for p in old}
    names = by_name.keys() & {p.name for p in new}
    others = {p.prompt_ids: p for p in reversed(old) if p.name not in names}
    pairs = []
    for prompt in new:
        former = by_name.get(prompt.name) if prompt.name in names else others.pop(prompt.prompt_ids, None)
        if former is not None:
            pairs.append((former, prompt))
    return pairs


def _prompt_diff(old: PromptEvidence, new: PromptEvidence, moved: tuple[Movement, Comparison] | None) -> PromptDiff:
    same_ids = old.prompt_ids == new.prompt_ids
    agree = common_beginning(old.generated, new.generated)
    divergence = None
    if agree < min(len(old.generated), len(new.generated)):
        position = len(old.prompt_ids) - 1 + agree
        choices = moved[0].choices if moved is not None and same_ids else ()
        choice = next((c for c in choices if c.position == position), None)
        divergence = Divergence(agree, old.generated[agree], new.generated[agree], choice)
    return PromptDiff(
        name=new.name,
        former_name=old.name,
        same_text=old.text == new.text,
        same_ids=same_ids,
        generated=(len(old.generated), len(new.generated)),
        divergence=divergence,
        movement=None if moved is None else moved[0],
    )


def _multiples(compared: Mapping[str, Comparison], floor: ClassCalibration) -> tuple[Multiple, ...]:
    """By the floor of the prompts that were compared; nowhere below what the gates' limits resolve.

    How many expert sets differ is no statistic here: each one is looked at by itself.
    """
    own, limits = statistics(concatenate(compared.values())), floor.limits_for(list(compared))
    rows: list[tuple[str, float, float]] = []
    for field, names in (("kl", ("KL median", "KL p90")), ("router_logit", ("router logit median", "router logit largest"))):
        rows += zip(names, getattr(own, field), getattr(limits, field), strict=True)
    for field in ("sketch_median", "sketch_p90", "weight_median", "weight_p90"):
        name = field.replace("_", " ")
        pairs = zip(getattr(own, field), getattr(limits, field), strict=True)
        rows += [(f"{name}, layer {layer}", value, limit) for layer, (value, limit) in enumerate(pairs)]
    rows.append(("sketch slope", own.sketch_slope, limits.sketch_slope))
    return tuple(Multiple(name, value, limit / limits.multiple, limits.multiple) for name, value, limit in rows)


_UNFIT = "values are not compared"


def _notes(old: Golden, new: Golden, floor: ClassCalibration | None) -> tuple[str, ...]:
    notes = []
    if _geometry(old) != _geometry(new):
        notes.append(f"{_UNFIT}: layers, experts per token or sketches are {_geometry(old)} and {_geometry(new)}")
    if floor is None:
        notes.append(
            f"the old golden has no floor of class {FLOOR_CLASS}: values are held against recomputation's bounds alone"
        )
    return tuple(notes)


def _geometry(golden: Golden) -> tuple[int, ...]:
    recipe = golden.document.recipe
    return (*golden.prompts[0].expert_ids.shape[1:], recipe.sketch_rows, recipe.sketch_seed)


def _sensitivity(golden: Golden) -> tuple[str, str]:
    chains = {p.name: (p.prompt_ids, p.generated) for p in golden.prompts}
    return str(measure(chains)), str(weakest(exposures(chains)))
