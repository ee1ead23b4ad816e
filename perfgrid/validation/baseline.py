"""The trivial baseline: the work of a device over one constant rate per device and precision.

Of a training step the work is its hardware FLOPs (recomputation counted) per device, times one plus the bubble of equal
pipeline stages; of a kernel its FLOPs; of a collective the bytes over a link; of memory the parameters that a device
holds without sharding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .collectives import link_bytes
from .design import Row
from .mixers import mixer_flops, mixes
from .schema import Record

PASSES = {"forward_backward": 3.0, "backward": 2.0} | dict.fromkeys(
    ("forward", "input_gradient", "weight_gradient"), 1.0
)


def kind_of(record: Record) -> tuple[str, ...]:
    """Rows of one kind share a constant of the baseline."""
    precision = (record.workload.precision if record.workload else None) or ""
    what = record.quantity if record.kernel is None else f"{record.kernel.op} {record.kernel.version}"
    what = f"{record.collective.op} {what}" if record.collective is not None else what
    return record.device, precision, what


def bubble_share(columns: Mapping[str, Any]) -> float:
    """Idle over busy time of equal stages: (p - 1) / (v·m) (Narayanan et al. 2021, section 2.2)."""
    microbatches = max(columns["global_batch"] / (columns["dp"] * columns["microbatch"]), 1.0)
    return (columns["pp"] - 1) / (columns["chunks"] * microbatches)


def kernel_flops(record: Record, columns: Mapping[str, Any], at: Mapping[str, Any]) -> float:
    """FLOPs of a kernel as its source counts them: a causal mask halves them, backward is 2.5 forwards."""
    kernel = record.kernel
    assert kernel is not None
    if mixes(record):
        return mixer_flops(kernel, at)
    if kernel.op == "gemm":
        passes = PASSES[kernel.direction or "forward"]
        return passes * 2.0 * (kernel.groups or 1) * (kernel.m or 0) * (kernel.n or 0) * (kernel.k or 0)
    if kernel.op == "decode_attention":
        return 4.0 * (kernel.batch or 1) * (kernel.sequence_length or 1) * (kernel.heads or 1) * (kernel.head_dim or 1)
    if kernel.op == "moe_layer" and record.model and record.model.moe:
        model, moe = record.model, record.model.moe
        matrix = (model.hidden_size or 1) * moe.expert_ffn_size
        passes = PASSES[kernel.direction or "forward"]
        return passes * 2.0 * (kernel.m or 1) * moe.experts_per_token * (3 if model.gated_ffn else 2) * matrix
    tokens, length = columns["microbatch"] * columns["sequence_length"], columns["sequence_length"]
    if kernel.op == "attention":
        whole = 4.0 * tokens * length * (kernel.heads or 0) * (kernel.head_dim or 0)
        return whole * (0.5 if kernel.causal else 1.0) * (3.5 if kernel.direction == "forward_backward" else 1.0)
    layers = record.model.layers if record.model and record.model.layers else 1
    repeated = (at["hardware_flops_per_token"] - at["model_flops_per_token"]) / layers
    forward = float(at["mean_layer_forward_flops"])
    return (forward if kernel.direction == "forward" else 2 * forward + repeated) * tokens / columns["tp"]


def work_of(row: Row, at: Mapping[str, Any]) -> float:
    """The work that the baseline multiplies by its constant; ``at``: outputs of the row."""
    record, columns = row.record, row.columns
    if record.kind == "kernel":
        return kernel_flops(record, columns, at)
    if record.kind == "collective":
        return link_bytes(record, at)
    if record.kind == "memory":
        return float(at["total_parameters"]) / columns["tp"] / columns["pp"]
    if record.plan is not None and record.plan.prefill is not None:  # of two pools: tokens of a prompt, or steps
        return float(columns["prompt_tokens"]) if record.quantity == "time_to_first_token" else 1.0
    if record.kind == "inference":
        bound = float(at["request_bound_time"])
        return 1 / bound if record.quantity.endswith("per_second") else bound
    flops = float(at["hardware_flops_per_token"]) * columns["global_batch"] * columns["sequence_length"]
    return flops / columns["devices"] * (1 + bubble_share(columns))


def done_by_a_device(row: Row, at: Mapping[str, Any]) -> float:
    """Work of one device in the predicted time: tokens of a step, FLOPs of a kernel; 1 for memory."""
    if row.record.kind == "kernel":
        return kernel_flops(row.record, row.columns, at)
    if row.record.kind == "collective":
        return link_bytes(row.record, at)
    if row.record.kind in ("memory", "inference"):
        return 1.0
    return row.columns["global_batch"] * row.columns["sequence_length"] / row.columns["devices"]
