"""Gate `ops`: does each op of the device, alone, compute what it should?

Compared, op by op, at the mini's and at the release's widths (`ops_cases`), with the judge's own float64 (`ops_exact`):
- every element's error with what rounding may do there, from arithmetic: half an ulp of the result, intermediate roundings
  that a faithful kernel makes, and `ops_exact.SIGMAS` standard deviations of float32 sums;
- the mean signed error, and the mean error of magnitudes, with zero: `BIAS_SIGMAS` standard errors or `BIAS_UNITS`;
- NaN and infinity, rows of one value, and whether all float32 results lie on the bf16 grid;
- the bits of what moves or selects and computes nothing: look-ups, casts, heads, cache updates, top-k, gather, argmax.

Calibration: none of the bounds was fitted. On the simulated card errors reach 1.00 of them where one rounding is all there
is and 0.2 at most in float32 sums, means 2.5 standard errors and 0.04 units; of the faults in `tt_impl.device.sim.quirks` the
least visible is a sum of squares 1 % short, at 1.6 of the bound and a mean of 0.3 units. `python benchmarks/ops_table.py`
prints the table of docs/ops.md anew. Top-k and argmax must prefer the lowest of equal values' columns, a rule of ours: ttnn
promises none.

Which cases: those that the arm under judgement needs, by the numeric class it declares (`ops_plans`). In `fp32` activations
are float32, in the others bfloat16, and every arm makes and selects from float32 logits. A device need not have an op in a
dtype that the arm never gives it: ttnn has no float32 attention, and nobody judges the class fp32 there. `cases` counts them.

It measures from raw results, once a session, on a device without a model. It cannot see what ops do to each other, shapes
that are not asked for, or which op a decoder calls with what; and a kernel that keeps probabilities in bf16, as a fast
attention may, is red here though models survive it.
"""

from __future__ import annotations

from dataclasses import replace

from oracle.judge.gate import Case, Finding, Judgement, not_held
from oracle.judge.ops_exact import SIGMAS
from oracle.judge.ops_plans import planned, plans
from oracle.subjects.ops import OpsEvidence, OpStatistics
from oracle.subjects.protocol import NumericClass
from oracle.subjects.run import Run

BIAS_SIGMAS = 6.0
"""Two means of 50 cases each: a chance of 2e-7 that an honest device exceeds one."""

BIAS_UNITS = 0.05
"""Small beside half an ulp, which truncation loses; float32 functions of a unit's last bits may lean that much."""


class OpsGate:
    name = "ops"
    definition = {
        "version": 2,
        "cases": "each op in the activation dtype of the class, and what every class has in float32",
        "metric": "error of each op's elements, mean signed error, bits of what computes nothing, rows of one value, bf16 grid",
        "statistic": "maximum over what arithmetic allows; mean over its standard error; equality",
        "sigmas of float32 sums": SIGMAS,
        "sigmas of a mean": BIAS_SIGMAS,
        "units of a mean": BIAS_UNITS,
    }
    blind_to = "what ops do to each other, shapes that are not asked for, and which op a decoder calls with what"
    needs_alignment = False

    def holds(self, run: Run) -> bool:
        return run.ops is not None

    def judge(self, case: Case) -> Judgement:
        if case.run.ops is None:
            return not_held("statistics of single ops")
        return judge_ops(case.run.ops, planned(plans(case.run.identity.numeric_class)))

    def honest(self, case: Case) -> Case:
        """With the evidence of a device that computes every case."""
        return case.with_run(ops=planned_evidence(case.run.identity.numeric_class))

    def plants(self, case: Case) -> dict[str, Case]:
        """One statistic of one op spoiled; a case that is missing, asked twice, of another dtype, or of nothing."""
        honest = planned_evidence(case.run.identity.numeric_class)
        (moves, computes), cases = _first_of_each(honest), honest.cases
        spoiled = {
            "a bit off": replace(moves, unequal=1),
            "an error above the bound": replace(computes, worst=1.01),
            "all too large": replace(computes, bias=0.06),
            "all too small": replace(computes, bias=-0.06),
            "magnitudes too large": replace(computes, growth=0.06),
            "magnitudes too small": replace(computes, growth=-0.06),
            "a mean many standard errors off": replace(computes, bias=0.61, standard_error=0.1),
            "one infinite element": replace(computes, non_finite=1),
            "one constant row": replace(computes, constant_rows=1),
            "on the bf16 grid": replace(computes, on_grid=computes.compared),
            "a fault": replace(computes, fault="planted: a fault"),
            "another dtype": replace(computes, dtype="float16"),
            "nothing compared": replace(computes, compared=0),
        }
        changed = {name: _with(cases, each) for name, each in spoiled.items()}
        changed |= {"a case missing": cases[1:], "a case twice": (*cases, cases[0])}
        changed["a case too many"] = (*cases, replace(cases[0], case="planted"))
        return {name: case.with_run(ops=OpsEvidence(each)) for name, each in changed.items()}


