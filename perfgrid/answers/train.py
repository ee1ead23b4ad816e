"""``perfgrid.train``: the best way to train a model on given devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import xarray as xr

from perfgrid.catalog import Catalog
from perfgrid.catalog.units import number_or_text
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.hardware.device import FORMATS

from .answer import answered
from .headroom import kept_free, of_devices
from .origins import Origin, of_all, origin
from .question import SCALED, format_of, plain, question, rounded, stated

# Of a step, if no batch is stated: Llama 3 405B took 4, then 8, then 16 million (grattafiori2024llama3).
BATCH_TOKENS = 2**23
SEQUENCE = 8192
TOKENS = 1e12
PRECISION = "bf16"
OUTPUTS = (
    "step_time",
    "training_time",
    "cost_per_training_run",
    "tokens_per_second",
    "causal_model_flops_utilization",
    "model_flops_utilization",
    "hardware_flops_utilization",
    "usable_peak_rate",
    "cost_per_device_hour",
    "memory_per_device",
    "state_memory",
    "activation_memory",
    "working_memory",
    "reserved_memory",
    "hbm_capacity",
    "step_energy",
)


def train(
    model: str | Path,
    on: str | Sequence[str],
    devices: int | str | Sequence[int | str],
    batch: int | str | None = None,
    sequence: int | str | None = None,
    tokens: float | str | None = None,
    precision: str | None = None,
    topology: str | None = None,
    software: str | None = None,
    minimize: str | None = None,
    maximize: str | None = None,
    lora: int | str = 0,
    within: float | str | None = None,
    budget: float | str | None = None,
    price: float | str | Sequence[float | str] | None = None,
    catalog: Catalog | str | Path | Sequence[str | Path] | None = None,
    headroom: float | str | None = None,
) -> xr.Dataset:
    """The best design to train a model, for every device and number of devices.

    Searches layouts (tensor, pipeline, context, expert and data parallelism, chunks), microbatch, recomputation,
    sharding and the pipeline schedules that the software offers.

    Parameters
    ----------
    model
        A model of the catalog, a ``config.json`` or a folder with one.
    on, devices
        Devices of the catalog, and how many of them.
    batch, sequence
        Sequences of a step (default: about 8 million tokens) and tokens of a sequence (default: 8192, or what the model
        is made for): numbers, or text such as "32k", which are 32,768 tokens of a sequence.
    tokens
        Tokens of the whole run: a number, or text such as "15T". Default: 1T.
    precision
        Of matrix products: bf16, fp8, ..., also mxfp8, nvfp4 and mxfp4, which name the scales of operands, too.
        Default: bf16.
    topology, software
        Default: those in which each device is mostly used.
    minimize, maximize
        The quantity that decides. Default: the least ``step_time``.
    lora
        Rank of low-rank adapters beside frozen weights; 0 trains all weights.
    within, budget
        Limits on the time and on the cost of the whole run: seconds and USD, or text with a unit such as "30 d".
    price
        Rent of a device in USD per hour, or one for each device; every hour that is paid is used. Default: the devices
        are owned.
    catalog
        A loaded catalog, or catalog files to add to the built-in one.
    headroom
        Part of the device memory that stays free. Default: what records of the software's kind ask for, so that a
        design fits with 90 % probability (``python -m tools.validation.memory_errors``).

    Returns
    -------
    xarray.Dataset
        On (system, devices): the quantities of the best design with units, its labels, the interval of its step time,
        what bounds it, other designs within the model's error, what excludes the rest, and the best design that fits
        only without the headroom.

    Raises
    ------
    PerfgridError
        For an unknown name, with the nearest ones, and an illegal value.
    """
    batch, sequence, tokens, lora, within, budget = plain(batch, sequence, tokens, lora, within, budget)
    batch = cast(int | None, stated(batch, "global_batch", "batch"))
    sequence = cast(int | None, stated(sequence, "sequence_length", "sequence"))
    tokens, lora = cast(float | None, stated(tokens, "training_tokens", "tokens")), stated(lora, "lora_rank", "lora")
    precision, scaled = (None, {}) if precision is None else format_of(precision, products=True)
    if precision is not None and precision not in FORMATS:
        legal = ", ".join((*FORMATS, *SCALED))
        raise PerfgridError(f"precision {precision!r}: matrix products are in one of {legal}")
    origins: dict[str, Origin] = {
        "sequence_length": origin("--sequence", sequence, f"{SEQUENCE:,}, or what the model is made for"),
        "global_batch": origin("--batch", batch, "about 8 million tokens a step"),
        "training_tokens": origin("--tokens", tokens, "1 T"),
        "precision": origin("--precision", precision, PRECISION),
        "training_time_limit": origin("--within", within, "no limit"),
        "training_cost_limit": origin("--budget", budget, "no limit"),
        "lora_rank": origin("--lora", lora or None, "all weights are trained"),
    }
    origins |= {name: ("stated", "--precision") for name in scaled}
    origins["headroom"] = origin("--headroom", headroom, "by the memory_error of the software")
    asked = question(model, on, devices, topology, software, catalog, price)
    free = of_devices(asked, headroom)
    decisive, least = asked.objective(minimize, maximize, "step_time", True)
    assumed: dict[str, str] = {}
    if sequence is None:
        sequence = min(SEQUENCE, asked.context or SEQUENCE)
        assumed["sequence"] = f"sequences of {sequence:,} tokens"
    if batch is None:
        batch = asked.batch(BATCH_TOKENS // max(1, sequence))
        sizes = ", ".join(f"{size:,}" for size in asked.sizes)
        near = "" if batch * sequence == BATCH_TOKENS else f", near {rounded(BATCH_TOKENS)}"
        about = f"{rounded(batch * sequence)} tokens{near}, divisible among {sizes} devices"
        assumed["batch"] = f"{batch:,} sequences a step ({about})"
    if tokens is None:
        tokens = TOKENS
        assumed["tokens"] = f"{rounded(tokens)} tokens in the whole run"
    if precision is None:
        precision = PRECISION
        assumed["precision"] = f"matrix products in {precision}"
    if headroom is None:
        assumed["headroom"] = kept_free(free)
    if tokens < batch * sequence:
        raise PerfgridError(f"{tokens:g} tokens are fewer than those of a step: {batch:,} sequences of {sequence:,}")
    parameters: dict[str, Any] = {"sequence_length": sequence, "global_batch": batch, "training_tokens": tokens}
    if asked.number("window") or asked.number("index_layers"):  # a ring sees all keys of full attention alone
        parameters["cp_method"] = "all_gather"
        origins["cp_method"] = ("implied", "the model has windows")
    limits = {"training_time_limit": within, "training_cost_limit": budget}
    parameters |= {"precision": precision} | scaled | ({"lora_rank": lora} if lora else {})
    parameters |= {name: number_or_text(value) for name, value in limits.items() if value is not None}
    systems = asked.systems
    if any(free.values()):
        systems["zip"]["headroom"] = [*free.values()]
    schedules = asked.schedules()
    searched = {"schedule": schedules} if len(schedules) > 1 else {}
    content = {
        "title": f"Training of {asked.heading}",
        "outputs": asked.outputs(decisive, *OUTPUTS),
        "dtype": "float64",
        "axes": {
            "model": [asked.model.name],
            "system": systems,
            "recompute": ["none", "selective", "full"],
            "zero": [1, 2, 3],
            **searched,
            "microbatch": [1, *(m for m in (2, 4, 8, 16) if m <= batch)],
            "parallelism": asked.layouts(sequence),
        },
        "workload_parameters": parameters,
        "best": {
            "over": ["parallelism", "microbatch", "recompute", "zero", *searched],
            "minimize" if least else "maximize": decisive,
        },
    }
    steps = f"{tokens / max(1, batch * sequence):,.0f} steps of {batch:,} sequences of {sequence:,}"
    scales = "".join(f" with {scaling} scales" for scaling in scaled.values())
    words = [f"{rounded(tokens)} tokens in {steps}", f"{precision}{scales}"]
    words += [f"adapters of rank {lora} (LoRA)"] if lora else []
    words += [f"within {within if isinstance(within, str) else f'{within:g} s'}"] if within is not None else []
    if budget is not None:
        paid = budget if isinstance(budget, str) else f"{budget:,g}"
        words.append(f"for at most {paid}{'' if '$' in paid or 'USD' in paid else ' $'}")
    details = ", ".join(words)
    warnings = [*asked.warnings(sequence, "a sequence"), *asked.partly_used()]
    origins |= of_all(content["best"]["over"])
    values = {"batch": batch, "sequence": sequence, "tokens": tokens, "precision": precision}
    values |= {"lora": lora, "within": within, "budget": budget, "headroom": free}
    found = answered(
        asked,
        content,
        decisive,
        least,
        assumed=assumed,
        warnings=warnings,
        details=details,
        question=asked.stated(**values),
        origins=origins,
    )
    return found.assign_attrs(precision=precision)
