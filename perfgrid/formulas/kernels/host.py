"""Kernels that wait for the host: it starts them one by one, and the device is idle where it is the slower of the two.

Frameworks that interpret a model (eager PyTorch) need the host for every kernel, graphs and compiled programs hardly.
Kernels of one pass follow each other without the host as long as it is ahead; a pass takes as long as the slower of
both. Launches are those that the formulas count: what a framework starts beside them (views, casts, bookkeeping of the
autograd engine) is in the time of each.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import at, only, total

DIRECTIONS = {"DIRECTION": ("forward", "backward")}
GROUPED_PRODUCTS = 2  # matrices of an expert that one grouped kernel each multiplies: up (and gate) and down


def counted(time, overhead):
    """Kernels behind a time between kernels; none where nothing passes between them (one graph or program)."""
    return time / xp.where(overhead > 0, overhead, 1e10)


@formula(unit="1", source="nvidia2026moe")
def expert_launches(products_by_expert, rank_experts, moe_share, experts):
    """Further kernels of one pass of the mean layer where every expert's product is a kernel of its own."""
    further = xp.where(experts > 0, moe_share * GROUPED_PRODUCTS * (rank_experts - 1), 0.0)
    return xp.where(products_by_expert, further, 0.0)


@formula(unit="1", source="gray2019cudagraphs")
def layer_forward_launches(layer_phase_time, launch_overhead, expert_launches):
    """Kernels of the forward pass of the mean layer for one microbatch."""
    waiting = at(at(layer_phase_time, phase="forward"), resource="launch")
    return counted(waiting, launch_overhead) + expert_launches


@formula(unit="1", source="gray2019cudagraphs")
def layer_backward_launches(layer_phase_time, layer_recompute_time, launch_overhead, expert_launches, layer_recomputed):
    """Kernels of the backward pass of the mean layer for one microbatch, those that compute again included."""
    phases = total(layer_phase_time * only("phase", "input_gradient", "weight_gradient"), "phase")
    waiting = at(phases + layer_recompute_time, resource="launch")
    return counted(waiting, launch_overhead) + (2 + layer_recomputed) * expert_launches


@formula(unit="s", source="gray2019cudagraphs", family=DIRECTIONS)
def layer_DIRECTION_host_time(layer_DIRECTION_launches, host_launch_time):
    """Time in which the host starts the kernels of the DIRECTION pass of the mean layer."""
    return layer_DIRECTION_launches * host_launch_time


@formula(unit="s", source="korthikanti2022")
def layer_forward_free_time(layer_forward_kernel_time):
    """Kernel time of the forward pass of the mean layer."""
    return layer_forward_kernel_time


@formula(unit="s", source="korthikanti2022")
def layer_backward_free_time(layer_backward_kernel_time, layer_recompute_kernel_time):
    """Kernel time of the backward pass of the mean layer, what it computes again included."""
    return layer_backward_kernel_time + layer_recompute_kernel_time


@formula(unit="s", source="gray2019cudagraphs", family=DIRECTIONS)
def layer_DIRECTION_exposed_host_time(
    layer_DIRECTION_host_time,
    layer_DIRECTION_free_time,
    layer_DIRECTION_exposed_tp_time,
    layer_DIRECTION_exposed_cp_time,
    layer_DIRECTION_exposed_ep_time,
):
    """Time of the DIRECTION pass of the mean layer in which the device has nothing to do until the host goes on."""
    waits = layer_DIRECTION_exposed_tp_time + layer_DIRECTION_exposed_cp_time + layer_DIRECTION_exposed_ep_time
    return xp.maximum(layer_DIRECTION_host_time - layer_DIRECTION_free_time - waits, 0.0)


@formula(unit="s", source="gray2019cudagraphs")
def layer_exposed_host_time(layer_forward_exposed_host_time, layer_backward_exposed_host_time):
    """Time of the mean layer for one microbatch in which the device waits for the host."""
    return layer_forward_exposed_host_time + layer_backward_exposed_host_time


@formula(unit="s", source="gray2019cudagraphs", family={"PART": ("embedding", "head")})
def PART_exposed_host_time():
    """Time of the PART in which the device waits for the host: its few kernels are long."""
    return 0.0
