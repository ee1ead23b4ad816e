"""The physics: pure functions, one file per subject. Nothing here knows how a grid is evaluated."""

from perfgrid.engine.registry import Registry

from . import (
    adapters,
    architecture,
    attention,
    carbon,
    cluster_network,
    collective_study,
    collectives,
    contention,
    context_parallel,
    data_parallel,
    device,
    die,
    dualpipe,
    energy,
    event_energy,
    exchange,
    expert_parallel,
    expert_replicas,
    fabrics,
    flash,
    gemm,
    implementation,
    inference,
    latent_attention,
    library,
    manufacturing,
    memory,
    microarchitecture,
    moe,
    native,
    offload,
    package,
    parallelism,
    parameters,
    pipeline,
    recompute,
    reliability,
    scaling,
    sharding,
    stages,
    step,
    step_energy,
    stream,
    system_cost,
    technology,
    tensor_parallel,
    token_prediction,
    topology,
    training,
    zero_bubble,
)
from .axes import INNER as INNER
from .step import BREAKDOWN as BREAKDOWN
from .step import PASSES as PASSES

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
    token_prediction,
    training,
    step,
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
