"""The parts of a shell script: words with what is expanded in them, and commands made of words."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Text:
    """Characters that stand for themselves; quoted ones are neither split nor patterns."""

    text: str
    quoted: bool


@dataclass(frozen=True)
class Unread:
    """What only an execution would know: a command or process substitution, a home directory."""

    quoted: bool


@dataclass(frozen=True)
class Arithmetic:
    """``$((...))``."""

    expression: Word
    quoted: bool


@dataclass(frozen=True)
class Parameter:
    """``$A``, ``${A}``, ``${A[i]}`` and what is done to the value (``operation``, with its words)."""

    name: str
    quoted: bool
    index: Word | str | None = None  # a word, or "@" or "*"
    operation: str = ""
    arguments: tuple[Word, ...] = ()
    before: str = ""  # "#": its length, "!": through another name


Part = Text | Unread | Arithmetic | Parameter
Word = tuple[Part, ...]


@dataclass(frozen=True)
class Assignment:
    """``A=word``, ``A+=word``, ``A[i]=word`` or ``A=(...)``, whose elements may name their places."""

    name: str
    value: Word | None
    append: bool = False
    index: Word | None = None
    elements: tuple[tuple[Word | None, Word], ...] | None = None


@dataclass(eq=False)
class Redirection:
    """The word behind ``<``, ``>`` and others; of ``<<<`` and ``<<`` (set behind its line) the text."""

    operator: str
    word: Word


@dataclass(frozen=True)
class Simple:
    """Assignments, then the words of a command; declarations have assignments among their words."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word | Assignment, ...]
    redirections: tuple[Redirection, ...] = ()


@dataclass(frozen=True)
class Sequence:
    """Commands one after the other, each with what ends it: ``;``, ``&`` or the end of its line."""

    items: tuple[tuple[Command, str], ...]


@dataclass(frozen=True)
class AndOr:
    """Commands with ``&&`` or ``||`` before all but the first."""

    first: Command
    rest: tuple[tuple[str, Command], ...]


@dataclass(frozen=True)
class Pipeline:
    """Commands with ``|`` between them, perhaps behind ``!``."""

    commands: tuple[Command, ...]
    negated: bool


@dataclass(frozen=True)
class Group:
    """``{ ... }``, ``( ... )`` in a process of its own, or any compound command with redirections."""

    body: Command
    own_process: bool = False
    redirections: tuple[Redirection, ...] = ()


@dataclass(frozen=True)
class If:
    """Conditions with what runs where they hold, and what runs where none does."""

    clauses: tuple[tuple[Sequence, Sequence], ...]
    otherwise: Sequence | None


@dataclass(frozen=True)
class While:
    """``while`` or ``until``."""

    condition: Sequence
    body: Sequence
    until: bool


@dataclass(frozen=True)
class For:
    """``for name in words`` (None: the arguments), or ``select``."""

    name: str
    words: tuple[Word, ...] | None
    body: Sequence
    asks: bool = False  # select


@dataclass(frozen=True)
class Count:
    """``for ((first; condition; step))``."""

    first: Word
    condition: Word
    step: Word
    body: Sequence


@dataclass(frozen=True)
class Case:
    """A word, and for each item its patterns, what runs and how it ends."""

    word: Word
    items: tuple[tuple[tuple[Word, ...], Sequence, str], ...]


@dataclass(frozen=True)
class Function:
    """A function, which runs where it is called."""

    name: str
    body: Command


@dataclass(frozen=True)
class Test:
    """``[[ ... ]]`` as a tree: ("and" | "or", left, right), ("not", inner), (operator, word, ...)."""

    expression: tuple[Any, ...]


@dataclass(frozen=True)
class Compute:
    """``((...))``."""

    expression: Word


Command = Simple | Sequence | AndOr | Pipeline | Group | If | While | For | Count | Case | Function | Test | Compute


def literal(word: Any) -> str | None:
    """The text of a word in which nothing is expanded; None for any other."""
    if not isinstance(word, tuple) or not all(isinstance(part, Text) for part in word):
        return None
    return "".join(part.text for part in word)


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def within(node: Any) -> list[Any]:
    """What a node or a tuple of nodes directly holds."""
    return list(node) if isinstance(node, tuple) else [getattr(node, name) for name in _names(type(node))]
