"""``perfgrid explain``: what adds up to a number, and the formulas below it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import xarray as xr
from typer import Argument, Option

from perfgrid.analysis.explanation.explain import explain
from perfgrid.analysis.explanation.text import as_data
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas import INNER
from perfgrid.pictures.figures.draw import check_figure, matplotlib
from perfgrid.printing.assumptions_table import assumptions_data, print_assumptions
from perfgrid.printing.console import err, print_json
from perfgrid.printing.derivation import DEPTH, print_derivation, print_explanation
from perfgrid.results.provenance import formulas_changed
from perfgrid.study.own_formulas import own_formulas
from perfgrid.study.study import Study
from perfgrid.validation.own_profile import own_profile

from .arguments import chosen_labels, design_labels, study_or_result, with_catalog
from .launching import Launcher
from .options import AsJson, Assumptions, AtDesign, CatalogFiles, Formulas, Launch, Overwrite, Settings, StudyOrResult
from .profile import print_profile


def explain_command(
    what: StudyOrResult,
    quantity: Annotated[str, Argument(help="The quantity to explain.")],
    at: AtDesign = None,
    settings: Settings = None,
    formulas: Formulas = None,
    files: CatalogFiles = None,
    depth: Annotated[
        int | None, Option(help=f"Levels to print; {DEPTH} by default, of --all every one.", show_default=False)
    ] = None,
    sources: Annotated[bool, Option("--sources", help="Add the source and the formula of every part.")] = False,
    everything: Annotated[bool, Option("--all", help="Print every formula below the number instead.")] = False,
    trace: Annotated[
        Path | None, Option("--trace", help="Trace of PyTorch's profiler (.json, .json.gz) to compare the step with.")
    ] = None,
    figure: Annotated[Path | None, Option("--plot", help="Picture of that comparison (.png, .svg, .pdf).")] = None,
    launch: Launch = None,
    inputs: Assumptions = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Explain one number: what adds up to it, largest first, what that is made of, and what would change it."""
    labels = design_labels(at, "--at")
    if everything and (sources or as_json):
        raise PerfgridError("--all prints every formula with its source: give it without --sources and --json")
    if sources and as_json:
        raise PerfgridError("--json holds the sources: give it without --sources")
    if depth is not None and depth < 0:
        raise PerfgridError(f"--depth must be 0 or more, found {depth}")
    if figure is not None and trace is None:
        raise PerfgridError("--plot draws the comparison with a trace: give --trace FILE")
    if figure is not None:
        matplotlib()
        check_figure(figure, overwrite)
    own = own_formulas(formulas)
    subject = study_or_result(what, with_catalog(what, settings, files), own)
    launcher = Launcher.of(launch, overwrite, as_json)
    if (launcher or inputs) and not isinstance(subject, Study):
        raise PerfgridError(f"{'--launch' if launcher else '--assumptions'} needs a study (.toml), not a result")
    if trace is not None:
        if not isinstance(subject, Study) or quantity != "step_time":
            raise PerfgridError("--trace compares the step_time of a study (.toml)")
        found = own_profile(subject, chosen_labels(subject, labels, as_json, (quantity,)), trace)
        print_profile(found, trace, figure, overwrite, as_json)
        return
    try:
        chosen = chosen_labels(subject, labels, as_json, (quantity,))
        found = explain(subject, quantity, chosen, own)
    except PerfgridError as error:
        raise PerfgridError(f"{what}: {error}" if isinstance(subject, xr.Dataset) else str(error)) from None
    if isinstance(subject, xr.Dataset) and formulas_changed(subject, own):
        writer = subject.attrs.get("source", "another version")
        err.print(f"note: {what} was written by {writer} with other formulas; the explanation uses those installed")
    levels = DEPTH if depth is None else depth
    if as_json:
        more = {"inputs": assumptions_data(subject, chosen, quantity)} if inputs and isinstance(subject, Study) else {}
        print_json(as_data(found, levels) | more)
    elif everything:
        print_derivation(found, INNER, depth)
    else:
        print_explanation(found, INNER, levels, sources)
    if inputs and isinstance(subject, Study) and not as_json:
        print_assumptions(subject, chosen, quantity)
    if launcher and isinstance(subject, Study):
        launcher.write(subject, chosen)
