"""Kernels that wait for the host: it launches them one by one, and the device is idle where the host is slower.

Frameworks that interpret a model (eager PyTorch) need the host for every kernel, graphs and compiled programs hardly.
The kernels of a pass run without a gap as long as the host is ahead, so a pass takes the longer of both times. Launches
are those that the formulas count; what a framework does beside them (views, casts, bookkeeping of the autograd engine)
is in the time of each.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import at, only, total

GROUPED_PRODUCTS = 2  # matrices of an expert that one grouped kernel each multiplies: up (and gate) and down


def counted(time, overhead):
    """Kernels behind a time between kernels; none where nothing passes between them (one graph or program)."""
    return time / xp.where(overhead > 0, overhead, 1e10)


@formula(unit="1", source="nvidia2026moe")
def expert_launches(products_by_expert, ep, kind_has_experts, experts):
    """Further kernels of one pass of one layer where every expert's product is a kernel of its own."""
    further = xp.where(experts > 0, kind_has_experts * GROUPED_PRODUCTS * (experts / ep - 1), 0.0)
    return xp.where(products_by_expert, further, 0.0)


@formula(unit="1", source="gray2019cudagraphs")
def layer_forward_launches(layer_phase_time, launch_overhead, expert_launches):
    """Kernels of the forward pass of one layer for one microbatch."""
    waiting = at(at(layer_phase_time, phase="forward"), resource="launch")
    return counted(waiting, launch_overhead) + expert_launches


@formula(unit="1", source="gray2019cudagraphs")
def layer_backward_launches(layer_phase_time, layer_recompute_time, launch_overhead, expert_launches, layer_recomputed):
    """Kernels of the backward pass of one layer for one microbatch, those that compute again included."""
    phases = total(layer_phase_time * only("phase", "input_gradient", "weight_gradient"), "phase")
    waiting = at(phases + layer_recompute_time, resource="launch")
    return counted(waiting, launch_overhead) + (2 + layer_recomputed) * expert_launches


def host_beyond(launches, host_launch_time, kernel_time, waits):
    """Time that the host takes beyond kernels and their waits: max(launches · host - device, 0)."""
    return xp.maximum(launches * host_launch_time - kernel_time - waits, 0.0)


@formula(unit="s", source="gray2019cudagraphs")
def layer_forward_exposed_host_time(
    layer_forward_launches,
    host_launch_time,
    layer_forward_kernel_time,
    layer_forward_exposed_tp_time,
    layer_forward_exposed_cp_time,
    layer_forward_exposed_ep_time,
):
    """Time of the forward pass of one layer in which the device waits for the host."""
    waits = layer_forward_exposed_tp_time + layer_forward_exposed_cp_time + layer_forward_exposed_ep_time
    return host_beyond(layer_forward_launches, host_launch_time, layer_forward_kernel_time, waits)


@formula(unit="s", source="gray2019cudagraphs")
def layer_backward_exposed_host_time(
    layer_backward_launches,
    host_launch_time,
    layer_backward_kernel_time,
    layer_recompute_kernel_time,
    layer_backward_exposed_tp_time,
    layer_backward_exposed_cp_time,
    layer_backward_exposed_ep_time,
):
    """Time of the backward pass of one layer, recomputation included, in which the device waits for the host."""
    waits = layer_backward_exposed_tp_time + layer_backward_exposed_cp_time + layer_backward_exposed_ep_time
    kernels = layer_backward_kernel_time + layer_recompute_kernel_time
    return host_beyond(layer_backward_launches, host_launch_time, kernels, waits)
