"""Gate `alignment`: was the subject fed what the golden was, at the positions the golden means?

Compared: ids and positions consumed in the teacher-forced pass, ids consumed in the free run, the shapes of everything
that is compared later, and each consumed embedding row (by digest) against the checkpoint's row of that id. A run that
contradicts itself (an argmax that is not its largest logit, experts that do not exist) is not aligned either.
Exact, since nothing here is arithmetic. No other comparison speaks without it: a port's gate once read the golden at
`prompt_len + d`, was red for weeks, and four kernels were blamed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oracle.golden.evidence import PromptEvidence
from oracle.judge.gate import Case, Finding, Judgement
from oracle.mapped_pages import give_back
from oracle.subjects.harness import digest_embedding
from oracle.subjects.run import EMBEDDING_DIGEST_BYTES, PromptRun


class AlignmentGate:
    name = "alignment"
    definition = {
        "version": 3,
        "metric": "ids, positions, embedding rows, shapes, evidence at every prompt or none, finiteness, contradictions",
        "statistic": "equality",
    }
    blind_to = "a subject that reports an id, position or row other than the one it computes with"
    needs_alignment = False

    def judge(self, case: Case) -> Judgement:
        findings: list[Finding] = []
        compared = 0
        for prompt in case.golden.prompts:
            if fault := case.run.faults.get(prompt.name):
                findings.append(Finding(f"a device fault ended the prompt: {fault}", where=prompt.name))
                continue
            run = case.run.prompts.get(prompt.name)
            if run is None and prompt.name in case.run.left_out:
                continue
            if run is None:
                findings.append(Finding("the prompt was not run", where=prompt.name, verdict="incomplete"))
                continue
            judged, found = _judge_prompt(case, prompt, run)
            compared += judged
            findings += found
        return Judgement(compared, (*findings, *_mixed_evidence(case)))

    def plants(self, case: Case) -> dict[str, Case]:
        """One array of the first prompt after the other, spoiled; evidence that only some hold; and a device fault."""
        prompt, run = case.answered()[0]
        spoiled: dict[str, dict[str, np.ndarray | None]] = {
            "positions counted from 1": {"positions": run.positions + np.int32(1)},
            "another id consumed": {"consumed": _next_id(run.consumed)},
            "another embedding row": {"embedding_digest": run.embedding_digest ^ np.uint8(1)},
            "a free run fed otherwise": {"free_consumed": _next_id(run.free_consumed)},
            "an argmax that is not the largest": {"argmax": run.top_ids[:, 1].copy()},
            "a position short": {"logsumexp": run.logsumexp[:-1]},
            "one NaN": {"logsumexp": _with_nan(run.logsumexp)},
        }
        if run.expert_ids is not None:
            for name, expert in (
                ("an expert twice", run.expert_ids[0, 0, 1]),
                ("an expert that does not exist", case.checkpoint.config.num_experts),
                ("a negative expert", -1),
            ):
                spoiled[name] = {"expert_ids": _with_first(run.expert_ids, expert)}
            if len(case.answered()) > 1:
                without = ("expert_ids", "expert_weights", "free_expert_ids")
                spoiled["experts of all prompts but one"] = dict.fromkeys(without)
        if run.expert_weights is not None:
            for name, weight in (("a weight above one", 1.5), ("a weight below zero", -0.5)):
                spoiled[name] = {"expert_weights": _with_first(run.expert_weights, weight)}
        planted = {name: case.with_prompt(prompt.name, **changes) for name, changes in spoiled.items()}
        if run.expert_ids is not None:
            planted["experts in one pass only"] = case.with_prompts(lambda shown: replace(shown, free_expert_ids=None))
        others = {name: other for name, other in case.run.prompts.items() if name != prompt.name}
        planted["a device fault"] = case.with_run(prompts=others, faults={prompt.name: "planted: a fault"})
        return planted


def _judge_prompt(case: Case, prompt: PromptEvidence, run: PromptRun) -> tuple[int, tuple[Finding, ...]]:
    """Things compared and findings of one prompt; once for all cases in which this very run answers this very prompt."""
    return case.once_for_answer(prompt, run, "alignment", lambda: _compare_prompt(case, prompt, run))


def _compare_prompt(case: Case, prompt: PromptEvidence, run: PromptRun) -> tuple[int, tuple[Finding, ...]]:
    if shape := _shape_finding(case, prompt, run):
        return 0, (shape,)
    findings, compared = _contradictions(case, prompt, run), 0
    free = [*prompt.prompt_ids, *run.free_generated.tolist()][:-1]
    for what, expected, got in (
        ("id consumed", np.array(prompt.fed), run.consumed),
        ("position computed", np.arange(len(prompt.fed)), run.positions),
        ("embedding row", _expected_rows(case, prompt), run.embedding_digest),
        ("id consumed in the free run", np.array(free), run.free_consumed),
    ):
        wrong = (expected != got).reshape(len(expected), -1).any(axis=1)
        compared += len(wrong)
        if wrong.any():
            first = int(wrong.argmax())
            worst = "" if expected.ndim > 1 else f"{got[first]} for {expected[first]}"
            headline = f"{what} is not the golden's"
            findings.append(Finding(headline, f"{prompt.name}[{first}]", worst, "equal", int(wrong.sum()), len(wrong)))
    give_back((*vars(prompt).values(), *vars(run).values()))
    return compared, tuple(findings)


def _expected_rows(case: Case, prompt: PromptEvidence) -> np.ndarray:
    """uint8 [T, 16], of the checkpoint's rows of the fed ids; once for all cases that ask this very prompt."""

    def digests() -> np.ndarray:
        embedding = case.checkpoint.raw("model.embed_tokens.weight").reshape(case.checkpoint.config.vocab_size, -1)
        return np.stack([digest_embedding(embedding[i]) for i in prompt.fed])

    return case.once_for_prompt(prompt, "embedding rows", digests)


