"""One training step, its parts, and what follows for a whole run.

`BREAKDOWN` splits the step by what is waited for, `PASSES` its kernels by what they are for; each adds up exactly.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula, synonyms
from perfgrid.engine.graph.tables import constants
from perfgrid.formulas.axes import of_kinds
from perfgrid.formulas.kernels.roofline import RESOURCES

WAITS = (
    "exposed_tp_time",
    "exposed_cp_time",
    "exposed_ep_time",
    "exposed_host_time",
    "bubble_time",
    "straggler_time",
    "exposed_pp_time",
    "exposed_dp_time",
    "exposed_tied_time",
    "exposed_offload_time",
    "optimizer_time",
    "between_steps_time",
)
BREAKDOWN = (*(f"{resource}_time" for resource in RESOURCES), *WAITS)  # the parts that add up to step_time
PASSES = ("forward_time", "backward_time", "recompute_time", *WAITS)  # the same, kernels by pass

LAYER_WAITS = ("exposed_tp", "exposed_cp", "exposed_ep", "exposed_host")  # those of layers, at the pace of the pipeline


NO_WAIT = "What the embedding waits for: nothing, it sees every token on its own, and its few kernels run ahead."
FORMULAS = (
    # Losses and gradient norms are read back, which empties the queue of kernels; the optimizer is started parameter by
    # parameter, the next batch fetched. It depends on neither model nor batch: it shows in steps of a second.
    *synonyms(
        {
            "between_steps_time": (
                *("step_gap", "s", "jiang2024megascale"),
                "Time in which devices idle between two steps: from the end of one until the host has begun the next.",
            )
        }
    ),
    *constants({f"embedding_exposed_{wait}_time": (0.0, "s", "guo2025", NO_WAIT) for wait in ("cp", "ep", "host")}),
)
# ---- the slowest stage ----------------------------------------------------------------------------------------------


@formula(unit="s", source="gray2019cudagraphs", family={"WAIT": ("host",)})
@formula(unit="s", source="deepseek2024v3", family={"WAIT": ("ep",)})
@formula(unit="s", source="grattafiori2024llama3", family={"WAIT": ("cp",)})
@formula(unit="s", source="korthikanti2022", family={"WAIT": ("tp",)})
def layer_exposed_WAIT_time(layer_forward_exposed_WAIT_time, layer_backward_exposed_WAIT_time):
    """Exposed WAIT time of one layer for one microbatch: that of its forward and of its backward pass."""
    return layer_forward_exposed_WAIT_time + layer_backward_exposed_WAIT_time


@formula(unit="s", source="gray2019cudagraphs", family={"WAIT": ("host",)})
@formula(unit="s", source="deepseek2024v3", family={"WAIT": ("ep",)})
@formula(unit="s", source="grattafiori2024llama3", family={"WAIT": ("cp",)})
def head_exposed_WAIT_time(mtp_kind_layers, layer_exposed_WAIT_time):
    """Exposed WAIT time of the head for one microbatch: only of layers that predict further tokens.

    Its own kernels are few and long.
    """
    return of_kinds(mtp_kind_layers, layer_exposed_WAIT_time)


@formula(unit="s", source="narayanan2021", family={"SHARE": (*RESOURCES, *LAYER_WAITS)})
def SHARE_time(
    microbatches,
    slowest_stage_kind_layers,
    slowest_stage_embeddings,
    slowest_stage_heads,
    layer_SHARE_time,
    embedding_SHARE_time,
    head_SHARE_time,
):
    """SHARE part of the step time: of all microbatches in the slowest stage."""
    return microbatches * (
        of_kinds(slowest_stage_kind_layers, layer_SHARE_time)
        + slowest_stage_embeddings * embedding_SHARE_time
        + slowest_stage_heads * head_SHARE_time
    )


@formula(unit="s", source="guo2025", family={"DIRECTION": ("forward", "backward", "recompute")})
def DIRECTION_time(
    microbatches,
    slowest_stage_kind_layers,
    slowest_stage_embeddings,
    slowest_stage_heads,
    layer_DIRECTION_kernel_time,
    embedding_DIRECTION_kernel_time,
    head_DIRECTION_kernel_time,
):
    """Kernel time of the DIRECTION passes of all microbatches in the slowest stage."""
    return microbatches * (
        of_kinds(slowest_stage_kind_layers, layer_DIRECTION_kernel_time)
        + slowest_stage_embeddings * embedding_DIRECTION_kernel_time
        + slowest_stage_heads * head_DIRECTION_kernel_time
    )


# ---- the step -------------------------------------------------------------------------------------------------------


@formula(unit="1", source="rajbhandari2020zero")
def state_parameters(stage_trained_parameters, shard, stage_expert_parameters, expert_shard, state_copies):
    """Trained parameters of the fullest stage whose optimizer state one rank has: N/q + N(experts)/q(experts)."""
    return (stage_trained_parameters / shard + stage_expert_parameters / expert_shard) / state_copies


@formula(unit="byte", source="shoeybi2019megatron")
def clearing_traffic(
    stage_trained_parameters, shard_gradient_size, stage_expert_parameters, expert_shard_gradient_size
):
    """Bytes written to clear the accumulated gradients that one rank holds: parameters times bytes of a gradient."""
    return stage_trained_parameters * shard_gradient_size + stage_expert_parameters * expert_shard_gradient_size


@formula(unit="s", source="kingma2015adam")
def optimizer_time(state_parameters, step_traffic, clearing_traffic, on_device_optimizer, achieved_hbm_bandwidth):
    """Time of the optimizer step on the fullest stage: (parameters·bytes + bytes cleared) / bandwidth.

    The bytes are those of this rank's part of the state. Valid for element-wise optimizers, which wait for memory.
    """
    step = on_device_optimizer * state_parameters * step_traffic
    return (step + clearing_traffic) / achieved_hbm_bandwidth


@formula(unit="s", source="sinha2022variability")
def straggler_time(straggler_delay, microbatches, slowest_stage_time, bubble_time):
    """Time that all devices wait per step because the slowest of them sets the pace.

    delay·(m·t(slowest stage) + bubble). Valid where the pipelines end a step together and
    devices keep their speed for a step or longer.
    """
    return straggler_delay * (microbatches * slowest_stage_time + bubble_time)


@constraint(reason="this software is for serving only", source="kwon2023vllm", about="step_time")
def software_trains(serves):
    """The software has a training step."""
    return xp.logical_not(serves)


@constraint(
    reason="this software does not run on devices of this vendor",
    source="vllm2026platforms",
    about="step_time",
    of="software_runs_on_device",
    workload="training",
)
def training_software_runs_on_device(vendor_support):
    """The software runs on the device, as it is or ported."""
    return vendor_support > 0


@formula(unit="s", source="guo2025")
def step_time(
    microbatches,
    slowest_stage_time,
    bubble_time,
    straggler_time,
    exposed_pp_time,
    exposed_dp_time,
    exposed_tied_time,
    exposed_offload_time,
    optimizer_time,
    between_steps_time,
):
    """Time of one training step: all microbatches at the pace of the slowest stage, plus what nothing hides.

    m·t(slowest stage) + bubble + stragglers + exposed transfers, reductions and offloads + optimizer + gap. What layers
    wait for (tensor, context and expert parallelism) is in the pace already. Valid for synchronous training: all ranks
    end a step before any begins the next.
    """
    pipeline = microbatches * slowest_stage_time + bubble_time + straggler_time
    waits = exposed_pp_time + exposed_dp_time + exposed_tied_time
    return pipeline + waits + exposed_offload_time + optimizer_time + between_steps_time


@alternative(of="communication_time", by="workload", label="training", unit="s", source="guo2025")
def training_communication_time(
    exposed_tp_time, exposed_cp_time, exposed_ep_time, exposed_pp_time, exposed_dp_time, exposed_tied_time
):
    """Communication of one step that is waited for."""
    layers = exposed_tp_time + exposed_cp_time + exposed_ep_time
    return layers + exposed_pp_time + exposed_dp_time + exposed_tied_time


@formula(unit="s", source="guo2025")
def kernel_time(forward_time, backward_time, recompute_time):
    """Time of one step in which the slowest stage runs its kernels."""
    return forward_time + backward_time + recompute_time


@formula(
    unit="1",
    source="guo2025",
    family={"SHARE": (*RESOURCES, "communication", "bubble", "straggler", "optimizer")},
)
def SHARE_fraction(SHARE_time, step_time):
    """SHARE part of the step time."""
    return SHARE_time / step_time


@formula(unit="1", source="guo2025")
def on_chip_fraction(registers_fraction, shared_memory_fraction, l2_fraction):
    """Part of the step time that memory on the chip accounts for: registers, shared memory, L2."""
    return registers_fraction + shared_memory_fraction + l2_fraction


@formula(unit="1", source="guo2025")
def rest_fraction(launch_fraction, host_fraction, straggler_fraction, optimizer_fraction):
    """Part of the step time for launches, the host, stragglers and the optimizer."""
    return launch_fraction + host_fraction + straggler_fraction + optimizer_fraction


@formula(unit="1", source="gray2019cudagraphs")
def host_fraction(exposed_host_time, between_steps_time, step_time):
    """Part of the step time in which devices wait for the host, within a step and between two."""
    return (exposed_host_time + between_steps_time) / step_time


# ---- what follows from it -------------------------------------------------------------------------------------------


@alternative(of="tokens_per_second", by="workload", label="training", unit="1/s", source="narayanan2021")
def training_tokens_per_second(tokens_per_step, step_time):
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


@formula(unit="1", source="chowdhery2022palm", sense="most")
def model_flops_utilization(model_flops_per_second_per_device, usable_peak_rate):
    """Model FLOPs per second over the peak rate of the study's precision, all pairs of tokens counted (PaLM MFU)."""
    return model_flops_per_second_per_device / usable_peak_rate


