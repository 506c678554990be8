"""The evidence of gate `capture`, put together from the jobs of a session."""

from __future__ import annotations

from collections.abc import Sequence

from oracle.judge.jobs import PromptOutcome
from oracle.subjects.captures import CaptureEvidence, Captures, merged


def captures_of(factory: object, outcomes: Sequence[PromptOutcome]) -> CaptureEvidence | None:
    """The captured regions of a subject's prompts and repeats; None of one that cannot capture, or without any repeat.

    Args:
        outcomes: of its own work; none with a fault planted in it.
    """
    repeated = {outcome.job.request.variant: outcome for outcome in outcomes if outcome.job.request.variant is not None}
    if not repeated or not isinstance(factory, Captures):
        return None
    replayed, enqueued = factory.dispatch_variants
    executions = {name: sum(region.replays for region in outcome.captures) for name, outcome in repeated.items()}
    return CaptureEvidence(
        next(iter(repeated.values())).job.prompt,
        replayed,
        enqueued,
        (executions.get(replayed, 0), executions.get(enqueued, 0)),
        merged(region for outcome in outcomes for region in outcome.captures),
    )
