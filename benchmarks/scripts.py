"""Time to read shell scripts by their size: ``python -m benchmarks.scripts``; twice the characters, twice the time.

Each row is a statement repeated up to a size; the last column says whether the largest was read or why it is refused.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table

from perfgrid.engine.errors import PerfgridError, shortened
from perfgrid.jobs.shell import LARGEST_SCRIPT, script_of

SIZES = tuple(LARGEST_SCRIPT // part for part in (16, 8, 4, 2, 1))
KINDS = {  # title -> what stands before, what is repeated, what stands behind
    "assignments": ("", "A=1\n", ""),
    "launches": ("", "torchrun a.py --tp $A --pp 4 \\\n  --x\n", ""),
    "arithmetic": ("", "A=$((A + 1))\n", ""),
    "known conditions": ("", '[ "$A" = x ] && B=1\n', ""),
    "unknown conditions": ("", "if [ -f x ]; then A=1; B=$A; fi\n", ""),
    "one long condition": ("if [ -f x ]; then A=1; ", "elif [ -f x ]; then A=2; ", "fi"),
    "case": ("", "case $A in x) B=1 ;; *) B=2 ;; esac\n", ""),
    "loops": ("", "for i in 1 2 3; do A=$i; done\n", ""),
    "unknown loops": ("", "while read x; do A=$x; L+=(b); done\n", ""),
    "lists": ("", "L+=(x)\n", ""),
    "functions": ("", "f() { local A=1; B=$A; }\nf\n", ""),
    "here-documents": ("", "cat <<E\n$A ${B:-x}\nE\n", ""),
    "one here-document": ("cat <<E\n", "TP=8 it's\n", "E\n"),
    "patterns": ("", "B=${A%*x*y}${A//x*/y}\n", ""),
    "braces": ("", "run {a,b}{c,d}\n", ""),
    "command strings": ("", "bash -c 'torchrun --tp 2'\n", ""),
    "blanks": ("x <", " ", ""),
    "brackets": ("", "(", ""),
    "brackets of arithmetic": ("A=$((", "(", "1))"),
    "quotes": ("", '"', ""),
    "signs": ("", ";)", ""),
    "redirections": ("", "<", ""),
    "nested conditions": ("", "if a; then ", ""),
}


def seconds(text: str) -> tuple[float, str]:
    """Processor time to read a text, and how that ends."""
    begin, told = time.process_time(), "read"
    try:
        script_of(text, "script")
    except PerfgridError as error:
        told = shortened(str(error).removeprefix("script: "), 60)
    return time.process_time() - begin, told


def main() -> None:
    """Print the table."""
    table = Table("statement", *(f"{size:,}" for size in SIZES), "of the largest", title="Seconds by characters")
    for title, (before, repeated, behind) in KINDS.items():
        counts = [(size - len(before) - len(behind)) // len(repeated) for size in SIZES]
        rows = [seconds(before + repeated * count + behind) for count in counts]
        table.add_row(title, *(f"{spent:.3f}" for spent, _ in rows), rows[-1][1])
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
