"""A golden and an honest run of any size, from a seeded stream: whole and consistent, though no model computed them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from oracle.golden.calibration import ClassCalibration
from oracle.golden.compare import Comparison, compare
from oracle.golden.evidence import PromptEvidence
from oracle.golden.floor import calibrate
from oracle.golden.format import Probes, assemble, write_golden
from oracle.golden.recipe import PromptSpec, Recipe
from oracle.golden.sensitivity import measure
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.synthetic import TINY, write_synthetic
from oracle.subjects.harness import digest_embedding
from oracle.subjects.perfect import HOST_GATES
from oracle.subjects.protocol import SubjectIdentity
from oracle.subjects.run import PromptRun, Run, save_run

STORED = 64
SKETCH_ROWS = 32
NOISE = 1e-3
ARMS = 4


@dataclass(frozen=True)
class Size:
    """How large: every prompt has `prompt_ids` ids and generates `generated`, so `prompt_ids + generated - 1` positions."""

    prompts: int
    prompt_ids: int
    generated: int
    layers: int
    vocabulary: int
    experts: int = 16
    top_k: int = 6

    @property
    def positions(self) -> int:
        return self.prompts * (self.prompt_ids + self.generated - 1)


def invent(folder: Path, size: Size) -> None:
    """Write `checkpoint`, `golden` and `run` (with its control) into `folder`."""
    config = TINY | {
        "vocab_size": size.vocabulary,
        "num_experts": size.experts,
        "num_experts_per_tok": size.top_k,
        "num_hidden_layers": size.layers,
        "layer_types": ["sliding_attention"] * (size.layers - 1) + ["full_attention"],
        "eos_token_id": size.vocabulary - 1,
        "pad_token_id": size.vocabulary - 2,
    }
    config["quantization_config"] = TINY["quantization_config"] | {
        "modules_to_not_convert": [f"model.layers.{layer}.mlp.gate" for layer in range(size.layers)]
    }
    checkpoint = Checkpoint.open(write_synthetic(folder / "checkpoint", config))
    rng = np.random.default_rng(0)
    prompts = tuple(_evidence(f"prompt-{index}", size, rng) for index in range(size.prompts))
    digest = _write_golden(folder / "golden", checkpoint, prompts, rng)
    rows = checkpoint.raw("model.embed_tokens.weight").reshape(size.vocabulary, -1)
    identity = SubjectIdentity("invented", "bf16", "bf16", HOST_GATES)
    honest = {p.name: _answer(p, rows, np.random.default_rng([7, i])) for i, p in enumerate(prompts)}
    perfect = {p.name: _answer(p, rows, None) for p in prompts}
    control = Run(replace(identity, name="perfect"), digest, perfect)
    save_run(Run(identity, digest, honest), folder / "run", control=control)


def _evidence(name: str, size: Size, rng: np.random.Generator) -> PromptEvidence:
    positions = size.prompt_ids + size.generated - 1
    start = rng.integers(0, size.vocabulary, (positions, 1))
    ids = ((start + 7919 * np.arange(STORED)) % size.vocabulary).astype(np.int32)
    logits = np.sort(rng.normal(0, 3, (positions, STORED)), axis=1)[:, ::-1]
    logits[:, 0] += 1.0  # no near ties: an honest run has no flips, so that every prompt's chain is compared whole
    top = logits.astype(np.float32)
    whole = np.log(np.exp(top.astype(np.float64)).sum(axis=1)) + 0.05
    scores = rng.random((positions, size.layers, size.experts), dtype=np.float32)
    experts = np.argsort(-scores, axis=2)[:, :, : size.top_k].astype(np.int32)
    return PromptEvidence(
        name=name,
        text=None,
        prompt_ids=tuple(rng.integers(0, size.vocabulary, size.prompt_ids).tolist()),
        generated=tuple(ids[size.prompt_ids - 1 :, 0].tolist()),
        top_ids=ids,
        top_logits=top,
        logsumexp=whole,
        expert_ids=experts,
        expert_weights=np.take_along_axis(scores, experts, axis=2),
        router_gap=rng.uniform(0.01, 0.5, (positions, size.layers)).astype(np.float32),
        sketch=rng.normal(0, 8, (positions, size.layers, SKETCH_ROWS)).astype(np.float32),
    )


def _answer(prompt: PromptEvidence, rows: np.ndarray, rng: np.random.Generator | None) -> PromptRun:
    """The golden's own numbers, or with a generator all of them off by relative `NOISE`."""

    def off(values: np.ndarray) -> np.ndarray:
        if rng is None:
            return values
        return values * (1 + np.float32(NOISE) * rng.standard_normal(values.shape, dtype=np.float32))

    fed = np.array(prompt.fed, dtype=np.int32)
    logits = off(prompt.top_logits)
    order = np.argsort(-logits, axis=1, kind="stable")
    shift = np.log(np.exp(logits.astype(np.float64)).sum(1)) - np.log(np.exp(prompt.top_logits.astype(np.float64)).sum(1))
    top_ids = np.take_along_axis(prompt.top_ids, order, axis=1)
    return PromptRun(
        consumed=fed,
        positions=np.arange(len(fed), dtype=np.int32),
        embedding_digest=np.stack([digest_embedding(rows[i]) for i in fed]),
        argmax=top_ids[:, 0].copy(),
        logits_at_golden=logits,
        top_ids=top_ids,
        top_logits=np.take_along_axis(logits, order, axis=1),
        logsumexp=prompt.logsumexp + shift,
        expert_ids=prompt.expert_ids,
        expert_weights=np.minimum(off(prompt.expert_weights), np.float32(1)),
        sketch=off(prompt.sketch),
        non_finite=np.zeros(len(fed), dtype=np.int32),
        free_consumed=fed,
        free_generated=np.array(prompt.generated, dtype=np.int32),
        free_expert_ids=prompt.expert_ids,
    )


