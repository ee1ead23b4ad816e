"""Reading the bibliography: as much of BibTeX as one-line citations need."""

from __future__ import annotations

import re
from pathlib import Path

from perfgrid.engine.errors import PerfgridError

from .reading import read_text

_ENTRY = re.compile(r"@(\w+)\s*\{\s*([^\s,{}]+)\s*,")
_FIELD = re.compile(r"[,\s]*(\w+)\s*=\s*")
_YEAR = re.compile(r", ((?:19|20)\d\d)(?=,|$)")
_BARE = re.compile(r"[^,}\s]+")  # a value in neither quotes nor braces


def read_references(path: Path) -> dict[str, str]:
    """Key -> one-line citation of every entry of a BibTeX file; PerfgridError for a key that occurs twice."""
    text = read_text(path)
    citations: dict[str, str] = {}
    for match in _ENTRY.finditer(text):
        if match[1].lower() == "comment":
            continue
        key = match[2]
        if key in citations:
            raise PerfgridError(f"{path}: reference {key!r} is defined twice")
        citations[key] = _citation(_fields(text, match.end(), f"{path}, reference {key!r}"))
    return citations


def year_of(citation: str) -> int | None:
    """The year of publication in a citation of `read_references`; None where it states none."""
    found = _YEAR.findall(citation)
    return int(found[-1]) if found else None


def _fields(text: str, start: int, where: str) -> dict[str, str]:
    """The fields of the entry whose first field begins at ``start``."""
    fields: dict[str, str] = {}
    position = start
    while match := _FIELD.match(text, position):
        opening = text[match.end() : match.end() + 1]
        if opening == '"':
            end = text.find('"', match.end() + 1)
            inner, position = text[match.end() + 1 : end], end + 1
        elif opening == "{":
            end = _closing(text, match.end(), where)
            inner, position = text[match.end() + 1 : end], end + 1
        else:
            bare = _BARE.match(text, match.end())
            if bare is None:
                raise PerfgridError(f"{where}: field {match[1]!r} is empty")
            inner, position = bare[0], bare.end()
        fields[match[1].lower()] = " ".join(re.sub(r"[{}]", "", inner).split())
    return fields


def _closing(text: str, opening: int, where: str) -> int:
    depth = 0
    for i in range(opening, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i
    raise PerfgridError(f"{where}: a brace is never closed")


def _citation(fields: dict[str, str]) -> str:
    """Authors, title, venue, year and link in one line."""
    authors = [a.strip() for a in fields.get("author", "").split(" and ") if a.strip()]
    names = authors[0] + " et al." if len(authors) > 2 or "others" in authors else " and ".join(authors)
    venue = next(
        (fields[k] for k in ("journal", "booktitle", "howpublished", "institution", "publisher") if k in fields), ""
    )
    links = (prefix + fields[k] for k, prefix in (("doi", "doi:"), ("eprint", "arXiv:"), ("url", "")) if k in fields)
    parts = (names, fields.get("title", ""), venue, fields.get("year", ""), next(links, ""))
    return ", ".join(p for p in parts if p)
