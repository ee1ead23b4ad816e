"""Offloading to host memory: optimizer state, sharded weights too, or activations between both passes.

The label ``offload`` selects. Optimizer state on the host: reduced gradients go there behind the last backward pass,
the host takes the optimizer step, and new weights come back while it goes on. Parameters: weights, gradients and state
are there, and the shard of a layer comes to the device for every pass, while others compute. Activations: those of
every layer go to the host while the next one computes and return one layer ahead of the backward pass; the device holds
two layers.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import of_kinds
from perfgrid.formulas.parallelism.tensor_parallel import exposed_in_parts
from perfgrid.formulas.pipelines.stages import largest_of_stages

FORMULAS = by_label(
    "offload",
    {
        "offloaded_state_size": ("byte", "ren2021offload", "Bytes of optimizer state per parameter on the host."),
        "resident_share": (
            *("1", "ren2021offload"),
            "Part of a layer's activations that stays on the device until the backward pass.",
        ),
        "layers_in_transit": (
            *("1", "ren2021offload"),
            "Layers whose activations are on their way to the host or back, or in use meanwhile.",
        ),
        "exposed_offload_time": ("s", "ren2021offload", "Time of one step that waits for the host."),
        "on_device_optimizer": ("1", "ren2021offload", "1 where the device takes the optimizer step."),
        "resident_weights": ("1", "rajbhandari2021infinity", "1 where weights and gradients stay on the device."),
        "moves_named": ("1", "google2026maxtext", "1 where named results of a layer are in host memory."),
        "host_reached": ("1", "ren2021offload", "1 where the host can be reached as the offloading needs."),
    },
    {
        "none": ("paged_moments", 1, 0, "paging_time", 1, 1, 0, 1),
        "optimizer": ("state_size", 1, 0, None, 0, 1, 0, None),
        "parameters": ("state_size", 1, 0, None, 0, 0, 0, None),
        "activations": ("paged_moments", 0, 2, None, 1, 1, 0, None),
        "named": ("paged_moments", None, None, None, 1, 1, 1, None),
    },
)


def _by(of, label, unit):
    return alternative(of=of, by="offload", label=label, unit=unit, source="ren2021offload")


# ---- time -----------------------------------------------------------------------------------------------------------


@formula(unit="byte/s", source="ren2021offload")
def usable_host_bandwidth(host_bandwidth, achieved_hbm_bandwidth):
    """Bandwidth between device and host; where none is known (a flagged point) that of the device memory stands in."""
    return xp.where(host_bandwidth > 0, host_bandwidth, achieved_hbm_bandwidth)


@formula(unit="byte/s", source="ren2021offload")
def usable_host_memory_bandwidth(host_memory_bandwidth, usable_host_bandwidth):
    """Bandwidth of a device's share of the host memory; where none is known that of the link stands in."""
    return xp.where(host_memory_bandwidth > 0, host_memory_bandwidth, usable_host_bandwidth)


@_by("layers_in_transit", "named", "1")
def named_layers_in_transit(resident_share):
    """Layers whose activations are on their way to the host or back, or in use meanwhile: their part in host memory."""
    return 2 * (1 - resident_share)


@alternative(of="exposed_offload_time", by="offload", label=("activations", "named"), unit="s", source="ren2021offload")
def LABEL_exposed_offload_time(
    layer_activations,
    resident_share,
    usable_host_bandwidth,
    layer_forward_hiding_time,
    layer_backward_hiding_time,
    microbatches,
    slowest_stage_layers,
    slowest_stage_kind_layers,
    paging_time,
):
    """Time of one step that waits for activations: those of a layer move while another computes, both ways."""
    layers = xp.maximum(slowest_stage_layers, 1.0)
    moving = of_kinds(slowest_stage_kind_layers, (1 - resident_share) * layer_activations) / usable_host_bandwidth
    going = exposed_in_parts(moving, layers, of_kinds(slowest_stage_kind_layers, layer_forward_hiding_time))
    coming = exposed_in_parts(moving, layers, of_kinds(slowest_stage_kind_layers, layer_backward_hiding_time))
    return microbatches * (going + coming) + paging_time


