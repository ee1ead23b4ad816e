"""The physics: pure functions, one file per subject. Nothing here knows how a grid is evaluated."""

from perfgrid.engine.registry import Registry

from . import (
    architecture,
    attention,
    collectives,
    device,
    gemm,
    memory,
    parallelism,
    pipeline,
    recompute,
    stream,
    topology,
    training,
)
from .axes import INNER as INNER
from .training import BREAKDOWN as BREAKDOWN

REGISTRY_MODULES = (
    architecture,
    device,
    gemm,
    attention,
    stream,
    recompute,
    topology,
    collectives,
    parallelism,
    pipeline,
    memory,
    training,
)

WORKLOADS = {"training": REGISTRY_MODULES}  # the formulas that each workload of a study is made of


def training_registry() -> Registry:
    """The formulas of dense decoder-only training."""
    return Registry.collect(REGISTRY_MODULES, inner=INNER)
