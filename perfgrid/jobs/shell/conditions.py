"""Whether a condition holds, None where it is not known: ``[ ]`` by its number of words, ``[[ ]]`` by its tree."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

from .arithmetic import computed
from .expansion import Shell, joined, pattern
from .nodes import Text, Word
from .operations import LONGEST_MATCHED
from .script import NEVER, UNREAD

_NUMBERS = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_WHOLE = re.compile(r"[ \t]*[-+]?[0-9]{1,18}[ \t]*")
_SIMPLE_MATCH = re.compile(r"\^?(?:(?:[A-Za-z0-9_/ ,:=.-]|\[\^?[A-Za-z0-9_/,.-]+\])[*+?]?)*\$?")
_UNARY = re.compile(r"-[a-zA-Z]")
EMPTY = ("-z", "-n")
_MOST_WORDS = 100


def negated(verdict: bool | None) -> bool | None:
    """The opposite of what is known."""
    return None if verdict is None else not verdict


def holds(shell: Shell, tree: tuple[Any, ...]) -> bool | None:
    """Whether a condition in ``[[ ]]`` holds."""
    sign, *parts = tree
    if sign in ("and", "or"):
        return _all_of(shell, parts, sign == "and")
    if sign == "not":
        return negated(holds(shell, parts[0]))
    if len(parts) == 1:
        return _unary(shell, sign, parts[0])
    return _binary(shell, sign, *parts)


def _all_of(shell: Shell, parts: Sequence[tuple[Any, ...]], wanted: bool) -> bool | None:
    """``&&`` (wanted: all hold) or ``||`` (wanted: none holds); what follows an unknown one may not be evaluated."""
    verdict: bool | None = wanted
    for part in parts:
        found = holds(shell, part)
        if verdict is None:
            shell.forget_assigned(part)
        if found is (not wanted):
            return found
        verdict = verdict if found is wanted else None
    return verdict


def _unary(shell: Shell, sign: str, word: Word) -> bool | None:
    if sign == "-v":
        return _is_set(shell, joined(shell, word))
    if sign not in EMPTY:
        joined(shell, word)
        return None
    shell.presuming += 1
    text = joined(shell, word)
    shell.presuming -= 1
    return _is_empty(sign, text)


def _is_empty(sign: str, text: str) -> bool | None:
    return None if text[:1] == UNREAD else (text == "") == (sign == "-z")


def _is_set(shell: Shell, name: str) -> bool | None:
    held = shell.value(name)
    if held is NEVER and name.isidentifier():
        shell.presume(name)
        return False
    return True if isinstance(held, str) and held[:1] != UNREAD else False if held is None else None


def _binary(shell: Shell, sign: str, left: Word, right: Word) -> bool | None:
    text = joined(shell, left)
    if sign in _NUMBERS:
        numbers = computed(text, shell), computed(joined(shell, right), shell)
        return None if None in numbers else _NUMBERS[sign](*numbers)
    if sign == "=~":
        return _matched(shell, text, right)
    if sign not in ("=", "==", "!="):
        joined(shell, right)
        return None
    wanted = pattern(shell, right)
    if UNREAD in text or wanted is None:
        return None
    shell.charge(len(text) + len(wanted))
    return (re.fullmatch(wanted, text) is not None) == (sign != "!=")


def _matched(shell: Shell, text: str, right: Word) -> bool | None:
    """``=~`` with a simple expression, in which nothing is put in; others are not read."""
    if UNREAD in text or len(text) > LONGEST_MATCHED or not all(isinstance(part, Text) for part in right):
        return None
    parts = [(part.text, part.quoted) for part in right if isinstance(part, Text)]
    plain = "".join("x" * len(text) if quoted else text for text, quoted in parts)
    wanted = "".join(re.escape(text) if quoted else text for text, quoted in parts)
    if not _SIMPLE_MATCH.fullmatch(plain) or len(re.findall("[*+]", plain)) > 2:
        return None
    shell.charge(len(text) * len(wanted))
    ignores_case = shell.script.held.get("shopt nocasematch")
    return None if ignores_case else re.search(re.sub(r"\$$", r"\\Z", wanted), text) is not None


def tested(shell: Shell, words: list[str]) -> bool | None:
    """Whether a condition in ``[ ]`` or of ``test`` holds, by the number of its words as POSIX has it."""
    if any(UNREAD in word for word in words) or len(words) > _MOST_WORDS:  # perhaps more words
        return None
    match words:
        case []:
            return False
        case [text]:
            return _is_empty("-n", text)
        case ["!", *rest] if len(rest) < 4:
            return negated(tested(shell, rest))
        case ["(", *inner, ")"] if len(inner) in (1, 2):
            return tested(shell, inner)
        case [sign, text] if _UNARY.fullmatch(sign):
            return _is_empty(sign, text) if sign in EMPTY else _is_set(shell, text) if sign == "-v" else None
        case [left, sign, right]:
            return _compared(left, sign, right)
    return _joined_tests(shell, words)


def _compared(left: str, sign: str, right: str) -> bool | None:
    if UNREAD in left + right or sign not in ("=", "==", "!=", *_NUMBERS):
        return None
    if sign in _NUMBERS:
        whole = _WHOLE.fullmatch(left) and _WHOLE.fullmatch(right)
        return _NUMBERS[sign](int(left), int(right)) if whole else None
    return (left == right) == (sign != "!=")


def _joined_tests(shell: Shell, words: list[str]) -> bool | None:
    """Three-word and two-word conditions with ``-a`` and ``-o`` between them, the first binding more strongly."""
    if "(" in words or ")" in words:
        return None
    either, start = list[list[bool | None]]([[]]), 0
    places = [i for i, word in enumerate(words) if word in ("-a", "-o")]
    for place in [*places, len(words)] if places else []:
        part = words[start:place]
        if len(part) not in (2, 3):
            return None
        either[-1].append(tested(shell, part))
        if words[place : place + 1] == ["-o"]:
            either.append([])
        start = place + 1
    every = [None if not part else False if False in part else None if None in part else True for part in either]
    return True if True in every else None if None in every else False
