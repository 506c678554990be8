"""Make a golden: the truth's chains and evidence, every class's floor, and what follows from them. Needs torch."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version

import numpy as np
import torch

from oracle.errors import GoldenError, UsageError
from oracle.golden.calibration import ClassCalibration
from oracle.golden.compare import compare, concatenate
from oracle.golden.evidence import PromptEvidence, log_sum_exp, top_logits
from oracle.golden.floor import calibrate
from oracle.golden.format import Golden, Probes, assemble
from oracle.golden.prompts import prepare_prompts, stop_ids
from oracle.golden.recipe import PromptSpec, Recipe
from oracle.golden.sensitivity import measure, short_period
from oracle.golden.sketch import sketch
from oracle.kolibri1.arms import TRUTH, Arm, floor_arms
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Forward, Reference, argmax_lowest_id
from oracle.subjects.harness import PassEvidence, digest_embedding, record
from oracle.subjects.protocol import NumericClass

CLASSES: tuple[NumericClass, ...] = ("fp32", "bf16")
"""The classes this version measures a floor for."""

Progress = Callable[[str, int, int], None]
"""Called as (what, done, of)."""


def make_golden(
    checkpoint: Checkpoint, prompts: Sequence[PromptSpec], progress: Progress | None = None, *, stop_at_eos: bool = False
) -> tuple[Golden, bytes]:
    """Run the reference over `prompts` and assemble the golden; also returns the bytes of its arrays.

    Args:
        stop_at_eos: end each chain with the first of the checkpoint's eos ids in it; otherwise they are ids like any other.

    Raises:
        UsageError: no prompts, ids outside the vocabulary, messages that the chat template refuses, texts or chats without
            transformers, or eos ids asked for where the checkpoint names none.
        CheckpointError: the tokenizer or the chat template is missing or damaged.
        GoldenError: a chain too regular to show index faults, or a floor that does not pass its own leave-one-out.
    """
    if not prompts:
        raise UsageError("an empty prompt list gives no golden; pass at least one prompt")
    report = progress or (lambda what, done, of: None)
    torch.set_num_threads(1)  # fp32 bits change with the number of threads
    stop = stop_ids(checkpoint, stop_at_eos)
    prepared = prepare_prompts(checkpoint, prompts)
    reference = Reference(checkpoint, TRUTH)
    evidence: list[PromptEvidence] = []
    forwards: list[Forward] = []
    for index, (spec, prompt) in enumerate(zip(prompts, prepared, strict=True)):
        report("truth", index, len(prompts))
        generated, forward = generate(reference, prompt.ids, spec.new_tokens, stop)
        if period := short_period(generated):
            raise GoldenError(
                f"prompt {spec.name}: its chain has period {period} and can show no index fault; choose another prompt"
            )
        evidence.append(to_evidence(spec.name, prompt.text, prompt.ids, generated, forward))
        forwards.append(forward)
    report("truth", len(prompts), len(prompts))
    sensitivity = measure({p.name: (p.prompt_ids, p.generated) for p in evidence})
    if sensitivity.hidden:
        raise GoldenError(
            f"the chains would not expose {sensitivity.hidden[0]} ({len(sensitivity.hidden)} such faults); change the prompts"
        )
    probe = _probe_prompt(checkpoint, evidence)
    return assemble(
        recipe=_recipe(prompts, stop),
        checkpoint_digest=checkpoint.digest(),
        prompts=tuple(evidence),
        classes={name: measure_class(checkpoint, name, evidence, report) for name in CLASSES},
        sensitivity=sensitivity,
        probe_prompt=evidence[probe].name,
        probes=_probes(evidence, forwards, probe),
    )


def generate(
    reference: Reference, prompt: Sequence[int], new_tokens: int, stop: Sequence[int] = ()
) -> tuple[tuple[int, ...], Forward]:
    """Greedy decoding: the generated ids, and one `Forward` over all T = P + G - 1 positions.

    Args:
        new_tokens: ids to generate; fewer where the chain ends with the first id of `stop` in it.
    """
    cache = reference.new_cache()
    parts = [reference.forward(list(prompt), cache)]
    generated = [int(argmax_lowest_id(parts[-1].logits[-1]))]
    while len(generated) < new_tokens and generated[-1] not in stop:
        parts.append(reference.forward(generated[-1:], cache))
        generated.append(int(argmax_lowest_id(parts[-1].logits[-1])))
    names = Forward.__dataclass_fields__
    return tuple(generated), Forward(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def to_evidence(
    name: str, text: str | None, prompt: Sequence[int], generated: Sequence[int], forward: Forward
) -> PromptEvidence:
    """Reduce a forward pass to what a golden stores of it."""
    logits = forward.logits.numpy().astype(np.float32, copy=False)
    ids, values = top_logits(logits)
    return PromptEvidence(
        name=name,
        text=text,
        prompt_ids=tuple(prompt),
        generated=tuple(generated),
        top_ids=ids,
        top_logits=values,
        logsumexp=log_sum_exp(logits),
        expert_ids=forward.expert_ids.numpy().astype(np.int32),
        expert_weights=forward.expert_weights.numpy().astype(np.float32),
        router_gap=forward.router_gap.numpy().astype(np.float32),
        sketch=sketch(forward.residual.numpy()),
    )


def measure_class(
    checkpoint: Checkpoint, numeric_class: NumericClass, evidence: Sequence[PromptEvidence], report: Progress
) -> ClassCalibration:
    """Run every floor arm of the class over the golden's own chains and calibrate.

    Raises:
        GoldenError: an arm does not pass what the other arms allow.
    """
    arms = floor_arms(numeric_class)
    comparisons = {}
    for index, arm in enumerate(arms):
        report(f"floor {numeric_class}", index, len(arms))
        comparisons[arm.name] = concatenate(
            compare(p, run) for p, run in zip(evidence, run_arm(checkpoint, arm, evidence), strict=True)
        )
    report(f"floor {numeric_class}", len(arms), len(arms))
    return calibrate(numeric_class, comparisons)


def run_arm(checkpoint: Checkpoint, arm: Arm, evidence: Sequence[PromptEvidence]):
    """Yield a `PromptRun` per prompt: the arm's teacher-forced pass; it has no free run of its own."""
    reference = Reference(checkpoint, arm)
    embedding = checkpoint.raw("model.embed_tokens.weight").reshape(checkpoint.config.vocab_size, -1)
    for prompt in evidence:
        forward = reference.forward(list(prompt.fed), reference.new_cache())
        shown = PassEvidence(
            consumed=np.array(prompt.fed, dtype=np.int32),
            positions=np.arange(len(prompt.fed), dtype=np.int32),
            embedding_digest=np.stack([digest_embedding(embedding[i]) for i in prompt.fed]),
            logits=forward.logits.numpy().astype(np.float32),
            expert_ids=forward.expert_ids.numpy().astype(np.int32),
            expert_weights=forward.expert_weights.numpy().astype(np.float32),
            sketch=sketch(forward.residual.numpy()),
        )
        yield record(prompt, shown)


