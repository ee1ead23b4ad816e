"""The label ``native``: what a study states of a node, package or memory, or else what the device's own entry says.

In a study of devices with an axis of such a table, every quantity of the table is given twice: ``stated_<name>`` along
that axis and ``native_<name>`` along the devices. One formula per table and unit joins them.
"""

from collections.abc import Callable, Iterator
from inspect import Parameter, Signature
from itertools import groupby
from typing import Any

from perfgrid.catalog.loader import load_variables
from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula

TABLES = ("node", "package", "memory")


def _joined(table: str, unit: str, names: tuple[str, ...]) -> Callable[..., Any]:
    """The formula of all quantities of a table with the same unit."""

    def joined(stated, native, is_native):
        return xp.where(is_native > 0, native, stated)

    arguments = ("stated_QUANTITY", "native_QUANTITY", f"{table}_is_native")
    joined.__name__ = "QUANTITY"
    joined.__doc__ = f"What the {table} says of QUANTITY: the stated one, or the device's own where it is native."
    joined.__signature__ = Signature([Parameter(a, Parameter.POSITIONAL_OR_KEYWORD) for a in arguments])  # pyright: ignore[reportFunctionMemberAccess]
    return formula(unit=unit, source="ardalani2022deepflow", family={"QUANTITY": names})(joined)


def _formulas() -> Iterator[Callable[..., Any]]:
    for table in TABLES:
        given = sorted((v for v in load_variables().values() if v.of == table), key=lambda v: v.unit)
        for unit, same in groupby((v for v in given if v.kind != "label"), key=lambda v: v.unit):
            yield _joined(table, unit, tuple(v.name for v in same))


FORMULAS = tuple(_formulas())
