"""The command line: `kolibri-oracle`. Exit codes: 0 pass, 1 what is judged differs, 2 bad input, 3 incomplete."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from oracle.commands.bench import bench
from oracle.commands.doctor import doctor
from oracle.commands.gate import gate
from oracle.commands.golden import golden_app
from oracle.commands.running import Interrupted
from oracle.errors import DeviceFault, KolibriError
from oracle.report.plain import escaped

app = typer.Typer(
    name="kolibri-oracle",
    help="Correctness oracle and golden gates for ports of Kolibri-1.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(epilog="Example: kolibri-oracle gate --subject tt --device sim --json verdict.json")(gate)
app.command(epilog="Example: kolibri-oracle bench --arm bf16 --arm bf16,drain=fill --json bench.json")(bench)
app.command(epilog="Example: kolibri-oracle doctor --plan --checkpoint kolibri1-fp8")(doctor)
app.add_typer(golden_app, name="golden")


def main() -> None:
    """Entry point of the console script: errors of input are one line on standard error and exit code 2."""
    try:
        app()
    except Interrupted:
        _fail("interrupted; nothing is half written", 130)
    except KolibriError as error:
        _fail(str(error), 2)
    except DeviceFault as fault:
        _fail(str(fault), 1)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {escaped(message)}", file=sys.stderr)
    raise SystemExit(code)
