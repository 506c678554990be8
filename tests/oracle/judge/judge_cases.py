"""Spoiled copies of a case: the perfect subject's answer to the shipped golden with one thing changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from goldens import mini_checkpoint
from oracle.golden.calibration import BAND_MULTIPLE, NEAR_MULTIPLE, Bands
from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import Golden
from oracle.golden.recipe import Message, ReasoningEffort
from oracle.judge.gate import Case, Judgement, PlantsEvidence
from oracle.judge.gates import GATES
from oracle.judge.jobs import PromptJob, run_job
from oracle.judge.ops import planned_evidence as planned_ops
from oracle.judge.slots import expected_uses
from oracle.judge.staging import planned_evidence
from oracle.subjects.protocol import NumericClass, SubjectRequest
from oracle.subjects.run import PromptRun, Run, SlotEvidence

HOST_GATES = ("golden", "alignment", "chain", "flips", "logits", "residual", "routing", "ledger")


def mini_golden() -> Path:
    return mini_checkpoint() / "golden"


def perfect_run(golden: Golden, numeric_class: NumericClass = "bf16") -> Run:
    """The perfect subject driven over every prompt, in this process."""
    request = SubjectRequest(mini_checkpoint(), mini_golden(), arm=numeric_class)
    outcomes = [run_job(PromptJob("perfect", request, mini_golden(), prompt.name)) for prompt in golden.prompts]
    return Run(
        identity=outcomes[0].identity,
        golden_digest=golden.digest,
        prompts={outcome.job.prompt: outcome.run for outcome in outcomes if outcome.run is not None},
    )


def with_run(case: Case, **changes: Any) -> Case:
    """The case with fields of its run replaced."""
    return case.with_run(**changes)


def with_prompt(case: Case, prompt: PromptEvidence, **changes: Any) -> Case:
    """The case with arrays of one prompt's run replaced."""
    return case.with_prompt(prompt.name, **changes)


def with_evidence(case: Case, prompt: PromptEvidence, **changes: Any) -> Case:
    """The case with fields of one prompt of its golden replaced; its digests stay."""
    prompts = tuple(replace(p, **changes) if p.name == prompt.name else p for p in case.golden.prompts)
    return replace(case, golden=replace(case.golden, prompts=prompts))


def with_chat(case: Case, messages: tuple[Message, ...], effort: ReasoningEffort | None, text: str, ids: list[int]) -> Case:
    """The first prompt as if it were a chat: other messages, text and ids before the same chain, all digests renewed."""
    golden, first = case.golden, case.golden.prompts[0]
    assert len(ids) >= len(first.prompt_ids)
    longer = {
        name: np.concatenate([np.repeat(rows[:1], len(ids) - len(first.prompt_ids), axis=0), rows])
        for name in PromptEvidence.ARRAYS
        for rows in [getattr(first, name)]
    }
    chat = replace(first, text=text, prompt_ids=tuple(ids), **longer)
    specs = golden.document.recipe.prompts
    spec = specs[0].model_copy(update={"text": None, "ids": None, "messages": messages, "reasoning_effort": effort})
    recipe = golden.document.recipe.model_copy(update={"prompts": (spec, *specs[1:])})
    document = golden.document.model_copy(update={"recipe": recipe, "recipe_digest": recipe.digest()}).sealed()
    changed_golden = replace(golden, document=document, prompts=(chat, *golden.prompts[1:]))
    return replace(case, golden=changed_golden).with_run(golden_digest=document.digest)


def without_chats(case: Case) -> Case:
    """The case without the golden's own chat prompts."""
    chats = {spec.name for spec in case.golden.document.recipe.prompts if spec.messages is not None}
    return replace(case, golden=replace(case.golden, prompts=tuple(p for p in case.golden.prompts if p.name not in chats)))


