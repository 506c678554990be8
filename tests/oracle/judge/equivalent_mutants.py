"""Silenced conditions with which a session may stay green, by gate: where each begins, and why no control need notice it.

To add one: it must decide nothing but what is printed, or only make the gate stricter, or be impossible to meet with a run
that gets that far. Anything else is a comparison that no control looks at: plant a fault for it in the gate.
"""

from __future__ import annotations

_PRINTED = "decides only what is printed"
_STRICTER = "makes the gate stricter: it errs to red, and honest engines are tested to be green"
_LEFT_OUT = (
    "only a session with a budget leaves prompts out, and a prompt that is missing otherwise is incomplete and not a failure, "
    "which no control plants; `test_partial_runs.py` asks for both"
)
_RAISES = "without it a run that lacks the evidence ends in an error and not in a verdict"
_NO_BOTH = "a prompt that was left out has no run: a file that says both is refused"
_COUNTED = "decides only how many are said to be compared"
_HALF = (
    "the perfect subject shows both halves of the evidence, so no control lacks one; `test_routing_gate.py` asks for what a "
    "subject owes that declares the gate"
)
_NO_WEIGHT = (
    "sets that differ at every position of a layer are too many on fewer than 20 layers, so no control on few layers can meet "
    "it alone; `test_routing_gate.py` asks for it"
)
_NOT_COUNTED = (
    "counters that are missing, or of parts of prompts, are incomplete, which no control plants; `test_counters_gate.py` asks"
)
_SHOWN = "the perfect subject shows its experts, so no control lacks them; `test_operands_gate.py` asks for them"
_SECOND = "a second look at the same thing: without it the run is red or incomplete by the next condition"

EQUIVALENT: dict[str, dict[str, str]] = {
    "golden": {
        "_tokenizer: ": _PRINTED,
        "_chat_template: ": _PRINTED,
        "_text_findings: not texts or not _tokenizes(case) -> False": "it is True only where there is nothing to compare with",
        "_chat_findings: not chats or not _renders(case) -> False": "it is True only where there is nothing to compare with",
        "_chain_findings: np.diff(prompt.top_ids, axis=1) > 0 -> False": _STRICTER,
        "_text_findings: p.text is not None -> True": _SECOND,
    },
    "alignment": {
        "_compare_prompt: expected.ndim > 1": _PRINTED,
        "judge: run is None -> False": _RAISES,
        "judge: prompt.name in case.run.left_out": _LEFT_OUT,
        "judge: run is None -> True": _NO_BOTH,
        "judge: run is None -> negated": _NO_BOTH,
        "judge: run is None and prompt.name in case.run.left_out -> False": _LEFT_OUT,
        "_mixed_evidence: name in held -> True": _STRICTER,
    },
    "chain": {
        "_judge_prompt: kind != 'hard' -> False": _STRICTER,
        "judge: first < len(expected)": _PRINTED,
    },
    "flips": {
        "_hard_findings: r.rank < 0": _PRINTED,
        "_hard_findings: worst.": _PRINTED,
        "_smallest_bands: ": _PRINTED,
        "judge: r.label == 'hard' -> True": _STRICTER,
        "judge: r.label == label -> True": _STRICTER,
        "judge: r.label == label -> negated": "each kind is then held against the other's budget, and fires there",
    },
    "logits": {
        "judge: case.calibration.numeric_class == 'fp32' -> True": _STRICTER,
    },
    "residual": {
        "judge: (distance := comparison.sketch_distance) is None -> False": _RAISES,
    },
    "routing": {
        "judge: not self.holds(case.run) -> False": _RAISES,
        "_finite: counts -> True": _RAISES,
        "_finite: run.non_finite_routing is not None -> True": _RAISES,
        "_sets: first < layers -> True": "a position whose sets agree has a gap of 0, which is within any band",
        "_sets: forced": _PRINTED,
        "_unexcused: case.comparison.set_gap <= allowed -> False": _STRICTER,
        "_weights: (error := case.comparison.weight_error) is None -> False": _RAISES,
        "_weights: (none := (~(error >= 0).any(axis=0))).any() -> False": _NO_WEIGHT,
        "_weights: error >= 0": _COUNTED,
        "_weights: case.run.forced": _PRINTED,
        "_exact_weights: case.run.forced -> True": _STRICTER,
        "_exact_weights: case.calibration.numeric_class == 'fp32' -> True": _STRICTER,
        "_router_logits: (error := case.comparison.router_logit_error) is None -> False": _RAISES,
        "_router_logits: error >= 0": _COUNTED,
        "_not_shown: ": _HALF,
    },
    "shown_router": {
        "judge_shown_router: shown is None -> False": _RAISES,
        "judge_shown_router: not case.run.forced -> True": _STRICTER,
        "_shown: not places -> False": _RAISES,
        "_shown: run.router_logits is None or run.expert_ids is None -> False": _RAISES,
        "_shown: run.router_logits is None -> False": _RAISES,
        "_shown: run.expert_ids is None -> False": _RAISES,
        "_shown: run.expert_weights is None -> False": _RAISES,
        "_shown: row[2] is not None -> True": _RAISES,
        "_shown: len(shown_weights) == len(rows) -> True": _RAISES,
        "_consistency: shown.weights is not None -> True": _RAISES,
    },
    "staging": {
        "judge: compared <= 0 -> False": "a judgement that compared nothing is incomplete without any finding",
        "judge: seen is None -> False": _RAISES,
    },
    "ops": {
        "judge: case.run.ops is None -> False": _RAISES,
    },
    "measuring ops": {
        "_misshapen: isinstance(found, np.ndarray) -> False": _PRINTED,
    },
    "operands": {
        "judge: seen is None -> False": _RAISES,
        "_expert_findings: not shows(case.run, 'expert_ids') -> False": _SHOWN,
    },
    "census": {
        "judge: seen is None -> False": _RAISES,
        "judge: what != 'steps' -> False": _STRICTER,
    },
    "slots": {
        "judge: seen is None -> False": _RAISES,
        "expected_uses: ids is None -> False": _RAISES,
        "judge: p.expert_ids is not None -> True": _RAISES,
        "judge: not case.run.faults -> True": _STRICTER,
        "judge: not shows(case.run, 'expert_ids') -> False": _SECOND,
        "judge: seen.fills <= 0": _SECOND,
        "judge: seen.uses <= 0": _SECOND,
    },
    "determinism": {
        "judge: evidence is None -> False": _RAISES,
        "judge: own is None -> False": _RAISES,
        "_digest: array is not None -> True": _RAISES,
    },
    "capture": {
        "_faults: more > 0": _PRINTED,
        "judge: seen is None -> False": _RAISES,
        "judge: own is None -> False": _RAISES,
    },
    "counters": {
        "judge: not self.holds(case.run) -> False": _NOT_COUNTED,
        "judge: case.run.faults -> False": _NOT_COUNTED,
        "judge: (missing := [name for name in rule.needs if name not in counts]) -> False": _RAISES,
        "judge: name not in counts -> False": _RAISES,
        "known_of: ids is not None -> True": _RAISES,
        "_distinct: not shown -> False": _RAISES,
        "_distinct: ids is not None -> True": _RAISES,
    },
    "ledger": {
        "judge_ledger: control.expected == 'pass' -> negated": "a set of both kinds is a set of both kinds",
        "judge_ledger: entry -> False": _PRINTED,
        "judge_ledger: not entry.ran -> False": _STRICTER,
    },
}
