"""The words of a script: quoting, and where expansions begin and end, character by character as bash reads them."""

from __future__ import annotations

import re
from functools import cache
from typing import NoReturn

from perfgrid.engine.errors import PerfgridError

from .nodes import Arithmetic, Parameter, Part, Redirection, Text, Unread, Word

MOST_NESTED = 50  # commands and expansions within each other
LONGEST_EXPRESSION = 10_000
MOST_RETRIED = 20  # ((...)) that turn out to be commands
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ENDS_WORD = " \t\n|&;()<>"
_SPECIAL = "@*#?$!-_"
_BACKQUOTED = re.compile(r"`(?>[^\\`]+|\\.)*+`", re.DOTALL)
_C_QUOTED = re.compile(r"'((?>[^\\']+|\\.)*+)'", re.DOTALL)
_C_ESCAPES = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))
_TILDE = re.compile(r"~[A-Za-z0-9_.+-]*(?=[/:]|$)")
_OPERATION = re.compile(r":?[-=+?]|%%?|##?|/[/#%]?|\^\^?|,,?|:|@")
_BRACED_NAME = re.compile(
    r"(#(?=[A-Za-z_0-9@*]|[?$!#-]\})|!(?=[A-Za-z_0-9]))?([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!_-])"
)


@cache
def _plain(stops: str) -> re.Pattern[str]:
    """A run of characters that mean nothing where these and those of expansions do."""
    return re.compile(f"[^{re.escape(stops)}\\\\$`]+")


