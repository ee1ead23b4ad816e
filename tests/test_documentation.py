"""The documentation: commands and options exist, TOML is valid, Python compiles, the pages stay short."""

import re
import shlex
import tomllib
from pathlib import Path
from textwrap import dedent
from typing import Any, cast

import pytest
import typer.main
from click import Context, UsageError

from perfgrid.cli.main import COMMANDS, app
from tools.console import recut

ROOT = Path(__file__).parents[1]
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
MOST = 160_000  # bytes of all pages together
GALLERY = ROOT / "docs" / "gallery.md"  # written by tools/gallery.py from the studies
PAPERS_PAGE = ROOT / "docs" / "papers.md"  # written by tools/papers.py from the notebooks
EXAMPLES = ROOT / "docs" / "examples.md"  # a command each


def blocks(page, *languages):
    """The code blocks of a page in some languages."""
    text = page.read_text(encoding="utf-8")
    return [code for language, code in re.findall(r"```(\w+)\n(.*?)```", text, re.S) if language in languages]


def commands(page):
    """The perfgrid command lines of a page, as lists of arguments."""
    for code in blocks(page, "sh", "console", "bash"):
        for line in code.replace("\\\n", " ").splitlines():
            for part in line.removeprefix("$ ").split(" && "):
                if part.lstrip().startswith("perfgrid ") and "..." not in part:
                    yield shlex.split(part.partition(" | ")[0], comments=True)[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page):
    for arguments in commands(page):
        name, command = "", cast(Any, typer.main.get_command(app))
        context: Any = Context(command)
        try:
            while hasattr(command, "resolve_command"):
                name, command, arguments = command.resolve_command(context, list(arguments))
                context = Context(command, parent=context, info_name=name)
            command.make_parser(context).parse_args(list(arguments))
        except UsageError as error:
            pytest.fail(f"{page.name}: perfgrid {name} {arguments}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_toml_is_valid_and_python_compiles(page):
    for code in blocks(page, "toml"):
        tomllib.loads(code)
    for code in blocks(page, "python"):
        compile(dedent(code), page.name, "exec")


def test_every_command_has_its_exit_statuses():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`{name}`" not in text] == []


def test_a_cut_block_shows_the_lines_that_stand_for_its_own():
    shown = "$ serve\n...\nh100  1.5 /s  tp8\n...\nAssumed: vllm\n"
    printed = "$ serve\ntitle\nh200  1.5 /s  tp8\nh100  2.75 /s  tp4\nAssumed: a topology\nAssumed: vllm\nend\n"
    assert recut(shown, printed) == "$ serve\n...\nh100  2.75 /s  tp4\n...\nAssumed: vllm\n"


def test_the_documentation_stays_short():
    texts = {page: page.read_text(encoding="utf-8") for page in (*PAGES, ROOT / "benchmarks" / "results.md")}
    del texts[GALLERY], texts[PAPERS_PAGE], texts[EXAMPLES]
    # what commands print is written by tools/console.py and does not count
    prose = [re.sub(r"```console\n.*?```", "", text, flags=re.S) for text in texts.values()]
    assert sum(len(text.encode()) for text in prose) <= MOST


def test_every_command_has_an_example():
    shown = {arguments[0] for arguments in commands(EXAMPLES)}
    assert set(COMMANDS) - shown == set()
