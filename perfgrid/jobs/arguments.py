"""How programs read the flags of their command lines: spellings, switches, abbreviations, numbers with suffixes."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

_SUFFIXED = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kKmMgGtT])")


@dataclass(frozen=True)
class Arguments:
    """How a program reads its words: the key of the word without a flag, flags without a value, flags with several.

    ``names``: every flag that is known; patterns end in a star.
    """

    positional: str = ""
    switches: tuple[str, ...] = ()
    several: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    pairs: bool = False  # bare key=value words are settings, beside a file
    abbreviated: bool = False  # an unambiguous beginning of a flag stands for it

    def named(self, key: str) -> str:
        """The known flag that a key is: in another spelling, or abbreviated; else the key itself."""
        if key in self.names:
            return key
        hyphens = hyphenated(key)
        if hyphens in self._spelled or not self.abbreviated or len(key) < 2:
            return self._spelled.get(hyphens, key)
        start = bisect_left(self._ordered, hyphens)  # those that begin so follow each other
        begun = [name for name in self._ordered[start : start + 2] if name.startswith(hyphens)]
        return self._spelled[begun[0]] if len(begun) == 1 else key

    @cached_property
    def _spelled(self) -> dict[str, str]:
        return {hyphenated(name): name for name in sorted(self.names)}

    @cached_property
    def _ordered(self) -> list[str]:
        return sorted(self._spelled)

    def is_switch(self, key: str) -> bool:
        """Whether a flag has no value."""
        name = self.named(key)
        return any(matches(pattern, name) for pattern in self.switches)

    def is_list(self, key: str) -> bool:
        """Whether a flag takes all words up to the next one."""
        name = self.named(key)
        return any(matches(pattern, name) for pattern in self.several)

    def negated(self, key: str) -> str | None:
        """The switch that ``no-...`` turns off; None for other keys."""
        return key[3:] if hyphenated(key[:3]) == "no-" and key not in self.names and self.is_switch(key[3:]) else None


def hyphenated(key: str) -> str:
    """A key with hyphens for underscores, which programs take for each other."""
    return key.replace("_", "-")


def matches(pattern: str, key: str) -> bool:
    """Whether a key is the one named, or one that begins like a pattern with a star at its end."""
    pattern, key = hyphenated(pattern), hyphenated(key)
    return key.startswith(pattern[:-1]) if pattern.endswith("*") else key == pattern


def suffixed(text: str) -> str:
    """A number with a suffix of counts, in plain digits: k is 1000, K is 1024, and so on."""
    found = _SUFFIXED.fullmatch(text.strip())
    if found is None:
        return text
    place = "kmgt".index(found[2].lower()) + 1
    return f"{float(found[1]) * (1000 if found[2].islower() else 1024) ** place:.0f}"
