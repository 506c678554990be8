"""The judge's own eyes on a step's ops: every weight used once, in order, by the right op, and how many ops there are.

Reviewers of a port swapped a norm's weight and deleted a dispatch arm, and every gate without a card stayed green; a census
of ops and weights made each red. So the device's own record of every step is looked at, and only what differs is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from oracle.judge.census_plan import Stage, bias_of_layer, first_of_layer, stages
from oracle.kolibri1.config import Kolibri1Config
from oracle.subjects.census import CensusEvidence, DeclaredOps, OpCounts, OpTally, OpUse, Where

_MAX_STORED_VIOLATIONS = 100
_NAMES_SHOWN = 4


class CensusAuditor:
    """Looks at the steps of one prompt; `evidence` at the end."""

    def __init__(self, config: Kolibri1Config, prompt: str) -> None:
        self._config = config
        self._prompt = prompt
        self._begins = {first_of_layer(layer): layer for layer in range(config.num_hidden_layers)}
        self._biases = {bias_of_layer(layer): layer for layer in range(config.num_hidden_layers)}
        self._declared: tuple[tuple[Where, str, int], ...] = ()
        self._steps = self._weights = self._violation_count = 0
        self._tallies: dict[tuple[Where, OpCounts], OpTally] = {}
        self._violations: list[str] = []

    def declare(self, declared: DeclaredOps) -> None:
        """What the subject says that each step has."""
        counts: dict[Where, dict[str, int]] = {
            "step": dict(declared.step),
            "layer": dict(declared.layer),
            "sliding": dict(declared.sliding),
        }
        self._declared = tuple(sorted((where, op, n) for where, ops in counts.items() for op, n in ops.items() if n))

    def step(self, position: int, ops: Sequence[OpUse], experts: Sequence[Sequence[int]]) -> None:
        """Look at one step's ops, in order.

        Args:
            experts: by layer, the ids that the step itself shows.
        """
        place = f"{self._prompt}[{position}]"
        planned = stages(self._config, experts)
        used = [(name, op.name) for op in ops for name in op.weights]
        self._steps += 1
        self._weights += len(used)
        self._check_weights(place, planned, used)
        self._tally(place, ops)

    def evidence(self) -> CensusEvidence:
        """What was seen so far; at most 100 violations are spelled out, the rest are counted."""
        violations = list(self._violations)
        if (more := self._violation_count - len(violations)) > 0:
            violations.append(f"and {more} more")
        return CensusEvidence(self._steps, self._weights, self._declared, tuple(self._tallies.values()), tuple(violations))

    def _check_weights(self, place: str, planned: Sequence[Stage], used: list[tuple[str, str]]) -> None:
        wanted = [name for stage in planned for name in stage.names]
        counted = Counter(name for name, _ in used)
        surplus, missing = counted - Counter(wanted), Counter(wanted) - counted
        for name in self._biases.keys() & surplus.keys():
            surplus[name] -= 1  # once is the device's choice
        surplus = +surplus
        if missing:
            self._report(f"{place} {_layers(missing)}: not used: {_shown(missing)}")
        if surplus:
            self._report(f"{place} {_layers(surplus)}: used besides, or once too often: {_shown(surplus)}")
        if not (missing or surplus):
            self._check_order(place, planned, [(name, op) for name, op in used if name not in self._biases])
            self._check_biases(place, [name for name, _ in used])

    def _check_order(self, place: str, planned: Sequence[Stage], used: list[tuple[str, str]]) -> None:
        """Of a step that uses each weight once."""
        start = 0
        for stage in planned:
            found = used[start : start + len(stage.names)]
            start += len(stage.names)
            names = [name for name, _ in found]
            where = f"{place}{'' if stage.layer is None else f' layer {stage.layer}'}"
            if set(names) != set(stage.names):
                wrong = Counter(set(names) - set(stage.names))
                instead = Counter(set(stage.names) - set(names))
                self._report(f"{where}: {_shown(wrong)} used where {_shown(instead)} belongs")
                return
            at = {name: index for index, name in enumerate(names)}
            for name, before in stage.after:
                if late := [other for other in before if at[other] > at[name]]:
                    self._report(f"{where}: {name} used before {late[0]}")
            for name, op in found:
                if op not in stage.ops:
                    self._report(f"{where}: {name} used by {op}, not by {' or '.join(sorted(stage.ops))}")

    def _check_biases(self, place: str, used: list[str]) -> None:
        """A bias that the device uses is used among its own layer's weights: there it has no fixed place."""
        before = ""
        for name in used:
            if name not in self._biases:
                before = name
            elif not before.startswith(own := f"model.layers.{self._biases[name]}."):
                self._report(f"{place}: {name} used behind {before or 'nothing'}, and not behind a weight of {own[:-1]}")

    def _tally(self, place: str, ops: Sequence[OpUse]) -> None:
        """Count the ops of each layer, which begins with its first norm's weight, and of what is outside."""
        outside: Counter[str] = Counter()
        layers: dict[int, Counter[str]] = {}
        counting = outside
        for op in ops:
            for name in op.weights:
                if name in self._begins:
                    counting = layers.setdefault(self._begins[name], Counter())
                elif name == _LAST:
                    counting = outside
            counting[op.name] += 1
        self._add("step", outside, place)
        for layer, counts in layers.items():
            self._add("sliding" if self._config.is_sliding(layer) else "layer", counts, f"{place} layer {layer}")

    def _add(self, where: Where, counts: Counter[str], place: str) -> None:
        key = (where, tuple(sorted(counts.items())))
        known = self._tallies.get(key)
        self._tallies[key] = OpTally(*key, 1 if known is None else known.times + 1, place if known is None else known.first)

    def _report(self, violation: str) -> None:
        self._violation_count += 1
        if len(self._violations) < _MAX_STORED_VIOLATIONS:
            self._violations.append(violation)


_LAST = "model.norm.weight"
"""The weight whose use ends the last layer."""


def _layers(names: Counter[str]) -> str:
    """Of which layers the weights are."""
    numbers = sorted({int(name.split(".")[2]) for name in names if name.startswith("model.layers.")})
    return f"layer {', '.join(map(str, numbers))}" if numbers else "outside the layers"


def _shown(names: Counter[str]) -> str:
    shown = [name if count == 1 else f"{name} ({count} times)" for name, count in sorted(names.items())]
    more = f" and {len(shown) - _NAMES_SHOWN} more" if len(shown) > _NAMES_SHOWN else ""
    return ", ".join(shown[:_NAMES_SHOWN]) + more
