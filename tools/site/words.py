"""Words of screens as links to the nomenclature: at the beginning of a printed row, and in a table of words."""

from __future__ import annotations

import re
from functools import cache

from perfgrid.analysis.nomenclature import words

from .formulas import cited, linked
from .links import relative

PAGE = "nomenclature.md"


@cache
def _rows() -> re.Pattern[str]:
    """A word at the beginning of a line that a command printed, before what it is about or at the line's end."""
    spelled = sorted({one for word in words().values() for one in (word.name, *word.also)}, key=len, reverse=True)
    return re.compile(rf'(<span class="go">)({"|".join(map(re.escape, spelled))})(?=  |:? counts |: |</span>)')


def with_words(html: str, page: str) -> str:
    """A page on which what commands printed links to the meaning of its words."""
    if page == PAGE:
        return html
    anchors = {one: word.anchor for word in words().values() for one in (*word.also, word.name)}

    def link(found: re.Match[str]) -> str:
        target = f"{relative(PAGE, page).removesuffix('.md')}.html#{anchors[found[2]]}"
        return f'{found[1]}<a href="{target}">{found[2]}</a>'

    return _rows().sub(link, html)


def with_quantities(markdown: str, page: str) -> str:
    """The nomenclature with links to formulas and to references."""
    text = re.sub(r"(?<=\| )`(\w+)`(?= \|)", lambda found: linked(found[1], page), markdown)

    def sources(found: re.Match[str]) -> str:
        return "| " + ", ".join(cited(key.strip(), page) for key in found[1].split(",<br>")) + " |"

    return re.sub(r"\| ([a-z]+\d{4}\w*(?:,<br> ?[a-z]+\d{4}\w*)*) \|$", sources, text, flags=re.M)
