"""`kolibri-oracle bench`: what a decode step costs, by modelled time, wall time and counts, of one arm or several in turn."""

from __future__ import annotations

from typing import Annotated

import typer

from goldens import mini_checkpoint
from oracle.bench.session import BenchOptions, run_bench
from oracle.commands.options import CheckpointOption, GoldenOption, JsonOption
from oracle.commands.running import check_json, console, interruptible, progress
from oracle.errors import UsageError
from oracle.report.bench import print_bench
from oracle.serialization import write_file


@interruptible
def bench(
    checkpoint: CheckpointOption = None,
    golden: GoldenOption = None,
    subject: Annotated[str, typer.Option(help="What to measure: any installed subject.")] = BenchOptions.subject,
    device: Annotated[str | None, typer.Option(help="The subject's device. Default: its first, for tt `sim`.")] = None,
    arm: Annotated[
        list[str] | None, typer.Option(help="An arm; give it again for more, which then run in turn. Default: its first.")
    ] = None,
    prompt_ids: Annotated[int, typer.Option(min=1, help="Ids of the prompt, walked one by one.")] = BenchOptions.prompt_ids,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps after the prompt.")] = BenchOptions.steps,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each arm; from 2 on they are compared.")] = BenchOptions.runs,
    json_file: JsonOption = None,
) -> None:
    """Measure prefill and decode: modelled device time and where it goes, wall time, counts, chain digest.

    Exit code 1 where runs of one arm differ in chain, logits, counts or modelled time, or arms that must compute the same
    do not, or where an arm's own counters never moved, so that another one was measured. No time is judged.
    """
    folder = checkpoint or mini_checkpoint()
    check_json(json_file, folder, golden)
    if golden is not None and not golden.is_dir():  # other ids would be measured than were asked for
        raise UsageError(f"{golden} is no golden: it is not a folder; name one with golden.json, or leave --golden out")
    options = BenchOptions(
        checkpoint=folder,
        golden=golden or folder / "golden",
        subject=subject,
        device=device,
        arms=tuple(arm or ()),
        prompt_ids=prompt_ids,
        steps=steps,
        runs=runs,
    )
    with progress("bench", "steps") as advance:
        document = run_bench(options, advance)
    print_bench(console(), document)
    if json_file is not None:
        write_file(json_file, document.to_json())
    raise typer.Exit(0 if document.verdict == "pass" else 1)
