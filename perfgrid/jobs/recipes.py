"""Recipes in Python as text: what functions assign and pass by name, by the syntax tree; nothing is imported or run.

Understood are ``cfg.model.size = 8``, ``Config(size=8)`` with calls within calls, ``replace(BASE, size=8)`` of a named
base, defaults of parameters, names of constants, whole-number arithmetic. What hangs on conditions, loops or calls is
named; a name that one of them assigns is unread from there on.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfgrid.engine.errors import PerfgridError, shortened

from .shell import LARGEST_SCRIPT, UNREAD

RECIPE = "recipe"  # the key of the function that a recipe starts from
STARTS = ("_config", "_recipe")  # ends of the names of such functions
OF_MODULES = ("pretrain_recipe", "finetune_recipe")
MODULES = ("torch.",)
PRECISION = "precision"  # functions with this in their names take a word for it: precision("fp8")
MIXED = "_mixed"  # ends of the names of functions without arguments that state one: bf16_mixed()
SILENT = ("print", "logger", "logging", "warnings")  # calls that set nothing
CONDITION = "set under a condition, which is not executed"
CALL = "a call, which is not executed"
MOST_STATEMENTS = 20_000
_SUMS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


@dataclass
class Recipe:
    """What one function, or one call that is given a name, states; notes are what was not read, and why."""

    name: str
    stated: list[tuple[str, Any]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)


def recipes_of(text: str, where: str) -> list[Recipe]:
    """The recipes of a Python file, in order. PerfgridError for text that is no Python, or too long."""
    if len(text) > LARGEST_SCRIPT:
        raise PerfgridError(f"{where}: a recipe has at most {LARGEST_SCRIPT:,} characters, found {len(text):,}")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        message = f"{error.msg}, line {error.lineno}" if isinstance(error, SyntaxError) else "too deep"
        raise PerfgridError(f"{where}: not valid Python: {message}") from None
    outside, found, named = Recipe("the file"), list[Recipe](), dict[str, Recipe]()
    known: dict[str, Any] = {}
    for statement in tree.body[:MOST_STATEMENTS]:
        if isinstance(statement, ast.FunctionDef):
            found.append(own := Recipe(statement.name))
            _function(statement, own, known)
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            own = Recipe(_path(statement.targets[0]))
            for base in (a.id for a in statement.value.args if isinstance(a, ast.Name) and a.id in named):
                own.stated += named[base].stated
            own.stated += _passed(statement.value, known)
            named[own.name] = own
            found.append(own)
        else:
            _statement(statement, outside, known)
    return [*([outside] if outside.stated else []), *found]


def _function(of: ast.FunctionDef, own: Recipe, known: Mapping[str, Any]) -> None:
    """The defaults of its parameters, then its statements."""
    inside = dict(known)
    every = [*of.args.posonlyargs, *of.args.args]
    defaults = zip(every[len(every) - len(of.args.defaults) :], of.args.defaults, strict=True)
    for parameter, default in (*defaults, *zip(of.args.kwonlyargs, of.args.kw_defaults, strict=True)):
        if default is not None:
            inside[parameter.arg] = _value(default, inside)
            own.stated.append((parameter.arg, inside[parameter.arg]))
    for statement in of.body:
        _statement(statement, own, inside)


def _statement(statement: ast.stmt, own: Recipe, known: dict[str, Any]) -> None:
    """Take in an assignment, or what a returned call is passed; note what is set otherwise."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            one = isinstance(target, (ast.Name, ast.Attribute, ast.Subscript))
            _set(_assigned(target), _value(statement.value, known) if one else UNREAD, own, known)
        if isinstance(statement.value, ast.Call):
            own.stated += _started(statement.value)
            before = _path(targets[0]).partition(".")[2]
            own.stated += _passed(statement.value, known, f"{before}." if before else "")
            own.notes += [] if before else _called(statement.value.args, statement.value)
    elif isinstance(statement, ast.AugAssign):
        value = ast.BinOp(statement.target, statement.op, statement.value)
        _set(_assigned(statement.target), _value(value, known), own, known)
    elif isinstance(statement, (ast.Return, ast.Expr)) and isinstance(statement.value, ast.Call):
        call = statement.value
        own.stated += [*_started(call), *_passed(call, known)]
        own.notes += _called(call.args if isinstance(statement, ast.Return) else [call], call)
    elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        for path in _assigned(statement):
            if "." in path:
                own.notes.append((path.partition(".")[2], CONDITION))
            else:
                known[path] = UNREAD
        for inner in ast.walk(statement):
            if isinstance(inner, (ast.Return, ast.Expr)) and isinstance(inner.value, ast.Call):
                own.notes += _called([inner.value], inner.value)


