"""The ``where`` of a study: a safe little expression language over the columns of its axes.

A term on one axis drops rows before anything is evaluated; a term that joins several axes becomes a constraint.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from perfgrid.catalog.names import resolved
from perfgrid.catalog.reading import LARGEST_INTEGER
from perfgrid.catalog.schema import is_finite
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.graph.namespace import xp
from perfgrid.engine.graph.registry import Constraint
from perfgrid.engine.grid.space import Axis, Space

from .entries import MOST_NAMES
from .samples import SAMPLE

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: _among(a, b),
    ast.NotIn: lambda a, b: xp.logical_not(_among(a, b)),
}
_KINDS = ("text", "truth value", "number", "list")
LONGEST = 20_000  # characters of a condition
DEEPEST = 100  # operations within each other


@dataclass
class _Value:
    """A sub-expression: an array on at most one axis, or an operation over parts on several."""

    axis: int | None  # None: the same everywhere
    kind: str  # one of `_KINDS`
    array: Any = None
    apply: Callable[..., Any] | None = None
    parts: tuple[_Value, ...] = ()


@dataclass(frozen=True)
class _Condition:
    """The text of a condition, where it stands, and what its names mean."""

    text: str
    place: str
    names: Mapping[str, _Value]

    def _compute(self, node: ast.AST, kind: str, apply: Callable[..., Any], *parts: _Value) -> _Value:
        """Apply an operation, whose result is of a kind; an error quotes its text."""
        try:
            value = _combine(apply, kind, *parts)
        except (TypeError, ValueError, OverflowError, ArithmeticError) as error:
            raise PerfgridError(f"{self.place}: cannot compute {_quoted(ast.unparse(node))}: {error}") from None
        array = np.asarray(value.array) if value.apply is None else np.zeros(())
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise self._error(node, "is not a finite number everywhere")
        return value

    def _error(self, node: ast.AST, told: str) -> PerfgridError:
        return PerfgridError(f"{self.place}: {_quoted(ast.unparse(node))} {told}")

    def _numbers(self, node: ast.AST, *operands: ast.AST) -> list[_Value]:
        """The operands of arithmetic. PerfgridError unless all are numbers."""
        values = [self.build(operand) for operand in operands]
        for operand, value in zip(operands, values, strict=True):
            if value.kind != "number":
                raise self._error(node, f"computes with a {value.kind}, {_quoted(ast.unparse(operand))}")
        return values

    def _conditions(self, *operands: ast.AST) -> list[_Value]:
        """The operands of and, or, not. PerfgridError unless all are conditions."""
        values = [self.build(operand) for operand in operands]
        for operand, value in zip(operands, values, strict=True):
            if value.kind != "truth value":
                raise self._error(operand, "is not a condition (it compares nothing)")
        return values

    def _compared(self, node: ast.Compare, op: ast.cmpop, left: _Value, right: _Value) -> _Value:
        """A comparison of two values of one kind, or of a value with those of a list."""
        listed = isinstance(op, (ast.In, ast.NotIn))
        if left.kind == "list" or listed != (right.kind == "list"):
            raise self._error(node, "needs a list behind in or not in, and only there")
        for kind in map(_kind, right.array) if listed else [right.kind]:
            if kind != left.kind:
                first, second = sorted((left.kind, kind), key=_KINDS.index)
                raise self._error(
                    node, f"compares a {first} with a {second}; {_quoted(ast.unparse(node.left))} is a {left.kind}"
                )
        if left.kind == "text":
            left, right = self._labels(node, (left, right))
            left, right = _coded(left, right)
        return self._compute(node, "truth value", _COMPARE[type(op)], left, right)

    def _labels(self, node: ast.Compare, operands: Sequence[_Value]) -> list[_Value]:
        """Operands with the labels of the column for the texts that they are compared with.

        PerfgridError for a text that means none of them, or several.
        """
        labels = list(dict.fromkeys(str(x) for o in operands if o.axis is not None for x in o.array))

        def known(text: Any) -> str:
            try:
                found = resolved(str(text), labels, parts=len(labels) <= MOST_NAMES)
            except PerfgridError as error:
                raise self._error(node, f"compares with several labels: {error}") from None
            if found is None:
                raise PerfgridError(
                    f"{self.place}: {_quoted(text)} in {_quoted(ast.unparse(node))} is no label"
                    f"{nearest(str(text), labels)}"
                )
            return found

        def meant(operand: _Value) -> _Value:
            if operand.axis is not None or not labels:
                return operand
            listed = operand.kind == "list"
            return replace(operand, array=[*map(known, operand.array)] if listed else known(operand.array))

        return [meant(operand) for operand in operands]

    def _constant(self, node: ast.AST) -> Any:
        """A number, a text, true or false. Raises PerfgridError for anything else."""
        match node:
            case ast.Constant(value=bool() | str() as value):
                return value
            case ast.Constant(value=int() | float() as value) if is_finite(value):
                return float(value)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if is_finite(value):
                return -float(value)
            case ast.Name(id="true" | "false" as name):
                return name == "true"
        raise self._error(node, "is not a finite number, a text, true or false")

    def build(self, node: ast.AST) -> _Value:
        """The value of a part of the condition. Raises PerfgridError for what a condition may not hold."""
        match node:
            case ast.Constant() | ast.Name(id="true" | "false"):
                value = self._constant(node)
                return _Value(None, _kind(value), value)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return _Value(None, "list", [self._constant(item) for item in items])
            case ast.Name(id=name):
                if name not in self.names:
                    near = nearest(name, self.names)
                    raise PerfgridError(f"{self.place}: unknown name {_quoted(name)} in {_quoted(self.text)}{near}")
                return self.names[name]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._compute(node, "truth value", xp.logical_not, *self._conditions(operand))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._compute(node, "number", operator.neg, *self._numbers(node, operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._compute(node, "number", _BINARY[type(op)], *self._numbers(node, left, right))
            case ast.BoolOp(op=op, values=values):
                join = xp.logical_and if isinstance(op, ast.And) else xp.logical_or
                return self._compute(
                    node, "truth value", lambda *parts: reduce(join, parts), *self._conditions(*values)
                )
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(o) in _COMPARE for o in ops):
                operands = [self.build(left), *map(self.build, others)]
                pairs = [self._compared(node, o, *sides) for o, sides in zip(ops, pairwise(operands), strict=True)]
                return self._compute(node, "truth value", lambda *parts: reduce(xp.logical_and, parts), *pairs)
        raise self._error(node, "is not allowed in a condition (compare columns and numbers)")


def _parsed(text: str, place: str) -> ast.expr:
    """The expression of a condition. PerfgridError for text that is none, too long or nested too deep."""
    if len(text) > LONGEST:
        raise PerfgridError(f"{place}: a condition has at most {LONGEST:,} characters, found {len(text):,}")
    deep = PerfgridError(f"{place}: {_quoted(text)} holds more than {DEEPEST} operations within each other")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (RecursionError, MemoryError):
        raise deep from None
    except SyntaxError as error:
        raise PerfgridError(f"{place}: cannot read {_quoted(text)} as a condition: {error.msg}") from None
    except ValueError as error:  # a null character
        raise PerfgridError(f"{place}: cannot read {_quoted(text)} as a condition: {error}") from None
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        if any(isinstance(node, ast.Constant) and not _is_short(node.value) for node in level):
            raise PerfgridError(f"{place}: {_quoted(text)} holds an integer of more than 308 digits")
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return tree
    raise deep


def apply_where(space: Space, text: str, place: str) -> tuple[Space, Constraint | None]:
    """Drop the rows that single-axis terms exclude; return the constraint of the remaining terms, if any.

    ``place`` appears in errors. Raises PerfgridError for text that is not an expression, unknown names, an unsupported
    construct, or a condition that leaves an axis empty.
    """
    tree = _parsed(text, place)
    condition = _Condition(text, place, _named(space))
    terms = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    keep = [np.ones(len(a), bool) for a in space.axes]
    joint: list[_Value] = []
    for term in terms:
        (value,) = condition._conditions(term)
        if value.apply is not None:
            joint.append(value)
        elif value.axis is None:
            raise PerfgridError(f"{place}: {_quoted(ast.unparse(term))} concerns no axis of the study")
        else:
            keep[value.axis] &= value.array
    axes = []
    for axis, rows in zip(space.axes, keep, strict=True):
        if not rows.any():
            raise PerfgridError(f"{place}: {_quoted(text)} leaves no row of axis {axis.name!r}")
        axes.append(filtered(axis, rows))
    if not joint:
        return Space(tuple(axes), dict(space.constants)), None
    constraint = _joint_constraint(text, joint, axes, keep)
    return Space(tuple(axes), dict(space.constants)), constraint


def _joint_constraint(text: str, joint: list[_Value], axes: list[Axis], keep: list[np.ndarray]) -> Constraint:
    """The terms on several axes as one constraint; their operands become columns of the axes, which are replaced."""
    arguments: list[str] = []

    def name_leaves(value: _Value) -> Callable[[Mapping[str, Any]], Any]:
        if value.apply is not None:
            parts, apply = [name_leaves(p) for p in value.parts], value.apply
            return lambda given: apply(*(p(given) for p in parts))
        name = f"where_{len(arguments)}"
        if value.axis is None:
            return lambda given, constant=value.array: constant
        arguments.append(name)
        columns = {**axes[value.axis].columns, name: value.array[keep[value.axis]]}
        axes[value.axis] = replace(axes[value.axis], columns=columns)
        return lambda given: given[name]

    tests = [name_leaves(v) for v in joint]

    def where(*given: Any) -> Any:
        by_name = dict(zip(arguments, given, strict=True))
        return reduce(xp.logical_and, (t(by_name) for t in tests))

    return Constraint(
        "where",
        where,
        tuple(arguments),
        "1",
        "study",
        "The design satisfies the study's where.",
        kind="exceeds",  # its values mean what they say; the study does not want it
        reason=f"excluded by the study: where = {text}",
    )


def _named(space: Space) -> dict[str, _Value]:
    """What names mean: labels and columns of axes; of a quantity that an axis scales its value, and not the factor."""

    def value(axis: int | None, array: Any) -> _Value:
        array = array.astype(np.float64) if getattr(array, "dtype", np.dtype("U")).kind in "iu" else array
        return _Value(axis, _kind(array), array)  # as float64, so that no power of an integer wraps around

    names = {n: value(None, v) for n, v in space.constants.items() if np.ndim(v) == 0}
    for i, axis in enumerate(space.axes):
        names |= {axis.name: value(i, axis.labels)} if axis.name not in axis.scales else {}
        names |= {column: value(i, v) for column, v in axis.columns.items() if np.ndim(v) == 1}
    for i, axis in enumerate(space.axes):
        for name, factors in axis.scales.items() if axis.name != SAMPLE else ():  # designs are chosen, not samples
            if name in names and np.ndim(factors) == 1:
                names[name] = _combine(operator.mul, "number", names[name], value(i, np.asarray(factors)))
    return names


def filtered(axis: Axis, rows: np.ndarray) -> Axis:
    """An axis with only the chosen rows."""
    columns, scales = ({k: np.asarray(v)[rows] for k, v in of.items()} for of in (axis.columns, axis.scales))
    return replace(axis, labels=axis.labels[rows], columns=columns, scales=scales)


def _combine(apply: Callable[..., Any], kind: str, *parts: _Value) -> _Value:
    axes = {p.axis for p in parts if p.apply is None and p.axis is not None}
    if any(p.apply is not None for p in parts) or len(axes) > 1:
        return _Value(None, kind, None, apply, parts)
    with np.errstate(all="ignore"):
        return _Value(next(iter(axes), None), kind, apply(*(p.array for p in parts)))


def _among(value: Any, listed: Sequence[Any]) -> Any:
    return reduce(xp.logical_or, (value == one for one in listed), value != value)


def _coded(left: _Value, right: _Value) -> tuple[_Value, _Value]:
    """Texts on two axes as numbers of one common order, in which an engine can compare them."""
    if left.axis is None or right.axis is None or left.axis == right.axis:
        return left, right
    known = np.union1d(left.array, right.array)
    first, second = (replace(v, array=np.searchsorted(known, v.array).astype(np.float64)) for v in (left, right))
    return first, second


def _kind(value: Any) -> str:
    """What a value is, one of `_KINDS`."""
    return {"U": "text", "S": "text", "b": "truth value"}.get(np.asarray(value).dtype.kind, "number")


def _is_short(value: Any) -> bool:
    return not isinstance(value, int) or value.bit_length() <= LARGEST_INTEGER


def _quoted(text: object) -> str:
    """A text in quotes; of a long one the beginning."""
    shown = str(text)
    return repr(shown if len(shown) <= 200 else f"{shown[:200]}...")
