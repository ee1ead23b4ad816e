"""Entries as the text of catalog files; read again, it gives the same values, sources and ranges."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from perfgrid.engine.errors import printable

from .join import NO_SOURCE, without_source
from .schema import BLOCKS, OVERRIDE, Detail, Entry, Value, Variable
from .units import in_unit

WRITTEN = {  # units in which files state a quantity; the shortest exact text is taken, the first of equals
    "FLOP/s": ("PFLOP/s", "TFLOP/s", "GFLOP/s", "FLOP/s"),
    "Hz": ("GHz", "MHz", "Hz"),
    "byte": ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB", "B"),
    "byte/s": ("PB/s", "TB/s", "GB/s", "Gbit/s", "MB/s", "B/s"),
    "W": ("W", "kW", "MW"),
    "m": ("mm", "um", "m"),
    "m^2": ("mm^2", "cm^2", "m^2"),
    "s": ("s", "ms", "us", "ns", "h", "day", "year"),
    "USD": ("USD", "MUSD"),
    "1/m^2": ("/cm^2", "/mm^2"),
    "byte/m^2": ("MB/mm^2", "KiB/mm^2"),
    "USD/m^2": ("USD/mm^2", "USD/cm^2"),
    "USD/J": ("USD/kWh",),
    "USD/byte": ("USD/GB", "USD/GiB"),
    "kg/J": ("kg/kWh",),
    "kg/m^2": ("kg/cm^2",),
    "kg/byte": ("kg/GB",),
    "J/byte": ("pJ/byte", "pJ/bit"),
    "J/FLOP": ("pJ/FLOP",),
    "J/m^2": ("kWh/cm^2",),
}
ABOUT = ("low", "high", "year", "confidence", "note", "calibration", "correlation")  # of a value, in this order


def quoted(text: str) -> str:
    """Text as a TOML string of one line; what cannot be printed is escaped."""

    def escaped(c: str) -> str:
        if c in '"\\':
            return f"\\{c}"
        return c if c.isprintable() else f"\\u{ord(c):04x}" if ord(c) < 2**16 else f"\\U{ord(c):08x}"

    return f'"{"".join(map(escaped, text))}"'


def toml(value: Any) -> str:
    """A value as TOML in one line: a flag, a number, a text or a table of such."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key_text(k)} = {toml(v)}" for k, v in value.items()) + " }"
    return _digits(value) if isinstance(value, (int, float)) else quoted(str(value))


def value_text(variable: Variable, value: Value) -> str:
    """A value of an entry as a file states it: a number with its unit, a code as its word."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{label} = {value_text(variable, v)}" for label, v in value.items()) + " }"
    word = variable.word(value)
    if not isinstance(word, float) or not word or variable.unit == "1":
        return toml(word)
    shares = {unit: word / in_unit(f"1 {unit}", variable.unit) for unit in WRITTEN.get(variable.unit, (variable.unit,))}
    texts = sorted((f"{_digits(float(f'{share:.15g}'))} {unit}" for unit, share in shares.items()), key=len)
    return next((quoted(text) for text in texts if in_unit(text, variable.unit) == word), _digits(word))


def entry_text(entry: Entry, variables: Mapping[str, Variable], references: Mapping[str, str]) -> str:
    """A catalog file with an entry: what differs from the one that it changes, or all of it.

    Groups of quantities that the entry does not have are left out.
    """
    if entry.base and (set_here := [q for q, by in entry.stated.items() if by == OVERRIDE]):
        lines = {q: stated_text(variables[q], entry.values[q], None, NO_SOURCE) for q in set_here}
        return table_text(entry.kind, entry.name, {"extends": entry.base, "title": entry.title}, lines, variables)
    own = {q for q, key in entry.sources.items() if key == OVERRIDE or is_file(key, references)}
    sources = {q: NO_SOURCE if q in own else key for q, key in entry.sources.items()}
    absent = {q for block in BLOCKS for q in _absent(entry, block, variables)}
    usual = Counter(sources[q] for q in absent or entry.values).most_common(1)[0][0]
    lines = {
        q: stated_text(variables[q], value, entry.details.get(q), sources[q] if sources[q] != usual else None)
        for q, value in entry.values.items()
        if q not in absent
    }
    return table_text(entry.kind, entry.name, {"title": entry.title, "source": usual}, lines, variables)


def new_text(base: Entry, name: str, stated: Mapping[str, Any], variables: Mapping[str, Variable], use: str) -> str:
    """A catalog file with an entry that extends another and states what differs; the other's values are comments."""
    comments = (f"Uncomment what differs from {base.name}. What has no source is attributed to this file.", use)
    flat = {q: v for key, value in stated.items() for q, v in (value if key in BLOCKS else {key: value}).items()}
    head = {key: str(flat.pop(key)) for key in ("extends", "title", "source") if key in flat}
    lines = {q: toml(value) for q, value in flat.items()}
    hidden = {*flat, *(q for block in BLOCKS for q in _absent(base, block, variables))}
    offered = {q: value_text(variables[q], value) for q, value in base.values.items() if q not in hidden}
    return table_text(base.kind, name, head, lines, variables, comments, offered)


def table_text(
    kind: str,
    name: str,
    head: Mapping[str, str],
    lines: Mapping[str, str],
    variables: Mapping[str, Variable],
    comments: Iterable[str] = (),
    offered: Mapping[str, str] | None = None,
) -> str:
    """A catalog file with one entry: keys of its head, quantities with their text, and ``offered`` ones as comments."""
    found = [f"# {printable(comment)}" for comment in comments]
    found += [f"kind = {quoted(kind)}", "", f"[{key_text(name)}]"]
    found += [f"{key} = {quoted(text)}" for key, text in head.items()]
    for block in (None, *BLOCKS):
        stated = [f"{q} = {lines[q]}" for q, v in variables.items() if q in lines and v.block == block]
        others = [f"# {q} = {text}" for q, text in (offered or {}).items() if variables[q].block == block]
        if block is not None and (stated or others):
            found += ["", f"{'' if stated else '# '}[{key_text(name)}.{block}]"]
        found += stated + others
    return "\n".join(found) + "\n"


def is_file(source: str, references: Mapping[str, str]) -> bool:
    """Whether a source is the user's file that states a value without one."""
    return references[source] == without_source(source)


def _absent(entry: Entry, block: str, variables: Mapping[str, Variable]) -> list[str]:
    """The quantities of a block that an entry does not have."""
    inside = [q for q in entry.values if variables[q].block == block]
    plain = all(entry.values[q] == variables[q].default_value and q not in entry.details for q in inside)
    return inside if plain and len({entry.sources[q] for q in inside}) == 1 else []


def stated_text(variable: Variable, value: Value, detail: Detail | None, source: str | None) -> str:
    """A value with all that is said of it."""
    text, about = value_text(variable, value), {}
    for key in ABOUT:
        held = getattr(detail, key, None)
        if held is not None and held != {}:
            about[key] = value_text(variable, held) if key in ("low", "high") else toml(held)
    if source is not None:
        about["source"] = quoted(source)
    return text if not about else "{ " + ", ".join(f"{k} = {v}" for k, v in {"value": text, **about}.items()) + " }"


def key_text(name: str) -> str:
    """A name as a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


def _digits(number: float) -> str:
    """A number that reads the same again, whole ones without a point."""
    return f"{number:.0f}" if number == round(number) and abs(number) < 1e15 else repr(number)
