"""The commands of a script as a tree; grammar of bash, nothing is executed."""

from __future__ import annotations

import re
from functools import lru_cache

from .brackets import Brackets
from .nodes import (
    AndOr,
    Assignment,
    Case,
    Command,
    Compute,
    Count,
    For,
    Function,
    Group,
    If,
    Pipeline,
    Redirection,
    Sequence,
    Simple,
    While,
    Word,
    literal,
)
from .scanner import NAME

DECLARES = ("declare", "typeset", "export", "local", "readonly")
_REDIRECTED = re.compile(r"(?:[0-9]+|\{[A-Za-z_]\w*\})?(<<<|<<-?|<>|<&|>&|>>|>\||<(?!\()|>(?!\()|&>>?)")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[(?:[^\[\]\n]|\[[^\[\]\n]{0,50}\]){0,100}\])?(\+?)=")
_FUNCTION = re.compile(r"[^\s|&;()<>$'\"`\\=]+[ \t]*\([ \t]*\)")
_COPROCESS = re.compile(r"coproc[ \t]+([A-Za-z_]\w*[ \t]+(?=[({]))?")
_COMPOUND = ("if", "while", "until", "for", "select", "case", "{", "[[")


@lru_cache(8)
def parsed(text: str, where: str) -> Sequence:
    """The commands of a text. PerfgridError with the line that cannot be parsed."""
    parser = Parser(text.replace("\r\n", "\n"), where)
    found = parser.sequence()
    if parser.peek():
        parser.fail(f"{parser.reserved() or parser.peek(2).strip()} that nothing opens")
    return found


