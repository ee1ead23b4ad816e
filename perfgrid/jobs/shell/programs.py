"""Commands that are programs: their words, and scripts that they are given to run."""

from __future__ import annotations

import re
from typing import Any

from perfgrid.engine.errors import PerfgridError

from . import builtins
from .assigned import assigned_by
from .branches import LIKELY, Branches
from .expansion import joined
from .nodes import Simple, literal
from .script import MANY, NEVER, UNREAD, CommandWords, Script

MOST_WITHIN = 3  # command strings within each other
DOUBTED = "a command under a condition or in a function, which is not executed"
_DECIDES = re.compile(
    r"[fez]?grep|command|type|which|hash|pgrep|pidof|lsof|nc|curl|wget|ping|diff|cmp|expr|\[|test|is_.*|check_.*"
)
_HANDS_ON = re.compile(r"-[a-z]*c")  # an option of shells: the next word is a command
_SETTINGS = (".yaml", ".yml", ".json", ".toml")
_SHELLS = ("bash", "sh", "zsh", "dash", "sbatch", "qsub", "bsub", "ssh", "source", ".")
_MADE = re.compile(rf"(?:{MANY}+|{UNREAD}(?=--))([^{UNREAD}]+=){UNREAD}+")  # an option that a branch may add


class Programs(Branches):
    """Takes in commands that are programs."""

    def read(self, text: str) -> None:
        """Take in a text. Raises PerfgridError if it cannot be parsed."""
        raise NotImplementedError

    def external(self, node: Simple, words: list[str]) -> Any:
        """Take in a command that is a program."""
        environment = self._environment(node)
        texts = [joined(self, one.word, long=True) for one in node.redirections if one.operator == "<<"]
        written = [joined(self, one.word) for one in node.redirections if one.operator == ">"]
        if texts and words[0] in ("cat", "tee"):
            for file in [*written, *words[1:]]:
                self.put(f"{_base(file)}: text", texts[-1])
        if any(word.strip() for word in words):
            self._take(CommandWords([_made(word) for word in words], environment), texts)
        return LIKELY if not _DECIDES.fullmatch(_base(words[0])) and UNREAD not in words[0] else None

    def _before(self, node: Simple) -> dict[str, Any]:
        """Set the variables before a command; the values that they have had, unread where a value sets one itself."""
        before = {one.name: self.script.held.get(one.name, NEVER) for one in node.assignments}
        for name, value in before.items():
            if isinstance(value, list):
                self.put(name, list(value))  # `extend` may change it in place
        for one in node.assignments:
            if literal(one.value) is None:
                within = assigned_by(one.value, {}, self.charge)
                before |= dict.fromkeys(before.keys() & within.keys(), UNREAD)
            builtins.set_variable(self, one)
        return before

    def _environment(self, node: Simple) -> dict[str, str]:
        """The variables that stand before a command."""
        before = self._before(node)
        values = {name: self.script.held.get(name) for name in before}
        for name, value in before.items():
            self.put(name, value)
        return {name: value for name, value in values.items() if isinstance(value, str)}

    def _take(self, words: CommandWords, texts: list[str]) -> None:
        """Note a command, or the commands that it hands to a shell."""
        held = self.script.held
        scripts = texts if _base(words[0]) in _SHELLS or _base(words[-1]) in _SHELLS else []
        run = (word for word in words if not _base(word).endswith(_SETTINGS))  # a file of settings is read, not run
        scripts = scripts + [held[f"{_base(w)}: text"] for w in run if isinstance(held.get(f"{_base(w)}: text"), str)]
        inner = [one for text in scripts for one in self._inner(text, words)] or self._handed(words)
        for one in inner or [words]:
            if not self.doubts:
                self.script.commands.append(one)
                continue
            self.script.unsure.append(one)
            if any(word.startswith("--") for word in one):
                self.note(one.title, DOUBTED)

    def _handed(self, words: CommandWords) -> list[CommandWords]:
        """The commands of the one word with options that a command hands to a shell (``bash -c "..."``); else none."""
        texts = [word for word in words if " --" in word and not word.startswith("-")]
        handed = any(_HANDS_ON.fullmatch(word) for word in words) or words[0] == "ssh"
        return self._inner(texts[0], words) if handed and len(texts) == 1 else []

    def _inner(self, text: str, words: CommandWords) -> list[CommandWords]:
        """The commands of a text that another shell runs, with the variables that are exported to it."""
        if self.script.within == MOST_WITHIN:
            return []
        held = self.script.held
        given = {name: value for name, value in held.items() if isinstance(value, str) and held.get(f"{name}: export")}
        self.charge(len(held))
        given |= words.environment
        pairs = (word.partition("=") for word in words)
        given |= {name: value for name, sign, value in pairs if sign and name.isidentifier()}
        shell = type(self)(Script(given, within=self.script.within + 1), self.where, work=self.work)
        try:
            shell.read(text)
        except PerfgridError:
            return []
        finally:
            self.work = max(shell.work, 0)
        self.script.unsure += shell.script.unsure
        self.script.notes += shell.script.notes
        return shell.script.commands


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _made(word: str) -> str:
    """A word of a command; an option that a branch may add, by its name."""
    found = _MADE.fullmatch(word)
    return found[1] + UNREAD if found else word
