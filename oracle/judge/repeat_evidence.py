"""The evidence of gate `determinism`, put together from the jobs of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oracle.judge.jobs import PromptOutcome
from oracle.subjects.protocol import SubjectFactory
from oracle.subjects.repeats import RepeatEvidence, Repeats, effects_of


def repeats_of(factory: SubjectFactory, outcomes: Sequence[PromptOutcome], stats: Mapping[str, int]) -> RepeatEvidence | None:
    """All repeats, by variant, and whether the arm took effect; None where the subject declares no variants.

    Args:
        outcomes: of its own work; none with a fault planted in it.
        stats: of its prompts together.
    """
    repeated = [outcome for outcome in outcomes if outcome.job.request.variant is not None]
    if not repeated:
        return None
    planned = tuple(sorted(factory.variants)) if isinstance(factory, Repeats) else ()
    repeats = sorted((o.repeat for o in repeated if o.repeat is not None), key=lambda repeat: repeat.variant)
    arm = repeated[0].job.request.arm or next(iter(factory.arms))
    answered = any(outcome.run is not None for outcome in outcomes)
    effects = effects_of(factory, arm, stats) if answered else ()
    return RepeatEvidence(repeated[0].job.prompt, planned, tuple(repeats), effects)
