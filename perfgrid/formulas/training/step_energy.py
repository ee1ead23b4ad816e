"""Energy of a training step: kernels of all devices, bytes on links, and static power while the step lasts.

The parts of `ENERGIES` add up to ``step_energy`` exactly. Hosts, switches and cooling are not in it: `system_cost`.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import at, of_kinds, only, table, total
from perfgrid.formulas.hardware.power import boost
from perfgrid.formulas.kernels.energy import ON_CHIP, streamed
from perfgrid.formulas.mixer_kinds import NONE

from .adapters import adapter_traffic
from .token_prediction import INPUTS

ENERGIES = (
    "arithmetic_energy",
    "shared_memory_energy",
    "l2_energy",
    "hbm_energy",
    "scale_up_energy",
    "scale_out_energy",
    "static_energy",
)

# ---- kernels: of a microbatch on one rank, of a step on all devices -------------------------------------------------


@alternative(of="core_phase_energy", by="mixer", label=NONE, unit="J", source="hong2010power")
def plain_core_phase_energy(core_energy, core_kernels, stream_energy, core_streams):
    """Energy of the unfused attention core of one layer, by resource and phase; 0 with the fused kernel."""
    return total(core_energy * core_kernels, "attention_kernel") + total(stream_energy * core_streams, "stream_kernel")


def energy_beside_core(
    gemm_pass_energy,
    layer_gemms,
    stream_energy,
    layer_streams,
    grouped_pass_energy,
    layer_grouped_gemms,
    expert_stream_energy,
    layer_expert_streams,
    cast_energy,
    adapter_energy,
):
    """Energy of one layer without its attention core, by resource and phase."""
    return (
        total(gemm_pass_energy * layer_gemms, "product")
        + total(stream_energy * layer_streams, "stream_kernel")
        + total(grouped_pass_energy * layer_grouped_gemms, "expert_product")
        + total(expert_stream_energy * layer_expert_streams, "expert_stream_kernel")
        + cast_energy
        + adapter_energy
    )


@alternative(of="rest_phase_energy", by="mixer", label=NONE, unit="J", source="hong2010power")
def plain_rest_phase_energy(
    gemm_pass_energy,
    layer_gemms,
    stream_energy,
    layer_streams,
    grouped_pass_energy,
    layer_grouped_gemms,
    expert_stream_energy,
    layer_expert_streams,
    cast_energy,
    adapter_energy,
    flash_energy,
    unfused,
):
    """Energy of one layer without an unfused attention core, by resource and phase."""
    products = (gemm_pass_energy, layer_gemms, stream_energy, layer_streams)
    experts = (grouped_pass_energy, layer_grouped_gemms, expert_stream_energy, layer_expert_streams)
    return energy_beside_core(*products, *experts, cast_energy, adapter_energy) + (1 - unfused) * flash_energy


@formula(unit="J", source="hu2021lora")
def adapter_energy(
    adapter_flops,
    lora_rank,
    adapted_gemms,
    joined_matrices,
    gemm_inputs,
    gemm_outputs,
    adapter_input_traffic,
    adapter_output_traffic,
    microbatch_tokens,
    activation_size,
    unquantised_format_energy,
    half_precision_operation_energy,
    crossing_byte_energy,
    memory_access_energy,
    dequantisation_traffic,
):
    """Energy of the adapters of one layer, by resource and phase: operations and bytes of `adapter_time`."""
    arithmetic = adapter_flops * unquantised_format_energy * half_precision_operation_energy
    shape = (joined_matrices, lora_rank, gemm_inputs, gemm_outputs)
    traffic = adapter_traffic(*shape, activation_size, adapter_input_traffic, adapter_output_traffic)
    moved = microbatch_tokens * total(adapted_gemms * traffic, "product")
    moved = moved + dequantisation_traffic
    return streamed(moved, crossing_byte_energy, memory_access_energy, arithmetic)


@formula(unit="J", source="nvidia2026recompute")
def module_recompute_energy(
    gemm_energy,
    latent_gemms,
    latents_recomputed,
    stream_energy,
    recomputed_streams,
    expert_stream_energy,
    layer_expert_streams,
    activation_function_recomputed,
):
    """Energy to compute outputs of single modules of one layer again, by resource."""
    experts = at(expert_stream_energy * layer_expert_streams, phase="forward", expert_stream_kernel="expert_activation")
    products = at(gemm_energy, phase="forward") * latent_gemms * latents_recomputed
    streams = at(stream_energy, phase="forward") * recomputed_streams
    again = total(products, "product") + total(streams, "stream_kernel")
    return again + activation_function_recomputed * experts


@formula(unit="J", source="korthikanti2022")
def layer_energy(core_phase_energy, rest_phase_energy, core_recomputed, layer_recomputed, module_recompute_energy):
    """Energy of one layer for one microbatch on one rank, forward, backward and recomputed, by resource."""
    core, rest = (at(energy, phase="forward") for energy in (core_phase_energy, rest_phase_energy))
    again = core_recomputed * core + layer_recomputed * rest + module_recompute_energy
    return total(core_phase_energy + rest_phase_energy, "phase") + again


@formula(unit="J", source="hong2010power")
def head_energy(gemm_pass_energy, stream_energy):
    """Energy of final norm, output head and loss for one microbatch on one rank, by resource."""
    products = total(gemm_pass_energy * only("product", "logits"), "product")
    streams = total(stream_energy * only("stream_kernel", "norm", "loss"), "stream_kernel")
    return total(products + streams, "phase")


@formula(unit="J", source="deepseek2024v3")
def mtp_energy(gemm_pass_energy, stream_energy):
    """Energy of one prediction module for one microbatch on one rank, layer, embedding and head apart, by resource."""
    projection = at(gemm_pass_energy, product="mtp_projection")
    return total(projection + INPUTS * at(stream_energy, stream_kernel="norm"), "phase")


@formula(unit="J", source="hong2010power")
def embedding_energy(stream_energy):
    """Energy of the embedding for one microbatch on one rank, by resource."""
    return total(at(stream_energy, stream_kernel="embedding"), "phase")


@formula(unit="1", source="narayanan2021")
def layer_runs(microbatches, replica, tp):
    """How often each layer runs in one step, over all microbatches and all ranks that hold it."""
    return microbatches * replica * tp


@formula(unit="1", source="deepseek2024v3")
def mtp_parameters(
    mtp_layers,
    layer_parameters,
    moe_layer_parameters,
    experts,
    mtp_projection_parameters,
    hidden_size,
    tied,
    embedding_parameters,
):
    """Parameters of all prediction modules, routed experts included, and of the table that their stage keeps."""
    layer = xp.where(experts > 0, moe_layer_parameters, layer_parameters)
    module = layer + mtp_projection_parameters + (INPUTS + 1) * hidden_size  # and three norms
    return mtp_layers * module + xp.where(mtp_layers > 0, tied - 1, 0.0) * embedding_parameters


@formula(unit="J", source="kingma2015adam")
def optimizer_energy(
    trained_parameters,
    mtp_parameters,
    mtp_layers,
    trains_weights,
    moe_layers,
    experts,
    expert_parameters,
    replica,
    shard,
    shard_gradient_size,
    expert_replica,
    expert_shard,
    expert_shard_gradient_size,
    step_traffic,
    memory_access_energy,
):
    """Energy of the optimizer step of all devices: traffic of every rank's part of the state, and clearing."""
    trained = trained_parameters + trains_weights * mtp_parameters
    routed = trains_weights * (moe_layers + xp.where(experts > 0, mtp_layers, 0.0)) * experts * expert_parameters
    dense = (trained - routed) * replica * (step_traffic / shard + shard_gradient_size)
    of_experts = routed * expert_replica * (step_traffic / expert_shard + expert_shard_gradient_size)
    return (dense + of_experts) * memory_access_energy


