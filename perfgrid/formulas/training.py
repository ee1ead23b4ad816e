"""One training step: layers, stages, the step, what it waits for, and what follows for a whole run."""

from perfgrid.engine.registry import formula

from .axes import at, only, total

PARTS = {"PART": ("layer", "embedding", "head")}
BREAKDOWN = (
    "arithmetic_time",
    "hbm_time",
    "l2_time",
    "launch_time",
    "exposed_tp_time",
    "bubble_time",
    "exposed_pp_time",
    "exposed_dp_time",
    "optimizer_time",
)  # the parts that add up to step_time

# ---- kernels of a layer, by resource (and phase) --------------------------------------------------------------------


@formula(unit="s", source="guo2025")
def core_busy_time(core_time, core_kernels, stream_time, core_streams):
    """Time of the unfused attention core of one layer, by resource and phase; 0 with the fused kernel."""
    return total(core_time * core_kernels, "attention_kernel") + total(stream_time * core_streams, "stream_kernel")


@formula(unit="s", source="guo2025")
def rest_busy_time(gemm_time, layer_gemms, stream_time, layer_streams, cast_time, flash_time, unfused):
    """Time of one layer without an unfused attention core, by resource and phase."""
    return (
        total(gemm_time * layer_gemms, "gemm_kernel")
        + total(stream_time * layer_streams, "stream_kernel")
        + cast_time
        + (1 - unfused) * flash_time
    )


@formula(unit="s", source="korthikanti2022")
def layer_recompute_time(core_busy_time, rest_busy_time, core_recomputed, layer_recomputed):
    """Time to compute discarded activations of one layer again, by resource."""
    return core_recomputed * at(core_busy_time, phase="forward") + layer_recomputed * at(
        rest_busy_time, phase="forward"
    )


@formula(unit="s", source="guo2025")
def layer_busy_time(core_busy_time, rest_busy_time, layer_recompute_time):
    """Kernel time of one layer and microbatch, forward, backward and recomputed, by resource."""
    return total(core_busy_time + rest_busy_time, "phase") + layer_recompute_time


@formula(unit="s", source="korthikanti2022")
def column_parallel_time(gemm_time, column_parallel_gemms):
    """Time of the products with matrices split by columns in one layer, by phase."""
    return total(total(gemm_time, "resource") * column_parallel_gemms, "gemm_kernel")


@formula(unit="s", source="guo2025")
def head_busy_time(gemm_time, stream_time):
    """Kernel time of final norm, output head and loss for one microbatch, by resource."""
    products = total(gemm_time * only("gemm_kernel", "logits"), "gemm_kernel")
    streams = total(stream_time * only("stream_kernel", "norm", "loss"), "stream_kernel")
    return total(products + streams, "phase")


@formula(unit="s", source="guo2025")
def embedding_busy_time(stream_time):
    """Kernel time of the embedding for one microbatch, by resource."""
    return total(at(stream_time, stream_kernel="embedding"), "phase")


@formula(unit="s", source="williams2009roofline", family=PARTS)
def PART_arithmetic_time(PART_busy_time):
    """Time of the PART limited by arithmetic, for one microbatch."""
    return at(PART_busy_time, resource="arithmetic")


@formula(unit="s", source="williams2009roofline", family=PARTS)
def PART_hbm_time(PART_busy_time):
    """Time of the PART limited by the memory bandwidth, for one microbatch."""
    return at(PART_busy_time, resource="hbm")


@formula(unit="s", source="williams2009roofline", family=PARTS)
def PART_l2_time(PART_busy_time):
    """Time of the PART limited by the cache bandwidth, for one microbatch."""
    return at(PART_busy_time, resource="l2")


@formula(unit="s", source="williams2009roofline", family=PARTS)
def PART_launch_time(PART_busy_time):
    """Time of the PART spent between kernels, for one microbatch."""
    return at(PART_busy_time, resource="launch")


@formula(unit="s", source="guo2025", family=PARTS)
def PART_time(PART_busy_time, PART_exposed_tp_time):
    """Time of the PART for one microbatch, forward and backward."""
    return total(PART_busy_time, "resource") + PART_exposed_tp_time


@formula(unit="s", source="korthikanti2022")
def layer_forward_time(core_busy_time, rest_busy_time, layer_forward_exposed_tp_time):
    """Forward time of one layer for one microbatch."""
    return total(at(core_busy_time + rest_busy_time, phase="forward"), "resource") + layer_forward_exposed_tp_time


@formula(unit="s", source="korthikanti2022")
def layer_backward_time(layer_time, layer_forward_time):
    """Backward time of one layer for one microbatch, recomputation included."""
    return layer_time - layer_forward_time


