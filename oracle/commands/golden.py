"""`kolibri-oracle golden`: make, verify, show, compare and accept goldens."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from goldens import mini_checkpoint
from oracle.commands.options import CheckpointOption, GoldenOption, JsonOption
from oracle.commands.running import check_json, console, finish, interruptible, needs_reference, progress
from oracle.errors import UsageError
from oracle.judge.gates import select
from oracle.judge.session import SessionOptions, judge_recorded, record_session
from oracle.judge.verdict import Report
from oracle.report.terminal import print_report
from oracle.serialization import canonical_json, check_new_folder, write_file

golden_app = typer.Typer(help="Make, verify and show goldens.", no_args_is_help=True, rich_markup_mode=None)


@golden_app.command("make", epilog="Example: kolibri-oracle golden make --prompts prompts.jsonl --golden new-golden")
@interruptible
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

    with needs_reference("making goldens"):
        from oracle.golden.make import make_golden, plan
    check_new_folder(golden)
    folder = checkpoint or mini_checkpoint()
    specs = read_prompts(prompts or folder / "prompts.jsonl")
    job = plan(Checkpoint.open(folder), specs, arm_named(arm), stop_at_eos=stop_at_eos)
    with unfinished(golden, job.digests()) as work, progress("golden", "tokens") as advance:
        if work.found:
            print(f"going on from {work.found} results of an unfinished run", file=sys.stderr)
        made, packed = make_golden(job, work, lambda what, done, of: advance(done, of, what))
        write_golden(golden, made, packed)
    print(f"wrote {golden}: {len(made.prompts)} prompts, {made.positions} positions, {made.digest}")


@golden_app.command("verify", epilog="Example: kolibri-oracle golden verify --golden new-golden")
@interruptible
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
    check_json(json_file, folder, golden)
    options = SessionOptions(checkpoint=folder, golden=golden or folder / "golden", subject="perfect", only="golden")
    with progress("jobs") as advance:
        recorded = record_session(options, advance)
    report = judge_recorded(recorded, select("golden"), partial=False)
    if not recompute:
        finish(report, json_file)
    print_report(console(), report)
    _recompute(options.golden, options.checkpoint, report, json_file)


@golden_app.command("show", epilog="Example: kolibri-oracle golden show --golden new-golden")
@interruptible
def golden_show(golden: GoldenOption = None, checkpoint: CheckpointOption = None, json_file: JsonOption = None) -> None:
    """Print a golden's prompts, margins and floors."""
    from oracle.golden.format import load_golden
    from oracle.report.golden_summary import print_golden, summarize

    folder = checkpoint or mini_checkpoint()
    check_json(json_file, folder, golden)
    summary = summarize(load_golden(golden or folder / "golden"))
    print_golden(console(), summary)
    if json_file is not None:
        write_file(json_file, canonical_json(summary))


@golden_app.command("diff", epilog="Example: kolibri-oracle golden diff goldens/golden new-golden --json diff.json")
@interruptible
def golden_diff(
    old: Annotated[Path, typer.Argument(help="The golden that is in place.")],
    new: Annotated[Path, typer.Argument(help="The golden that would replace it.")],
    json_file: JsonOption = None,
) -> None:
    """Show what moved from OLD to NEW, per prompt and position, against OLD's own floors. Exit code 0 same, 1 different."""
    from oracle.golden.diff import diff_goldens
    from oracle.golden.format import load_golden
    from oracle.report.golden_diff import print_golden_diff

    check_json(json_file, old, new)
    diff = diff_goldens(load_golden(old), load_golden(new))
    print_golden_diff(console(), diff)
    if json_file is not None:
        write_file(json_file, canonical_json(diff.to_json()))
    raise typer.Exit(0 if diff.same else 1)


@golden_app.command("accept", epilog="Example: kolibri-oracle golden accept new-golden --reason 'numpy sums in another order'")
@interruptible
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
    check_json(json_file, folder, place, new)
    options = SessionOptions(checkpoint=folder, golden=new, subject="perfect", only="golden")
    with locked_folder(place):
        former, successor = load_golden(place), load_golden(new)
        diff = diff_goldens(former, successor)
        accept.check_successor(former, successor, diff)
        if digest is not None:
            accept.check_digest(digest, successor)
        elif not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError(f"no terminal can ask; review it by `golden diff`, then pass --digest {successor.digest}")
        with progress("jobs") as advance:
            report = judge_recorded(record_session(options, advance), select("golden"), partial=False)
        if report.exit_code:
            print_report(console(), report)
            raise typer.Exit(report.exit_code)
        print_golden_diff(console(), diff)
        if digest is None and not typer.confirm(f"Replace {place}?"):
            raise UsageError(f"not confirmed; {place} is as it was")
        placed = accept.accept(place, former, new, successor, headline=diff.line, reason=said)
    print(f"accepted into {place}: {placed.digest}, in the place of {former.digest}")
    if json_file is not None:
        document = {"schema": "kolibri-golden-accept/1", "digest": placed.digest, "reason": said, "diff": diff.to_json()}
        write_file(json_file, canonical_json(document))


def _recompute(golden: Path, checkpoint: Path, report: Report, json_file: Path | None) -> NoReturn:
    """Compute a golden anew, print what differs, and exit with the worse of both codes."""
    from oracle.golden.format import load_golden
    from oracle.kolibri1.checkpoint import Checkpoint
    from oracle.report.recomputed import print_recomputed

    with needs_reference("recomputing a golden"):
        from oracle.golden.recompute import recompute
    with progress("recompute", "tokens") as advance:
        result = recompute(load_golden(golden), Checkpoint.open(checkpoint), lambda done, of: advance(done, of))
    print_recomputed(console(), result)
    if json_file is not None:
        write_file(json_file, canonical_json(report.to_json() | {"recomputed": result.to_json()}))
    raise typer.Exit(report.exit_code or (0 if result.passed else 1))
