"""Lists and ranges of axes, checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from perfgrid.catalog.schema import is_finite
from perfgrid.engine.errors import PerfgridError, nearest

LONGEST_RANGE = 10_000_000


def check_keys(table: Mapping[str, Any], legal: Collection[str], place: str) -> None:
    """PerfgridError for a key that a table may not hold."""
    for key in table:
        if key not in legal:
            raise PerfgridError(f"{place}: unknown key {key!r}{nearest(key, legal)}")


def numbers(spec: Any, place: str, read: Callable[[str], Any]) -> list[float]:
    """Numbers from a list or a range; ``read``: what a text such as ``2x`` or ``8 TB/s`` stands for."""

    def known(value: Any) -> Any:
        return read(value) if isinstance(value, str) else value

    if isinstance(spec, dict):
        check_keys(spec, ("start", "stop", "num", "spacing"), place)
        if lacking := [key for key in ("start", "stop", "num") if key not in spec]:
            raise PerfgridError(f"{place}: a range needs start, stop and num; {lacking[0]!r} is missing")
        start, stop, num = known(spec["start"]), known(spec["stop"]), spec["num"]
        if not all(map(_is_number, (start, stop, num))):
            raise PerfgridError(f"{place}: start, stop and num must be finite numbers, found {spec!r}")
        spacing = spec.get("spacing", "linear")
        if spacing not in ("linear", "log"):
            raise PerfgridError(f"{place}: spacing must be 'linear' or 'log', found {spacing!r}")
        if not 1 <= num <= LONGEST_RANGE or num != int(num):
            raise PerfgridError(f"{place}: a range has a whole num between 1 and {LONGEST_RANGE:,}, found {spec!r}")
        if spacing == "log" and min(start, stop) <= 0:
            raise PerfgridError(f"{place}: a logarithmic range needs start and stop above zero, found {spec!r}")
        return (np.geomspace if spacing == "log" else np.linspace)(float(start), float(stop), int(num)).tolist()
    if not isinstance(spec, list) or not spec:
        raise PerfgridError(f"{place}: needs a list of numbers or a range, found {spec!r}")
    found = [known(value) for value in spec]
    for value in found:
        if not _is_number(value):
            raise PerfgridError(f"{place}: needs finite numbers, found {value!r}")
    return [float(v) for v in found]


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and is_finite(value)


def check_no_repeats(values: Sequence[Any], place: str) -> None:
    """PerfgridError for an empty list and for a value that is listed twice."""
    if len(values) == 0:
        raise PerfgridError(f"{place}: the list is empty")
    seen: set[Any] = set()
    for value in values:
        key = value if isinstance(value, str | float | int) else repr(value)
        if key in seen:
            label = f"{value:g}" if isinstance(value, float) else repr(value)
            raise PerfgridError(f"{place}: lists {label} more than once")
        seen.add(key)


def names(table: str, names: Any, place: str) -> list[str]:
    """Names of entries of a table. PerfgridError for anything else."""
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise PerfgridError(f"{place}: needs a list of {table} names, found {names!r}")
    return names
