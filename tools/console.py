"""Run the commands that a page shows and write what they print below them: ``python -m tools.console docs/answers.md``.

A block marked ``console`` holds commands after ``$ `` and what each printed; one that was cut by hand, with a line
``...``, is left alone. The commands of a page run in one folder that shows the project's, ``COLUMNS`` characters wide;
what they write there is thrown away.
``python -m tools.console docs/answer.svg COMMAND`` draws what a command prints.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

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
    if done.returncode:
        raise RuntimeError(f"{command}{done.stdout}{done.stderr}")
    return command + "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


def refreshed(text: str) -> str:
    """A page with what its commands print now."""
    with tempfile.TemporaryDirectory() as scratch:
        for shown in ("studies", "benchmarks", "docs", "perfgrid"):
            (Path(scratch) / shown).symlink_to(ROOT / shown)

        def written(block: re.Match[str]) -> str:
            if re.search(r"^\.\.\.$", block[2], re.M):
                return block[0]
            return block[1] + "\n".join(printed(c, Path(scratch)) for c in _COMMAND.findall(block[2])) + block[3]

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
