"""The one exception that a user's mistake raises, and the search for the name that was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

LONGEST = 2000  # characters of a message: what was found may be a whole file
SHOWN = 100  # characters of a value in a message
CONTROLS = re.compile(  # Unicode's categories Cc, Cs, Zl and Zp, and what reorders text: UAX 9, section 2
    "[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff\\u2028\\u2029\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]"
)
# Earlier name -> what to write instead, where no single name replaced it.
GONE: dict[str, str] = {
    "pools": 'two pools are the workload "pools" with the tables [prefill] and [decode], or serve --prefill auto',
}
OWN_FILE = "__own_file__"  # global of a module that a user wrote: the path as the user gave it


def printable(text: str) -> str:
    """Text on one line without `CONTROLS`: ``\\x1b`` for an escape, ``\\n`` for a line break.

    Names, titles and paths may come from a stranger's file; raw, they could recolour a terminal or forge its lines.
    """
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable_lines(text: str) -> str:
    """Text of many lines, such as a file, without `CONTROLS` but line breaks and tabs: ``\\u001b`` for an escape.

    So JSON, TOML and YAML write such a character themselves, wherever it may stand in them.
    """
    return CONTROLS.sub(lambda found: found[0] if found[0] in "\n\r\t" else f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """A message on one line without control characters; the middle of a very long one is left out."""
    return shortened(printable(" ".join(text.splitlines())))


def shortened(text: str, most: int = LONGEST) -> str:
    """Text of about ``most`` characters at most: the middle of a longer one is left out."""
    return text if len(text) <= most else f"{text[: most * 3 // 4]} ... {text[-most // 4 :]}"


def shown(value: Any) -> str:
    """What was found, as Python writes it, in a message."""
    return shortened(repr(value), SHOWN)


def mistake_text(mistake: Any) -> str:
    """What pydantic says of a value, as the middle of a sentence."""
    text = mistake["msg"].removeprefix("Value error, ")
    return text[0].lower() + text[1:]


class PerfgridError(ValueError):
    """A mistake in a study, a catalog or a formula, reported in one line that names the place and the remedy."""

    def __str__(self) -> str:
        return one_line(super().__str__())


class MissingQuantity(PerfgridError):
    """A quantity that a formula needs and nothing states."""

    def __init__(self, quantity: str, reader: str, hint: str):
        super().__init__(
            f"quantity {quantity!r}, needed by {reader!r}, is neither given nor computed by a formula{hint}"
        )
        self.quantity, self.reader = quantity, reader


def in_own_file(error: BaseException) -> str | None:
    """An error, or what caused it, with the innermost line of a user's own file: ``FILE.py, line 3: NameError: ...``.

    None where it passed no such file.
    """
    place, trace, cause = None, error.__traceback__, error.__cause__
    while trace is not None:
        if file := trace.tb_frame.f_globals.get(OWN_FILE):
            place = f"{file}, line {trace.tb_lineno}"
        trace = trace.tb_next
    if place is None:
        return None if cause is None or cause is error else in_own_file(cause)
    kind = "" if isinstance(error, PerfgridError) else f"{type(error).__name__}: "
    return f"{place}: {kind}{next(iter(str(error).splitlines()), '')}"


def nearest(name: str, legal: Iterable[str], count: int = 3) -> str:
    """The legal names closest to ``name`` as the end of a message; empty where none is near and the list is long.

    Names with these initials come first (mfu), then names that begin with it: who writes h100 means that family. Of an
    earlier name it says what to write instead.
    """
    if name in GONE:
        return f"; {GONE[name]}"
    legal = sorted(set(legal))
    initials = [n for n in legal if len(name) > 2 and "".join(w[:1] for w in n.split("_")) == name.lower()]
    family = [n for n in sorted(legal, key=len) if len(name) > 2 and n.lower().startswith(name.lower())]
    close = [*initials, *family, *difflib.get_close_matches(name, legal, n=count, cutoff=0.5)]
    if close:
        return "; did you mean " + " or ".join(repr(c) for c in list(dict.fromkeys(close))[:count]) + "?"
    if 0 < len(legal) <= 12:
        return "; legal names: " + ", ".join(legal)
    return ""


def together(mistakes: Iterable[str]) -> str:
    """Several mistakes as one text, so that nobody learns of them one by one."""
    told = ""
    for mistake in mistakes:
        told += (" Also: " if told.endswith("?") else "; also: ") + mistake if told else mistake
    return told
