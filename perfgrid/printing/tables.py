"""Tables that fit the width: columns are dropped in a stated order and named, lines are never broken.

A table that is too wide becomes narrower step by step, until it fits:

1. headers are wrapped between words, into at most three lines;
2. columns are left out in the order that the caller states (`drop`), and named below;
3. leading columns of labels (`groups`) become headings above the rows that share them, the outermost first;
4. the columns behind the first few (`keys`) are continued in further tables, which repeat these;
5. each row becomes a record: one line for each cell, with its header.

Text (`prose`) is wrapped within its column. ``--wide`` leaves the table as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from perfgrid.engine.errors import printable
from perfgrid.text.terms import TERMS

from .console import MOST, PlainConsole, filled, out, print_line

SPELLED = TERMS | {"microbatch": "micro batch"}  # in headers, where a term is shorter than the name of a quantity
GAP = 2  # blanks between columns
HEADER_LINES = 3  # at most
PROSE = 24  # least width of a column of prose

layout = PlainConsole(width=MOST)  # lays tables out; nothing is printed through it


def print_table(
    headers: Iterable[str],
    rows: Iterable[Sequence[str]],
    right: Collection[str] = (),
    drop: Iterable[str] = (),
    prose: Collection[str] = (),
    groups: int = 0,
    keys: int = 0,
    names: bool = True,
) -> None:
    """Print a table within the width.

    ``right``: columns of numbers; ``drop``: those to leave out, in this order, if it is too wide; ``prose``: those that
    may be wrapped; ``groups``: how many leading columns hold labels that rows share, ``keys``: how many
    name a row wherever it is continued; ``names``: whether headers are
    names, to be written in words.
    """
    headers = list(headers)
    lines = [list(map(printable, row)) for row in rows]
    columns = [
        Column(name, [line[i] for line in lines], name in right, name in prose, names) for i, name in enumerate(headers)
    ]
    while _width(columns) > out.width and columns and columns[0].most < HEADER_LINES:
        columns = [replace(c, most=c.most + 1) for c in columns]
    left = list[str]()
    for name in drop:
        if _width(columns) <= out.width:
            break
        columns = [c for c in columns if c.name != name]
        left += [name.partition(" [")[0]] if name else []
    above = next((n for n in range(groups + 1) if _width(columns[n:]) <= out.width), None)
    if above is None:
        _print_parts(columns, keys)
    elif lines:
        _print_groups(columns[:above], columns[above:], len(lines))
    if left:
        out.print_items("not shown:", left, "(--wide prints every column, --json every value)")


@dataclass(frozen=True)
class Column:
    """A header and its cells."""

    name: str
    cells: Sequence[str]
    right: bool = False
    prose: bool = False
    words: bool = True  # whether the header is a name, to be written in words
    most: int = 1  # lines of the header

    @cached_property
    def body(self) -> int:
        """The width of the widest cell."""
        return max(map(cell_len, self.cells), default=0)

    @cached_property
    def head(self) -> list[str]:
        """The header in lines of about the width of the cells, broken between words; a unit stays whole."""
        if not self.words:
            return [printable(self.name)]
        name, bracket, unit = printable(self.name).partition(" [")
        spelled = SPELLED.get(name, name).replace("_", " ") if name.isidentifier() else name
        text = spelled + (f" [{unit}" if bracket else "")
        width = max([PROSE if self.prose else self.body, *map(cell_len, text.split(" "))])
        while len(lines := filled(text.split(" "), width)) > self.most:
            width += 1
        return lines

    @cached_property
    def width(self) -> int:
        """The least width."""
        body = self.body
        if self.prose:
            body = max(min(PROSE, body), *(cell_len(word) for cell in self.cells for word in cell.split()), 0)
        return max(body, *map(cell_len, self.head), 0)

    def justified(self, text: str) -> str:
        """A cell or a line of the header; in a column of numbers at its right end, with the blanks behind it."""
        return " " * (self.width - cell_len(text)) + text if self.right else text


def _width(columns: Sequence[Column]) -> int:
    """The least width of a table."""
    return sum(c.width for c in columns) + GAP * (len(columns) - 1)


def _print_groups(groups: Sequence[Column], columns: Sequence[Column], count: int) -> None:
    """Print the rows, below a heading those that share labels; there is one header."""
    if not groups:
        return _print(columns, 0, count)
    _print(columns, 0, 0)
    labels = list(zip(*(c.cells for c in groups), strict=True))
    starts = [i for i in range(count) if i == 0 or labels[i] != labels[i - 1]]
    for start, end in pairwise([*starts, count]):
        out.print_items("", (f"{c.name} = {label}" for c, label in zip(groups, labels[start], strict=True)))
        _print(columns, start, end, headed=False)


def _print(columns: Sequence[Column], start: int, end: int, headed: bool = True) -> None:
    """Print some rows line by line; headers end in the same line."""
    table = Table(box=None, header_style="bold", pad_edge=False, show_header=headed)
    height = max(len(c.head) for c in columns)
    for c in columns:
        head = [*[""] * (height - len(c.head)), *c.head]
        table.add_column(Text("\n".join(map(c.justified, head))), no_wrap=not c.prose, min_width=c.width)
    for cells in zip(*(map(c.justified, c.cells[start:end]) for c in columns), strict=True):
        table.add_row(*cells)
    with layout.capture() as capture:
        layout.print(table, width=out.width)
    for line in capture.get().splitlines():
        print_line(Text.from_ansi(line.rstrip()), whole=True)


def _print_parts(columns: Sequence[Column], keys: int) -> None:
    """Print a table in parts that fit the width, each with the key columns, or as records if none does."""
    first, rest = columns[:keys], columns[keys:]
    if not keys or any(_width([*first, c]) > out.width for c in rest):
        return _print_records(columns)
    while rest:
        count = next(n for n in range(len(rest), 0, -1) if _width([*first, *rest[:n]]) <= out.width)
        _print([*first, *rest[:count]], 0, len(columns[0].cells))
        rest = rest[count:]
        if rest:
            out.print("")


def _print_records(columns: Sequence[Column]) -> None:
    """Print every row as lines of a header and its cell."""
    for position, cells in enumerate(zip(*(c.cells for c in columns), strict=True)):
        if position:
            out.print()
        for c, cell in zip(columns, cells, strict=True):
            if cell.strip():
                out.print(f"{c.name}: {cell.strip()}" if c.name.strip() else cell.strip())
