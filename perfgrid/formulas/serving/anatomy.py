"""What a request waits for, as parts that add up to the work done for it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfgrid.formulas.axes import INNER

PARTS = ("kernels", "communication", "host", "late_launch")
QUANTITIES = (*(f"{which}_{part}_time" for which in ("prefill", "decode") for part in PARTS), "decode_steps")


def request_parts(values: Mapping[str, Any], steps: float | None = None) -> dict[str, float]:
    """Time of the prefill and of all steps of a request in s, by resource, for other ranks, and for the host.

    ``values`` holds `QUANTITIES`; ``steps`` counts other than all of its steps (0: the prefill only).
    """
    steps = float(np.squeeze(values["decode_steps"])) if steps is None else steps

    def added_up(part: str) -> Any:
        return np.ravel(values[f"prefill_{part}_time"]) + steps * np.ravel(values[f"decode_{part}_time"])

    kernels = zip(INNER.labels["resource"], added_up("kernels"), strict=True)
    host = added_up("host") + added_up("late_launch")
    others = {"communication_time": added_up("communication").item(), "host_time": host.item()}
    return {f"{name}_time": float(t) for name, t in kernels} | others
