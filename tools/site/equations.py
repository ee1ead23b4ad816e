"""The body of a formula as an equation: Python to LaTeX (latexify) to MathML (latex2mathml), which browsers draw."""

from __future__ import annotations

import ast
import copy
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from latex2mathml.converter import convert
from latexify.codegen.expression_codegen import ExpressionCodegen
from latexify.exceptions import LatexifyError

MOST_STATEMENTS = 10  # longer bodies are read as code
PLAIN = {  # functions of `perfgrid.engine.xp` by the names that LaTeX has signs for
    "xp.maximum": "max", "xp.minimum": "min", "xp.sqrt": "math.sqrt", "xp.ceil": "math.ceil", "xp.floor": "math.floor",
    "xp.exp": "math.exp", "xp.log": "math.log", "xp.abs": "abs",
}  # fmt: skip
OVER_LABELS = {"total": r"\sum", "largest": r"\max", "smallest": r"\min"}  # functions along an inner axis
_WRAPPED = re.compile(r"\\math(?:open|close)\{\}")  # spacing that becomes an empty element in an operator
_NAME = re.compile(r"\\mathrm\{((?:\w|\\_)+)\}")


class _Plain(ast.NodeTransformer):
    """`xp.where` as a case, other functions of `xp` by their plain names; conditions joined by words."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        joined = {ast.BitAnd: ast.And, ast.BitOr: ast.Or}.get(type(node.op))
        return node if joined is None else ast.BoolOp(joined(), [node.left, node.right])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return ast.UnaryOp(ast.Not(), node.operand) if isinstance(node.op, ast.Invert) else node

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


class _Named(ast.NodeTransformer):
    """Expressions in the place of names; a name of several, where it is spread over arguments, as all of them."""

    def __init__(self, known: Mapping[str, ast.expr]):
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.known.get(node.id, node)

    def visit_Starred(self, node: ast.Starred) -> Any:
        value = self.visit(node.value)
        return value.elts if isinstance(value, ast.Tuple) else ast.Starred(value)


def _unrolled(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements with one name on their left: assignments of several, also by a loop over them, one after the other."""
    several: dict[str, ast.expr] = {}
    for line in body:
        line = _Named(several).visit(line)
        target = line.targets[0] if isinstance(line, ast.Assign) else None
        if isinstance(target, ast.Name) and isinstance(line.value, ast.Tuple):
            several[target.id] = line.value
        elif isinstance(target, ast.Tuple) and len(values := _each(line.value)) == len(target.elts):
            yield from (ast.Assign([left], value) for left, value in zip(target.elts, values, strict=True))
        else:
            yield line


def _each(value: ast.expr) -> list[ast.expr]:
    """The expressions that a tuple, or a loop over a tuple, stands for."""
    if isinstance(value, ast.Tuple):
        return value.elts
    if not isinstance(value, ast.GeneratorExp) or len(value.generators) > 1:
        return []
    loop = value.generators[0]
    if loop.ifs or not isinstance(loop.iter, ast.Tuple):
        return []
    names = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    rows = [row.elts if isinstance(row, ast.Tuple) and len(names) > 1 else [row] for row in loop.iter.elts]
    if any(len(row) != len(names) for row in rows):
        return []
    known = [{n.id: v for n, v in zip(names, row, strict=True) if isinstance(n, ast.Name)} for row in rows]
    return [_Named(named).visit(copy.deepcopy(value.elt)) for named in known]


class _Written(ExpressionCodegen):
    """LaTeX of expressions, those along inner axes (`perfgrid.formulas.axes`) included."""

    def visit_Call(self, node: ast.Call) -> str:
        name, labels = ast.unparse(node.func), {k.arg: k.value for k in node.keywords if k.arg is not None}
        if len(labels) < len(node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
            raise LatexifyError(f"{name} takes arguments that are not written out")
        if name == "at" and labels and len(node.args) == 1:
            return f"{{{self._term(node.args[0])}}}_{{{self._listed(labels.values())}}}"
        if name == "table" and labels:
            rows = r" \\ ".join(
                f"{self.visit(value)}, & {_word('for')} \\ {_word(label)}" for label, value in labels.items()
            )
            return rf"\left\{{ \begin{{array}}{{ll}} {rows} \end{{array}} \right."
        if name in OVER_LABELS and len(node.args) == 2:
            return f"{OVER_LABELS[name]}_{{{self._listed(node.args[1:])}}} {self._term(node.args[0])}"
        if name == "only" and len(node.args) > 1:
            axis, *chosen = node.args
            return rf"1_{{{self._listed([axis])} \in \{{ {self._listed(chosen)} \}}}}"
        if labels:
            given = [self.visit(a) for a in node.args] + [f"{_word(k)} = {self.visit(v)}" for k, v in labels.items()]
            return rf"{self.visit(node.func)} \left( {', '.join(given)} \right)"
        return super().visit_Call(node)

    def visit_Constant(self, node: ast.Constant) -> str:
        digits, _, power = repr(node.value).partition("e") if isinstance(node.value, float) else ("", "", "")
        if not power:
            return super().visit_Constant(node)
        return (rf"{digits} \cdot " if digits != "1" else "") + f"10^{{{int(power)}}}"

    def _term(self, node: ast.expr) -> str:
        """An expression that a subscript or a sum stands at."""
        text = self.visit(node)
        return text if isinstance(node, ast.Name | ast.Call) else rf"\left( {text} \right)"

    def _listed(self, nodes: Sequence[ast.expr] | Any) -> str:
        """Labels side by side, without quotation marks."""
        return ", ".join(_word(n.value) if isinstance(n, ast.Constant) else self.visit(n) for n in nodes)


def _word(text: object) -> str:
    """A label in upright letters."""
    return r"\mathrm{" + str(text).replace("_", r"\_") + "}"


def written(function: Callable[..., Any]) -> Callable[..., Any]:
    """A formula as its file has it: without decorators; of one that a function makes, that function."""
    plain = inspect.unwrap(function)
    maker, inside, _ = plain.__qualname__.partition(".<locals>")
    return plain.__globals__[maker] if inside else plain


def code(function: Callable[..., Any]) -> str:
    """The source of a formula without its decorators."""
    lines = textwrap.dedent(inspect.getsource(written(function))).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("def "))
    return "\n".join(lines[first:])


def equation(function: Callable[..., Any]) -> str | None:
    """The equation of a formula as MathML; None where its body has over ten statements or is no plain arithmetic."""
    tree = _Plain().visit(ast.parse(code(function)))
    head = ast.fix_missing_locations(tree).body[0]
    body = [line for line in head.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))]
    if len(body) > MOST_STATEMENTS:
        return None
    written, lines = _Written(), []
    try:
        for line in _unrolled(body):
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
    return drawn(lines[0] if len(lines) == 1 else several)


def drawn(latex: str) -> str:
    """LaTeX as MathML in a line of its own."""
    plain = _NAME.sub(lambda name: r"\text{" + name[1].replace(r"\_", "_") + "}", _WRAPPED.sub("", latex))
    plain = plain.replace(r"\mathbin{\%}", r"\bmod")
    return convert(plain, display="block")