class Parser(Brackets):
    """A place in a text, and the commands from there on."""

    def skip_commands(self) -> None:
        """Pass by commands up to ``)``."""
        self.sequence()
        self.expect(")")

    def sequence(self) -> Sequence:
        """Commands up to a word or sign that ends what is around them."""
        items = list[tuple[Command, str]]()
        self.deeper()
        while True:
            self.blanks(lines=True)
            if not self.peek() or self.peek() == ")" or self.peek(2) in (";;", ";&"):
                break
            if self.reserved() in ("then", "elif", "else", "fi", "do", "done", "esac", "}"):
                break
            command = self._and_or()
            self.blanks()
            sign = self.peek()
            items.append((command, sign))
            if sign == "&" or (sign == ";" and self.peek(2) not in (";;", ";&")):
                self.at += 1
            elif sign not in ("\n", "", ")") and self.peek(2) not in (";;", ";&"):
                self.fail(f"unexpected {sign}")
        self.depth -= 1
        return Sequence(tuple(items))

    def _and_or(self) -> Command:
        first, rest = self._pipeline(), list[tuple[str, Command]]()
        while self.peek(2) in ("&&", "||"):
            sign = self.peek(2)
            self.at += 2
            self.blanks(lines=True)
            rest.append((sign, self._pipeline()))
        return AndOr(first, tuple(rest)) if rest else first

    def _pipeline(self) -> Command:
        negated = False
        while (word := self.reserved()) in ("!", "time"):
            negated ^= word == "!"
            self.at += len(word)
            self.blanks()
            if word == "time" and self.peek(3) == "-p ":
                self.at += 3
                self.blanks()
        commands = [self._command()]
        self.blanks()
        while self.peek() == "|" and self.peek(2) != "||":
            self.at += 2 if self.peek(2) == "|&" else 1
            self.blanks(lines=True)
            commands.append(self._command())
            self.blanks()
        return Pipeline(tuple(commands), negated) if negated or len(commands) > 1 else commands[0]

    def _command(self) -> Command:
        word = self.reserved()
        if word == "coproc":
            self.at = _COPROCESS.match(self.text, self.at).end()  # type: ignore[union-attr]
            return Group(self._command(), own_process=True)
        if word not in _COMPOUND and self.peek() != "(":
            return self._function() if word == "function" or _FUNCTION.match(self.text, self.at) else self._simple()
        self.deeper()
        found = self._compound(word)
        self.depth -= 1
        if found is None:  # ((...) ...): a process in a process
            return self._command()
        redirections = self._redirections()
        return Group(found, redirections=redirections) if redirections else found

    def _compound(self, word: str) -> Command | None:
        if word == "":
            return self._parentheses()
        self.at += len(word)
        match word:
            case "if":
                return self._if()
            case "while" | "until":
                return While(self.sequence(), self._body(), word == "until")
            case "for" | "select":
                return self._for(word == "select")
            case "case":
                return self._case()
            case "[[":
                return self._test()
        body = self.sequence()
        self.expect("}")
        return Group(body)

    def _parentheses(self) -> Command:
        if self.peek(2) == "((":
            start, self.at = self.at, self.at + 2
            if (found := self.arithmetic()) is not None:
                return Compute(found[0])
            self.at = start
        self.at += 1
        body = self.sequence()
        self.expect(")")
        return Group(body, own_process=True)

    def _if(self) -> Command:
        clauses, otherwise, word = [], None, "if"
        while word in ("if", "elif"):
            condition = self.sequence()
            self.expect("then")
            clauses.append((condition, self.sequence()))
            word = self.expect("elif", "else", "fi")
        if word == "else":
            otherwise = self.sequence()
            self.expect("fi")
        return If(tuple(clauses), otherwise)

    def _body(self) -> Sequence:
        self.expect("do")
        body = self.sequence()
        self.expect("done")
        return body

    def _for(self, asks: bool) -> Command:
        self.blanks()
        if self.peek(2) == "((":
            self.at += 2
            parts = self.arithmetic(";")
            if parts is None or len(parts) != 3:
                self.fail("for ((...)) needs three expressions")
            self.blanks()
            self.at += self.peek() == ";"
            return Count(parts[0], parts[1], parts[2], self._body())
        name = NAME.match(self.text, self.at)
        if name is None:
            self.fail("for needs a name")
        self.at = name.end()
        self.blanks(lines=True)
        words = None
        if re.compile(r"in(?=[ \t\n;]|$)").match(self.text, self.at):
            self.at += 2
            words = self._words()
        self.blanks()
        self.at += self.peek() == ";"
        return For(name[0], words, self._body(), asks)

    def _words(self) -> tuple[Word, ...]:
        words = list[Word]()
        self.blanks()
        while word := self.word():
            words.append(word)
            self.blanks()
        return tuple(words)

    def _case(self) -> Command:
        self.blanks()
        word, items = self.word(), []
        self.blanks(lines=True)
        if self.peek(2) != "in":
            self.fail("case without in")
        self.at += 2
        self.blanks(lines=True)
        while self.reserved() != "esac":
            self.at += self.peek() == "("
            patterns = list[Word]()
            while True:
                self.blanks()
                if not (pattern := self.word()):
                    self.fail("a pattern of case is missing")
                patterns.append(pattern)
                self.blanks()
                if self.peek() != "|":
                    break
                self.at += 1
            self.expect(")")
            body = self.sequence()
            end = self.peek(3) if self.peek(3) == ";;&" else self.peek(2) if self.peek(2) in (";;", ";&") else ""
            self.at += len(end)
            items.append((tuple(patterns), body, end))
            self.blanks(lines=True)
            if not end:
                break
        self.expect("esac")
        return Case(word, tuple(items))

    def _function(self) -> Command:
        if self.reserved() == "function":
            self.at += len("function")
            self.blanks()
        name = literal(self.word())
        self.blanks()
        if self.peek() == "(":
            self.expect("(")
            self.expect(")")
        self.blanks(lines=True)
        if not name or (self.reserved() not in _COMPOUND and self.peek() != "("):
            self.fail("a function needs a name and a body")
        return Function(name, self._command())

    def _redirections(self) -> tuple[Redirection, ...]:
        found = list[Redirection]()
        self.blanks()
        while sign := _REDIRECTED.match(self.text, self.at):
            found.append(self._redirection(sign))
            self.blanks()
        return tuple(found)

    def _redirection(self, sign: re.Match[str]) -> Redirection:
        self.at = sign.end()
        self.blanks()
        start, word = self.at, self.word()
        if not word:
            self.fail(f"nothing behind {sign[1]}")
        node = Redirection(sign[1].rstrip("-"), word)
        if sign[1] in ("<<", "<<-"):
            raw = self.text[start : self.at]
            end = re.sub(r"[\\'\"]", "", raw)
            self.awaited.append((node, end, sign[1] == "<<-", end != raw))
            node.word = ()
        return node

    def _simple(self) -> Command:
        assignments, words = list[Assignment](), list[Word | Assignment]()
        redirections, declares = list[Redirection](), False
        while True:
            self.blanks()
            if sign := _REDIRECTED.match(self.text, self.at):
                redirections.append(self._redirection(sign))
            elif (not words or declares) and (found := _ASSIGNED.match(self.text, self.at)):
                (words if words else assignments).append(self._assignment(found))
            elif word := self.word():
                words.append(word)
                declares = declares or (len(words) == 1 and literal(word) in DECLARES)
            else:
                break
        if not (assignments or words or redirections):
            self.fail(f"unexpected {self.reserved() or self.peek().strip() or 'end'}")
        return Simple(tuple(assignments), tuple(words), tuple(redirections))

    def _assignment(self, found: re.Match[str]) -> Assignment:
        name, index, append = found[1], None, bool(found[3])
        if found[2]:
            index = tuple(Parser(found[2][1:-1], self.where, self.depth + 1).parts("'\"", braced=True))
        self.at = found.end()
        if self.peek() != "(":
            return Assignment(name, self.word(assigned=True), append, index)
        self.at += 1
        elements = list[tuple[Word | None, Word]]()
        self.blanks(lines=True)
        while self.peek() != ")":
            place = None
            if self.peek() == "[" and (end := re.compile(r"\[[^\]\n]{0,100}\]=").match(self.text, self.at)):
                inner = self.text[self.at + 1 : end.end() - 2]
                place = tuple(Parser(inner, self.where, self.depth + 1).parts("'\"", braced=True))
                self.at = end.end()
            element = self.word(assigned=place is not None)
            if not element and place is None:
                self.fail(f"unexpected {self.peek()} in a list" if self.peek() else "no closing )")
            elements.append((place, element))
            self.blanks(lines=True)
        self.at += 1
        return Assignment(name, None, append, index, tuple(elements))
