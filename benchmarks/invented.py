"""A golden and an honest run of any size, from a seeded stream: whole and consistent, though no model computed them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from oracle.golden.calibration import ClassCalibration
from oracle.golden.compare import Comparison, compare
from oracle.golden.evidence import PromptEvidence, PromptProbes
from oracle.golden.floor import calibrate
from oracle.golden.format import Probes, assemble, write_golden
from oracle.golden.recipe import PromptSpec, Recipe
from oracle.golden.sensitivity import measure
from oracle.judge.shown_router import selection_bias
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
    rng, bias = np.random.default_rng(0), selection_bias(checkpoint)
    invented = [_prompt(f"prompt-{index}", size, bias, rng) for index in range(size.prompts)]
    digest = _write_golden(folder / "golden", checkpoint, invented, rng)
    rows = checkpoint.raw("model.embed_tokens.weight").reshape(size.vocabulary, -1)
    identity = SubjectIdentity("invented", "bf16", "bf16", HOST_GATES)
    honest = {p.name: _answer(p, probes, rows, np.random.default_rng([7, i])) for i, (p, probes) in enumerate(invented)}
    perfect = {p.name: _answer(p, probes, rows, None) for p, probes in invented}
    control = Run(replace(identity, name="perfect"), digest, perfect)
    save_run(Run(identity, digest, honest), folder / "run", control=control)


Invented = tuple[PromptEvidence, PromptProbes]


def _prompt(name: str, size: Size, bias: np.ndarray, rng: np.random.Generator) -> Invented:
    positions = size.prompt_ids + size.generated - 1
    start = rng.integers(0, size.vocabulary, (positions, 1))
    ids = ((start + 7919 * np.arange(STORED)) % size.vocabulary).astype(np.int32)
    logits = np.sort(rng.normal(0, 3, (positions, STORED)), axis=1)[:, ::-1]
    logits[:, 0] += 1.0  # no near ties: an honest run has no flips, so that every prompt's chain is compared whole
    top = logits.astype(np.float32)
    whole = np.log(np.exp(top.astype(np.float64)).sum(axis=1)) + 0.05
    router = rng.standard_normal((positions, size.layers, size.experts), dtype=np.float32)
    scores = router + bias
    experts = np.argsort(-scores, axis=2)[:, :, : size.top_k].astype(np.int32)
    probed = (size.prompt_ids - 1, positions - 1)
    evidence = PromptEvidence(
        name=name,
        text=None,
        prompt_ids=tuple(rng.integers(0, size.vocabulary, size.prompt_ids).tolist()),
        generated=tuple(ids[size.prompt_ids - 1 :, 0].tolist()),
        top_ids=ids,
        top_logits=top,
        logsumexp=whole,
        expert_ids=experts,
        expert_weights=(1 / (1 + np.exp(-np.take_along_axis(router, experts, axis=2).astype(np.float64)))).astype(np.float32),
        router_gap=rng.uniform(0.01, 0.5, (positions, size.layers)).astype(np.float32),
        sketch=rng.normal(0, 8, (positions, size.layers, SKETCH_ROWS)).astype(np.float32),
    )
    return evidence, PromptProbes(probed, router[list(probed)])


def _answer(prompt: PromptEvidence, probes: PromptProbes, rows: np.ndarray, rng: np.random.Generator | None) -> PromptRun:
    """The golden's own numbers, or with a generator its logits and sketches off by relative `NOISE`."""

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
        expert_weights=prompt.expert_weights,
        router_logits=probes.router_logits,
        non_finite_routing=np.zeros(len(fed), dtype=np.int32),
        sketch=off(prompt.sketch),
        non_finite=np.zeros(len(fed), dtype=np.int32),
        free_consumed=fed,
        free_generated=np.array(prompt.generated, dtype=np.int32),
        free_expert_ids=prompt.expert_ids,
    )


def _write_golden(folder: Path, checkpoint: Checkpoint, invented: list[Invented], rng: np.random.Generator) -> str:
    prompts = tuple(prompt for prompt, _ in invented)
    layers, hidden = checkpoint.config.num_hidden_layers, checkpoint.config.hidden_size
    arms = tuple(f"arm-{index}" for index in range(ARMS))
    specs = tuple(PromptSpec(name=p.name, ids=p.prompt_ids, new_tokens=len(p.generated)) for p in prompts)
    positions = [probes.positions for _, probes in invented]
    golden, packed = assemble(
        recipe=Recipe(prompts=specs, truth="float32", floor_arms={"bf16": arms}, versions={"numpy": "any"}),
        checkpoint_digest=checkpoint.digest(),
        prompts=prompts,
        classes={"bf16": _calibration(checkpoint, invented, arms)},
        sensitivity=measure({p.name: (p.prompt_ids, p.generated) for p in prompts}),
        probe_prompt=prompts[0].name,
        probes=Probes(
            prompts=np.repeat(np.arange(len(prompts), dtype=np.int32), [len(each) for each in positions]),
            positions=np.concatenate([np.array(each, dtype=np.int32) for each in positions]),
            hidden=rng.standard_normal((sum(map(len, positions)), layers, hidden), dtype=np.float32),
            router_logits=np.concatenate([probes.router_logits for _, probes in invented]),
            layer_inputs=rng.standard_normal((len(prompts[0].fed), layers, hidden), dtype=np.float32),
        ),
    )
    write_golden(folder, golden, packed)
    return golden.digest


def _calibration(checkpoint: Checkpoint, invented: list[Invented], arms: tuple[str, ...]) -> ClassCalibration:
    """As if the arms differed from the golden by the same noise as the run."""
    rows = checkpoint.raw("model.embed_tokens.weight").reshape(checkpoint.config.vocab_size, -1)
    measured: dict[str, dict[str, Comparison]] = {}
    for seed, arm in enumerate(arms):
        measured[arm] = {}
        for index, (prompt, probes) in enumerate(invented):
            answer = _answer(prompt, probes, rows, np.random.default_rng([99, seed, index]))
            measured[arm][prompt.name] = compare(prompt, answer, probes)
    return calibrate("bf16", measured)
