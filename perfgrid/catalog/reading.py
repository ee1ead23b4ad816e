"""Files and texts from outside, within limits: no small input takes all memory, time or stack, and none loses a value.

A key that stands twice in one table is refused: all parsers but TOML's would keep the last value without a word.
"""

from __future__ import annotations

import csv
import json
import math
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perfgrid.engine.errors import SHOWN, PerfgridError, printable, shortened

LARGEST_FILE = 2**26  # bytes
LARGEST_WRITTEN = 2**22  # characters of TOML and YAML, which people write: about a second for each million
DEEPEST = 64  # tables and lists within each other
LARGEST_INTEGER = 1024  # bits: floating point holds no larger number
LONGEST_NUMBER = 400  # characters of a number in YAML: one of base 60 takes time with its square
LARGEST_CELL = 2**16  # characters of a cell of a table
_TOO_DEEP = f"more than {DEEPEST} tables or lists stand within each other"
_TOO_LONG = "an integer of more than 308 digits is no number to compute with"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)  # of JSON
_OF_TAGS = (ValueError, ArithmeticError, AttributeError, LookupError, TypeError)  # a value that is none of its tag
_OVERWRITTEN = re.compile(r"Cannot (?:overwrite|declare|mutate).*\(at (?:line (\d+), |end)")  # as tomllib says it


class Malformed(PerfgridError):
    """Text that is not what it should be, TOML or JSON."""


class LeftOut(UserWarning):
    """Lines of a file that are not used, with their number."""


class _Repeated(Exception):
    """A key that stands twice in one table."""


# ---- files ----------------------------------------------------------------------------------------------------------


