"""Where the seconds of a training step go: its kernels by name and pass, and what it waits for; they add up.

`kernel_table` lists what one microbatch runs in one layer. Here the same kernels are counted for all layers of the
slowest stage and all microbatches of a step. Communication that runs beside kernels is listed apart (`in_all`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.explanation.derivation import Violated, violated_at
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.grid.replay import index_of, point_of, replay_point
from perfgrid.formulas import INNER
from perfgrid.formulas.axes import of_kinds, only
from perfgrid.formulas.mixer_kinds import RECURRENT
from perfgrid.formulas.training.step import WAITS
from perfgrid.formulas.training.token_prediction import INPUTS
from perfgrid.results.provenance import designs
from perfgrid.study.study import Study

from .best_design import best_design

PASSES = ("forward", "backward", "recompute")
CATEGORIES = (  # of kernels, in the order in which they are listed
    "matrix products",
    "attention forward",
    "attention backward",
    "recurrences",
    "norms",
    "rotary",
    "element-wise",
    "conversion",
    "routing",
    "permutation",
    "embedding and loss",
)
# where the time of kernels of a layer lies, their inner axis, how often each runs, and how often it runs again
LAYER = (
    ("gemm_time", "product", "layer_gemms", "layer_recomputed"),
    ("adapter_time", "", "", "layer_recomputed"),
    ("core_product_time", "attention_kernel", "core_kernels", "core_recomputed"),
    ("stream_time", "stream_kernel", "core_streams", "core_recomputed"),
    ("flash_time", "", "", "layer_recomputed"),
    ("stream_time", "stream_kernel", "layer_streams", "layer_recomputed"),
    ("cast_time", "", "", "layer_recomputed"),
    ("grouped_time", "expert_product", "layer_grouped_gemms", "layer_recomputed"),
    ("expert_stream_time", "expert_stream_kernel", "layer_expert_streams", "layer_recomputed"),
    ("expert_cast_time", "", "kind_has_experts", "layer_recomputed"),
)
MIXER = (  # of models with recurrent layers
    ("mixer_recurrence_time", "mixer_kernel", "mixer_share", "layer_recomputed"),
    ("mixer_stream_time", "", "mixer_share", "layer_recomputed"),
)
OF_ATTENTION = ("core_product_time", "core_streams", "flash_time")  # which not every layer of such models has
MODULES = (  # single modules that are computed again: kernels, runs of each, how often they are repeated
    ("gemm_time", "product", "latent_gemms", "latents_recomputed"),
    ("stream_time", "stream_kernel", "recomputed_streams", ""),
    ("expert_stream_time", "expert_stream_kernel", "layer_expert_streams", "activation_function_recomputed"),
)
ONCE = {  # kernels outside of layers: table and axis
    "norm": ("stream_time", "stream_kernel"),
    "loss": ("stream_time", "stream_kernel"),
    "embedding": ("stream_time", "stream_kernel"),
    "logits": ("gemm_time", "product"),
    "mtp_projection": ("gemm_time", "product"),
}
OF_KERNEL = {
    **dict.fromkeys(INNER.labels["product"], "matrix products"),
    **dict.fromkeys(INNER.labels["expert_product"], "matrix products"),
    **dict.fromkeys(("adapter",), "matrix products"),
    **dict.fromkeys((*INNER.labels["attention_kernel"], "softmax", "flash"), "attention"),
    **dict.fromkeys(("mixer_recurrence", "mixer_stream"), "recurrences"),
    **dict.fromkeys(("norm", "latent_norm"), "norms"),
    "rotary": "rotary",
    **dict.fromkeys(("residual", "activation", "shared_activation", "expert_activation"), "element-wise"),
    **dict.fromkeys(("bias", "ffn_bias"), "element-wise"),
    **dict.fromkeys(("cast", "expert_cast"), "conversion"),
    "routing": "routing",
    **dict.fromkeys(("permute", "sort", "unpermute"), "permutation"),
    **dict.fromkeys(("embedding", "loss"), "embedding and loss"),
}
STAGE = ("slowest_stage_kind_layers", "slowest_stage_embeddings", "slowest_stage_heads", "mtp_kind_layers")
COUNTS = ("microbatches", "mtp_layers", "head_passes", "unfused", "layer_recomputed", "core_recomputed")
COMMUNICATION = (
    *("exposed_gathering_time", "exposed_reduction_time", "dp_copy_time", "dp_gathering_time", "dp_scattering_time"),
    *("shard_replica_reduction_time", "reduction_passes", "replica_passes", "regathered", "weight_gatherings"),
    *("expert_exchange_time", "ep_passes"),
)
NAMES = {  # of what is waited for, where it is not the name of the quantity in words
    "exposed_tp_time": "tensor-parallel communication, exposed",
    "exposed_cp_time": "context-parallel communication, exposed",
    "exposed_ep_time": "expert exchange, exposed",
    "exposed_host_time": "waiting for the host",
    "bubble_time": "bubble",
    "straggler_time": "waiting for the slowest device",
    "exposed_pp_time": "pipeline transfers, exposed",
    "exposed_tied_time": "reduction of a shared table",
    "exposed_offload_time": "offloading, exposed",
    "optimizer_time": "optimizer",
    "between_steps_time": "idle between steps",
}
DATA_PARALLEL = ("all-gather, exposed", "reduce-scatter, exposed", "buffer copies")
KERNELS = "kernels"
PARTS = (*CATEGORIES, *OF_KERNEL, *NAMES.values(), *DATA_PARALLEL)  # that a step may have


@dataclass(frozen=True)
class Share:
    """A part of a step: its category, the kernel or quantity, the pass of a kernel (else empty), and seconds."""

    category: str
    name: str
    done: str
    time: float


@dataclass(frozen=True)
class StepAnatomy:
    """The parts of a step, which add up to ``step_time``; communication with what is hidden of it; the design."""

    point: Mapping[str, Any]
    violated: tuple[Violated, ...]
    step_time: float
    shares: tuple[Share, ...]
    in_all: Mapping[str, float]

    def by_category(self) -> dict[str, float]:
        """Seconds of each category: kernels first, then waits."""
        return self._sums(lambda share: share.category)

    def by_kernel(self) -> dict[str, float]:
        """Seconds of each kernel in all its passes."""
        return {k: t for k, t in self._sums(lambda share: share.name if share.done else "").items() if k}

    def seconds(self, part: str) -> float:
        """Seconds of a category, a kernel, a collective, or of all kernels ("kernels"). PerfgridError for others."""
        if part == KERNELS:
            return sum(share.time for share in self.shares if share.done)
        known = {**dict.fromkeys(PARTS, 0.0), **self.by_kernel(), **self.by_category(), **self.in_all}
        if part not in known:
            raise PerfgridError(f"a step has no part {part!r}{nearest(part, known)}")
        return known[part]

    def _sums(self, key: Callable[[Share], str]) -> dict[str, float]:
        found: dict[str, float] = {}
        for share in self.shares:
            found[key(share)] = found.get(key(share), 0.0) + share.time
        return found


def step_anatomy(
    what: Study | xr.Dataset, at: Mapping[str, Any] | None = None, formulas: Iterable[Callable[..., Any]] = ()
) -> StepAnatomy:
    """The seconds of one training step by what they are spent on.

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
    StepAnatomy
        ``shares`` of the slowest stage: kernels of all microbatches, each with category and pass, and what is waited
        for; they add up to ``step_time``. ``in_all`` holds collectives with what kernels hide of them.

    Raises
    ------
    PerfgridError
        For an unknown axis or label, a study that trains nothing, an illegal design, and where none is feasible.
    """
    space, registry, choices, at = designs(what, best_design(what, at).labels, formulas)
    if "step_time" not in registry.formulas:
        raise PerfgridError("only training has a step to take apart")
    index = index_of(space, at)
    labels = space.label_quantities().get("mixer")
    hybrid = bool(labels) and str(labels[int(space.at("mixer", index))]) in RECURRENT
    tables = (*LAYER, *MIXER) if hybrid else LAYER
    wanted = {name for row in (*tables, *MODULES) for name in (row[0], *row[2:]) if name}
    wanted |= {*STAGE, *COUNTS, *COMMUNICATION, *WAITS, "exposed_dp_time", "step_time"}
    wanted |= {"attention_share"} if hybrid else set()
    graph, values = replay_point(registry, space, sorted(wanted), index, choices)
    violated = tuple(violated_at(graph, values))
    if illegal := [v for v in violated if v.kind == "illegal"]:
        raise PerfgridError("the design is illegal: " + "; ".join(f"{v.reason} [{v.name}]" for v in illegal))
    shares = (*_kernels(values, tables), *_waits(values))
    kept = sorted((s for s in shares if s.time), key=_order)
    step = _number(values["step_time"])
    return StepAnatomy(point_of(space, index), violated, step, tuple(kept), _communication(values))


def _order(share: Share) -> int:
    return CATEGORIES.index(share.category) if share.category in CATEGORIES else len(CATEGORIES)


# ---- kernels --------------------------------------------------------------------------------------------------------


def _kernels(values: Mapping[str, Any], tables: Iterable[tuple[str, str, str, str]]) -> Iterator[Share]:
    """The kernels of all microbatches in the slowest stage."""
    microbatches, heads, modules = (_number(values[n]) for n in ("microbatches", "slowest_stage_heads", "mtp_layers"))
    layers = values["slowest_stage_kind_layers"] + heads * values["mtp_kind_layers"]
    for table, axis, runs, again in tables:
        counted = values[runs] if runs else 1.0
        if table == "flash_time":
            counted = 1.0 - values["unfused"]
        if table in OF_ATTENTION or runs in OF_ATTENTION:
            counted = counted * values.get("attention_share", 1.0)
        for name, time in _labelled(values[table] * counted, table, axis):
            forward, backward = _passes(microbatches * layers, time)
            yield from _shares(name, forward, backward, _passes(microbatches * layers, time * values[again])[0])
    for table, axis, runs, again in MODULES:
        for name, time in _labelled(values[table] * values[runs], table, axis):
            if table != "expert_stream_time" or name == "expert_activation":  # of experts only that
                time = time * (values[again] if again else 1.0)
                yield from _shares(name, 0.0, 0.0, _passes(microbatches * layers, time)[0])
    head = heads * _number(values["head_passes"])
    runs = {
        "norm": head + INPUTS * heads * modules,
        "loss": head,
        "logits": head,
        "mtp_projection": heads * modules,
        "embedding": _number(values["slowest_stage_embeddings"]) + heads * modules,
    }
    for name, count in runs.items():
        table, axis = ONCE[name]
        time = INNER.total(values[table] * only(axis, name), axis)
        yield from _shares(name, *_passes(microbatches * count, time), 0.0)


def _labelled(time: Any, table: str, axis: str) -> Iterator[tuple[str, Any]]:
    """The time of each kernel of a table."""
    own = table.removesuffix("_time")
    if axis == "mixer_kernel":
        yield own, INNER.total(time, axis)
        return
    for label in INNER.labels[axis] if axis else (own,):
        yield label, INNER.total(time * only(axis, label), axis) if axis else time


def _passes(layers: Any, time: Any) -> tuple[float, float]:
    """Seconds of the forward and of the backward pass of so many layers of each kind."""
    spent = of_kinds(layers, INNER.total(time, "resource"))
    forward = _number(INNER.at(spent, phase="forward"))
    return forward, _number(INNER.total(spent, "phase")) - forward


def _shares(name: str, forward: float, backward: float, repeated: float) -> Iterator[Share]:
    for done, time in zip(PASSES, (forward, backward, repeated), strict=True):
        category = OF_KERNEL.get(name, name)
        if category == "attention":
            category = f"attention {'backward' if done == 'backward' else 'forward'}"
        yield Share(category, name, done, time)


# ---- waits ----------------------------------------------------------------------------------------------------------


def _waits(values: Mapping[str, Any]) -> Iterator[Share]:
    """What a step waits for; data-parallel communication by collective."""
    for name in WAITS:
        if name != "exposed_dp_time":
            own = NAMES.get(name, name.removesuffix("_time").replace("_", " "))
            yield Share(own, name, "", _number(values[name]))
    forward, copies = (_number(values[n]) for n in ("exposed_gathering_time", "dp_copy_time"))
    behind = _number(values["exposed_dp_time"]) - forward - copies  # reductions, and weights gathered beside them
    again, reducing = _gathered_again(values), _reductions(values)
    part = again / (again + reducing) if again else 0.0
    for name, time in zip(DATA_PARALLEL, (forward + part * behind, (1 - part) * behind, copies), strict=True):
        yield Share(name, name, "", time)


def _communication(values: Mapping[str, Any]) -> dict[str, float]:
    """Collectives of a step with what is hidden of them, in the slowest stage."""
    gathers = _number(values["weight_gatherings"]) * _number(values["dp_gathering_time"])
    exchange = np.squeeze(values["expert_exchange_time"]).item() * _number(values["ep_passes"])
    return {"all-gather": gathers, "reduce-scatter": _reductions(values), "expert exchange": exchange}


def _gathered_again(values: Mapping[str, Any]) -> float:
    """Seconds in which weights are gathered again for the backward passes of a step."""
    return float(np.prod([_number(values[n]) for n in ("reduction_passes", "regathered", "dp_gathering_time")]))


def _reductions(values: Mapping[str, Any]) -> float:
    """Seconds in which gradients are reduced in a step."""
    inside = _number(values["reduction_passes"]) * _number(values["dp_scattering_time"])
    return inside + _number(values["replica_passes"]) * _number(values["shard_replica_reduction_time"])


def _number(value: Any) -> float:
    return float(np.squeeze(value))