@formula(unit="J", source="hong2010power")
def kernel_energy(
    layer_runs,
    kind_layers,
    mtp_layers,
    mtp_kind_layers,
    head_passes,
    layer_energy,
    embedding_energy,
    head_energy,
    mtp_energy,
    optimizer_energy,
):
    """Energy of all kernels of one step on all devices, by resource."""
    ends = head_passes * (embedding_energy + head_energy) + mtp_layers * mtp_energy
    kernels = layer_runs * (of_kinds(kind_layers + mtp_kind_layers, layer_energy) + ends)
    return kernels + optimizer_energy * only("resource", "hbm")


@formula(unit="J", source="hong2010power")
def arithmetic_energy(kernel_energy, step_boost):
    """Energy of one step on all devices that goes to the operations."""
    return at(kernel_energy, resource="arithmetic") * step_boost


@formula(unit="J", source="hong2010power")
def shared_memory_energy(kernel_energy, step_boost):
    """Energy of one step on all devices that goes to the scratchpads."""
    return at(kernel_energy, resource="shared_memory") * step_boost


@formula(unit="J", source="hong2010power")
def l2_energy(kernel_energy, step_boost):
    """Energy of one step on all devices that goes to the last-level caches."""
    return at(kernel_energy, resource="l2") * step_boost


