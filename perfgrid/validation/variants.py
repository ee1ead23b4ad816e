"""Values of fields that a record leaves open and that its authors tuned: one variant of the record for each choice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import product

from .schema import Record

TUNABLE = {"microbatch": "workload", "chunks": "plan"}  # field -> its block


def variants(record: Record, names: Collection[str]) -> list[tuple[Mapping[str, int], Record]]:
    """The record with each choice of the fields ``names`` that it leaves open; as it stands if there are none."""
    choices = {name: _values(record, name) for name in TUNABLE if name in names and _open(record, name)}
    return [(chosen, _with(record, chosen)) for chosen in _products(choices)]


def _products(choices: Mapping[str, list[int]]) -> list[dict[str, int]]:
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


def _open(record: Record, name: str) -> bool:
    block = getattr(record, TUNABLE[name])
    return block is not None and getattr(block, name) is None


def _values(record: Record, name: str) -> list[int]:
    """Values to try: powers of two that divide the batch of a replica, divisors of the layers of a stage."""
    plan, workload, model = record.plan, record.workload, record.model
    assert plan is not None
    assert workload is not None
    if name == "microbatch":
        batch = max((workload.global_batch or 1) // (plan.dp or 1), 1)
        return [2**k for k in range(batch.bit_length()) if batch % 2**k == 0]
    stages = plan.pp or 1
    layers = -(-((model.layers if model else None) or 1) // stages)
    found = [n for n in range(1, layers + 1) if layers % n == 0] if stages > 1 else [1]
    return found[1:] if plan.schedule == "interleaved" and len(found) > 1 else found


def _with(record: Record, chosen: Mapping[str, int]) -> Record:
    """The record with these values stated."""
    for name, value in chosen.items():
        block = getattr(record, TUNABLE[name])
        changed = block.model_copy(update={name: value})
        record = record.model_copy(update={TUNABLE[name]: changed})
    return record
