"""Compute a golden anew: is what it stores what its arm computes here? Needs torch.

Asked of every prompt: the same chain, and logits within 2e-6 of the largest one. Equal bits are asked for only where the
environment is the one that made the golden: fp32 bits can change with libraries and processors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from oracle.environment import arithmetic_record
from oracle.errors import UsageError
from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import Golden
from oracle.golden.passes import TruthPass, layer_inputs, truth_pass
from oracle.kolibri1.arms import arm_named
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.reference import Reference

BOUND = 2e-6
"""Largest logit error over the largest logit. Two right fp32 implementations differ by 8e-7 to 1.2e-6 (facts, section 7)."""


@dataclass(frozen=True)
class Recomputed:
    """One prompt, stored against computed.

    Attributes:
        prompt: its name.
        positions: compared; 0 where the chains have parted.
        chain: how many leading generated ids agree, of `generated`.
        logit_error: largest difference of a stored logit, over the prompt's largest absolute logit.
        sets_differ: positions and layers with another expert set.
        unequal: names of the arrays whose bits differ.
    """

    prompt: str
    positions: int
    chain: int
    generated: int
    logit_error: float
    sets_differ: int
    unequal: tuple[str, ...]


@dataclass(frozen=True)
class Recomputation:
    """All prompts of a golden.

    Attributes:
        environment: what differs from the record of the making, as (name, stored, here); empty where bits must be equal.
        prompts: in the golden's order.
        probes: whether the probe prompt's layer inputs have the stored bits.
    """

    environment: tuple[tuple[str, str, str], ...]
    prompts: tuple[Recomputed, ...]
    probes: bool

    @property
    def bits_required(self) -> bool:
        return not self.environment

    @property
    def failures(self) -> tuple[str, ...]:
        """One line for each thing that does not hold."""
        lines: list[str] = []
        for p in self.prompts:
            if p.chain < p.generated:
                lines.append(f"{p.prompt}: the chain parts after {p.chain} of {p.generated} ids")
            elif p.logit_error > BOUND:
                lines.append(f"{p.prompt}: a logit is off by {p.logit_error:.2e} of the largest, allowed {BOUND:.0e}")
            elif self.bits_required and p.unequal:
                lines.append(f"{p.prompt}: the environment is the same, but not the bits of {', '.join(p.unequal)}")
        if self.bits_required and not self.probes:
            lines.append("the probe prompt's layer inputs do not have the stored bits")
        return tuple(lines)

    @property
    def passed(self) -> bool:
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "bits_required": self.bits_required,
            "environment": [list(line) for line in self.environment],
            "failures": list(self.failures),
            "prompts": [asdict(p) | {"unequal": list(p.unequal)} for p in self.prompts],
        }


def recompute(golden: Golden, checkpoint: Checkpoint, progress: Callable[[int, int], None] | None = None) -> Recomputation:
    """Run the golden's own arm over its prompts.

    Raises:
        UsageError: another checkpoint than the golden's, or an arm that this version has not.
    """
    if checkpoint.digest() != golden.document.checkpoint_digest:
        raise UsageError(
            f"{checkpoint.folder} is not the golden's checkpoint ({checkpoint.digest()}, the golden names "
            f"{golden.document.checkpoint_digest}); pass --checkpoint"
        )
    torch.set_num_threads(1)
    recipe = golden.document.recipe
    reference = Reference(checkpoint, arm_named(recipe.truth))
    probed = next(p for p in golden.prompts if p.name == golden.document.probe_prompt)
    done, of = 0, golden.positions + len(probed.fed)

    def tick(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, of)

    prompts = []
    for index, stored in enumerate(golden.prompts):
        computed = truth_pass(reference, stored.name, stored.text, stored.prompt_ids, len(stored.generated), tick=tick)
        prompts.append(_compared(golden, index, stored, computed))
    inputs = layer_inputs(reference, probed.fed, tick)
    return Recomputation(_differences(recipe.versions), tuple(prompts), _same(inputs, golden.probes.layer_inputs))


def _compared(golden: Golden, index: int, stored: PromptEvidence, computed: TruthPass) -> Recomputed:
    mine, found = computed.evidence, stored.generated
    agree = next((i for i, (a, b) in enumerate(zip(found, mine.generated, strict=True)) if a != b), len(found))
    span = slice(0, len(stored.prompt_ids) + agree)  # up to the position whose id differs, it included
    unequal = [name for name in PromptEvidence.ARRAYS if not _same(getattr(mine, name), getattr(stored, name))]
    at = golden.probes.prompts == index
    for name, values in (("probe_hidden", golden.probes.hidden), ("probe_router_logits", golden.probes.router_logits)):
        if not _same(getattr(computed, name), values[at]):
            unequal.append(name)
    sets = np.sort(mine.expert_ids[span], -1) != np.sort(stored.expert_ids[span], -1)
    return Recomputed(
        prompt=stored.name,
        positions=len(stored.top_ids[span]),
        chain=agree,
        generated=len(found),
        logit_error=_logit_error(stored, mine, span),
        sets_differ=int(sets.any(-1).sum()),
        unequal=tuple(unequal),
    )


def _logit_error(stored: PromptEvidence, mine: PromptEvidence, span: slice) -> float:
    """Largest difference by id, over the largest absolute stored logit.

    An id that only one of the lists holds is at most as large as the other's last: the excess over that counts.
    """
    ids, logits = stored.top_ids[span], stored.top_logits[span].astype(np.float64)
    other_ids, other = mine.top_ids[span], mine.top_logits[span].astype(np.float64)
    same = ids[:, :, None] == other_ids[:, None, :]
    found = np.take_along_axis(other, same.argmax(2), 1)
    error = np.where(same.any(2), np.abs(found - logits), np.maximum(logits - other[:, -1:], 0))
    surplus = np.where(same.any(1), 0, np.maximum(other - logits[:, -1:], 0))
    return float(max(error.max(), surplus.max()) / np.abs(logits).max())


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal shapes, dtypes and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _differences(stored: Any) -> tuple[tuple[str, str, str], ...]:
    here = arithmetic_record()
    names = sorted(here.keys() | stored.keys())
    return tuple(
        (name, stored.get(name, "not recorded"), here.get(name, "not recorded"))
        for name in names
        if stored.get(name) != here.get(name)
    )
