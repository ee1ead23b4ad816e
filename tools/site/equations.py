"""The body of a formula as an equation: Python to LaTeX (latexify) to MathML (latex2mathml), which browsers draw."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from latex2mathml.converter import convert
from latexify.codegen.expression_codegen import ExpressionCodegen
from latexify.exceptions import LatexifyError

MOST_STATEMENTS = 3  # longer bodies are read as code
PLAIN = {  # functions of `perfgrid.engine.xp` by the names that LaTeX has signs for
    "xp.maximum": "max", "xp.minimum": "min", "xp.sqrt": "math.sqrt", "xp.ceil": "math.ceil", "xp.floor": "math.floor",
    "xp.exp": "math.exp", "xp.log": "math.log", "xp.abs": "abs",
}  # fmt: skip


class _Plain(ast.NodeTransformer):
    """`xp.where` as a case, other functions of `xp` by their plain names."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name == "xp.where" and len(node.args) == 3:
            return ast.IfExp(*node.args)
        if name in PLAIN:
            node.func = ast.parse(PLAIN[name], mode="eval").body
        elif name.startswith("xp."):
            node.func = ast.Name(name.removeprefix("xp."))
        return node


def code(function: Callable[..., Any]) -> str:
    """The source of a formula without its decorators."""
    lines = textwrap.dedent(inspect.getsource(inspect.unwrap(function))).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("def "))
    return "\n".join(lines[first:])


def equation(function: Callable[..., Any]) -> str | None:
    """The equation of a formula as MathML; None where its body has over three statements or is no plain arithmetic."""
    tree = _Plain().visit(ast.parse(code(function)))
    head = ast.fix_missing_locations(tree).body[0]
    body = [line for line in head.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))]
    if len(body) > MOST_STATEMENTS:
        return None
    written, lines = ExpressionCodegen(), []
    try:
        for line in body:
            if isinstance(line, ast.Assign):
                left = [written.visit(target) for target in line.targets]
            elif isinstance(line, ast.Return):
                left = [written.visit(ast.Name(head.name))]
            else:
                return None
            assert line.value is not None
            lines.append(" = ".join((*left, written.visit(line.value))))
    except LatexifyError:
        return None
    several = r"\begin{array}{l} " + r" \\ ".join(lines) + r" \end{array}"
    return convert(lines[0] if len(lines) == 1 else several, display="block")
