"""A gate session from its options to its report: run the subject and the controls as jobs, then judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path

from oracle.environment import environment_record
from oracle.errors import GoldenError, RunError
from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import Golden, load_golden
from oracle.judge.auditing import device_controls, session_plants
from oracle.judge.budget import Budget, run_within
from oracle.judge.capture_evidence import captures_of
from oracle.judge.gates import LEDGER, select
from oracle.judge.isolation import IsolationJob, isolate
from oracle.judge.jobs import FEW_PLANT_STEPS, PLANT_STEPS, STEP_TIMEOUT, PromptJob, PromptOutcome, run_jobs
from oracle.judge.priority import most_telling_first
from oracle.judge.repeat_evidence import repeats_of
from oracle.judge.unfinished_session import forget, unfinished_session
from oracle.judge.verdict import Report, judge_session, require_class
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.tokenizer import open_tokenizer, require_chat_template, tokenizer_available, transformers_available
from oracle.mapped_pages import give_back
from oracle.subjects.levels import levels_of, over_prompts
from oracle.subjects.ops import OpensOps, OpsEvidence, OpStatistics
from oracle.subjects.protocol import NumericClass, SubjectFactory, SubjectRequest
from oracle.subjects.registry import canonical_arm, check_request, is_exclusive, subject_factory
from oracle.subjects.repeats import Repeats
from oracle.subjects.run import Run, load_control, load_run

DEFAULT_SUBJECT = "tt"
PERFECT = "perfect"
Progress = Callable[[int, int], None]
"""Called as (jobs done, of)."""


@dataclass(frozen=True)
class SessionOptions:
    """What `kolibri-oracle gate` and the pytest plugin ask for.

    Attributes:
        replay: a stored run to judge in place of running `subject`.
        only: a glob over gate names, or None for all.
        prompts: names of the golden's prompts to run, the others left out, and the report partial; None for all.
        workers: processes; None for all cores.
        step_timeout: seconds after which a step that has not ended is a fault of its prompt.
        budget: run prompts by their worth, keep each outcome, and stop when the time is used up; None for all at once.
    """

    checkpoint: Path
    golden: Path
    subject: str = DEFAULT_SUBJECT
    device: str | None = None
    arm: str | None = None
    only: str | None = None
    replay: Path | None = None
    workers: int | None = None
    step_timeout: float = STEP_TIMEOUT
    budget: Budget | None = None
    prompts: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Opened:
    """What the options name, opened and found to belong together; `stored` is the run to replay, with its control run."""

    golden: Golden
    checkpoint: Checkpoint
    stored: Run | None = None
    control: Run | None = None


@dataclass(frozen=True)
class Recorded:
    """Everything a judgement needs, before judging.

    Attributes:
        run, perfect: the subject's run and the perfect subject's.
        controlled: both came through the same dumper.
        planted: how the faults planted in the subject's device were caught.
        replayed: `run` was stored: judged to the same document whatever is installed beside the oracle.
    """

    golden: Golden
    checkpoint: Checkpoint
    run: Run
    perfect: Run
    controlled: bool
    planted: tuple[tuple[PromptOutcome, str], ...]
    replayed: bool = False


def run_session(options: SessionOptions, progress: Progress | None = None) -> Report:
    """Record and judge.

    Raises:
        KolibriError: bad input (its kinds say which); nothing was written.
    """
    selected = select(options.only)
    recorded = record_session(options, progress)
    return localised(options, judge_recorded(recorded, selected, partial=options.only is not None))


def judge_recorded(recorded: Recorded, selected: Sequence[str], *, partial: bool) -> Report:
    """Judge what was recorded by the selected gates."""
    return judge_session(
        recorded.golden,
        recorded.checkpoint,
        recorded.run,
        recorded.perfect,
        selected=selected,
        device=device_controls(recorded.planted),
        controlled=recorded.controlled,
        texts=not recorded.replayed,
        partial=partial,
    )


def localised(options: SessionOptions, report: Report) -> Report:
    """The report, with each layer judged alone where it says that some layer may be off and the subject is there to ask."""
    if report.localisation is None or options.replay is not None:
        return report
    isolated = isolate(IsolationJob(options.subject, _request(options), options.golden, options.step_timeout))
    return replace(report, localisation=replace(report.localisation, isolated=isolated))


def open_session(options: SessionOptions) -> Opened:
    """Check and open everything the options name, without running anything.

    Raises:
        KolibriError: bad input; its kinds say which.
    """
    golden, checkpoint = load_golden(options.golden), Checkpoint.open(options.checkpoint)
    if golden.document.checkpoint_digest != checkpoint.digest():
        raise GoldenError(
            f"golden {options.golden} was made from another checkpoint ({golden.document.checkpoint_digest[:19]}..., "
            f"{options.checkpoint} is {checkpoint.digest()[:19]}...); pass the golden and the checkpoint that belong together"
        )
    _check_fit(options, golden, checkpoint)
    if options.replay is not None:
        stored = load_run(options.replay)
        if stored.golden_digest != golden.digest:
            raise RunError(
                f"run {options.replay} answers another golden ({stored.golden_digest[:19]}...); pass that one with --golden"
            )
        require_class(golden, stored.identity.numeric_class)
        return Opened(golden, checkpoint, stored, load_control(options.replay))
    request = SubjectRequest(options.checkpoint, None, options.device, canonical_arm(options.subject, options.arm))
    check_request(options.subject, subject_factory(options.subject), request)
    require_class(golden, _numeric_class(options))
    return Opened(golden, checkpoint)


def _check_fit(options: SessionOptions, golden: Golden, checkpoint: Checkpoint) -> None:
    """What of the golden only the checkpoint can tell: ids, shapes, its texts' tokenizer, its chats' template."""
    config = checkpoint.config
    texts = options.replay is None
    if texts and tokenizer_available() and any(prompt.text is not None for prompt in golden.prompts):
        open_tokenizer(checkpoint.folder)  # a missing file is an error, never a text that was not compared
    if texts and transformers_available() and any(prompt.messages is not None for prompt in golden.document.recipe.prompts):
        require_chat_template(checkpoint.folder)
    for prompt in golden.prompts:
        ids = max(int(prompt.top_ids.max()), *prompt.prompt_ids, *prompt.generated)
        if ids >= config.vocab_size or min(prompt.prompt_ids + prompt.generated) < 0:
            raise GoldenError(
                f"golden {options.golden}, prompt {prompt.name}: id outside the vocabulary of {config.vocab_size}"
            )
        shape = prompt.expert_ids.shape[1:]
        if shape != (config.num_hidden_layers, config.num_experts_per_tok) or prompt.expert_ids.max() >= config.num_experts:
            raise GoldenError(f"golden {options.golden}, prompt {prompt.name}: its experts are not those of the checkpoint")
        give_back(vars(prompt).values())


def record_session(options: SessionOptions, progress: Progress | None = None) -> Recorded:
    """Run the subject (or read a stored run), the perfect subject and the subject's planted faults."""
    opened = open_session(options)
    if opened.stored is None and is_exclusive(options.subject, options.device):
        options = replace(options, workers=1)
    if options.budget is not None:
        return _record_within(options.budget, options, opened, progress)
    golden, stored = opened.golden, opened.stored
    own_jobs, plant_jobs = ([], []) if stored is not None else _subject_jobs(options, golden)
    numeric_class = stored.identity.numeric_class if stored is not None else _numeric_class(options)
    asked = golden.prompts if stored is not None else _asked(options, golden) or golden.prompts[:1]
    perfect_jobs = [] if opened.control is not None else _perfect_jobs(options, numeric_class, [p.name for p in asked])
    jobs = [*own_jobs, *(job for job, _ in plant_jobs), *perfect_jobs]
    outcomes = run_jobs(jobs, options.workers, None if progress is None else lambda done: progress(done, len(jobs)))
    own, rest = outcomes[: len(own_jobs)], outcomes[len(own_jobs) :]
    planted = tuple((outcome, expected) for outcome, (_, expected) in zip(rest, plant_jobs, strict=False))
    run = stored if stored is not None else _to_run(golden, own)
    perfect = opened.control or _to_run(golden, rest[len(plant_jobs) :])
    controlled = stored is None or opened.control is not None
    return Recorded(golden, opened.checkpoint, run, perfect, controlled, planted, stored is not None)


