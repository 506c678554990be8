"""The command line: `kolibri-oracle`. Exit codes: 0 pass, 1 a gate fired or a checkpoint differs, 2 bad input, 3 incomplete."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NoReturn, ParamSpec

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from goldens import mini_checkpoint
from oracle.errors import DeviceFault, KolibriError, UsageError
from oracle.judge.gates import select
from oracle.judge.session import SessionOptions, judge_recorded, record_session
from oracle.judge.verdict import Report
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
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Worker processes. Default: all cores. Results do not depend on it.")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Run a subject on the golden's prompts, teacher-forced and free-running, and judge it by every gate."""
    if replay is not None and (device or arm or save_run_to):
        raise UsageError("--replay judges a stored run as it is; leave out --device, --arm and --save-run")
    folder = checkpoint or mini_checkpoint()
    _check_json(json_file, folder, golden, replay, save_run_to)
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
    )
    selected = select(options.only)
    with _progress("jobs") as advance:
        recorded = record_session(options, advance)
    if save_run_to is not None:
        save_run(recorded.run, save_run_to, control=recorded.perfect)
    report = judge_recorded(recorded, selected, partial=only is not None)
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
        typer.Option(help="JSON Lines: name, text or ids, new_tokens. Default: `prompts.jsonl` inside the checkpoint folder."),
    ] = None,
) -> None:
    """Run the reference over prompts and write a golden with its floors (needs the `reference` extra)."""
    from oracle.golden.format import write_golden
    from oracle.golden.recipe import read_prompts
    from oracle.kolibri1.checkpoint import Checkpoint

    try:
        from oracle.golden.make import make_golden
    except ImportError as error:
        raise UsageError(
            f"making goldens needs torch ({error}); install it with `pip install 'kolibri-oracle[reference]'`"
        ) from None
    check_new_folder(golden)
    folder = checkpoint or mini_checkpoint()
    specs = read_prompts(prompts or folder / "prompts.jsonl")
    opened = Checkpoint.open(folder)
    with _progress("golden") as advance:
        made, packed = make_golden(opened, specs, lambda what, done, of: advance(done, of, what))
    write_golden(golden, made, packed)
    print(f"wrote {golden}: {len(made.prompts)} prompts, {made.positions} positions, {made.digest}")


@golden_app.command("verify", epilog="Example: kolibri-oracle golden verify --golden new-golden")
@_interruptible
def golden_verify(golden: GoldenOption = None, checkpoint: CheckpointOption = None, json_file: JsonOption = None) -> None:
    """Check a golden against itself, its checkpoint and its tokenizer, by the `golden` gate and its controls."""
    folder = checkpoint or mini_checkpoint()
    _check_json(json_file, folder, golden)
    options = SessionOptions(checkpoint=folder, golden=golden or folder / "golden", subject="perfect", only="golden")
    with _progress("jobs") as advance:
        recorded = record_session(options, advance)
    report = judge_recorded(recorded, select("golden"), partial=False)
    _finish(report, json_file)


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


@app.command(epilog="Example: kolibri-oracle doctor --checkpoint kolibri1-fp8")
@_interruptible
def doctor(checkpoint: CheckpointOption = None, json_file: JsonOption = None) -> None:
    """Check a checkpoint's headers against its inventory, name all that differs, and print the environment."""
    from oracle.judge.environment import environment_record
    from oracle.kolibri1.audit import audit
    from oracle.report.doctor import print_doctor, summarize

    folder = checkpoint or mini_checkpoint()
    _check_json(json_file, folder)
    audited = audit(folder)
    summary = summarize(folder, audited, environment_record())
    print_doctor(_console(), summary)
    if json_file is not None:
        write_file(json_file, canonical_json(summary))
    raise typer.Exit(0 if audited.agrees else 1)


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
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(code)


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[..., None]]:
    """Yield `advance(done, of, what)`: a bar on standard error where that is a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def advance(done: int, of: int, description: str = what) -> None:
            progress.update(task, completed=done, total=of, description=description)

        yield advance
