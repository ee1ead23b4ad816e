"""Numbers with units as text: the units of the field, four significant digits, no exponent.

`number` writes one number with its unit, `column` those of a column in one unit, which stands in the header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

DIGITS = 4  # significant ones of a number
LABEL_DIGITS = 9  # of a label, which must be told from its neighbours
WIDEST_RANGE = 1e4  # largest over smallest value that a column writes in one unit
MOST_EXACT = 1e15  # whole pure numbers below have all their digits
LEAST_PLAIN = 1e-4  # pure numbers below have an exponent
READ_BACK = ("byte", "byte/s", "s", "Hz", "W", "FLOP/s")  # units of labels that command lines take as they are printed

_LARGE, _SMALL, _BINARY = "E P T G M k", "m u n p", "Ti Gi Mi Ki"
_PREFIXES: dict[str, float] = {
    **{prefix: 10.0 ** (18 - 3 * i) for i, prefix in enumerate([*_LARGE.split(), "", *_SMALL.split(), "f"])},
    **{prefix: 1024.0 ** (4 - i) for i, prefix in enumerate(_BINARY.split())},
}


def count_text(count: int, noun: str) -> str:
    """How many there are of something: 1 point, 12,672 points."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _prefixed(name: str, prefixes: str = _LARGE, size: float = 1.0) -> dict[str, float]:
    """A unit and its multiples, the largest first: what is printed, and its size."""
    sizes = {prefix + name: _PREFIXES[prefix] * size for prefix in (*prefixes.split(), "")}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


_HOUR, _KWH, _GB, _CM2, _MM2 = 3600.0, 3.6e6, 1e9, 1e-4, 1e-6
UNITS: Mapping[str, Mapping[str, float]] = {  # unit of a quantity: units that are printed, and their sizes
    "1": {"trillion": 1e12, "billion": 1e9, "": 1.0},
    "s": {"d": 86400.0, "h": _HOUR, **_prefixed("s", _SMALL)},
    "byte": _prefixed("B", _BINARY),
    "byte/s": _prefixed("B/s"),
    "s/byte": _prefixed("s/B", f"{_SMALL} f"),
    "s/byte**0.5": _prefixed("s/B^0.5", _SMALL),
    "m": _prefixed("m", _SMALL),
    "m^2": {"m2": 1.0, "mm2": _MM2, "um2": 1e-12, "nm2": 1e-18},
    "1/m^2": {"M/mm2": 1e6 / _MM2, "/mm2": 1 / _MM2, "/cm2": 1 / _CM2},
    "byte/m^2": _prefixed("B/mm2", "Gi Mi Ki", 1 / _MM2),
    "kg": {"kt": 1e6, "t": 1e3, "kg": 1.0, "g": 1e-3, "mg": 1e-6},
    "kg/m^2": {"kg/cm2": 1 / _CM2},
    "kg/byte": {"kg/GB": 1 / _GB},
    "kg/s": {"t/h": 1e3 / _HOUR, "kg/h": 1 / _HOUR, "g/h": 1e-3 / _HOUR},
    "kg/J": {"kg/kWh": 1 / _KWH},
    "J": _prefixed("J", f"{_LARGE} {_SMALL}"),
    "J/byte": _prefixed("J/B", f"{_LARGE} {_SMALL}"),
    "J/FLOP": _prefixed("J/FLOP", f"{_SMALL} f"),
    "J/m^2": {"kWh/cm2": _KWH / _CM2},
    "W": _prefixed("W", f"{_LARGE} {_SMALL}"),
    "V": _prefixed("V", _SMALL),
    "USD": _prefixed("$", f"G M k {_SMALL}"),
    "USD/s": _prefixed("$/h", "G M k", 1 / _HOUR),
    "USD/h": _prefixed("$/h", "G M k"),
    "USD/byte": {"$/GB": 1 / _GB},
    "USD/m^2": {"$/mm2": 1 / _MM2},
    "USD/J": {"$/kWh": 1 / _KWH},
    "USD/W": {"$/W": 1.0},
    "FLOP/USD": _prefixed("FLOP/$"),
    "1/USD": _prefixed("/$"),
}
BARE = {"m^2": "mm2", "USD/s": "$/h", "kg/s": "kg/h"}  # the unit without a prefix, where it is not that nearest to SI
LEAST = {"d": 3 * 86400.0, "h": 3 * _HOUR, "k$": 1e4, "$": 1e-3}  # smallest value in a unit, where that is not its size


