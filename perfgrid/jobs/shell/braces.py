"""Brace expansion, which comes before all others: ``{a,b}`` and ``{1..4}`` make several words of one."""

from __future__ import annotations

import re

from .nodes import Part, Text, Unread, Word

MOST_BRACES = 30  # in one word
MOST_WORDS = 1_000
_RANGE = re.compile(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})(?:\.\.(-?[0-9]{1,9}))?|([a-z])\.\.([a-z])|([A-Z])\.\.([A-Z])")
_UNCLEAR = re.compile(r"[^{},]+\.\.[^{},]+")


class TooMany(Exception):
    """More words than are read."""


def brace_expanded(word: Word) -> list[Word]:
    """The words of a word with braces; one that is not read where they are too many."""
    if not any(isinstance(part, Text) and not part.quoted and "{" in part.text for part in word):
        return [word]
    tokens = list[Part | str]()
    for part in word:
        if isinstance(part, Text) and not part.quoted:
            tokens += part.text
        else:
            tokens.append(part)
    pairs = _pairs(tokens)
    if len(pairs) > MOST_BRACES:
        return [(Unread(False),)]
    try:
        return [_word(found) for found in _expanded(tokens)] if pairs else [word]
    except TooMany:
        return [(Unread(False),)]


def _pairs(tokens: list[Part | str]) -> dict[int, int]:
    """Where braces that open close again."""
    opened, pairs = list[int](), dict[int, int]()
    for i, token in enumerate(tokens):
        if token == "{":
            opened.append(i)
        elif token == "}" and opened:
            pairs[opened.pop()] = i
    return pairs


def _expanded(tokens: list[Part | str]) -> list[list[Part | str]]:
    pairs = _pairs(tokens)
    for start in sorted(pairs):
        end = pairs[start]
        choices = _choices(tokens[start + 1 : end])
        if choices is None:
            continue
        ends = _expanded(tokens[end + 1 :])
        found = [tokens[:start] + one + rest for choice in choices for one in _expanded(choice) for rest in ends]
        if len(found) > MOST_WORDS:
            raise TooMany
        return found
    return [tokens]


def _choices(inner: list[Part | str]) -> list[list[Part | str]] | None:
    """What stands between commas, or the members of a range; None where braces stand for themselves."""
    found, depth = list[list[Part | str]]([[]]), 0
    for token in inner:
        depth += 1 if token == "{" else -1 if token == "}" else 0
        if token == "," and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    if len(found) > 1:
        return found
    if not all(isinstance(token, str) for token in inner):
        return None
    return _range("".join(map(str, inner)))


def _range(text: str) -> list[list[Part | str]] | None:
    found = _RANGE.fullmatch(text)
    if found is None:
        return [[Unread(False)]] if _UNCLEAR.fullmatch(text) else None
    first, last, step, *letters = found.groups()
    if first is None:
        first, last = (letter for letter in letters if letter)
        members = [chr(code) for code in _steps(ord(first), ord(last), 1)]
        return [[member] for member in members]
    numbers = _steps(int(first), int(last), abs(int(step or 1)) or 1)
    padded = any(re.match(r"-?0[0-9]", text) for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [list(f"{number:0{width}d}") for number in numbers]


def _steps(first: int, last: int, step: int) -> range:
    found = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    if len(found) > MOST_WORDS:
        raise TooMany
    return found


def _word(tokens: list[Part | str]) -> Word:
    """Characters and parts as a word again."""
    parts = list[Part]()
    for token in tokens:
        if not isinstance(token, str):
            parts.append(token)
        elif parts and isinstance(parts[-1], Text) and not parts[-1].quoted:
            parts[-1] = Text(parts[-1].text + token, False)
        else:
            parts.append(Text(token, False))
    return tuple(parts)
