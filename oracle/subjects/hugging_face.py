"""transformers' own `Kolibri1ForCausalLM` as a subject. Needs transformers, accelerate and torch.

Its head is computed here in fp32 from its hidden states: transformers ignores `head_dtype`, and its bf16 head ties
exactly at about one position in nine on the mini.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

from oracle.errors import CheckpointError
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.perfect import HOST_GATES
from oracle.subjects.protocol import Bytes, FillObserver, NumericClass, StepEvidence, SubjectIdentity, SubjectRequest

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class HuggingFaceSubject:
    """Eager attention and eager experts, one id per step with its cache; taps by forward hooks."""

    def __init__(self, folder: Path, arm: str, numeric_class: NumericClass, embedding: Bytes) -> None:
        self._arm, self._embedding = arm, embedding
        self._numeric_class: NumericClass = numeric_class
        transformers.logging.set_verbosity_error()  # it warns of the fp8 dequantization this asks for
        transformers.logging.disable_progress_bar()
        try:
            self._model: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=_DTYPES[arm], attn_implementation="eager", experts_implementation="eager"
            ).eval()
        except (OSError, ValueError, ImportError) as error:
            raise CheckpointError(f"transformers cannot load {folder}: {str(error).splitlines()[0]}") from None
        self._head = self._model.lm_head.weight.detach().float()
        self._residual: list[torch.Tensor] = []
        self._routing: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        for layer in self._model.model.layers:
            layer.register_forward_hook(self._tap_residual)
            layer.mlp.gate.register_forward_hook(self._tap_routing)
        self._cache: Any = None
        self._position = 0

    @property
    def identity(self) -> SubjectIdentity:
        return SubjectIdentity("transformers", self._numeric_class, self._arm, HOST_GATES)

    def reset(self) -> None:
        self.start()

    def start(self) -> None:
        self._cache, self._position = None, 0

    @torch.no_grad()
    def step(self, token: int) -> StepEvidence:
        self._residual, self._routing = [], []
        out = self._model.model(input_ids=torch.tensor([[token]]), cache=self._cache, use_cache=True)
        self._cache = out.cache
        position, self._position = self._position, self._position + 1
        return StepEvidence(
            token=token,
            position=position,
            logits=(out.last_hidden_state[0, -1].float() @ self._head.T).numpy(),
            embedding=self._embedding[token],
            expert_ids=np.stack([ids.numpy() for _, _, ids in self._routing]).astype(np.int32),
            expert_weights=np.stack([weights.float().numpy() for _, weights, _ in self._routing]),
            residual=np.stack([h.float().numpy() for h in self._residual]),
            router_logits=np.stack([logits.float().numpy() for logits, _, _ in self._routing]),
        )

    def stats(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        pass

    def _tap_residual(self, _module: Any, _inputs: Any, output: torch.Tensor) -> None:
        self._residual.append(output[0, -1])

    def _tap_routing(self, _module: Any, _inputs: Any, output: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
        logits, weights, ids = output
        self._routing.append((logits[0], weights[0], ids[0]))


class HuggingFaceFactory:
    arms: Mapping[str, NumericClass] = {"float32": "fp32", "bfloat16": "bf16"}
    devices: tuple[str, ...] = ()
    plants: Mapping[str, str] = {}

    def open(self, request: SubjectRequest, observer: FillObserver | None = None) -> HuggingFaceSubject:
        arm = request.arm or "float32"
        checkpoint = Checkpoint.open(request.checkpoint)
        embedding = checkpoint.raw("model.embed_tokens.weight").reshape(checkpoint.config.vocab_size, -1)
        return HuggingFaceSubject(request.checkpoint, arm, self.arms[arm], embedding)


FACTORY = HuggingFaceFactory()
