"""A page for each public name of perfgrid, filled by mkdocstrings from its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .links import relative, table, trail

ROOT = Path(__file__).parents[2]
INDEX = "reference/api/index.md"


def public_names() -> dict[str, str]:
    """Public name -> where it is defined, from the stub of the package."""
    tree = ast.parse((ROOT / "perfgrid" / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: f"perfgrid.{node.module}.{alias.name}" for node in imports for alias in node.names
    }


def api_pages() -> Iterator[tuple[str, str]]:
    """Path and text of the page of every public name, and of their list."""
    import perfgrid

    rows = []
    for name, path in sorted(public_names().items(), key=lambda pair: pair[0].lower()):
        page = f"reference/api/{name}.md"
        yield (
            page,
            trail(page, ("Python API", INDEX))
            + f"# perfgrid.{name}\n\n::: {path}\n    options:\n      show_root_heading: true\n",
        )
        about = (getattr(perfgrid, name).__doc__ or "").strip().splitlines()
        rows.append([f"[`{name}`]({relative(page, INDEX)})", about[0] if about else ""])
    yield INDEX, "# Python API\n\n`import perfgrid as pg`.\n\n" + table(["name", "what it does"], rows)
