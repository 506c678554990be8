"""The command line: `kolibri-oracle`. Exit codes: 0 pass, 1 a gate fired or a checkpoint differs, 2 bad input, 3 incomplete."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NoReturn, ParamSpec

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from goldens import mini_checkpoint
from oracle.errors import DeviceFault, KolibriError, UsageError
from oracle.judge.budget import STATE, Budget
from oracle.judge.flip_file import flip_document
from oracle.judge.gates import select
from oracle.judge.jobs import STEP_TIMEOUT
from oracle.judge.session import SessionOptions, finish_session, judge_recorded, localised, record_session
from oracle.judge.verdict import Report
from oracle.report.plain import escaped
from oracle.report.terminal import print_report
from oracle.serialization import canonical_json, check_new_folder, check_outside, check_writable, write_file
from oracle.subjects.run import save_run

app = typer.Typer(
    name="kolibri-oracle",
    help="Correctness oracle and golden gates for ports of Kolibri-1.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
golden_app = typer.Typer(help="Make, verify and show goldens.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(golden_app, name="golden")


class _Interrupted(Exception):  # noqa: N818 - no error: the user's Ctrl-C, kept from typer, which would exit with 1
    """Ctrl-C during long work."""


P = ParamSpec("P")


def _interruptible(command: Callable[P, None]) -> Callable[P, None]:
    """Answer Ctrl-C with one line and exit code 130, wherever in the command it comes."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            raise _Interrupted from None

    return wrapped


CheckpointOption = Annotated[Path | None, typer.Option(help="Checkpoint folder. Default: the shipped mini checkpoint.")]
GoldenOption = Annotated[Path | None, typer.Option(help="Golden folder. Default: `golden` inside the checkpoint folder.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Also write the result to this JSON file.")]


