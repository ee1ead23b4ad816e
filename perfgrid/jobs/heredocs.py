"""Files that a script writes from its own text (``cat > config.yml <<EOF``) and hands to a program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from perfgrid.engine.errors import PerfgridError

from .shell import script_of
from .syntaxes import HERE

_TARGET = re.compile(r">{1,2}\s*([\"']?)([^\s\"'<>|;&]+)\1|\btee\s+(?:-a\s+)?([\"']?)([^\s\"'<>|;&-][^\s\"'<>|;&]*)\3")
_USED = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_ASSIGNED = re.compile(r"^\s*(?:export\s+)?(\w+)=", re.MULTILINE)


def files_written(text: str, file: str) -> dict[str, str]:
    """The files that a script writes from here-documents, by the last part of their path.

    Variables that it assigns once are put in, others stay as they are written. Nothing is executed.
    """
    if "<<" not in text:
        return {}
    known = _known(text, file)
    return {
        _put_in(target, known).rpartition("/")[2]: body if quoted else _put_in(body, known)
        for target, quoted, body in _documents(text)
    }


def _documents(text: str) -> Iterator[tuple[str, bool, str]]:
    """Target, whether its variables stay, and text of each here-document that goes to a file."""
    lines = iter(text.splitlines())
    for line in lines:
        marker = None if line.lstrip().startswith("#") else HERE.search(line)
        if marker is None:
            continue
        body = []
        for inner in lines:
            if inner.strip() == marker[2]:
                break
            body.append(inner)
        if target := _TARGET.search(HERE.sub(" ", line)):
            yield target[2] or target[4], bool(marker[1]), "\n".join(body) + "\n"


def _known(text: str, file: str) -> dict[str, str]:
    """The variables that a script assigns once, with their values."""
    try:
        values = script_of(text, file).variables
    except PerfgridError:
        return {}
    names = _ASSIGNED.findall(text)
    return {name: value for name, value in values.items() if names.count(name) == 1 and "\0" not in value}


def _put_in(text: str, known: Mapping[str, str]) -> str:
    return _USED.sub(lambda used: known.get(used[1] or used[2], used[0]), text)
