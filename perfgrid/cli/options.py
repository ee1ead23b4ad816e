"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

from typer import Argument, CallbackParam, Context, Option

from perfgrid.engine.errors import PerfgridError
from perfgrid.printing.console import out


def one_of(option: str, legal: Iterable[str]) -> Callable[[str | None], str | None]:
    """What refuses a value of an option that is none of the legal ones."""

    def checked(value: str | None) -> str | None:
        if value is not None and value not in legal:
            raise PerfgridError(f"{option} must be one of {', '.join(legal)}, found {value!r}")
        return value

    return checked


def table_or_json(context: Context, option: CallbackParam, given: bool) -> bool:
    """Refuse ``--json`` beside options of tables; ``--wide`` lifts the limit of standard output for one command."""
    if given and any(context.params.get(n) for n in (("wide", "rows") if option.name == "as_json" else ("as_json",))):
        raise PerfgridError("--json prints no table: give it without --wide and --rows")
    if given and option.name == "wide":
        context.with_resource(out.unlimited())
    return given


StudyFile = Annotated[Path, Argument(help="Study file (TOML).")]
StudyOrResult = Annotated[Path, Argument(help="Study (.toml) or result (.nc, .zarr, .pgf).")]
At = Annotated[list[str] | None, Option("--at", help="Labels to select: axis=label[,axis=label...].")]
AtDesigns = Annotated[
    list[str] | None,
    Option("--at", help="Labels to select: axis=label[,axis=label...]; best: of axes left open the best design."),
]
AtDesign = Annotated[
    list[str] | None,
    Option(
        "--at", help="Labels of the design: axis=label[,axis=label...]. Axes left open, or --at best: the best design."
    ),
]
Of = Annotated[
    str | None,
    Option("--of", help="Quantities, comma-separated. Default: the study's objective, or its first output."),
]
Minimize = Annotated[str | None, Option(help="Quantity to minimize.")]
Maximize = Annotated[str | None, Option(help="Quantity to maximize.")]
Price = Annotated[
    str | None, Option(help="Rent of a device in USD per hour, or one for each device. Default: they are owned.")
]
Output = Annotated[Path | None, Option("--output", "-o", help="Result file (.nc).")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace an existing file.")]
Dtype = Annotated[
    str | None,
    Option(help="Precision on the grid: float32 or float64.", callback=one_of("--dtype", ("float32", "float64"))),
]
Recompute = Annotated[
    bool, Option("--recompute", help="If a factored result was made with other formulas, evaluate it anew.")
]
Settings = Annotated[
    list[str] | None,
    Option("--set", help="Override, such as device.b200.hbm_bandwidth=10e12 or axes.microbatch=[1,2]."),
]
Formulas = Annotated[
    Path | None, Option("--formulas", help="Python file with formulas of your own (.py). It is run: see SECURITY.md.")
]
Records = Annotated[
    list[Path] | None,
    Argument(
        help="Records (.jsonl), tables (.csv), logs, traces, or folders of them. Default: the records of perfgrid."
    ),
]
KindOfFile = Annotated[str | None, Option("--as", help="Kind of the files. Default: by what they hold.")]
JobFiles = Annotated[
    list[Path] | None, Option("--job", help="Configuration or study behind logs and tables; repeatable.")
]
OnDevice = Annotated[str | None, Option("--on", help="Device of the catalog, if the files name none.")]
Facts = Annotated[
    list[str] | None,
    Option("--set", help="What the files leave open, such as model=llama-3.1-8b or sequence_length=4096."),
]
CatalogFiles = Annotated[list[Path] | None, Option("--catalog", help="Catalog file or folder to add.")]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object instead of a table.", callback=table_or_json)]
Wide = Annotated[
    bool, Option("--wide", help="Print every row and column, however long lines become.", callback=table_or_json)
]
Rows = Annotated[
    bool, Option("--rows", help="Print a row for each group, of many groups as well.", callback=table_or_json)
]
Model = Annotated[str, Argument(help="Model of the catalog, or a config.json or a folder with one.")]
On = Annotated[str, Option("--on", help="Devices of the catalog, comma-separated.")]
Topology = Annotated[str | None, Option(help="Default: that in which each device is mostly sold.")]
Software = Annotated[str | None, Option(help="Default: that with which each device is mostly used.")]
Engine = Annotated[
    str | None,
    Option(
        "--engine",
        "--software",
        help="vllm, sglang, tensorrt-llm, ..., also 'vllm 0.11' or 'sglang[prefill_first=false]'. "
        "Default: that with which each device is mostly used.",
    ),
]
Assumptions = Annotated[
    bool,
    Option("--assumptions", help="Add every input: stated, implied or assumed, and by how much it moves the answer."),
]
SaveStudy = Annotated[Path | None, Option("--save", help="Write the study that was searched (.toml).")]
RowsFile = Annotated[Path | None, Option("--csv", help="Write a row for each design (.csv).")]
Launch = Annotated[
    str | None,
    Option(
        "--launch",
        help="Write the configuration of the design for a framework: FORMAT, FORMAT@VERSION, or FORMAT=FILE.",
    ),
]
