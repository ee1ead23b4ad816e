"""Blanks, comments, ends of lines with here-documents behind them, and reserved words."""

from __future__ import annotations

import re

from perfgrid.engine.errors import PerfgridError

from .nodes import Text, Unread, Word
from .scanner import Scanner

_BLANKS = re.compile(r"(?>[ \t]+|\\\n|#[^\n]*)*+")
_RESERVED = re.compile(
    r"(if|then|elif|else|fi|while|until|for|select|do|done|case|esac|function|time|coproc|\[\[|[{}!])"
    r"(?=[ \t\n|&;()<>]|\\\n|$)"
)


class Lines(Scanner):
    """What stands between words."""

    def blanks(self, lines: bool = False) -> None:
        """Pass by blanks and comments; with ``lines`` by ends of lines, behind which here-documents stand."""
        while True:
            self.at = _BLANKS.match(self.text, self.at).end()  # type: ignore[union-attr]
            if not lines or self.peek() != "\n":
                return
            self._line()

    def _line(self) -> None:
        """Pass by the end of a line, and the here-documents behind it."""
        self.at += 1
        awaited, self.awaited = self.awaited, []
        for node, end, tabs, quoted in awaited:
            lines = list[str]()
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                self.at = min(stop + 1, len(self.text))
                line = line.lstrip("\t") if tabs else line
                if line == end:
                    break
                lines.append(line + "\n")
            node.word = self._document("".join(lines), quoted)

    def _document(self, text: str, quoted: bool) -> Word:
        if quoted:
            return (Text(text, True),)
        try:
            return tuple(type(self)(text, self.where, self.depth + 1).parts("", quoted=True))
        except PerfgridError:
            return (Unread(True),)

    def reserved(self) -> str:
        """The reserved word that stands here, if one does."""
        found = _RESERVED.match(self.text, self.at)
        return found[1] if found else ""

    def expect(self, *words: str) -> str:
        """Pass by one of these words. PerfgridError for another one."""
        self.blanks(lines=True)
        for word in words:
            if self.reserved() == word or (word in ("(", ")", "((") and self.peek(len(word)) == word):
                self.at += len(word)
                return word
        found = self.reserved() or self.peek().strip()
        self.fail(f"expected {' or '.join(words)}" + (f", found {found}" if found else ", the text ends"))
