"""Run the commands that a page shows and write what they print below them: ``python -m tools.console docs/answers.md``.

A block marked ``console`` holds commands after ``$ `` and what each printed; one that was cut by hand, with a line
``...``, is left alone. Commands run in the root of the project, with ``COLUMNS`` characters in a line.
``python -m tools.console docs/answer.svg COMMAND`` draws what a command prints.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
COLUMNS = "100"
_BLOCK = re.compile(r"(```console\n)(.*?)(```)", re.S)
_COMMAND = re.compile(r"^\$ (?:.*\\\n)*.*\n", re.M)


def printed(command: str) -> str:
    """A command and what it prints. RuntimeError where it fails."""
    done = subprocess.run(
        command.removeprefix("$ "),
        shell=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": COLUMNS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{command}{done.stdout}")
    return command + "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


def refreshed(text: str) -> str:
    """A page with what its commands print now."""

    def written(block: re.Match[str]) -> str:
        cut = re.search(r"^\.\.\.$", block[2], re.M)
        return block[0] if cut else block[1] + "\n".join(map(printed, _COMMAND.findall(block[2]))) + block[3]

    return _BLOCK.sub(written, text)


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
