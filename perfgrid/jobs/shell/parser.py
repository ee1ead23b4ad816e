"""The commands of a script as a tree; grammar of bash, nothing is executed."""

from __future__ import annotations

import re
from functools import lru_cache

from perfgrid.engine.errors import PerfgridError

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
    Test,
    Text,
    Unread,
    While,
    Word,
    literal,
)
from .scanner import ENDS_WORD, NAME, Scanner

DECLARES = ("declare", "typeset", "export", "local", "readonly")
_BLANKS = re.compile(r"(?>[ \t]+|\\\n|#[^\n]*)*+")
_RESERVED = re.compile(
    r"(if|then|elif|else|fi|while|until|for|select|do|done|case|esac|function|time|coproc|\[\[|[{}!])(?=[ \t\n|&;()<>]|\\\n|$)"
)
_REDIRECTED = re.compile(r"(?:[0-9]+|\{[A-Za-z_]\w*\})?(<<<|<<-?|<>|<&|>&|>>|>\||<(?!\()|>(?!\()|&>>?)")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[(?:[^\[\]\n]|\[[^\[\]\n]{0,50}\]){0,100}\])?(\+?)=")
_FUNCTION = re.compile(r"[^\s|&;()<>$'\"`\\=]+[ \t]*\([ \t]*\)")
_UNARY = re.compile(r"-[a-zA-Z](?=[ \t])")
_BINARY = re.compile(r"(==|=~|=|!=|<|>|-(?:eq|ne|lt|le|gt|ge|nt|ot|ef)(?=[ \t]))")
_COPROCESS = re.compile(r"coproc[ \t]+([A-Za-z_]\w*[ \t]+(?=[({]))?")
_COMPOUND = ("if", "while", "until", "for", "select", "case", "{", "[[")


@lru_cache(8)
def parsed(text: str, where: str) -> Sequence:
    """The commands of a text. PerfgridError for what is no script, with the line."""
    parser = Parser(text.replace("\r\n", "\n"), where)
    found = parser.sequence()
    if parser.peek():
        parser.fail(f"{parser.reserved() or parser.peek(2).strip()} that nothing opens")
    return found


class Parser(Scanner):
    """A place in a text, and the commands from there on."""

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
            return tuple(Parser(text, self.where, self.depth + 1).parts("", quoted=True))
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
