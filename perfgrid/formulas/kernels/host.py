"""Kernels that wait for the host: it launches them one by one, and the device is idle where the host is slower.

Frameworks that interpret a model (eager PyTorch) need the host for every kernel, graphs and compiled programs hardly.
Kernels run without a gap as long as the host is ahead, so a layer and microbatch takes the longer of both times.
Launches are those that the formulas count; what a framework does beside them (views, casts, bookkeeping of the autograd
engine) is in the time of each.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.engine.graph.tables import bind
from perfgrid.formulas.axes import at, only, total

ATTENTION, LAYER = 1, 2  # codes of graph_scope: of larger ones graphs hold all of a layer
FFN_PRODUCTS = ("ffn_up", "ffn_down", "shared_up", "shared_down")
FFN_STREAMS = ("activation", "shared_activation")
GROUPED_PRODUCTS = 2  # matrices of an expert that one grouped kernel each multiplies: up (and gate) and down


def counted(time, overhead):
    """Kernels behind a time between kernels; none where nothing passes between them (one graph or program)."""
    return time / xp.where(overhead > 0, overhead, 1e10)


def in_scope(graph_scope, all_launches, ffn_launches):
    """Launches that graphs leave to the host: those of feed-forward parts beside attention and router, or none."""
    without_attention = xp.where(graph_scope == ATTENTION, ffn_launches, all_launches)
    return xp.where(graph_scope >= LAYER, 0.0, without_attention)


def late_host(host, device, other_host, other_device):
    """Time of a pass in which the device waits for the host: max(host - device, 0), less what the other catches up.

    The queue of kernels reaches from one pass of a layer and microbatch into the next: a host that is late forward
    catches up backward.
    """
    both = xp.maximum(host + other_host - (device + other_device), 0.0)
    return xp.minimum(xp.maximum(host - device, 0.0), both)


FORMULAS = tuple(
    entry
    for own, other in (("forward", "backward"), ("backward", "forward"))
    for entry in bind(
        late_host,
        f"layer_{own}_exposed_host_time",
        " ".join(f"layer_{way}_{which}_time" for way in (own, other) for which in ("host", "device")),
        *("s", "gray2019cudagraphs", f"Time of the {own} pass of one layer in which the device waits for the host."),
    )
)


@formula(unit="1", source="nvidia2026moe")
def expert_launches(products_by_expert, ep, kind_has_experts, experts):
    """Further kernels of one pass of one layer where every expert's product is a kernel of its own."""
    further = xp.where(experts > 0, kind_has_experts * GROUPED_PRODUCTS * (experts / ep - 1), 0.0)
    return xp.where(products_by_expert, further, 0.0)


@formula(unit="s", source="gray2019cudagraphs")
def ffn_launch_time(gemm_time, stream_time, layer_gemms, layer_streams, expert_busy_time):
    """Time between the kernels of the feed-forward parts of one layer, dense or of experts, by phase."""
    products = total(gemm_time * layer_gemms * only("product", *FFN_PRODUCTS), "product")
    streams = total(stream_time * layer_streams * only("stream_kernel", *FFN_STREAMS), "stream_kernel")
    return at(products + streams + expert_busy_time, resource="launch")


@formula(unit="1", source="gray2019cudagraphs")
def layer_forward_host_launches(graph_scope, layer_phase_time, ffn_launch_time, launch_overhead, expert_launches):
    """Kernels of the forward pass of one layer that the host starts: all, those of feed-forward parts, or none."""
    waiting = (at(layer_phase_time, phase="forward", resource="launch"), at(ffn_launch_time, phase="forward"))
    return in_scope(graph_scope, *(counted(time, launch_overhead) + expert_launches for time in waiting))


@formula(unit="1", source="gray2019cudagraphs")
def layer_backward_host_launches(
    graph_scope,
    layer_phase_time,
    layer_recompute_time,
    ffn_launch_time,
    launch_overhead,
    expert_launches,
    layer_recomputed,
):
    """Kernels of the backward pass of one layer that the host starts: all, those of feed-forward parts, or none.

    Those that compute again are among them.
    """
    backward = only("phase", "input_gradient", "weight_gradient")
    every = at(total(layer_phase_time * backward, "phase") + layer_recompute_time, resource="launch")
    forward = at(ffn_launch_time, phase="forward")
    waiting = (every, total(ffn_launch_time, "phase") - forward + layer_recomputed * forward)
    experts = (2 + layer_recomputed) * expert_launches
    return in_scope(graph_scope, *(counted(time, launch_overhead) + experts for time in waiting))


