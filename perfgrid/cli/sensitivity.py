"""``perfgrid sensitivity``: elasticities of outputs at every point of a study, ranked, and what binds where."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import xarray as xr
from typer import Option

from perfgrid.analysis.sensitivity import cross_elasticities, sensitivity
from perfgrid.analysis.sensitivity_ranking import Rank, binding_shares, ranked, time_balance
from perfgrid.analysis.uncertainty import as_stated
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.dataset import feasible
from perfgrid.printing.bars import bar
from perfgrid.printing.console import out, print_json
from perfgrid.printing.progress import Reporter
from perfgrid.printing.tables import print_table
from perfgrid.text.numbers import bare_unit, count_text

from .arguments import names_in, outputs_of, places_at, study_of
from .options import AsJson, AtDesigns, Dtype, Formulas, Of, Output, Overwrite, Settings, StudyFile, Wide
from .saving import Target

MOST_IDLE = 8  # parameters without effect that are named


def sensitivity_command(
    study: StudyFile,
    of: Of = None,
    wrt: Annotated[str, Option(help="Given quantities, comma-separated, or all.")] = "all",
    at: AtDesigns = None,
    smooth: Annotated[
        bool, Option("--smooth", help="Replace max, min, ceil, floor and round by smooth functions.")
    ] = False,
    cross: Annotated[bool, Option("--cross", help="Add second-order elasticities, of a single design.")] = False,
    top: Annotated[int, Option(help="Parameters to print; 0 prints all.")] = 15,
    output: Output = None,
    overwrite: Overwrite = False,
    dtype: Dtype = None,
    settings: Settings = None,
    formulas: Formulas = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Rank elasticities of outputs over the feasible designs: d ln output / d ln parameter, and which rate binds."""
    loaded = study_of(study, settings, formulas)
    target = Target(output, overwrite)
    if top < 0:
        raise PerfgridError(f"--top must be 0 or more, found {top}")
    outputs = outputs_of(loaded, of)
    places = places_at(as_stated(loaded), at, as_json, outputs)
    parameters: str | list[str] = "all" if wrt.strip() == "all" else names_in(wrt)
    with Reporter(loaded.space.points) as reporter:
        result = sensitivity(loaded, outputs, parameters, places, smooth, dtype, progress=reporter)
    ranks = {name: ranked(result, name) for name in outputs}
    crossed = {}
    if cross:
        for name in outputs:
            strongest = [r.parameter for r in ranks[name] if r.zero < 1][: top or None]
            crossed[name] = cross_elasticities(loaded, name, strongest, places, smooth) if strongest else None
    target.save(result)
    if as_json:
        print_json(_plain(result, ranks, crossed, reporter.seconds))
        return
    for name, rows in ranks.items():
        _print_ranks(result, name, rows, top, parameters == "all")
        if (found := crossed.get(name)) is not None:
            _print_cross(name, found)
    out.print(f"derivatives: {result.attrs['derivatives']}")
    points = result[outputs[0]].size
    count = result.sizes["parameter"]
    out.print(
        f"{count_text(count, 'parameter')} x {count_text(len(outputs), 'output')} at {count_text(points, 'point')} "
        f"in {reporter.seconds:.1f} s"
    )
    target.tell(size=True)


def _print_ranks(result: xr.Dataset, name: str, rows: list[Rank], top: int, whole: bool) -> None:
    if not feasible(result, of=name).any():
        out.print(f"no design is feasible for {name}")
        return
    strong = [r for r in rows if r.zero < 1]
    shown = strong[: top or None]
    out.print(f"elasticities of {name} over the feasible designs")
    largest = max((abs(r.mean) for r in shown), default=0.0)
    lines = []
    for r in shown:
        spread = (f"{r.low:+.4f}", f"{r.high:+.4f}", f"{r.zero:.0%}")
        lines.append([r.parameter, bare_unit(r.unit), f"{r.mean:+.4f}", bar(r.mean, largest), *spread])
    headers = ["parameter", "unit", "mean", "", "least", "most", "zero at"]
    print_table(headers, lines, right=("mean", "least", "most", "zero at"), drop=("", "unit", "zero at"))
    if len(strong) > len(shown):
        out.print(f"and {len(strong) - len(shown)} weaker parameters")
    none = [r.parameter for r in rows if r.zero == 1]
    if none:
        named = none if out.wide else none[:MOST_IDLE]
        more = f"and {len(none) - len(named)} more (--wide names them)" if len(named) < len(none) else ""
        out.print_items(f"without effect at any feasible design ({len(none)}):", named, more)
    rates = sum(r.unit.endswith("/s") for r in strong)
    if rates > 1 and (shares := binding_shares(result, name)):
        out.print("bound by: " + ", ".join(f"{n} {share:.1%}" for n, share in shares.items()))
    if whole and (balance := time_balance(result, name)) is not None:
        expected, low, high = balance
        out.print(f"fixed times minus rates: {low:.5f} to {high:.5f}, expected {expected:g}")


def _print_cross(output: str, found: xr.DataArray) -> None:
    names = [str(n) for n in found.parameter.values]
    out.print(f"cross-elasticities of {output}: change of the row's elasticity with ln of the column")
    lines = [
        [n, *("jumps" if v != v else f"{v:+.4f}" for v in row)]
        for n, row in zip(names, found.values.tolist(), strict=True)
    ]
    print_table(["", *names], lines, names, keys=1)


def _plain(
    result: xr.Dataset, ranks: dict[str, list[Rank]], crossed: dict[str, xr.DataArray | None], seconds: float
) -> dict[str, Any]:
    found: dict[str, Any] = {"seconds": seconds, "derivatives": result.attrs["derivatives"], "outputs": {}}
    for name, rows in ranks.items():
        rates = any(r.unit.endswith("/s") for r in rows)
        found["outputs"][name] = {
            "elasticities": [asdict(r) for r in rows if r.zero < 1],
            "without_effect": [r.parameter for r in rows if r.zero == 1],
            "bound_by": binding_shares(result, name) if rates else {},
        }
        if (cross := crossed.get(name)) is not None:
            found["outputs"][name]["cross_elasticities"] = {
                "parameters": cross.parameter.values.tolist(),
                "values": cross.values.tolist(),
            }
    return found
