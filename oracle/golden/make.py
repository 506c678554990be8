"""Make a golden: the truth's chains and evidence, every class's floor, and what follows from them. Needs torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from oracle.environment import arithmetic_record
from oracle.errors import GoldenError, UsageError
from oracle.golden.calibration import ClassCalibration
from oracle.golden.compare import Comparison
from oracle.golden.evidence import PromptEvidence
from oracle.golden.floor import calibrate
from oracle.golden.format import GOLDEN_SCHEMA, Golden, Probes, assemble
from oracle.golden.passes import Tick, TruthPass, compare_arm, layer_inputs, truth_pass
from oracle.golden.prompts import PreparedPrompt, prepare_prompts, stop_ids
from oracle.golden.recipe import PromptSpec, Recipe
from oracle.golden.regularity import regular
from oracle.golden.sensitivity import exposures, measure, weakest
from oracle.golden.unfinished import Unfinished
from oracle.kolibri1.arms import TRUTH, Arm, arm_named, floor_arms
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference
from oracle.serialization import canonical_json, digest
from oracle.subjects.protocol import NumericClass

CLASSES: tuple[NumericClass, ...] = ("fp32", "bf16", "w8a8", "fp8-kv")
"""The classes whose floors a golden holds."""

Progress = Callable[[str, int, int], None]
"""Called as (what, positions done, of)."""


@dataclass(frozen=True)
class Job:
    """All that decides a golden's bytes.

    Attributes:
        checkpoint: opened.
        recipe: prompts, truth, floor arms, versions.
        prompts: each prompt's text and ids, in the recipe's order.
    """

    checkpoint: Checkpoint
    recipe: Recipe
    prompts: tuple[PreparedPrompt, ...]

    def digests(self) -> dict[str, str]:
        """What names the job; reads the whole checkpoint once."""
        # The schema, since what a killed run kept has the shape that it had then. The tokenizer's files decide the prompts,
        # and neither of the other digests covers them.
        prompts = digest(canonical_json([asdict(prompt) for prompt in self.prompts]))
        checkpoint = self.checkpoint.digest()
        return {"schema": GOLDEN_SCHEMA, "recipe": self.recipe.digest(), "checkpoint": checkpoint, "prompts": prompts}


def plan(checkpoint: Checkpoint, prompts: Sequence[PromptSpec], arm: Arm = TRUTH, *, stop_at_eos: bool = False) -> Job:
    """Check everything that can be checked before anything costly runs.

    Args:
        arm: the truth.
        stop_at_eos: end each chain with the first of the checkpoint's eos ids in it; otherwise they are ids like any other.

    Raises:
        UsageError: no prompts, ids outside the vocabulary or the context, messages that the chat template refuses, texts or
            chats without transformers, or eos ids asked for where the checkpoint names none.
        CheckpointError: the tokenizer or the chat template is missing or damaged.
    """
    if not prompts:
        raise UsageError("an empty prompt list gives no golden; pass at least one prompt")
    recipe = Recipe(
        prompts=tuple(prompts),
        truth=arm.name,
        stop_at_eos=stop_at_eos,
        eos_ids=stop_ids(checkpoint, stop_at_eos),
        floor_arms={name: tuple(a.name for a in floor_arms(name, arm)) for name in CLASSES},
        versions=arithmetic_record(),
    )
    return Job(checkpoint, recipe, tuple(prepare_prompts(checkpoint, prompts)))


def make_golden(job: Job, work: Unfinished | None = None, progress: Progress | None = None) -> tuple[Golden, bytes]:
    """Run the reference over the prompts and assemble the golden; also returns the bytes of its arrays.

    Args:
        work: where each prompt's result is kept, and found again after a kill; in memory where None.
        progress: told of every pass.

    Raises:
        GoldenError: a chain too regular to show index faults, or a floor that does not pass its own leave-one-out.
    """
    work = work or Unfinished()
    torch.set_num_threads(1)  # the floor's bits change with torch's threads; the default arm's do not, and use all of numba's
    steps = _Steps(job, progress or (lambda what, done, of: None))
    reference = Reference(job.checkpoint, arm_named(job.recipe.truth))
    truths: list[TruthPass] = []
    for spec, prompt in zip(job.recipe.prompts, job.prompts, strict=True):
        with steps.of("truth", len(prompt.ids) + spec.new_tokens - 1) as tick:
            truth = _truth(work, reference, spec, prompt, frozenset(job.recipe.eos_ids), tick)
        if why := regular(truth.evidence.generated):
            raise GoldenError(f"prompt {spec.name}: its chain {why}; choose another prompt")
        truths.append(truth)
    evidence = tuple(truth.evidence for truth in truths)
    chains = {p.name: (p.prompt_ids, p.generated) for p in evidence}
    if weak := [exposure for exposure in exposures(chains) if exposure.weak]:
        raise GoldenError(f"the chains would not expose {weakest(weak)} ({len(weak)} such faults); change the prompts")
    probe = _probe_prompt(job.checkpoint, [len(p.fed) for p in evidence])
    classes: dict[NumericClass, ClassCalibration] = {
        name: _measure_class(work, job.checkpoint, name, job.recipe, truths, steps) for name in CLASSES
    }
    with steps.of("probe", len(evidence[probe].fed)) as tick:
        inputs = layer_inputs(reference, evidence[probe].fed, tick)
    return assemble(
        recipe=job.recipe,
        checkpoint_digest=job.checkpoint.digest(),
        prompts=evidence,
        classes=classes,
        sensitivity=measure(chains),
        probe_prompt=evidence[probe].name,
        probes=Probes(
            prompts=np.repeat(np.arange(len(truths), dtype=np.int32), [len(t.probe_positions) for t in truths]),
            positions=np.concatenate([truth.probe_positions for truth in truths]),
            hidden=np.concatenate([truth.probe_hidden for truth in truths]),
            router_logits=np.concatenate([truth.probe_router_logits for truth in truths]),
            layer_inputs=inputs,
        ),
    )


class _Steps:
    """Counts positions over all passes of a job."""

    def __init__(self, job: Job, report: Progress) -> None:
        lengths = [len(p.ids) + spec.new_tokens - 1 for spec, p in zip(job.recipe.prompts, job.prompts, strict=True)]
        arms = sum(len(names) for names in job.recipe.floor_arms.values())
        self._report = report
        probe = lengths[_probe_prompt(job.checkpoint, lengths)]
        self._done, self._of = 0, sum(lengths) * (1 + arms) + probe

    @contextlib.contextmanager
    def of(self, what: str, positions: int) -> Iterator[Tick]:
        """A pass over that many positions; what it does not compute (found, or a chain that ended early) is not counted."""
        before = self._done
        self._report(what, before, self._of)

        def tick(count: int) -> None:
            self._done += count
            self._report(what, self._done, self._of)

        yield tick
        self._of -= positions - (self._done - before)
        self._report(what, self._done, self._of)


def _truth(
    work: Unfinished, reference: Reference, spec: PromptSpec, prompt: PreparedPrompt, stop: frozenset[int], tick: Tick
) -> TruthPass:
    """One prompt's chain: computed, or found where a killed run left it."""
    key = f"truth-{spec.name}"
    if (kept := work.get(key)) is not None:
        rows = {name: kept[name] for name in PromptEvidence.ARRAYS}
        evidence = PromptEvidence(spec.name, prompt.text, prompt.ids, tuple(kept["generated"].tolist()), **rows)
        return TruthPass(evidence, kept["probe_positions"], kept["probe_hidden"], kept["probe_router_logits"])
    truth = truth_pass(reference, spec.name, prompt.text, prompt.ids, spec.new_tokens, stop, tick)
    arrays = {name: getattr(truth.evidence, name) for name in PromptEvidence.ARRAYS}
    probes = {name: getattr(truth, name) for name in ("probe_positions", "probe_hidden", "probe_router_logits")}
    work.put(key, {**arrays, **probes, "generated": np.array(truth.evidence.generated, dtype=np.int64)})
    return truth


