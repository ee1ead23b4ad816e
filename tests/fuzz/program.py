"""One command, run in this process as its user runs it, and what every outcome must keep."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import signal
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from unittest import mock

from perfgrid.analysis.explanation import derivation as explain
from perfgrid.cli import main as cli
from perfgrid.engine.grid.plan import Plan

SECONDS = 30  # of the processor that a command on a small input may take, whatever else the machine does
GROWTH = 2**30  # bytes that one command on a small input may hold at once
LONGEST = 2050  # characters of a message
STATUS_1 = {
    "diff",
    "verify",
    "validate",
    "records",
}  # a difference, damage, records that are not valid: docs/commands.md
RAW = {"Cc", "Cs", "Zl", "Zp"}  # categories of Unicode
REORDERING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # its Bidi_Control
PRECIOUS = "thesis.txt"  # a file of the user's, which nothing may change
WARNED = re.compile("^warning: |are left out$")  # what a command tells before it finds what it refuses
TEXTS = (".html", ".svg", ".csv", ".json", ".jsonl", ".toml", ".yaml", ".sh")  # files that people look at
TARGETS = ("-o", "--output", "--figure", "--save", "--csv")


class TookTooLong(BaseException):
    """Raised in the program; no Exception, so that nothing there takes it for a mistake of the user's."""


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    status: int
    out: str
    err: str
    seconds: float  # of the processor
    evaluated: bool  # a formula was called


def outcome(folder: Path, arguments: Sequence[str], sound: Collection[str] = ()) -> Outcome:
    """Run a command in ``folder`` and check what holds for every outcome. AssertionError if something does not.

    ``sound``: results in it that are whole, so that none of them may be called damaged.
    """
    before, start = contents(folder), fresh_peak()
    found = run(folder, arguments)
    grown = peak_memory() - start
    command = next((a for a in arguments if not a.startswith("-")), "")
    assert found.status in (0, 1, 2), f"status {found.status}"
    assert found.status != 1 or command in STATUS_1, f"status 1 of {command}: {found.err}"
    assert found.seconds < SECONDS
    assert grown < GROWTH, f"{grown / 2**20:,.0f} MiB"
    for text in (found.out, found.err):
        assert not controls(text), repr(text[:2000])
    if found.status == 2 and not found.out.lstrip().startswith("Usage"):
        lines = [line for line in found.err.splitlines() if not WARNED.search(line)]
        assert len(lines) == 1, found.err
        assert lines[0].startswith("perfgrid: "), lines[0]
        assert len(lines[0]) <= LONGEST, f"{len(lines[0]):,} characters: {lines[0][:300]}"
        assert "Traceback" not in lines[0]
        assert not any(f"cannot read {name!r}" in lines[0] for name in sound), lines[0]
    after = contents(folder)
    written = {name for name in after if after[name] != before.get(name)}
    for path in (folder / name for name in written if Path(name).suffix in TEXTS):
        raw = controls(path.read_text(encoding="utf-8").replace("\t", "").replace("\r", ""))
        assert not raw, f"{path.name} holds {raw[:5]}"
    stated = {a for n, a in pairwise(arguments) if n in TARGETS} if found.status != 2 else set()
    stated |= {str(Path(a).with_suffix(f".{t}.toml")) for a in stated for t in ("model", "device")}  # of --save
    left = {name for name in written if not any(name == s or name.startswith((f"{s}/", f"{s}.")) for s in stated)}
    assert not left, f"left behind: {sorted(left)}"
    replaced = {name for name in before if after.get(name) != before[name]}
    legal = stated if "--overwrite" in arguments else set()
    lost = {n for n in replaced if Path(n).name == PRECIOUS or not any(n == s or n.startswith(f"{s}/") for s in legal)}
    assert not lost, f"removed or changed: {sorted(lost)}"
    return found


def run(folder: Path, arguments: Sequence[str]) -> Outcome:
    """The command line in this process; any exception but SystemExit comes out."""
    out, err = io.StringIO(), io.StringIO()
    start, status, calls = time.process_time(), 0, Counter[str]()
    with contextlib.ExitStack() as stack:
        for context in (_inside(folder), _counted(calls), _limited()):
            stack.enter_context(context)
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(mock.patch.object(sys, "argv", ["perfgrid", *arguments]))
        try:
            cli.main()
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    return Outcome(status, out.getvalue(), err.getvalue(), time.process_time() - start, bool(calls))


def controls(text: str) -> list[str]:
    """What a text must not hold raw: control characters, separators of lines, halves of characters, changed order."""
    return [c for c in text if c != "\n" and (unicodedata.category(c) in RAW or c in REORDERING)]


def contents(folder: Path) -> dict[str, str]:
    """Every file and folder below a folder, with a hash of what it holds."""
    found = {}
    for path in folder.rglob("*"):
        whole = path.is_file() and not path.is_symlink()
        found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest() if whole else "folder"
    return found


def fresh_peak() -> int:
    """Bytes that this process holds now, from where its peak is measured anew (``man proc_pid_clear_refs``).

    What earlier tests held counts no more; where Linux is not, nothing is measured.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return peak_memory()


def peak_memory() -> int:
    """Bytes of the peak of this process since `fresh_peak`; 0 where there is no /proc."""
    try:
        stated = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(stated.partition("VmHWM:")[2].split()[0]) * 1024


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _counted(calls: Counter[str]) -> Iterator[None]:
    """Count evaluated formulas: of grids, and of single designs that are replayed."""
    call, replay = Plan.call, explain.replay

    def counted_call(self, name, arguments):
        calls["grid"] += 1
        return call(self, name, arguments)

    def counted_replay(*arguments, **options):
        calls["replay"] += 1
        return replay(*arguments, **options)

    with mock.patch.object(Plan, "call", counted_call), mock.patch.object(explain, "replay", counted_replay):
        yield


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(*_):
        raise TookTooLong(f"more than {SECONDS} s of the processor")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        signal.signal(signal.SIGTERM, terminated)