def check_file(path: Path, largest: int = LARGEST_FILE) -> Path:
    """The path of a regular file of at most so many bytes; PerfgridError for anything else, such as a pipe."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:  # a path may hold a null character
        raise PerfgridError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(found.st_mode):
        raise PerfgridError(f"{path}: cannot be read: it is a folder, such as a store of results, and no file")
    if not stat.S_ISREG(found.st_mode):
        raise PerfgridError(f"{path}: cannot be read: it is a pipe or a device and no file")
    if found.st_size > largest:
        sizes = f"{found.st_size / 2**20:,.0f} MiB, and at most {largest / 2**20:g} MiB"
        raise PerfgridError(f"{path}: cannot be read: it holds {sizes} are read")
    return path


def read_text(path: Path, largest: int = LARGEST_FILE) -> str:
    """The text of a file in UTF-8. PerfgridError where it cannot be read."""
    try:
        return check_file(path, largest).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise PerfgridError(f"{path}: cannot be read: it is not a text file (UTF-8)") from None
    except OSError as error:
        raise PerfgridError(f"{path}: cannot be read: {error.strerror or error}") from None


# ---- TOML, JSON, YAML -----------------------------------------------------------------------------------------------


def from_toml(text: str, where: str = "") -> dict[str, Any]:
    """A TOML document. Raises Malformed, and PerfgridError for one beyond the limits; both begin with ``where``."""
    _check_length(text, "TOML", where)
    return _parsed(tomllib.loads, "TOML", text, where)


def from_json(text: str, where: str = "", finite: bool = True) -> Any:
    """A JSON value; errors like those of `from_toml`, and PerfgridError for a key that stands twice in one table.

    ``finite``: NaN, Infinity and what floating point does not hold are refused, too; programs in Python write them.
    """
    found = _parsed(_loads, "JSON", text, where)
    if finite:
        _check_finite(found, where)
    return found


def from_yaml(text: str, where: str = "", every: bool = False) -> Any:
    """A YAML value of plain tables, lists and scalars, or ``every`` document as a list; aliases, with which texts grow
    without limit, are refused, and keys that stand twice in one table.
    """
    import yaml

    _check_length(text, "YAML", where)
    depth, loader = 0, _yaml_loader()
    try:
        for event in yaml.parse(text, loader):
            if isinstance(event, yaml.AliasEvent):
                raise PerfgridError(f"{where}YAML with aliases (*name) is not read")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise PerfgridError(f"{where}{_TOO_DEEP}")
        found = list(yaml.load_all(text, loader)) if every else yaml.load(text, loader)
    except _Repeated as repeated:
        raise PerfgridError(f"{where}{repeated}") from None
    except PerfgridError:
        raise
    except (yaml.YAMLError, *_OF_TAGS) as error:
        told = (
            "a value that its tag does not allow" if isinstance(error, _OF_TAGS[2:]) else " ".join(str(error).split())
        )
        raise Malformed(f"{where}not valid YAML: {told}") from None
    check_extent({"": found}, where)
    return found


def _check_length(text: str, form: str, where: str) -> None:
    if len(text) > LARGEST_WRITTEN:
        raise PerfgridError(f"{where}{form} of more than {LARGEST_WRITTEN:,} characters is not read")


def _parsed(parse: Callable[[str], Any], form: str, text: str, where: str) -> Any:
    try:
        found = parse(text)
    except _Repeated:
        raise PerfgridError(f"{where}{_repeated_in(text)}") from None
    except RecursionError:
        raise PerfgridError(f"{where}{_TOO_DEEP}") from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        cut = isinstance(error, json.JSONDecodeError) and (
            error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        )
        ending = ": the text ends early" if cut else _overwritten(text, str(error))
        raise Malformed(f"{where}not valid {form}: {error}{ending}") from None
    except ValueError:  # of Python's own limit to the digits of an integer
        raise PerfgridError(f"{where}{_TOO_LONG}") from None
    check_extent(found, where)
    return found


def check_extent(document: Any, where: str = "") -> None:
    """PerfgridError for what nothing may hold: tables too deep, too large an integer, a key of several lines."""
    level: list[tuple[str, Any]] = [(where, [document])]
    for _ in range(DEEPEST + 1):
        inside = []
        for place, holder in level:
            for key, value in holder.items() if isinstance(holder, Mapping) else ((None, part) for part in holder):
                if isinstance(key, str) and not (key.isascii() and key.isprintable()) and printable(key) != key:
                    raise PerfgridError(f"{place}the key {key!r} holds characters that cannot be printed")
                if isinstance(value, (str, float)):
                    continue
                if isinstance(value, int) and value.bit_length() > LARGEST_INTEGER:
                    raise PerfgridError(f"{_named(place, key)}{_TOO_LONG}")
                if isinstance(value, (Mapping, list, tuple)):
                    inside.append((place if key is None else f"{place}{key}.", value))
        if not inside:
            return
        level = inside
    raise PerfgridError(f"{where}{_TOO_DEEP}")


def _named(place: str, key: Any) -> str:
    """The beginning of a message about a value: the place of its table or list, with its key where it has one."""
    if key in (None, ""):
        return f"{place[:-1]}: " if place.endswith(".") else place
    return f"{place}{key}: "


def _check_finite(document: Any, where: str) -> None:
    """PerfgridError for the first number of a document that is not finite."""
    left = [(where, document)]
    while left:
        place, holder = left.pop()
        for key, value in holder.items() if isinstance(holder, dict) else [("", holder)]:
            for part in value if isinstance(value, list) else (value,):
                if isinstance(part, float) and not math.isfinite(part):
                    raise PerfgridError(f"{_named(place, key)}{part} is no finite number")
                if isinstance(part, (dict, list)):
                    left.append((f"{place}{key}." if key else place, part))


# ---- keys that stand twice ------------------------------------------------------------------------------------------


def twice(key: str, first: str, line: int, second: str, again: int) -> str:
    """What to say of a key that has two values in one table."""
    lines = (f" in line {line}", f" in line {again}") if line != again else ("", "")
    return f"the key {key!r} stands twice: {first}{lines[0]} and {second}{lines[1]}: keep one of them"


def _loads(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Repeated
    return found


def _repeated_in(text: str) -> str:
    """The first key that stands twice in a table of JSON, with both lines and values."""
    line, at = 1, 0
    opened: list[_Opened] = []
    for token in _TOKEN.finditer(text):
        line, at, word = line + text.count("\n", at, token.start()), token.start(), token[0]
        if word in ",:":
            continue
        holder = opened[-1] if opened else _Opened(None)
        if word in "}]":
            opened = opened[:-1]
            (opened[-1] if opened else holder).key = None
        elif holder.known is not None and holder.key is None:
            holder.key, holder.line = json.loads(word, strict=False), line
        else:
            if holder.known is not None:
                value = {"{": "a table", "[": "a list"}.get(word) or shortened(word, SHOWN)
                if holder.key in holder.known:
                    path = ".".join(one.key for one in opened if one.key is not None)
                    return twice(path, *holder.known[holder.key], value, holder.line)
                holder.known[holder.key] = value, holder.line
            if word in "{[":
                opened.append(_Opened({} if word == "{" else None))
            else:
                holder.key = None
    return "a key stands twice in one table"


@dataclass
class _Opened:
    """A table of JSON that is read, with the values and lines of its keys; ``known`` is None for a list."""

    known: dict[Any, tuple[str, int]] | None
    key: Any = None  # whose value comes next
    line: int = 0


def _overwritten(text: str, message: str) -> str:
    """The key that a TOML document states for a second time, behind tomllib's message."""
    found = _OVERWRITTEN.match(message)
    if found is None:
        return ""
    lines = text.rstrip().splitlines()
    stated = lines[int(found[1]) - 1 if found[1] else -1]
    return f": {shortened(stated.partition('=')[0].strip(), SHOWN)} stands twice"


