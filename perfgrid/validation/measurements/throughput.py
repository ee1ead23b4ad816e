"""The time of a training step from what logs and tables state in its place: tokens, samples, FLOP/s or MFU."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from perfgrid.engine.errors import PerfgridError
from perfgrid.results.evaluate import evaluate
from perfgrid.study.study import Study

from .setup import Setup

RATES = ("tokens_per_second", "samples_per_second", "mfu", "model_flops")
COUNTED = "FLOPs of the model are counted as Megatron-LM does: backward twice forward, causal attention in full"


def step_time(setup: Setup, quantity: str, value: float, per_device: bool = False) -> tuple[float, str | None]:
    """Seconds of a step, and how they follow. PerfgridError where batch, length or devices are not stated.

    ``value``: s, 1/s, FLOP/s (of a device) or a share; ``per_device``: a rate of one device.
    """
    if quantity == "step_time":
        return value, None
    batch = setup.needed("global_batch")
    devices = setup.needed("devices") if per_device or quantity in ("mfu", "model_flops") else 1
    each = " x devices" if per_device else ""
    if quantity == "samples_per_second":
        return batch / (value * devices), f"global_batch / (samples per second{each})"
    tokens = batch * setup.needed("sequence_length")
    if quantity == "tokens_per_second":
        return tokens / (value * devices), f"global_batch x sequence_length / (tokens per second{each})"
    work = tokens * flops_per_token(setup)
    if COUNTED not in setup.assumed:
        setup.assumed.append(COUNTED)
    if quantity == "model_flops":
        return work / (value * devices), "FLOPs of the model in a step / (FLOP/s of a device x devices)"
    precision = str(setup.values.get("precision", "bf16"))
    peak = cast(float, setup.catalog.entry("device", setup.device).values.get(f"peak_{precision}_rate", 0.0))
    if not peak:
        raise PerfgridError(f"{setup.where}: {setup.device} has no peak rate in {precision}, of which MFU is a share")
    return work / (value * peak * devices), f"FLOPs of the model in a step / (MFU x peak rate in {precision} x devices)"


def flops_per_token(setup: Setup) -> float:
    """FLOPs of the model per token, forward and backward, at the sequence length of a setup."""
    entry = setup.entry
    models = setup.catalog.tables["model"]
    catalog = replace(setup.catalog, tables={**setup.catalog.tables, "model": {**models, entry.name: entry}})
    study = Study.make(
        catalog,
        outputs=["model_flops_per_token"],
        dtype="float64",
        axes={"model": [entry.name], "device": [setup.device], "parallelism": {"devices": [1], "tp": [1], "pp": [1]}},
        workload_parameters={"sequence_length": setup.needed("sequence_length"), "global_batch": 1},
    )
    return float(np.squeeze(evaluate(study)["model_flops_per_token"].values))
