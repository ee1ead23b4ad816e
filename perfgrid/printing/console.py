"""Printing to a terminal or a pipe: prose that is wrapped at words, lines that are never broken, JSON.

The width of a line is `COLUMNS` if it is set, else that of the terminal, else 120: piped text does not depend on the
terminal beside it. Under ``--wide`` nothing is wrapped.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.text import Text

from perfgrid.engine.errors import printable
from perfgrid.text.values import plain

PIPED, UNKNOWN = 120, 80  # columns in a pipe or a file, and in a terminal that does not state its own
LEAST, MOST = 20, 10_000


class PlainConsole(Console):
    """Prints text as it is: square brackets are no markup, control characters are escaped."""

    def __init__(self, **options: Any):
        super().__init__(highlight=False, markup=False, emoji=False, force_jupyter=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A text or the cell of a table, which may come from a stranger's file."""
        return super().render_str(printable(text), **options)


class Output(PlainConsole):
    """Standard output: wrapped between words at a width that is the same for every command."""

    wide = False  # whether every column is printed, however long lines become

    @contextmanager
    def unlimited(self) -> Iterator[None]:
        """Print lines of any length."""
        self.wide = True
        try:
            yield
        finally:
            self.wide = False

    @property
    def size(self) -> ConsoleDimensions:
        """The columns of a line; the height is not used."""
        return ConsoleDimensions(MOST if self.wide else columns(), 25)

    def print(self, *objects: Any, indent: str = "", **how: Any) -> None:
        """Print; text alone is broken between words, and all lines but the first are indented."""
        if how or len(objects) != 1 or not isinstance(objects[0], str):
            return super().print(*objects, **how)
        self.print_words(printable(objects[0]).split(" "), indent)

    def print_items(self, before: str, items: Iterable[str], after: str = "") -> None:
        """Print items with commas between, each on one line."""
        *most, last = map(printable, items)
        self.print_words([*before.split(), *(f"{item}," for item in most), last, *after.split()])

    def print_words(self, words: Iterable[str], indent: str = "") -> None:
        """Print words in lines, all but the first indented."""
        for line in filled(words, self.width, indent):
            super().print(line, soft_wrap=True)


def filled(words: Iterable[str], width: int, indent: str = "") -> list[str]:
    """Words in lines of a width, all but the first indented; a longer word stays whole."""
    first, *others = words
    lines = [first]
    for word in others:
        joined = f"{lines[-1]} {word}"
        if cell_len(joined) <= width or not lines[-1].strip():
            lines[-1] = joined
        else:
            lines.append(indent + word)
    return lines


def columns() -> int:
    """The columns of a line of standard output."""
    stated = os.environ.get("COLUMNS", "")
    if stated.isascii() and stated.isdecimal() and len(stated) < 10 and int(stated) > 0:
        return max(LEAST, min(int(stated), MOST))
    if not sys.stdout.isatty():
        return PIPED
    found = 0
    with suppress(OSError, ValueError):
        found = os.get_terminal_size(sys.stdout.fileno()).columns
    return max(LEAST, found) if found else UNKNOWN


out = Output()
err = PlainConsole(stderr=True, soft_wrap=not sys.stderr.isatty())


def print_json(data: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(data, default=plain))


def print_line(line: Text | str, whole: bool = False) -> None:
    """One line that is never broken: cut at the width of a terminal, whole elsewhere."""
    if out.is_terminal and not whole and not out.wide:
        out.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    else:
        out.print(line, soft_wrap=True)