def _record_within(budget: Budget, options: SessionOptions, opened: Opened, progress: Progress | None = None) -> Recorded:
    """Run as many of the subject's prompts as the budget allows, and the perfect subject on the same ones."""
    golden = opened.golden
    own, plants = _subject_jobs(options, golden)
    order = {prompt.name: place for place, prompt in enumerate(most_telling_first(golden.prompts))}
    prompts = sorted((job for job in own if job.answers), key=lambda job: order[job.prompt])
    planted = [*(job for job in own if not job.answers), *(job for job, _ in plants)]
    total = len(planted) + 2 * len(prompts)
    told = progress or (lambda done, of: None)
    with unfinished_session(budget.state, golden, own[0], resume=budget.resume) as kept:
        outcomes = run_within(budget.minutes, kept, planted, prompts, options.workers, lambda done: told(done, total))
    by_job = {outcome.job: outcome for outcome in outcomes}
    ran = [by_job[job] for job in own if job in by_job]
    answered = [outcome.job.prompt for outcome in ran if outcome.job.answers] or [golden.prompts[0].name]
    perfect_jobs = _perfect_jobs(options, _numeric_class(options), answered)
    perfect = run_jobs(perfect_jobs, options.workers, lambda done: told(len(outcomes) + done, len(outcomes) + len(ran)))
    return Recorded(
        golden,
        opened.checkpoint,
        _to_run(golden, ran),
        _to_run(golden, perfect),
        controlled=True,
        planted=tuple((by_job[job], expected) for job, expected in plants),
    )


def finish_session(options: SessionOptions, recorded: Recorded) -> None:
    """After judging: an unfinished session of which nothing is left out is forgotten."""
    if options.budget is not None and not recorded.run.left_out:
        forget(options.budget.state)


