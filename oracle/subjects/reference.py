"""The reference as a subject, in any of its arms: token by token through the same harness as a port. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from oracle.kolibri1.arms import ARMS, TRUTH, arm_named
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference, Routing
from oracle.subjects.perfect import HOST_GATES
from oracle.subjects.protocol import (
    FillObserver,
    Float32,
    Int32,
    NumericClass,
    StepEvidence,
    SubjectIdentity,
    SubjectRequest,
)


class ReferenceSubject:
    """Decodes one id per step with a KV cache."""

    def __init__(self, reference: Reference, checkpoint: Checkpoint) -> None:
        self._reference = reference
        self._embedding = checkpoint.raw("model.embed_tokens.weight").reshape(checkpoint.config.vocab_size, -1)
        self._cache = reference.new_cache()
        self._forced: Routing | None = None

    @property
    def identity(self) -> SubjectIdentity:
        arm = self._reference.arm
        return SubjectIdentity("reference", arm.numeric_class, arm.name, HOST_GATES)

    def reset(self) -> None:
        self._forced = None
        self.start()

    def start(self) -> None:
        self._cache = self._reference.new_cache()

    def force_routing(self, expert_ids: Int32, expert_weights: Float32) -> None:
        """See `oracle.subjects.protocol.ForcesRouting`."""
        self._forced = Routing(torch.from_numpy(expert_ids.astype(np.int64)), torch.from_numpy(expert_weights.copy()))

    def step(self, token: int) -> StepEvidence:
        position = self._cache.length
        forced = self._forced and Routing(*(x[position : position + 1] for x in (self._forced.ids, self._forced.weights)))
        forward = self._reference.forward([token], self._cache, routing=forced)
        return StepEvidence(
            token=token,
            position=position,
            logits=forward.logits[0].numpy().astype(np.float32),
            embedding=self._embedding[token],
            expert_ids=forward.expert_ids[0].numpy().astype(np.int32),
            expert_weights=forward.expert_weights[0].numpy().astype(np.float32),
            residual=forward.residual[0].numpy().astype(np.float32),
            router_logits=forward.router_logits[0].numpy().astype(np.float32),
        )

    def layer(self, layer: int, inputs: Float32) -> Float32:
        return self._reference.layer(layer, torch.from_numpy(inputs)).numpy().astype(np.float32)

    def stats(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        pass


class ReferenceFactory:
    arms: Mapping[str, NumericClass] = {name: ARMS[name].numeric_class for name in ARMS}
    devices: tuple[str, ...] = ()
    plants: Mapping[str, str] = {}

    def open(self, request: SubjectRequest, observer: FillObserver | None = None) -> ReferenceSubject:
        checkpoint = Checkpoint.open(request.checkpoint)
        return ReferenceSubject(Reference(checkpoint, arm_named(request.arm or TRUTH.name)), checkpoint)


FACTORY = ReferenceFactory()
