"""The state of a script while it is read: variables, what branches change, and how much work was done."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from perfgrid.engine.errors import PerfgridError, shortened

from .arithmetic import computed
from .assigned import EVERY, assigned_by
from .nodes import Command, Function, Simple
from .script import MANY, NEVER, UNREAD, Leaving, Script

LONGEST_WORD = 10_000
MOST_NESTED = 100  # commands, and calls of functions, within each other
MOST_WORDS = 20_000  # in a list
MOST_WORK = 5_000_000  # about a microsecond each, and most scripts need a thousandth
CONDITION = "set under a condition or in a loop, which is not executed"
_DYNAMIC = re.compile(
    r"RANDOM|SRANDOM|SECONDS|LINENO|PWD|OLDPWD|_|U?E?UID|P?PID|SHLVL|FUNCNAME|GROUPS|DIRSTACK|PIPESTATUS|REPLY"
    r"|OPT(?:ARG|IND|ERR)|BASH\w*|EPOCH(?:SECONDS|REALTIME)|COMP_\w+|COPROC|HISTCMD|MAPFILE"
)
_ENVIRONMENT = re.compile(  # set by any login, or by what launches jobs
    r"HOME|PATH|USER|LOGNAME|HOSTNAME|SHELL|TERM|LANG|LC_\w+|TMPDIR|PYTHONPATH|LD_LIBRARY_PATH|DISPLAY"
    r"|(?:SLURM|SLURMD|SBATCH|PBS|LSB|OMPI|PMI|PMIX|PET|TORCHELASTIC|KUBERNETES)_\w+"
    r"|WORLD_SIZE|RANK|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|MASTER_ADDR|MASTER_PORT|CUDA_VISIBLE_DEVICES"
)
_FLAG = re.compile(r"(--?[A-Za-z][\w.-]*|\+{0,2}[A-Za-z_][\w.]*(?==))")


class Return(Leaving):
    """``return``."""


class Break(Leaving):
    """``break``."""


class Continue(Leaving):
    """``continue``."""


class Unclear(Exception):
    """It is not known whether a loop or function ends here; ``leaving`` is how it would."""

    def __init__(self, leaving: Leaving):
        super().__init__()
        self.leaving = leaving


class State:
    """Variables and what else a script holds, with the changes that each open branch makes."""

    def __init__(self, script: Script, where: str, work: int = MOST_WORK):
        self.script, self.where, self.work = script, where, work
        self.changes: list[dict[str, Any]] = []  # of open branches: name -> value before
        self.presuming, self.presumptions = 0, 0
        self.erroneous = False
        self.doubts = 0  # branches and functions of which it is not known whether they run
        self.checking = 0  # conditions, in which a failure does not end the script
        self.depth, self.turns, self.loops = 0, 0, 0
        self.given: list[dict[str, bool]] = []  # variables before calls of functions, and whether these declare them
        self.redeclared: set[str] = set()  # those of the last call that it declares
        self.scopes: list[dict[str, tuple[Any, int]]] = []  # of functions: local name -> value before, open branches

    def run(self, node: Command) -> Any:
        """Run a command; its status is True, False, "likely" or None (not known)."""
        raise NotImplementedError

    def external(self, node: Simple, words: list[str]) -> Any:
        """Take in a command that is a program."""
        raise NotImplementedError

    def charge(self, amount: int) -> None:
        """Count work. PerfgridError where it is too much."""
        self.work -= amount + 1
        if self.work < 0:
            raise PerfgridError(f"{self.where}: variables stand for too much text, or loops for too many commands")

    def check(self, text: str) -> str:
        """A word. PerfgridError for one that is too long."""
        if len(text) > LONGEST_WORD:
            raise PerfgridError(f"{self.where}: variables stand for too much text: {shortened(text, 60)!r}")
        return text

    def value(self, name: str) -> Any:
        """A text, list, table, None (unset) or NEVER (set by no text)."""
        found = self.script.held.get(name, NEVER)
        if _DYNAMIC.fullmatch(name) or (found is NEVER and _ENVIRONMENT.fullmatch(name)):
            return UNREAD
        return found

    def put(self, name: str, value: Any) -> None:
        """Hold a value, or none (NEVER)."""
        held = self.script.held
        if self.changes:
            self.changes[-1].setdefault(name, held.get(name, NEVER))
        if value is NEVER:
            held.pop(name, None)
        else:
            held[name] = value

    def assign(self, name: str, text: str, append: bool = False) -> None:
        """Set a variable as ``A=text`` or ``A+=text`` does; of a list that is its first element."""
        held, traits = self.script.held.get(name), self.script.held.get(f"{name}: trait")
        if traits == "integer":
            more = f"({held or 0})+({text})" if append else text
            number = computed(more, self) if not isinstance(held, list) else None  # type: ignore[arg-type]
            self.put(name, UNREAD if number is None else str(number))
        elif traits or isinstance(held, dict):
            self.put(name, UNREAD)
        elif isinstance(held, list):
            first = (held[0] if held else "") + text if append else text
            self.put(name, [MANY] if any(MANY in one for one in held[:1]) else [first, *held[1:]])
        else:
            self.put(name, self.check((held or "") + text if append else text))

    def extend(self, name: str, texts: list[str]) -> None:
        """Append to a list, in place where no open branch shares it."""
        held = self.script.held.get(name)
        held = [held] if isinstance(held, str) else held
        if isinstance(held, list) and (not self.changes or name in self.changes[-1]) and held is self.script.held[name]:
            held += texts
        else:
            self.put(name, [*(held or []), *texts])
        self.charge(len(texts))
        if len(self.script.held[name]) > MOST_WORDS:
            raise PerfgridError(f"{self.where}: variables stand for too much text: {name} has too many words")

    def forget(self, names: Iterable[str]) -> None:
        """Set variables to what is not read."""
        for name in names:
            self.put(name, [MANY] if name == "@" or isinstance(self.script.held.get(name), list) else UNREAD)

    def functions(self) -> dict[str, Any]:
        """The bodies of functions by name."""
        return {n[:-2]: held.body for n, held in self.script.held.items() if isinstance(held, Function)}

    def forget_assigned(self, node: Any, noted: bool = False) -> dict[str, bool]:
        """Set what a node may assign to what is not read; what it only appends to keeps its words before."""
        found = assigned_by(node, self.script.held, self.charge) if node else {}
        self.charge(len(found))
        every = {n: False for n in self.script.held if ":" not in n and n != "@"} if EVERY in found else {}
        for name, append in (found | every).items():
            if name == EVERY:
                continue
            held = self.script.held.get(name)
            if append and isinstance(held, list):
                self.put(name, held if held[-1:] == [MANY] else [*held, MANY])
            elif append and isinstance(held, str) and " " in held:
                self.put(name, held[: held.rindex(" ") + 1] + UNREAD)
            else:
                self.forget([name])
            if noted and name.isidentifier():
                self.note(name, CONDITION)
        return found

    def note(self, what: str, why: str) -> None:
        """Note what is not read, once."""
        if (what, why) not in self.script.notes[-20:]:
            self.script.notes.append((what, why))

    def presume(self, name: str) -> None:
        """Note that a name is taken as unset."""
        self.presumptions += 1
        self.script.presumed.setdefault(name)

    def tried(self, run: Callable[[], Any]) -> tuple[dict[str, Any], Any, Leaving | None]:
        """What commands change, their status and how they end; the state is afterwards as before."""
        self.changes.append({})
        status, ended = None, None
        try:
            status = run()
        except Leaving as leaving:
            ended = leaving
        finally:
            before = self.changes.pop()
            after = {name: self.script.held.get(name, NEVER) for name in before}
            for name, value in before.items():
                if value is NEVER:
                    self.script.held.pop(name, None)
                else:
                    self.script.held[name] = value
            self.charge(len(before))
        return after, status, ended

    def join(self, changes: list[dict[str, Any]]) -> None:
        """Take in what branches change of which one runs: values that they share, others are not read."""
        for name in dict.fromkeys(name for one in changes for name in one):
            current = self.script.held.get(name, NEVER)
            values = [one.get(name, current) for one in changes]
            if all(_same(value, values[0]) for value in values):
                if not _same(values[0], current):  # else the list before stays its own object: see `extend`
                    self.put(name, values[0])
            else:
                self.put(name, self._merged(name, values))
                if name.isidentifier():
                    self.note(name, CONDITION)

    def _merged(self, name: str, values: list[Any]) -> Any:
        """What several values have in common, with what may stand behind it."""
        if name == "@" or not name.isidentifier():
            return [MANY] if name == "@" else UNREAD
        known = [value for value in values if value is not None and value is not NEVER]
        if all(isinstance(value, list) for value in known):
            self.charge(sum(map(len, known)) // 4)
            return _shared([value if isinstance(value, list) else [] for value in values])
        if not all(isinstance(value, str) for value in known):
            return [MANY] if any(isinstance(value, list) for value in known) else UNREAD
        words = [value.split() if isinstance(value, str) else [] for value in values]
        self.charge(sum(map(len, words)))
        return " ".join(_shared(words)) if any(len(one) > 1 or _flags(one) for one in words) else UNREAD


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and one == other)


def _flags(words: list[str]) -> list[str]:
    return [found[0] for word in words if (found := _FLAG.match(word)) and (word[0] == "-" or "=" in word)]


def _shared(lists: list[list[str]]) -> list[str]:
    """The words that all begin with; of the others the flags, whose values are not read."""
    same = 0
    while all(len(words) > same and words[same] == lists[0][same] for words in lists):
        same += 1
    flags = dict.fromkeys(flag for words in lists for flag in _flags(words[same:]))
    more = [f"{MANY}{flag}={UNREAD}" for flag in flags] or [MANY]
    return lists[0][:same] if more == [MANY] == lists[0][:same][-1:] else [*lists[0][:same], *more]
