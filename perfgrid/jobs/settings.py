"""What the files of a job state, as one flat table: key -> value, of one launch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfgrid.engine.errors import PerfgridError, nearest, shortened

from .launcher import Launched, allocation_of, late_directives, launched_by, variables_of
from .shell import Script, is_unread
from .syntaxes import Arguments, Launchers, Part, Syntax, parts_of, syntax_of

MOST = 3000  # settings of a job: of each that is unknown the nearest known one is sought
OPEN = "its value comes from a command or a variable that is not stated here"
LATE = "behind the first command, where Slurm reads no directive"
_WORD = r"(\$\(\([^\n]*?\)\)|\$\([^\n]*?\)|`[^`\n]*`|[^\s;,]+)"
UNSURE = "this launch is under a condition or in a function: read as if it ran, with the variables before it"
_PLACEHOLDER = re.compile(r"\$\{?[\w.:,/]+\}?")


@dataclass
class Settings:
    """Stated values by key, with the file of each, and what was not read: key, value, why."""

    values: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    unread: list[tuple[str, str, str]] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)  # what is not read -> its file and the word there
    devices: Launched = field(default_factory=Launched)  # as the launchers of the job state them

    def add(self, stated: Iterable[tuple[str, Any]], file: str, weak: bool = False, last: bool = False) -> None:
        """Take in the settings of a file; a later statement replaces an earlier one, ``weak``: unless it is "auto".

        ``last``: of flags, of which a program takes the last; those before are listed.
        """
        for key, value in stated:
            if isinstance(value, str) and (is_unread(value) or _PLACEHOLDER.fullmatch(value)):
                self.unread.append((key, "", OPEN))
                self.values.pop(key, None)  # what an earlier statement has is not in effect
                continue
            if weak and value == "auto" and key in self.values:
                continue
            before = self.files.get(key, file)
            if last and key in self.values and before == file and str(self.values[key]) != str(value):
                self.unread.append((f"{key} before", str(self.values[key]), f"replaced: {value} stands behind it"))
            if before != file and str(self.values.get(key, value)) != str(value):
                self.unread.append((f"{key} of {before}", str(self.values[key]), f"replaced: {value} in {file}"))
            self.values[key], self.files[key] = value, file


def settings_of(
    texts: Mapping[str, str],
    syntaxes: Iterable[Syntax],
    matters: Callable[[str], bool] | None = None,
    which: str | None = None,
    launchers: Launchers | None = None,
    programs: Iterable[str] = (),
    arguments: Arguments | None = None,
) -> Settings:
    """The settings of the files of one job, read in order, each in the first syntax of the format that it fits.

    ``matters``: whether a key states a quantity; a part of a file with two such keys is a launch, of which a file has
    one, or ``which`` names one: its number or its name. ``launchers``: scripts of the framework that hand variables on;
    ``programs``: commands that are a launch by their name; ``arguments``: how these read their words. A command under a
    condition or in a function is read where no other one is a launch. Without ``matters`` all
    parts are taken in. PerfgridError with the name of the file for a text that fits no syntax, or is beyond the limits,
    and for several launches.
    """
    allocation = allocation_of(tuple(texts.values()))
    found, script, chosen = Settings(), Script(variables=variables_of(allocation)), which is None
    for file, text in texts.items():
        syntax = syntax_of(text, tuple(syntaxes))
        parts, notes = parts_of(text, file, syntax, script, launchers or {}, programs, arguments, allocation)
        launches = [] if matters is None else [part for part in parts if part.named or _is_launch(part, matters)]
        launches = [part for part in launches if part.named] or launches
        launches = [part for part in launches if not part.unsure] or launches
        if which is not None and len(launches) > 1:
            parts, chosen = [_chosen(launches, which, file)], True
        elif len(launches) > 1:
            raise PerfgridError(
                f"{file}: holds {len(launches)} launches: choose one with --which: {_numbered(launches)}"
            )
        elif launches:
            others = (part for part in parts if part is not launches[0] and part.stated)
            others = (part for part in others if not part.unsure)
            notes = [*notes, *((part.name, "another command or recipe of this file") for part in others)]
            notes = [(what, UNSURE if launches[0].unsure and what == launches[0].name else why) for what, why in notes]
            parts = launches
        elif matters is not None:
            parts = [part for part in parts if not part.unsure]
        started = [part for part in parts if part.devices.values or part.devices.unread]
        if started:  # the command that states something, by the innermost launcher
            found.devices = max(started, key=lambda part: (bool(part.stated), part.devices.level)).devices
        for part in parts:
            found.add(part.stated, file, weak=syntax == "json", last=syntax == "flags")  # JSON: DeepSpeed's
            notes = [*notes, *part.notes]
        notes = [*notes, *((line, LATE) for line in late_directives(text))]
        found.unread += [(what, "", why) for what, why in dict.fromkeys(notes)]
        for key in {key for key, *_ in found.unread} - found.words.keys():
            if word := _word_of(key, text):
                found.words[key] = f"{file}: {word}"
    if len(found.values) > MOST:
        told = f"{len(found.values):,} settings are those of no job: at most {MOST:,} are read"
        raise PerfgridError(f"{', '.join(texts)}: {told}")
    if not found.devices.values and allocation.stated:
        found.devices, _ = launched_by([], allocation, {})
    if not chosen:
        raise PerfgridError(f"{', '.join(texts)}: there is one launch to read: leave --which out")
    return found


def _word_of(key: str, text: str) -> str:
    """What stands behind a key in a text, and what is assigned to the variable that it is, perhaps more than once."""

    def behind(name: str, signs: str) -> str:
        found = re.findall(rf"(?:(?<=--)|(?<![\w-])){re.escape(name)}{signs}{_WORD}", text)
        return " or ".join(dict.fromkeys(word if "(" in word else word.rstrip(")") for word in found))

    word = behind(key.rpartition(".")[2], r"(?:\s*[=:]\s*|[ \t]+(?:\\\n\s*)?)")
    variable = _PLACEHOLDER.fullmatch(word.strip("\"'"))
    assigned = behind(re.split(r"\W", word.strip("\"'${"))[0], "=") if variable else ""
    return shortened(f"{word} ({assigned})" if assigned else word, 100)


def _is_launch(part: Part, matters: Callable[[str], bool]) -> bool:
    return len({key for key, _ in part.stated if matters(key)}) > 1


def _chosen(launches: list[Part], which: str, file: str) -> Part:
    """The launch of a number, from 1, or of a name."""
    if which.isdecimal() and 0 < int(which) <= len(launches):
        return launches[int(which) - 1]
    named = [part for part in launches if part.name == which]
    if len(named) != 1:
        near = nearest(which, [part.name for part in launches])
        raise PerfgridError(f"{file}: has no launch {which!r}{near}: its launches are {_numbered(launches)}")
    return named[0]


def _numbered(launches: list[Part]) -> str:
    return shortened(", ".join(f"{i} ({part.name})" for i, part in enumerate(launches, 1)), 400)
