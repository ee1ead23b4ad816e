"""What a key is to perfgrid: known with effect, known without effect on time, memory and cost, or unknown.

An unknown key whose name is that of a degree, a batch, a number format, recomputation, an adapter, offload, sharding,
memory, a sequence or experts could change the answer: it stops the reader. Others are named in a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from perfgrid.catalog.reading import read_text

from .arguments import hyphenated
from .formats import Format
from .subjects import could_change

KEYS = Path(__file__).with_name("keys")
EFFECT, NO_EFFECT, NOT_MODELLED, UNKNOWN = "with effect", "without effect", "not modelled", "unknown"
UNMODELLED = f"{NOT_MODELLED}, though it may"  # how the reason begins for keys that would change a verdict
KINDS = (EFFECT, NO_EFFECT, NOT_MODELLED, UNKNOWN)


def kind_of(form: Format, key: str) -> str:
    """What a key is to a format; ``no-...`` of a switch is that switch."""
    key = form.arguments.negated(key) or key
    name = next((one for one in (key, key.replace("-", "_")) if form.matters(one)), None)
    if name is not None:
        return EFFECT
    kinds = [_unstated(form, form.name_of(one)) for one in dict.fromkeys((key, key.replace("-", "_")))]
    return min(kinds, key=KINDS.index)


def _unstated(form: Format, name: str) -> str:
    if form.unpriced_row(name) is not None:
        return NOT_MODELLED
    why = form.reason_to_ignore(name)
    return UNKNOWN if why is None else NOT_MODELLED if why.startswith(NOT_MODELLED) else NO_EFFECT


@cache
def program_keys(name: str) -> frozenset[str]:
    """The keys of the program of a format, with hyphens; none where no list of them is kept."""
    path = KEYS / f"{name}.txt"
    lines = read_text(path).splitlines() if path.exists() else []
    return frozenset(hyphenated(line.split("\t")[0]) for line in lines)


@dataclass(frozen=True)
class Count:
    """Keys of a format by kind: ``of`` its own program, as its parser or its configurations list them, or of the table.

    ``stopping``: unknown keys that stop the reader. Where no list is kept, what is unknown is not counted: None.
    """

    kinds: Mapping[str, int | None]
    of: str
    stopping: int | None


def keys_of(form: Format) -> list[str]:
    """The keys of the program of a format, as its parser or its configurations list them; none where none are kept."""
    path = KEYS / f"{form.name}.txt"
    return [line.split("\t")[0] for line in read_text(path).splitlines()] if path.exists() else []


def counted(form: Format) -> Count:
    """How many keys of a format are known with effect, without effect, not modelled and unknown."""
    if not (listed := keys_of(form)):
        table = Counter({EFFECT: len(form.by_name) + len(form.renamed)})
        for why, keys in form.ignored.items():
            table[NOT_MODELLED if why.startswith(NOT_MODELLED) else NO_EFFECT] += len(keys)
        table[NOT_MODELLED] += sum(len(row.keys) for row in form.unpriced)
        return Count({kind: table[kind] for kind in KINDS} | {UNKNOWN: None}, "its table", None)
    found = {key: kind_of(form, key) for key in listed}
    stopping = sum(form.strict and kind == UNKNOWN and bool(could_change(key)) for key, kind in found.items())
    kinds = Counter(found.values())
    return Count({kind: kinds[kind] for kind in KINDS}, f"{len(listed)} keys of the program", stopping)
