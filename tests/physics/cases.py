"""Design points for the tests of the physics: catalog entries and one evaluation in plain NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from perfgrid.catalog import load_catalog
from perfgrid.engine import replay, resolve
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import Graph
from perfgrid.formulas import COLLECTIVES, PARALLELISM, PIPELINES, TRAINING, TRANSFORMER, every_formula
from perfgrid.formulas.axes import INNER
from perfgrid.formulas.hardware import device, scaling
from perfgrid.formulas.kernels import flash, gemm, host, stream
from perfgrid.formulas.training import hybrids, recurrent_layers, sparse_attention, step_energy

LABELS = {
    "optimizer": (
        *("adamw", "fused_adamw", "paged_adamw", "adamw_8bit", "paged_adamw_8bit", "ao_adamw_8bit", "ao_adamw_4bit"),
        *("adafactor", "lion", "paged_lion", "lion_8bit", "paged_lion_8bit", "rmsprop_8bit", "momentum", "sgd"),
    ),
    "layer_kernels": ("stack", "liger"),
    "cross_entropy": ("stack", "chunked", "fused_linear", "cut"),
    "offload": ("none", "optimizer", "parameters", "activations", "named"),
    "precision": ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4"),
    "recompute": ("none", "selective", "full", "least", "layers", "named"),
    "schedule": ("1f1b", "gpipe", "zb_h1", "zb_v", "dualpipe", "dualpipe_v"),
    "library": ("nccl",),
    "network_sizing": ("rate",),
    "rank_order": ("tp-cp-dp-pp", "tp-cp-pp-dp"),
    "cp_method": ("ring", "all_gather", "ulysses", "hybrid"),
    "mixer": ("none",),
    "indexer": ("none",),
    "layer_pattern": ("dense_first",),  # one for all designs of a graph: the one that fits every model
}
OF_A_GRAPH = ("library", "layer_pattern")  # labels of which a graph has one
ONE_EXPERT = {"experts": 1.0, "experts_per_token": 1.0, "expert_ffn_size": 14336.0}  # Llama 3.1 8B as a mixture
TABLES = ("model", "device", "topology", "software")
STUDY: dict[str, Any] = {
    v.name: v.default_value for v in load_catalog().variables.values() if v.optional and v.of not in TABLES
} | {
    "devices": 8.0,
    "tp": 8.0,
    "pp": 1.0,
    "dp": 1.0,
    "etp": 1.0,
    "chunks": 1.0,
    "microbatch": 1.0,
    "global_batch": 8.0,
    "sequence_length": 2048.0,
    "training_tokens": 1e12,
    "precision": "bf16",
    "recompute": "selective",
    "sequence_parallel": True,
    "flash_attention": True,
    "zero": 0.0,
}


def entry(kind: str, name: str) -> dict[str, Any]:
    """The given quantities of a catalog entry, vectors on their inner axes and defaults filled in."""
    return dict(_entry(kind, name))


@cache
def _entry(kind: str, name: str) -> dict[str, Any]:
    catalog = load_catalog()
    stated = catalog.entry(kind, name).values
    found = {}
    for variable in catalog.variables.values():
        if variable.of != kind:
            continue
        value = stated.get(variable.name, variable.default_value)
        if value is None:
            continue
        if variable.axis:
            rows = (
                [value.get(label, 0.0) for label in INNER.labels[variable.axis]] if isinstance(value, dict) else value
            )
            value = INNER.vector(variable.axis, rows)
        found[variable.name] = value
    return found


def point(
    model: str = "gpt3-175b",
    device: str = "a100-sxm-80gb",
    topology: str = "rail-optimized",
    software: str = "megatron-lm",
    **changes: Any,
) -> dict[str, Any]:
    """Every given quantity of one design."""
    tables = {"model": model, "device": device, "topology": topology, "software": software}
    changes = {"training_time_limit": 1e12} | changes
    given: dict[str, Any] = {}
    for kind, name in tables.items():
        given |= entry(kind, name)
    given |= STUDY
    given |= changes
    if "devices" not in changes:
        given["devices"] = given["tp"] * given["cp"] * given["pp"] * given["dp"]
    several = given["experts"] > 0 and 0 < given["dense_layers"] < given["layers"]
    given.setdefault("layer_pattern", "dense_first" if several else "uniform")
    return given


@cache
def step_registry() -> Registry:
    """The formulas of a training step, without energy, recurrent layers, indexers, prices and devices made again."""
    left_out = step_energy, recurrent_layers, hybrids, sparse_attention
    training = (module for module in TRAINING if module not in left_out)
    asked = (*TRANSFORMER, device, scaling, *COLLECTIVES, *PARALLELISM, *PIPELINES, *training)
    return every_formula().of_workload("training", asked, (gemm, flash, stream, host))


@cache
def graph(choices: tuple[tuple[str, str], ...] = (), library: str = "nccl", pattern: str = "uniform") -> Graph:
    """The graph of every quantity of the training physics; ``choices`` are pairs (quantity, fixed alternative).

    What only fabrics of another ``library`` need is left out.
    """
    registry = step_registry()
    names = [n for n in registry.names() if n.removesuffix("_choice") not in dict(choices)]
    if library == "nccl":
        names = [n for n in names if not _ideal(registry, n)]
    return resolve(
        registry, names, point(), dict(choices), labels=LABELS | {"library": (library,), "layer_pattern": (pattern,)}
    )


def _ideal(registry: Registry, name: str) -> bool:
    """Whether a quantity, or the one that it is another name of, belongs to the schedules of ideal fabrics."""
    formula = registry.formulas.get(name)
    while formula is not None and formula.same_as is not None:
        formula = registry.formulas.get(formula.same_as)
    return formula is not None and getattr(formula.function, "__module__", "").rpartition(".")[2] == "ideal"


class Quantities(Mapping[str, Any]):
    """Every quantity of one design, scalars as floats. What is asked for is evaluated, with what it needs, once."""

    def __init__(self, made: Graph, given: Mapping[str, Any]):
        self.graph, self.known = made, {name: given[name] for name in made.leaves}

    def __getitem__(self, name: str) -> Any:
        if name not in self.known:
            self._evaluate(self._needed(name))
        value = self.known[name]
        return value.item() if isinstance(value, np.generic | np.ndarray) and np.size(value) == 1 else value

    def __iter__(self) -> Iterator[str]:
        self._evaluate([name for name in self.graph.nodes if name not in self.known])
        return iter((*self.graph.leaves, *self.graph.nodes))

    def __len__(self) -> int:
        return len(self.graph.leaves) + len(self.graph.nodes)

    def __contains__(self, name: object) -> bool:
        return name in self.graph.nodes or name in self.known

    def _needed(self, name: str) -> list[str]:
        """What a quantity is evaluated from, as far as that is not known, and itself. KeyError if there is none."""
        needed: dict[str, None] = {}

        def visit(name: str) -> None:
            if name not in self.known and name not in needed:
                for argument in self.graph.nodes[name].arguments:
                    visit(argument)
                needed[name] = None

        visit(name)
        return list(needed)

    def _evaluate(self, needed: Sequence[str]) -> None:
        nodes = {name: self.graph.nodes[name] for name in needed}
        leaves = {a for node in nodes.values() for a in node.arguments if a not in nodes}
        self.known |= replay(Graph(tuple(needed), tuple(leaves), nodes), self.known)


def evaluate(given: dict[str, Any], choices: tuple[tuple[str, str], ...] = ()) -> Quantities:
    """Every quantity of one design."""
    coded = {k: float(LABELS[k].index(v)) if k in LABELS else v for k, v in given.items() if k not in OF_A_GRAPH}
    return Quantities(graph(choices, given["library"], given["layer_pattern"]), coded | dict.fromkeys(OF_A_GRAPH, 0.0))


def design(*names: str, **changes: Any) -> Quantities:
    """Every quantity of the named design (see `point`)."""
    return evaluate(point(*names, **changes))


def rows(value: Any, *axes: str) -> dict[Any, float]:
    """A quantity on inner axes as a plain dict from labels (a tuple of them for several axes) to numbers."""
    if len(axes) == 1:
        position = INNER.position(axes[0])
        shape = np.shape(value)
        flat = np.broadcast_to(value, shape).reshape(-1)
        assert len(shape) >= -position
        assert flat.size == INNER.size(axes[0])
        return dict(zip(INNER.labels[axes[0]], flat.tolist(), strict=True))
    sizes = [INNER.size(a) for a in axes]
    flat = np.asarray(value).reshape(sizes)
    return {
        tuple(INNER.labels[a][i] for a, i in zip(axes, index, strict=True)): float(flat[index])
        for index in np.ndindex(*sizes)
    }
