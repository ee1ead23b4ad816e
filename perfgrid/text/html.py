"""Tables and lines as HTML, for notebooks. Labels of studies and files are text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from perfgrid.engine.errors import printable

NAME, NUMBER, WORDS = "text-align:left;white-space:pre", "text-align:right;white-space:pre", "text-align:left"


def table(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> str:
    """An HTML table: heads with the style of their columns, and the texts of the rows."""
    styles = [style for _, style in heads]
    head = "".join(f'<th scope="col" style="{style}">{text(name)}</th>' for name, style in heads)
    body = ("".join(f'<td style="{s}">{text(v)}</td>' for v, s in zip(row, styles, strict=True)) for row in rows)
    lines = "".join(f"<tr>{cells}</tr>" for cells in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def paragraphs(lines: Sequence[str]) -> str:
    """Lines of text as paragraphs; empty ones are left out."""
    return "".join(f"<p>{text(line)}</p>" for line in lines if line)


def text(value: Any) -> str:
    """A text as HTML: what stands in it is shown, and control characters as escapes."""
    return escape(printable(str(value)))