class Scanner:
    """A place in a text, and the words from there on."""

    def __init__(self, text: str, where: str, depth: int = 0):
        self.text, self.where, self.depth = text, where, depth
        self.at, self.retried = 0, 0
        self.awaited: list[tuple[Redirection, str, bool, bool]] = []  # here-documents: node, end, tabs off, literal

    def fail(self, message: str) -> NoReturn:
        """PerfgridError with the line that is read."""
        line = self.text.count("\n", 0, self.at) + 1
        raise PerfgridError(f"{self.where}: cannot be read as a shell script: line {line}: {message}")

    def deeper(self) -> None:
        """Count one more level; PerfgridError beyond the limit."""
        self.depth += 1
        if self.depth > MOST_NESTED:
            self.fail(f"more than {MOST_NESTED} commands or expansions within each other")

    def skip_commands(self) -> None:
        """Pass by commands up to ``)``; commands are the parser's."""
        raise NotImplementedError

    def peek(self, length: int = 1) -> str:
        """The next characters."""
        return self.text[self.at : self.at + length]

    def word(self, assigned: bool = False) -> Word:
        """The word from here on; empty where none begins. ``assigned``: as the value of an assignment."""
        start = self.at
        parts = self.parts(ENDS_WORD + "'\"", assigned)
        while self.peek() and self.peek() in "(<>":
            sign = self.peek()
            if sign == "(" and (self.at == start or self.text[self.at - 1] not in "@?*+"):  # @(a|b) is a pattern
                break
            if sign != "(" and self.peek(2)[1:] != "(":
                break
            self.at += 1 if sign == "(" else 2
            if sign == "(":
                self.skip_pattern()
            else:
                self.skip_commands()
            parts += [Unread(True), *self.parts(ENDS_WORD + "'\"", assigned)]
        return tuple(parts)

    def skip_pattern(self) -> None:
        """Pass by the alternatives of a pattern up to its ``)``."""
        depth = 1
        while depth:
            self.parts("()'\"")
            depth += {"(": 1, ")": -1, "": 0}[self.peek()]
            if not self.peek():
                self.fail("no closing )")
            self.at += 1

    def parts(self, stops: str, assigned: bool = False, quoted: bool = False, braced: bool = False) -> list[Part]:
        """What stands up to one of the ``stops`` that is not quoted.

        ``stops`` with quotes in it: these quote. ``quoted``: within ``"``, where ``'`` does not; ``braced``: within
        ``${...}``.
        """
        found, plain = list[Part](), _plain(stops)
        ends = stops.replace("'", "").replace('"', "") if not quoted or braced else stops
        first = self.at
        while self.at < len(self.text):
            if run := plain.match(self.text, self.at):
                found += [Text(run[0], True)] if quoted else _with_homes(run[0], self.at == first, assigned, braced)
                self.at = run.end()
            sign = self.peek()
            if not sign or sign in ends:
                break
            self.at += 1
            if sign == "\\":
                found += self._escaped(quoted, braced)
            elif sign == "$":
                found.append(self._dollar(quoted))
            elif sign == "`":
                found.append(self._backquoted(quoted))
            elif sign == '"':
                inner = self.parts('"', quoted=True)
                self._close('"')
                found += inner or [Text("", True)]
            else:
                end = self.text.find("'", self.at)
                if end < 0:
                    self.fail("no closing quotation '")
                found.append(Text(self.text[self.at : end], True))
                self.at = end + 1
        return found

    def _close(self, sign: str) -> None:
        if self.peek(len(sign)) != sign:
            self.fail(f"no closing {'quotation ' if sign in '`' + chr(34) else ''}{sign}")
        self.at += len(sign)

    def _escaped(self, quoted: bool, braced: bool) -> list[Part]:
        """What a backslash and the character behind it stand for."""
        sign = self.peek()
        self.at += 1
        if sign == "\n":
            return []
        if not sign or (quoted and sign not in ('$`"\\}' if braced else '$`"\\')):
            return [Text("\\" + sign, True)]
        return [Text(sign, True)]

    def _backquoted(self, quoted: bool) -> Part:
        found = _BACKQUOTED.match(self.text, self.at - 1)
        if not found:
            self.fail("no closing quotation `")
        self.at = found.end()
        return Unread(quoted)

    def _dollar(self, quoted: bool) -> Part:
        """What ``$`` begins, which is behind."""
        sign = self.peek()
        if name := NAME.match(self.text, self.at):
            self.at = name.end()
            return Parameter(name[0], quoted)
        if sign.isdecimal() or (sign and sign in _SPECIAL):
            self.at += 1
            return Parameter(sign, quoted)
        if sign in ("'", '"') and not quoted:
            return self._c_quoted() if sign == "'" else self._translated()
        if sign not in ("{", "(", "["):
            return Text("$", quoted)
        self.deeper()
        self.at += 1
        found = {"{": self._braces, "(": self._substitution, "[": self._brackets}[sign](quoted)
        self.depth -= 1
        return found

    def _translated(self) -> Part:
        """``$"..."``, of which a translation may exist."""
        self.at += 1
        self.parts('"', quoted=True)
        self._close('"')
        return Unread(True)

    def _c_quoted(self) -> Part:
        """``$'...'`` with escapes of one letter; others are not read."""
        found = _C_QUOTED.match(self.text, self.at)
        if not found:
            self.fail("no closing quotation '")
        self.at = found.end()
        pieces = re.split(r"\\(.)", found[1], flags=re.DOTALL)
        if any(sign not in _C_ESCAPES for sign in pieces[1::2]):
            return Unread(True)
        return Text("".join(_C_ESCAPES[p] if i % 2 else p for i, p in enumerate(pieces)), True)

    def _substitution(self, quoted: bool) -> Part:
        """``$(...)`` or ``$((...))``."""
        if self.peek() == "(":
            start, self.at = self.at, self.at + 1
            if (found := self.arithmetic()) is not None:
                return Arithmetic(found[0], quoted)
            self.at = start
        self.skip_commands()
        return Unread(quoted)

    def _brackets(self, quoted: bool) -> Part:
        """``$[...]``, an old way to compute."""
        inner = self.parts("]", quoted=True)
        self._close("]")
        return Arithmetic(tuple(inner), quoted)

    def arithmetic(self, between: str = "") -> list[Word] | None:
        """The expressions up to ``))``, with this sign between; None where commands stand there."""
        words, parts, depth, end = list[Word](), list[Part](), 0, self.at + LONGEST_EXPRESSION
        while self.peek() and self.at < end:
            parts += self.parts("()\"'" + between, quoted=True, braced=False)
            sign = self.peek()
            self.at += 1
            if sign == ")" and not depth:
                if self.peek() == ")":
                    self.at += 1
                    return [*words, tuple(parts)]
                break
            depth += {"(": 1, ")": -1}.get(sign, 0)
            if sign and sign == between and not depth:
                words.append(tuple(parts))
                parts = []
            elif sign != '"':
                parts.append(Text(sign, True))
        self.retried += 1
        if self.retried > MOST_RETRIED:
            self.fail("no closing ))")
        return None

    def _braces(self, quoted: bool) -> Part:
        """``${...}``; what is no substitution that bash has is not read."""
        found = _BRACED_NAME.match(self.text, self.at)
        if found is None:
            return self._unknown_braces(quoted)
        before, name = found[1] or "", found[2]
        self.at = found.end()
        index: Word | str | None = None
        if self.peek() == "[":
            self.at += 1
            index = self.peek() if self.peek(2) in ("@]", "*]") else None
            index = index or tuple(self.parts("]'\"", braced=True))
            self.at += len(index) if isinstance(index, str) else 0
            self._close("]")
        if self.peek() == "}":
            self.at += 1
            return Parameter(name, quoted, index, before=before)
        operation = _OPERATION.match(self.text, self.at)
        if operation is None:
            return self._unknown_braces(quoted)
        self.at = operation.end()
        arguments = self._arguments(operation[0], quoted)
        self._close("}")
        return Parameter(name, quoted, index, operation[0], arguments, before)

    def _unknown_braces(self, quoted: bool) -> Part:
        self.parts("}\"'", braced=True)
        self._close("}")
        return Unread(quoted)

    def _arguments(self, operation: str, quoted: bool) -> tuple[Word, ...]:
        """The words behind an operation: of defaults, patterns, places."""
        if operation.lstrip(":") in ("-", "=", "+", "?") and operation != ":":
            return (tuple(self.parts('}"' if quoted else "}\"'", quoted=quoted, braced=True)),)
        between = {":": ":", "/": "/"}.get(operation[:1], "")
        words = [tuple(self.parts(between + "}\"'", braced=True))]
        if between and self.peek() == between:
            self.at += 1
            words.append(tuple(self.parts("}\"'", braced=True)))
        return tuple(words)


def _with_homes(text: str, first: bool, assigned: bool, braced: bool) -> list[Part]:
    """Plain text; what ``~`` stands for at its beginning, and behind ``:`` and ``=`` of values, is not read."""
    if "~" not in text or (braced and not (first and text[0] == "~")):
        return [Text(text, False)]
    argument = NAME.match(text) if first and not assigned else None
    if argument and text[argument.end() : argument.end() + 1] == "=":
        head = argument.end() + 1
        return [Text(text[:head], False), *_with_homes(text[head:], True, True, False)]
    pieces = re.split(r"(?<=:)", text) if assigned else [text]
    found = list[Part]()
    for i, piece in enumerate(pieces):
        home = _TILDE.match(piece) if i or first else None
        found += [Unread(True), Text(piece[home.end() :], False)] if home else [Text(piece, False)]
    return found
