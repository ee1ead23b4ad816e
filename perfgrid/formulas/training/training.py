"""Kernels summed up to a layer, the embedding and the output head: by resource, by phase, and what they wait for."""

from perfgrid.engine.graph.registry import alternative, formula, synonyms
from perfgrid.engine.graph.tables import constants
from perfgrid.formulas.axes import at, of_kinds, only, rows, table, total
from perfgrid.formulas.mixer_kinds import NONE

from .token_prediction import module_kernels

PARTS = {"PART": ("layer", "embedding", "head")}
DIRECTIONS = {"DIRECTION": ("forward", "backward")}

FORMULAS = (
    *rows(
        *("PART_RESOURCE_time", "PART_busy_time", "s", "williams2009roofline"),
        "Time of the kernels of the PART that RESOURCE accounts for, for one microbatch.",
        PARTS,
        resource="RESOURCE",
    ),
    *(
        entry
        for phase in ("input_gradient", "weight_gradient")
        for entry in rows(
            *(f"PART_{phase}_time", "PART_pass_times", "s", "qi2024zerobubble"),
            f"Time of the {phase} of the PART for one microbatch.",
            PARTS,
            phase=phase,
        )
    ),
    *constants(
        {"embedding_recompute_kernel_time": (0.0, "s", "korthikanti2022", "What the embedding computes again.")}
    ),
    *synonyms(
        {
            f"embedding_{direction}_exposed_time": (
                *(f"embedding_{direction}_exposed_tp_time", "s", "korthikanti2022"),
                f"Communication that the {direction} pass of the embedding waits for, for one microbatch.",
            )
            for direction in ("forward", "backward")
        }
    ),
)


# ---- kernels of a layer, by resource (and phase) --------------------------------------------------------------------


@alternative(of="core_busy_time", by="mixer", label=NONE, unit="s", source="guo2025")
def plain_core_busy_time(core_product_time, core_kernels, stream_time, core_streams):
    """Time of the unfused attention core of one layer, by resource and phase; 0 with the fused kernel."""
    return total(core_product_time * core_kernels, "attention_kernel") + total(
        stream_time * core_streams, "stream_kernel"
    )


def time_beside_core(gemm_time, layer_gemms, stream_time, layer_streams, cast_time, adapter_time, expert_busy_time):
    """Time of one layer without its attention core, by resource and phase."""
    return (
        total(gemm_time * layer_gemms, "product")
        + total(stream_time * layer_streams, "stream_kernel")
        + cast_time
        + adapter_time
        + expert_busy_time
    )


@alternative(of="rest_busy_time", by="mixer", label=NONE, unit="s", source="guo2025")
def plain_rest_busy_time(
    gemm_time,
    layer_gemms,
    stream_time,
    layer_streams,
    cast_time,
    adapter_time,
    expert_busy_time,
    flash_time,
    unfused,
):
    """Time of one layer without an unfused attention core, by resource and phase."""
    kernels = (gemm_time, layer_gemms, stream_time, layer_streams, cast_time, adapter_time, expert_busy_time)
    return time_beside_core(*kernels) + (1 - unfused) * flash_time


@formula(unit="s", source="korthikanti2022")
def layer_recompute_time(core_busy_time, rest_busy_time, core_recomputed, layer_recomputed, module_recompute_time):
    """Time to compute discarded activations of one layer again, by resource."""
    core, rest = (at(time, phase="forward") for time in (core_busy_time, rest_busy_time))
    return core_recomputed * core + layer_recomputed * rest + module_recompute_time


@formula(unit="s", source="guo2025")
def layer_phase_time(core_busy_time, rest_busy_time):
    """Kernel time of one layer and microbatch, nothing recomputed, by resource and phase."""
    return core_busy_time + rest_busy_time


@formula(unit="s", source="guo2025")
def head_phase_time(gemm_time, stream_time, head_passes, mtp_layers, last_kind, layer_phase_time, embedding_phase_time):
    """Kernel time of final norm, output head and loss for one microbatch, by resource and phase.

    With it that of modules which predict further tokens.
    """
    products = total(gemm_time * only("product", "logits"), "product")
    own = products + total(stream_time * only("stream_kernel", "norm", "loss"), "stream_kernel")
    modules = module_kernels(of_kinds(last_kind, layer_phase_time), embedding_phase_time, gemm_time, stream_time)
    return head_passes * own + mtp_layers * modules


@formula(unit="s", source="guo2025")
def embedding_phase_time(stream_time):
    """Kernel time of the embedding for one microbatch, by resource and phase."""
    return at(stream_time, stream_kernel="embedding")


@formula(unit="s", source="guo2025")
def layer_busy_time(layer_phase_time, layer_recompute_time):
    """Kernel time of one layer and microbatch, by resource: that of all phases and of what is computed again."""
    return total(layer_phase_time, "phase") + layer_recompute_time