@formula(unit="J", source="hong2010power")
def hbm_energy(kernel_energy):
    """Energy of one step on all devices that goes to the device memories."""
    return at(kernel_energy, resource="hbm")


# ---- links ----------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="shoeybi2019megatron")
def tp_step_bytes(layer_runs, kind_layers, layer_tp_bytes, embedding_tp_bytes, head_tp_bytes, loss_tp_bytes):
    """Bytes that all devices send to tensor-parallel ranks in one step: the head sends for prediction modules too."""
    return layer_runs * (of_kinds(kind_layers, layer_tp_bytes) + embedding_tp_bytes + head_tp_bytes + loss_tp_bytes)


@formula(unit="byte", source="rajbhandari2020zero")
def dp_step_bytes(dp_bytes, devices):
    """Bytes that all devices send to data-parallel ranks in one step, if all stages were as full as the fullest."""
    return dp_bytes * devices


@formula(unit="byte", source="rajbhandari2020zero")
def expert_replica_step_bytes(expert_replica_bytes, devices):
    """Bytes of these that are gradients and weights of routed experts."""
    return expert_replica_bytes * devices


@formula(unit="byte", source="narayanan2021")
def pp_step_bytes(layer_runs, pp, chunks, pp_message):
    """Bytes that all devices send to the next and the previous stage in one step."""
    return layer_runs * 2 * (pp * chunks - 1) * xp.where(pp > 1, pp_message, 0.0)


@formula(unit="byte", source="liu2023ring")
def cp_step_bytes(layer_runs, layers, mtp_layers, layer_cp_bytes):
    """Bytes that all devices send to context-parallel ranks in one step."""
    return layer_runs * (layers + mtp_layers) * layer_cp_bytes


@formula(unit="byte", source="lepikhin2021gshard")
def ep_step_bytes(
    layer_runs,
    kind_layers,
    mtp_kind_layers,
    kind_has_experts,
    layer_recomputed,
    ep_dispatch_tier_bytes,
    ep_combine_tier_bytes,
    uneven_load,
):
    """Bytes that all devices send to expert-parallel ranks in one step, by tier."""
    passes = layer_runs * of_kinds(kind_layers + mtp_kind_layers, kind_has_experts) * (2 + layer_recomputed)
    return passes * (ep_dispatch_tier_bytes + ep_combine_tier_bytes) / uneven_load


@formula(unit="byte", source="liu2025folding")
def etp_step_bytes(layer_runs, kind_layers, mtp_kind_layers, layer_etp_bytes, uneven_load):
    """Bytes that all devices send in one step to the ranks which share experts."""
    return layer_runs * of_kinds(kind_layers + mtp_kind_layers, layer_etp_bytes) / uneven_load


