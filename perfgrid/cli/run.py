"""``perfgrid run``: every design of a study, in memory, as a file, a factored result or a store."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import xarray as xr
from typer import Exit, Option

from perfgrid.analysis.best import best
from perfgrid.analysis.pareto import DESIGN, pareto
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.dataset import constraints_of
from perfgrid.formulas import INNER
from perfgrid.printing.best_table import print_winners, winner_rows
from perfgrid.printing.console import err, out, print_json, print_line
from perfgrid.printing.feasibility import print_impossible, print_violations
from perfgrid.printing.pareto_table import front_rows, print_outputs
from perfgrid.printing.progress import Reporter
from perfgrid.results.evaluate import evaluate
from perfgrid.results.factored import SUFFIX, save_factored
from perfgrid.results.feasibility import violations
from perfgrid.results.memory import available_memory
from perfgrid.results.opening import open_result
from perfgrid.results.stream import STORE, stream
from perfgrid.study.file import Best
from perfgrid.study.study import Study
from perfgrid.text.numbers import count_text, number

from .arguments import bytes_of, study_of
from .effects import warnings_of
from .options import AsJson, Dtype, Formulas, Overwrite, Rows, Settings, StudyFile, Wide
from .saving import Target

FEW_POINTS = 100  # all printed where a study has no [best]
LOADED_BYTES = 2**25  # of values: of fewer the best designs are read from the result, of more the study is searched
EXPANDED_BYTES = 2**32  # of values: more are saved factored unless the suffix asks for values


def run_command(
    study: StudyFile,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            help="Result: .nc, .pgf (factored) or .zarr (a store of any size); no suffix: .nc up to 4 GiB, else .pgf.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    streaming: Annotated[bool, Option("--stream", help="Write tile by tile, for grids beyond memory.")] = False,
    settings: Settings = None,
    formulas: Formulas = None,
    dtype: Dtype = None,
    memory: Annotated[str | None, Option(help="Memory of all local processes together, such as 4GB.")] = None,
    resume: Annotated[bool, Option("--resume", help="Continue a store after an interruption.")] = False,
    workers: Annotated[int | None, Option(help="Local processes that fill a store.")] = None,
    scheduler: Annotated[
        str | None, Option(help="Dask cluster that fills a store, such as tcp://127.0.0.1:8786.")
    ] = None,
    tile_points: Annotated[int | None, Option(help="Points evaluated and written together, at most.")] = None,
    rows: Rows = False,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate every design of a study, print the best ones and save the result."""
    loaded = study_of(study, settings, formulas)
    if output is not None and not streaming:
        output = named(loaded, output, dtype)
    if (rows or wide) and (streaming or (output is not None and output.suffix in (STORE, SUFFIX))):
        raise PerfgridError(f"{STORE}, {SUFFIX} and --stream print no table: leave out --rows and --wide")
    how = {"resume": resume, "memory": bytes_of(memory), "workers": workers, "scheduler": scheduler}
    if output is not None and output.suffix == STORE:
        return _to_store(loaded, output, dtype, overwrite, as_json, tile_points=tile_points, **how)
    if any((resume, workers, scheduler)):
        raise PerfgridError("--resume, --workers and --scheduler need -o STORE.zarr")
    if (output is None or output.suffix == SUFFIX) and (memory or tile_points):
        raise PerfgridError("--memory and --tile-points need -o STORE.zarr or -o FILE.nc")
    if streaming and output is None:
        raise PerfgridError("--stream needs -o FILE.nc to write to")
    if output is not None and output.suffix == SUFFIX:
        if streaming:
            raise PerfgridError(f"a factored result ({SUFFIX}) holds no values to stream: leave out --stream")
        return _factored(loaded, output, dtype, overwrite, as_json)
    target = Target(output, overwrite)
    try:
        with Reporter(loaded.space.points) as reporter:
            if output is not None:
                stream(loaded, output, dtype, overwrite, tile_points, reporter, **how)
                result = open_result(output)
            else:
                result = evaluate(loaded, dtype, progress=reporter)
    except KeyboardInterrupt:
        err.print("perfgrid: interrupted; no result was written")
        raise Exit(130) from None
    _report(loaded, result, target, reporter.seconds, streaming, rows, as_json)


def named(study: Study, output: Path, dtype: str | None) -> Path:
    """The path of a result; without a suffix it gets .nc where the values are few, else that of a factored result.

    Values take at most `EXPANDED_BYTES`, 0.8 of the free memory (they are evaluated in it) and half of the free disk.
    """
    if output.suffix or not output.name:
        return output
    needed = study.plan().result_bytes(dtype or study.file.dtype)
    room = {"the limit for values": EXPANDED_BYTES, "the free memory": int(0.8 * available_memory())}
    if output.parent.is_dir():
        room["half of the free disk"] = shutil.disk_usage(output.parent).free // 2
    what, least = min(room.items(), key=lambda item: item[1])
    if needed <= least:
        return output.with_name(output.name + ".nc")
    err.print(
        f"{study.space.points:,} points are saved factored: their values take {number(needed, 'byte')}, more than "
        f"{what} ({number(least, 'byte')}); -o {output.name}.zarr writes the values"
    )
    return output.with_name(output.name + SUFFIX)


