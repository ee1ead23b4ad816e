"""What the prefill, a decoding step and a request wait for, as parts that add up."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import INNER, at, total

PASSES = {"PASS": ("prefill", "decode")}
PARTS = ("kernels", "communication", "host", "late_launch")
OF_PASSES = tuple(f"{which}_{part}_time" for which in ("prefill", "decode") for part in PARTS)
QUANTITIES = (*OF_PASSES, "decode_steps")
OF_REPLICA = (*OF_PASSES, "request_prefill_time", "request_decode_time", "going_on", "load_weight")


@formula(unit="s", source="williams2009roofline", family=PASSES)
def PASS_work_time(PASS_kernels_time, PASS_communication_time, PASS_host_time, PASS_late_launch_time):
    """Time of the PASS: kernels, other ranks, and the host, between passes or late with its launches."""
    return total(PASS_kernels_time, "resource") + PASS_communication_time + PASS_host_time + PASS_late_launch_time


@formula(unit="1", source="williams2009roofline", family=PASSES)
def PASS_arithmetic_fraction(PASS_kernels_time, PASS_work_time):
    """Share of the PASS in which kernels are limited by arithmetic."""
    return at(PASS_kernels_time, resource="arithmetic") / PASS_work_time


@formula(unit="1", source="williams2009roofline", family=PASSES)
def PASS_on_chip_fraction(PASS_kernels_time, PASS_work_time):
    """Share of the PASS in which kernels are limited by memory on the chip: registers, shared memory, L2."""
    on_chip = [at(PASS_kernels_time, resource=level) for level in ("registers", "shared_memory", "l2")]
    return sum(on_chip) / PASS_work_time


@formula(unit="1", source="williams2009roofline", family=PASSES)
def PASS_hbm_fraction(PASS_kernels_time, PASS_work_time):
    """Share of the PASS in which kernels are limited by the memory bandwidth."""
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


def pass_parts(values: Mapping[str, Any], which: str) -> dict[str, float]:
    """Time of a pass in s, by resource, for other ranks, and for the host. ``values`` holds `OF_PASSES`."""
    kernels, communication, host, late = (np.ravel(values[f"{which}_{part}_time"]) for part in PARTS)
    parts = zip(
        (*INNER.labels["resource"], "communication", "host"), (*kernels, *communication, *(host + late)), strict=True
    )
    return {f"{name}_time": float(time) for name, time in parts}


def request_parts(values: Mapping[str, Any], steps: float | None = None) -> dict[str, float]:
    """Time of the prefill and of all steps of a request in s, by resource, for other ranks, and for the host.

    ``values`` holds `QUANTITIES`; ``steps`` counts other than all of its steps (0: the prefill only).
    """
    steps = float(np.squeeze(values["decode_steps"])) if steps is None else steps
    prefill, step = (pass_parts(values, which) for which in ("prefill", "decode"))
    return {name: prefill[name] + steps * step[name] for name in prefill}


def replica_parts(values: Mapping[str, Any]) -> dict[str, float]:
    """Time of a replica in s that a request takes, in the same parts: what its prompt adds, and its share of steps.

    Prompts of others hold a request up, too: its own passes do not tell what more requests would wait for. ``values``
    holds `OF_REPLICA`.
    """
    weight = np.ravel(values["load_weight"])
    by_load = [np.resize(np.ravel(values[name]), weight.size) for name in OF_REPLICA[-4:-1]]
    prompt, steps, going_on = (float(np.sum(value * weight)) for value in by_load)
    prefill, step = (pass_parts(values, which) for which in ("prefill", "decode"))
    added = {name: max(prefill[name] - going_on * step[name], 0.0) for name in prefill}
    whole, each = (sum(parts.values()) or 1.0 for parts in (added, step))
    return {name: prompt * added[name] / whole + steps * step[name] / each for name in added}
