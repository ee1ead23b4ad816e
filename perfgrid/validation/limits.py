"""Limits of the formulas in one place: records beyond them are listed as not predicted, with the reason.

Who teaches the formulas to express a feature deletes its line here; the fields are mapped already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import get_args

from perfgrid.catalog import Catalog
from perfgrid.engine.graph.registry import Registry

from .schema import Block, Kernel, MixerOperator, Model, Record

EXCHANGES = ("moe_dispatch", "moe_combine")
_FEATURES: dict[str, Callable[[Record], bool]] = {
    "exchanges with experts on their own": lambda r: r.collective is not None and r.collective.op in EXCHANGES,
    "cost and power": lambda r: r.kind == "cost",
    "copies on their own": lambda r: r.kernel is not None and r.kernel.op == "memcpy",
    "attention without a causal mask in training": lambda r: (
        r.kind != "inference" and r.model is not None and not r.model.causal
    ),
}
_ZERO = {
    1: "sharded optimizer state (ZeRO stage 1)",
    2: "sharded gradients (ZeRO stage 2)",
    3: "sharded parameters (ZeRO stage 3, FSDP)",
}
INPUT = "input_not_prediction"  # in ``missing``: a value of the catalog is this figure
CEILINGS = ("mamf",)  # kernel versions that are maxima over a scan of shapes: inputs of the catalog, not evidence
TARGETS = {
    "training": ("step_time", "activation_memory", "state_memory", "peak_memory", "allocator_memory"),
    "memory": ("activation_memory", "state_memory", "peak_memory", "allocator_memory"),
    "kernel": ("kernel_time",),
    "collective": ("collective_time", "collective_bandwidth"),
}
SHAPES = {  # operator -> fields of the block ``kernel`` that its shape needs
    "gemm": ("m", "n", "k"),
    "attention": ("batch", "heads", "head_dim", "sequence_length"),
    "decode_attention": ("batch", "heads", "kv_heads", "head_dim", "sequence_length"),
    "moe_layer": ("m",),
    **dict.fromkeys(get_args(MixerOperator), ("mixer", "batch", "sequence_length")),
}
FORWARD = ("decode_attention", "mixer_decode", "mixer_layer")  # operators without a backward pass
SUBSTITUTES = {  # labels evaluated in place of others
    "precision": {"fp16": "bf16"},  # both 16-bit formats run at the same rate, stated for bf16
    "schedule": {"interleaved": "1f1b", "zb": "zb_h1"},  # interleaved is 1f1b with chunks > 1
}
DEFAULTS = {"precision": "bf16", "schedule": "1f1b"}


def labels_of(registry: Registry, quantity: str) -> set[str]:
    """The labels of a label quantity, such as ``precision``, that all alternatives selected by it have."""
    known = [{str(a.label) for a in c.alternatives} for c in registry.choices.values() if c.by == quantity]
    return set.intersection(*known) if known else set()


@lru_cache(maxsize=16)  # asked for each record
def readable(registry: Registry) -> frozenset[str]:
    """Every quantity that some formula reads."""
    formulas = registry.formulas.values()
    return frozenset(name for f in formulas for name in (*f.arguments, *([f.by] if f.by else [])))


def label_of(name: str, record: Record, catalog: Catalog, registry: Registry) -> str | None:
    """The label of ``precision`` or ``schedule`` by which a record is evaluated.

    None if no formula knows it, or no unit of the device computes in that format.
    """
    block = record.workload if name == "precision" else record.plan
    stated = getattr(block, name, None) or DEFAULTS[name]
    known = labels_of(registry, name) or {DEFAULTS[name]}
    device = catalog.entry("device", record.device).values
    for label in (stated, SUBSTITUTES[name].get(stated)):
        if label in known and (name != "precision" or device.get(f"peak_{label}_rate", 0.0)):
            return label
    return None


def reasons(record: Record, catalog: Catalog, registry: Registry) -> Iterator[str]:
    """Reasons why a record cannot be predicted: fields that its source leaves open, and features not modelled."""
    kernel, plan, read = record.kernel, record.plan, readable(registry)
    if INPUT in record.missing:
        yield "a value of the catalog is this figure: an input, not evidence"
        return
    if not record.predictable:
        yield f"the source leaves open: {', '.join(record.missing)}"
    if kernel is not None and kernel.version in CEILINGS:
        yield "a ceiling over a scan of shapes: an input, not evidence"
    yield from (f"not modelled: {name}" for name, holds in _FEATURES.items() if holds(record))
    if kernel is not None:
        yield from _shape(kernel, record.model)
    if record.collective is not None:
        yield from _open(record.collective, "collective", ("size", "ranks"))
    if record.kind in TARGETS and record.quantity not in TARGETS[record.kind]:
        yield f"not modelled: {record.quantity} as a target"
    if plan is not None and (plan.cp or 1) > 1 and "cp" not in read:
        yield "not modelled: context parallelism"
    if plan is not None and (plan.zero or 0) > (catalog.variables["zero"].maximum or 0) and (plan.dp or 1) > 1:
        yield f"not modelled: {_ZERO[plan.zero or 0]}"
    if plan is not None and plan.zero_size not in (None, plan.dp) and "zero_size" not in read:
        yield "not modelled: sharding over a part of the data-parallel ranks"
    if kernel is not None and kernel.op == "attention" and kernel.causal is False and "causal" not in read:
        yield "not modelled: attention kernels without a causal mask"
    for name in DEFAULTS if record.kind != "collective" else ():
        if label_of(name, record, catalog, registry) is None:
            block = record.workload if name == "precision" else record.plan
            yield f"not modelled: {name} {getattr(block, name, None)} on {record.device}"


def _open(block: Block, place: str, names: Iterable[str], others: Iterable[str] = ()) -> Iterator[str]:
    """Fields of a block that a prediction needs and the source does not state."""
    found = [*(f"{place}.{name}" for name in names if getattr(block, name) is None), *others]
    if found:
        yield f"the source leaves open: {', '.join(found)}"


def _shape(kernel: Kernel, model: Model | None) -> Iterator[str]:
    """Missing fields of a kernel's shape, and directions that the operator does not have."""
    unknown = ["model.moe"] if kernel.op == "moe_layer" and (model is None or model.moe is None) else []
    yield from _open(kernel, "kernel", SHAPES.get(kernel.op, ()), unknown)
    if kernel.op in FORWARD and kernel.direction not in (None, "forward"):
        yield f"not modelled: {kernel.direction} of {kernel.op}"