def units_of(unit: str) -> Mapping[str, float]:
    """The units in which a quantity is printed, the largest first, with their sizes in its own unit."""
    return UNITS.get(unit or "1") or _prefixed(unit.removeprefix("1") if unit.startswith("1/") else unit)


def bare_unit(unit: str) -> str:
    """The unit in which a quantity is printed where no value decides on a prefix; empty for pure numbers."""
    sizes = units_of(unit)
    return BARE.get(unit) or min(sizes, key=lambda name: abs(np.log(sizes[name])))


def number(value: float, unit: str = "1") -> str:
    """A value with four significant digits and a fitting unit: 3.35 TB/s, 79.1 GiB, 12.4 ms, 814 mm2, 36 k$."""
    if not np.isfinite(value):
        return "-" if np.isnan(value) else str(value)
    exact = unit in ("1", "") and value == round(value) and abs(value) < MOST_EXACT
    name = "" if exact else _fitting(abs(value), unit)
    return f"{_digits(value, unit, name)} {name}".rstrip()


def whole_number(value: float, unit: str) -> str:
    """A value in the largest unit of which it is a whole multiple, with all its digits: 1 h, 16 B; else as `number`."""
    name = next((n for n, size in units_of(unit).items() if value / size == round(value / size)), "")
    return f"{value / units_of(unit)[name]:,.0f} {name}" if name else number(value, unit)


def column(values: Sequence[float | str | None], unit: str, like: Sequence[float] = ()) -> tuple[str, list[str]]:
    """The unit of a column, and its values in it, aligned at the decimal point if they are printed flush right.

    The unit is that of the middle value, or of the middle of others that the column is ``like``; empty where no single
    one fits: each value then has its own. Words stay; None and NaN are dashes.
    """
    texts = [v if isinstance(v, str) else "-" for v in values]
    numbers = {
        i: float(v) for i, v in enumerate(values) if not isinstance(v, str) and v is not None and not np.isnan(v)
    }
    sizes = [abs(v) for v in numbers.values() if v and np.isfinite(v)] or [0.0]
    alike = max(sizes) <= WIDEST_RANGE * min(sizes)
    name = _fitting(sorted(map(abs, like or sizes))[len(like or sizes) // 2], unit) if alike else ""
    for i, v in numbers.items():
        texts[i] = _digits(v, unit, name) if alike and np.isfinite(v) else number(v, unit)
    behind = {i: len(texts[i]) - len(texts[i].partition(".")[0]) for i in numbers}
    most = max(behind.values(), default=0)
    for i, own in behind.items() if alike else ():
        texts[i] += " " * (most - own)
    return name, texts


def fitting_unit(values: Sequence[float], unit: str) -> str:
    """The unit in which the middle one of some values is printed."""
    sizes = sorted(abs(float(v)) for v in values if v and np.isfinite(v)) or [0.0]
    return _fitting(sizes[len(sizes) // 2], unit)


def header(name: str, unit: str) -> str:
    """The header of a column: a name, and the unit of its values in brackets."""
    return f"{name} [{unit}]" if unit else name


def label_text(label: Any, unit: str = "1") -> str:
    """A label as a command line takes it: 8 and not 8.0, 1000000 and not 1e+06, and with its unit 1 GiB."""
    if not isinstance(label, float) or not np.isfinite(label):
        return str(label)
    name = _fitting(abs(label), unit) if unit in READ_BACK else ""
    size = units_of(unit)[name] if name else 1.0
    return f"{Decimal(f'{label / size:.{LABEL_DIGITS}g}'):f} {name}".rstrip()


def _fitting(size: float, unit: str) -> str:
    """The largest unit that is not above a size, as it is rounded; the smallest one if all are above."""
    units, rounded = units_of(unit), float(f"{size:.{DIGITS}g}")
    if not size:
        return bare_unit(unit)
    return next((name for name, least in units.items() if rounded >= LEAST.get(name, least)), list(units)[-1])


def _digits(value: float, unit: str, name: str) -> str:
    """The digits of a value in one of its units; of whole pure numbers all of them."""
    scaled = float(value) / units_of(unit)[name]
    if unit in ("1", "") and not name:
        if scaled == round(scaled):
            return f"{scaled:,.0f}"
        if abs(scaled) < LEAST_PLAIN:
            return f"{scaled:.{DIGITS}g}"
    return f"{Decimal(f'{scaled:.{DIGITS}g}'):,f}"
