"""The physics' pipeline of given layer, embedding and head times: the closed forms alone, without kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfgrid.formulas.axes import table

from .cases import LABELS, graph

PARTS = ("layer", "embedding", "head")
STAGES = ("first", "middle", "last")
WANTED = (
    "slowest_stage_time",
    "bubble_time",
    "exposed_pp_time",
    "layers_interleave",
    "layers_suffice",
    *(f"{stage}_stage_{what}" for stage in STAGES for what in ("in_flight", "layers", "embeddings", "heads")),
)


def closed(
    schedule: str,
    layers: int,
    pp: int,
    chunks: int,
    microbatches: int,
    forward: Sequence[float],
    backward: Sequence[float],
    transfer: float = 0.0,
    weight: Sequence[float] | None = None,
    unpaired: float = 0.0,
) -> dict[str, float]:
    """What the physics says of one step; ``backward`` includes ``weight``, the weight gradients (half if not given).

    ``unpaired``: exchange with experts of a layer that a pass waits for if no other runs beside it.
    """
    found = {
        "layers": float(layers),
        "pp": float(pp),
        "chunks": float(chunks),
        "microbatches": float(microbatches),
        "schedule": float(LABELS["schedule"].index(schedule)),
        "stage_transfer_time": transfer,
        "unpaired_ep_time": unpaired,
        "mtp_layers": 0.0,
        "head_layers": 0.0,
        "expert_layer_step": 1.0,
    }
    for part, f, b, w in zip(PARTS, forward, backward, weight or [b / 2 for b in backward], strict=True):
        found |= {
            f"{part}_forward_time": f,
            f"{part}_time": f + b,
            f"{part}_pass_times": table("phase", forward=f, input_gradient=b - w, weight_gradient=w),
        }

    def value(name):
        if name not in found:
            node = graph().nodes[name]
            found[name] = node.function(*(value(a) for a in node.arguments))
        return found[name]

    return {name: np.asarray(value(name)).item() for name in WANTED}
