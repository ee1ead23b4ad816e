"""``perfgrid explore``: a study or a result as a live page on this machine."""

from __future__ import annotations

import sys
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from perfgrid.engine.cache import forget, keep, recall
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.hashing import digest, digest_of_files, digest_of_sources
from perfgrid.pictures.pages.server import Server
from perfgrid.printing.console import print_line

from .options import Formulas, Settings

KIND, MOST_KEPT = "explored-", 32
RESULTS = (".nc", ".zarr", ".pgf")
SWITCH = 0.0005  # seconds that a thread computes before another one may: a slider need not wait for the tables


def explore_command(
    what: Annotated[
        Path | None, Argument(help="Study (.toml) or result (.nc, .zarr, .pgf). Default: the newest result here.")
    ] = None,
    settings: Settings = None,
    formulas: Formulas = None,
    port: Annotated[int, Option(help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Show a study or a result as a page on this machine that evaluates while one moves sliders; Ctrl-C ends it."""
    what = newest_result() if what is None else what
    name, key = KIND + digest(str(what.resolve()))[:24], _key(what, [*(settings or []), str(formulas)], formulas)
    sys.setswitchinterval(SWITCH)
    with Server(port, recall(name, key) if key else None) as server:
        if server.known:  # the page is there before what it asks is imported
            _announce(server, browser)

        from perfgrid.pictures.pages.explorer import Explorer
        from perfgrid.pictures.pages.shown import shown
        from perfgrid.study.own_formulas import own_formulas

        from .arguments import study_or_result

        own = own_formulas(formulas)
        with shown(study_or_result(what, settings, own)) as result:
            explorer = Explorer(result, what.name, own)
            opening = explorer.opening()
            server.explorer.set_result(explorer)
            if not server.known:
                _announce(server, browser)
            if key and opening != server.known:
                keep(name, key, opening)
                forget(KIND, MOST_KEPT)
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                return


def newest_result(folder: Path = Path()) -> Path:
    """The newest result in a folder. PerfgridError where there is none."""
    found = [path for suffix in RESULTS for path in folder.glob(f"*{suffix}")]
    if not found:
        raise PerfgridError(f"no result ({', '.join(RESULTS)}) is in this folder: name one, or a study")
    return max(found, key=lambda path: path.stat().st_mtime)


def _announce(server: Server, browser: bool) -> None:
    print_line(f"{server.address}  (Ctrl-C ends it)", whole=True)
    if browser:
        webbrowser.open(server.address)


def _key(what: Path, texts: list[str], formulas: Path | None) -> str:
    """A hash of what the page is made of; empty for a folder. Files that a study names are not in it.

    A page that they make obsolete is loaded again as soon as the study is evaluated.
    """
    try:
        return digest(digest_of_sources(), digest_of_files([what, *([formulas] if formulas else [])]), *texts)
    except OSError:
        return ""
