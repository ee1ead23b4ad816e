"""Whole numbers as bash computes them: 64 bits, names are variables, and texts of variables are expressions again."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import Protocol

from .script import MANY, NEVER, UNREAD

MOST_NESTED = 60  # brackets and variables within each other
_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|[0-9]+#[0-9a-zA-Z@_]+|[0-9]+)|([A-Za-z_][A-Za-z0-9_]*)"
    r"|(<<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&^|]=|[-+*/%<>=!~&|^?:,()\[\]]))"
)
_ASSIGNED = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]*)(?:\[[^\]]*\])?\s*(?:(?:<<|>>|[-+*/%&^|])?=(?!=)|\+\+|--)"
    r"|(?:\+\+|--)\s*([A-Za-z_][A-Za-z0-9_]*)"
)
ASSIGNS = ("=", "*=", "/=", "%=", "+=", "-=", "<<=", ">>=", "&=", "^=", "|=")
_LEVELS = [["||"], ["&&"], ["|"], ["^"], ["&"], ["==", "!="], ["<=", ">=", "<", ">"], ["<<", ">>"], ["+", "-"]]
_LEVELS += [["*", "/", "%"], ["**"]]
PRECEDENCE = {sign: level for level, signs in enumerate(_LEVELS) for sign in signs}
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"
_MOST_DIGITS = 18


class Variables(Protocol):
    """What gives and takes the values of variables."""

    erroneous: bool  # whether bash refuses the expression last computed

    def value(self, name: str) -> object:
        """A text, list, table, None or NEVER."""
        ...

    def assign(self, name: str, text: str) -> None:
        """Set a variable."""
        ...

    def forget(self, names: Iterable[str]) -> None:
        """Set variables to what is not read."""
        ...

    def charge(self, amount: int) -> None:
        """Count work."""
        ...


class NotComputed(Exception):
    """An expression with what is not read."""


class Erroneous(NotComputed):
    """An expression that bash refuses, and with it the whole line."""


def computed(text: str, variables: Variables) -> int | None:
    """The value of an expression; None where it is not known, and then neither is what it assigns."""
    variables.charge(len(text) // 4)
    try:
        if UNREAD in text:
            raise NotComputed
        return Expression(text, variables).result()
    except NotComputed as error:
        variables.erroneous = isinstance(error, Erroneous)
        variables.forget(assigned_names(text))
        return None


def assigned_names(text: str) -> set[str]:
    """The variables that an expression may assign."""
    return {first or second for first, second in _ASSIGNED.findall(text)}


def _wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def _divided(left: int, right: int) -> int:
    if right == 0:
        raise Erroneous
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _power(left: int, right: int) -> int:
    if right < 0:
        raise Erroneous
    return pow(left, right, 2**64)


def _shift(by: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def shifted(left: int, right: int) -> int:
        if not 0 <= right < 64:
            raise NotComputed
        return by(left, right)

    return shifted


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
    "%": lambda left, right: left - right * _divided(left, right),
    "**": _power,
    "<<": _shift(operator.lshift),
    ">>": _shift(operator.rshift),
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


class Expression:
    """An expression and the place in it; ``skipped`` counts branches whose values are not used."""

    def __init__(self, text: str, variables: Variables, depth: int = 0):
        self.variables, self.depth, self.skipped = variables, depth, 0
        self.tokens, at = list[str](), 0
        while at < len(text) and (found := _TOKEN.match(text, at)):
            self.tokens.append(found[0].strip())
            at = found.end()
        if text[at:].strip():
            raise Erroneous
        self.at = 0

    def result(self) -> int:
        """The value of the whole expression; 0 for an empty one."""
        if not self.tokens:
            return 0
        value = self._commas()
        if self.at < len(self.tokens):
            raise Erroneous
        return value

    def _next(self, *wanted: str) -> str:
        """Pass by one of these signs, if one stands here."""
        if self.at < len(self.tokens) and self.tokens[self.at] in wanted:
            self.at += 1
            return self.tokens[self.at - 1]
        return ""

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise NotComputed

    def _commas(self) -> int:
        value = self._choice()
        while self._next(","):
            value = self._choice()
        return value

    def _choice(self) -> int:
        """An assignment, or ``a ? b : c``."""
        self._deeper()
        name = self.tokens[self.at] if self.at + 1 < len(self.tokens) else ""
        if (name[:1].isalpha() or name[:1] == "_") and self.tokens[self.at + 1] in ASSIGNS:
            self.at += 2
            value = self._assigned(name, self.tokens[self.at - 1], self._choice())
            self.depth -= 1
            return value
        value = self._binary(0)
        if self._next("?"):
            first = self._skipping(not value, self._commas)
            if not self._next(":"):
                raise Erroneous
            second = self._skipping(bool(value), self._choice)
            value = first if value else second
        self.depth -= 1
        return value

    def _skipping(self, skipped: bool, part: Callable[[], int]) -> int:
        self.skipped += skipped
        value = part()
        self.skipped -= skipped
        return value

    def _assigned(self, name: str, sign: str, value: int) -> int:
        if sign != "=":
            value = self._applied(sign[:-1], self._variable(name), value)
        if not self.skipped:
            self.variables.assign(name, str(value))
        return value

    def _applied(self, sign: str, left: int, right: int) -> int:
        if self.skipped:
            return 0
        return _wrapped(int(_OPERATIONS[sign](left, right)))

    def _binary(self, level: int) -> int:
        """Operators from a level of precedence on, by climbing."""
        left = self._unary()
        while self.at < len(self.tokens) and PRECEDENCE.get(self.tokens[self.at], -1) >= level:
            sign = self.tokens[self.at]
            self.at += 1
            self._deeper()
            above = PRECEDENCE[sign] + (sign != "**")
            if sign in ("&&", "||"):
                right = self._skipping(bool(left) == (sign == "||"), lambda above=above: self._binary(above))
                left = int(bool(left and right) if sign == "&&" else bool(left or right))
            else:
                left = self._applied(sign, left, self._binary(above))
            self.depth -= 1
        return left

    def _unary(self) -> int:
        signs = list[str]()
        while one := self._next("+", "-", "!", "~", "++", "--"):
            signs.append(one)
        name = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if signs and len(signs[-1]) == 2 and (name[:1].isalpha() or name[:1] == "_"):
            self.at += 1
            value = self._assigned(name, signs.pop()[0] + "=", 1)
        else:
            value = self._single()
        for sign in reversed("".join(signs)):
            value = {"+": value, "-": -value, "!": int(not value), "~": ~value}[sign]
        return _wrapped(value)

    def _single(self) -> int:
        """A number, a variable, or an expression in brackets."""
        if self._next("("):
            self._deeper()
            value = self._commas()
            if not self._next(")"):
                raise Erroneous
            self.depth -= 1
            return value
        if self.at == len(self.tokens):
            raise Erroneous
        token = self.tokens[self.at]
        self.at += 1
        if token[0] in "0123456789":
            return number(token)
        if not (token[0].isalpha() or token[0] == "_"):
            raise Erroneous
        if self._next("["):
            return self._element(token)
        value = 0 if self.skipped else self._variable(token)
        if sign := self._next("++", "--"):
            self._assigned(token, sign[0] + "=", 1)
        return value

    def _element(self, name: str) -> int:
        """``A[i]``, which is not assigned here."""
        place = self._commas()
        if not self._next("]") or (self.at < len(self.tokens) and self.tokens[self.at] in (*ASSIGNS, "++", "--")):
            raise NotComputed
        held = self.variables.value(name)
        if self.skipped:
            return 0
        if not isinstance(held, list) or any(MANY in text for text in held):
            raise NotComputed
        return self._of_text(held[place]) if -len(held) <= place < len(held) else 0

    def _variable(self, name: str) -> int:
        if self.skipped:
            return 0
        held = self.variables.value(name)
        held = held[0] if isinstance(held, list) and held else held
        if held is NEVER or isinstance(held, dict):
            raise NotComputed
        return self._of_text(held if isinstance(held, str) else "")

    def _of_text(self, text: str) -> int:
        """The value of a variable's text, which is an expression as well."""
        if UNREAD in text:
            raise NotComputed
        if text.isdecimal() and text.isascii():
            return number(text)
        self.variables.charge(len(text) // 4 + 1)
        self._deeper()
        value = Expression(text, self.variables, self.depth).result()
        self.depth -= 1
        return value


def number(text: str) -> int:
    """The value of digits: octal behind 0, hexadecimal behind 0x, of any base to 64 behind ``base#``."""
    base, sign, digits = text.partition("#")
    if not sign:
        hexadecimal = text[:2] in ("0x", "0X")
        base, digits = ("16", text[2:]) if hexadecimal else ("8" if text[0] == "0" and len(text) > 1 else "10", text)
    if len(digits) > _MOST_DIGITS or len(base) > 2 or not 2 <= int(base) <= 64:
        raise NotComputed
    value = 0
    for digit in digits.lower() if int(base) <= 36 else digits:
        place = _DIGITS.index(digit)
        if place >= int(base):
            raise Erroneous
        value = value * int(base) + place
    return _wrapped(value)