@app.command(epilog="Example: kolibri-oracle gate --subject tt --device sim --json verdict.json")
@_interruptible
def gate(
    checkpoint: CheckpointOption = None,
    golden: GoldenOption = None,
    subject: Annotated[
        str, typer.Option(help="What to judge: tt, perfect, reference, transformers, or any installed one.")
    ] = "tt",
    device: Annotated[str | None, typer.Option(help="The subject's device. Default: its first, for tt `sim`.")] = None,
    arm: Annotated[str | None, typer.Option(help="Setting of the subject's levers. Default: its first.")] = None,
    only: Annotated[
        str | None, typer.Option(help="Judge only gates whose name matches this glob; the ledger always runs.")
    ] = None,
    save_run_to: Annotated[
        Path | None, typer.Option("--save-run", help="Store what the subject showed in this new folder.")
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Judge a stored run; no subject and no device is opened.")] = None,
    flips_file: Annotated[Path | None, typer.Option("--flips", help="Also write the flip records to this JSON file.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Worker processes. Default: all cores. Results do not depend on it.")
    ] = None,
    step_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which a step that has not ended is a fault of its prompt.")
    ] = STEP_TIMEOUT,
    budget: Annotated[
        float | None,
        typer.Option(min=0, help="Minutes after which no prompt is started. The most telling come first; each is kept."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished session in the --state folder.")] = False,
    state: Annotated[Path | None, typer.Option(help=f"Folder of the unfinished session of --budget. Default: {STATE}.")] = None,
    json_file: JsonOption = None,
) -> None:
    """Run a subject on the golden's prompts, teacher-forced and free-running, and judge it by every gate."""
    if replay is not None and (device or arm or save_run_to):
        raise UsageError("--replay judges a stored run as it is; leave out --device, --arm and --save-run")
    if replay is not None and (budget is not None or resume):
        raise UsageError("--replay judges a stored run as it is; leave out --budget and --resume")
    if state is not None and budget is None and not resume:
        raise UsageError("--state names the folder of a session with --budget or --resume; add one of them")
    folder = checkpoint or mini_checkpoint()
    for file in (json_file, flips_file):
        _check_json(file, folder, golden, replay, save_run_to)
    if flips_file is not None and json_file is not None and flips_file.absolute() == json_file.absolute():
        raise UsageError(f"--flips and --json both name {flips_file}; name two files")
    parts = None if budget is None and not resume else Budget(budget, resume, state or STATE)
    if parts is not None:
        check_outside(parts.state, folder, golden)
    if save_run_to is not None:
        check_new_folder(save_run_to)
        check_outside(save_run_to, folder, golden, replay)
    options = SessionOptions(
        checkpoint=folder,
        golden=golden or folder / "golden",
        subject=subject,
        device=device,
        arm=arm,
        only=only,
        replay=replay,
        workers=jobs,
        step_timeout=step_timeout,
        budget=parts,
    )
    selected = select(options.only)
    with _progress("jobs") as advance:
        recorded = record_session(options, advance)
    if save_run_to is not None:
        save_run(recorded.run, save_run_to, control=recorded.perfect)
    report = localised(options, judge_recorded(recorded, selected, partial=only is not None))
    if flips_file is not None:
        write_file(flips_file, flip_document(recorded.golden, report).to_json())
    finish_session(options, recorded)
    if parts is not None and recorded.run.left_out:
        print(f"unfinished; the same command with --resume goes on from {parts.state}", file=sys.stderr)
    _finish(report, json_file)


@golden_app.command("make", epilog="Example: kolibri-oracle golden make --prompts prompts.jsonl --golden new-golden")
@_interruptible
def golden_make(
    golden: Annotated[Path, typer.Option(help="The new folder to write. An existing one is never touched.")] = Path(
        "kolibri1-golden"
    ),
    checkpoint: CheckpointOption = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSON Lines file of prompts (see above). Default: `prompts.jsonl` inside the checkpoint folder."),
    ] = None,
    arm: Annotated[str, typer.Option(help="The reference's arm that is the truth; the golden names it.")] = "float32",
    stop_at_eos: Annotated[
        bool,
        typer.Option("--stop-at-eos", help="End each chain with the first of the checkpoint's eos ids. Default: go on."),
    ] = False,
) -> None:
    """Run the reference over prompts and write a golden with its floors (needs the `reference` extra).

    Each line of the prompts file is one object with `name`, `new_tokens` and exactly one of

    - `text`: tokenized by the checkpoint's tokenizer, no BOS and nothing else added;

    - `messages`: a list of `role` and `content`, rendered by the checkpoint's chat template, with an optional
    `reasoning_effort` (none, minimal, low, medium, high, xhigh, max);

    - `ids`: fed as they are.

    Each prompt's result is kept in a folder beside the golden until that is whole: after a kill, the same command goes on.
    """
    from oracle.golden.format import write_golden
    from oracle.golden.recipe import read_prompts
    from oracle.golden.unfinished import unfinished
    from oracle.kolibri1.arms import arm_named
    from oracle.kolibri1.checkpoint import Checkpoint

    with _needs_reference("making goldens"):
        from oracle.golden.make import make_golden, plan
    check_new_folder(golden)
    folder = checkpoint or mini_checkpoint()
    specs = read_prompts(prompts or folder / "prompts.jsonl")
    job = plan(Checkpoint.open(folder), specs, arm_named(arm), stop_at_eos=stop_at_eos)
    with unfinished(golden, job.digests()) as work, _progress("golden", "tokens") as advance:
        if work.found:
            print(f"going on from {work.found} results of an unfinished run", file=sys.stderr)
        made, packed = make_golden(job, work, lambda what, done, of: advance(done, of, what))
        write_golden(golden, made, packed)
    print(f"wrote {golden}: {len(made.prompts)} prompts, {made.positions} positions, {made.digest}")


@golden_app.command("verify", epilog="Example: kolibri-oracle golden verify --golden new-golden")
@_interruptible
def golden_verify(
    golden: GoldenOption = None,
    checkpoint: CheckpointOption = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute every value anew by the golden's arm (needs the `reference` extra).")
    ] = False,
    json_file: JsonOption = None,
) -> None:
    """Check a golden against itself, its checkpoint and its tokenizer, by the `golden` gate and its controls.

    With --recompute also against the reference: equal chains, logits within 2e-6, and equal bits where the environment is
    the one that made the golden.
    """
    folder = checkpoint or mini_checkpoint()
    _check_json(json_file, folder, golden)
    options = SessionOptions(checkpoint=folder, golden=golden or folder / "golden", subject="perfect", only="golden")
    with _progress("jobs") as advance:
        recorded = record_session(options, advance)
    report = judge_recorded(recorded, select("golden"), partial=False)
    if not recompute:
        _finish(report, json_file)
    print_report(_console(), report)
    _recompute(options.golden, options.checkpoint, report, json_file)


