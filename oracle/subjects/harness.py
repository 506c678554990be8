"""Drives a subject over a golden's prompts and records what it shows.

Every subject goes through this one path, the perfect one and the reference too, so that a mistake here (an index off by
one, a prompt not fed) shows as a control that misbehaves and not as a port's fault.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral

import numpy as np
import numpy.typing as npt

from oracle.errors import DeviceFault
from oracle.golden.evidence import PromptEvidence, log_sum_exp, top_logits
from oracle.golden.sketch import sketch
from oracle.subjects.protocol import Bytes, StepEvidence, Subject
from oracle.subjects.run import EMBEDDING_DIGEST_BYTES, PromptRun


@dataclass(frozen=True)
class PassEvidence:
    """A teacher-forced pass as arrays, before the free run is added. Shapes as in `PromptRun`; logits float32 [T, V]."""

    consumed: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    embedding_digest: npt.NDArray[np.uint8]
    logits: npt.NDArray[np.float32]
    expert_ids: npt.NDArray[np.int32]
    expert_weights: npt.NDArray[np.float32]
    sketch: npt.NDArray[np.float32]


def drive(subject: Subject, prompt: PromptEvidence) -> PromptRun:
    """Run one prompt, teacher-forced and then free.

    Raises:
        DeviceFault: the subject or its device caught a fault, or gave evidence of the wrong shape.
    """
    subject.reset()
    subject.start()
    steps = [_kept(subject.step(token)) for token in prompt.fed]
    subject.start()
    free_consumed: list[int] = []
    free_generated: list[int] = []
    free_expert_ids: list[npt.NDArray[np.int32]] = []
    token = prompt.prompt_ids[0]
    for index in range(len(prompt.fed)):
        step = subject.step(token)
        free_consumed.append(step.token)
        free_expert_ids.append(np.array(step.expert_ids, dtype=np.int32))
        following = argmax_lowest_id(step.logits)
        if index + 1 < len(prompt.prompt_ids):
            token = prompt.prompt_ids[index + 1]
        else:
            free_generated.append(following)
            token = following
    return record(prompt, collect(steps), free_consumed, free_generated, free_expert_ids)


def _kept(step: StepEvidence) -> StepEvidence:
    """The evidence in memory of its own: a subject may write every step's arrays into the same buffers."""
    arrays = {f.name: value.copy() for f in fields(step) if isinstance(value := getattr(step, f.name), np.ndarray)}
    return replace(step, **arrays)


def collect(steps: Sequence[StepEvidence]) -> PassEvidence:
    """Stack the evidence of a teacher-forced pass.

    Raises:
        DeviceFault: a step gave neither a residual nor a sketch, or shapes differ between steps.
    """
    sketches = []
    for index, step in enumerate(steps):
        if not (isinstance(step.token, Integral) and isinstance(step.position, Integral)):
            raise DeviceFault(
                "evidence", f"step {index}: token {step.token!r} or position {step.position!r} is no whole number"
            )
        if step.sketch is not None:
            sketches.append(step.sketch)
        elif step.residual is not None:
            with np.errstate(all="ignore"):  # a subject's NaN is counted in `record`, not warned about
                sketches.append(sketch(step.residual))
        else:
            raise DeviceFault("evidence", f"step {index} gave neither a residual stream nor a sketch")
    try:
        return PassEvidence(
            consumed=np.array([step.token for step in steps], dtype=np.int32),
            positions=np.array([step.position for step in steps], dtype=np.int32),
            embedding_digest=np.stack([digest_embedding(step.embedding) for step in steps]),
            logits=np.stack([step.logits for step in steps]).astype(np.float32, copy=False),
            expert_ids=np.stack([step.expert_ids for step in steps]).astype(np.int32, copy=False),
            expert_weights=np.stack([step.expert_weights for step in steps]).astype(np.float32, copy=False),
            sketch=np.stack(sketches).astype(np.float32, copy=False),
        )
    except ValueError as problem:
        raise DeviceFault("evidence", f"the steps' arrays do not have one shape: {problem}") from None


def record(
    prompt: PromptEvidence,
    evidence: PassEvidence,
    free_consumed: Sequence[int] = (),
    free_generated: Sequence[int] = (),
    free_expert_ids: Sequence[npt.NDArray[np.int32]] = (),
) -> PromptRun:
    """Reduce a pass to what is stored and judged. Non-finite numbers are counted per position and stored as 0."""
    non_finite = np.zeros(len(evidence.consumed), dtype=np.int32)
    finite: dict[str, npt.NDArray[np.float32]] = {}
    for name in ("logits", "expert_weights", "sketch"):
        values: npt.NDArray[np.float32] = getattr(evidence, name)
        bad = ~np.isfinite(values)
        non_finite += bad.reshape(len(values), -1).sum(axis=1).astype(np.int32)
        finite[name] = np.where(bad, np.float32(0), values) if bad.any() else values
    logits = finite["logits"]
    own_ids, own_logits = top_logits(logits, prompt.top_ids.shape[1])
    if prompt.top_ids.max() >= logits.shape[1]:
        raise DeviceFault("evidence", f"logits have {logits.shape[1]} entries, the golden names id {prompt.top_ids.max()}")
    return PromptRun(
        consumed=evidence.consumed,
        positions=evidence.positions,
        embedding_digest=evidence.embedding_digest,
        argmax=own_ids[:, 0],
        logits_at_golden=np.take_along_axis(logits, prompt.top_ids.astype(np.int64), axis=1),
        top_ids=own_ids,
        top_logits=own_logits,
        logsumexp=log_sum_exp(logits),
        expert_ids=evidence.expert_ids,
        expert_weights=finite["expert_weights"],
        sketch=finite["sketch"],
        non_finite=non_finite,
        free_consumed=np.array(free_consumed, dtype=np.int32),
        free_generated=np.array(free_generated, dtype=np.int32),
        free_expert_ids=np.array(free_expert_ids, dtype=np.int32).reshape(-1, *evidence.expert_ids.shape[1:]),
    )


def digest_embedding(row: Bytes) -> Bytes:
    """uint8 [16]: the first half of the sha256 of an embedding row's raw bytes."""
    raw = np.ascontiguousarray(row).tobytes()
    return np.frombuffer(hashlib.sha256(raw).digest()[:EMBEDDING_DIGEST_BYTES], dtype=np.uint8)


def argmax_lowest_id(logits: npt.NDArray[np.float32]) -> int:
    """Index of the largest of [V] logits, the lowest id among equals; NaN counts as smallest."""
    return int(np.argmax(np.where(np.isnan(logits), -np.inf, logits)))