@formula(unit="1", source="zhao2025insights", sense="most")
def causal_model_flops_utilization(model_flops_utilization, causal_model_flops_per_token, model_flops_per_token):
    """Model FLOPs utilization with only the pairs of tokens counted that the causal mask leaves (MFU)."""
    return model_flops_utilization * (causal_model_flops_per_token / model_flops_per_token)


@formula(unit="1", source="chowdhery2022palm", sense="most")
def hardware_flops_utilization(model_flops_utilization, hardware_flops_per_token, model_flops_per_token):
    """Model FLOPs utilization with all pairs and what is recomputed counted (HFU)."""
    return model_flops_utilization * (hardware_flops_per_token / model_flops_per_token)


@formula(unit="1", source="narayanan2021")
def training_steps(training_tokens, tokens_per_step):
    """Optimizer steps of the whole training run."""
    return training_tokens / tokens_per_step


@formula(unit="s", source="narayanan2021")
def training_time(training_steps, step_time):
    """Time of the whole training run."""
    return training_steps * step_time


@constraint(
    kind="exceeds",
    reason="the training run takes longer than its limit",
    source="narayanan2021",
    about="training_time_limit",
    workload="training",
)
def training_in_time(training_time, training_time_limit):
    """The training run ends within its limit; of studies that state one."""
    return training_time <= training_time_limit


@formula(unit="s", source="narayanan2021")
def device_time(training_time, devices):
    """Device-seconds of the whole training run."""
    return training_time * devices
