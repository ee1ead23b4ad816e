"""Printing to a terminal or a pipe: plain tables whose lines are never broken."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfgrid.analysis.text import plain
from perfgrid.engine.errors import printable


class PlainConsole(Console):
    """Prints text as it is: square brackets are no markup, control characters are escaped."""

    def __init__(self, **options: Any):
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A text or the cell of a table, which may come from a stranger's file."""
        return super().render_str(printable(text), **options)


out = PlainConsole(soft_wrap=not sys.stdout.isatty())
err = PlainConsole(stderr=True, soft_wrap=not sys.stderr.isatty())
wide = PlainConsole(width=10_000)  # lays tables out; nothing is printed through it


def text_table(headers: Iterable[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> Table:
    """A plain table whose cells are never wrapped; the columns in ``right`` are numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in headers:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def print_table(
    headers: Iterable[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), whole: bool = False
) -> None:
    """Print a table line by line; on a terminal lines are cut at its width unless the ``whole`` matters."""
    with wide.capture() as capture:
        wide.print(text_table(headers, rows, right))
    for line in capture.get().splitlines():
        print_line(Text.from_ansi(line.rstrip()), whole)


def print_json(data: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(data, default=plain))


def print_line(line: Text | str, whole: bool = False) -> None:
    """One line that is never broken: cut at the width of a terminal, whole elsewhere."""
    if out.is_terminal and not whole:
        out.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    else:
        out.print(line, soft_wrap=True)