def _report(
    study: Study, result: xr.Dataset, target: Target, seconds: float, streaming: bool, listed: bool, as_json: bool
) -> None:
    """Print the best designs, the Pareto front and how many designs are infeasible."""
    choice = study.file.best
    if choice is None and study.space.points <= FEW_POINTS:
        single = [name for name in study.outputs if not set(result[name].dims) & set(INNER.names)] or study.outputs
        fewest = min(single, key=lambda name: len(constraints_of(result, name)))
        choice = Best(over=[], minimize=fewest)  # every point that is feasible for any output
    searched = result.load() if result.nbytes <= LOADED_BYTES else study  # a large result stays where it is
    winners = None
    if choice is not None and not streaming:
        winners = best(searched, choice.over, choice.minimize, choice.maximize, _labels(study, choice.at))
    single = study.file.best is not None or study.space.points == 1
    warnings = warnings_of(study, winners) if winners is not None and single else []
    counted, wanted = violations(result), study.file.pareto
    edge = None
    if wanted is not None and not streaming:
        edge = pareto(searched, maximize=wanted.maximize, over=wanted.over, at=_labels(study, wanted.at))
    if as_json:
        rows = winner_rows(study, winners, choice) if winners is not None and choice is not None else []
        data: dict[str, Any] = {"seconds": seconds, **asdict(counted), "best": rows, "warnings": warnings}
        if edge is not None:
            shown = [name for name in study.outputs if edge[name].dims == (DESIGN,)]
            data["pareto"] = front_rows(study, edge, shown, "outputs")
        print_json(data)
        return
    if winners is not None and choice is not None:
        print_winners(study, winners, choice, listed)
        if study.file.workload == "inference":
            from perfgrid.analysis.published_errors import serving_note

            out.print(serving_note())
    elif choice is not None:
        out.print("a streamed run does not search the best designs; perfgrid best does")
    elif target.path is None:
        out.print("nothing is saved: give -o FILE.nc to save the result, or [best] in the study for a table")
    if edge is not None and wanted is not None:
        print_outputs(study, edge, wanted)
    print_violations(counted, seconds)
    print_impossible(study)
    target.tell(size=True)


def _labels(study: Study, at: dict[str, Any]) -> dict[str, Any]:
    return {axis: study.label(axis, label) for axis, label in at.items()}


def _factored(study: Study, output: Path, dtype: str | None, overwrite: bool, as_json: bool) -> None:
    """Save sub-grids and formulas in the place of the values."""
    start = time.perf_counter()
    save_factored(study, output, dtype, overwrite)
    seconds, size = time.perf_counter() - start, output.stat().st_size
    expanded = study.plan().result_bytes(dtype or study.file.dtype)
    if as_json:
        data = {"points": study.space.points, "seconds": seconds, "bytes": size, "expanded_bytes": expanded}
        print_json(data)
        return
    ratio = f" ({expanded / size:,.0f} times less)" if expanded > 2 * size else ""
    out.print(
        f"{count_text(study.space.points, 'point')} in {number(size, 'byte')} instead of "
        f"{number(expanded, 'byte')}{ratio}, {seconds:.1f} s; values are evaluated when they are read"
    )
    if study.file.best is not None:
        out.print(f"'perfgrid best {study.name}' finds the best designs")
    print_line(f"saved {output}", whole=True)


def _to_store(study: Study, output: Path, dtype: str | None, overwrite: bool, as_json: bool, **how: Any) -> None:
    """Fill a store."""
    from perfgrid.results.store.fill import part_of
    from perfgrid.results.store.verify import Opened

    try:
        with Reporter(study.space.points) as reporter:
            stream(study, output, dtype, overwrite, progress=reporter, **how)
    except KeyboardInterrupt:
        left = "the same command with --resume continues" if part_of(output).exists() else "no result was written"
        err.print(f"perfgrid: interrupted; {left}")
        raise Exit(130) from None

    found = Opened(output).violations()
    if as_json:
        print_json({"seconds": reporter.seconds, **asdict(found)})
        return
    print_violations(found, reporter.seconds)
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    print_line(f"saved {output} ({size / 1e6:.1f} MB)", whole=True)
    if study.file.best is not None:
        out.print("a streamed run does not search the best designs; perfgrid best does")
