"""The physics: pure functions, one file per subject. Nothing here knows how a grid is evaluated.

All formulas are collected once, from the modules in `MODULES`: a new file is added to one of the tuples below. A
workload offers the quantities of the modules that it asks for, and takes what these need from those that it draws on.
Where it differs from training, its formulas are alternatives selected by the label ``workload``.
"""

from dataclasses import dataclass
from functools import cache
from types import ModuleType

from perfgrid.engine.graph.namespace import xp as xp
from perfgrid.engine.graph.registry import Registry
from perfgrid.formulas.training.step import BREAKDOWN as BREAKDOWN
from perfgrid.formulas.training.step import PASSES as PASSES

from .axes import INNER as INNER
from .collectives import contention, exchange, ideal, nccl, placement, topology
from .collectives import workload as benchmark
from .cost import carbon, cluster_network, die, manufacturing, network_cost, package, system_cost
from .hardware import device, event_energy, implementation, microarchitecture, native, power, scaling, technology
from .kernels import energy, flash, gemm, host, stream
from .mixers import attended, recurrent, widths
from .mixers import parameters as mixer_parameters
from .mixers import workload as mixer
from .parallelism import (
    context_parallel,
    data_parallel,
    expert_parallel,
    expert_replicas,
    groups,
    sharding,
    tensor_parallel,
    tensor_parallel_volume,
)
from .pipelines import dualpipe, pipeline, schedules, stages, transfers, zero_bubble
from .serving import (
    admission,
    answering,
    arrivals,
    batching,
    bounds,
    capacity,
    clients,
    deployment,
    engine_memory,
    experts,
    formats,
    iterations,
    latency,
    launching,
    lengths,
    lockstep,
    met_iterations,
    parallel,
    percentiles,
    pipeline_groups,
    pools,
    products,
    requests,
    rounds,
    shares,
    tabulated,
    token_gaps,
)
from .serving import energy as serving_energy
from .serving import indexer as serving_indexer
from .serving import kernels as serving_kernels
from .serving import mixers as serving_mixers
from .serving import serving as service
from .training import (
    activations,
    adapters,
    dequantisation,
    error,
    fused_kernels,
    hybrids,
    memory,
    moments,
    named_results,
    offload,
    optimizers,
    recompute,
    recurrent_layers,
    reliability,
    retained,
    sparse_attention,
    step,
    step_energy,
    token_prediction,
)
from .training import training as training_run
from .transformer import (
    architecture,
    attention,
    indexer,
    latent_attention,
    layer_kinds,
    layer_products,
    moe,
    parameters,
)

PARAMETERS = (parameters, mixer_parameters, indexer)
MIXERS = (widths, recurrent, attended, mixer)
TRANSFORMER = (*PARAMETERS, layer_kinds, layer_products, architecture, attention, latent_attention, moe)
DEVICE = (device, scaling, power)
KERNELS = (gemm, flash, stream, energy, host)
COLLECTIVES = (topology, placement, nccl, ideal, contention, exchange)
BENCHMARK = (benchmark,)
PARALLELISM = (
    *(context_parallel, groups, tensor_parallel, tensor_parallel_volume, sharding),
    *(expert_parallel, expert_replicas, data_parallel),
)
PIPELINES = (stages, transfers, schedules, pipeline, zero_bubble, dualpipe)
TRAINING = (
    *(adapters, dequantisation, fused_kernels, optimizers, recompute, offload, activations, memory, moments, retained),
    *(named_results, token_prediction, training_run, step, error, reliability, step_energy, recurrent_layers),
    *(hybrids, sparse_attention),
)
SERVING = (
    *(
        requests,
        formats,
        products,
        experts,
        serving_kernels,
        serving_mixers,
        serving_indexer,
        parallel,
        capacity,
        engine_memory,
        latency,
        launching,
        lockstep,
        pipeline_groups,
    ),
    *(
        lengths,
        batching,
        admission,
        iterations,
        met_iterations,
        clients,
        service,
        tabulated,
        arrivals,
        rounds,
        answering,
        percentiles,
        token_gaps,
        bounds,
        shares,
        serving_energy,
    ),
)
TECHNOLOGY = (technology, implementation, native)  # devices at another node, with another memory or link
MANUFACTURING = (*TECHNOLOGY, die, package, manufacturing)  # manufacturing cost
NETWORK = (cluster_network, network_cost)  # switches, links and their price
ECONOMY = (microarchitecture, event_energy, *NETWORK, system_cost, carbon)  # budgets, prices, energy of events

POOLS = (pools, deployment, service, percentiles)  # two pools, each evaluated on its own by the formulas of serving

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
    *MIXERS,
    pools,
    deployment,
)


@dataclass(frozen=True)
class Workload:
    """The modules whose quantities a kind of study may request, and those drawn on for what these need."""

    asked: tuple[ModuleType, ...]
    drawn: tuple[ModuleType, ...] = ()


WORKLOADS = {
    "training": Workload(
        (*TRANSFORMER, *DEVICE, *COLLECTIVES, *PARALLELISM, *PIPELINES, *TRAINING, *MANUFACTURING, *ECONOMY),
        (*KERNELS, *MIXERS),
    ),
    "manufacturing": Workload(MANUFACTURING),
    "sequence_mixer": Workload(MIXERS, DEVICE),
    "collectives": Workload((*BENCHMARK, *NETWORK), (*COLLECTIVES, *PARALLELISM)),
    "pools": Workload(POOLS, (requests, batching, clients)),
    "inference": Workload(
        (*PARAMETERS, *DEVICE, *SERVING, *MANUFACTURING, *ECONOMY),
        (*TRANSFORMER, *KERNELS, *COLLECTIVES, *PARALLELISM, *MIXERS),
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
IMPLEMENTED = implementation.IMPLEMENTED | {"budget": microarchitecture.OF_BUDGET}
