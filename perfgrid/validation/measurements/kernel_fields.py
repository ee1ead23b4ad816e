"""Your own kernels: the fields of a record of a matrix product or an attention timed on its own."""

from __future__ import annotations

from typing import Any

from perfgrid.engine.errors import PerfgridError
from perfgrid.study.entries import usual_entries
from perfgrid.validation.csv_rows import completed

from .blocks import block
from .setup import Setup

KERNEL = ("op", "m", "n", "k", "groups", "heads", "kv_heads", "head_dim", "causal", "direction", "version")


def kernel_fields(
    setup: Setup, values: dict[str, Any], quantity: str, value: float, printed: tuple[str, float]
) -> dict[str, Any]:
    """The fields of a record of a kernel. PerfgridError for another quantity than its time."""
    if quantity not in ("kernel_time", "collective_time", "step_time"):
        raise PerfgridError(
            f"{setup.where}: of a kernel its time is compared: name the column kernel_time_us, found {printed[0]}"
        )
    shape = {n: values[n] for n in (*KERNEL, "batch", "sequence_length") if n in values}
    precision = values.get("precision")
    if precision is None:
        setup.assumed.append("workload.precision = bf16")
    usual = usual_entries(setup.catalog, [setup.device], "training")
    workload = completed(
        {"precision": precision or "bf16", "lora": False, "packed_sft": False}, block(setup.record, "workload")
    )
    return setup.machine(1) | {
        "kind": "kernel",
        "software": setup.names.get("software") or usual["software"][0],
        "topology": setup.names.get("topology") or usual["topology"][0],
        "tier": "core",
        "predictable": True,
        "missing": [],
        "assumed": setup.assumed,
        "model": None,
        "kernel": completed(shape, block(setup.record, "kernel")),
        "workload": workload,
        "quantity": "kernel_time",
        "value": value,
        "reported": {"quantity": "kernel_time", "value": value, "unit": "s"},
        "certainty": "seen",
    }


def gemm_fields(setup: Setup, m: int, n: int, k: int, precision: str, seconds: float) -> dict[str, Any]:
    """The fields of a record of a matrix product [M,K]·[K,N]."""
    values = {"op": "gemm", "m": m, "n": n, "k": k, "direction": "forward", "precision": precision}
    return kernel_fields(setup, values, "kernel_time", seconds, ("kernel_time", seconds))
