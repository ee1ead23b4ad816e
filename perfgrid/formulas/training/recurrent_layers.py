"""The recurrent mixer of one layer in training: its products with weights, kernels, energy and kept activations.

The kernels of the recurrence, convolution and gated norm are those of `mixers`; products with weights are tiled as all
others (`gemm`). How many layers have a mixer: `hybrids`.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import only, table, total
from perfgrid.formulas.kernels.energy import streamed
from perfgrid.formulas.kernels.roofline import roofline_shares
from perfgrid.formulas.mixer_kinds import DELTA, LINEAR, NONE

# ---- products of a mixer with weights (see `gemm` for what is made of their shapes) ---------------------------------


@formula(unit="1", source="dao2024mamba2")
def mixer_gemm_outputs(mixer_input_columns, rank_mixer_heads, mixer_key_dim, mixer_value_dim, hidden_size):
    """Output columns of each forward product of a mixer on one rank, by mixer_product.

    Those of low rank make decays and gates, side by side: H(N + P).
    """
    inner = rank_mixer_heads * (mixer_key_dim + mixer_value_dim)
    return table("mixer_product", mixer_input=mixer_input_columns, mixer_inner=inner, mixer_output=hidden_size)


@formula(unit="1", source="dao2024mamba2")
def mixer_gemm_inputs(hidden_size, gate_rank, mixer_output_rows):
    """Depth of each forward product of a mixer on one rank, by mixer_product; at least one where it is absent."""
    inner = xp.maximum(gate_rank, 1.0)
    return table("mixer_product", mixer_input=hidden_size, mixer_inner=inner, mixer_output=mixer_output_rows)


@formula(unit="1", source="shoeybi2019megatron")
def mixer_gemm_tokens(microbatch_tokens):
    """Tokens that each product of a mixer sees on one rank: all, whose heads the ranks split."""
    return 1.0 * microbatch_tokens


@formula(unit="1", source="dao2024mamba2")
def layer_mixer_gemms(mixer_share, mixer_inner_weights):
    """How often each product of a mixer runs in one layer, by mixer_product."""
    inner = xp.where(mixer_inner_weights > 0, 1.0, 0.0)
    return mixer_share * table("mixer_product", mixer_input=1.0, mixer_inner=inner, mixer_output=1.0)


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


@formula(unit="byte", source="dao2024mamba2")
def mixer_stream_phase_traffic(mixer_stream_traffic, computed_phases):
    """Memory traffic of convolution and gated norm, by phase: a pass each for results and both gradients."""
    return mixer_stream_traffic * computed_phases


@formula(unit="s", source="dao2024mamba2")
def mixer_stream_time(
    mixer_stream_phase_traffic, mixer_stream_passes, computed_phases, achieved_hbm_bandwidth, launch_overhead
):
    """Time of convolution and gated norm, by resource and phase."""
    return roofline_shares(
        hbm=mixer_stream_phase_traffic / achieved_hbm_bandwidth,
        launch=total(mixer_stream_passes, "mixer_stream") * computed_phases * launch_overhead,
    )


@formula(unit="s", source="yang2024fla")
def mixer_busy_time(mixer_gemm_time, layer_mixer_gemms, mixer_recurrence_time, mixer_stream_time, mixer_share):
    """Kernel time of the mixer of one layer, by resource and phase."""
    recurrence = total(mixer_recurrence_time, "mixer_kernel")
    return total(mixer_gemm_time * layer_mixer_gemms, "mixer_product") + mixer_share * (recurrence + mixer_stream_time)


@formula(unit="J", source="hong2010power")
def mixer_phase_energy(
    mixer_share,
    mixer_gemm_pass_energy,
    layer_mixer_gemms,
    mixer_core_passes,
    mixer_core_flops,
    mixer_core_traffic,
    mixer_stream_phase_traffic,
    unquantised_format_energy,
    half_precision_operation_energy,
    crossing_byte_energy,
    memory_access_energy,
):
    """Energy of the mixer of one layer, by resource and phase."""
    flops = total(mixer_core_passes * mixer_core_flops, "mixer_kernel")
    traffic = total(mixer_core_passes * mixer_core_traffic, "mixer_kernel") + mixer_stream_phase_traffic
    arithmetic = flops * unquantised_format_energy * half_precision_operation_energy
    products = total(mixer_gemm_pass_energy * layer_mixer_gemms, "mixer_product")
    return products + mixer_share * streamed(traffic, crossing_byte_energy, memory_access_energy, arithmetic)


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
