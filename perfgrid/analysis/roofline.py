"""The hierarchical roofline of one design: operations, time and traffic of its matrix products at every level."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.engine.grid.replay import index_of, point_of, replay_point
from perfgrid.formulas import INNER
from perfgrid.formulas.axes import only
from perfgrid.results.provenance import designs
from perfgrid.study.study import Study

from .best_design import best_design
from .kernel_table import ONCE, PASSES, PHASES

LEVELS = {  # of memory: the traffic of a family of products, and the bandwidth
    "HBM": ("mean_traffic", "hbm_bandwidth"),
    "L2": ("l2_traffic", "l2_bandwidth"),
    "shared memory": ("shared_memory_traffic", "usable_shared_memory_bandwidth"),
}
TRAINING = (  # family of products, its inner axis, its time, and how often a layer runs each
    ("gemm", "product", "gemm_time", ("layer_gemms",)),
    ("core", "attention_kernel", "core_product_time", ("core_kernels",)),
    ("grouped", "expert_product", "grouped_time", ("layer_grouped_gemms",)),
)
SERVING = (
    ("gemm", "product", "gemm_product_time", ("product_count",)),
    ("expert", "expert_product", "expert_product_time", ("moe_layers",)),
)
FUSED = ("flash_volume", "flash_streamed_traffic", "flash_exposed_traffic", "mask_share", "flash_time", "unfused")
PEAK = "peak_matrix_rate"


@dataclass(frozen=True)
class Product:
    """One kernel in one phase: FLOP, seconds with its launch, and bytes at each level that is known."""

    name: str
    phase: str
    flops: float
    time: float
    traffic: Mapping[str, float]


@dataclass(frozen=True)
class Roofline:
    """The products of one design, its labels, the peak rate (FLOP/s) and the bandwidth of each level (byte/s)."""

    point: Mapping[str, Any]
    products: tuple[Product, ...]
    peak: float
    bandwidths: Mapping[str, float]


def roofline(
    what: Study | xr.Dataset, at: Mapping[str, Any] | None = None, formulas: Iterable[Callable[..., Any]] = ()
) -> Roofline:
    """The matrix products and the fused attention of a design of training or inference against its roofs.

    ``what``, ``at``, ``formulas`` and errors are those of `kernels`. Source: Williams et al. 2009, with a roof for each
    level of memory.
    """
    space, registry, choices, at = designs(what, best_design(what, at).labels, formulas)
    index, serving = index_of(space, at), "pass_time" in registry.formulas
    tables, phases = (SERVING, PASSES) if serving else (TRAINING, PHASES)
    wanted = [n for family, _, time, counts in tables for n in (f"{family}_flops", time, *counts)]
    wanted += [f"{family}_{traffic}" for family, *_ in tables for traffic, _ in LEVELS.values()]
    wanted += [PEAK, *(bandwidth for _, bandwidth in LEVELS.values())]
    wanted += ["load_weight"] if serving else FUSED
    _, values = replay_point(registry, space, wanted, index, choices)
    loads = values.get("load_weight", 1.0)

    def along(value: Any) -> np.ndarray:
        """The mean over loads, by phase or pass."""
        return np.broadcast_to(np.ravel(INNER.total(value * loads, "load")), len(phases))

    found = list(_products(values, tables, phases, along))
    if not serving and not np.all(values["unfused"]):
        found += _fused(values, phases)
    bandwidths = {level: float(np.squeeze(values[bandwidth])) for level, (_, bandwidth) in LEVELS.items()}
    return Roofline(point_of(space, index), tuple(found), float(np.squeeze(values[PEAK])), bandwidths)


def _products(
    values: Mapping[str, Any],
    tables: Iterable[tuple[str, str, str, tuple[str, ...]]],
    phases: tuple[str, ...],
    along: Callable[[Any], np.ndarray],
) -> Iterator[Product]:
    for family, axis, time, counts in tables:
        runs = sum(values[c] for c in counts)
        for label in INNER.labels[axis]:
            row = only(axis, label)

            def picked(value: Any, row: Any = row, axis: str = axis) -> np.ndarray:
                return along(INNER.total(value * row, axis))

            counted = np.sum(runs * row) > 0 or label in ONCE
            flops, seconds = picked(values[f"{family}_flops"]), picked(INNER.total(values[time], "resource"))
            traffic = {level: picked(values[f"{family}_{name}"]) for level, (name, _) in LEVELS.items()}
            traffic["L2"] = traffic["L2"] - traffic["HBM"]  # reads, which take time, without what memory fills
            for i, phase in enumerate(phases):
                if counted and seconds[i] > 0 and flops[i] > 0:
                    bytes_of = {level: float(t[i]) for level, t in traffic.items() if t[i] > 0}
                    yield Product(label, phase, float(flops[i]), float(seconds[i]), bytes_of)


def _fused(values: Mapping[str, Any], phases: tuple[str, ...]) -> Iterator[Product]:
    """The fused attention kernel, the mean of all layers."""
    share = values["mask_share"]
    flops = np.ravel(INNER.total(2 * values["flash_volume"] * share, "mask"))
    traffic = np.ravel(
        INNER.total((values["flash_streamed_traffic"] + values["flash_exposed_traffic"]) * share, "mask")
    )
    seconds = np.ravel(INNER.total(values["flash_time"], "resource"))
    for i, phase in enumerate(phases):
        if seconds[i] > 0 and flops[i] > 0:
            yield Product("flash", phase, float(flops[i]), float(seconds[i]), {"HBM": float(traffic[i])})
