"""The kernels of a prefill pass and of a decoding step one after another, through all layers.

`kernel_table` says how often each kernel runs in a pass, and for how long. Here the runs follow each other layer by
layer, in the order in which a layer needs them. What only some layers run is spread evenly over them; dense layers of a
mixture of experts lead. Communication and the host, for which kernels wait, are spread likewise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import xarray as xr

from .kernel_table import PASSES, Kernel

NONE = -1  # layer of what runs outside of layers
BEFORE = ("embedding",)  # of the first layer
ATTENTION = ("qkv", "latent_norm", "query_up", "key_up", "latent_keys", "rotary", "indexers", "context_exchange")
ATTENTION = (*ATTENTION, "attention", "value_up", "attention_output")
MIXING = ("mixer_input", "mixer_inner", "mixers", "mixer_output")
EXPERTS = ("router", "routing", "shared_up", "shared_down", "shared_experts", "expert_up", "expert_down")
EXPERTS = (*EXPERTS, "exposed_exchange")
LAYER = (  # a name that stands twice runs twice in a layer
    *("norm", "quantising", *ATTENTION, *MIXING, "tp", "norm"),
    *("router", "routing", "exposed_exchange", "ffn_up", "shared_up", "expert_up", "activation"),
    *("ffn_down", "shared_down", "expert_down", "exposed_exchange", "shared_experts", "tp", "pipeline_transfer"),
)
AFTER = ("norm", "logits", "sampling", "late_launch", "host", "rest_of_step")  # the last layer
LEADING = ("ffn_up", "ffn_down")  # of the dense layers of a mixture of experts
TRACKS = {"communication": "communication", "host": "host"}  # of waits, by what for; all others are kernels


@dataclass(frozen=True)
class Run:
    """One run of a kernel, or one wait, in a layer."""

    name: str
    layer: int
    time: float
    bound_by: str


def pass_timeline(
    kernels: Iterable[Kernel], layers: int, stages: int, step_time: float, attributes: Mapping[str, Any]
) -> xr.Dataset:
    """What both passes run and wait for, along ``event``: pass, kind, name, layer, bound_by, start and end in seconds.

    ``step_time``: of a decoding step, of which a pass may be a part: what remains is waited for (``rest_of_step``).
    Attributes: ``prefill_pass_time``, ``decode_pass_time`` and ``decode_step_time``.
    """
    listed = list(kernels)
    whole = next(k.time for k in listed if k.part == "total")
    listed = [k for k in listed if k.part != "total"]
    if (rest := step_time - whole["decode"]) > 1e-9 * step_time:
        listed.append(Kernel("rest_of_step", "wait", 1.0, {"decode": rest}, {"decode": "other parts of the batch"}))
    rows: dict[str, list[Any]] = {name: [] for name in ("pass", "kind", "name", "layer", "bound_by", "start", "end")}
    for which in PASSES:
        runs = list(_runs(listed, which, layers, stages))
        ends = np.cumsum([run.time for run in runs])
        rows["pass"] += [which] * len(runs)
        rows["kind"] += [TRACKS.get(run.bound_by, "wait" if run.name == "rest_of_step" else "kernel") for run in runs]
        for name in ("name", "layer", "bound_by"):
            rows[name] += [getattr(run, name) for run in runs]
        rows["start"] += [0.0, *ends[:-1].tolist()]
        rows["end"] += ends.tolist()
    about = {
        "pass": {"long_name": "pass through all layers"},
        "kind": {"long_name": "kernel, communication, host or wait"},
        "layer": {"long_name": "layer; -1: outside of layers"},
        "bound_by": {"long_name": "resource with the largest share of it"},
        "start": {"long_name": "start", "units": "s"},
        "end": {"long_name": "end", "units": "s"},
    }
    times = {f"{which}_pass_time": whole[which] for which in PASSES} | {"decode_step_time": step_time}
    return xr.Dataset(
        {name: ("event", np.array(values), about.get(name, {})) for name, values in rows.items()},
        attrs={**attributes, **times},
    )


def _runs(kernels: Sequence[Kernel], which: str, layers: int, stages: int) -> Iterator[Run]:
    """What a pass runs, in order; all runs of a kernel together take ``runs`` times its ``time``."""
    often = {k.name: ceil(k.runs - 1e-9) for k in kernels}
    own = {k.name: k for k in kernels if k.time.get(which)}
    plans = {name: _plan(kernel, often, layers, stages) for name, kernel in own.items()}

    def run(name: str, layer: int, times: int) -> list[Run]:
        kernel = own[name]
        length = kernel.runs * kernel.time[which] / plans[name].total()
        return [Run(name, layer, length, kernel.bound_by[which])] * times

    unknown = [name for name in own if name not in (*BEFORE, *LAYER, *AFTER)]  # of formulas that are not perfgrid's
    for name in BEFORE:
        if name in own:
            yield from run(name, NONE, plans[name][NONE])
    for layer in range(layers):
        left = Counter({name: plans[name][layer] for name in own})
        for place, name in enumerate(sequence := (*LAYER, *unknown)):
            times = ceil(left[name] / sequence[place:].count(name))
            left[name] -= times
            yield from run(name, layer, times) if times else ()
    for name in AFTER:
        if name in own:
            yield from run(name, NONE, plans[name][NONE])


def _plan(kernel: Kernel, often: Mapping[str, int], layers: int, stages: int) -> Counter[int]:
    """How often a kernel, or a wait, runs in each layer, and outside of them."""
    name = kernel.name
    if name in (*BEFORE, *AFTER) and name not in LAYER:
        return Counter({NONE: 1})
    count, each = often[name], 1
    if kernel.part == "wait":  # stated for the whole pass
        of = {"context_exchange": often.get("attention"), "exposed_exchange": often.get("expert_up")}
        count = (of | {"pipeline_transfer": stages - 1}).get(name) or layers
        each = max(LAYER.count(name), 1)
    whole, more = divmod(count, layers)
    plan = Counter(dict.fromkeys(range(layers), whole * each))
    plan.update({NONE: more} if name in AFTER else dict.fromkeys(_some_layers(name, more, often, layers), each))
    return plan


def _some_layers(name: str, count: int, often: Mapping[str, int], layers: int) -> Iterable[int]:
    """So many layers: evenly spread, the last one among them, where nothing else is known of them."""
    spread = [layer for layer in range(layers) if (layer + 1) * count // layers > layer * count // layers]
    if name in LEADING and "expert_up" in often:
        return range(count)
    if name in EXPERTS and 2 * count > layers:  # dense layers lead
        return range(layers - count, layers)
    if name == "pipeline_transfer":  # behind all stages but the last
        return list(_some_layers("", count + 1, often, layers))[:-1]
    if name in MIXING and often.get("attention", 0) + count == layers:
        return sorted(set(range(layers)) - set(_some_layers("attention", layers - count, often, layers)))
    return spread
