"""Links between pages: files of the repository to the pages of the site that show them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def relative(target: str, page: str) -> str:
    """A link from one page to another, both as paths in the site's sources."""
    path, _, anchor = target.partition("#")
    return posixpath.relpath(path, posixpath.dirname(page) or ".") + (f"#{anchor}" if anchor else "")


def rewritten(text: str, source: str, page: str, pages: Mapping[str, str]) -> str:
    """A page's text with its links to files of the repository as links to the pages that show them.

    ``source``: the file in the repository that holds the text; ``pages``: file -> page. A link to a file that no page
    shows is left as its text, one whose text is the name of a page gets the page's heading.
    """

    def link(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        found = pages.get(there)
        if found is None and there.startswith("docs/"):
            found = there.removeprefix("docs/")
        if found is None:
            return match[0] if picture else words  # a notebook's pictures lie beside its page
        if words.endswith(".md"):  # the reader of a site does not know files
            words = _title(there)
        return f"{picture}[{words}]({relative(found, page)}{'#' + anchor if anchor else ''})"

    return _LINK.sub(link, text)


def _title(file: str) -> str:
    """The heading of a page in the repository."""
    return (ROOT / file).read_text(encoding="utf-8").partition("# ")[2].partition("\n")[0]


def escaped(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown; cells are Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def trail(page: str, *above: tuple[str, str]) -> str:
    """The line above a page's title that leads to the pages above it: words and page of each."""
    steps = " / ".join(
        f'<a href="{relative(there, page).removesuffix(".md")}.html">{words}</a>' for words, there in above
    )
    return f'<p class="trail">{steps}</p>\n\n'