def with_bands(case: Case, regret: float = 0.0, router_gap: float = 0.0, router_regret: float = 0.0) -> Case:
    """The case judged by these bands."""
    bands = Bands(
        regret=regret,
        router_gap=router_gap,
        router_regret=router_regret,
        floor_regret=regret / NEAR_MULTIPLE,
        floor_router_gap=router_gap / BAND_MULTIPLE,
        floor_router_regret=router_regret / NEAR_MULTIPLE,
        near_multiple=NEAR_MULTIPLE,
        multiple=BAND_MULTIPLE,
    )
    return replace(case, calibration=case.calibration.model_copy(update={"bands": bands}))


def answer(case: Case, prompt: PromptEvidence) -> PromptRun:
    return case.run.prompts[prompt.name]


def held(array: np.ndarray | None) -> np.ndarray:
    """Evidence that must be there."""
    assert array is not None
    return array


def sketch_of(case: Case, prompt: PromptEvidence) -> np.ndarray:
    """The run's sketches of a prompt, which the perfect subject shows."""
    sketch = answer(case, prompt).sketch
    assert sketch is not None
    return sketch


def changed(array: np.ndarray, index: Any, value: Any) -> np.ndarray:
    """A copy with one place set."""
    out = array.copy()
    out[index] = value
    return out


def flipped(case: Case, prompt: PromptEvidence, position: int, rank: int = 1) -> Case:
    """At one teacher-forced position, the golden's choice of that rank."""
    return with_choice(case, prompt, position, int(prompt.top_ids[position, rank]))


def with_choice(case: Case, prompt: PromptEvidence, position: int, token: int) -> Case:
    """At one teacher-forced position, `token` is the subject's largest logit, and its ids say so too."""
    run = answer(case, prompt)
    others = [i for i in run.top_ids[position].tolist() if i != token]
    top_ids = changed(run.top_ids, position, [token, *others][: run.top_ids.shape[1]])
    return with_prompt(case, prompt, argmax=changed(run.argmax, position, token), top_ids=top_ids)


def with_other_experts(case: Case, prompt: PromptEvidence, position: int, layer: int) -> Case:
    """At one position and layer, the first expert exchanged for one that was not selected."""
    ids = held(answer(case, prompt).expert_ids)
    unused = next(e for e in range(case.checkpoint.config.num_experts) if e not in ids[position, layer])
    return with_prompt(case, prompt, expert_ids=changed(ids, (position, layer, 0), unused))


def outside_stored(case: Case, prompt: PromptEvidence, position: int) -> int:
    """An id that the golden does not store at that position."""
    return next(i for i in range(case.checkpoint.config.vocab_size) if i not in prompt.top_ids[position])


def narrowest(case: Case, generated_only: bool = False) -> tuple[PromptEvidence, int]:
    """The prompt and position with the smallest margin that is no exact tie."""
    places = [
        (float(prompt.margin[position]), index, position)
        for index, prompt in enumerate(case.golden.prompts)
        for position in range(len(prompt.prompt_ids) - 1 if generated_only else 0, len(prompt.fed))
        if prompt.margin[position] > 0
    ]
    _, index, position = min(places)
    return case.golden.prompts[index], position


def widest(case: Case, generated_only: bool = False) -> tuple[PromptEvidence, int]:
    """The prompt and position with the largest margin."""
    places = [
        (float(prompt.margin[position]), index, position)
        for index, prompt in enumerate(case.golden.prompts)
        for position in range(len(prompt.prompt_ids) - 1 if generated_only else 0, len(prompt.fed))
    ]
    _, index, position = max(places)
    return case.golden.prompts[index], position


def headlines(judgement: Judgement) -> list[str]:
    return [finding.headline for finding in judgement.findings]


def with_a_device(case: Case) -> Case:
    """A perfect run with all that an honest device would add: slots, residents, counters, what gates plant for themselves."""
    for gate in GATES:
        case = gate.honest(case) if isinstance(gate, PlantsEvidence) else case
    uses, counted = expected_uses(case), case.run.stats
    size = counted["staged_bytes"]
    slots = SlotEvidence(counted["fills"], size, size, sum(times for _, _, times in uses), expert_uses=uses)
    residents = planned_evidence(case, len(case.run.prompts))
    stats = {**counted, "verified_bytes": size}
    return case.with_run(slots=slots, residents=residents, ops=planned_ops(case.run.identity.numeric_class), stats=stats)
