"""What a script holds once it is read: variables, lists, commands, and what was not read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from perfgrid.engine.errors import shortened

LARGEST_SCRIPT = 2**18  # characters
UNREAD = "\0"  # in a text: any characters that only an execution would know
MANY = UNREAD * 2  # in a word: any number of words
NEVER = object()  # the value of a name that no text sets: the environment may


class Leaving(Exception):
    """What ends commands early; ``status`` of ``exit`` and ``return``, ``levels`` of loops."""

    def __init__(self, status: Any = None, levels: int = 1):
        super().__init__()
        self.status, self.levels = status, levels


class Exit(Leaving):
    """``exit``."""


class Abandoned(Leaving):
    """An error of an expansion, with which bash leaves the line."""


class CommandWords(list[str]):
    """The words of a command, with the variables that it is given (``A=1 command``)."""

    def __init__(self, words: list[str], environment: Mapping[str, str] | None = None):
        super().__init__(re.sub(f"{UNREAD}+", UNREAD, word) for word in words)
        self.environment = dict(environment or {})

    @property
    def title(self) -> str:
        """The command in a few characters."""
        return shortened(" ".join(self).replace(UNREAD, "..."), 60)


class Script:
    """The variables of scripts read so far, the words of their commands, and notes on what was not read.

    ``variables`` and ``lists`` may be given, as if a script before had set and exported them.
    """

    def __init__(
        self,
        variables: Mapping[str, str] | None = None,
        lists: Mapping[str, list[str]] | None = None,
        within: int = 0,
    ):
        # names -> text, list, table or None (unset); "name()" -> function, "@" -> arguments, "name: export" -> bool
        self.held: dict[str, Any] = {**(variables or {}), **(lists or {})}
        self.held |= {f"{name}: export": True for name in variables or {}}
        self.commands: list[CommandWords] = []
        self.unsure: list[CommandWords] = []  # commands under a condition that is not known, or in a function
        self.notes: list[tuple[str, str]] = []  # what, why
        self.presumed: dict[str, None] = {}  # names taken as unset (``${A:-1}``), in order
        self.within = within  # how many command strings (``bash -c "..."``) it is in

    @property
    def variables(self) -> Mapping[str, str]:
        """Texts by name."""
        return MappingProxyType({n: v for n, v in self.held.items() if isinstance(v, str)})

    @property
    def lists(self) -> Mapping[str, list[str]]:
        """Lists by name."""
        return MappingProxyType({n: v for n, v in self.held.items() if isinstance(v, list) and n != "@"})


def is_unread(text: str) -> bool:
    """Whether a value comes from a command or a variable that the text does not state."""
    return UNREAD in text
