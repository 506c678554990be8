"""`kolibri-oracle doctor`: look at a checkpoint, the environment, and what would go where, before anything runs."""

from __future__ import annotations

from typing import Annotated

import typer

from goldens import mini_checkpoint
from oracle.commands.options import CheckpointOption, JsonOption
from oracle.commands.running import check_json, console, interruptible
from oracle.errors import UsageError
from oracle.planning import PlanRequest, plan_all, plans_json
from oracle.serialization import canonical_json, write_file


@interruptible
def doctor(
    checkpoint: CheckpointOption = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Also print what subjects would put where on a card and a mesh, to the byte.")
    ] = False,
    sequences: Annotated[int, typer.Option(help="Sequences that --plan decodes at once.")] = PlanRequest.sequences,
    context: Annotated[
        int | None,
        typer.Option(help="Positions of each sequence that --plan makes room for. Default: as many as the decoder takes."),
    ] = PlanRequest.context,
    json_file: JsonOption = None,
) -> None:
    """Check a checkpoint's headers against its inventory, name all that differs, and print the environment and its devices."""
    from oracle.accelerator import levels
    from oracle.environment import environment_record
    from oracle.kolibri1.audit import audit
    from oracle.kolibri1.config import read_config
    from oracle.report.doctor import print_doctor, summarize
    from oracle.report.plans import print_plans

    folder = checkpoint or mini_checkpoint()
    check_json(json_file, folder)
    request = PlanRequest(sequences, context)
    if not plan and request != PlanRequest():
        raise UsageError("--sequences and --context belong to --plan; add it")
    plans = plan_all(read_config(folder), request) if plan else {}
    audited = audit(folder)
    summary = summarize(folder, audited, environment_record(), levels())
    print_doctor(console(), summary)
    print_plans(console(), plans)
    if json_file is not None:
        write_file(json_file, canonical_json(summary | ({"plan": plans_json(request, plans)} if plan else {})))
    raise typer.Exit(0 if audited.agrees else 1)
