"""What recomputing a golden found, prompt by prompt, and whether it holds. Needs no torch.

Asked of every prompt: the same chain, logits within 2e-6 of the largest one, and all other arrays near. Equal
bits are asked for only where the
environment is the one that made the golden: fp32 bits can change with libraries and processors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from oracle.environment import arithmetic_record
from oracle.golden.calibration import ROUTER_RESOLUTION
from oracle.golden.evidence import PromptEvidence

BOUND = 2e-6
"""Largest logit error over the largest logit. Two right fp32 implementations differ by 8e-7 to 1.2e-6 (facts, section 7)."""

VALUE_BOUND = 1e-5
"""Largest error of any other array over its largest value. Two fp32 arms differ by at most 2e-6 on the mini (router gaps)."""


@dataclass(frozen=True)
class Recomputed:
    """One prompt, stored against computed.

    Attributes:
        prompt: its name.
        positions: compared; 0 where the chains have parted.
        chain: how many leading generated ids agree, of `generated`.
        logit_error: largest difference of a stored logit, over the prompt's largest absolute logit.
        sets_differ: positions and layers with another expert set.
        sets_unexplained: those of them whose router gap, stored or computed, is no tie (`ROUTER_RESOLUTION`).
        off: names of the arrays that are more than `VALUE_BOUND` off before the first position whose expert sets differ.
        unequal: names of the arrays whose bits differ.
    """

    prompt: str
    positions: int
    chain: int
    generated: int
    logit_error: float
    sets_differ: int
    sets_unexplained: int
    off: tuple[str, ...]
    unequal: tuple[str, ...]


@dataclass(frozen=True)
class Recomputation:
    """All prompts of a golden.

    Attributes:
        environment: what differs from the record of the making, as (name, stored, here); empty where bits must be equal.
        prompts: in the golden's order.
        probes: whether the probe prompt's layer inputs have the stored bits.
        probes_near: whether they are within `VALUE_BOUND`; asked for where that prompt's expert sets agree.
    """

    environment: tuple[tuple[str, str, str], ...]
    prompts: tuple[Recomputed, ...]
    probes: bool
    probes_near: bool

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
            elif p.sets_unexplained:
                lines.append(f"{p.prompt}: {p.sets_unexplained} expert sets differ where the router's gap is no tie")
            elif p.off:
                lines.append(f"{p.prompt}: more than {VALUE_BOUND:.0e} of the largest value off: {', '.join(p.off)}")
            elif self.bits_required and p.unequal:
                lines.append(f"{p.prompt}: the environment is the same, but not the bits of {', '.join(p.unequal)}")
        if not self.probes_near:
            lines.append(f"the probe prompt's layer inputs are more than {VALUE_BOUND:.0e} of the largest value off")
        elif self.bits_required and not self.probes:
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
            "prompts": [asdict(p) | {"off": list(p.off), "unequal": list(p.unequal)} for p in self.prompts],
        }


def compare_recomputed(
    stored: PromptEvidence, computed: PromptEvidence, probes: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> Recomputed:
    """Measure one prompt up to and with the position where the chains part.

    Args:
        probes: full values at the prompt's probe positions by name, stored and computed.
    """
    chain = stored.generated
    agree = next((i for i, (a, b) in enumerate(zip(chain, computed.generated, strict=True)) if a != b), len(chain))
    span = slice(0, len(stored.prompt_ids) + agree)
    arrays = {name: (getattr(stored, name), getattr(computed, name)) for name in PromptEvidence.ARRAYS} | dict(probes)
    differ = (np.sort(computed.expert_ids[span], -1) != np.sort(stored.expert_ids[span], -1)).any(-1)
    apart = np.flatnonzero(differ.any(-1))
    before = slice(0, apart[0] if len(apart) else span.stop)
    values = {name: (getattr(stored, name)[before], getattr(computed, name)[before]) for name in _NEAR}
    values["expert_weights"] = (_weights_by_id(stored)[before], _weights_by_id(computed)[before])
    return Recomputed(
        prompt=stored.name,
        positions=len(stored.top_ids[span]),
        chain=agree,
        generated=len(chain),
        logit_error=_logit_error(stored, computed, span),
        sets_differ=int(differ.sum()),
        sets_unexplained=int((differ & (np.maximum(stored.router_gap, computed.router_gap)[span] > ROUTER_RESOLUTION)).sum()),
        off=tuple(name for name, (a, b) in (values | ({} if len(apart) else dict(probes))).items() if not near(a, b)),
        unequal=tuple(name for name, (a, b) in arrays.items() if not same_bits(a, b)),
    )


def environment_differences(stored: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """What differs between the record of the making and this environment: (name, stored, here)."""
    here = arithmetic_record()
    names = sorted(here.keys() | stored.keys())
    return tuple(
        (name, stored.get(name, "not recorded"), here.get(name, "not recorded"))
        for name in names
        if stored.get(name) != here.get(name)
    )


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal shapes, dtypes and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def near(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal shapes, and no difference above `VALUE_BOUND` of the largest value of `b`."""
    return a.shape == b.shape and bool((np.abs(a - b) <= VALUE_BOUND * np.abs(b).max(initial=0)).all())


_NEAR = ("logsumexp", "router_gap", "sketch")


def _weights_by_id(evidence: PromptEvidence) -> np.ndarray:
    return np.take_along_axis(evidence.expert_weights, evidence.expert_ids.argsort(-1), -1)


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