@formula(unit="s", source="guo2025")
def embedding_busy_time(embedding_phase_time):
    """Kernel time of the embedding for one microbatch, forward and backward, by resource."""
    return total(embedding_phase_time, "phase")


@formula(unit="s", source="guo2025")
def head_busy_time(head_phase_time, mtp_kind_layers, layer_recompute_time, loss_recompute_time):
    """Kernel time of the head for one microbatch, forward, backward and recomputed, by resource."""
    return total(head_phase_time, "phase") + of_kinds(mtp_kind_layers, layer_recompute_time) + loss_recompute_time


@formula(unit="s", source="guo2025", family=PARTS)
def PART_time(PART_busy_time, PART_forward_exposed_time, PART_backward_exposed_time):
    """Time of the PART for one microbatch, forward and backward: kernels, and what they wait for (sum of both).

    Valid for kernels that run one after the other: on one stream, beside collectives only.
    """
    return total(PART_busy_time, "resource") + (PART_forward_exposed_time + PART_backward_exposed_time)


@formula(unit="s", source="korthikanti2022", family=DIRECTIONS)
def layer_DIRECTION_exposed_time(
    layer_DIRECTION_exposed_tp_time,
    layer_DIRECTION_exposed_cp_time,
    layer_DIRECTION_exposed_ep_time,
    layer_DIRECTION_exposed_host_time,
):
    """Communication and launches that one layer's DIRECTION pass waits for, for one microbatch: TP + CP + EP + host.

    Valid where the four waits follow each other: none hides behind another.
    """
    waits = layer_DIRECTION_exposed_tp_time + layer_DIRECTION_exposed_cp_time + layer_DIRECTION_exposed_ep_time
    return waits + layer_DIRECTION_exposed_host_time


@formula(unit="s", source="korthikanti2022", family=DIRECTIONS)
def head_DIRECTION_exposed_time(
    head_DIRECTION_exposed_tp_time,
    mtp_kind_layers,
    layer_DIRECTION_exposed_cp_time,
    layer_DIRECTION_exposed_ep_time,
    layer_DIRECTION_exposed_host_time,
):
    """Communication and launches that the DIRECTION pass of the head waits for, for one microbatch."""
    modules = layer_DIRECTION_exposed_cp_time + layer_DIRECTION_exposed_ep_time + layer_DIRECTION_exposed_host_time
    return head_DIRECTION_exposed_tp_time + of_kinds(mtp_kind_layers, modules)


@formula(unit="s", source="korthikanti2022", family=PARTS)
def PART_forward_kernel_time(PART_phase_time):
    """Kernel time of the forward pass of the PART for one microbatch."""
    return total(at(PART_phase_time, phase="forward"), "resource")


@formula(unit="s", source="korthikanti2022", family=PARTS)
def PART_backward_kernel_time(PART_phase_time, PART_forward_kernel_time):
    """Kernel time of the backward pass of the PART for one microbatch, nothing recomputed."""
    return total(total(PART_phase_time, "phase"), "resource") - PART_forward_kernel_time


@formula(unit="s", source="korthikanti2022")
def layer_recompute_kernel_time(layer_recompute_time):
    """Kernel time of what one layer computes again for one microbatch."""
    return total(layer_recompute_time, "resource")


@formula(unit="s", source="korthikanti2022")
def head_recompute_kernel_time(mtp_kind_layers, layer_recompute_kernel_time, loss_recompute_time):
    """Kernel time of what the head computes again for one microbatch: layers that predict further tokens, logits."""
    return of_kinds(mtp_kind_layers, layer_recompute_kernel_time) + total(loss_recompute_time, "resource")


@formula(unit="s", source="korthikanti2022", family=PARTS)
def PART_forward_time(PART_forward_kernel_time, PART_forward_exposed_time):
    """Forward time of the PART for one microbatch: kernels and exposed waits."""
    return PART_forward_kernel_time + PART_forward_exposed_time


@formula(unit="s", source="korthikanti2022", family=PARTS)
def PART_backward_time(PART_time, PART_forward_time):
    """Backward time of the PART for one microbatch, recomputation included: all of it less the forward time."""
    return PART_time - PART_forward_time


@formula(unit="s", source="qi2024zerobubble", family=PARTS)
def PART_pass_times(PART_time, PART_forward_time, PART_phase_time):
    """Time of each pass of the PART for one microbatch, by phase: forward, input gradients, weight gradients.

    The stage before waits for the input gradients, recomputation included; zero-bubble schedules put off the rest.
    """
    weight_gradient = total(at(PART_phase_time, phase="weight_gradient"), "resource")
    input_gradient = PART_time - PART_forward_time - weight_gradient
    return table("phase", forward=PART_forward_time, input_gradient=input_gradient, weight_gradient=weight_gradient)
