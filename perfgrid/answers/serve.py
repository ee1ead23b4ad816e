"""``perfgrid.serve``: the best way to serve a model on given devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import xarray as xr

from perfgrid.catalog import Catalog
from perfgrid.engine.errors import PerfgridError

from .answer import answered
from .budgets import budget_axis
from .headroom import HEADROOM, KEPT_FREE, headroom_of
from .origins import Origin, of_all, origin
from .question import SCALED, format_of, in_quarters, plain, question, stated
from .search import BUDGET, STAGES
from .stacks import check_serves, engine_named

COST = "cost_per_million_output_tokens"
LATENCY = "request_latency"
FIRST = "time_to_first_token"
NEARLY_EQUAL = 0.02  # of the objective: less than the error of any prediction
PER_DEVICE = "output_tokens_per_second_per_device"
PER_USER = "output_tokens_per_second_per_user"
OUTPUTS = (
    COST,
    PER_DEVICE,
    "output_tokens_per_second",
    PER_USER,
    "time_to_first_token",
    "time_per_output_token",
    "request_latency",
    "running_batch",
    "memory_per_device",
    "weight_memory",
    "kv_cache_memory",
    "recurrent_state_memory",
    "workspace_memory",
    "reserved_memory",
    "communicator_memory",
    "graph_memory",
    "hbm_capacity",
    "memory_limit",
    "cache_capacity_tokens",
    "fitting_sequences",
    "fitting_context",
    "energy_per_output_token",
    "cost_per_device_hour",
)
STATISTICS = ("p50", "p90", "p99")
SPREAD = ("time_to_first_token", "time_per_output_token", "inter_token_latency", "request_latency")  # of these
PERCENTILES = tuple(f"{name}_{percentile}" for name in SPREAD for percentile in STATISTICS)
ALIKE = "all prompts have the same length, and so have all answers"
PROMPT, OUTPUT = 1000, 500  # tokens, if none are stated
PER_CLIENT = 10  # requests of each client, if their number is not stated
NODE = (1, 2, 4, 8)  # devices that are tried if no number is stated
FLEET = (*range(1, 65), *range(72, 513, 8))  # and for a rate of requests
LARGEST_LOAD = 0.9  # of a recommended design: near its capacity a few percent decide whether a queue grows without end
SPARE = f"a design is loaded to {LARGEST_LOAD:.0%} of its capacity at most"
MOST_PER_DEVICE = 1024  # sequences at once, of the batches that are searched


def serve(
    model: str | Path,
    on: str | Sequence[str],
    devices: int | str | Sequence[int | str] | None = None,
    prompt: int | str | None = None,
    output: int | str | None = None,
    ttft: float | str | None = None,
    tpot: float | str | None = None,
    rate: float | str | None = None,
    clients: int | str | None = None,
    requests: int | str | None = None,
    variation: float | str | Sequence[float | str] | None = None,
    statistic: str = "mean",
    precision: str | None = None,
    topology: str | None = None,
    engine: str | None = None,
    minimize: str | None = None,
    maximize: str | None = None,
    price: float | str | Sequence[float | str] | None = None,
    catalog: Catalog | str | Path | Sequence[str | Path] | None = None,
    software: str | None = None,
    largest_load: float | str | None = None,
    headroom: float | str | None = None,
) -> xr.Dataset:
    """The best deployment to serve a model, for every device.

    Parameters
    ----------
    model
        A model of the catalog, a ``config.json`` or a folder with one.
    on, devices
        Devices of the catalog, and how many of them. Default: to 8; with ``rate`` to 512, above 64 in multiples of 8.
    prompt, output
        Tokens of a request: numbers, or text such as "8k", which are 8,192 tokens. Default: 1000 and 500.
    ttft, tpot
        Limits on the time to the first token and per further token.
    rate
        Requests per second that arrive at random: the best deployment of any size is looked for.
    clients
        Clients that each ask again when they have their answer, all at once in the beginning. Without them and a rate
        the number of requests in progress is chosen, too.
    requests
        Requests of all clients. Default: ten of each.
    variation
        Coefficient of variation of the lengths of prompts and answers, or one for prompts and one for answers; they are
        lognormal. Default: all prompts and all answers are alike.
    statistic
        What keeps the limits: the mean, or p50, p90 or p99 of the requests of a rate or of clients.
    precision
        Of weights, cache and matrix products: bf16, fp8, ... Default: weights as published, products in 8 bits where
        weights have these and the device multiplies them, otherwise in 16 bits, cache in 16 bits.
    topology
        Default: that in which each device is mostly sold.
    engine
        vllm, sglang, tensorrt-llm, ..., also with a version ("vLLM 0.11"); brackets state its policy:
        "sglang[prefill_first=false]". Default: that with which each device is mostly used. ``software`` is its
        former name.
    minimize, maximize
        The quantity that decides. Default: most tokens per second of a device; with a rate least cost of tokens, and of
        one number of devices, whose layouts all cost the same, least time to the last token.
    price
        Rent of a device in USD per hour, or one for each device. Default: the devices are owned.
    catalog
        A loaded catalog, or catalog files to add to the built-in one.
    largest_load
        Largest part of its capacity at which a design serves the rate; without one, of the room that iterations have
        for prompts. Default: 0.9.
    headroom
        Part of the device memory that stays free of what the engine may use. Default: 0.02, so that 9 of 10 launches
        in public logs have the cache that is predicted (``python -m tools.validation.server_memory``).

    Returns
    -------
    xarray.Dataset
        As of `train`; with a rate along ``system`` alone, with ``size`` devices; without one also the designs between
        tokens per second of a device and of a user, along ``frontier``.

    Raises
    ------
    PerfgridError
        For an unknown name, with the nearest ones, software that serves no models, an illegal value, a rate beside a
        number of clients, and requests, a percentile or a load without what makes them.
    """
    prompt, output, ttft, tpot, rate, clients, requests = plain(prompt, output, ttft, tpot, rate, clients, requests)
    prompt = cast(int | None, stated(prompt, "prompt_tokens", "prompt"))
    output = cast(int | None, stated(output, "output_tokens", "output"))
    rate, clients = stated(rate, "request_rate", "rate"), stated(clients, "batch", "clients", whole=True)
    requests = stated(requests, "loop_requests", "requests")
    load, free = load_of(largest_load, clients), headroom_of(headroom)
    named, precision = precision, None if precision is None else format_of(precision)[0]
    of_precision = "--precision" if named == precision else f"--precision {named}"
    origins: dict[str, Origin] = {
        "prompt_tokens": origin("--prompt", prompt, f"{PROMPT:,}"),
        "output_tokens": origin("--output", output, f"{OUTPUT:,}"),
        "time_to_first_token_limit": origin("--ttft", ttft, "no limit"),
        "time_per_output_token_limit": origin("--tpot", tpot, "no limit"),
        "request_rate": origin("--rate", rate, "none"),
        "largest_load": origin("--largest-load", largest_load, f"{LARGEST_LOAD:g}"),
        "headroom": origin("--headroom", headroom, f"{HEADROOM:g}"),
        "loop_requests": origin("--requests", requests, f"{PER_CLIENT} of each client"),
        "batch_rule": ("implied", "--rate, --clients or neither"),
        "launched_for_batch": ("implied", "without --rate a server is started for its sequences"),
        "limit_statistic": origin("--statistic", None if statistic == "mean" else statistic, "mean"),
        "prompt_variation": origin("--variation", variation, "all are of one length"),
        "output_variation": origin("--variation", variation, "all are of one length"),
        "length_distribution": origin("--variation", variation, "all are of one length"),
        "weight_precision": origin(of_precision, precision, "as published"),
        "kv_precision": origin(of_precision, precision, "as published"),
        "precision": origin(of_precision, precision, "8 bits where weights and device have them, otherwise 16"),
        "quantised_attention": ("implied", "the published format, if it has fewer than 16 bits"),
    }
    if named is not None and named.lower() in SCALED:
        origins["scaling"] = ("implied", of_precision)
    (prompt, output), lengths = lengths_of(prompt, output)
    if rate is not None and clients is not None:
        raise PerfgridError("state either the rate of requests or the number of clients, not both")
    if requests is not None and clients is None:
        raise PerfgridError("a number of requests needs the number of clients that ask them")
    check_statistic(statistic, ttft, tpot)
    arriving = rate is not None or clients is not None
    if statistic != "mean" and not arriving:
        raise PerfgridError(f"{statistic} of requests needs their rate or the number of clients")
    asked = question(
        *(model, on, (NODE if rate is None else FLEET) if devices is None else devices, topology),
        *(engine_named(engine, software), catalog, price, "inference"),
    )
    check_serves(asked)
    weighed = rate is not None
    usual = (COST if len(asked.sizes) > 1 else LATENCY) if weighed else PER_DEVICE
    decisive, least = asked.objective(minimize, maximize, usual, weighed)
    if weighed and (decisive, least) == ("devices", True):  # of which the tokens per second of a device say the same
        decisive, least = PER_DEVICE, False
    limits = {"time_to_first_token_limit": ttft, "time_per_output_token_limit": tpot}
    products = asked.products(asked.published) if precision is None else [precision] * len(asked.devices)
    parameters: dict[str, Any] = {"prompt_tokens": prompt, "output_tokens": output}
    parameters |= {"headroom": free} if free else {}
    parameters |= asked.stored(precision)
    parameters |= {name: value for name, value in limits.items() if value is not None}
    if rate is not None:
        parameters |= {"batch_rule": "rate", "request_rate": rate, "largest_load": load}
    elif clients is not None:
        parameters |= {"batch_rule": "clients", "loop_requests": PER_CLIENT * clients if requests is None else requests}
        parameters |= {"launched_for_batch": True}
    else:
        parameters |= {"batch_rule": "concurrency", "largest_load": load, "launched_for_batch": True}
    parameters |= {"limit_statistic": statistic} if statistic != "mean" else {}
    varied = variations(variation, arriving)
    parameters |= varied
    systems = asked.systems
    systems["zip"]["precision"] = products
    axes = {"model": [asked.model.name], "system": systems, "parallelism": asked.layouts()}
    if rate is None:
        axes["batch"] = in_quarters(MOST_PER_DEVICE * max(asked.sizes)) if clients is None else [clients]
    budgets, condition = budget_axis(asked, arriving)
    axes |= {} if budgets is None else {BUDGET: budgets}
    words = [f"prompts of {prompt:,} tokens, answers of {output:,}"]
    words += [precision] if precision is not None else []
    words += ["lengths that vary"] if varied else []
    words += [f"{rate:g} requests per second"] if rate is not None else []
    words += [f"{clients:,} clients"] if clients is not None else []
    words += [f"{requests:,} requests"] if requests is not None else []
    kept_within = {name: limit for name, limit in (("first token", ttft), ("token", tpot)) if limit is not None}
    of = f"{statistic} of " if statistic != "mean" else ""
    words += [f"{of}{name} within {at if isinstance(at, str) else f'{at:g} s'}" for name, at in kept_within.items()]
    content = {
        "title": f"Serving of {asked.heading}",
        "workload": "inference",
        "outputs": asked.outputs(decisive, *OUTPUTS, *(PERCENTILES if arriving else ())),
        "dtype": "float64",
        **({} if condition is None else {"where": condition}),
        "axes": axes,
        "workload_parameters": parameters,
        "best": {
            "over": [*(axis for axis in axes if axis not in ("model", "system")), *(["devices"] if weighed else [])],
            "minimize" if least else "maximize": decisive,
            "ties": [name for name in (STAGES, FIRST if clients is not None else LATENCY) if name != decisive],
            "within": NEARLY_EQUAL,
        },
    }
    weights, cache = asked.published_formats, parameters["kv_precision"]
    formats = (
        f"weights in {weights} as published, matrix products in {', '.join(dict.fromkeys(products))}, cache in {cache}"
    )
    assumed = lengths | ({"precision": formats} if precision is None else {})
    if arriving and variation is None:
        assumed["variation"] = ALIKE
    if clients is not None and requests is None:
        assumed["requests"] = f"{PER_CLIENT} requests of each client, the first of all at once"
    if rate is not None and devices is None:
        assumed["devices"] = f"1 to {FLEET[-1]} devices, above 64 in multiples of 8"
    if clients is None and largest_load is None:
        assumed["largest-load"] = SPARE
    if headroom is None:
        assumed["headroom"] = KEPT_FREE
    values = {"prompt": prompt, "output": output, "ttft": ttft, "tpot": tpot, "rate": rate, "clients": clients}
    values |= {"requests": parameters.get("loop_requests"), "variation": variation, "statistic": statistic}
    values |= {"largest_load": load} if clients is None else {}
    values |= {"headroom": free}
    values |= {"precision": precision, "weights": precision or weights, "products": products, "cache": cache}
    against = PER_USER if not weighed and (decisive, least) == (PER_DEVICE, False) else None
    warnings = asked.warnings(prompt + output, "prompt and answer")
    sizes = origin("--devices", devices, "those that are tried")
    searched = [*(axis for axis in axes if axis not in ("model", "system")), *(budgets["zip"] if budgets else ())]
    origins |= of_all(searched, sizes)
    if clients is not None:
        origins["batch"] = ("stated", "--clients")
    fleet = rate is not None and devices is None and (decisive, least) in ((COST, True), (PER_DEVICE, False))
    details, whole = ", ".join(words), asked.stated(**values)
    how = asked, content, decisive, least, weighed, against, assumed, warnings, details, whole, origins, fleet
    return answered(*how)


def load_of(largest_load: float | str | None, clients: object) -> float:
    """The largest load of a question. PerfgridError with clients, and for one that is not above 0 and at most 1."""
    if largest_load is None:
        return LARGEST_LOAD
    if clients is not None:
        raise PerfgridError("clients wait for their answers: a largest load is for a rate, or for a queue without end")
    load = stated(largest_load, "largest_load", "largest-load")
    if isinstance(load, bool) or not isinstance(load, int | float) or not 0 < load <= 1:
        raise PerfgridError(f"a largest load is a number above 0 and at most 1, found {largest_load!r:.40}")
    return float(load)


def check_statistic(statistic: str, ttft: float | str | None, tpot: float | str | None) -> None:
    """PerfgridError unless limits are stated for this statistic, or it is the mean."""
    if statistic not in ("mean", *STATISTICS):
        raise PerfgridError(f"limits are for mean, p50, p90 or p99, found {statistic!r:.40}")
    if statistic != "mean" and ttft is None and tpot is None:
        raise PerfgridError(
            f"{statistic} says what keeps a limit: state one of the first token (ttft) or a token (tpot)"
        )


def lengths_of(prompt: int | None, output: int | None) -> tuple[tuple[int, int], dict[str, str]]:
    """Tokens of a prompt and of an answer, and which of them nobody stated, by option."""
    lengths = (PROMPT if prompt is None else prompt, OUTPUT if output is None else output)
    assumed = {"prompt": f"prompts of {PROMPT:,} tokens"} if prompt is None else {}
    assumed |= {"output": f"answers of {OUTPUT:,} tokens"} if output is None else {}
    return lengths, assumed


def variations(variation: float | str | Sequence[float | str] | None, arriving: bool) -> dict[str, Any]:
    """The workload parameters of lengths that vary; empty where none is stated. PerfgridError for illegal ones."""
    if variation is None:
        return {}
    if not arriving:
        raise PerfgridError("lengths that vary need the rate of requests or the number of clients")
    parts = variation.split(",") if isinstance(variation, str) else variation
    every = list(parts) if isinstance(parts, Sequence) else [parts]
    given = [stated(one, "prompt_variation", "variation") for one in (every * 2 if len(every) == 1 else every)]
    if len(given) != 2 or any(isinstance(v, bool) or not isinstance(v, (int, float)) or not 0 <= v <= 2 for v in given):
        raise PerfgridError(
            f"a variation is a number from 0 to 2, or one of prompts and one of answers, found {variation!r:.40}"
        )
    prompt, output = map(float, given)
    return {"length_distribution": "lognormal", "prompt_variation": prompt, "output_variation": output}
