"""A session within a budget of time: the most telling prompts first, each outcome kept as soon as it is there.

Planted faults come before all prompts, since no verdict can be believed without them. When the time is used up no prompt
is started any more; those that run are finished, so that no device time is thrown away: a session may last longer by the
longest prompt, and each step of that has its own limit (`--step-timeout`). At least one prompt is run, so that every
resumed session comes nearer to the end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path

from oracle.judge.jobs import Done, PromptJob, PromptOutcome, finished_jobs
from oracle.judge.unfinished_session import UnfinishedSession

STATE = Path("kolibri-gate.unfinished")
"""Where an unfinished session is kept unless another folder is named."""


@dataclass(frozen=True)
class Budget:
    """How much of a session is to be run now.

    Attributes:
        minutes: after which no prompt is started; None for all prompts.
        resume: go on with the unfinished session in `state`.
        state: the folder it is kept in.
    """

    minutes: float | None = None
    resume: bool = False
    state: Path = STATE


def run_within(
    minutes: float | None,
    kept: UnfinishedSession,
    planted: Sequence[PromptJob],
    own: Sequence[PromptJob],
    workers: int | None = None,
    done: Done | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[PromptOutcome]:
    """The outcomes of all planted faults and of as many prompts as the time allows, kept ones included.

    Args:
        own: the subject's prompts, the most telling first.
        done: told how many of both have an outcome.

    Raises:
        RunError: a kept outcome is damaged.
        SubjectError, CheckpointError: a subject could not be opened.
    """
    outcomes = [outcome for job in (*planted, *own) if (outcome := kept.get(job)) is not None]
    found = {outcome.job for outcome in outcomes}
    plants, prompts = ([job for job in jobs if job not in found] for jobs in (planted, own))
    end = None if minutes is None else clock() + 60 * minutes
    in_time = takewhile(lambda _: end is None or clock() < end, prompts[1:])
    with contextlib.closing(finished_jobs(chain(plants, prompts[:1], in_time), workers)) as finished:
        for _, outcome in finished:
            kept.put(outcome)
            outcomes.append(outcome)
            if done is not None:
                done(len(outcomes))
    return outcomes