@formula(unit="s", source="ren2021offload")
def host_optimizer_time(state_parameters, step_traffic, usable_host_memory_bandwidth):
    """Time of the optimizer step of one device's share of the state in host memory."""
    return state_parameters * step_traffic / usable_host_memory_bandwidth


@_by("exposed_offload_time", "optimizer", "s")
def optimizer_exposed_offload_time(
    state_parameters,
    reduced_gradient_size,
    gathered_weight_size,
    usable_host_bandwidth,
    host_optimizer_time,
    gradient_buckets,
    dp_overlap,
    first_stage_kind_layers,
    layer_backward_hiding_time,
):
    """Time of one step that waits for the host: gradients that the backward pass does not hide, and the step there.

    New weights return piece by piece while the host goes on.
    """
    gradients = state_parameters * reduced_gradient_size / usable_host_bandwidth
    weights = state_parameters * gathered_weight_size / usable_host_bandwidth
    hidden = dp_overlap * of_kinds(first_stage_kind_layers, layer_backward_hiding_time)
    return exposed_in_parts(gradients, gradient_buckets, hidden) + xp.maximum(host_optimizer_time, weights)


@formula(unit="byte", source="rajbhandari2021infinity")
def host_weights(
    parameters_by_stage,
    stage_matrix_parameters,
    adapter_parameters_by_stage,
    frozen_weight_share,
    quantisation_saving,
    weight_size,
    shard,
):
    """Weights of one device of the fullest stage as they are stored in host memory."""
    frozen = frozen_weight_share * parameters_by_stage - quantisation_saving * stage_matrix_parameters
    return largest_of_stages(frozen + adapter_parameters_by_stage) * weight_size / shard


@_by("exposed_offload_time", "parameters", "s")
def parameters_exposed_offload_time(
    host_weights,
    usable_host_bandwidth,
    parameter_overlap,
    gathering_passes,
    regathered,
    microbatches,
    slowest_stage_layers,
    slowest_stage_kind_layers,
    layer_forward_hiding_time,
    layer_backward_hiding_time,
    state_parameters,
    reduced_gradient_size,
    gradient_buckets,
    dp_overlap,
    host_optimizer_time,
):
    """Time of one step that waits for the host: shards that passes do not hide, gradients, and the step there."""
    layers, moving = xp.maximum(slowest_stage_layers, 1.0), host_weights / usable_host_bandwidth
    forward = of_kinds(slowest_stage_kind_layers, layer_forward_hiding_time)
    backward = of_kinds(slowest_stage_kind_layers, layer_backward_hiding_time)
    going = gathering_passes * exposed_in_parts(moving, layers, parameter_overlap * forward)
    again = regathered * microbatches * exposed_in_parts(moving, layers, parameter_overlap * backward)
    gradients = state_parameters * reduced_gradient_size / usable_host_bandwidth
    leaving = exposed_in_parts(gradients, gradient_buckets, dp_overlap * backward)
    return going + again + leaving + host_optimizer_time


# ---- what is possible -----------------------------------------------------------------------------------------------


@alternative(
    of="host_reached",
    by="offload",
    label=("optimizer", "parameters", "activations", "named"),
    unit="1",
    source="ren2021offload",
)
def LABEL_host_reached(host_bandwidth):
    """1 where the host can be reached as the offloading needs (offload: LABEL): its link is known."""
    return xp.where(host_bandwidth > 0, 1.0, 0.0)


@constraint(
    reason="the bandwidth between device and host is not known: no moments in pages", source="dettmers2023qlora"
)
def pages_have_link(paging_time, host_bandwidth):
    """Pages that move need a link to the host."""
    return (paging_time <= 0) | (host_bandwidth > 0)


@constraint(reason="the bandwidth between device and host is not known: offload must be none", source="ren2021offload")
def offload_has_link(host_reached):
    """Offloading needs a link to the host."""
    return host_reached > 0


@constraint(reason="parameters in host memory need sharded weights: zero must be 3", source="rajbhandari2021infinity")
def parameters_are_sharded(resident_weights, zero):
    """Weights come from the host layer by layer where they are gathered so."""
    return (resident_weights > 0) | (zero >= 3)
