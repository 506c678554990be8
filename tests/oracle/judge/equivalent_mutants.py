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
        "judge: expected.ndim > 1": _PRINTED,
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
    "slots": {
        "judge: seen is None -> False": _RAISES,
        "expected_uses: ids is None -> False": _RAISES,
        "judge: p.expert_ids is not None -> True": _RAISES,
        "judge: not case.run.faults -> True": _STRICTER,
        "judge: not shows(case.run, 'expert_ids') -> False": _SECOND,
        "judge: seen.fills <= 0": _SECOND,
        "judge: seen.uses <= 0": _SECOND,
    },
    "ledger": {
        "judge_ledger: control.expected == 'pass' -> negated": "a set of both kinds is a set of both kinds",
        "judge_ledger: entry -> False": _PRINTED,
        "judge_ledger: not entry.ran -> False": _STRICTER,
    },
}
