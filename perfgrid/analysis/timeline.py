"""A timeline of one design: what the devices of a training pipeline do and hold, or the kernels of serving passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.explanation.derivation import Violated, violated_at
from perfgrid.engine.errors import PerfgridError
from perfgrid.engine.grid.replay import index_of, point_of, replay_point
from perfgrid.formulas import INNER
from perfgrid.formulas.axes import of_kinds
from perfgrid.formulas.transformer.layer_kinds import run_of_layers
from perfgrid.results.provenance import designs, workload_of
from perfgrid.study.study import Study

from .best_design import best_design
from .execution import PASSES, Event, execute
from .held_memory import QUANTITIES, constant_memory, held_at, memory_of_events, microbatch_memory
from .kernel_table import kernels
from .pass_timeline import pass_timeline

PARTS = ("layer", "embedding", "head")
COUNTS = ("pp", "chunks", "microbatches", "layers", "stage_layers", "first_missing_layers", "last_missing_layers")
NEEDED = {"training": COUNTS, "inference": ("pass_time",)}
OF_PASSES = ("decode_step_time", "layers", "pp")


def timeline(
    what: Study | xr.Dataset, at: Mapping[str, Any] | None = None, formulas: Iterable[Callable[..., Any]] = ()
) -> xr.Dataset:
    """What the devices of one design do, and when: the pipeline of a training step, or the kernels of serving passes.

    Of training the pipeline schedule is executed event by event.

    Parameters
    ----------
    what
        A study or a result.
    at
        Labels of axes or of coordinates such as ``devices``. Along axes left open it is the best feasible design, by
        ``[best]`` of the study or by step time.
    formulas
        The user's own formulas with which a result was made.

    Returns
    -------
    xarray.Dataset
        Along ``event``, by start: ``device`` (the pipeline stage; in DualPipe the device), ``chunk`` (in DualPipe the
        direction), ``microbatch``, ``kind`` (forward, backward, input_gradient, weight_gradient, transfer: a
        point-to-point transfer, exchange: the part of a pass that is an exchange with experts which nothing hides,
        wait), ``start`` and ``end`` in seconds, ``stage`` (virtual, in the order of a microbatch) and ``receiver``
        (that a transfer goes to), and what the device holds from the start on: ``in_flight`` (microbatches, in units
        of a whole device) and ``activation_memory``; ``memory``: what it needs during the event, with the loss or a
        layer that is recomputed. Along ``rank``: ``state_memory`` and ``other_memory`` of each
        device. Attributes: ``pipeline_time``, and ``closed_form_time``, the same by the formulas.

        Of serving, along ``event``: ``pass`` (prefill, decode), ``kind`` (kernel, communication, host, wait), ``name``,
        ``layer``, ``bound_by``, ``start`` and ``end`` (see `pass_timeline`).

    Raises
    ------
    PerfgridError
        For an unknown axis or label, for an illegal design, and where none is feasible.

    Examples
    --------
    >>> import perfgrid as pg
    >>> study = pg.Study.make(
    ...     outputs=["step_time"],
    ...     axes={
    ...         "model": ["llama-2-7b"],
    ...         "device": ["h100-sxm-80gb"],
    ...         "topology": ["rail-optimized"],
    ...         "parallelism": {"devices": [8], "tp": [1, 2], "pp": [1, 2]},
    ...     },
    ...     workload_parameters={"sequence_length": 2048, "global_batch": 64},
    ... )
    >>> found = pg.timeline(study, {"parallelism": "tp1.pp2.dp4"})
    >>> sorted(set(found.kind.values.tolist()))
    ['backward', 'forward', 'transfer', 'wait']
    """
    space, registry, choices, at = designs(what, best_design(what, at, searched_quantities(what)).labels, formulas)
    if "pass_time" in registry.formulas:
        return _of_serving(what, at, formulas)
    rates = [f"{part}_{kind}_time" for part in PARTS for kind in PASSES]
    closed = ("slowest_stage_time", "bubble_time", "exposed_pp_time")
    index = index_of(space, at)
    kinds = ("kind_layers", "leading_layers", "expert_layer_step", "mtp_kind_layers")
    others = (*closed, "stage_transfer_time", "unpaired_ep_time", *kinds)
    graph, values = replay_point(registry, space, (*COUNTS, *rates, *others, *QUANTITIES), index, choices)
    point = point_of(space, index)
    _refuse_illegal(point, violated_at(graph, values))
    count = {name: round(float(np.squeeze(values[name]))) for name in COUNTS}
    schedule = str(space.label_quantities()["schedule"][int(space.at("schedule", index))])
    stages = layers_of_stages(**{name: count[name] for name in COUNTS if name != "microbatches"})
    pattern = [values[name] for name in kinds[:-1]]
    held = [run_of_layers(sum(stages[:s]), float(n), *pattern) for s, n in enumerate(stages)]
    times = {kind: [float(np.squeeze(of_kinds(n, values[f"layer_{kind}_time"]))) for n in held] for kind in PASSES}
    number = {name: np.ravel(values[name]) for name in (*rates, *closed, "stage_transfer_time")}
    for kind in PASSES:
        times[kind][0] += number[f"embedding_{kind}_time"].item()
        times[kind][-1] += number[f"head_{kind}_time"].item()
    exchanging = [*held[:-1], held[-1] + values["mtp_kind_layers"]]
    alone = [float(np.squeeze(of_kinds(n, values["unpaired_ep_time"]))) for n in exchanging]
    design = schedule, count["pp"], count["chunks"], count["microbatches"]
    events = execute(*design, times, number["stage_transfer_time"].item(), alone)
    pace, bubble, waits = (number[name].item() for name in closed)
    whole = count["microbatches"] * pace + bubble + waits
    about = {**{k: str(v) for k, v in point.items()}, "schedule": schedule, "closed_form_time": whole}
    return dataset(events, about).assign(_memory(events, values, held, count["pp"], count["chunks"]))


def searched_quantities(what: Study | xr.Dataset) -> tuple[str, ...]:
    """Quantities that a design needs for a timeline. PerfgridError for workloads without pipeline and passes."""
    workload = workload_of(what)
    if workload not in NEEDED:
        raise PerfgridError(f"a timeline is of the workloads {' and '.join(NEEDED)}, found {workload!r}")
    return NEEDED[workload]


def _refuse_illegal(point: Mapping[str, Any], violated: Iterable[Violated]) -> None:
    """PerfgridError for a design whose values have no meaning."""
    if illegal := [v for v in violated if v.kind == "illegal"]:
        told = ", ".join(f"{axis}={label}" for axis, label in point.items())
        raise PerfgridError(f"the design {told} is illegal: " + "; ".join(f"{v.reason} [{v.name}]" for v in illegal))


def _memory(
    events: Sequence[Event], values: Mapping[str, Any], held: Sequence[Any], pp: int, chunks: int
) -> dict[str, Any]:
    """What the devices hold, as variables."""
    state, others = constant_memory(values, pp)
    in_flight = held_at(events, [1.0] * len(held)) / chunks
    kept = held_at(events, microbatch_memory(values, held))
    memory = memory_of_events(events, values, kept, len(held), pp)
    return {
        "in_flight": ("event", in_flight, {"long_name": "microbatches whose activations the device holds"}),
        "activation_memory": ("event", kept, {"long_name": "activations in flight", "units": "byte"}),
        "memory": ("event", memory, {"long_name": "memory that the device needs during the event", "units": "byte"}),
        "state_memory": ("rank", state, {"long_name": "weights, gradients, optimizer state", "units": "byte"}),
        "other_memory": ("rank", others, {"long_name": "activations of the head, buffers, reserved", "units": "byte"}),
    }


def _of_serving(what: Study | xr.Dataset, at: Mapping[str, Any], formulas: Iterable[Callable[..., Any]]) -> xr.Dataset:
    """The kernels of a prefill pass and a decoding step of one design."""
    found = kernels(what, at, formulas)
    _refuse_illegal(found.point, found.violated)
    space, registry, choices, at = designs(what, at, formulas)
    _, values = replay_point(registry, space, (*OF_PASSES, "load_weight"), index_of(space, at), choices)
    step = INNER.total(values["decode_step_time"] * values["load_weight"], "load")
    layers, stages = (round(float(np.squeeze(values[name]))) for name in ("layers", "pp"))
    return pass_timeline(
        found.kernels, layers, stages, float(np.squeeze(step)), {k: str(v) for k, v in found.point.items()}
    )


def layers_of_stages(
    pp: int, chunks: int, stage_layers: int, layers: int, first_missing_layers: int, last_missing_layers: int
) -> list[int]:
    """Layers of every stage (chunk), in the order in which a microbatch passes through them."""
    held = [stage_layers // chunks] * (pp * chunks)
    held[0] -= first_missing_layers
    held[-1] -= last_missing_layers
    short_middle_stages = stage_layers * pp - layers - first_missing_layers - last_missing_layers
    for stage in range(pp - 1 - short_middle_stages, pp - 1):
        held[stage] -= 1
    return held


def dataset(events: Sequence[Event], attributes: Mapping[str, Any]) -> xr.Dataset:
    """Events as variables along ``event``, with the time of all of them as attribute ``pipeline_time``."""
    about = {
        "device": {"long_name": "device of the pipeline, by stage"},
        "chunk": {"long_name": "chunk of the device; -1: none"},
        "microbatch": {"long_name": "microbatch; -1: none"},
        "kind": {"long_name": "what the device does"},
        "start": {"long_name": "start", "units": "s"},
        "end": {"long_name": "end", "units": "s"},
        "stage": {"long_name": "virtual stage, in the order of a microbatch; -1: none"},
        "receiver": {"long_name": "stage that a transfer goes to; -1: none"},
    }
    variables = {name: ("event", np.array([getattr(e, name) for e in events]), told) for name, told in about.items()}
    whole = max(e.end for e in events if e.kind != "transfer")
    return xr.Dataset(variables, attrs={**attributes, "pipeline_time": whole})
