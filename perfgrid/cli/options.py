"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

StudyFile = Annotated[Path, Argument(help="Study file (TOML).")]
StudyOrResult = Annotated[Path, Argument(help="Study (.toml) or result (.nc, .zarr, .pgf).")]
At = Annotated[list[str] | None, Option("--at", help="Labels to select: axis=label[,axis=label...].")]
Of = Annotated[
    str | None,
    Option("--of", help="Quantities, comma-separated. Default: the study's objective, or its first output."),
]
Minimize = Annotated[str | None, Option(help="Quantity to minimize.")]
Output = Annotated[Path | None, Option("--output", "-o", help="Result file (.nc).")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace an existing file.")]
Dtype = Annotated[str | None, Option(help="Precision on the grid: float32 or float64.")]
Recompute = Annotated[
    bool, Option("--recompute", help="If a factored result was made with other formulas, evaluate it anew.")
]
Settings = Annotated[
    list[str] | None,
    Option("--set", help="Override, such as device.b200.hbm_bandwidth=10e12 or axes.microbatch=[1,2]."),
]
Records = Annotated[list[Path] | None, Argument(help="Record files (.jsonl) or folders. Default: those of perfgrid.")]
CatalogFiles = Annotated[list[Path] | None, Option("--catalog", help="Catalog file or folder to add.")]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object instead of a table.")]
