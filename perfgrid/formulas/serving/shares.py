"""What the prefill, a decoding step and a request wait for, as parts that add up."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import INNER, at, total

PASSES = {"PASS": ("prefill", "decode")}
PARTS = ("kernels", "communication", "host", "late_launch")
QUANTITIES = (*(f"{which}_{part}_time" for which in ("prefill", "decode") for part in PARTS), "decode_steps")
OF_REPLICA = tuple(f"replica_{part}_time" for part in PARTS)


@formula(unit="s", source="williams2009roofline", family=PASSES)
def PASS_work_time(PASS_kernels_time, PASS_communication_time, PASS_host_time, PASS_late_launch_time):
    """Time of the PASS: kernels, other ranks, and the host, between passes or late with its launches."""
    return total(PASS_kernels_time, "resource") + PASS_communication_time + PASS_host_time + PASS_late_launch_time


@formula(unit="1", source="williams2009roofline", family=PASSES)
def PASS_arithmetic_fraction(PASS_kernels_time, PASS_work_time):
    """Share of the PASS that arithmetic accounts for."""
    return at(PASS_kernels_time, resource="arithmetic") / PASS_work_time


@formula(unit="1", source="williams2009roofline", family=PASSES)
def PASS_on_chip_fraction(PASS_kernels_time, PASS_work_time):
    """Share of the PASS that memory on the chip accounts for: registers, shared memory, L2."""
    on_chip = [at(PASS_kernels_time, resource=level) for level in ("registers", "shared_memory", "l2")]
    return sum(on_chip) / PASS_work_time


@formula(unit="1", source="williams2009roofline", family=PASSES)
def PASS_hbm_fraction(PASS_kernels_time, PASS_work_time):
    """Share of the PASS that the memory bandwidth accounts for."""
    return at(PASS_kernels_time, resource="hbm") / PASS_work_time


@formula(unit="1", source="gray2019cudagraphs", family=PASSES)
def PASS_launch_fraction(PASS_kernels_time, PASS_work_time):
    """Share of the PASS between one kernel and the next."""
    return at(PASS_kernels_time, resource="launch") / PASS_work_time


@formula(unit="1", source="pope2022inference", family=PASSES)
def PASS_communication_fraction(PASS_communication_time, PASS_work_time):
    """Share of the PASS in which a rank waits for others."""
    return PASS_communication_time / PASS_work_time


@formula(unit="1", source="gray2019cudagraphs", family=PASSES)
def PASS_host_fraction(PASS_host_time, PASS_late_launch_time, PASS_work_time):
    """Share of the PASS in which the devices wait for the host."""
    return (PASS_host_time + PASS_late_launch_time) / PASS_work_time


def _by_name(kernels: Any, communication: Any, host: Any) -> dict[str, float]:
    """Times by resource, for other ranks, and for the host, under the names of quantities."""
    parts = zip((*INNER.labels["resource"], "communication", "host"), (*kernels, *communication, *host), strict=True)
    return {f"{name}_time": float(time) for name, time in parts}


def request_parts(values: Mapping[str, Any], steps: float | None = None) -> dict[str, float]:
    """Time of the prefill and of all steps of a request in s, by resource, for other ranks, and for the host.

    ``values`` holds `QUANTITIES`; ``steps`` counts other than all of its steps (0: the prefill only).
    """
    steps = float(np.squeeze(values["decode_steps"])) if steps is None else steps
    kernels, communication, host, late = (
        np.ravel(values[f"prefill_{part}_time"]) + steps * np.ravel(values[f"decode_{part}_time"]) for part in PARTS
    )
    return _by_name(kernels, communication, host + late)


def replica_parts(values: Mapping[str, Any]) -> dict[str, float]:
    """Time of a replica that a request takes in s, in the same parts. ``values`` holds `OF_REPLICA`."""
    kernels, communication, host, late = (np.ravel(values[name]) for name in OF_REPLICA)
    return _by_name(kernels, communication, host + late)
