"""``perfgrid explore``: a study or a result as a live page on this machine."""

from __future__ import annotations

import webbrowser
from typing import Annotated

from typer import Option

from perfgrid.pictures.pages.explorer import Explorer
from perfgrid.pictures.pages.server import Server
from perfgrid.pictures.pages.shown import shown
from perfgrid.printing.console import print_line
from perfgrid.study.own_formulas import own_formulas

from .arguments import study_or_result
from .options import Formulas, Settings, StudyOrResult


def explore_command(
    what: StudyOrResult,
    settings: Settings = None,
    formulas: Formulas = None,
    port: Annotated[int, Option(help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Show a study or a result as a page on this machine that evaluates while one moves sliders; Ctrl-C ends it."""
    own = own_formulas(formulas)
    subject = study_or_result(what, settings, own)
    with shown(subject) as result, Server(Explorer(result, what.name, own), port) as server:
        print_line(f"{server.address}  (Ctrl-C ends it)", whole=True)
        if browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