@formula(unit="s", source="narayanan2021")
def first_stage_backward_time(first_stage_layers, layer_backward_time):
    """Backward time of the layers of the first stage for one microbatch."""
    return first_stage_layers * layer_backward_time


# ---- the step -------------------------------------------------------------------------------------------------------


@formula(unit="s", source="narayanan2021", family={"SHARE": ("arithmetic", "hbm", "l2", "launch", "exposed_tp")})
def SHARE_time(
    microbatches,
    slowest_stage_layers,
    slowest_stage_embeddings,
    slowest_stage_heads,
    layer_SHARE_time,
    embedding_SHARE_time,
    head_SHARE_time,
):
    """SHARE part of the step time: of all microbatches in the slowest stage."""
    return microbatches * (
        slowest_stage_layers * layer_SHARE_time
        + slowest_stage_embeddings * embedding_SHARE_time
        + slowest_stage_heads * head_SHARE_time
    )


@formula(unit="s", source="kingma2015adam")
def optimizer_time(stage_parameters, shard, optimizer_traffic, gradient_size, achieved_hbm_bandwidth):
    """Time of the optimizer step on the fullest stage.

    Memory traffic of this rank's part of the state, and clearing all gradients, which every rank accumulates in full.
    """
    return stage_parameters * (optimizer_traffic / shard + gradient_size) / achieved_hbm_bandwidth


@formula(unit="s", source="guo2025")
def step_time(microbatches, slowest_stage_time, bubble_time, exposed_pp_time, exposed_dp_time, optimizer_time):
    """Time of one training step: all microbatches at the pace of the slowest stage, plus what nothing hides."""
    return microbatches * slowest_stage_time + bubble_time + exposed_pp_time + exposed_dp_time + optimizer_time


@formula(unit="s", source="guo2025")
def communication_time(exposed_tp_time, exposed_pp_time, exposed_dp_time):
    """Communication of one step that is waited for."""
    return exposed_tp_time + exposed_pp_time + exposed_dp_time


@formula(unit="s", source="guo2025")
def kernel_time(arithmetic_time, hbm_time, l2_time, launch_time):
    """Time of one step in which the slowest stage runs its kernels."""
    return arithmetic_time + hbm_time + l2_time + launch_time


@formula(
    unit="1",
    source="guo2025",
    family={"SHARE": ("arithmetic", "hbm", "l2", "launch", "communication", "bubble", "optimizer")},
)
def SHARE_fraction(SHARE_time, step_time):
    """SHARE part of the step time."""
    return SHARE_time / step_time


# ---- what follows from it -------------------------------------------------------------------------------------------


@formula(unit="1/s", source="narayanan2021")
def tokens_per_second(tokens_per_step, step_time):
    """Tokens per second of the whole cluster."""
    return tokens_per_step / step_time


@formula(unit="1/s", source="narayanan2021")
def tokens_per_second_per_device(tokens_per_second, devices):
    """Tokens per second of one device."""
    return tokens_per_second / devices


@formula(unit="1/s", source="narayanan2021")
def sequences_per_second(global_batch, step_time):
    """Sequences per second of the whole cluster."""
    return global_batch / step_time


@formula(unit="FLOP/s", source="narayanan2021")
def model_flops_per_second_per_device(model_flops_per_step, devices, step_time):
    """Model FLOPs per second of one device."""
    return model_flops_per_step / devices / step_time


@formula(unit="1", source="chowdhery2022palm")
def model_flops_utilization(model_flops_per_second_per_device, usable_peak_rate):
    """Model FLOPs per second over the peak rate in the format of the study (MFU)."""
    return model_flops_per_second_per_device / usable_peak_rate


@formula(unit="1", source="chowdhery2022palm")
def hardware_flops_utilization(model_flops_utilization, hardware_flops_per_token, model_flops_per_token):
    """The same with recomputed FLOPs counted (HFU)."""
    return model_flops_utilization * (hardware_flops_per_token / model_flops_per_token)


@formula(unit="1", source="narayanan2021")
def training_steps(training_tokens, tokens_per_step):
    """Optimizer steps of the whole training run."""
    return training_tokens / tokens_per_step


@formula(unit="s", source="narayanan2021")
def training_time(training_steps, step_time):
    """Time of the whole training run."""
    return training_steps * step_time


@formula(unit="s", source="narayanan2021")
def device_time(training_time, devices):
    """Device-seconds of the whole training run."""
    return training_time * devices


@formula(unit="J", source="patterson2021carbon")
def step_energy(step_time, devices, thermal_design_power):
    """Energy of one step with all devices at their thermal design power: an upper bound without host and cooling."""
    return step_time * devices * thermal_design_power


@formula(unit="J", source="patterson2021carbon")
def energy_per_token(step_energy, tokens_per_step):
    """Energy per trained token, by the same bound."""
    return step_energy / tokens_per_step