def _recipe(prompts: Sequence[PromptSpec], stop: tuple[int, ...]) -> Recipe:
    versions = {name: version(name) for name in ("kolibri-oracle", "torch", "numpy")}
    return Recipe(
        prompts=tuple(prompts),
        truth=TRUTH.name,
        stop_at_eos=bool(stop),
        eos_ids=stop,
        floor_arms={name: tuple(arm.name for arm in floor_arms(name)) for name in CLASSES},
        versions={**versions, "python": platform.python_version()},
    )


def _probe_prompt(checkpoint: Checkpoint, evidence: Sequence[PromptEvidence]) -> int:
    """Index of the shortest prompt that outgrows the window, or of the longest one."""
    lengths = [len(p.fed) for p in evidence]
    beyond = [i for i, n in enumerate(lengths) if n > checkpoint.config.sliding_window]
    return min(beyond, key=lambda i: lengths[i]) if beyond else int(np.argmax(lengths))


def _probes(evidence: Sequence[PromptEvidence], forwards: Sequence[Forward], probe_prompt: int) -> Probes:
    """Per prompt, the position that predicts the first generated id and the last position."""
    where = [(i, p) for i, e in enumerate(evidence) for p in sorted({len(e.prompt_ids) - 1, len(e.fed) - 1})]
    hidden = np.stack([forwards[i].residual[p].numpy() for i, p in where]).astype(np.float32)
    router = np.stack([forwards[i].router_logits[p].numpy() for i, p in where]).astype(np.float32)
    return Probes(
        prompts=np.array([i for i, _ in where], dtype=np.int32),
        positions=np.array([p for _, p in where], dtype=np.int32),
        hidden=hidden,
        router_logits=router,
        layer_inputs=forwards[probe_prompt].layer_inputs.numpy().astype(np.float32),
    )
