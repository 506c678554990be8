"""The perfect subject: answers from the golden itself. It is the positive control of every gate.

It looks its answers up by the ids it was fed, never by an index it is asked for. So a harness that feeds the wrong ids,
or a gate that compares the wrong position, makes even the perfect subject fail.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from oracle.errors import DeviceFault, SubjectError
from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import Golden, load_golden
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.subjects.protocol import FillObserver, Float32, NumericClass, StepEvidence, SubjectIdentity, SubjectRequest

HOST_GATES = ("golden", "alignment", "chain", "flips", "logits", "residual", "routing", "ledger")
"""What a subject without device slots must answer."""


class PerfectSubject:
    """See the header. Arms name the class whose floor judges it."""

    def __init__(self, golden: Golden, checkpoint: Checkpoint, numeric_class: NumericClass) -> None:
        self._prompts = golden.prompts
        self._router_logits = {
            (prompt.name, position): logits
            for prompt in golden.prompts
            for probes in [golden.probes_of(prompt.name)]
            for position, logits in zip(probes.positions, probes.router_logits, strict=True)
        }
        self._vocabulary = checkpoint.config.vocab_size
        self._embedding = checkpoint.raw("model.embed_tokens.weight").reshape(self._vocabulary, -1)
        self._numeric_class: NumericClass = numeric_class
        self._fed: list[int] = []
        self._candidates = golden.prompts

    @property
    def identity(self) -> SubjectIdentity:
        return SubjectIdentity("perfect", self._numeric_class, self._numeric_class, HOST_GATES)

    def reset(self) -> None:
        self.start()

    def start(self) -> None:
        self._fed = []
        self._candidates = self._prompts

    def step(self, token: int) -> StepEvidence:
        position = len(self._fed)
        self._fed.append(token)
        self._candidates = tuple(p for p in self._candidates if position < len(p.fed) and p.fed[position] == token)
        if not self._candidates:
            raise DeviceFault("unknown-prefix", f"no prompt of the golden begins with the {position + 1} ids fed")
        golden = self._candidates[0]
        return StepEvidence(
            token=token,
            position=position,
            logits=self._logits(golden, position),
            embedding=self._embedding[token],
            expert_ids=golden.expert_ids[position],
            expert_weights=golden.expert_weights[position],
            sketch=golden.sketch[position],
            router_logits=self._probed(position),
        )

    def stats(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        pass

    def _probed(self, position: int) -> Float32 | None:
        """All router logits where the golden has them: at the probes of any prompt that begins with the ids fed."""
        keys = ((prompt.name, position) for prompt in self._candidates)
        return next((self._router_logits[key] for key in keys if key in self._router_logits), None)

    def _logits(self, golden: PromptEvidence, position: int) -> Float32:
        """The stored logits at their ids; the rest of the mass spread evenly over all others, below the stored ones."""
        stored, lse = golden.top_logits[position].astype(np.float64), float(golden.logsumexp[position])
        others = self._vocabulary - len(stored)
        rest = 1.0 - np.exp(stored - lse).sum()
        level = lse + np.log(rest / others) if others and rest > 0 else stored[-1] - 100.0
        logits = np.full(self._vocabulary, min(level, stored[-1]), dtype=np.float32)
        logits[golden.top_ids[position]] = golden.top_logits[position]
        return logits


class PerfectFactory:
    arms: Mapping[str, NumericClass] = {"bf16": "bf16", "fp32": "fp32", "w8a8": "w8a8", "fp8-kv": "fp8-kv"}
    devices: tuple[str, ...] = ()
    plants: Mapping[str, str] = {}

    def open(self, request: SubjectRequest, observer: FillObserver | None = None) -> PerfectSubject:
        if request.golden is None:
            raise SubjectError("the perfect subject answers from a golden; pass one with --golden DIR")
        numeric_class = self.arms[request.arm or "bf16"]
        return PerfectSubject(load_golden(request.golden), Checkpoint.open(request.checkpoint), numeric_class)


FACTORY = PerfectFactory()
