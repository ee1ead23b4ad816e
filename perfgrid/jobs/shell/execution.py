"""Commands as bash would run them, over texts that are known or not; nothing is executed.

Of a condition that is not known both branches are followed: values that differ become unread, commands are unsure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from perfgrid.engine.errors import PerfgridError, shortened

from . import builtins
from .arithmetic import computed
from .assigned import assigned_by, substitutes
from .conditions import EMPTY, holds, negated
from .expansion import fields, joined, pattern
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
    Sequence,
    Simple,
    Test,
    Text,
    While,
    literal,
)
from .parser import DECLARES, parsed
from .script import NEVER, UNREAD, Abandoned, CommandWords, Leaving, Script
from .state import Break, Continue, Exit, Return, State, Unclear

MOST_NESTED = 60  # commands, and calls of functions, within each other
MOST_TURNS = 5_000  # of all loops together
MOST_WITHIN = 3  # command strings within each other
LIKELY = "likely"  # the status of a command that is there to succeed
DOUBTED = "a command under a condition or in a function, which is not executed"
_DECIDES = re.compile(r"[fez]?grep|command|type|which|hash|pgrep|pidof|lsof|nc|curl|wget|ping|diff|cmp|expr|\[|test|is_.*|check_.*")
_HANDS_ON = re.compile(r"-[a-z]*c")  # an option of shells: the next word is a command
_SHELLS = ("bash", "sh", "zsh", "dash", "sbatch", "qsub", "bsub", "ssh", "source", ".")
_MADE = re.compile(rf"{UNREAD}(.*={UNREAD})", re.DOTALL)  # an option that a branch may add


class Shell(State):
    """The commands of a script over its state."""

    def __init__(self, script: Script, where: str, **options: int):
        super().__init__(script, where, **options)
        self.doubts = 0  # branches and functions of which it is not known whether they run
        self.checking = 0  # conditions, in which a failure does not end the script
        self.depth, self.turns, self.loops = 0, 0, 0
        self.given: list[dict[str, bool]] = []  # variables before calls of functions, and whether these declare them
        self.redeclared: set[str] = set()  # those of the last call that it declares
        self.scopes: list[dict[str, tuple[Any, int]]] = []  # of functions: local name -> value before, open branches

    def read(self, text: str) -> None:
        """Take in a text. PerfgridError for what is no script."""
        try:
            self._lines(parsed(text, self.where))
        except (Leaving, Unclear):
            pass
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
                self.run(Sequence(tuple(line)))
            except Abandoned:
                pass
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

    def _checked(self, node: Command) -> tuple[Any, bool]:
        """The status of a condition, and whether names were presumed to be unset for it."""
        before = self.presumptions
        self.checking += 1
        try:
            return self.run(node), self.presumptions > before
        finally:
            self.checking -= 1

    # --- branches

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

    def _presumed(self, chosen: Callable[[], Any], other: Callable[[], Any]) -> Any:
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
        return other()

    def _andor(self, node: AndOr) -> Any:
        status, presumed = self._checked(node.first)
        for place, (sign, command) in enumerate(node.rest, 1):
            last, wanted = place == len(node.rest), sign == "&&"
            run = partial(self.run, command) if last else lambda command=command: self._checked(command)[0]
            before = self.presumptions
            if status is True or status is False:
                if presumed:
                    keep, chosen = status, status
                    skip = lambda keep=keep: keep  # noqa: E731
                    status = self._presumed(*((run, skip) if chosen is wanted else (skip, run)))
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
                ways = [partial(self.run, body), partial(self._deeper_clauses, node, place + 1)]
                return self._presumed(*(ways if verdict else reversed(ways)))
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

    # --- loops

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
            values = [UNREAD] if arguments is None else arguments
        else:
            values = [field for word in node.words for field in fields(self, word)]
        unread = node.asks or any(UNREAD in value for value in values)

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

    # --- other compound commands

    def _pipeline(self, node: Pipeline) -> Any:
        if len(node.commands) > 1:
            statuses = [self._alone(command) for command in node.commands]
            sure = all(status is True for status in statuses)
            status = statuses[-1] if statuses[-1] is not True or sure else LIKELY  # see pipefail
            status = status if status is not False else None if self.script.held.get("set -e") else False
        else:
            status = self._checked(node.commands[0])[0] if node.negated else self.run(node.commands[0])
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

    # --- simple commands

    def _simple(self, node: Simple) -> Any:
        if any(literal(one.word) is None for one in node.redirections):
            self.forget_assigned(node.redirections)
        words = self._expanded(node)
        name = words[0] if words and isinstance(words[0], str) else ""
        if not words:
            return self._ended(self._assigned(node))
        function = self.script.held.get(f"{name}()")
        if function is None and name not in builtins.TABLE:
            return self._ended(self._external(node, words))
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

    def _external(self, node: Simple, words: list[str]) -> Any:
        """Take in a command that is a program."""
        environment = self._environment(node)
        texts = [joined(self, one.word, long=True) for one in node.redirections if one.operator == "<<"]
        written = [joined(self, one.word) for one in node.redirections if one.operator == ">"]
        if texts and words[0] in ("cat", "tee"):
            for file in [*written, *words[1:]]:
                self.put(f"{_base(file)}: text", texts[-1])
        if any(word.strip() for word in words):
            self._take(CommandWords([_made(word) for word in words], environment), texts)
        return LIKELY if not _DECIDES.fullmatch(_base(words[0])) and UNREAD not in words[0] else None

    def _before(self, node: Simple) -> dict[str, Any]:
        """Set the variables before a command; the values that they have had, unread where a value sets one itself."""
        before = {one.name: self.script.held.get(one.name, NEVER) for one in node.assignments}
        for one in node.assignments:
            if literal(one.value) is None:
                within = assigned_by(one.value, {}, self.charge)
                before |= dict.fromkeys(before.keys() & within.keys(), UNREAD)
            builtins.set_variable(self, one)
        return before

    def _environment(self, node: Simple) -> dict[str, str]:
        """The variables that stand before a command."""
        before = self._before(node)
        values = {name: self.script.held.get(name) for name in before}
        for name, value in before.items():
            self.put(name, value)
        return {name: value for name, value in values.items() if isinstance(value, str)}

    def _take(self, words: CommandWords, texts: list[str]) -> None:
        """Note a command, or the commands that it hands to a shell."""
        held = self.script.held
        scripts = texts if _base(words[0]) in _SHELLS or _base(words[-1]) in _SHELLS else []
        scripts = scripts + [held[f"{_base(w)}: text"] for w in words if isinstance(held.get(f"{_base(w)}: text"), str)]
        inner = [one for text in scripts for one in self._inner(text, words)] or self._handed(words)
        for one in inner or [words]:
            if not self.doubts:
                self.script.commands.append(one)
                continue
            self.script.unsure.append(one)
            if any(word.startswith("--") for word in one):
                self.note(shortened(" ".join(one), 60), DOUBTED)

    def _handed(self, words: CommandWords) -> list[CommandWords]:
        """The commands of the one word with options that a command hands to a shell (``bash -c "..."``); else none."""
        texts = [word for word in words if " --" in word and not word.startswith("-")]
        handed = any(_HANDS_ON.fullmatch(word) for word in words) or words[0] == "ssh"
        return self._inner(texts[0], words) if handed and len(texts) == 1 else []

    def _inner(self, text: str, words: CommandWords) -> list[CommandWords]:
        """The commands of a text that another shell runs, with the variables that are exported to it."""
        if self.script.within == MOST_WITHIN:
            return []
        held = self.script.held
        given = {name: value for name, value in held.items() if isinstance(value, str) and held.get(f"{name}: export")}
        self.charge(len(held))
        given |= words.environment
        given |= {name: value for name, sign, value in (w.partition("=") for w in words) if sign and name.isidentifier()}
        shell = Shell(Script(given, within=self.script.within + 1), self.where, work=self.work)
        try:
            shell.read(text)
        except PerfgridError:
            return []
        finally:
            self.work = max(shell.work, 0)
        self.script.unsure += shell.script.unsure
        self.script.notes += shell.script.notes
        return shell.script.commands


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _made(word: str) -> str:
    """A word of a command; an option that a branch may add, by its name."""
    found = _MADE.fullmatch(word)
    return found[1] if found else word