def _perfect_jobs(options: SessionOptions, numeric_class: str, prompts: Sequence[str]) -> list[PromptJob]:
    request = SubjectRequest(options.checkpoint, options.golden, arm=numeric_class)
    return [PromptJob(PERFECT, request, options.golden, name, options.step_timeout) for name in prompts]


def _numeric_class(options: SessionOptions) -> NumericClass:
    factory = subject_factory(options.subject)
    return factory.arms[canonical_arm(options.subject, options.arm) or next(iter(factory.arms))]


def _subject_jobs(options: SessionOptions, golden: Golden) -> tuple[list[PromptJob], list[tuple[PromptJob, str]]]:
    """The subject's own work, its planted faults with their answers.

    Its device's ops come first, where it opens it for them; then its prompts, longest first so that cores finish together.
    """
    factory = subject_factory(options.subject)
    request = _request(options)
    by_length = sorted(golden.prompts, key=lambda p: (-len(p.fed), p.name))
    asked = {prompt.name for prompt in _asked(options, golden)}
    own = [PromptJob(options.subject, request, options.golden, p.name, options.step_timeout) for p in by_length]
    ops = [replace(own[0], ops=True)] if isinstance(factory, OpensOps) else []
    repeats = _repeat_jobs(own[0], factory, golden) if asked else []
    own = [*ops, *repeats, *(job for job in own if job.prompt in asked)]
    enough = [p for p in golden.prompts if len(p.fed) >= PLANT_STEPS] or [by_length[0]]
    first = PromptJob(options.subject, request, options.golden, enough[0].name, options.step_timeout)
    soon = {"gate:operands": FEW_PLANT_STEPS, "gate:census": FEW_PLANT_STEPS}
    planted = [
        (
            replace(
                first,
                request=replace(request, plant=plant),
                ops=expected == "gate:ops",
                plant_steps=soon.get(expected, PLANT_STEPS),
            ),
            expected,
        )
        for plant, expected in session_plants(factory.plants).items()
        if asked or expected == "gate:ops"
    ]
    return own, planted


def _repeat_jobs(job: PromptJob, factory: SubjectFactory, golden: Golden) -> list[PromptJob]:
    """The beginning of the most telling prompt, which every session runs, under each variant of the subject."""
    variants = sorted(factory.variants) if isinstance(factory, Repeats) else []
    prompt = most_telling_first(golden.prompts)[0].name
    return [replace(job, prompt=prompt, request=replace(job.request, variant=name)) for name in variants]


def _asked(options: SessionOptions, golden: Golden) -> Sequence[PromptEvidence]:
    """The prompts to run: none where only gate `ops` is wanted, which needs no model, so that it can come first on a card."""
    named = [p for p in golden.prompts if options.prompts is None or p.name in options.prompts]
    ops_alone = options.only is not None and set(select(options.only)) <= {"ops", LEDGER}
    return () if ops_alone and isinstance(subject_factory(options.subject), OpensOps) else named


def _request(options: SessionOptions) -> SubjectRequest:
    golden = options.golden if options.subject == PERFECT else None
    return SubjectRequest(options.checkpoint, golden, options.device, canonical_arm(options.subject, options.arm))


def _to_run(golden: Golden, outcomes: Sequence[PromptOutcome]) -> Run:
    """Merge outcomes in the golden's order of prompts."""
    factory = subject_factory(outcomes[0].job.subject)
    by_name = {outcome.job.prompt: outcome for outcome in outcomes if outcome.job.answers}
    ordered = [by_name[p.name] for p in golden.prompts if p.name in by_name]
    slots = [outcome.slots for outcome in ordered if outcome.slots is not None]
    residents = [outcome.residents for outcome in ordered if outcome.residents is not None]
    operands = [outcome.operands for outcome in ordered if outcome.operands is not None]
    census = [outcome.census for outcome in ordered if outcome.census is not None]
    stats = over_prompts((o.stats for o in ordered), levels_of(factory))
    return Run(
        # What a subject said of itself; one that hung or died before it spoke is only assumed to be what was asked for.
        identity=next((o.identity for o in ordered if o.run is not None), outcomes[0].identity),
        golden_digest=golden.digest,
        prompts={o.job.prompt: o.run for o in ordered if o.run is not None},
        faults={o.job.prompt: str(o.fault) for o in ordered if o.fault is not None},
        slots=reduce(add, slots) if slots else None,
        residents=reduce(add, residents) if residents else None,
        operands=reduce(add, operands) if operands else None,
        census=reduce(add, census) if census else None,
        ops=next((_ops_of(outcome) for outcome in outcomes if outcome.job.ops), None),
        repeats=repeats_of(factory, outcomes, stats),
        captures=captures_of(factory, outcomes),
        stats=stats,
        environment=environment_record(),
        left_out=tuple(p.name for p in golden.prompts if p.name not in by_name),
    )


def _ops_of(outcome: PromptOutcome) -> OpsEvidence:
    """What was measured of the ops; a device that did not open, or hung, is a fault of them all."""
    if outcome.ops is not None and outcome.fault is None:
        return outcome.ops
    return OpsEvidence((OpStatistics("the device", "none", fault=str(outcome.fault)),))
