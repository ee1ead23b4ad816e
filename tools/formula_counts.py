"""How thick the formulas are: `python -m tools.formula_counts` prints counts to compare between versions.

Formulas, depth and inner axes that `step_time` needs in two studies; lines and marked functions of the formulas by
room; and the marked functions that hold no equation: those that return a constant or an argument (`without_equation`).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import perfgrid as pg
from perfgrid.engine.grid.plan import Plan

ROOT = Path(__file__).parents[1]
FORMULAS = ROOT / "perfgrid" / "formulas"
MARKS = {"formula", "constant", "synonym", "alternative", "constraint"}
ON_AXES = {"only", "table", "by_length"}  # a constant that has a value for every label of an inner axis is a table
STUDIES = {"quickstart": "Llama 70B and others on 1F1B", "deepseek": "DeepSeek-V3 and Qwen3 on 1F1B and DualPipe"}


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function with a decorator in the files of formulas, with the path of its file."""
    for path in sorted(FORMULAS.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                yield str(path.relative_to(FORMULAS)), node


def is_marked(function: ast.FunctionDef) -> bool:
    """Whether a decorator of the registry marks a function, not one that calls such a decorator."""
    called = (d.func for d in function.decorator_list if isinstance(d, ast.Call))
    return any(isinstance(f, ast.Name) and f.id in MARKS for f in called)


def without_equation(function: ast.FunctionDef) -> str:
    """``constant`` or ``argument`` where a function returns no more than that, else nothing."""
    body = [n for n in function.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
        return ""
    arguments, value = {a.arg for a in function.args.args}, body[0].value
    names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
    if not names & arguments:
        return "" if names & ON_AXES else "constant"
    return "argument" if isinstance(value, ast.Name) else ""


def needed(study: str) -> tuple[int, int, list[str]]:
    """The formulas that `step_time` needs in a study, constraints apart: number, depth and inner axes."""
    made = pg.load_study(ROOT / "studies" / f"{study}.toml")
    plan = Plan(made.registry, made.space, ["step_time"], made.file.choices, constraints=False)
    depth: dict[str, int] = {}
    for node in plan.graph.nodes.values():
        depth[node.name] = 1 + max((depth.get(argument, 0) for argument in node.arguments), default=0)
    axes = {plan.registry.inner.names[i] for q in plan.quantities.values() for i in (*q.axes, *q.called_on)}
    return len(plan.graph.nodes), depth["step_time"], sorted(axes)


def main() -> None:
    """Print the counts."""
    for study, about in STUDIES.items():
        count, depth, axes = needed(study)
        print(f"step_time in {study} ({about}): {count} formulas, {depth} deep, {len(axes)} inner axes")
    lines, marked = Counter[str](), Counter[str]()
    for path in FORMULAS.rglob("*.py"):
        lines[path.relative_to(FORMULAS).parts[0]] += len(path.read_text(encoding="utf-8").splitlines())
    thin: dict[str, list[str]] = {"constant": [], "argument": []}
    for path, function in functions():
        marked[Path(path).parts[0]] += is_marked(function)
        if kind := without_equation(function):
            thin[kind].append(f"{path}: {function.name}")
    print(f"formulas: {sum(lines.values()):,} lines, {sum(marked.values()):,} marked functions")
    for room, count in sorted(lines.items(), key=lambda item: -item[1]):
        print(f"  {room:14} {count:7,} lines {marked[room]:5} marked")
    print(f"inner axes of all formulas: {len(made_axes())}")
    for kind, names in thin.items():
        print(f"that return {'a' if kind == 'constant' else 'an'} {kind}: {len(names)}")


def made_axes() -> tuple[str, ...]:
    """All inner axes."""
    from perfgrid.formulas import INNER

    return INNER.names


if __name__ == "__main__":
    main()
