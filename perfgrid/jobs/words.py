"""Values of settings: as text, as words of a case, as numbers of perfgrid."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from perfgrid.catalog.schema import convert
from perfgrid.engine.errors import PerfgridError, printable, shortened

from .arguments import suffixed
from .formats import Key, glossary

NULL = "null"  # in a case: a key that is stated and not in effect
UNSET = ("null", "none", "")  # values of a key that is not in effect
TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def words_of(value: Any) -> set[str]:
    """The words of a list as any syntax states it."""
    return set(re.split(r"[\s,\[\]'\"]+", "" if value is None else str(value)))


def in_list(wanted: Any) -> list[Any]:
    """The words of a case, one or several."""
    return wanted if isinstance(wanted, list) else [wanted]


def equal(value: Any, word: Any) -> bool:
    """Whether a stated value is a word of a case; true and false as any program spells them."""
    text, wanted = text_of(value), text_of(word)
    if isinstance(word, bool):
        return (text.lower() not in FALSE) == word
    if wanted.lower() in ("true", "false"):
        return text.lower() in (TRUE if wanted.lower() == "true" else FALSE)
    return fnmatchcase(text, wanted) if "*" in wanted else text == wanted


def plainly(key: str) -> str:
    """A key as it is compared with those that the user leaves out."""
    return key.lstrip("-").replace("_", "-")


def converted(row: Key, value: Any, where: str) -> Any:
    """The value of a key in perfgrid's form. PerfgridError for what it may not hold."""
    text = text_of(value)
    variable = glossary().get(row.quantity)
    kind = row.kind or (variable.kind if variable else "integer")
    if kind == "switch":
        return (text.lower() not in FALSE) != row.inverted
    if kind == "flag":
        if text.lower() not in (*TRUE, *FALSE):
            raise PerfgridError(f"{where} needs true or false, found {text!r:.60}")
        return (text.lower() in TRUE) != row.inverted
    if kind in ("text", "label", "code"):
        if row.words and text not in row.words and variable is not None:
            raise PerfgridError(f"{where} needs one of {', '.join(row.words)}, found {text!r:.60}")
        return row.words.get(text, text)
    try:
        number = float((suffixed(text) if row.suffixed else text).split()[0] if text.split() else text)
    except ValueError:
        raise PerfgridError(f"{where} needs a number, found {text!r:.60}") from None
    if variable is not None and variable.kind in ("integer", "number"):
        return plain(convert(variable, number, where), row.quantity)
    if kind == "integer" and (number != int(number) if abs(number) < 1e18 else True):
        raise PerfgridError(f"{where} needs a whole number, found {text!r:.60}")
    return int(number) if kind == "integer" else number


def check_experts(values: Mapping[str, Any], where: str) -> None:
    """PerfgridError where the experts' ranks do not divide those of a stage."""
    if "ep" not in values or "etp" not in values:
        return
    ranks = values.get("tp", 1) * values.get("cp", 1) * values.get("dp", 1)
    if ranks % (values["ep"] * values["etp"]):
        raise PerfgridError(
            f"{where}ep {values['ep']} x etp {values['etp']} does not divide the {ranks} ranks tp x cp x dp of a stage"
        )


def text_of(value: Any) -> str:
    """A value of a setting as one short line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return shortened(printable(str(value)), 200)


def plain(value: Any, name: str) -> Any:
    """A value of a quantity as a study states it."""
    variable = glossary()[name]
    value = variable.word(value)
    return int(value) if variable.kind == "integer" and isinstance(value, float) else value
