"""Records of two pools: each pool is a record of its own, mapped and evaluated as inference; then both are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import xarray as xr

from perfgrid.analysis.joined_pools import ALONE, COLUMNS, LOAD, by_load, columns_of, reasons, rows
from perfgrid.catalog import Catalog
from perfgrid.formulas import registry_of
from perfgrid.results.evaluate import evaluate
from perfgrid.study.file import POOLS
from perfgrid.study.study import Study

from .design import Designs, Row, designs
from .fastest import WHOLE
from .inference import InferenceMapper
from .schema import Record

QUANTITIES = ("time_to_first_token", "time_per_output_token", "request_latency", "output_tokens_per_second")
WAITS = (
    "servers_time",
    "prompt_queue_time",
    "prompt_time",
    "exposed_transfer_time",
    "place_queue_wait",
)  # before the first token
OUTPUTS = (*QUANTITIES, *WAITS, "decode_steps", "loaded_step_time")
OF_BOTH = ("batch", "loop_requests", "prompt_tokens", "output_tokens", "batch_rule")
DEGREES = ("tp", "pp", "cp", "ep", "etp")


def two_pools(record: Record) -> bool:
    """Whether a record is of two pools with layouts of their own."""
    return record.plan is not None and record.plan.prefill is not None and record.kernel is None


def request_parts(values: Mapping[str, Any], record: Record) -> dict[str, float]:
    """What a request waits for, or of later tokens alone, in s."""
    steps = {"decode_time": float(values["decode_steps"] * values["loaded_step_time"])}
    waits = {name: float(values[name]) for name in WAITS}
    return {"time_to_first_token": waits, "time_per_output_token": steps}.get(record.quantity, waits | steps)


class PoolMapper(InferenceMapper):
    """Maps the pools of records: a pool that states a batch runs no more requests on a replica."""

    def _hardware(self, record: Record, columns: Mapping[str, Any]) -> dict[str, Any]:
        found = super()._hardware(record, columns)
        stated = record.workload.microbatch if record.workload is not None else None
        return found | ({"batch_limit": float(stated)} if stated else {})


def one_pool(record: Record, pool: str) -> Record:
    """The record with the layout of one pool alone, whose requests on a replica are its microbatch."""
    plan, workload = record.plan, record.workload
    assert plan is not None
    assert workload is not None
    own = getattr(plan, pool)
    degrees = {name: getattr(own, name) for name in DEGREES} | {"dp": own.workers * own.dp}
    alone = plan.model_copy(update=degrees | dict.fromkeys(POOLS))
    requests = workload.model_copy(update={"microbatch": own.batch})
    devices = own.workers * own.dp * own.tp * own.pp * own.cp
    return record.model_copy(update={"plan": alone, "workload": requests, "devices": devices})


def mapped(records: Sequence[Record], catalog: Catalog) -> Designs:
    """The rows of records of two pools, with the results of both as columns, and all reasons for the others."""
    unpredicted = {r.id: (f"not modelled: {r.quantity} of two pools",) for r in records if r.quantity not in QUANTITIES}
    known = [r for r in records if r.id not in unpredicted]
    found = {p: designs([one_pool(r, p) for r in known], catalog, registry_of("inference"), PoolMapper) for p in POOLS}
    for own in found.values():
        unpredicted |= own.unpredicted
    known = [r for r in known if r.id not in unpredicted]
    if not known:
        return Designs(catalog, [], unpredicted)
    for pool, own in found.items():
        found[pool] = replace(own, rows=[row for row in own.rows if row.record.id not in unpredicted])
    columns: dict[str, Sequence[Any]] = {}
    for pool, own in found.items():
        study, values = _alone(own, pool)
        columns |= by_load(columns_of(pool, rows(study, values)))
        columns[f"{pool}_legal"] = [not why for why in reasons(study, values)[:: len(LOAD["offered_load"])]]
    joined = []
    for i, (record, row) in enumerate(zip(known, found["decode"].rows, strict=True)):
        given = {name: row.columns[name] for name in OF_BOTH if name in row.columns}
        joined.append(Row(record.id, record, record.quantity, given | {k: values[i] for k, values in columns.items()}))
    return Designs(catalog, joined, unpredicted)


def _alone(pool: Designs, name: str) -> tuple[Study, xr.Dataset]:
    """One pool of all records, evaluated without the other."""
    axis = pool.axis()
    axis["zip"] |= {key: [value] * len(pool.rows) for key, value in ALONE[name].items()}
    axis["zip"] = {key: values for key, values in axis["zip"].items() if key not in LOAD}
    varied = axis["zip"].get("prompt_variation", [0.0] * len(pool.rows))
    axis["zip"]["length_distribution"] = ["uniform" if v else "constant" for v in varied]
    how = {"workload": "inference", "outputs": list(COLUMNS[name]), "dtype": "float64", "axes": {"row": axis} | LOAD}
    study = Study.make(pool.catalog, title="one of two pools", **how)
    return study, evaluate(study, small_points=WHOLE)
