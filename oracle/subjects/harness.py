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

from oracle.errors import DeviceFault, SubjectError
from oracle.golden.evidence import PromptEvidence, log_sum_exp, top_logits
from oracle.golden.sketch import sketch
from oracle.subjects.protocol import Bytes, ForcesRouting, StepEvidence, Subject
from oracle.subjects.run import EMBEDDING_DIGEST_BYTES, PromptRun


@dataclass(frozen=True)
class PassEvidence:
    """A teacher-forced pass as arrays, before the free run is added. Shapes as in `PromptRun`; logits float32 [T, V].

    Attributes:
        probes: the positions of the rows of `router_logits`.
    """

    consumed: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    embedding_digest: npt.NDArray[np.uint8]
    logits: npt.NDArray[np.float32]
    sketch: npt.NDArray[np.float32] | None = None
    expert_ids: npt.NDArray[np.int32] | None = None
    expert_weights: npt.NDArray[np.float32] | None = None
    router_logits: npt.NDArray[np.float32] | None = None
    probes: tuple[int, ...] = ()


def drive(subject: Subject, prompt: PromptEvidence, probes: Sequence[int] = (), *, forced: bool = False) -> PromptRun:
    """Run one prompt, teacher-forced and then free.

    Args:
        probes: positions of the prompt at which the golden holds router logits; the subject's are kept there only.
        forced: have both passes use the golden's experts and weights. The run is then judged as `Run.forced`.

    Raises:
        SubjectError: the subject cannot have its routing forced.
        DeviceFault: the subject or its device caught a fault, or gave evidence of the wrong shape.
    """
    subject.reset()
    if forced:
        if not isinstance(subject, ForcesRouting):
            raise SubjectError(f"subject {subject.identity.name!r} cannot have its routing forced; judge it without")
        subject.force_routing(prompt.expert_ids, prompt.expert_weights)
    subject.start()
    steps = [_kept(subject.step(token)) for token in prompt.fed]
    subject.start()
    free_consumed: list[int] = []
    free_generated: list[int] = []
    free_expert_ids: list[npt.NDArray[np.int32] | None] = []
    token = prompt.prompt_ids[0]
    for index in range(len(prompt.fed)):
        step = subject.step(token)
        free_consumed.append(step.token)
        free_expert_ids.append(None if step.expert_ids is None else np.array(step.expert_ids, dtype=np.int32))
        following = argmax_lowest_id(step.logits)
        if index + 1 < len(prompt.prompt_ids):
            token = prompt.prompt_ids[index + 1]
        else:
            free_generated.append(following)
            token = following
    return record(prompt, collect(steps, probes), free_consumed, free_generated, free_expert_ids)


def drive_beginning(subject: Subject, prompt: PromptEvidence, steps: int) -> PromptRun:
    """Run the first `steps` positions of a prompt (all, if it has fewer), teacher-forced alone.

    Raises:
        DeviceFault: as `drive`.
    """
    subject.reset()
    subject.start()
    shown = [_kept(subject.step(token)) for token in prompt.fed[:steps]]
    return record(replace(prompt, top_ids=prompt.top_ids[: len(shown)]), collect(shown))


def _kept(step: StepEvidence) -> StepEvidence:
    """The evidence in memory of its own: a subject may write every step's arrays into the same buffers."""
    arrays = {f.name: value.copy() for f in fields(step) if isinstance(value := getattr(step, f.name), np.ndarray)}
    return replace(step, **arrays)


def collect(steps: Sequence[StepEvidence], probes: Sequence[int] = ()) -> PassEvidence:
    """Stack the evidence of a teacher-forced pass.

    Raises:
        DeviceFault: some steps gave evidence that others did not, or shapes differ between steps.
    """
    for index, step in enumerate(steps):
        if not (isinstance(step.token, Integral) and isinstance(step.position, Integral)):
            raise DeviceFault(
                "evidence", f"step {index}: token {step.token!r} or position {step.position!r} is no whole number"
            )
    router_logits = [steps[position].router_logits for position in probes]
    try:
        return PassEvidence(
            consumed=np.array([step.token for step in steps], dtype=np.int32),
            positions=np.array([step.position for step in steps], dtype=np.int32),
            embedding_digest=np.stack([digest_embedding(step.embedding) for step in steps]),
            logits=np.stack([step.logits for step in steps]).astype(np.float32, copy=False),
            sketch=_stacked("residual stream or sketch", [_sketch(step) for step in steps], np.float32),
            expert_ids=_stacked("expert ids", [step.expert_ids for step in steps], np.int32),
            expert_weights=_stacked("expert weights", [step.expert_weights for step in steps], np.float32),
            router_logits=_stacked("router logits", router_logits, np.float32, at=probes),
            probes=tuple(probes),
        )
    except ValueError as problem:
        raise DeviceFault("evidence", f"the steps' arrays do not have one shape: {problem}") from None


