"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StudyFile = Annotated[Path, typer.Argument(help="Study file (TOML).")]
StudyOrResult = Annotated[Path, typer.Argument(help="Study (.toml) or result (.nc, .zarr, .pgf).")]
At = Annotated[list[str] | None, typer.Option("--at", help="Labels to select: axis=label[,axis=label...].")]
Of = Annotated[
    str | None,
    typer.Option("--of", help="Quantities, comma-separated. Default: the study's objective, or its first output."),
]
Minimize = Annotated[str | None, typer.Option(help="Quantity to minimize.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Result file (.nc).")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]
Dtype = Annotated[str | None, typer.Option(help="Precision on the grid: float32 or float64.")]
Recompute = Annotated[
    bool, typer.Option("--recompute", help="If a factored result was made with other formulas, evaluate it anew.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override, such as device.b200.hbm_bandwidth=10e12 or axes.microbatch=[1,2]."),
]
CatalogFiles = Annotated[list[Path] | None, typer.Option("--catalog", help="Catalog file or folder to add.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