def _set(paths: Iterator[str], value: Any, own: Recipe, known: dict[str, Any]) -> None:
    """State a setting, or remember a name."""
    for path in paths:
        if "." in path:
            own.stated.append((path.partition(".")[2], value))
        else:
            known[path] = value


def _assigned(within: ast.AST) -> Iterator[str]:
    """What is assigned anywhere within a statement."""
    for node in ast.walk(within):
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            yield from filter(None, [_path(node)])


def _called(among: list[ast.expr], call: ast.Call) -> list[tuple[str, str]]:
    """A note on a call that may change what it is given: where an object is named ``among`` these."""
    name = _path(call.func)
    within = [node for one in among for node in ast.walk(one) if isinstance(node, ast.Name) and node is not call.func]
    silent = name.partition(".")[0] in SILENT or name.rpartition(".")[2][:1].isupper()
    return [(f"{name}()", CALL)] if within and name and not silent else []


def _started(call: ast.Call) -> list[tuple[str, Any]]:
    """The recipe that a call starts from, if it is one."""
    before, _, name = _path(call.func).rpartition(".")
    if name in OF_MODULES:  # of the module that is called after the model
        name = f"{before.rpartition('.')[2]}_{name}"
    return [(RECIPE, name)] if name.endswith(STARTS) else []


def _passed(call: ast.Call, known: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """What a call is passed by name, with that of calls within it behind its own name."""
    for keyword in call.keywords:
        if keyword.arg is None:
            continue
        inner = keyword.value
        if isinstance(inner, ast.Call) and (inner.keywords or any(isinstance(a, ast.Name) for a in inner.args)):
            yield from _passed(inner, known, f"{before}{keyword.arg}.")
        else:
            yield f"{before}{keyword.arg}", _value(inner, known)


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """The value of an expression; unread for what only an execution would know."""
    match node:
        case ast.Constant(value):
            return value if isinstance(value, (bool, int, float, str)) or value is None else UNREAD
        case ast.Name(name):
            return known.get(name, UNREAD)
        case ast.Attribute():
            path = _path(node)  # a name of a module or a class stands for itself, a setting elsewhere for its value
            return path if path.startswith(MODULES) or path[:1].isupper() else UNREAD
        case ast.List(parts) | ast.Tuple(parts):
            return ",".join(str(_value(part, known)) for part in parts)
        case ast.UnaryOp(ast.USub(), operand):
            value = _value(operand, known)
            return -value if isinstance(value, (int, float)) else UNREAD
        case ast.BinOp(left, sign, right) if type(sign) in _SUMS:
            first, second = _value(left, known), _value(right, known)
            whole = type(first) is int and type(second) is int and max(abs(first), abs(second)) < 10**15
            usable = whole and (second != 0 or not isinstance(sign, ast.FloorDiv))
            return _SUMS[type(sign)](first, second) if usable else UNREAD
        case ast.Call(of, [ast.Constant(str(word))], []):
            return word if PRECISION in _path(of).rpartition(".")[2].lower() else UNREAD
        case ast.Call(of, [], []):
            name = _path(of).rpartition(".")[2]
            return name if name.endswith((MIXED, *STARTS)) or name[:1].isupper() else UNREAD
    return UNREAD


def _path(node: ast.expr) -> str:
    """A name, or names with points between; a key of a table counts as a name. Empty for anything else."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(value, name) | ast.Subscript(value, ast.Constant(str(name))):
            before = _path(value)
            return shortened(f"{before}.{name}", 200) if before else ""
    return ""
