"""``perfgrid.serve``: the best way to serve a model on given devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError

from .answer import answered
from .question import question

COST = "cost_per_million_output_tokens"
PER_DEVICE = "output_tokens_per_second_per_device"
OUTPUTS = (
    COST,
    PER_DEVICE,
    "output_tokens_per_second",
    "output_tokens_per_second_per_user",
    "time_to_first_token",
    "time_per_output_token",
    "request_latency",
    "running_batch",
    "memory_per_device",
    "weight_memory",
    "kv_cache_memory",
    "workspace_memory",
    "reserved_memory",
    "hbm_capacity",
    "energy_per_output_token",
)
NODE = (1, 2, 4, 8)  # devices that are tried if no number is stated
FLEET = (*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64)  # and for a rate of requests
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TP = (1, 2, 4, 8, 16)


def serve(
    model: str | Path,
    on: str | Sequence[str],
    devices: int | Sequence[int] | None = None,
    prompt: int = 1000,
    output: int = 500,
    ttft: float | str | None = None,
    tpot: float | str | None = None,
    rate: float | None = None,
    clients: int | None = None,
    precision: str = "bf16",
    topology: str | None = None,
    software: str | None = None,
    catalog: Catalog | str | Path | Sequence[str | Path] | None = None,
) -> xr.Dataset:
    """The best deployment to serve a model, for every device.

    Parameters
    ----------
    model
        A model of the catalog, a ``config.json`` or a folder with one.
    on, devices
        Devices of the catalog, and how many of them. Default: up to a node; with ``rate`` up to 64.
    prompt, output
        Tokens of a request.
    ttft, tpot
        Limits on the time to the first token and per further token.
    rate
        Requests per second that arrive at random: the cheapest deployment is looked for, whatever its size.
    clients
        Requests that are in progress at any time. Without it and a rate the number is chosen, too.
    precision
        Of weights, cache and matrix products: bf16, fp8, ...
    topology, software
        Default: those in which each device is mostly used.
    catalog
        A loaded catalog, or catalog files to add to the built-in one.

    Returns
    -------
    xarray.Dataset
        As of `train`; with a rate along ``system`` alone, with ``size`` devices.

    Raises
    ------
    PerfgridError
        For an unknown name, with the nearest ones, an illegal value, and a rate beside a number of clients.
    """
    if rate is not None and clients is not None:
        raise PerfgridError("state either the rate of requests or the number of clients, not both")
    asked = question(
        model, on, (NODE if rate is None else FLEET) if devices is None else devices, topology, software, catalog
    )
    limits = {"time_to_first_token_limit": ttft, "time_per_output_token_limit": tpot}
    parameters: dict[str, Any] = {"prompt_tokens": prompt, "output_tokens": output, "precision": precision}
    parameters |= {"weight_precision": precision, "kv_precision": precision}
    parameters |= {name: value for name, value in limits.items() if value is not None}
    parameters |= {"batch_rule": "concurrency"} if rate is None else {"batch_rule": "rate", "request_rate": rate}
    axes = {"model": [asked.model.name], "system": asked.systems, "parallelism": asked.layouts()}
    if rate is None:
        axes["batch"] = list(BATCHES) if clients is None else [clients]
    least = rate is not None
    objective = COST if least else PER_DEVICE
    content = {
        "title": f"Serving of {asked.model.title}",
        "workload": "inference",
        "outputs": list(dict.fromkeys((objective, *OUTPUTS))),
        "dtype": "float64",
        "axes": axes,
        "workload_parameters": parameters,
        "best": {
            "over": [*(axis for axis in axes if axis not in ("model", "system")), *(["devices"] if least else [])],
            "minimize" if least else "maximize": objective,
        },
    }
    return answered(asked, content, objective, least, weighed=least)
