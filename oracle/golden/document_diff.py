"""What changed between the documents of two goldens: recipe fields, and each class's floors, bands, limits and budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from deepdiff import DeepDiff

from oracle.golden.calibration import ClassCalibration, budget, flip_probability, margin_bin
from oracle.golden.format import Golden

WORTH_NAMING = 1.01
"""A band that grew by less than 1 % moved with the arithmetic: it stands in the table, and is not named."""

Kind = Literal["added", "removed", "changed"]


@dataclass(frozen=True)
class Change:
    """One value of a JSON document; `old` or `new` is None where there was none."""

    path: tuple[str, ...]
    kind: Kind
    old: Any
    new: Any

    @property
    def growth(self) -> float:
        """New over old where both are numbers, infinite from zero; 0 for all else."""
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in (self.old, self.new)):
            return 0.0
        if self.old == 0:
            return float("inf") if self.new > 0 else 0.0
        return self.new / self.old


@dataclass(frozen=True)
class ClassDiff:
    """What changed of one class's calibration."""

    numeric_class: str
    kind: Kind
    changes: tuple[Change, ...] = ()

    @property
    def grown(self) -> tuple[str, ...]:
        """A line for each band, multiple and budget that grew, and for the limit that grew most: they let more through."""
        grown = [change for change in self.changes if change.growth >= WORTH_NAMING]
        named = [c for c in grown if c.path[0] in ("bands", "budget") and not c.path[-1].startswith("floor_")]
        named += [c for c in grown if c.path == ("limits", "multiple")]
        limits = [c for c in grown if c.path[:2] == ("limits", "floor")]
        named += sorted(limits, key=lambda c: -c.growth)[:1]
        return tuple(f"{_words(c)} of class {self.numeric_class} grew from {_grown(c)}" for c in named)


def document_changes(old: Any, new: Any) -> tuple[Change, ...]:
    """Every differing leaf of two JSON values, by path; lists are compared place by place."""
    found = DeepDiff(old, new, view="tree", zip_ordered_iterables=True)
    kinds: dict[str, Kind] = {"added": "added", "removed": "removed"}
    changes = []
    for report, levels in found.items():
        kind = kinds.get(report.rsplit("_", 1)[-1], "changed")
        for level in levels:
            path = tuple(str(part) for part in level.path(output_format="list"))
            before, after = (
                None if kind == absent else value for absent, value in (("added", level.t1), ("removed", level.t2))
            )
            changes.append(Change(path, kind, before, after))
    return tuple(sorted(changes, key=lambda change: change.path))


def recipe_changes(old: Golden, new: Golden) -> tuple[Change, ...]:
    """Changed fields of the recipe; of its prompts those that both have, by name."""
    names = {p.name for p in old.prompts} & {p.name for p in new.prompts}

    def content(golden: Golden) -> dict[str, Any]:
        recipe = golden.document.recipe.model_dump(mode="json")
        return recipe | {"prompts": {spec["name"]: spec for spec in recipe["prompts"] if spec["name"] in names}}

    return document_changes(content(old), content(new))


def class_diffs(old: Golden, new: Golden) -> tuple[ClassDiff, ...]:
    """Every class whose calibration is not the same."""
    before, after = old.document.classes, new.document.classes
    diffs = [ClassDiff(name, "removed") for name in before if name not in after]
    diffs += [ClassDiff(name, "added") for name in after if name not in before]
    for name in sorted(before.keys() & after.keys()):
        changes = document_changes(_content(before[name]), _content(after[name]))
        if changes:
            budgets = document_changes(_budgets(before[name], old), _budgets(after[name], new))
            diffs.append(ClassDiff(name, "changed", (*changes, *budgets)))
    return tuple(diffs)


def _content(calibration: ClassCalibration) -> dict[str, Any]:
    content = calibration.model_dump(mode="json")
    return content | {"held_out": {entry["arm"]: entry for entry in content["held_out"]}}


def _budgets(calibration: ClassCalibration, golden: Golden) -> dict[str, Any]:
    """At how many flips over the whole golden the budgets fire."""
    bins = calibration.bins
    of = margin_bin(np.concatenate([prompt.margin for prompt in golden.prompts]).astype(np.float64))
    flips = {"near": bins.near, "router": bins.router}
    return {"budget": {name: budget(flip_probability(counts, bins.positions)[of]) for name, counts in flips.items()}}


_NOUNS = {"bands": "band", "limits": "limit"}


def _words(change: Change) -> str:
    """`band regret` for `bands.regret`, `limit sketch_median.3` for `limits.floor.sketch_median.3`."""
    first, *rest = change.path
    return f"{_NOUNS.get(first, first)} {'.'.join(part for part in rest if part != 'floor')}"


def _grown(change: Change) -> str:
    times = f" (x{change.growth:.3g})" if np.isfinite(change.growth) else ""
    return f"{change.old:.4g} to {change.new:.4g}{times}"
