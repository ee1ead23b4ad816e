"""The conditions within ``[[ ]]``, which have a grammar of their own."""

from __future__ import annotations

import re

from .lines import Lines
from .nodes import Command, Test, Text, Word
from .scanner import ENDS_WORD

_UNARY = re.compile(r"-[a-zA-Z](?=[ \t])")
_BINARY = re.compile(r"(==|=~|=|!=|<|>|-(?:eq|ne|lt|le|gt|ge|nt|ot|ef)(?=[ \t]))")


class Brackets(Lines):
    """Reads conditions."""

    def _test(self) -> Command:
        found = self._either()
        self.blanks(lines=True)
        if self.peek(2) != "]]":
            self.fail("no closing ]]")
        self.at += 2
        return Test(found)

    def _either(self) -> tuple:
        """Conditions with ``||`` and ``&&`` between them, up to ``]]`` or ``)``."""
        either = [self._every()]
        while self.peek(2) == "||":
            self.at += 2
            either.append(self._every())
        return ("or", *either)

    def _every(self) -> tuple:
        every = [self._condition()]
        self.blanks(lines=True)
        while self.peek(2) == "&&":
            self.at += 2
            every.append(self._condition())
            self.blanks(lines=True)
        return ("and", *every)

    def _condition(self) -> tuple:
        negated = False
        self.blanks(lines=True)
        while self.reserved() == "!":
            negated, self.at = not negated, self.at + 1
            self.blanks(lines=True)
        if self.peek() == "(":
            self.deeper()
            self.at += 1
            found = self._either()
            self.expect(")")
            self.depth -= 1
        else:
            found = self._comparison()
        return ("not", found) if negated else found

    def _comparison(self) -> tuple:
        if unary := _UNARY.match(self.text, self.at):
            self.at = unary.end()
            self.blanks()
            if word := self.word():
                return (unary[0], word)
            return ("-n", (Text(unary[0], False),))
        left = self.word()
        if not left:
            self.fail("a condition is missing in [[")
        self.blanks()
        binary = _BINARY.match(self.text, self.at)
        if binary is None:
            return ("-n", left)
        self.at = binary.end()
        self.blanks()
        right = self._pattern_of_match() if binary[1] == "=~" else self.word()
        if not right:
            self.fail(f"nothing behind {binary[1]} in [[")
        return (binary[1], left, right)

    def _pattern_of_match(self) -> Word:
        """The word behind ``=~``, with brackets in it."""
        parts, depth = self.parts(ENDS_WORD + "'\""), 0
        while self.peek() and (self.peek() in "()|" or depth) and self.peek() != "\n":
            depth += {"(": 1, ")": -1}.get(self.peek(), 0)
            if depth < 0:
                break
            parts.append(Text(self.peek(), False))
            self.at += 1
            parts += self.parts(ENDS_WORD + "'\"")
        return tuple(parts)
