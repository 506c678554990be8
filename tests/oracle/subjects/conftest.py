"""The shipped golden, and a subject that is written down beforehand and remembers what it was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from goldens import mini_checkpoint
from oracle.golden.format import Golden, load_golden
from oracle.subjects.protocol import StepEvidence, SubjectIdentity

Answer = Callable[[list[int]], Any]


class ScriptedSubject:
    """Answers each step from the ids fed since `start`; `calls` holds what it was asked, in order.

    Args:
        following: the id with the largest logit, from the ids fed so far.
        change: fields of the step's evidence to replace, from the ids fed so far.
    """

    identity = SubjectIdentity("scripted", "bf16", "script", ("alignment",))

    def __init__(self, golden: Golden, following: Answer, change: Answer = lambda fed: {}) -> None:
        first = golden.prompts[0]
        self._layers, self._experts = first.expert_ids.shape[1:]
        self._following, self._change = following, change
        self._fed: list[int] = []
        self.calls: list[tuple[str, int]] = []

    def reset(self) -> None:
        self.calls.append(("reset", 0))

    def start(self) -> None:
        self._fed = []
        self.calls.append(("start", 0))

    def step(self, token: int) -> StepEvidence:
        self.calls.append(("step", token))
        self._fed.append(token)
        logits = np.zeros(512, dtype=np.float32)
        logits[self._following(self._fed)] = 5
        values = {
            "token": token,
            "position": len(self._fed) - 1,
            "logits": logits,
            "embedding": np.full(8, token % 256, dtype=np.uint8),
            "expert_ids": np.tile(np.arange(self._experts, dtype=np.int32), (self._layers, 1)),
            "expert_weights": np.ones((self._layers, self._experts), dtype=np.float32),
            "residual": np.ones((self._layers, 256), dtype=np.float32),
        }
        return StepEvidence(**{**values, **self._change(list(self._fed))})

    def stats(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def golden() -> Golden:
    return load_golden(mini_checkpoint() / "golden")


@pytest.fixture
def scripted(golden: Golden) -> Callable[..., ScriptedSubject]:
    """Build a subject that follows the golden's first prompt unless told otherwise."""
    whole = [*golden.prompts[0].prompt_ids, *golden.prompts[0].generated]

    def build(following: Answer = lambda fed: whole[len(fed)], change: Answer = lambda fed: {}) -> ScriptedSubject:
        return ScriptedSubject(golden, following, change)

    return build
