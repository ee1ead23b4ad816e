"""What one file states, in its syntax: command lines, scripts, TOML, YAML, JSON, recipes in Python."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from perfgrid.catalog.reading import LARGEST_FILE, check_extent, from_json, from_toml
from perfgrid.engine.errors import PerfgridError, shortened

from .recipes import recipes_of
from .shell import Script, script_of

Syntax = Literal["flags", "pairs", "variables", "toml", "json", "yaml", "python"]
TABLES: tuple[Syntax, ...] = ("toml", "json", "yaml")  # syntaxes of files that hold a table
COMMENTED = ("flags", "pairs", "variables", "toml", "yaml", "python")  # syntaxes with comments
SUBCOMMANDS = (("vllm", "serve"), ("trtllm-serve",), ("trtllm-serve", "serve"))  # a model stands behind these
MODEL = "model"
PROGRAMS = (".py", ".sh")
_CHOICE = re.compile(r"([a-z]+(?:-[a-z]+)+):([a-z]+)")
_PYTHON = re.compile(r"(from [\w.]+ import |import \w|def \w+\(|class \w+|@\w|\"\"\"|\w+(\.\w+)+ = )")


@dataclass(frozen=True)
class Part:
    """What one command, one recipe or one file states, under a name."""

    name: str
    stated: list[tuple[str, Any]]
    notes: list[tuple[str, str]] = field(default_factory=list)  # what of it was not read, and why


Launchers = Mapping[str, Mapping[str, int | str]]  # a script -> its keys -> variables that it hands on, or numbers


def parts_of(
    text: str, file: str, syntax: Syntax, script: Script, launchers: Launchers
) -> tuple[list[Part], list[tuple[str, str]]]:
    """The parts of a file in a syntax, behind scripts already read, and notes on what was not read."""
    if syntax in TABLES:
        table = {"toml": from_toml, "json": from_json, "yaml": from_yaml}[syntax](text, f"{file}: ")
        if not isinstance(table, Mapping):
            raise PerfgridError(f"{file}: holds no table of settings")
        return [Part(file, list(_flat(table)))], []
    if syntax == "python":
        recipes = recipes_of(text, file)
        if not any(recipe.stated for recipe in recipes):
            raise PerfgridError(f"{file}: assigns no settings")
        return [Part(recipe.name, recipe.stated, recipe.notes) for recipe in recipes], []
    if text.rstrip().endswith("\\"):
        raise PerfgridError(f"{file}: ends within a command (its last line is to be continued)")
    script.commands, script.notes = [], []
    script_of(text, file, script)
    if syntax == "variables":
        return [Part(file, list(script.variables.items()))], script.notes
    read = _flags if syntax == "flags" else _pairs
    commands = [words for command in script.commands for words in _commands(command)]
    stated = [[*_handed_on(words, script, launchers), *read(words)] for words in commands]
    return [Part(shortened(" ".join(w), 60), own) for w, own in zip(commands, stated, strict=True)], script.notes


def _handed_on(words: list[str], script: Script, launchers: Launchers) -> Iterator[tuple[str, Any]]:
    """What a script of a framework makes of variables before it."""
    for key, name in launchers.get(words[0].rpartition("/")[2], {}).items():
        if isinstance(name, int) or name in script.variables:
            yield key, name if isinstance(name, int) else script.variables[name]


def _commands(words: list[str]) -> list[list[str]]:
    """A command, and instead of a word that is a command with options itself (``bash -c "..."``) that command."""
    inner = [word for word in words if " --" in word and not word.startswith("-") and "\n" not in word]
    try:
        return [shlex.split(inner[0])] if len(inner) == 1 and "-c" in words else [words]
    except ValueError:
        return [words]


def syntax_of(text: str, legal: tuple[Syntax, ...]) -> Syntax:
    """The syntax of a text among those that a format has, by its first lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    first = lines[0] if lines else ""
    if "python" in legal and _PYTHON.match(first):
        return "python"
    if "json" in legal and first.startswith("{"):
        return "json"
    if "toml" in legal and (first.startswith("[") or (" = " in first and not first.startswith("-"))):
        return "toml"
    if "yaml" in legal and sum(": " in f"{line} " and "=" not in line for line in lines) > len(lines) / 2:
        return "yaml"
    in_lines: list[Syntax] = [syntax for syntax in legal if syntax not in (*TABLES, "python")]
    return in_lines[0] if in_lines else legal[0]


def from_yaml(text: str, where: str = "", every: bool = False) -> Any:
    """A YAML value of plain tables, lists and scalars, or ``every`` document as a list; aliases, with which texts grow
    without limit, are refused.
    """
    import yaml

    if len(text) > LARGEST_FILE // 16:
        raise PerfgridError(f"{where}YAML of more than {LARGEST_FILE // 16:,} characters is not read")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise PerfgridError(f"{where}YAML with aliases (*name) is not read")
        found = list(yaml.safe_load_all(text)) if every else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise PerfgridError(f"{where}not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise PerfgridError(f"{where}not valid YAML: too many tables within each other") from None
    check_extent({"": found}, where)
    return found


def _flat(table: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Keys of inner tables behind those of outer ones, with points between; lists are joined."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", ",".join(map(str, value)) if isinstance(value, list) else value


def _flags(words: list[str]) -> Iterator[tuple[str, Any]]:
    """``--key value``, ``--key=value`` and ``--key`` (true); several values are joined with blanks."""
    for subcommand in SUBCOMMANDS:
        place = len(subcommand)
        if tuple(words[:place]) == subcommand and len(words) > place and not words[place].startswith("-"):
            yield MODEL, words[place]
    key, values = "", list[str]()
    words = [part for word in words for part in (word.split() if word.startswith("--") else [word])]
    words = [
        word for before, word in zip(["", *words], words, strict=False) if "-m" not in (before, word)
    ]  # python -m X
    for word in [*words, "--"]:
        if word.startswith("-") and not _is_number(word):
            yield from _flag(key, values)
            name, equals, value = word.partition("=")
            key, values = name.lstrip("-"), [value] if equals else []
        elif found := _CHOICE.fullmatch(word):  # a sub-command of tyro, such as activation-checkpoint:full
            yield from _flag(key, values)
            yield f"{found[1]}:", found[2]
            key, values = "", []
        elif word.endswith(PROGRAMS):  # what stood before concerned its launcher
            yield from _flag(key, values)
            key, values = "", []
        elif key:
            values.append(word)


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
