"""The kind of every layer of a configuration: by a list, a pattern of letters, numbers of layers or a period."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from perfgrid.engine.errors import PerfgridError

from .architectures import Architecture

RECURRENT, FULL, WINDOW, DENSE, SPARSE = "recurrent", "full", "window", "dense", "sparse"  # what a word may stand for


def listed_kinds(
    row: Architecture, at: Callable[[str], Any], layers: float | None, where: str
) -> tuple[str, list[str]] | None:
    """The key that says the kinds of the layers, and the kind of each; None where no key does.

    ``at`` gives the value of a key, ``where`` begins errors. Raises PerfgridError for kinds that are not supported and
    for keys that contradict the number of layers or one another.
    """
    found = [*_listed(row, at, layers, where), *_numbered(row, at, layers, where)]
    for key, missing in row.period.items():
        if (every := at(key)) is None and found:
            continue
        every = missing if every is None else every
        if isinstance(every, bool) or not isinstance(every, (int, float)) or every < 1 or every % 1:
            raise PerfgridError(f"{where}, {key} must be a whole number of layers, found {every!r}")
        if not found:
            return key, [row.between if i % every else FULL for i in range(1, int(layers or 0) + 1)]
        found.append((key, [row.between if i % every else FULL for i in range(1, len(found[0][1]) + 1)]))
    if not found:
        return None
    first, kinds = found[0]
    for key, others in found[1:]:
        if others != kinds:
            raise PerfgridError(f"{where} contradicts itself: {first} and {key} name different layers")
    if DENSE in kinds and SPARSE in kinds[: len(kinds) - kinds[::-1].index(DENSE)]:
        raise PerfgridError(f"{where}: {first} is not supported, only dense layers before sparse ones")
    return first, kinds


def _listed(
    row: Architecture, at: Callable[[str], Any], layers: float | None, where: str
) -> Iterator[tuple[str, list[str]]]:
    """The kind of every layer by each list or pattern."""
    for key in row.layer_lists:
        if (words := at(key)) is None or words == []:  # empty: by the period
            continue
        if not isinstance(words, (list, str)) or len(words) != (len(words) if layers is None else layers):
            length = len(words) if isinstance(words, (list, str)) else repr(words)
            counted = "blocks" if row.blocks else "layers"
            raise PerfgridError(f"{where} contradicts itself: {layers or 0:g} {counted}, but {key} lists {length}")
        if other := [word for word in words if str(word) not in row.words]:
            expressed = " and ".join(row.words)
            raise PerfgridError(f"{where}: {key} holds {other[0]!r}, which is not supported; supported are {expressed}")
        yield key, [row.words[str(word)] for word in words]


def _numbered(
    row: Architecture, at: Callable[[str], Any], layers: float | None, where: str
) -> Iterator[tuple[str, list[str]]]:
    """The kind of every layer by lists of the numbers of layers, the first layer being 1."""
    held = {key: at(key) for key in row.layer_numbers}
    if all(value is None for value in held.values()):
        return
    kinds: dict[int, str] = {}
    keys, listed = " and ".join(held), 0
    for key, numbers in held.items():
        numbers = [] if numbers is None else numbers
        if not isinstance(numbers, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
            raise PerfgridError(f"{where}, {key} must list numbers of layers, found {numbers!r}")
        kinds |= dict.fromkeys(numbers, row.layer_numbers[key])
        listed += len(numbers)
    if listed != layers or sorted(kinds) != list(range(1, listed + 1)):
        raise PerfgridError(f"{where} contradicts itself: {keys} do not name each of {layers or 0:g} layers once")
    yield keys, [kinds[number] for number in sorted(kinds)]