def _write_golden(folder: Path, checkpoint: Checkpoint, prompts: tuple[PromptEvidence, ...], rng: np.random.Generator) -> str:
    config = checkpoint.config
    layers, hidden, experts = config.num_hidden_layers, config.hidden_size, config.num_experts
    arms = tuple(f"arm-{index}" for index in range(ARMS))
    specs = tuple(PromptSpec(name=p.name, ids=p.prompt_ids, new_tokens=len(p.generated)) for p in prompts)
    probed = np.arange(len(prompts), dtype=np.int32)
    golden, packed = assemble(
        recipe=Recipe(prompts=specs, truth="float32", floor_arms={"bf16": arms}, versions={"numpy": "any"}),
        checkpoint_digest=checkpoint.digest(),
        prompts=prompts,
        classes={"bf16": _calibration(checkpoint, prompts, arms)},
        sensitivity=measure({p.name: (p.prompt_ids, p.generated) for p in prompts}),
        probe_prompt=prompts[0].name,
        probes=Probes(
            prompts=np.repeat(probed, 2),
            positions=np.array([p for prompt in prompts for p in (len(prompt.prompt_ids) - 1, len(prompt.fed) - 1)], np.int32),
            hidden=rng.standard_normal((2 * len(prompts), layers, hidden), dtype=np.float32),
            router_logits=rng.standard_normal((2 * len(prompts), layers, experts), dtype=np.float32),
            layer_inputs=rng.standard_normal((len(prompts[0].fed), layers, hidden), dtype=np.float32),
        ),
    )
    write_golden(folder, golden, packed)
    return golden.digest


def _calibration(checkpoint: Checkpoint, prompts: tuple[PromptEvidence, ...], arms: tuple[str, ...]) -> ClassCalibration:
    """As if the arms differed from the golden by the same noise as the run."""
    rows = checkpoint.raw("model.embed_tokens.weight").reshape(checkpoint.config.vocab_size, -1)
    compared: dict[str, dict[str, Comparison]] = {}
    for seed, arm in enumerate(arms):
        rngs = (np.random.default_rng([99, seed, index]) for index in range(len(prompts)))
        compared[arm] = {p.name: compare(p, _answer(p, rows, rng)) for p, rng in zip(prompts, rngs, strict=True)}
    return calibrate("bf16", compared)
