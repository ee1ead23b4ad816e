"""The physics: pure functions, one file per subject. Nothing here knows how a grid is evaluated."""

from perfgrid.engine.graph.registry import Registry
from perfgrid.formulas.training.step import BREAKDOWN as BREAKDOWN
from perfgrid.formulas.training.step import PASSES as PASSES

from . import serving as inference
from .axes import INNER as INNER
from .collectives import benchmark as collective_study
from .collectives import collectives, contention, exchange, fabrics, topology
from .collectives import nccl as library
from .cost import carbon, cluster_network, die, manufacturing, package, system_cost
from .hardware import device, event_energy, implementation, microarchitecture, native, scaling, technology
from .kernels import energy, flash, gemm, host, stream
from .parallelism import context_parallel, data_parallel, expert_parallel, expert_replicas, sharding, tensor_parallel
from .parallelism import groups as parallelism
from .pipelines import dualpipe, pipeline, stages, zero_bubble
from .training import (
    adapters,
    error,
    memory,
    offload,
    recompute,
    reliability,
    retained,
    step,
    step_energy,
    token_prediction,
    training,
)
from .transformer import architecture, attention, latent_attention, moe, parameters

REGISTRY_MODULES = (
    parameters,
    architecture,
    device,
    scaling,
    gemm,
    adapters,
    attention,
    latent_attention,
    context_parallel,
    flash,
    stream,
    recompute,
    topology,
    collectives,
    library,
    fabrics,
    parallelism,
    tensor_parallel,
    sharding,
    contention,
    exchange,
    moe,
    expert_parallel,
    expert_replicas,
    data_parallel,
    offload,
    stages,
    pipeline,
    zero_bubble,
    dualpipe,
    memory,
    retained,
    token_prediction,
    training,
    host,
    step,
    error,
    reliability,
)

TECHNOLOGY = (technology, implementation, *native.FORMULAS)  # a device made again
MANUFACTURING_MODULES = (*TECHNOLOGY, die, package, manufacturing)  # what a device costs to make
ECONOMY = (microarchitecture, event_energy, cluster_network, system_cost, carbon)  # budgets, prices, energy of events

WORKLOADS = {  # the formulas that each workload of a study is made of
    "training": (*REGISTRY_MODULES, energy, step_energy, *MANUFACTURING_MODULES, *ECONOMY),
    "manufacturing": MANUFACTURING_MODULES,
    "collectives": (*collective_study.BORROWED, collective_study),
    "inference": (*inference.MODULES, *MANUFACTURING_MODULES, *ECONOMY),
}


def training_registry() -> Registry:
    """The formulas of dense decoder-only training."""
    return Registry.collect(REGISTRY_MODULES, inner=INNER)


# device quantities that follow from a table where a study of devices states it
IMPLEMENTED = implementation.IMPLEMENTED | {"budget": microarchitecture.OF_BUDGET}