def judge_ops(evidence: OpsEvidence, cases: tuple[tuple[str, str], ...]) -> Judgement:
    """Judge statistics that must be those of the planned cases, (name, dtype) each."""
    findings = [finding for each in evidence.cases for finding in _of_one(each)]
    seen = [(each.case, each.dtype) for each in evidence.cases]
    if tuple(seen) != cases:
        missing = sorted(set(cases) - set(seen)) or sorted(set(seen) - set(cases)) or [("one case twice", "")]
        findings.append(
            Finding("the ops that ran are not the plan's", where=missing[0][0], worst=f"{len(seen)}", allowed=f"{len(cases)}")
        )
    worst = max((each.worst for each in evidence.cases), default=0.0)
    measured = {
        "cases": len(seen),
        "largest error over its bound": worst,
        "equal to the bit": sum(not e.error for e in evidence.cases),
    }
    return Judgement(sum(each.compared for each in evidence.cases), tuple(findings), measured)


def _of_one(each: OpStatistics) -> list[Finding]:
    """What is wrong with one op."""
    if each.fault:
        return [Finding(f"the op gave no result to compare: {each.fault}", where=each.case)]
    found = []
    allowed = max(BIAS_UNITS, BIAS_SIGMAS * each.standard_error)
    counts = {
        "nothing of the op was compared": (each.compared <= 0, 1),
        "an op that computes nothing changed bits": (each.unequal > 0, each.unequal),
        "NaN or infinity where the true value is finite": (each.non_finite > 0, each.non_finite),
        "rows of one value, where the true ones have several": (each.constant_rows > 0, each.constant_rows),
        "all float32 results lie on the bf16 grid": (0 < each.compared <= each.on_grid, each.on_grid),
    }
    for headline, (fires, count) in counts.items():
        if fires:
            of = max(each.compared, 1)
            found.append(Finding(headline, where=each.case, worst=f"{count}", allowed="0", count=min(count, of), of=of))
    if each.worst > 1:
        found.append(
            Finding("error above its bound", where=each.case, worst=f"{each.worst:g} of it, {each.error:g} units", allowed="1")
        )
    for what, mean in (("errors", each.bias), ("errors of magnitudes", each.growth)):
        if abs(mean) > allowed:
            headline = f"{what} lean to one side"
            found.append(Finding(headline, where=each.case, worst=f"{mean:g} units on average", allowed=f"{allowed:.3g}"))
    return found


def planned_evidence(numeric_class: NumericClass) -> OpsEvidence:
    """The evidence of an honest device, in an arm of that class."""
    cases = planned(plans(numeric_class))
    return OpsEvidence(tuple(OpStatistics(name, dtype, compared=64, standard_error=0.001) for name, dtype in cases))


def _first_of_each(honest: OpsEvidence) -> tuple[OpStatistics, OpStatistics]:
    moves, computes = (next(e for e in honest.cases if e.case.startswith(op)) for op in ("embedding", "linear router"))
    return moves, computes


def _with(cases: tuple[OpStatistics, ...], changed: OpStatistics) -> tuple[OpStatistics, ...]:
    return tuple(changed if each.case == changed.case else each for each in cases)
