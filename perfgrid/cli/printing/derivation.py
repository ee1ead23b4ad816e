"""Printing the derivation of a number, to a depth that a reader can follow."""

from __future__ import annotations

from perfgrid.analysis.text import explanation_lines
from perfgrid.engine.graph.inner_axes import InnerAxes
from perfgrid.engine.grid.explain import Explanation

from .console import out, print_line

DEPTH = 3  # levels that are printed unless more are asked for


def print_derivation(found: Explanation, inner: InnerAxes, depth: int = DEPTH) -> None:
    """The derivation down to a level, and how many lines lie below it."""
    printed = 0
    for printed, line in enumerate(explanation_lines(found, inner, depth), 1):
        print_line(line, whole=printed <= len(found.violated) + 1)  # the point and what it violates
    if below := len(list(explanation_lines(found, inner))) - printed:
        out.print(f"{below:,} lines lie deeper: --depth {depth + 1} shows the next level, --depth 99 all")
