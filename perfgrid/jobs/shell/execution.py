"""Commands as bash would run them, over texts that are known or not; nothing is executed.

Of a condition that is not known both branches are followed: values that differ become unread, commands are unsure.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from . import builtins
from .arithmetic import computed
from .assigned import substitutes
from .branches import LIKELY
from .conditions import EMPTY, holds, negated
from .expansion import fields, joined
from .loops import MOST_TURNS, Loops
from .nodes import (
    Assignment,
    Command,
    Compute,
    Function,
    Group,
    Pipeline,
    Sequence,
    Simple,
    Test,
    Text,
    literal,
)
from .parser import DECLARES, parsed
from .programs import Programs
from .script import NEVER, UNREAD, Abandoned, Exit, Leaving
from .state import MOST_NESTED, Return, Unclear


class Shell(Loops, Programs):
    """The commands of a script over its state."""

    def read(self, text: str) -> None:
        """Take in a text. Raises PerfgridError if it cannot be parsed."""
        with suppress(Leaving, Unclear):
            self._lines(parsed(text, self.where))
        for name, body in self.functions().items():
            if f"{name}: called" not in self.script.held:
                self.script.held[f"{name}: called"] = True
                self._doubted(partial(self._called, body, None))

    def run(self, node: Command) -> Any:
        """Run a command; its status is True, False, LIKELY or None (not known)."""
        self.charge(1)
        self.depth += 1
        try:
            if self.depth > MOST_NESTED:
                self.forget_assigned(node, noted=True)
                return None
            return getattr(self, "_" + type(node).__name__.lower())(node)
        finally:
            self.depth -= 1

    def _sequence(self, node: Sequence) -> Any:
        status: Any = True
        for command, end in node.items:
            status = self.run(command) if end != "&" else self._alone(command) and True
        return status

    def _lines(self, node: Sequence) -> None:
        """Run commands line by line; one with an error in an expansion is left, and the next is read."""
        line = list[tuple[Command, str]]()
        for item in node.items:
            line.append(item)
            if item[1] == ";" and item is not node.items[-1]:
                continue
            try:
                with suppress(Abandoned):
                    self.run(Sequence(tuple(line)))
            except Unclear as unclear:
                if not isinstance(unclear.leaving, Abandoned):
                    raise
                self.forget_assigned(tuple(line), noted=True)
            line.clear()

    def _alone(self, node: Command) -> Any:
        """Run a command in a process of its own, which changes nothing here."""
        outer = self.loops, self.scopes
        self.loops, self.scopes = 0, []
        _, status, ended = self.tried(partial(self.run, node))
        self.loops, self.scopes = outer
        return ended.status if ended is not None else status

    def _ended(self, status: Any) -> Any:
        """A status, with which the script may end (``set -e``)."""
        if status is False and not self.checking and self.script.held.get("set -e") is True:
            raise Exit(False)
        return status

    def _pipeline(self, node: Pipeline) -> Any:
        first, *others = node.commands
        if others:
            statuses = [self._alone(command) for command in node.commands]
            sure = all(status is True for status in statuses)
            status = statuses[-1] if statuses[-1] is not True or sure else LIKELY  # see pipefail
            status = None if status is False and self.script.held.get("set -e") else status
        else:
            status = self._checked(first)[0] if node.negated else self.run(first)
        if node.negated:
            return negated(status) if isinstance(status, bool) else None
        return self._ended(status)

    def _group(self, node: Group) -> Any:
        self.forget_assigned(node.redirections)
        return self._ended(self._alone(node.body)) if node.own_process else self.run(node.body)

    def _function(self, node: Function) -> Any:
        self.put(f"{node.name}()", node)
        return True

    def _test(self, node: Test) -> Any:
        return self._ended(self._conditional(partial(holds, self, node.expression)))

    def _compute(self, node: Compute) -> Any:
        found = self._conditional(lambda: computed(joined(self, node.expression), self))
        return self._ended(None if found is None else found != 0)

    def _conditional(self, run: Callable[[], Any]) -> Any:
        self.presuming += 1
        try:
            return run()
        finally:
            self.presuming -= 1

    def _called(self, body: Command, arguments: list[str] | None, given: dict[str, bool] | None = None) -> Any:
        """Run the body of a function; local names have their values before afterwards."""
        outer, loops = self.script.held.get("@"), self.loops
        self.scopes.append({})
        self.given.append(given or {})
        self.loops = 0
        self.put("@", arguments)
        try:
            return self.run(body)
        except Return as found:
            return found.status
        except Unclear as unclear:
            self.forget_assigned(body, noted=True)
            self.given[-1] = dict.fromkeys(self.given[-1], True)
            if not isinstance(unclear.leaving, Return):
                raise
            return None
        finally:
            self.put("@", outer)
            self.loops = loops
            self.redeclared = {name for name, declared in self.given.pop().items() if declared}
            for name, (value, branches) in self.scopes.pop().items():
                self.put(name, value if branches == len(self.changes) else UNREAD)

    def _simple(self, node: Simple) -> Any:
        if any(literal(one.word) is None for one in node.redirections):
            self.forget_assigned(node.redirections)
        words = self._expanded(node)
        name = words[0] if words and isinstance(words[0], str) else ""
        if not words:
            return self._ended(self._assigned(node))
        function = self.script.held.get(f"{name}()")
        if function is None and name not in builtins.TABLE:
            return self._ended(self.external(node, words))
        before = self._before(node)
        given = {name: self.script.held.get(name, NEVER) for name in before}
        self.redeclared = set()
        try:
            if isinstance(function, Function):
                self.script.held[f"{name}: called"] = True
                return self._call(function, words[1:], dict.fromkeys(given, False))
            if function is not None:  # it is not known which
                self.forget_assigned(tuple(self.functions().values()))
                return None
            return self._ended(builtins.TABLE[name](self, words, node))
        finally:
            for one, value in before.items():  # a declaration within may have made it another variable
                kept = name not in DECLARES and one not in self.redeclared
                kept = kept and self.script.held.get(one, NEVER) == given[one]
                self.put(one, value if kept else UNREAD)
                for scope in [] if kept else self.scopes:
                    scope |= {one: (UNREAD, len(self.changes))} if one in scope else {}

    def _call(self, function: Function, arguments: list[str], given: dict[str, bool]) -> Any:
        if self.depth > MOST_NESTED // 2 or self.turns > MOST_TURNS:  # perhaps it calls itself without end
            self.forget_assigned(function.body, noted=True)
            return None
        self.turns += 1
        return self._called(function.body, arguments, given)

    def _expanded(self, node: Simple) -> list[Any]:
        """The words of a command with what they stand for; assignments of declarations as they are."""
        found, tests = list[Any](), literal(node.words[0]) if node.words else None
        for place, word in enumerate(node.words):
            if isinstance(word, Assignment):  # values of a declaration are put in before any is set
                text = None if word.value is None else (Text(joined(self, word.value), True),)
                found.append(replace(word, value=text))
                continue
            asked = tests in ("[", "test") and (literal(node.words[place - 1]) in EMPTY or len(node.words) < 4)
            self.presuming = (tests in ("[", "test")) + asked
            found += fields(self, word) if tests != "let" else [joined(self, word)]
        self.presuming = 0
        return found

    def _assigned(self, node: Simple) -> Any:
        for one in node.assignments:
            builtins.set_variable(self, one)
        return LIKELY if any(substitutes(one) for one in node.assignments) else True
