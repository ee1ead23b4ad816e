"""Loops: turn by turn as long as their turns are known, else once for any number of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .arithmetic import computed
from .branches import Branches
from .expansion import fields, joined
from .nodes import Command, Count, For, While
from .script import MANY, Leaving
from .state import Break, Continue, Unclear

MOST_TURNS = 5_000  # of all loops, and calls of functions, together


class Loops(Branches):
    """Follows loops."""

    def _looped(self, node: Command, turns: Callable[[], Any], bodies: list[Command]) -> Any:
        """Run the turns of a loop as long as they are known; else what it may assign is not read."""
        self.loops += 1
        try:
            return turns()
        except Unclear as unclear:
            self._outwards(unclear.leaving)
            for leaving in self._followed(node, bodies):
                self._outwards(leaving)
            return None
        finally:
            self.loops -= 1

    def _outwards(self, leaving: Leaving) -> None:
        """Unclear for what may leave more than the innermost loop."""
        if not isinstance(leaving, (Break, Continue)) or leaving.levels > 1:
            leaving.levels -= 1
            raise Unclear(leaving)

    def _turn(self, body: Command) -> Any:
        """One turn of a loop; Break where that leaves it, Unclear where there were too many."""
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise Unclear(Continue())
        try:
            return self.run(body)
        except Continue as found:
            if found.levels > 1:
                found.levels -= 1
                raise
            return True

    def _broken(self, found: Break) -> Any:
        if found.levels > 1:
            found.levels -= 1
            raise found
        return True

    def _while(self, node: While) -> Any:
        def turns() -> Any:
            status: Any = True
            while True:
                verdict, presumed = self._checked(node.condition)
                wanted = verdict is not node.until if isinstance(verdict, bool) else None
                if wanted is None or (wanted and presumed):
                    raise Unclear(Continue())
                if not wanted:
                    return status
                try:
                    status = self._turn(node.body)
                except Break as found:
                    return self._broken(found)

        return self._looped(node, turns, [node.condition, node.body])

    def _for(self, node: For) -> Any:
        if node.words is None:
            arguments = self.script.held.get("@")
            values = [MANY] if arguments is None else arguments
        else:
            values = [field for word in node.words for field in fields(self, word)]
        unread = node.asks or any(MANY in value for value in values)

        def turns() -> Any:
            if unread:
                raise Unclear(Continue())
            status: Any = True
            for value in values:
                self.assign(node.name, value)
                try:
                    status = self._turn(node.body)
                except Break as found:
                    return self._broken(found)
            return status

        return self._looped(node, turns, [node.body])

    def _count(self, node: Count) -> Any:
        def number(word: Any, empty: int) -> int:
            text = joined(self, word)
            found = computed(text, self) if text.strip() else empty
            if found is None:
                raise Unclear(Continue())
            return found

        def turns() -> Any:
            status: Any = True
            number(node.first, 0)
            while number(node.condition, 1):
                try:
                    status = self._turn(node.body)
                except Break as found:
                    return self._broken(found)
                number(node.step, 0)
            return status

        return self._looped(node, turns, [node.body])
