"""No module imports itself by way of others, within functions and for annotations neither."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import perfgrid

ROOT = Path(perfgrid.__file__).parent


def modules(folder: Path) -> dict[str, Path]:
    """The files of a package by the names of their modules."""
    parts = {path: path.relative_to(folder.parent).with_suffix("").parts for path in folder.rglob("*.py")}
    return {".".join(p[:-1] if p[-1] == "__init__" else p): path for path, p in parts.items()}


def imports(folder: Path) -> dict[str, set[str]]:
    """Of every module of a package those of it that it imports, anywhere in its text."""
    files, found = modules(folder), {}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        read = set[str]()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                read |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                start = ".".join([*above, *([node.module] if node.module else [])])
                named = {f"{start}.{alias.name}" for alias in node.names}
                read |= named & files.keys() or {start}
        found[name] = (read & files.keys()) - {name}
    return found


def test_no_import_circle():
    graph = imports(ROOT)
    assert len(graph) > 400
    assert "perfgrid.engine.execution.lanes" in graph["perfgrid.engine.execution.evaluation"]
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules of a circle


def test_a_circle_is_found(tmp_path):
    folder = tmp_path / "package"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "inner/__init__.py").write_text("from ..last import x\n")
    (folder / "first.py").write_text("def f():\n    from .inner import y\n")
    (folder / "last.py").write_text("from package import first\n")
    with pytest.raises(CycleError) as circle:
        TopologicalSorter(imports(folder)).prepare()
    assert set(circle.value.args[1]) == {"package.first", "package.inner", "package.last"}
