"""Run the commands that a page shows and write what they print below them: ``python -m tools.console docs/answers.md``.

A block marked ``console`` holds commands after ``$ `` and what each printed; where a line ``...`` stands for lines that
were left out, the lines shown are replaced by those most like them. The commands of a page run in one folder that shows
the project's, ``COLUMNS`` characters wide; what they write there is thrown away. A cut block whose commands need files
of the reader is left alone.
``python -m tools.console docs/answer.svg COMMAND`` draws what a command prints.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
COLUMNS = "100"
_BLOCK = re.compile(r"(```console\n)(.*?)(```)", re.S)
_COMMAND = re.compile(r"^\$ (?:.*\\\n)*.*\n", re.M)


def printed(command: str, folder: Path = ROOT) -> str:
    """A command and what it prints, progress apart. RuntimeError where it fails."""
    done = subprocess.run(
        command.removeprefix("$ "),
        shell=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": COLUMNS},
        capture_output=True,
        text=True,
    )
    if done.returncode not in ((0, 1) if command.startswith("$ perfgrid diff") else (0,)):  # 1: the results differ
        raise RuntimeError(f"{command}{done.stdout}{done.stderr}")
    return command + "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


def refreshed(text: str) -> str:
    """A page with what its commands print now."""
    with tempfile.TemporaryDirectory() as scratch:
        for shown in ("studies", "benchmarks", "docs", "perfgrid"):
            (Path(scratch) / shown).symlink_to(ROOT / shown)

        def written(block: re.Match[str]) -> str:
            cut = re.search(r"^\.\.\.$", block[2], re.M)
            try:
                new = "\n".join(printed(command, Path(scratch)) for command in _COMMAND.findall(block[2]))
            except RuntimeError:
                if not cut:
                    raise
                return block[0]
            return block[1] + (recut(block[2], new) if cut else new) + block[3]

        return _BLOCK.sub(written, text)


def recut(shown: str, new: str) -> str:
    """A cut block with each shown line replaced by the printed line most like it, in order, neighbours together."""
    kept, lines = shown.splitlines(), new.splitlines()
    wanted = [n for n, row in enumerate(kept) if row != "..."]
    best, chosen = np.zeros(len(lines) + 1), []  # likeness so far, by the last line taken; the line taken before it
    for before, n in zip([-1, *wanted], wanted, strict=False):
        near = [_alike(kept[n], line) for line in lines]
        earlier = np.maximum.accumulate(best)[:-1]
        beside = best[:-1] + (0.5 if before + 1 == n else 0.0)
        last = [int(np.argmax(best[: j + 1])) if earlier[j] > beside[j] else j for j in range(len(lines))]
        chosen.append(last)
        best = np.concatenate([[-1.0], np.maximum(earlier, beside) + near])
    place, found = int(np.argmax(best)), []
    for last in reversed(chosen):
        found.append(lines[place - 1])
        place = last[place - 1]
    return "".join(("..." if row == "..." else found.pop()) + "\n" for row in kept)


def _alike(row: str, line: str) -> float:
    """Likeness of two lines: of their first words, of all words, and of all but their numbers."""
    first, words = row.split()[:1] == line.split()[:1], SequenceMatcher(None, row.split(), line.split())
    text = [re.sub(r"(?<![\w-])[\d.,]+", "#", r) for r in (row, line)]
    return 0.5 * first + words.ratio() + SequenceMatcher(None, *text, autojunk=False).ratio()


def picture(command: str) -> str:
    """What a command prints in a terminal, as SVG without fonts from elsewhere."""
    console = Console(record=True, width=int(COLUMNS), file=io.StringIO())
    console.print(Text.from_ansi(printed(f"$ {command}\n")), end="")
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="perfgrid"), flags=re.S)


def main() -> None:
    """Draw a command, or refresh the pages that the command line names."""
    if sys.argv[1].endswith(".svg"):
        Path(sys.argv[1]).write_text(picture(sys.argv[2]), encoding="utf-8")
        return
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
