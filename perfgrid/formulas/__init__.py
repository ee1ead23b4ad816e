"""The physics: pure functions, one file per subject. Nothing here knows how a grid is evaluated.

All formulas are collected once, from the modules in `MODULES`: a new file is added to one of the tuples below. A
workload offers the quantities of the modules that it asks for, and takes what these need from those that it draws on.
Where it differs from training, its formulas are alternatives selected by the label ``workload``.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

from perfgrid.engine.graph.namespace import xp as xp
from perfgrid.engine.graph.registry import Registry
from perfgrid.formulas.training.step import BREAKDOWN as BREAKDOWN
from perfgrid.formulas.training.step import PASSES as PASSES

from .axes import INNER as INNER
from .hardware.implementation import IMPLEMENTED as MADE_AGAIN
from .hardware.microarchitecture import OF_BUDGET


def _modules(folder: str, *names: str) -> tuple[ModuleType, ...]:
    """Modules of a folder, in the order in which their formulas are listed."""
    return tuple(import_module(f"{__name__}.{folder}.{name}") for name in names)


PARAMETERS = _modules("transformer", "parameters")
TRANSFORMER = (*PARAMETERS, *_modules("transformer", "architecture", "attention", "latent_attention", "moe"))
DEVICE = _modules("hardware", "device", "scaling", "power")
KERNELS = _modules("kernels", "gemm", "flash", "stream", "energy", "host")
COLLECTIVES = _modules("collectives", "topology", "placement", "nccl", "ideal", "contention", "exchange")
BENCHMARK = _modules("collectives", "workload")
PARALLELISM = (
    *_modules("parallelism", "context_parallel", "groups", "tensor_parallel", "tensor_parallel_volume", "sharding"),
    *_modules("parallelism", "expert_parallel", "expert_replicas", "data_parallel"),
)
PIPELINES = _modules("pipelines", "stages", "transfers", "pipeline", "zero_bubble", "dualpipe")
TRAINING = (
    *_modules("training", "adapters", "recompute", "offload", "activations", "memory", "retained", "token_prediction"),
    *_modules("training", "training", "step", "error", "reliability", "step_energy"),
)
SERVING = (
    *_modules("serving", "requests", "formats", "products", "experts", "kernels", "parallel", "capacity", "latency"),
    *_modules("serving", "batching", "serving", "bounds", "energy"),
)
TECHNOLOGY = _modules("hardware", "technology", "implementation", "native")  # devices at another node, memory or link
MANUFACTURING = (*TECHNOLOGY, *_modules("cost", "die", "package", "manufacturing"))  # manufacturing cost
ECONOMY = (  # budgets, prices, energy of events
    *_modules("hardware", "microarchitecture", "event_energy"),
    *_modules("cost", "cluster_network", "system_cost", "carbon"),
)

MODULES = (
    *TRANSFORMER,
    *DEVICE,
    *KERNELS,
    *COLLECTIVES,
    *PARALLELISM,
    *PIPELINES,
    *TRAINING,
    *SERVING,
    *MANUFACTURING,
    *ECONOMY,
    *BENCHMARK,
)


@dataclass(frozen=True)
class Workload:
    """The modules whose quantities a kind of study may request, and those drawn on for what these need."""

    asked: tuple[ModuleType, ...]
    drawn: tuple[ModuleType, ...] = ()


WORKLOADS = {
    "training": Workload(
        (*TRANSFORMER, *DEVICE, *COLLECTIVES, *PARALLELISM, *PIPELINES, *TRAINING, *MANUFACTURING, *ECONOMY), KERNELS
    ),
    "manufacturing": Workload(MANUFACTURING),
    "collectives": Workload(BENCHMARK, (*COLLECTIVES, *PARALLELISM)),
    "inference": Workload(
        (*PARAMETERS, *DEVICE, *SERVING, *MANUFACTURING, *ECONOMY), (*TRANSFORMER, *KERNELS, *COLLECTIVES, *PARALLELISM)
    ),
}


@cache
def every_formula() -> Registry:
    """All formulas of all workloads."""
    return Registry.collect(MODULES, INNER)


@cache
def registry_of(workload: str) -> Registry:
    """The formulas of one workload. Callers share it: extend a copy."""
    found = WORKLOADS[workload]
    return every_formula().of_workload(workload, found.asked, found.drawn)


# device quantities that are computed if a study has an axis of this name
IMPLEMENTED = MADE_AGAIN | {"budget": OF_BUDGET}
