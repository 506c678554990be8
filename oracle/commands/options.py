"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CheckpointOption = Annotated[Path | None, typer.Option(help="Checkpoint folder. Default: the shipped mini checkpoint.")]
GoldenOption = Annotated[Path | None, typer.Option(help="Golden folder. Default: `golden` inside the checkpoint folder.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Also write the result to this JSON file.")]
