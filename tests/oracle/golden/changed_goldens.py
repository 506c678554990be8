"""Goldens that differ from another one in a known way, whole and consistent all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import Golden, assemble
from oracle.golden.sensitivity import measure
from oracle.subjects.protocol import NumericClass


def rebuilt(golden: Golden, **changes: Any) -> Golden:
    """The golden assembled anew from its parts, some of them changed."""
    return rebuilt_with_bytes(golden, **changes)[0]


def rebuilt_with_bytes(golden: Golden, **changes: Any) -> tuple[Golden, bytes]:
    document = golden.document
    prompts = changes.get("prompts", golden.prompts)
    parts: dict[str, Any] = dict(
        recipe=document.recipe,
        checkpoint_digest=document.checkpoint_digest,
        prompts=prompts,
        classes=document.classes,
        sensitivity=measure({p.name: (p.prompt_ids, p.generated) for p in prompts}),
        probe_prompt=document.probe_prompt,
        probes=golden.probes,
    )
    return assemble(**(parts | changes))


def with_prompt(golden: Golden, index: int, **changes: Any) -> Golden:
    """One prompt's evidence changed."""
    prompts = list(golden.prompts)
    prompts[index] = replace(prompts[index], **changes)
    return rebuilt(golden, prompts=tuple(prompts))


def with_rows(golden: Golden, index: int, change: Callable[[dict[str, np.ndarray]], Any]) -> Golden:
    """One prompt's arrays changed in place."""
    rows = {name: getattr(golden.prompts[index], name).copy() for name in PromptEvidence.ARRAYS}
    change(rows)
    return with_prompt(golden, index, **rows)


def with_noise(golden: Golden, noise: float, seed: int = 1) -> Golden:
    """All logits, weights, gaps and sketches off by relative noise; ids, experts and chains exact, and masses consistent."""
    rng = np.random.default_rng(seed)

    def off(values: np.ndarray) -> np.ndarray:
        return (values * (1 + noise * rng.normal(size=values.shape))).astype(values.dtype)

    def noisy(prompt: PromptEvidence) -> PromptEvidence:
        names = ("top_logits", "expert_weights", "router_gap", "sketch")
        changed = replace(prompt, **{name: off(getattr(prompt, name)) for name in names})
        before, after = (np.exp(p.top_logits.astype(np.float64)).sum(axis=1) for p in (prompt, changed))
        return replace(changed, logsumexp=np.log(np.exp(prompt.logsumexp) + after - before))

    return rebuilt(golden, prompts=tuple(noisy(p) for p in golden.prompts))


def with_tie(golden: Golden, index: int, position: int, margin: float) -> Golden:
    """The two largest logits at one position that close together."""

    def close(rows: dict[str, np.ndarray]) -> None:
        rows["top_logits"][position, 1] = rows["top_logits"][position, 0] - np.float32(margin)

    return with_rows(golden, index, close)


def with_other_choice(golden: Golden, index: int, at: int) -> Golden:
    """The second largest logit chosen at `generated[at]`, and other values behind it, as another context gives."""
    prompt = golden.prompts[index]
    position = len(prompt.prompt_ids) - 1 + at
    rows = {name: getattr(prompt, name).copy() for name in PromptEvidence.ARRAYS}
    for name in ("top_ids", "top_logits"):
        rows[name][position, :2] = rows[name][position, 1::-1]
    for name in PromptEvidence.ARRAYS:
        rows[name][position + 1 :] = rows[name][position + 1 :][::-1].copy()
    start = len(prompt.prompt_ids) - 1
    return with_prompt(golden, index, generated=tuple(rows["top_ids"][start:, 0].tolist()), **rows)


def with_recipe(golden: Golden, **changes: Any) -> Golden:
    return rebuilt(golden, recipe=golden.document.recipe.model_copy(update=changes))


def with_class(golden: Golden, name: NumericClass, part: str, **changes: Any) -> Golden:
    """One part of a class's calibration changed, whatever the others say of it: for diffs, which do not ask."""
    calibration = golden.document.classes[name]
    changed = getattr(calibration, part).model_copy(update=changes)
    return rebuilt(golden, classes={**golden.document.classes, name: calibration.model_copy(update={part: changed})})
