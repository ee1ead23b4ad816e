"""The ``where`` of a study: a safe little expression language over the columns of its axes.

A term on one axis drops rows before anything is evaluated; a term that joins several axes becomes a constraint.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.graph.namespace import xp
from perfgrid.engine.graph.registry import Constraint
from perfgrid.engine.grid.space import Axis, Space

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
    ast.In: lambda a, b: np.isin(a, b),
    ast.NotIn: lambda a, b: ~np.isin(a, b),
}


@dataclass
class _Value:
    """A sub-expression: an array on at most one axis, or an operation over parts on several."""

    axis: int | None  # None: the same everywhere
    array: Any = None
    apply: Callable[..., Any] | None = None
    parts: tuple[_Value, ...] = ()


@dataclass(frozen=True)
class _Condition:
    """The text of a condition, where it stands, and what its names mean."""

    text: str
    place: str
    names: Mapping[str, _Value]

    def _compute(self, node: ast.AST, apply: Callable[..., Any], *parts: _Value) -> _Value:
        """Apply an operation; an error quotes its text."""
        kinds = {_kind(p.array) for p in parts if p.apply is None} - {"list"}
        if len(kinds) > 1 and "text" in kinds:
            raise PerfgridError(f"{self.place}: {ast.unparse(node)!r} compares a text with a number")
        try:
            value = _combine(apply, *parts)
        except (TypeError, ValueError, OverflowError, ArithmeticError) as error:
            raise PerfgridError(f"{self.place}: cannot compute {ast.unparse(node)!r}: {error}") from None
        array = np.asarray(value.array) if value.apply is None else np.zeros(())
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise PerfgridError(f"{self.place}: {ast.unparse(node)!r} is not a finite number everywhere")
        return value

    def _check_labels(self, node: ast.Compare, operands: list[_Value]) -> None:
        """Reject strings that match no label of the column they are compared with."""
        labels = [str(x) for o in operands if o.axis is not None and _kind(o.array) == "text" for x in o.array]
        for operand in operands if labels else ():
            for text in np.ravel(operand.array) if operand.axis is None else ():
                if isinstance(text, str) and str(text) not in labels:
                    raise PerfgridError(
                        f"{self.place}: {str(text)!r} in {ast.unparse(node)!r} is no label{nearest(str(text), labels)}"
                    )

    def build(self, node: ast.AST) -> _Value:
        """The value of a part of the condition. Raises PerfgridError for what a condition may not hold."""
        match node:
            case ast.Constant(value=value) if isinstance(value, (int, float, str, bool)):
                return _Value(None, float(value) if type(value) is int else value)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return _Value(None, [_literal(i, self.text, self.place) for i in items])
            case ast.Name(id=name):
                if name in ("true", "false"):
                    return _Value(None, name == "true")
                if name not in self.names:
                    near = nearest(name, self.names)
                    raise PerfgridError(f"{self.place}: unknown name {name!r} in {self.text!r}{near}")
                return self.names[name]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._compute(node, xp.logical_not, self.build(operand))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._compute(node, operator.neg, self.build(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._compute(node, _BINARY[type(op)], self.build(left), self.build(right))
            case ast.BoolOp(op=op, values=values):
                join = xp.logical_and if isinstance(op, ast.And) else xp.logical_or
                return self._compute(node, lambda *parts: reduce(join, parts), *map(self.build, values))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(o) in _COMPARE for o in ops):
                operands = [self.build(left), *map(self.build, others)]
                self._check_labels(node, operands)
                pairs = [
                    self._compute(node, _COMPARE[type(o)], *sides)
                    for o, sides in zip(ops, pairwise(operands), strict=True)
                ]
                return self._compute(node, lambda *parts: reduce(xp.logical_and, parts), *pairs)
        raise PerfgridError(
            f"{self.place}: {ast.unparse(node)!r} is not allowed in a condition (compare columns and numbers)"
        )


def apply_where(space: Space, text: str, place: str) -> tuple[Space, Constraint | None]:
    """Drop the rows that single-axis terms exclude; return the constraint of the remaining terms, if any.

    ``place`` appears in errors. Raises PerfgridError for text that is not an expression, unknown names, an unsupported
    construct, or a condition that leaves an axis empty.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise PerfgridError(f"{place}: cannot read {text!r} as a condition: {error.msg}") from None
    condition = _Condition(text, place, _named(space))
    terms = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    keep = [np.ones(len(a), bool) for a in space.axes]
    joint: list[_Value] = []
    for term in terms:
        value = condition.build(term)
        if value.apply is not None:
            joint.append(value)
            continue
        if np.asarray(value.array).dtype != bool:
            raise PerfgridError(f"{place}: {ast.unparse(term)!r} is not a condition (it compares nothing)")
        if value.axis is None:
            raise PerfgridError(f"{place}: {ast.unparse(term)!r} concerns no axis of the study")
        keep[value.axis] &= value.array
    axes = []
    for axis, rows in zip(space.axes, keep, strict=True):
        if not rows.any():
            raise PerfgridError(f"{place}: {text!r} leaves no row of axis {axis.name!r}")
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
    names = {n: _Value(None, v) for n, v in space.constants.items() if np.ndim(v) == 0}
    for i, axis in enumerate(space.axes):
        names |= {axis.name: _Value(i, _plain(axis.labels))} if axis.name not in axis.scales else {}
        names |= {column: _Value(i, _plain(v)) for column, v in axis.columns.items() if np.ndim(v) == 1}
    for i, axis in enumerate(space.axes):
        for name, factors in axis.scales.items() if axis.name != SAMPLE else ():  # designs are chosen, not samples
            if name in names and np.ndim(factors) == 1:
                names[name] = _combine(operator.mul, names[name], _Value(i, _plain(np.asarray(factors))))
    return names


def filtered(axis: Axis, rows: np.ndarray) -> Axis:
    """An axis with only the chosen rows."""
    columns, scales = ({k: np.asarray(v)[rows] for k, v in of.items()} for of in (axis.columns, axis.scales))
    return replace(axis, labels=axis.labels[rows], columns=columns, scales=scales)


def _combine(apply: Callable[..., Any], *parts: _Value) -> _Value:
    axes = {p.axis for p in parts if p.apply is None and p.axis is not None}
    if any(p.apply is not None for p in parts) or len(axes) > 1:
        return _Value(None, None, apply, parts)
    with np.errstate(all="ignore"):
        return _Value(next(iter(axes), None), apply(*(p.array for p in parts)))


def _plain(column: np.ndarray) -> np.ndarray:
    """Numbers as float64, so that no power of an integer wraps around."""
    return column.astype(np.float64) if column.dtype.kind in "iu" else column


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "list"
    return "text" if np.asarray(value).dtype.kind in "US" else "number"


def _literal(node: ast.AST, text: str, place: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    raise PerfgridError(f"{place}: a list in {text!r} may hold only numbers and texts")
