"""What a request waits for, as parts that add up to the work done for it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfgrid.formulas.axes import INNER

QUANTITIES = (  # that the parts are made of
    *(f"{which}_{part}_time" for which in ("prefill", "decode") for part in ("kernels", "communication", "host")),
    "decode_steps",
)


def request_parts(values: Mapping[str, Any], steps: float | None = None) -> dict[str, float]:
    """Time of the prefill and of all steps of a request in s, by resource, for other ranks, and for the host.

    ``values`` holds `QUANTITIES`; ``steps`` counts other than all of its steps (0: the prefill only).
    """
    steps = float(np.squeeze(values["decode_steps"])) if steps is None else steps

    def added_up(part: str) -> Any:
        return np.ravel(values[f"prefill_{part}_time"]) + steps * np.ravel(values[f"decode_{part}_time"])

    kernels = zip(INNER.labels["resource"], added_up("kernels"), strict=True)
    others = {f"{part}_time": added_up(part).item() for part in ("communication", "host")}
    return {f"{name}_time": float(t) for name, t in kernels} | others
