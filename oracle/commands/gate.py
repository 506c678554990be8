"""`kolibri-oracle gate`: run a subject and judge it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from goldens import mini_checkpoint
from oracle.commands.options import CheckpointOption, GoldenOption, JsonOption
from oracle.commands.running import check_json, finish, interruptible, progress
from oracle.errors import UsageError
from oracle.judge.budget import STATE, Budget
from oracle.judge.flip_file import flip_document
from oracle.judge.gates import select
from oracle.judge.jobs import STEP_TIMEOUT
from oracle.judge.session import SessionOptions, finish_session, judge_recorded, localised, record_session
from oracle.serialization import check_new_folder, check_outside, write_file
from oracle.subjects.run import save_run


@interruptible
def gate(
    checkpoint: CheckpointOption = None,
    golden: GoldenOption = None,
    subject: Annotated[
        str, typer.Option(help="What to judge: tt, perfect, reference, transformers, or any installed one.")
    ] = "tt",
    device: Annotated[
        str | None,
        typer.Option(help="The subject's device. Default: its first, for tt `sim`; `sim:SCHEDULE` picks when it works."),
    ] = None,
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
        check_json(file, folder, golden, replay, save_run_to)
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
    with progress("jobs") as advance:
        recorded = record_session(options, advance)
    if save_run_to is not None:
        save_run(recorded.run, save_run_to, control=recorded.perfect)
    report = localised(options, judge_recorded(recorded, selected, partial=only is not None))
    if flips_file is not None:
        write_file(flips_file, flip_document(recorded.golden, report).to_json())
    finish_session(options, recorded)
    if parts is not None and recorded.run.left_out:
        print(f"unfinished; the same command with --resume goes on from {parts.state}", file=sys.stderr)
    finish(report, json_file)
