"""What stops the reader: keys and values that could matter and that perfgrid does not know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfgrid.engine.errors import PerfgridError, shortened


@dataclass(frozen=True)
class Stop:
    """A key with its value that could matter: why it is not read, the quantity that would state it, what to do."""

    where: str
    key: str
    text: str
    why: str
    quantity: str = ""
    how: str = ""


def refuse(stops: Sequence[Stop]) -> None:
    """PerfgridError that says what to do about the first of some stops, and names the others."""
    if not stops:
        return
    first, names = stops[0], list(dict.fromkeys(stop.key for stop in stops))
    also = f" (so are {shortened(', '.join(names[1:]), 160)})" if len(names) > 1 else ""
    options = shortened(" ".join(f"--ignore {name.lstrip('-')}" for name in names), 300)
    value = shortened(first.text, 60)
    shown = f"{first.key} {value}" if value not in ("", "true") else first.key
    raise PerfgridError(f"{first.where}{shown} {first.why}{also}: {first.how}leave it out with {options}")
