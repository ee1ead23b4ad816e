"""What one file states, in its syntax: command lines, scripts, TOML, YAML, JSON, recipes in Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import takewhile
from math import prod
from typing import Any, Literal

from perfgrid.catalog.reading import from_json, from_toml, from_yaml
from perfgrid.engine.errors import PerfgridError, shown

from .arguments import Arguments
from .launcher import Launched, Layer, launched_by, step_around, variables_of
from .recipes import recipes_of
from .shell import UNREAD, Script, script_of

Syntax = Literal["flags", "pairs", "variables", "toml", "json", "yaml", "python"]
TABLES: tuple[Syntax, ...] = ("toml", "json", "yaml")  # syntaxes of files that hold a table
COMMENTED = ("flags", "pairs", "variables", "toml", "yaml", "python")  # syntaxes with comments
PROGRAMS = (".py", ".sh")
PRESUMED = "set by no file: taken as unset, so that what the script states for that holds"
MOST_REFERENCES = 8  # in one value, one behind the other
LONGEST = 4096  # characters of a value with references
_REFERENCE = re.compile(r"\$\{(?:oc\.env:(\w+)(?:,([^{}]*))?|(\.{0,4}\w[\w.]*)(?::([^{}]*))?)\}")
_KEY = re.compile(r"\w+:")
_CHOICE = re.compile(r"([a-z]+(?:-[a-z]+)+):([a-z]+)")
_PAIR = re.compile(r"([a-z_][\w.]*)=(.*)", re.DOTALL)
_YAML = re.compile(r"(- )?[\"']?[\w./-]+[\"']?:(\s|$)|- |---$")  # a key, an item of a list
HERE = re.compile(r"<<-?\s*([\"']?)([A-Za-z_]\w*)\1")  # the mark of a here-document
_SHELL = re.compile(r"#!.*\b(?:ba|z|k|da)?sh\b")
_PYTHON = re.compile(r"(from [\w.]+ import |import \w|def \w+\(|class \w+|@\w|\"\"\"|\w+(\.\w+)+ = )")


@dataclass(frozen=True)
class Part:
    """What one command, one recipe or one file states, under a name."""

    name: str
    stated: list[tuple[str, Any]]
    notes: list[tuple[str, str]] = field(default_factory=list)  # what of it was not read, and why
    unsure: bool = False  # under a condition, or in a function
    named: bool = False  # its program is one of the format
    devices: Launched = field(default_factory=Launched)  # as what starts its processes states them


Launchers = Mapping[str, Mapping[str, int | str]]  # a script -> its keys -> variables that it hands on, numbers, =words


def parts_of(
    text: str,
    file: str,
    syntax: Syntax,
    script: Script,
    launchers: Launchers,
    programs: Iterable[str] = (),
    arguments: Arguments | None = None,
    allocation: Layer | None = None,
) -> tuple[list[Part], list[tuple[str, str]]]:
    """The parts of a file in a syntax, behind scripts already read, and notes on what was not read."""
    if syntax in TABLES:
        return [Part(file, list(_put_in(dict(_table(text, file, syntax)), script.variables)))], []
    if syntax == "python":
        recipes = recipes_of(text, file)
        if not any(recipe.stated for recipe in recipes):
            raise PerfgridError(f"{file}: assigns no settings")
        return [Part(recipe.name, recipe.stated, recipe.notes) for recipe in recipes], []
    if text.rstrip().endswith("\\"):
        raise PerfgridError(f"{file}: ends within a command (its last line is to be continued)")
    script.commands, script.unsure, script.notes, script.presumed = [], [], [], {}
    script_of(text, file, script)
    if script.presumed:
        script.notes.append((", ".join(script.presumed), PRESUMED))
    if syntax == "variables":
        given = {} if allocation is None else variables_of(allocation)
        own = [(name, value) for name, value in script.variables.items() if given.get(name) != value]
        return [Part(file, own)], script.notes
    around = step_around(text, script.variables)
    parts = []
    for words, unsure in (*((w, False) for w in script.commands), *((w, True) for w in script.unsure)):
        program, rest = _from_program(words, programs)
        variables = {**script.variables, **words.environment}
        devices, behind = launched_by(words, allocation or Layer(), variables, around)
        if syntax != "flags":
            read = _pairs([*program, *rest] or behind)
        elif program and arguments is not None and arguments.positional:
            read = _arguments(rest, arguments)
        else:
            read = _flags([*program, *rest] or behind, arguments or Arguments())
        stated = [*_handed_on(words, variables, launchers), *read]
        parts.append(Part(words.title, stated, unsure=unsure, named=bool(program), devices=devices))
    return parts, script.notes


def _handed_on(words: list[str], variables: Mapping[str, str], launchers: Launchers) -> Iterator[tuple[str, Any]]:
    """What a command makes of the variables that it is given, or states by its name; ``*`` stands for any command."""
    for pattern, keys in launchers.items():
        if not any(fnmatchcase(word.rpartition("/")[2], pattern) for word in words):
            continue
        for key, name in keys.items():
            if isinstance(name, int) or name in variables:
                yield key, name if isinstance(name, int) else variables[name]
            elif name.startswith("="):
                yield key, name[1:]


def launched(words: list[str], programs: Iterable[str]) -> list[str]:
    """A command from the program that it starts on, one of some patterns of words; empty if it starts none.

    An image of a container stands for the program that it starts: ``vllm/vllm-openai* = vllm serve``.
    """
    program, rest = _from_program(words, programs)
    return [*program, *rest]


def _from_program(words: list[str], programs: Iterable[str]) -> tuple[list[str], list[str]]:
    """The words of the program that a command starts, and those behind it; both empty if it starts none of them."""
    for program in programs:
        pattern, _, stands_for = program.partition(" = ")
        wanted = pattern.split()
        for i in range(len(words) - len(wanted) + 1):
            if all(
                map(
                    fnmatchcase,
                    [words[i].rpartition("/")[2] if "/" not in pattern else words[i], *words[i + 1 :]],
                    wanted,
                )
            ):
                return stands_for.split() or wanted, words[i + len(wanted) :]
    return [], []


def syntax_of(text: str, legal: tuple[Syntax, ...]) -> Syntax:
    """The syntax of a text among those that a format has, by its first lines."""
    lines = [line.strip() for line in _own_lines(text) if line.strip() and not line.lstrip().startswith("#")]
    first = lines[0] if lines else ""
    in_lines: list[Syntax] = [syntax for syntax in legal if syntax not in (*TABLES, "python")]
    if _SHELL.match(text) and in_lines:
        return in_lines[0]
    if "python" in legal and _PYTHON.match(first):
        return "python"
    if "json" in legal and first.startswith("{"):
        return "json"
    if "toml" in legal and (first.startswith("[") or (" = " in first and not first.startswith("-"))):
        return "toml"
    if "yaml" in legal and sum(map(_in_yaml, lines, ["", *lines])) > len(lines) / 2:
        return "yaml"
    return in_lines[0] if in_lines else legal[0]


def _in_yaml(line: str, before: str) -> bool:
    """Whether a line could be one of YAML: a key, an item of a list, the value of a key on the line before it."""
    return _YAML.match(line) is not None or line.startswith("- ") or bool(_KEY.fullmatch(before))


@lru_cache(maxsize=32)  # a text is looked at once for each format
def _table(text: str, file: str, syntax: Syntax) -> list[tuple[str, Any]]:
    """The settings of a file that holds a table. PerfgridError for another one, and for a setting that stands twice."""
    table = {"toml": from_toml, "json": from_json, "yaml": from_yaml}[syntax](text, f"{file}: ")
    if not isinstance(table, Mapping):
        raise PerfgridError(f"{file}: holds no table of settings")
    stated = list(_flat(table))
    known: dict[str, Any] = {}
    for key, value in stated:  # a key that holds points, and a table in a table
        if key in known:
            raise PerfgridError(f"{file}: {key} stands twice: {shown(known[key])} and {shown(value)}: keep one of them")
        known[key] = value
    return stated


def _own_lines(text: str) -> Iterator[str]:
    """The lines of a text without those of here-documents, which are files of their own."""
    lines = iter(text.splitlines())
    for line in lines:
        yield line
        if marker := HERE.search(line):
            next((inner for inner in lines if inner.strip() == marker[2]), None)


def _flat(table: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Keys of inner tables behind those of outer ones, with points between; lists are joined."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", ",".join(map(str, value)) if isinstance(value, list) else value


def _put_in(table: dict[str, Any], variables: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """A table with its references put in: ``${model.length}``, ``${.length}`` of the same table, ``${NAME:default}`` of
    the environment, as Hydra and Primus write them. What is not known stays as it is.
    """
    for key, value in table.items():
        for _ in range(MOST_REFERENCES):
            if not isinstance(value, str) or len(value) > LONGEST or not (found := _REFERENCE.search(value)):
                break
            name, default = found[1] or found[3], found[2] if found[1] else found[4]
            if name == "multiply" and default:
                factors = [part.strip() for part in default.split(",")]
                default = str(prod(map(int, factors))) if all(len(f) < 9 and f.isdigit() for f in factors) else None
            elif default is not None and name != name.upper():
                default = None  # a resolver that is not known
            before = key.rpartition(".")[0]
            while name.startswith("."):
                name, before = name[1:], (before if name[1:2] != "." else before.rpartition(".")[0])
                name = name if name.startswith(".") or not before else f"{before}.{name}"
            held = table.get(name, variables.get(name, default))
            if held is None or held == value or value.count(found[0]) * len(str(held)) > LONGEST:
                break
            value = held if found[0] == value else value.replace(found[0], str(held))
            value = None if value == "null" else value
        yield key, value


def _flags(words: list[str], of: Arguments) -> Iterator[tuple[str, Any]]:
    """``--key value``, ``--key=value`` and ``--key`` (true); several values are joined with blanks.

    Where the program takes pairs, a bare ``key=value`` that is no value of a flag is a setting, too.
    """
    key, values, equals = "", list[str](), ""
    words = [part for word in words for part in _pieces(word)]
    words = [f"{word}.py" if before == "-m" else word for before, word in zip(["", *words], words, strict=False)]
    for word in [*words, "--"]:
        if word == "-m":
            continue
        if word.startswith("-") and not _is_number(word):
            yield from _flag(key, values if equals else _own_values(key, values, of))
            name, equals, value = word.partition("=")
            key, values = name.lstrip("-"), [value] if equals else []
        elif found := _CHOICE.fullmatch(word):  # a sub-command of tyro, such as activation-checkpoint:full
            yield from _flag(key, values)
            yield f"{found[1]}:", found[2]
            key, values = "", []
        elif of.pairs and (values or not key) and (found := _PAIR.fullmatch(word)):
            yield from _flag(key, values)
            yield found[1], found[2]
            key, values = "", []
        elif word.endswith(PROGRAMS):  # what stood before concerned its launcher
            yield from _flag(key, values)
            key, values = "", []
        elif key:
            values.append(word)


def _own_values(key: str, values: list[str], of: Arguments) -> list[str]:
    """The values of a flag without words behind them of which nothing is known: ``"$@"`` behind a switch or a value."""
    if of.is_list(key):
        return values
    own = [] if of.is_switch(key) else values[:1]
    return own if values and all(value == UNREAD for value in values[len(own) :]) else values


def _pieces(word: str) -> list[str]:
    """A word that holds several flags, as those; a value in JSON stays whole."""
    return word.split() if word.startswith("--") and "{" not in word else [word]


def _arguments(words: list[str], of: Arguments) -> Iterator[tuple[str, Any]]:
    """The flags of a program whose words are known: one value each, none, or several; the first word left over is its
    positional argument.
    """
    left, words, stated = list[str](), [part for word in words for part in _pieces(word)], set[str]()
    places = iter(range(len(words)))
    for i in places:
        word = words[i]
        if not word.startswith("-") or _is_number(word) or word == "-":
            left.append(word)
            continue
        key, equals, value = word.lstrip("-").partition("=")
        stated.add(of.named(key))
        if not word.startswith("--") and key not in of.names and key[:1] in of.names and key[1:2].isalnum():
            key, equals, value = key[0], "=", word[2:]  # -O3
        if (off := of.negated(key)) is not None:
            yield off, False
        elif equals:
            yield from _flag(key.rstrip("+"), [value])
        elif of.is_switch(key):
            yield key, True
        else:
            behind = [w for w in words[i + 1 :] if w]
            taken = list(takewhile(lambda w: not w.startswith("-") or _is_number(w), behind))
            taken = taken if of.is_list(key) else taken[:1]
            for _ in taken:
                next(places)
            yield from _flag(key.rstrip("+"), taken)
    known = [word for word in left if word != UNREAD]  # "$@" is no model
    if left and (known or of.positional not in stated):
        yield of.positional, (known or left)[0]


def _flag(key: str, values: list[str]) -> Iterator[tuple[str, Any]]:
    """A flag with its values; a table in JSON is that of its keys behind points."""
    if key and len(values) == 1 and values[0].startswith("{"):
        try:
            yield from _flat({key: from_json(values[0], "")})
            return
        except PerfgridError:
            pass
    if key:
        yield key, " ".join(values) if values else True


def _pairs(words: list[str]) -> Iterator[tuple[str, Any]]:
    """``key=value`` and ``--key value``; a leading ``--``, ``+`` or ``++`` is left out."""
    for word, behind in zip(words, [*words[1:], ""], strict=True):
        key, equals, value = word.partition("=")
        name = key.lstrip("-+")
        if equals and re.fullmatch(r"[\w.-]+", name):
            yield name, value
        elif not equals and key.startswith("--") and behind and "=" not in behind and not behind.startswith("-"):
            yield name, behind


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
