"""Gate `census`: does every decode step use every weight once, in order, by the right op, and as many ops as it should?

Compared, for every step of each prompt's teacher-forced pass, by the device's own record of what it was asked (`census_audit`):
the weights among the ops' operands with those that the config demands (`census_plan`), experts by the ids that the step itself
shows, anything missing, surplus, doubled or out of order; and, in each layer and outside, how many ops of each name there are,
with what the subject declares, and that with what the model fixes: six norms, one attention, two cache updates and at least two
additions a layer, RoPE of queries and keys on sliding layers and none on full ones.
No calibration: counts are equal or wrong. An implementation may stack weights, and order the experts of a layer, the shared
one among them, and its q and k norm as it likes.
It cannot see which activation an op is given, what an op computes (`ops`), the bytes behind a weight's name (`staging`,
`operands`), the free run, or whose position, page or layer's cache an op is handed: those show in `residual` and `logits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from oracle.judge.census_plan import ATTENTION, FIXED_BY_THE_MODEL, LEAST_ADDS, ROTATED, stages
from oracle.judge.gate import Case, Finding, Judgement, not_held
from oracle.subjects.census import CensusEvidence, OpTally, Where
from oracle.subjects.run import Run

_TITLES: Mapping[Where, str] = {"step": "outside the layers", "layer": "in a full layer", "sliding": "in a sliding layer"}
_WHERES: tuple[Where, Where, Where] = ("layer", "sliding", "step")


class CensusGate:
    name = "census"
    definition = {
        "version": 1,
        "metric": "weights used in each teacher-forced step, their order and ops; ops of each name in each layer and outside",
        "statistic": "equality",
    }
    blind_to = "which activation, position or cache an op is given, what it computes, and the free run"
    needs_alignment = False

    def holds(self, run: Run) -> bool:
        return run.census is not None

    def judge(self, case: Case) -> Judgement:
        seen = case.run.census
        if seen is None:
            return not_held("record of ops")
        findings = [Finding(violation) for violation in seen.violations]
        steps = sum(run.consumed.size for _, run in case.answered())
        weights = steps * _weights_of_a_step(case)
        for what, counted, expected in (("steps", seen.steps, steps), ("uses of weights", seen.weights, weights)):
            # A router's bias may be used by the device or by the host.
            spare = steps * case.checkpoint.config.num_hidden_layers if what != "steps" else 0
            if not expected <= counted <= expected + spare:
                findings.append(Finding(f"{what} recorded are not those of the run", worst=str(counted), allowed=str(expected)))
        findings += _declared_findings(seen)
        findings += _tally_findings(case, seen, steps)
        measured = {"steps": seen.steps, "weights": seen.weights, "distinct counts": len(seen.tallies)}
        return Judgement(seen.weights, tuple(findings), measured)

    def honest(self, case: Case) -> Case:
        """With the evidence of a decoder that has no more ops than the model asks for."""
        return case.with_run(census=planned_evidence(case))

    def plants(self, case: Case) -> dict[str, Case]:
        """A violation; counts of steps, weights, layers and ops off by one; declarations that the model does not allow."""
        honest = case.run.census or planned_evidence(case)
        by_where: dict[Where, OpTally] = {tally.where: tally for tally in honest.tallies}
        changed: dict[str, CensusEvidence] = {
            "a violation": replace(honest, violations=("planted",)),
            "a step not recorded": replace(honest, steps=honest.steps - 1),
            "a step too many": replace(honest, steps=honest.steps + 1),
            "a weight short": replace(honest, weights=honest.weights - 1),
            "a weight too many": replace(
                honest, weights=honest.weights + honest.steps * case.checkpoint.config.num_hidden_layers + 1
            ),
            "nothing declared": replace(honest, declared=()),
            "two declarations": replace(honest, declared=(*honest.declared, ("layer", "add", 99))),
        }
        for where, tally in by_where.items():
            others = tuple(each for each in honest.tallies if each != tally)
            title = _TITLES[where]
            changed |= {
                f"an op too many {title}": replace(honest, tallies=(*others, _with(tally, "add", 1))),
                f"an op short {title}": replace(honest, tallies=(*others, _with(tally, "rms_norm", -1))),
                f"one differs {title}": replace(
                    honest, tallies=(*others, replace(tally, times=tally.times - 1), replace(_with(tally, "add", 1), times=1))
                ),
                f"one not counted {title}": replace(honest, tallies=(*others, replace(tally, times=tally.times - 1))),
                f"one counted twice {title}": replace(honest, tallies=(*others, replace(tally, times=tally.times + 1))),
            }
        declared: dict[str, tuple[Where, str, int]] = {
            "an add short": ("layer", "add", -1),
            "RoPE on full layers": ("layer", "rotary_embedding_hf", ROTATED),
            "RoPE of keys alone": ("sliding", "rotary_embedding_hf", -1),
            "no attention": ("layer", ATTENTION, -1),
            "a norm short": ("layer", "rms_norm", -1),
            "a norm more": ("step", "rms_norm", 1),
            "a value not cached": ("layer", "paged_update_cache", -1),
        }
        for name, (where, op, count) in declared.items():
            changed[f"{name}, as declared"] = _declared_otherwise(honest, where, op, count)
        return {name: case.with_run(census=evidence) for name, evidence in changed.items()}


def undeclared(seen: CensusEvidence) -> list[tuple[OpTally, str, str]]:
    """Each tally that is not as declared, with the counts that differ: seen, and declared."""
    found = []
    for tally in seen.tallies:
        expected, counted = dict(_expected(seen, tally.where)), dict(tally.ops)
        wrong = [op for op in sorted({*expected, *counted}) if expected.get(op, 0) != counted.get(op, 0)]
        if wrong:
            shown, declared = (", ".join(f"{op} {n.get(op, 0)}" for op in wrong) for n in (counted, expected))
            found.append((tally, shown, declared))
    return found


def planned_evidence(case: Case) -> CensusEvidence:
    """The evidence of a decoder with no more ops than the model asks for."""
    config = case.checkpoint.config
    steps = sum(run.consumed.size for _, run in case.answered())
    layer = {**FIXED_BY_THE_MODEL, "add": LEAST_ADDS, "linear": 3}
    sliding = {"rotary_embedding_hf": ROTATED}
    declared: dict[Where, dict[str, int]] = {"step": {"rms_norm": 1, "linear": 1}, "layer": layer, "sliding": sliding}
    windows = sum(config.is_sliding(each) for each in range(config.num_hidden_layers))
    times: dict[Where, int] = {"step": steps, "layer": steps * (config.num_hidden_layers - windows), "sliding": steps * windows}
    rows = _rows({(where, op): n for where, ops in declared.items() for op, n in ops.items()})
    evidence = CensusEvidence(steps, steps * _weights_of_a_step(case), rows)
    tallies = tuple(OpTally(where, _expected(evidence, where), n, "planned") for where, n in times.items() if n)
    return replace(evidence, tallies=tallies)


def _weights_of_a_step(case: Case) -> int:
    config = case.checkpoint.config
    experts = [range(config.num_experts_per_tok)] * config.num_hidden_layers
    return sum(len(stage.names) for stage in stages(config, experts))


def _expected(seen: CensusEvidence, where: Where) -> tuple[tuple[str, int], ...]:
    """The counts that the declaration gives there."""
    parts = ("layer", "sliding") if where == "sliding" else (where,)
    counts: dict[str, int] = {}
    for part, op, n in seen.declared:
        if part in parts:
            counts[op] = counts.get(op, 0) + n
    return tuple(sorted(counts.items()))


def _declared_findings(seen: CensusEvidence) -> list[Finding]:
    """What of the declaration cannot be, by the model."""
    found = []
    full, sliding, step = (dict(_expected(seen, where)) for where in _WHERES)
    rules: list[tuple[Where, dict[str, int], Mapping[str, int]]] = [
        ("layer", full, {**FIXED_BY_THE_MODEL, "rotary_embedding_hf": 0}),
        ("sliding", sliding, {**FIXED_BY_THE_MODEL, "rotary_embedding_hf": ROTATED}),
        ("step", step, {"rms_norm": 1}),
    ]
    for where, ops, fixed in rules:
        for op, n in fixed.items():
            if ops.get(op, 0) != n:
                headline = f"{op} declared {_TITLES[where]} is not what the model has"
                found.append(Finding(headline, worst=str(ops.get(op, 0)), allowed=str(n)))
    for where, ops, _ in rules[:2]:
        if ops.get("add", 0) < LEAST_ADDS:
            headline = f"fewer additions declared {_TITLES[where]} than the residual stream has"
            found.append(Finding(headline, worst=str(ops.get("add", 0)), allowed=str(LEAST_ADDS)))
    return found


def _tally_findings(case: Case, seen: CensusEvidence, steps: int) -> list[Finding]:
    """Counts that are not the declared ones, and layers that were not counted."""
    config = case.checkpoint.config
    windows = sum(config.is_sliding(layer) for layer in range(config.num_hidden_layers))
    times: dict[Where, int] = {"step": steps, "layer": steps * (config.num_hidden_layers - windows), "sliding": steps * windows}
    found = []
    for tally, shown, declared in undeclared(seen):
        headline = f"ops {_TITLES[tally.where]} are not those declared"
        found.append(Finding(headline, tally.first, shown, declared, tally.times, max(tally.times, times[tally.where])))
    for where, expected in times.items():
        counted = sum(tally.times for tally in seen.tallies if tally.where == where)
        if counted != expected:
            headline = f"counts of ops {_TITLES[where]} are not one for each"
            found.append(Finding(headline, worst=str(counted), allowed=str(expected)))
    return found


def _with(tally: OpTally, op: str, more: int) -> OpTally:
    counts = dict(tally.ops)
    counts[op] = counts.get(op, 0) + more
    return replace(tally, ops=tuple(sorted((name, n) for name, n in counts.items() if n)))


def _declared_otherwise(honest: CensusEvidence, where: Where, op: str, more: int) -> CensusEvidence:
    """The evidence of a subject that has another number of an op everywhere there, and says so."""
    counts: dict[tuple[Where, str], int] = {(part, name): n for part, name, n in honest.declared}
    counts[where, op] = counts.get((where, op), 0) + more
    declared = _rows(counts)
    changed = replace(honest, declared=declared)
    return replace(changed, tallies=tuple(replace(t, ops=_expected(changed, t.where)) for t in honest.tallies))


def _rows(counts: Mapping[tuple[Where, str], int]) -> tuple[tuple[Where, str, int], ...]:
    """`CensusEvidence.declared` of counts by place and op."""
    rows: list[tuple[Where, str, int]] = [(where, op, n) for (where, op), n in counts.items() if n]
    return tuple(sorted(rows))
