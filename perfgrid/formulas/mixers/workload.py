"""The workload "sequence_mixer": the time of one mixer of one layer on one tensor-parallel rank, without communication.

A kernel of the core takes the longest of its arithmetic, its memory traffic and, in the pass over the states, the steps
that wait for each other: ceil(units / cores) · steps · time of a step. Kernels run one after the other. Around the core
are the products with weights, the short convolution and the gated norm of recurrent mixers.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula, synonyms
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import at, only, rows, total
from perfgrid.formulas.kernels.roofline import roofline_time
from perfgrid.formulas.kernels.tiling import steps_of
from perfgrid.formulas.mixer_kinds import DENSE, KEEPING, SPARSE

FORMULAS = (
    *rows(
        *("mixer_core_forward_time", "mixer_core_time", "s", "williams2009roofline"),
        "Time of the forward pass of the core: the recurrence, or attention with its indexer.",
        phase="forward",
    ),
    *rows(
        *("mixer_core_backward_time", "mixer_core_time", "s", "williams2009roofline"),
        "Time of the backward pass of the core, with what is computed again.",
        phase="input_gradient",
    ),
    *synonyms(
        {
            "mixer_tokens": (
                "sequence_length",
                "1",
                "dao2024mamba2",
                "Tokens of a sequence that a recurrence runs over.",
            ),
            **{
                f"{which}_sequences": ("microbatch", "1", "dao2024mamba2", "Sequences of a recurrence, side by side.")
                for which in ("mixer", "mixer_decoded")
            },
        }
    ),
    *by_label(
        "mixer",
        {
            "mixer_efficiency": ("1", "dao2022flash", "Rate of the kernels of the core over the predicted one."),
            "mixer_decode_rate": (
                *("FLOP/s", "dao2024mamba2"),
                "Rate of one decoding step: vector units update a state, matrix units multiply keys and values.",
            ),
            "mixer_decode_launches": (
                *("1", "deepseek2025v32"),
                "Kernels of one decoding step: three with attention, among six with an indexer and a choice.",
            ),
            "mixer_streams": ("1", "dao2024mamba2", "Streaming kernels of the mixer: convolution and gated norm."),
        },
        {
            KEEPING: (None, "vector_rate", None, None),
            DENSE: (1, "unquantised_matrix_rate", 3, 0),
            SPARSE: (1, "unquantised_matrix_rate", 6, 0),
        },
    ),
)


@constraint(reason="the mixer has no heads: state mixer and mixer_heads", source="dao2024mamba2")
def mixer_is_stated(mixer_heads):
    """A study of mixers states one."""
    return mixer_heads > 0


# ---- the core over a prompt -----------------------------------------------------------------------------------------


@formula(unit="FLOP/s", source="micikevicius2022fp8")
def index_rate(unquantised_matrix_rate, peak_fp8_rate, fp8_reached_fraction):
    """Rate of the scores of an indexer, in 8 bits where the device has them."""
    return xp.where(peak_fp8_rate > 0, peak_fp8_rate * fp8_reached_fraction, unquantised_matrix_rate)


@formula(unit="FLOP/s", source="micikevicius2022fp8")
def mixer_core_rate(unquantised_matrix_rate, index_rate):
    """Rate of the products of each kernel of the core, by mixer_kernel: the indexer multiplies in 8 bits if it can."""
    first = only("mixer_kernel", "index")
    return index_rate * first + unquantised_matrix_rate * (1 - first)


@formula(unit="s", source="yang2024fla")
def mixer_serial_time(
    mixer_core_flops,
    mixer_units,
    mixer_serial_steps,
    mixer_dependent_products,
    unquantised_matrix_rate,
    cores,
    dependent_latency,
):
    """Time of all steps of the pass over the states: ceil(units / cores) · steps · time of a step on one core.

    The products of a step at the rate of one core, and what dependent ones wait for beyond their arithmetic.
    """
    step_flops = at(mixer_core_flops, mixer_kernel="states") / (mixer_units * mixer_serial_steps)
    step_time = step_flops * cores / unquantised_matrix_rate + mixer_dependent_products * dependent_latency
    return steps_of(mixer_units, cores) * mixer_serial_steps * step_time


@alternative(of="mixer_efficiency", by="mixer", label=KEEPING, unit="1", source="yang2024fla")
def LABEL_efficiency(recurrence_efficiency, mixer_fused):
    """Rate of the kernels of the core over the predicted one: as measured of a chain of kernels, 1 of a fused one."""
    return xp.where(mixer_fused, 1.0, recurrence_efficiency)


@formula(unit="s", source="williams2009roofline")
def mixer_kernel_time(
    mixer_core_passes,
    mixer_core_flops,
    mixer_core_rate,
    mixer_core_traffic,
    achieved_hbm_bandwidth,
    gathered_traffic,
    l2_bandwidth,
    mixer_serial_time,
    mixer_efficiency,
    mixer_core_launches,
    launch_overhead,
):
    """Time of each kernel of the core, by phase and mixer_kernel.

    max(FLOPs / rate, bytes / bandwidth, gathered bytes / bandwidth of the cache, steps one after the other) over the
    efficiency of the kernels, + launches.
    """
    serial = mixer_serial_time * only("mixer_kernel", "states")
    gathered = gathered_traffic / l2_bandwidth * only("mixer_kernel", "results")
    time = roofline_time(
        mixer_core_flops / mixer_core_rate, mixer_core_traffic / achieved_hbm_bandwidth, gathered, serial
    )
    started = xp.where(mixer_core_passes > 0, 1.0, 0.0) * mixer_core_launches
    return mixer_core_passes * time / mixer_efficiency + started * launch_overhead


@formula(unit="s", source="williams2009roofline")
def mixer_core_time(mixer_kernel_time):
    """Time of the core, by phase; all of the backward pass as input gradient."""
    return total(mixer_kernel_time, "mixer_kernel")


@formula(unit="1", source="yang2024fla")
def mixer_launches(mixer_core_launches, mixer_streams, mixer_inner_weights):
    """Kernels of the forward pass of the mixer over a prompt."""
    products = 2 + xp.where(mixer_inner_weights > 0, 1.0, 0.0)
    return total(mixer_core_launches, "mixer_kernel") + products + mixer_streams


# ---- around the core ------------------------------------------------------------------------------------------------


@alternative(of="mixer_streams", by="mixer", label=KEEPING, unit="1", source="dao2024mamba2")
def LABEL_streams(convolution_length):
    """Streaming kernels of the mixer: the gated norm, and the convolution if it has one."""
    return 1.0 + xp.where(convolution_length > 0, 1.0, 0.0)


@formula(unit="byte", source="dao2024mamba2")
def mixer_stream_traffic(
    mixer_streams, rank_convolution_channels, mixer_output_rows, activation_size, sequence_length, microbatch
):
    """Memory traffic of the convolution, in and out, and of the gated norm, results and gates in, results out."""
    elements = xp.where(mixer_streams > 0, 2 * rank_convolution_channels + 3 * mixer_output_rows, 0.0)
    return microbatch * sequence_length * activation_size * elements


@formula(unit="1", source="shoeybi2019megatron")
def mixer_product_flops(mixer_matrix_parameters, sequence_length, microbatch):
    """FLOPs of the products with weights in one pass over a prompt on one rank: 2 for each weight and token."""
    return 2 * microbatch * sequence_length * mixer_matrix_parameters


@formula(unit="byte", source="shoeybi2019megatron")
def mixer_product_traffic(
    mixer_matrix_parameters,
    mixer_input_columns,
    mixer_output_rows,
    hidden_size,
    operand_size,
    activation_size,
    sequence_length,
    microbatch,
):
    """Least memory traffic of the products with weights in one pass over a prompt on one rank."""
    elements = 2 * hidden_size + mixer_input_columns + mixer_output_rows
    weights = mixer_matrix_parameters * operand_size
    return weights + microbatch * sequence_length * elements * activation_size


@formula(unit="s", source="williams2009roofline")
def mixer_product_time(
    mixer_product_flops, mixer_product_traffic, matrix_rate, library_efficiency, achieved_hbm_bandwidth
):
    """Time of the products with weights in one pass over a prompt: max(FLOPs / rate, bytes / bandwidth)."""
    arithmetic = mixer_product_flops / (matrix_rate * library_efficiency)
    return roofline_time(arithmetic, mixer_product_traffic / achieved_hbm_bandwidth)


@formula(unit="s", source="williams2009roofline")
def mixer_forward_time(
    mixer_core_forward_time,
    mixer_core_launches,
    mixer_launches,
    mixer_product_time,
    mixer_stream_traffic,
    achieved_hbm_bandwidth,
    launch_overhead,
):
    """Time of the mixer over a prompt, or of its forward pass in training."""
    around = mixer_product_time + mixer_stream_traffic / achieved_hbm_bandwidth
    further = mixer_launches - total(mixer_core_launches, "mixer_kernel")
    return mixer_core_forward_time + around + further * launch_overhead


@formula(unit="s", source="williams2009roofline")
def mixer_backward_time(
    mixer_core_backward_time,
    mixer_core_launches,
    mixer_launches,
    mixer_product_time,
    mixer_stream_traffic,
    achieved_hbm_bandwidth,
    launch_overhead,
):
    """Time of the backward pass of the mixer: two gradients of each product and streaming kernel."""
    around = mixer_product_time + mixer_stream_traffic / achieved_hbm_bandwidth
    further = mixer_launches - total(mixer_core_launches, "mixer_kernel")
    return mixer_core_backward_time + 2 * (around + further * launch_overhead)


# ---- decoding -------------------------------------------------------------------------------------------------------


@alternative(of="mixer_decode_launches", by="mixer", label=KEEPING, unit="1", source="dao2024mamba2")
def LABEL_decode_launches(mixer_streams, mixer_inner_weights):
    """Kernels of one decoding step: products, convolution, recurrence, norm."""
    inner = xp.where(mixer_inner_weights > 0, 1.0, 0.0)
    return 3 + inner + mixer_streams


@formula(unit="s", source="williams2009roofline")
def mixer_decode_core_time(mixer_decode_flops, mixer_decode_rate, mixer_decode_traffic, achieved_hbm_bandwidth):
    """Time of the core in one decoding step: states read and written, or keys and values read."""
    return roofline_time(mixer_decode_flops / mixer_decode_rate, mixer_decode_traffic / achieved_hbm_bandwidth)


@formula(unit="s", source="williams2009roofline")
def mixer_decode_time(
    mixer_decode_core_time,
    mixer_matrix_parameters,
    microbatch,
    matrix_rate,
    library_efficiency,
    operand_size,
    achieved_hbm_bandwidth,
    mixer_decode_launches,
    launch_overhead,
):
    """Time of one decoding step of the mixer after a context of ``sequence_length`` tokens, one token a sequence."""
    arithmetic = 2 * microbatch * mixer_matrix_parameters / (matrix_rate * library_efficiency)
    weights = mixer_matrix_parameters * operand_size / achieved_hbm_bandwidth
    return mixer_decode_core_time + roofline_time(arithmetic, weights) + mixer_decode_launches * launch_overhead
