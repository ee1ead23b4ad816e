"""Printing the explanation of a number, to a depth that a reader can follow."""

from __future__ import annotations

from perfgrid.analysis.explanation.derivation import Explanation
from perfgrid.analysis.explanation.text import explanation_lines, story_lines
from perfgrid.engine.graph.inner_axes import InnerAxes
from perfgrid.printing.console import out, print_line

DEPTH = 2  # levels that are printed unless more are asked for


def print_explanation(found: Explanation, inner: InnerAxes, depth: int = DEPTH, sources: bool = False) -> None:
    """What adds up to a number, the largest first, down to a level; ``sources`` adds sources and formulas."""
    for printed, line in enumerate(story_lines(found, inner, depth, sources, out.width)):
        _print(line, printed <= len(found.violated), sources)


def print_derivation(found: Explanation, inner: InnerAxes, depth: int | None = None) -> None:
    """Every formula below a number, or those down to a level."""
    for printed, line in enumerate(explanation_lines(found, inner, depth)):
        _print(line, printed <= len(found.violated))


def _print(line: str, wrapped: bool, whole: bool = False) -> None:
    """A line of an explanation: the point and what it violates are wrapped, others keep their columns."""
    if wrapped:
        out.print(line, indent="  ")
    else:
        print_line(line, whole)