@cache
def _yaml_loader() -> Any:
    """PyYAML's safe loader, ten times as fast where it is built with libyaml, without what would lose a value."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            known: dict[str, tuple[str, int]] = {}
            for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
                if isinstance(key, yaml.ScalarNode):
                    kind = {yaml.MappingNode: "a table", yaml.SequenceNode: "a list"}.get(type(value))
                    told = kind or shortened(value.value, SHOWN), key.start_mark.line + 1
                    name = str(self.construct_object(key))  # yes is true, and 1 would be "1" as a name
                    if name in known:
                        raise _Repeated(twice(str(key.value), *known[name], *told))
                    known[name] = told
            return super().construct_mapping(node, deep)

        def number(self, node: Any) -> Any:
            if len(node.value) > LONGEST_NUMBER:
                raise ValueError(f"line {node.start_mark.line + 1}: {_TOO_LONG}")
            kind = node.tag.rpartition(":")[2]
            return getattr(super(), f"construct_yaml_{kind}")(node)

    for kind in ("int", "float"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", Loader.number)
    return Loader


# ---- tables ---------------------------------------------------------------------------------------------------------


def csv_rows(lines: Iterable[str], where: str, first: int = 1) -> Iterator[tuple[int, list[str]]]:
    """The cells of lines of CSV, of which the first has a number, with that of the line that ends each row.

    PerfgridError, which begins with ``where``, for a cell beyond the limits and one that no quotation mark ends.
    """
    reader = csv.reader(lines, strict=True)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            place = f"{where}:{max(reader.line_num, 1) + first - 1}"
            raise PerfgridError(f"{place}: not valid CSV: {error}") from None
        if row is None:
            return
        line = reader.line_num + first - 1
        if any(len(cell) > LARGEST_CELL for cell in row):
            raise PerfgridError(f"{where}:{line}: a cell of more than {LARGEST_CELL:,} characters")
        yield line, row


def check_columns(names: Iterable[str], where: str) -> None:
    """PerfgridError for a column that stands twice: one of them would be lost."""
    known: set[str] = set()
    for name in names:
        if name and name in known:
            raise PerfgridError(f"{where}: two columns state {name}: keep one of them")
        known.add(name)