@golden_app.command("show", epilog="Example: kolibri-oracle golden show --golden new-golden")
@_interruptible
def golden_show(golden: GoldenOption = None, checkpoint: CheckpointOption = None, json_file: JsonOption = None) -> None:
    """Print a golden's prompts, margins and floors."""
    from oracle.golden.format import load_golden
    from oracle.report.golden_summary import print_golden, summarize

    folder = checkpoint or mini_checkpoint()
    _check_json(json_file, folder, golden)
    summary = summarize(load_golden(golden or folder / "golden"))
    print_golden(_console(), summary)
    if json_file is not None:
        write_file(json_file, canonical_json(summary))


@golden_app.command("diff", epilog="Example: kolibri-oracle golden diff goldens/golden new-golden --json diff.json")
@_interruptible
def golden_diff(
    old: Annotated[Path, typer.Argument(help="The golden that is in place.")],
    new: Annotated[Path, typer.Argument(help="The golden that would replace it.")],
    json_file: JsonOption = None,
) -> None:
    """Show what moved from OLD to NEW, per prompt and position, against OLD's own floors. Exit code 0 same, 1 different."""
    from oracle.golden.diff import diff_goldens
    from oracle.golden.format import load_golden
    from oracle.report.golden_diff import print_golden_diff

    _check_json(json_file, old, new)
    diff = diff_goldens(load_golden(old), load_golden(new))
    print_golden_diff(_console(), diff)
    if json_file is not None:
        write_file(json_file, canonical_json(diff.to_json()))
    raise typer.Exit(0 if diff.same else 1)


