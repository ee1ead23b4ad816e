"""Options that several commands share, as Typer reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StudyFile = Annotated[Path, typer.Argument(help="A study file (TOML).")]
Minimize = Annotated[str | None, typer.Option(help="Quantity to minimize.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Result file (.nc).")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing result file.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override, such as device.b200.hbm_bandwidth=10e12 or axes.microbatch=[1,2]."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
