"""The physics: pure functions, one file per subject. Nothing here knows how a grid is evaluated."""

from perfgrid.engine.registry import Registry

from . import (
    architecture,
    attention,
    collective_study,
    collectives,
    data_parallel,
    device,
    fabrics,
    flash,
    gemm,
    memory,
    parallelism,
    parameters,
    pipeline,
    recompute,
    stages,
    step,
    stream,
    tensor_parallel,
    topology,
    training,
)
from .axes import INNER as INNER
from .step import BREAKDOWN as BREAKDOWN
from .step import PASSES as PASSES

REGISTRY_MODULES = (
    parameters,
    architecture,
    device,
    gemm,
    attention,
    flash,
    stream,
    recompute,
    topology,
    collectives,
    fabrics,
    parallelism,
    tensor_parallel,
    data_parallel,
    stages,
    pipeline,
    memory,
    training,
    step,
)

WORKLOADS = {  # the formulas that each workload of a study is made of
    "training": REGISTRY_MODULES,
    "collectives": (*collective_study.BORROWED, collective_study),
}


def training_registry() -> Registry:
    """The formulas of dense decoder-only training."""
    return Registry.collect(REGISTRY_MODULES, inner=INNER)