def _next_id(ids: np.ndarray) -> np.ndarray:
    out = ids.copy()
    out[-1] += 1
    return out


def _with_first(values: np.ndarray, value: float) -> np.ndarray:
    out = values.copy()
    out[0, 0, 0] = value
    return out


def _with_nan(values: np.ndarray) -> np.ndarray:
    out = values.copy()
    out[-1] = np.nan
    return out


def _contradictions(case: Case, prompt: PromptEvidence, run: PromptRun) -> list[Finding]:
    """What no engine can mean: it would make later comparisons look away."""
    experts = case.checkpoint.config.num_experts
    findings = []
    checks: list[tuple[str, Any]] = [("argmax is not the first of its own largest logits", run.argmax != run.top_ids[:, 0])]
    for which, ids in (("", run.expert_ids), (" of the free run", run.free_expert_ids)):
        if ids is not None:
            checks.append((f"an expert id{which} is out of range or twice in a set", _bad_sets(ids, experts)))
    if (weights := run.expert_weights) is not None:
        checks.append(("an expert's weight is no sigmoid", (~((weights >= 0) & (weights <= 1))).any(axis=(1, 2))))
    for name in ("logits_at_golden", "top_logits", "logsumexp", "sketch"):
        if (values := getattr(run, name)) is not None:
            bad = (~np.isfinite(values)).reshape(len(run.argmax), -1).any(axis=1)
            checks.append((f"array {name} holds NaN or infinity", bad))
    for what, wrong in checks:
        if wrong.any():
            first = int(wrong.argmax())
            where = f"{prompt.name}[{first}]"
            findings.append(Finding(f"the run contradicts itself: {what}", where, count=int(wrong.sum()), of=wrong.size))
    return findings


def _bad_sets(ids: np.ndarray, experts: int) -> np.ndarray:
    """bool [T]: some layer's set names an expert that does not exist, or one twice."""
    places = np.ascontiguousarray(np.moveaxis(ids, 2, 0))  # [k, T, L]: quicker than to sort every set
    wrong = np.logical_or.reduce((places < 0) | (places >= experts), axis=0)
    for place, others in enumerate(places):
        wrong |= np.logical_or.reduce(places[:place] == others, axis=0)
    return np.logical_or.reduce(wrong, axis=1)


_NEEDS = (
    ("expert_ids", "free_expert_ids"),
    ("free_expert_ids", "expert_ids"),
    ("expert_weights", "expert_ids"),
    ("expert_weights", "non_finite_routing"),
    ("router_logits", "non_finite_routing"),
)
"""Arrays that are judged with another's help only."""


def _mixed_evidence(case: Case) -> list[Finding]:
    """Optional evidence that only some prompts hold, or only half of: what is missing would go uncompared."""
    findings = []
    runs = [(prompt.name, run.held) for prompt, run in case.answered()]
    for name in sorted(frozenset[str]().union(*(held for _, held in runs))):
        if without := [prompt for prompt, held in runs if name not in held]:
            headline = f"array {name} is missing, other prompts have it"
            findings.append(Finding(headline, without[0], count=len(without), of=len(runs)))
    for name, needed in _NEEDS:
        if without := [prompt for prompt, held in runs if name in held and needed not in held]:
            headline = f"array {name} is there without {needed}"
            findings.append(Finding(headline, without[0], count=len(without), of=len(runs)))
    return findings


def _shape_finding(case: Case, prompt: PromptEvidence, run: PromptRun) -> Finding | None:
    positions, stored = prompt.top_ids.shape
    expected = {
        "consumed": (positions,),
        "positions": (positions,),
        "argmax": (positions,),
        "non_finite": (positions,),
        "logsumexp": (positions,),
        "free_consumed": (positions,),
        "free_generated": (len(prompt.generated),),
        "embedding_digest": (positions, EMBEDDING_DIGEST_BYTES),
        "logits_at_golden": (positions, stored),
        "top_ids": (positions, stored),
        "top_logits": (positions, stored),
        "expert_ids": prompt.expert_ids.shape,
        "expert_weights": prompt.expert_weights.shape,
        "sketch": prompt.sketch.shape,
        "free_expert_ids": prompt.expert_ids.shape,
        "router_logits": case.golden.probes_of(prompt.name).router_logits.shape,
        "non_finite_routing": (positions,),
    }
    held = run.held
    for name, shape in expected.items():
        if name not in held:
            continue
        got = getattr(run, name).shape
        if got != shape:
            return Finding(f"array {name} has the wrong shape", prompt.name, str(list(got)), str(list(shape)))
    return None
