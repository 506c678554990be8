"""What every command does around its work: progress, Ctrl-C, results that are checked before and written after."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec

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

from oracle.errors import UsageError
from oracle.judge.verdict import Report
from oracle.report.terminal import print_report
from oracle.serialization import canonical_json, check_outside, check_writable, write_file


class Interrupted(Exception):  # noqa: N818 - no error: the user's Ctrl-C, kept from typer, which would exit with 1
    """Ctrl-C during long work."""


P = ParamSpec("P")


def interruptible(command: Callable[P, None]) -> Callable[P, None]:
    """Answer Ctrl-C with one line and exit code 130, wherever in the command it comes."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            raise Interrupted from None

    return wrapped


@contextlib.contextmanager
def needs_reference(what: str) -> Iterator[None]:
    """Imports of the `reference` extra; the one message where it is missing."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{what} needs torch ({error}); install it with `pip install 'kolibri-oracle[reference]'`") from None


def check_json(json_file: Path | None, *read: Path | None) -> None:
    """Before anything costly runs: the result can be written, and replaces nothing that it is computed from."""
    if json_file is not None:
        check_writable(json_file)
        check_outside(json_file, *read)


def finish(report: Report, json_file: Path | None) -> None:
    """Print a report, write its JSON, and exit with its code."""
    print_report(console(), report)
    if json_file is not None:
        write_file(json_file, canonical_json(report.to_json()))
    raise typer.Exit(report.exit_code)


def console() -> Console:
    """Standard output; in a log, where nothing tells the width, wide enough for the flip table."""
    return Console(width=None if sys.stdout.isatty() else 120)


class _SpeedColumn(ProgressColumn):
    """How many of something per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f} {self._unit}/s", style="progress.data.speed")


@contextlib.contextmanager
def progress(what: str, unit: str | None = None) -> Iterator[Callable[..., None]]:
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