def _sketch(step: StepEvidence) -> npt.NDArray[np.float32] | None:
    if step.sketch is not None or step.residual is None:
        return step.sketch
    with np.errstate(all="ignore"):  # a subject's NaN is counted in `record`, not warned about
        return sketch(step.residual)


def _stacked(
    what: str, arrays: Sequence[npt.NDArray | None], dtype: type[np.generic], at: Sequence[int] | None = None
) -> npt.NDArray | None:
    """The arrays of the steps `at` (all by default) as one, or None where no step gave any.

    Raises:
        DeviceFault: some steps gave one and others none (what is missing would go uncompared), or shapes differ.
    """
    missing = [step for step, array in zip(at or range(len(arrays)), arrays, strict=True) if array is None]
    if len(missing) == len(arrays):
        return None
    if missing:
        raise DeviceFault("evidence", f"step {missing[0]} gave no {what}, other steps did: give it at every step or at none")
    try:
        return np.stack([array for array in arrays if array is not None]).astype(dtype, copy=False)
    except ValueError as problem:
        raise DeviceFault("evidence", f"the steps' {what} do not have one shape: {problem}") from None


def record(
    prompt: PromptEvidence,
    evidence: PassEvidence,
    free_consumed: Sequence[int] = (),
    free_generated: Sequence[int] = (),
    free_expert_ids: Sequence[npt.NDArray[np.int32] | None] = (),
) -> PromptRun:
    """Reduce a pass to what is stored and judged. Non-finite numbers are counted per position and stored as 0.

    Raises:
        DeviceFault: too few logits, or the free run shows experts where the teacher-forced pass does not, or the reverse.
    """
    positions = len(evidence.consumed)
    counts = {name: np.zeros(positions, dtype=np.int32) for name in ("logits", "sketch", "expert_weights", "router_logits")}
    finite: dict[str, npt.NDArray[np.float32] | None] = {}
    for name, count in counts.items():
        values: npt.NDArray[np.float32] | None = getattr(evidence, name)
        if (finite_values := values) is not None and (bad := ~np.isfinite(finite_values)).any():
            finite_values = np.where(bad, np.float32(0), finite_values)
            rows = list(evidence.probes) if name == "router_logits" else slice(None)
            count[rows] = bad.reshape(len(bad), -1).sum(axis=1)
        finite[name] = finite_values
    logits = finite["logits"]
    assert logits is not None
    free_ids = _stacked("expert ids in the free run", free_expert_ids, np.int32)
    if free_expert_ids and (free_ids is None) != (evidence.expert_ids is None):
        raise DeviceFault("evidence", "one of the two passes shows expert ids and the other does not")
    routing = evidence.expert_weights is not None or evidence.router_logits is not None
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
        non_finite=sum(counts.values(), np.zeros(positions, dtype=np.int32)),
        free_consumed=np.array(free_consumed, dtype=np.int32),
        free_generated=np.array(free_generated, dtype=np.int32),
        sketch=finite["sketch"],
        expert_ids=evidence.expert_ids,
        expert_weights=finite["expert_weights"],
        free_expert_ids=free_ids,
        router_logits=finite["router_logits"],
        non_finite_routing=counts["expert_weights"] + counts["router_logits"] if routing else None,
    )


def digest_embedding(row: Bytes) -> Bytes:
    """uint8 [16]: the first half of the sha256 of an embedding row's raw bytes."""
    raw = np.ascontiguousarray(row).tobytes()
    return np.frombuffer(hashlib.sha256(raw).digest()[:EMBEDDING_DIGEST_BYTES], dtype=np.uint8)


def argmax_lowest_id(logits: npt.NDArray[np.float32]) -> int:
    """Index of the largest of [V] logits, the lowest id among equals; NaN counts as smallest."""
    return int(np.argmax(np.where(np.isnan(logits), -np.inf, logits)))