@golden_app.command("accept", epilog="Example: kolibri-oracle golden accept new-golden --reason 'numpy sums in another order'")
@_interruptible
def golden_accept(
    new: Annotated[Path, typer.Argument(help="The new golden, as `golden make` wrote it; it stays as it is.")],
    reason: Annotated[str, typer.Option(help="What moved the golden, and why that is right; kept in its history.")],
    golden: GoldenOption = None,
    checkpoint: CheckpointOption = None,
    digest: Annotated[
        str | None, typer.Option(help="The new golden's digest, or 12 digits of it; needed where no terminal can ask.")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Put a new golden in the place of --golden, once it passes its own gate and you have seen what moved.

    Refused in CI, within a test run, without a reason, and for a golden that is the same, of another checkpoint, or made of
    fewer or shorter prompts or classes.
    """
    from oracle.exchange import locked_folder
    from oracle.golden import accept
    from oracle.golden.diff import diff_goldens
    from oracle.golden.format import load_golden
    from oracle.report.golden_diff import print_golden_diff

    accept.check_by_a_person(os.environ)
    said = accept.check_reason(reason)
    folder = checkpoint or mini_checkpoint()
    place = (golden or folder / "golden").resolve()
    accept.check_folders(place, new)
    _check_json(json_file, folder, place, new)
    options = SessionOptions(checkpoint=folder, golden=new, subject="perfect", only="golden")
    with locked_folder(place):
        former, successor = load_golden(place), load_golden(new)
        diff = diff_goldens(former, successor)
        accept.check_successor(former, successor, diff)
        if digest is not None:
            accept.check_digest(digest, successor)
        elif not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError(f"no terminal can ask; review it by `golden diff`, then pass --digest {successor.digest}")
        with _progress("jobs") as advance:
            report = judge_recorded(record_session(options, advance), select("golden"), partial=False)
        if report.exit_code:
            print_report(_console(), report)
            raise typer.Exit(report.exit_code)
        print_golden_diff(_console(), diff)
        if digest is None and not typer.confirm(f"Replace {place}?"):
            raise UsageError(f"not confirmed; {place} is as it was")
        placed = accept.accept(place, former, new, successor, headline=diff.line, reason=said)
    print(f"accepted into {place}: {placed.digest}, in the place of {former.digest}")
    if json_file is not None:
        document = {"schema": "kolibri-golden-accept/1", "digest": placed.digest, "reason": said, "diff": diff.to_json()}
        write_file(json_file, canonical_json(document))


@app.command(epilog="Example: kolibri-oracle doctor --checkpoint kolibri1-fp8")
@_interruptible
def doctor(checkpoint: CheckpointOption = None, json_file: JsonOption = None) -> None:
    """Check a checkpoint's headers against its inventory, name all that differs, and print the environment and its devices."""
    from oracle.accelerator import levels
    from oracle.environment import environment_record
    from oracle.kolibri1.audit import audit
    from oracle.report.doctor import print_doctor, summarize

    folder = checkpoint or mini_checkpoint()
    _check_json(json_file, folder)
    audited = audit(folder)
    summary = summarize(folder, audited, environment_record(), levels())
    print_doctor(_console(), summary)
    if json_file is not None:
        write_file(json_file, canonical_json(summary))
    raise typer.Exit(0 if audited.agrees else 1)


def _recompute(golden: Path, checkpoint: Path, report: Report, json_file: Path | None) -> NoReturn:
    """Compute a golden anew, print what differs, and exit with the worse of both codes."""
    from oracle.golden.format import load_golden
    from oracle.kolibri1.checkpoint import Checkpoint
    from oracle.report.recomputed import print_recomputed

    with _needs_reference("recomputing a golden"):
        from oracle.golden.recompute import recompute
    with _progress("recompute", "tokens") as advance:
        result = recompute(load_golden(golden), Checkpoint.open(checkpoint), lambda done, of: advance(done, of))
    print_recomputed(_console(), result)
    if json_file is not None:
        write_file(json_file, canonical_json(report.to_json() | {"recomputed": result.to_json()}))
    raise typer.Exit(report.exit_code or (0 if result.passed else 1))


@contextlib.contextmanager
def _needs_reference(what: str) -> Iterator[None]:
    """Imports of the `reference` extra; the one message where it is missing."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{what} needs torch ({error}); install it with `pip install 'kolibri-oracle[reference]'`") from None


def _check_json(json_file: Path | None, *read: Path | None) -> None:
    """Before anything costly runs: the result can be written, and replaces nothing that it is computed from."""
    if json_file is not None:
        check_writable(json_file)
        check_outside(json_file, *read)


def _finish(report: Report, json_file: Path | None) -> None:
    """Print a report, write its JSON, and exit with its code."""
    print_report(_console(), report)
    if json_file is not None:
        write_file(json_file, canonical_json(report.to_json()))
    raise typer.Exit(report.exit_code)


def _console() -> Console:
    """Standard output; in a log, where nothing tells the width, wide enough for the flip table."""
    return Console(width=None if sys.stdout.isatty() else 120)


def main() -> None:
    """Entry point of the console script: errors of input are one line on standard error and exit code 2."""
    try:
        app()
    except _Interrupted:
        _fail("interrupted; nothing is half written", 130)
    except KolibriError as error:
        _fail(str(error), 2)
    except DeviceFault as fault:
        _fail(str(fault), 1)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {escaped(message)}", file=sys.stderr)
    raise SystemExit(code)


class _SpeedColumn(ProgressColumn):
    """How many of something per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f} {self._unit}/s", style="progress.data.speed")


@contextlib.contextmanager
def _progress(what: str, unit: str | None = None) -> Iterator[Callable[..., None]]:
    """Yield `advance(done, of, what)`: a bar on standard error where that is a terminal, nothing elsewhere.

    With a unit it shows speed too.
    """
    console = Console(stderr=True)
    speed = () if unit is None else (_SpeedColumn(unit),)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *speed,
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def advance(done: int, of: int, description: str = what) -> None:
            progress.update(task, completed=done, total=of, description=description)

        yield advance
