"""A network that many share: what one device has of it falls with the number of nodes that a group spans."""

from typing import Any

import numpy as np
import pytest

from perfgrid.calculators.collective import collective_time
from perfgrid.catalog import load_catalog
from tests.physics.cases import design, rows

FABRIC, DEVICE = "hgx-h100-efa-shared", "h100-sxm-80gb"
NODES = (2, 4, 8, 16, 32, 64)
SIZE = 256e6
MEASURED = {  # bus bandwidth in GB/s, medians of the figure of tazi2025ultrascale (in "Pipeline parallelism")
    "all_reduce": (361.75, 160.14, 99.56, 84.74, 64.93, 32.94),
    "all_gather": (184.61, 118.97, 69.00, 54.97, 27.97, 11.04),
    "reduce_scatter": (181.55, 115.76, 68.55, 54.52, 27.94, 11.07),
}
CATALOG = load_catalog()
POWER: Any = CATALOG.entry("topology", FABRIC).values["congestion"]


def errors(congestion):
    """ln(predicted / measured) bandwidth of every measured collective."""
    d: Any = CATALOG.entry("device", DEVICE).values
    up, out = (d[f"{tier}_bandwidth"] * d[f"{tier}_efficiency"] for tier in ("scale_up", "scale_out"))
    found = []
    for collective, measured in MEASURED.items():
        for nodes, bandwidth in zip(NODES, measured, strict=True):
            tiers = [
                {"kind": "switch", "shape": [8], "bandwidth": up},
                {"kind": "rail", "shape": [nodes], "bandwidth": out * nodes**-congestion},
            ]
            topology = {"tiers": tiers, "library": FABRIC, "device": DEVICE}
            time = collective_time(collective=collective, topology=topology, size=SIZE, algorithm="library")
            moved = (2 if collective == "all_reduce" else 1) * SIZE * (8 * nodes - 1) / (8 * nodes)
            found.append(np.log(moved / time / 1e9 / bandwidth))
    return np.array(found)


def test_the_power_is_that_of_the_measured_collectives():
    """Least squares over 18 medians; without congestion the median error is a factor of 2.5."""
    powers = np.arange(0.4, 0.81, 0.05)
    squares = [np.sum(errors(power) ** 2) for power in powers]
    assert powers[int(np.argmin(squares))] == pytest.approx(POWER, abs=0.051)
    assert np.median(np.abs(errors(POWER))) < 0.2
    assert np.median(np.abs(errors(0.0))) > 0.9


def test_groups_have_less_the_more_nodes_they_span():
    layout = {"tp": 8.0, "pp": 1.0, "dp": 8.0, "devices": 64.0, "global_batch": 64.0}
    alone = design("llama-2-7b", DEVICE, "hgx-h100-efa-400g", **layout)
    shared = design("llama-2-7b", DEVICE, FABRIC, **layout)
    assert shared["tp_tier_bandwidth"] == pytest.approx(alone["tp_tier_bandwidth"])  # inside a node
    ratio = [
        s / a
        for s, a in zip(*(rows(q["replica_tier_bandwidth"], "tier").values() for q in (shared, alone)), strict=True)
    ]
    assert ratio == pytest.approx([1.0, 8.0**-POWER])
    assert shared["step_time"] > alone["step_time"]
