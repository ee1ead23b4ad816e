"""The recurrent mixer of one layer in training: its kernels, energy and kept activations.

The kernels of the recurrence, convolution and gated norm are those of `mixers`; products with weights are among those
of `layer_products`. How many layers have a mixer: `hybrids`.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import only, total
from perfgrid.formulas.kernels.energy import streamed
from perfgrid.formulas.kernels.roofline import roofline_shares
from perfgrid.formulas.mixer_kinds import DELTA, LINEAR, NONE

# ---- kernels of a mixer ---------------------------------------------------------------------------------------------


@formula(unit="s", source="yang2024fla")
def mixer_recurrence_time(
    mixer_core_passes,
    mixer_core_flops,
    mixer_core_rate,
    mixer_core_traffic,
    achieved_hbm_bandwidth,
    mixer_serial_time,
    mixer_efficiency,
    mixer_core_launches,
    launch_overhead,
):
    """Time of each kernel of the recurrence, by resource, phase and mixer_kernel: `mixer_kernel_time`, split."""
    on_chip = xp.maximum(mixer_core_flops / mixer_core_rate, mixer_serial_time * only("mixer_kernel", "states"))
    work = mixer_core_passes / mixer_efficiency
    return roofline_shares(
        arithmetic=work * on_chip,
        hbm=work * mixer_core_traffic / achieved_hbm_bandwidth,
        launch=xp.where(mixer_core_passes > 0, 1.0, 0.0) * mixer_core_launches * launch_overhead,
    )


@formula(unit="s", source="dao2024mamba2")
def mixer_stream_time(mixer_stream_traffic, mixer_streams, computed_phases, achieved_hbm_bandwidth, launch_overhead):
    """Time of convolution and gated norm, by resource and phase."""
    return roofline_shares(
        hbm=mixer_stream_traffic * computed_phases / achieved_hbm_bandwidth,
        launch=mixer_streams * computed_phases * launch_overhead,
    )


@formula(unit="s", source="yang2024fla")
def mixer_busy_time(mixer_recurrence_time, mixer_stream_time, mixer_share):
    """Kernel time of the mixer of one layer without its products with weights, by resource and phase."""
    return mixer_share * (total(mixer_recurrence_time, "mixer_kernel") + mixer_stream_time)


@formula(unit="J", source="hong2010power")
def mixer_phase_energy(
    mixer_share,
    mixer_core_passes,
    mixer_core_flops,
    mixer_core_traffic,
    mixer_stream_traffic,
    computed_phases,
    unquantised_format_energy,
    half_precision_operation_energy,
    crossing_byte_energy,
    memory_access_energy,
):
    """Energy of the mixer of one layer without its products with weights, by resource and phase."""
    flops = total(mixer_core_passes * mixer_core_flops, "mixer_kernel")
    traffic = total(mixer_core_passes * mixer_core_traffic, "mixer_kernel") + mixer_stream_traffic * computed_phases
    arithmetic = flops * unquantised_format_energy * half_precision_operation_energy
    return mixer_share * streamed(traffic, crossing_byte_energy, memory_access_energy, arithmetic)


# ---- activations of a mixer -----------------------------------------------------------------------------------------


@alternative(
    of="mixer_kept_products",
    by="mixer",
    label=DELTA,
    unit="byte",
    source="yang2024fla",
    others={(*LINEAR, NONE): 0.0},
)
def LABEL_kept_products(rank_mixer_heads, mixer_chunk, activation_size):
    """Products inside chunks that stay for the backward pass, of one token on one rank: the inverse, C of each head."""
    return rank_mixer_heads * mixer_chunk * activation_size


@formula(unit="byte", source="yang2024fla")
def mixer_activations(
    microbatch_tokens,
    rank_convolution_channels,
    rank_mixer_key_heads,
    mixer_key_dim,
    mixer_output_rows,
    gate_rank,
    mixer_gate_bytes,
    mixer_kept_products,
    activation_size,
    kept_operand_size,
):
    """Activations of the mixer of one layer and microbatch.

    Inputs of the convolution; queries, keys and values; decays and strengths; products of chunks; the results and
    their gate; the gated ones, which the output product reads; what decays and gates of low rank are made of. States
    of chunks are computed again.
    """
    keys = 2 * rank_mixer_key_heads * mixer_key_dim
    elements = rank_convolution_channels + keys + 3 * mixer_output_rows  # values, results and gates
    low_rank = xp.where(gate_rank > 0, 2 * gate_rank * kept_operand_size, 0.0)
    kept = mixer_gate_bytes + mixer_kept_products + mixer_output_rows * kept_operand_size + low_rank
    return microbatch_tokens * (elements * activation_size + kept)