@formula(unit="byte", source="cho2019blueconnect")
def link_bytes(
    tp_step_bytes,
    cp_step_bytes,
    dp_step_bytes,
    expert_replica_step_bytes,
    pp_step_bytes,
    ep_step_bytes,
    etp_step_bytes,
    tp_crossing_share,
    cp_crossing_share,
    replica_crossing_share,
    expert_replica_crossing_share,
    pp_crossing_share,
    etp_crossing_share,
):
    """Bytes that all devices send in one step, by tier."""
    groups = (
        (tp_step_bytes, tp_crossing_share),
        (cp_step_bytes, cp_crossing_share),
        (dp_step_bytes - expert_replica_step_bytes, replica_crossing_share),
        (expert_replica_step_bytes, expert_replica_crossing_share),
        (pp_step_bytes, pp_crossing_share),
        (etp_step_bytes, etp_crossing_share),
    )
    leaving = sum(sent * share for sent, share in groups)
    return ep_step_bytes + table("tier", scale_up=sum(sent for sent, _ in groups) - leaving, scale_out=leaving)


@formula(unit="J", source="zhang2024llmcompass")
def scale_up_energy(link_bytes, scale_up_byte_energy):
    """Energy of the scale-up interfaces of all devices in one step."""
    return at(link_bytes, tier="scale_up") * scale_up_byte_energy


@formula(unit="J", source="zhang2024llmcompass")
def scale_out_energy(link_bytes, scale_out_byte_energy):
    """Energy of the interfaces of all devices to the network in one step."""
    return at(link_bytes, tier="scale_out") * scale_out_byte_energy


# ---- the step -------------------------------------------------------------------------------------------------------


@formula(unit="J", source="kandiah2021accelwattch")
def static_energy(static_power, idle_power, step_time, exposed_host_time, between_steps_time, devices):
    """Energy of one step that all devices draw whatever they do: less while they wait for their hosts.

    Devices that wait for each other run kernels that look for data all the time.
    """
    waiting = exposed_host_time + between_steps_time
    return (static_power * (step_time - waiting) + idle_power * waiting) * devices


@formula(unit="1", source="perfgrid2026probe")
def step_boost(
    kernel_energy,
    hbm_energy,
    scale_up_energy,
    scale_out_energy,
    static_energy,
    thermal_design_power,
    step_time,
    devices,
    reachable_boost,
):
    """Energy of on-chip events in a step over that at the sustained clock, as far as the power limit allows."""
    others = hbm_energy + scale_up_energy + scale_out_energy + static_energy
    on_chip = total(kernel_energy * only("resource", *ON_CHIP), "resource")
    duration = step_time * devices
    return boost(thermal_design_power, others / duration, on_chip / duration, reachable_boost)


@formula(unit="J", source="hong2010power")
def step_energy(
    arithmetic_energy, shared_memory_energy, l2_energy, hbm_energy, scale_up_energy, scale_out_energy, static_energy
):
    """Energy of one step of all devices: operations, bytes of every level and link, and static; hosts apart."""
    on_chip = arithmetic_energy + shared_memory_energy + l2_energy
    return on_chip + hbm_energy + scale_up_energy + scale_out_energy + static_energy


@alternative(of="average_power", by="workload", label="training", unit="W", source="hong2010power")
def training_average_power(step_energy, step_time, devices):
    """Mean power of one device over a step."""
    return step_energy / step_time / devices


@alternative(of="energy_per_token", by="workload", label="training", unit="J", source="patterson2021carbon")
def training_energy_per_token(step_energy, tokens_per_step):
    """Energy of all devices per trained token."""
    return step_energy / tokens_per_step


@formula(unit="FLOP/J", source="patterson2021carbon")
def model_flops_per_joule(model_flops_per_step, step_energy):
    """Model FLOPs per energy of all devices."""
    return model_flops_per_step / step_energy
