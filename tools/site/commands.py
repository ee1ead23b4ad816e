"""A page for each command: what it does, its arguments and options, and an example with what it printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

from perfgrid.cli.main import COMMANDS, imported
from tools.console import refreshed

from .links import escaped, relative, table, trail

ROOT = Path(__file__).parents[2]
INDEX = "reference/commands/index.md"
EXAMPLES = "docs/examples.md"


@cache
def examples_page() -> str:
    """The page docs/examples.md with what its commands print now. RuntimeError where one fails."""
    return refreshed((ROOT / EXAMPLES).read_text(encoding="utf-8"))


def examples() -> dict[str, str]:
    """The console block of each command in docs/examples.md."""
    sections = re.split(r"^## (.+)$", examples_page(), flags=re.M)
    return {name.strip(): body.strip() for name, body in zip(sections[1::2], sections[2::2], strict=True)}


def command_pages() -> Iterator[tuple[str, str]]:
    """Path and text of the page of every command, and of their list."""
    shown, rows = examples(), []
    for name, summary in COMMANDS.items():
        page, command = f"reference/commands/{name}.md", imported(name)
        text = trail(page, ("Commands", INDEX)) + f"# perfgrid {name}\n\n{_help(command)}\n\n"
        if isinstance(command, TyperGroup):
            for verb, own in command.commands.items():
                text += f"## perfgrid {name} {verb}\n\n{_help(own)}\n\n{_parameters(own)}\n"
        else:
            text += _parameters(command)
        if name in shown:
            text += f"\n## Example\n\n{shown[name]}\n"
        yield page, text
        rows.append([f"[`{name}`]({relative(page, INDEX)})", escaped(summary)])
    head = "# Commands\n\n[Exit status and tables](../../commands.md) of all commands.\n\n"
    yield INDEX, head + table(["command", "what it does"], rows)


def _help(command: Any) -> str:
    return re.sub(r"[\b\f]", "", command.help or "").strip()


def _parameters(command: Any) -> str:
    """Arguments and options of a command as a table."""
    rows = []
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        names = [*parameter.opts, *parameter.secondary_opts]
        if parameter.param_type_name == "argument":
            names = [(parameter.metavar or parameter.name.upper()).strip("[]")]
        default = parameter.default
        stated = "" if default is None or default is False or callable(default) or default == [] else f"`{default}`"
        rows.append([", ".join(f"`{n}`" for n in names), escaped(getattr(parameter, "help", "") or ""), stated])
    return table(["argument or option", "meaning", "default"], rows) if rows else ""