def _measure_class(
    work: Unfinished,
    checkpoint: Checkpoint,
    numeric_class: NumericClass,
    recipe: Recipe,
    truths: Sequence[TruthPass],
    steps: _Steps,
) -> ClassCalibration:
    """Run every floor arm of the class over the golden's own chains and calibrate.

    Raises:
        GoldenError: an arm does not pass what the other arms allow.
    """
    measured: dict[str, dict[str, Comparison]] = {}
    for name in recipe.floor_arms[numeric_class]:
        reference = Reference(checkpoint, arm_named(name))
        measured[name] = {}
        for truth in truths:
            prompt = truth.evidence
            with steps.of(f"floor {numeric_class}", len(prompt.fed)) as tick:
                key = f"floor-{name}.{prompt.name}"  # a dot: neither name has one, and both have hyphens
                if (kept := work.get(key)) is None:
                    kept = asdict(compare_arm(reference, prompt, truth.probes, tick))
                    work.put(key, kept)
                measured[name][prompt.name] = Comparison(**kept)
    return calibrate(numeric_class, measured)


def _probe_prompt(checkpoint: Checkpoint, lengths: Sequence[int]) -> int:
    """Index of the shortest prompt that outgrows the window, or of the longest one; by positions fed."""
    beyond = [i for i, n in enumerate(lengths) if n > checkpoint.config.sliding_window]
    return min(beyond, key=lambda i: lengths[i]) if beyond else int(np.argmax(lengths))
