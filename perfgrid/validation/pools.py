"""Records of two pools: each pool is a record of its own, mapped and evaluated as inference, and both are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfgrid.analysis.pools import DECODE, FULL, LONE, MACHINE, PASSES, STEPS, by_load, decode_columns
from perfgrid.analysis.pools import prefill_columns, reasons, rows
from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas import registry_of
from perfgrid.results.evaluate import evaluate
from perfgrid.study.study import Study

from .design import Designs, Row, designs
from .inference import InferenceMapper
from .schema import Layout, PoolLayout, Record

QUANTITIES = ("time_to_first_token", "time_per_output_token", "request_latency", "output_tokens_per_second")
OUTPUTS = (*QUANTITIES, "prefill_pool_load", "decode_pool_load")
LOOP = ("batch", "loop_requests", "prompt_tokens", "output_tokens", "prompt_variation", "batch_rule")


def two_pools(record: Record) -> bool:
    """Whether a record is of two pools with layouts of their own."""
    return record.plan is not None and record.plan.prefill is not None


class PoolMapper(InferenceMapper):
    """Maps one pool of each record: so many requests at once on a replica at most."""

    def _hardware(self, record: Record, columns: Mapping[str, Any]) -> dict[str, Any]:
        assert record.plan is not None
        found = super()._hardware(record, columns)
        own = record.plan.prefill or record.plan.decode
        return found | ({"batch_limit": float(own.batch)} if own is not None and own.batch else {})


def one_pool(record: Record, pool: str) -> Record:
    """The record with the plan of one pool alone."""
    plan = record.plan
    assert plan is not None
    own: PoolLayout = getattr(plan, pool)
    layout = {name: getattr(own, name) for name in ("tp", "pp", "cp", "ep", "etp")}
    other = "decode" if pool == "prefill" else "prefill"
    alone: Layout = plan.model_copy(update=layout | {"dp": own.workers * own.dp, other: None})
    devices = own.workers * own.dp * own.tp * own.pp * own.cp
    return record.model_copy(update={"plan": alone, "devices": devices})


def mapped(records: Sequence[Record], catalog: Catalog) -> Designs:
    """The rows of records of two pools, with the results of both as columns, and all reasons for the others."""
    registry, unpredicted, found = registry_of("inference"), {}, {}
    known = [r for r in records if r.quantity in QUANTITIES]
    unpredicted = {r.id: (f"not modelled: {r.quantity} of two pools",) for r in records if r.quantity not in QUANTITIES}
    for pool in ("prefill", "decode"):
        found[pool] = designs([one_pool(r, pool) for r in known], catalog, registry, PoolMapper)
        unpredicted |= found[pool].unpredicted
    known = [r for r in known if r.id not in unpredicted]
    if not known:
        return Designs(catalog, [], unpredicted)
    kept = {pool: replace(own, rows=[row for row in own.rows if row.record.id not in unpredicted]) for pool, own in found.items()}
    passes, machine = (*PASSES, *MACHINE), (*STEPS, *MACHINE)
    lone = rows(*_alone(kept["prefill"], PASSES, LONE))
    full, steps = _alone(kept["prefill"], passes, FULL), _alone(kept["decode"], machine, DECODE)
    columns = by_load(prefill_columns(lone, rows(*full)) | decode_columns(rows(*steps)))
    columns |= {"prefill_legal": [not why for why in reasons(*full)], "decode_legal": [not why for why in reasons(*steps)]}
    joined = []
    for i, (row, record) in enumerate(zip(kept["decode"].rows, known, strict=True)):
        given = {name: row.columns[name] for name in LOOP if name in row.columns}
        joined.append(Row(record.id, record, record.quantity, {k: v[i] for k, v in columns.items()} | given))
    return Designs(catalog, joined, unpredicted)


def _alone(mapped: Designs, outputs: Sequence[str], stated: Mapping[str, Any]) -> tuple[Study, Any]:
    """One pool of all records, evaluated without the other."""
    axis = mapped.axis()
    axis["zip"] |= {name: [value] * len(mapped.rows) for name, value in stated.items()}
    content: dict[str, Any] = {"workload": "inference", "outputs": list(outputs), "dtype": "float64", "axes": {"row": axis}}
    study = Study.make(mapped.catalog, title="one of two pools", **content)
    return study, evaluate(study, small_points=10**9)
