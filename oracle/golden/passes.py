"""Passes of the reference over prompts, reduced as they go to what a golden stores. Needs torch.

A pass never holds more than one chunk of logits and hidden vectors, so its memory does not grow with the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from oracle.golden.compare import Comparison, Shown, compare
from oracle.golden.evidence import PromptEvidence, PromptProbes, log_sum_exp, top_logits
from oracle.golden.sketch import sketch
from oracle.kolibri1.reference import Forward, Reference, Routing, Taps, argmax_lowest_id

Tick = Callable[[int], None]
"""Called with the number of positions just computed."""

_HIDDEN = Taps(hidden=True, router_logits=False)
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True)
class TruthPass:
    """One prompt's greedy chain by the truth.

    Attributes:
        evidence: what the golden stores of every position.
        probe_positions: int32 [N], the position that predicts the first generated id, and the last one.
        probe_hidden: float32 [N, L, H], the residual stream there after each layer.
        probe_router_logits: float32 [N, L, E].
    """

    evidence: PromptEvidence
    probe_positions: npt.NDArray[np.int32]
    probe_hidden: npt.NDArray[np.float32]
    probe_router_logits: npt.NDArray[np.float32]

    @property
    def probes(self) -> PromptProbes:
        return PromptProbes(tuple(self.probe_positions.tolist()), self.probe_router_logits)


def generate(
    reference: Reference, prompt: Sequence[int], new_tokens: int, stop: frozenset[int] = _NONE, tick: Tick | None = None
) -> Iterator[tuple[int, Forward]]:
    """Greedy decoding: yield every pass with the id its last position predicts.

    The first passes are the prompt's, in chunks; then one per generated id but the last. Ends after `new_tokens` ids, or
    with the first id of `stop`.
    """
    cache = reference.new_cache()
    generated = 0
    for part in reference.stream(prompt, cache):
        token = int(argmax_lowest_id(part.logits[-1]))
        if tick is not None:
            tick(len(part))
        yield token, part
    while (generated := generated + 1) < new_tokens and token not in stop:
        part = reference.forward([token], cache)
        token = int(argmax_lowest_id(part.logits[-1]))
        if tick is not None:
            tick(1)
        yield token, part


def truth_pass(
    reference: Reference,
    name: str,
    text: str | None,
    prompt: Sequence[int],
    new_tokens: int,
    stop: frozenset[int] = _NONE,
    tick: Tick | None = None,
) -> TruthPass:
    """Generate a prompt's chain and reduce it, pass by pass.

    Args:
        name, text: of the prompt; text is None where it was given as ids.
        stop: ids that end the chain early.
    """
    rows: list[dict[str, np.ndarray]] = []
    generated: list[int] = []
    fed, probes = 0, dict[int, tuple[np.ndarray, np.ndarray]]()
    for token, part in generate(reference, prompt, new_tokens, stop, tick):
        rows.append(_rows(part))
        fed += len(part)
        if fed >= len(prompt):
            generated.append(token)
            probes[fed - 1] = (_float32(part.residual[-1]).copy(), _float32(part.router_logits[-1]).copy())
            if fed > len(prompt) + 1:
                del probes[fed - 2]  # neither the first generated id's nor, any longer, the last
    evidence = PromptEvidence(
        name=name,
        text=text,
        prompt_ids=tuple(prompt),
        generated=tuple(generated),
        **{array: np.concatenate([row[array] for row in rows]) for array in PromptEvidence.ARRAYS},
    )
    where = sorted(probes)
    return TruthPass(
        evidence,
        np.array(where, dtype=np.int32),
        np.stack([probes[p][0] for p in where]),
        np.stack([probes[p][1] for p in where]),
    )


def layer_inputs(reference: Reference, fed: Sequence[int], tick: Tick | None = None) -> npt.NDArray[np.float32]:
    """float32 [T, L, H], each layer's input at every position of a teacher-forced pass."""
    parts = []
    for part in reference.stream(fed, reference.new_cache(), taps=_HIDDEN):
        parts.append(_float32(part.layer_inputs))
        if tick is not None:
            tick(len(part))
    return np.concatenate(parts)


def compare_arm(reference: Reference, prompt: PromptEvidence, probes: PromptProbes, tick: Tick | None = None) -> Comparison:
    """Measure a teacher-forced pass of another arm against the golden's evidence of one prompt."""
    parts: list[Shown] = []
    start = 0
    for part in reference.stream(prompt.fed, reference.new_cache()):
        logits = _float32(part.logits)
        stored = prompt.top_ids[start : start + len(part)].astype(np.int64)
        probed = [p - start for p in probes.positions if start <= p < start + len(part)]
        start += len(part)
        parts.append(
            Shown(
                argmax=argmax_lowest_id(part.logits).numpy().astype(np.int32),
                logits_at_golden=np.take_along_axis(logits, stored, axis=1),
                logsumexp=log_sum_exp(logits),
                sketch=sketch(part.residual.numpy()),
                expert_ids=part.expert_ids.numpy().astype(np.int32),
                expert_weights=_float32(part.expert_weights),
                router_logits=_float32(part.router_logits[probed]),
            )
        )
        if tick is not None:
            tick(len(part))
    return compare(prompt, Shown(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True))), probes)


def forced_routing(prompt: PromptEvidence) -> Routing:
    """A golden's expert sets and weights of one prompt, at every position it was fed: for `Reference.forward(routing=...)`.

    With them an engine's own router noise is out of a comparison: what still differs is arithmetic.
    """
    return Routing(torch.from_numpy(prompt.expert_ids.astype(np.int64)), torch.from_numpy(prompt.expert_weights.copy()))


def _rows(part: Forward) -> dict[str, np.ndarray]:
    """The golden's arrays of one pass, by name."""
    logits = _float32(part.logits)
    ids, values = top_logits(logits)
    return {
        "top_ids": ids,
        "top_logits": values,
        "logsumexp": log_sum_exp(logits),
        "expert_ids": part.expert_ids.numpy().astype(np.int32),
        "expert_weights": _float32(part.expert_weights),
        "router_gap": _float32(part.router_gap),
        "sketch": sketch(part.residual.numpy()),
    }


def _float32(values: torch.Tensor) -> npt.NDArray[np.float32]:
    return values.numpy().astype(np.float32, copy=False)
