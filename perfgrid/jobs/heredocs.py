"""Files that a script writes from its own text (``cat > config.yml <<EOF``) and hands to a program."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfgrid.engine.errors import PerfgridError

from .shell import is_unread, script_of
from .syntaxes import HERE

_TARGET = re.compile(r">{1,2}\s*([^\s<>|;&]+)|\btee\s+(?:-a\s+)?([^\s<>|;&-][^\s<>|;&]*)")
_WRITES = "perfgrid-writes"  # stands for the command that writes a file
_OPEN = "${NOT_READ}"  # a value that the script does not state, as settings have it


def files_written(text: str, file: str) -> dict[str, str]:
    """The files that a script writes from here-documents, by the last part of their path, with its variables put in.

    The reader of shells does that: a here-document is read as a word in quotes behind the name of its file.
    """
    if "<<" not in text:
        return {}
    try:
        script = script_of("\n".join(_as_words(text)), file)
    except PerfgridError:
        return {}
    found = {}
    for words in (*script.unsure, *script.commands):
        if words[0] == _WRITES and len(words) > 2:
            name = "" if is_unread(words[1]) else words[1].rpartition("/")[2]
            found[name or words[-1]] = "".join(_OPEN if is_unread(c) else c for c in words[2])
    return found


def _as_words(text: str) -> Iterator[str]:
    """The lines of a script, a here-document that goes to a file as one command: file, text, file as it is written."""
    lines = iter(text.splitlines())
    for line in lines:
        marker = None if line.lstrip().startswith("#") else HERE.search(line)
        if marker is None:
            yield line
            continue
        body = []
        for inner in lines:
            if inner.strip() == marker[2]:
                break
            body.append(inner)
        if target := _TARGET.search(HERE.sub(" ", line)):
            path, held = target[1] or target[2], "\n".join(body)
            quoted = "'" + held.replace("'", "'\\''") + "'" if marker[1] else '"' + held.replace('"', '\\"') + '"'
            yield f"{_WRITES} {path} {quoted} {named_by(path)}"


def named_by(path: str) -> str:
    """The name of a file by which a script means it: the last part of its path, or the variable that holds it."""
    return re.sub(r"[^\w.-]", "", path.strip("\"'").rpartition("/")[2])
