"""Conditions: one branch where it is known which runs, else all of them side by side."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from .expansion import joined, pattern
from .nodes import AndOr, Case, Command, If, literal
from .script import UNREAD, Exit, Leaving
from .state import MOST_NESTED, State, Unclear

LIKELY = "likely"  # the status of a command that is there to succeed


class Branches(State):
    """Follows what runs under a condition."""

    def _checked(self, node: Command) -> tuple[Any, bool]:
        """The status of a condition, and whether names were presumed to be unset for it."""
        before = self.presumptions
        self.checking += 1
        try:
            return self.run(node), self.presumptions > before
        finally:
            self.checking -= 1

    def _doubted(self, run: Callable[[], Any]) -> dict[str, Any] | None:
        """What a branch changes of which it is not known whether it runs; None where it ends the script."""
        self.doubts += 1
        try:
            after, _, ended = self.tried(run)
        finally:
            self.doubts -= 1
        return None if self._leaves(ended) else after

    def _leaves(self, ended: Leaving | None) -> bool:
        if ended is None:
            return False
        if isinstance(ended, Exit):
            return True
        raise Unclear(ended)

    def _either(self, branches: list[Command | None]) -> Any:
        """Follow branches of which one runs, None for nothing; those that end the script are left out."""
        found = [self._doubted(partial(self.run, one)) if one is not None else {} for one in branches]
        left = [after for after in found if after is not None]
        if not left:
            raise Exit
        self.join(left)
        return None

    def _presumed(self, chosen: Callable[[], Any], other: Callable[[], Any], before: int) -> Any:
        """Run what follows from names that are presumed to be unset; if that ends the script, they are not."""
        script = self.script
        counts = len(script.commands), len(script.unsure), len(script.notes)
        after, status, ended = self.tried(chosen)
        if not isinstance(ended, Exit):
            self.join([after])
            if ended is not None:
                raise ended
            return status
        del script.commands[counts[0] :], script.unsure[counts[1] :], script.notes[counts[2] :]
        for name in list(script.presumed)[before:]:
            del script.presumed[name]
        return other()

    def _andor(self, node: AndOr) -> Any:
        names = len(self.script.presumed)
        status, presumed = self._checked(node.first)
        for place, (sign, command) in enumerate(node.rest, 1):
            last, wanted = place == len(node.rest), sign == "&&"
            run = partial(self.run, command) if last else lambda command=command: self._checked(command)[0]
            before = self.presumptions
            if status is True or status is False:
                if presumed:
                    keep, chosen = status, status
                    skip = lambda keep=keep: keep  # noqa: E731
                    status = self._presumed(*((run, skip) if chosen is wanted else (skip, run)), names)
                elif status is wanted:
                    status = run()
            else:
                status = self._perhaps(run, status, wanted)
            presumed = presumed or self.presumptions > before
        return status

    def _perhaps(self, run: Callable[[], Any], status: Any, wanted: bool) -> Any:
        """Run what is behind ``&&`` (wanted) or ``||`` and a command whose status is not known."""
        sure = status is LIKELY and wanted
        self.doubts += not sure
        try:
            after, found, ended = self.tried(run)
        finally:
            self.doubts -= not sure
        if self._leaves(ended):
            if sure:
                raise Exit
            return not wanted
        self.join([after, {}])
        return found if sure and found is not True else LIKELY if status is LIKELY else None

    def _if(self, node: If) -> Any:
        return self._clauses(node, 0)

    def _clauses(self, node: If, start: int) -> Any:
        """The clauses of a condition from one on; those behind one that is not known are followed beside it."""
        possible = list[Command | None]()
        for place, (condition, body) in enumerate(node.clauses[start:], start):
            names = len(self.script.presumed)
            verdict, presumed = self._condition(condition, bool(possible))
            if possible and verdict is not False:
                possible.append(body)
            if possible and verdict is True:
                return self._either(possible)
            if possible or (verdict is False and not presumed):
                continue
            if verdict is True and not presumed:
                return self.run(body)
            if verdict is True or verdict is False:
                holds, fails = partial(self.run, body), partial(self._deeper_clauses, node, place + 1)
                return self._presumed(*((holds, fails) if verdict else (fails, holds)), names)
            possible.append(body)
        if possible:
            return self._either([*possible, node.otherwise])
        return self.run(node.otherwise) if node.otherwise is not None else True

    def _deeper_clauses(self, node: If, start: int) -> Any:
        self.depth += 1
        try:
            if self.depth > MOST_NESTED:
                self.forget_assigned(node, noted=True)
                return None
            return self._clauses(node, start)
        finally:
            self.depth -= 1

    def _condition(self, node: Command, doubted: bool) -> tuple[bool | None, bool]:
        """Whether a condition holds; behind one that is not known, what it assigns is not, either."""
        status, presumed = self._checked(node)
        if doubted:
            self.forget_assigned(node)
        return (status if isinstance(status, bool) else None), presumed

    def _case(self, node: Case) -> Any:
        word, possible, falling = joined(self, node.word), list[Command | None](), False
        for place, (patterns, body, end) in enumerate(node.items):
            found = True if falling else self._fits(word, patterns)
            falling = False
            if found is False:
                continue
            if end in (";&", ";;&") and (possible or found is None):
                for leaving in self._followed(node, [body for _, body, _ in node.items[place:]]):
                    raise Unclear(leaving)
                return None
            if found and not possible:
                status = self.run(body)
                if end not in (";&", ";;&"):
                    return status
                falling = end == ";&"
                continue
            possible.append(body)
            if found:
                return self._either(possible)
        return self._either([*possible, None]) if possible else True

    def _fits(self, word: str, patterns: tuple[Any, ...]) -> bool | None:
        """Whether a word fits one of some patterns."""
        verdict: bool | None = False
        for one in patterns:
            wanted = pattern(self, one)
            if literal(one) == "*" or (wanted is not None and UNREAD not in word and re.fullmatch(wanted, word)):
                return True if verdict is not None or literal(one) == "*" else None
            verdict = None if wanted is None or UNREAD in word else verdict
        return verdict

    def _followed(self, node: Command, bodies: list[Command]) -> list[Leaving]:
        """Follow what runs an unknown number of times: what it assigns is not read, what it appends are flags."""
        found, leaving = self.forget_assigned(node, noted=True), list[Leaving]()
        for body in bodies:
            try:
                after = self._doubted(partial(self.run, body)) or {}
            except Unclear as unclear:
                leaving.append(unclear.leaving)
                continue
            for name, append in found.items():
                if append and name in after:
                    self.join([{}, {name: after[name]}])
        return leaving