@formula(unit="s", source="pytorch2025debug")
def tp_host_time(tp, host_launch_time, collective_check_time, checked_collectives):
    """Host time of one tensor-parallel collective: a launch and, in runs that check them, its check.

    Checked collectives (``TORCH_DISTRIBUTED_DEBUG=DETAIL``) compare the calls of all ranks over the CPU first, one
    message after the other from every further rank.
    """
    check = xp.where(checked_collectives, collective_check_time * (tp - 1), 0.0)
    return xp.where(tp > 1, host_launch_time + check, 0.0)


@formula(unit="1", source="korthikanti2022")
def layer_forward_tp_calls(attention_tp_blocks, ffn_tp_blocks, sequence_parallel):
    """Tensor-parallel collectives of the forward pass of one layer: a reduction, or a gather and a scatter, a block."""
    return (attention_tp_blocks + ffn_tp_blocks) * xp.where(sequence_parallel, 2.0, 1.0)


@formula(unit="1", source="korthikanti2022")
def layer_backward_tp_calls(layer_tp_reductions, layer_tp_gathers, layer_forward_tp_calls):
    """Tensor-parallel collectives of the backward pass of one layer, those of recomputed passes included."""
    return layer_tp_reductions + layer_tp_gathers - layer_forward_tp_calls


@formula(unit="s", source="gray2019cudagraphs", family={"DIRECTION": ("forward", "backward")})
def layer_DIRECTION_host_time(
    graph_scope,
    layer_DIRECTION_host_launches,
    host_launch_time,
    layer_DIRECTION_tp_calls,
    attention_tp_blocks,
    ffn_tp_blocks,
    tp_host_time,
):
    """Time that the host needs for the DIRECTION pass of one layer: kernels·t(launch) + collectives·t(collective).

    Valid where one thread of the host launches everything. Graphs hold the collectives of what they start.
    """
    of_ffn = layer_DIRECTION_tp_calls * ffn_tp_blocks / (attention_tp_blocks + ffn_tp_blocks)
    calls = in_scope(graph_scope, layer_DIRECTION_tp_calls, of_ffn)
    return layer_DIRECTION_host_launches * host_launch_time + calls * tp_host_time


@formula(unit="s", source="gray2019cudagraphs")
def layer_forward_device_time(
    layer_forward_kernel_time,
    layer_forward_exposed_tp_time,
    layer_forward_exposed_cp_time,
    layer_forward_exposed_ep_time,
):
    """Time that the device needs for the forward pass of one layer: kernels + waits for TP, CP and EP."""
    waits = layer_forward_exposed_tp_time + layer_forward_exposed_cp_time + layer_forward_exposed_ep_time
    return layer_forward_kernel_time + waits


@formula(unit="s", source="gray2019cudagraphs")
def layer_backward_device_time(
    layer_backward_kernel_time,
    layer_recompute_kernel_time,
    layer_backward_exposed_tp_time,
    layer_backward_exposed_cp_time,
    layer_backward_exposed_ep_time,
):
    """Time that the device needs for the backward pass of one layer: kernels + recomputed + waits for TP, CP and EP."""
    waits = layer_backward_exposed_tp_time + layer_backward_exposed_cp_time + layer_backward_exposed_ep_time
    return layer_backward_kernel_time + layer_recompute_kernel_time + waits


# ---- what traffic of a step hides behind -----------------------------------------------------------------------------
# A pass as long as the host or the device makes the other one as short as the rest of a layer and microbatch. So where
# the host sets the pace of both, a faster device neither speeds up the passes nor leaves less time to hide traffic.


@formula(unit="s", source="gray2019cudagraphs")
def layer_forward_hiding_time(layer_time, layer_backward_device_time, layer_backward_host_time):
    """Time of the forward pass of one layer behind which traffic hides: the pass, or less where one catches up."""
    return layer_time - xp.maximum(layer_backward_device_time, layer_backward_host_time)


@formula(unit="s", source="gray2019cudagraphs")
def layer_backward_hiding_time(layer_time, layer_forward_device_time, layer_forward_host_time):
    """Time of the backward pass of one layer behind which traffic hides: at most the pass, less if one catches up."""
    return layer_time - xp.maximum(layer_forward_device_time, layer_forward_host_time)
