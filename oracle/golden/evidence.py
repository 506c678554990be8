"""What a golden holds of one prompt: its chain and, for every teacher-forced position, the reference's evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

TOP_N = 64
"""How many of the largest logits are stored per position. A subject's token outside them is never a near tie."""


@dataclass(frozen=True)
class PromptProbes:
    """Where a golden holds all router logits of a prompt, and the logits: what `PromptRun.router_logits` is held against.

    Attributes:
        positions: of the prompt, in the golden's order.
        router_logits: float32 [N, L, E], without the bias.
    """

    positions: tuple[int, ...]
    router_logits: npt.NDArray[np.float32]


@dataclass(frozen=True)
class PromptEvidence:
    """One prompt of a golden. P prompt ids, G generated ids, T = P + G - 1 positions fed, L layers, k experts per token.

    The T fed ids are `prompt_ids + generated[:-1]`; position p holds the logits for id p + 1, so `generated[i]` is judged
    at position P - 1 + i.

    Attributes:
        name: unique within the golden.
        text: what the ids were made from, a chat as it was rendered; None where the prompt was given as ids.
        top_ids, top_logits: int32 and float32 [T, n], by falling logit, equal logits by rising id; n is 64, or V if smaller.
        logsumexp: float64 [T], over all V logits.
        expert_ids, expert_weights: int32 and float32 [T, L, k], by falling selection score.
        router_gap: float32 [T, L], the k-th selection score minus the next one.
        sketch: float32 [T, L, 32], of the residual stream after each layer.
    """

    name: str
    text: str | None
    prompt_ids: tuple[int, ...]
    generated: tuple[int, ...]
    top_ids: npt.NDArray[np.int32]
    top_logits: npt.NDArray[np.float32]
    logsumexp: npt.NDArray[np.float64]
    expert_ids: npt.NDArray[np.int32]
    expert_weights: npt.NDArray[np.float32]
    router_gap: npt.NDArray[np.float32]
    sketch: npt.NDArray[np.float32]

    ARRAYS: ClassVar[tuple[str, ...]] = (
        "top_ids",
        "top_logits",
        "logsumexp",
        "expert_ids",
        "expert_weights",
        "router_gap",
        "sketch",
    )
    """The per-position arrays by name, in the order they are stored."""

    @property
    def fed(self) -> tuple[int, ...]:
        """The ids of the teacher-forced pass."""
        return self.prompt_ids + self.generated[:-1]

    @property
    def argmax(self) -> npt.NDArray[np.int32]:
        """int32 [T], the predicted id per position."""
        return self.top_ids[:, 0]

    @property
    def margin(self) -> npt.NDArray[np.float32]:
        """float32 [T], top-1 logit minus top-2, in nats."""
        return self.top_logits[:, 0] - self.top_logits[:, 1]


def top_logits(logits: npt.NDArray[np.float32], count: int = TOP_N) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The largest `count` of each row of `logits` [T, V]: ids and values, falling, equal values by rising id.

    The lowest-id rule is ours; libraries promise no order among equal values.
    """
    count = min(count, logits.shape[1])
    ids = np.empty((len(logits), count), dtype=np.int32)
    for row, falling in zip(ids, -logits, strict=True):
        # Only what could be among them, equals of the last one too: sorting every logit would cost more than the model.
        last = np.partition(falling, count - 1)[count - 1]
        candidates = np.flatnonzero(~(falling > last))
        row[:] = candidates[np.argsort(falling[candidates], kind="stable")[:count]]
    return ids, np.take_along_axis(logits, ids, axis=-1)


def log_sum_exp(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Row-wise log(sum(exp(logits))) of [T, V], in float64."""
    values = logits.astype(np.float64)
    largest = values.max(axis=-1)
    return largest + np.log(np.exp(values - largest[:, None]).sum(axis=-1))
