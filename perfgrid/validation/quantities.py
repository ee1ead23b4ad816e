"""The quantity that predicts a record, and formulas for kernels that have no quantity in a step.

A kernel that was timed on its own is a kernel of a one-layer model: an attention kernel that of a model with its heads,
a matrix product the first feed-forward product of a model with its widths, several products in one kernel those of
as many experts, and their gradients those of that product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfgrid.engine.graph.registry import formula
from perfgrid.formulas import BREAKDOWN
from perfgrid.formulas.axes import at, mean_of_kinds, of_kinds, only, total

from .schema import Record


def backward(times):
    """Times of the backward pass: both gradients."""
    return total(times * only("phase", "input_gradient", "weight_gradient"), "phase")


def trains_experts(record: Record) -> bool:
    """Whether a record times an expert layer in training: a backward pass, or no format in which weights are stored."""
    kernel, workload = record.kernel, record.workload
    if kernel is None or kernel.op != "moe_layer":
        return False
    stored = workload is not None and workload.weight_precision is not None
    return kernel.direction not in (None, "forward") or not stored


@formula(unit="s", source="nvidia2023matmul")
def product_busy_time(gemm_time):
    """Time of one matrix product [M,K]·[K,N] as the first feed-forward product of M tokens, by resource."""
    return at(gemm_time, phase="forward", product="ffn_up")


@formula(unit="s", source="gale2023megablocks")
def grouped_product_phases(grouped_time):
    """Time of several products [M,K]·[K,N] in one kernel, the first ones of as many experts, by resource and phase."""
    return at(grouped_time, expert_product="expert_up")


@formula(unit="s", source="gale2023megablocks")
def grouped_product_busy_time(grouped_product_phases):
    """Time of several products in one kernel, by resource."""
    return at(grouped_product_phases, phase="forward")


@formula(unit="s", source="gale2023megablocks")
def grouped_input_gradient_busy_time(grouped_product_phases):
    """Time of the input gradients of several products in one kernel, by resource."""
    return at(grouped_product_phases, phase="input_gradient")


@formula(unit="s", source="gale2023megablocks")
def grouped_weight_gradient_busy_time(grouped_product_phases):
    """Time of the weight gradients of several products in one kernel, by resource."""
    return at(grouped_product_phases, phase="weight_gradient")


@formula(unit="s", source="gale2023megablocks")
def grouped_backward_busy_time(grouped_product_phases):
    """Time of both gradients of several products in one kernel each, by resource."""
    return backward(grouped_product_phases)


@formula(unit="s", source="gale2023megablocks")
def grouped_training_busy_time(grouped_product_phases):
    """Time of several products in one kernel and of their gradients, by resource."""
    return total(grouped_product_phases, "phase")


@formula(unit="s", source="nvidia2026moe")
def routed_expert_phases(kind_layers, kind_has_experts, expert_busy_time):
    """Kernel time of routing and routed experts of one layer that has them, by resource and phase."""
    return of_kinds(kind_layers, expert_busy_time) / of_kinds(kind_layers, kind_has_experts)


@formula(unit="s", source="nvidia2026moe")
def routed_forward_busy_time(routed_expert_phases):
    """Forward time of the routed experts of one layer, by resource."""
    return at(routed_expert_phases, phase="forward")


@formula(unit="s", source="nvidia2026moe")
def routed_backward_busy_time(routed_expert_phases):
    """Backward time of the routed experts of one layer, by resource."""
    return backward(routed_expert_phases)


@formula(unit="s", source="nvidia2026moe")
def routed_training_busy_time(routed_expert_phases):
    """Forward and backward time of the routed experts of one layer, by resource."""
    return total(routed_expert_phases, "phase")


@formula(unit="s", source="dao2023flash2")
def attention_busy_time(core_busy_time, flash_time, unfused):
    """Time of the attention core of one layer, fused or not, by resource and phase."""
    return core_busy_time + (1 - unfused) * flash_time


@formula(unit="s", source="dao2023flash2")
def attention_forward_busy_time(attention_busy_time):
    """Forward time of the attention core of one layer, by resource."""
    return at(attention_busy_time, phase="forward")


@formula(unit="s", source="dao2023flash2")
def attention_training_busy_time(attention_busy_time):
    """Forward and backward time of the attention core of one layer, by resource."""
    return total(attention_busy_time, "phase")


@formula(unit="s", source="narayanan2021", family={"DIRECTION": ("forward", "backward")})
def mean_layer_DIRECTION_time(kind_layers, layer_DIRECTION_time):
    """DIRECTION time of the mean layer for one microbatch."""
    return mean_of_kinds(kind_layers, layer_DIRECTION_time)


@formula(unit="1", source="korthikanti2022")
def mean_layer_forward_flops(kind_layers, layer_forward_flops):
    """FLOPs per token of the mean layer's forward pass."""
    return mean_of_kinds(kind_layers, layer_forward_flops)


FORMULAS: tuple[Callable[..., Any], ...] = (
    product_busy_time,
    grouped_product_phases,
    grouped_product_busy_time,
    grouped_input_gradient_busy_time,
    grouped_weight_gradient_busy_time,
    grouped_backward_busy_time,
    grouped_training_busy_time,
    routed_expert_phases,
    routed_forward_busy_time,
    routed_backward_busy_time,
    routed_training_busy_time,
    attention_busy_time,
    attention_forward_busy_time,
    attention_training_busy_time,
    mean_layer_DIRECTION_time,
    mean_layer_forward_flops,
)
KERNELS = {  # (operator, direction) -> quantity
    ("gemm", "forward"): "product_busy_time",
    ("grouped gemm", "forward"): "grouped_product_busy_time",
    ("grouped gemm", "input_gradient"): "grouped_input_gradient_busy_time",
    ("grouped gemm", "weight_gradient"): "grouped_weight_gradient_busy_time",
    ("grouped gemm", "backward"): "grouped_backward_busy_time",
    ("grouped gemm", "forward_backward"): "grouped_training_busy_time",
    ("moe_layer", "forward"): "routed_forward_busy_time",
    ("moe_layer", "backward"): "routed_backward_busy_time",
    ("moe_layer", "forward_backward"): "routed_training_busy_time",
    ("attention", "forward"): "attention_forward_busy_time",
    ("attention", "forward_backward"): "attention_training_busy_time",
    ("transformer_layer", "forward"): "mean_layer_forward_time",
    ("transformer_layer", "backward"): "mean_layer_backward_time",
}
QUANTITIES = {
    "step_time": "step_time",
    "state_memory": "state_memory",
    "activation_memory": "activation_memory",
    "peak_memory": "memory_per_device",
    "allocator_memory": "allocator_memory",
}
LAYERS_ONLY = ("layer_state_memory", "layer_activation_memory")
# inputs of the trivial baseline
WORK = ("hardware_flops_per_token", "model_flops_per_token", "mean_layer_forward_flops", "total_parameters")
OUTPUTS = tuple(dict.fromkeys((*QUANTITIES.values(), *LAYERS_ONLY, *KERNELS.values(), *BREAKDOWN, *WORK)))


def answering(record: Record, of_group: dict[str, str]) -> str | None:
    """The quantity that predicts a record's value; ``of_group``: the conventions of its source."""
    if record.kind == "kernel":
        kernel = record.kernel
        if kernel is None:
            return None
        operator = f"grouped {kernel.op}" if kernel.op == "gemm" and (kernel.groups or 1) > 1 else kernel.op
        return KERNELS.get((operator, kernel.direction or "forward"))
    return of_group.get(record.quantity, QUANTITIES.get(record.quantity))
