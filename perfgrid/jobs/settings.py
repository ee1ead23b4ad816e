"""What a configuration states, as one flat table: key -> value, from a command line, a script, TOML, YAML or JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from perfgrid.catalog.reading import LARGEST_FILE, check_extent, from_json, from_toml
from perfgrid.engine.errors import PerfgridError

from .shell import Script, is_unread, script_of

Syntax = Literal["flags", "pairs", "variables", "toml", "json", "yaml"]
COMMENTED = ("flags", "pairs", "variables", "toml", "yaml")  # syntaxes with comments
UNREAD = "its value comes from a command or a variable that is not stated here"
SUBCOMMANDS = (("vllm", "serve"), ("trtllm-serve",), ("trtllm-serve", "serve"))  # a model stands behind these
MODEL = "model"
_CHOICE = re.compile(r"([a-z]+(?:-[a-z]+)+):([a-z]+)")
PROGRAMS = (".py", ".sh")


@dataclass
class Settings:
    """Stated values by key, with the file of each, and what was not read: key, value, why."""

    values: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    unread: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, stated: Iterable[tuple[str, Any]], file: str) -> None:
        """Take in the settings of a file; a later statement replaces an earlier one."""
        for key, value in stated:
            if isinstance(value, str) and is_unread(value):
                self.unread.append((key, "", UNREAD))
                continue
            self.values[key], self.files[key] = value, file


def settings_of(texts: Mapping[str, str], syntaxes: Iterable[Syntax]) -> Settings:
    """The settings of the files of one job, read in order, each in the first syntax that it obeys.

    PerfgridError with the name of the file for a text that obeys none, or is beyond the limits.
    """
    found, script = Settings(), Script()
    for file, text in texts.items():
        syntax = _syntax(text, tuple(syntaxes))
        if syntax in ("toml", "json", "yaml"):
            read = {"toml": from_toml, "json": from_json, "yaml": from_yaml}[syntax]
            table = read(text, f"{file}: ")
            if not isinstance(table, Mapping):
                raise PerfgridError(f"{file}: holds no table of settings")
            found.add(_flat(table), file)
            continue
        script.commands = []
        script_of(text, file, script)
        if syntax == "variables":
            found.add(script.variables.items(), file)
        else:
            for words in script.commands:
                found.add(_flags(words) if syntax == "flags" else _pairs(words), file)
    found.unread += [(what, "", why) for what, why in dict.fromkeys(script.notes)]
    return found


def _syntax(text: str, legal: tuple[Syntax, ...]) -> Syntax:
    """The syntax of a text among those that a format has, by its first lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    first = lines[0] if lines else ""
    if "json" in legal and first.startswith("{"):
        return "json"
    if "toml" in legal and (first.startswith("[") or (" = " in first and not first.startswith("-"))):
        return "toml"
    if "yaml" in legal and sum(": " in f"{line} " and "=" not in line for line in lines) > len(lines) / 2:
        return "yaml"
    in_lines: list[Syntax] = [syntax for syntax in legal if syntax not in ("toml", "json", "yaml")]
    return in_lines[0] if in_lines else legal[0]


def from_yaml(text: str, where: str = "") -> Any:
    """A YAML value of plain tables, lists and scalars; aliases, with which texts grow without limit, are refused."""
    import yaml

    if len(text) > LARGEST_FILE // 16:
        raise PerfgridError(f"{where}YAML of more than {LARGEST_FILE // 16:,} characters is not read")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise PerfgridError(f"{where}YAML with aliases (*name) is not read")
        found = yaml.safe_load(text)
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
            if key:
                yield key, " ".join(values) if values else True
            name, equals, value = word.partition("=")
            key, values = name.lstrip("-"), [value] if equals else []
        elif found := _CHOICE.fullmatch(word):  # a sub-command of tyro, such as activation-checkpoint:full
            if key:
                yield key, " ".join(values) if values else True
            yield f"{found[1]}:", found[2]
            key, values = "", []
        elif word.endswith(PROGRAMS):  # what stood before concerned its launcher
            if key:
                yield key, " ".join(values) if values else True
            key, values = "", []
        elif key:
            values.append(word)


def _pairs(words: list[str]) -> Iterator[tuple[str, Any]]:
    """``key=value``; a leading ``--`` is left out."""
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key.lstrip("-").replace(".", "").replace("_", "").isalnum():
            yield key.lstrip("-"), value


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
