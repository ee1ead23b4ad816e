"""Recurrent layers of inference: their products, states, kernels and energy.

A prompt runs chunk by chunk (`mixers.recurrent`); a decoding step reads and writes the state of every sequence,
whatever its context. Products with weights are those of `products`. Without recurrent layers all of it is zero.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula, synonyms
from perfgrid.formulas.axes import only, total
from perfgrid.formulas.kernels import energy
from perfgrid.formulas.kernels.roofline import roofline_shares
from perfgrid.formulas.mixer_kinds import NONE, RECURRENT

from .latency import with_steps

FORMULAS = synonyms(
    {
        "mixer_tokens": ("computed_prompt_tokens", "1", "zheng2024sglang", "Tokens of a prompt that are computed."),
        "mixer_sequences": ("prefill_sequences", "1", "yu2022orca", "Prompts that one group computes together."),
        "mixer_decoded_sequences": ("group_batch", "1", "yu2022orca", "Sequences of one decoding step."),
    },
    workload="inference",
)


def recurrent(of, unit, source):
    """A quantity of models with recurrent layers; 0 without."""
    return alternative(of=of, by="mixer", label=RECURRENT, unit=unit, source=source, others={NONE: 0.0})


# ---- states ---------------------------------------------------------------------------------------------------------


@recurrent("sequence_state_size", "byte", "dao2024mamba2")
def LABEL_sequence_state_size(mixer_layers, recurrent_state_bytes, convolution_state_bytes):
    """Recurrent and convolution states of one sequence in all layers on one tensor-parallel rank, at any context."""
    return mixer_layers * (recurrent_state_bytes + convolution_state_bytes)


@alternative(of="held_page_tokens", by="mixer", label=RECURRENT, unit="1", source="vllm2026hybrid",
             others={NONE: "page_tokens"})  # fmt: skip
def LABEL_held_page_tokens(
    page_tokens, shared_pages, mixer_layers, recurrent_state_bytes, convolution_state_bytes, layer_token_cache
):
    """Tokens of a page: where states of layers lie in pages of keys these are raised until a state fits into one."""
    state = recurrent_state_bytes + convolution_state_bytes
    pages = xp.maximum(xp.ceil(state / (layer_token_cache * page_tokens) - 1e-6), 1.0)
    return page_tokens * xp.where(shared_pages & (mixer_layers > 0), pages, 1.0)


@alternative(of="state_padding", by="mixer", label=RECURRENT, unit="1", source="vllm2026hybrid", others={NONE: 1.0})
def LABEL_state_padding(
    held_page_tokens,
    layer_token_cache,
    recurrent_state_bytes,
    convolution_state_bytes,
    shared_pages,
    mixer_layers,
    caching_layers,
    draft_modules,
    draft_tokens,
):
    """Memory of the states of a sequence over their own size: whole pages, whole groups of layers, one for each draft.

    Layers are in groups of as many as have keys, where these are fewer.
    """
    page = held_page_tokens * layer_token_cache / (recurrent_state_bytes + convolution_state_bytes)
    layers = xp.maximum(mixer_layers, 1.0)
    group = xp.clip(caching_layers + draft_modules, 1.0, layers)
    groups = xp.ceil(layers / group) * group / layers
    return xp.where(shared_pages, page * groups * (1 + draft_tokens), 1.0)


@recurrent("recurrent_state_memory", "byte", "dao2024mamba2")
def LABEL_recurrent_state_memory(running_batch, dp, sequence_state_memory):
    """Recurrent and convolution states of the running sequences on one device of the fullest stage."""
    return running_batch / dp * sequence_state_memory


# ---- kernels --------------------------------------------------------------------------------------------------------


@formula(unit="s", source="yang2024fla")
def prefill_mixer_time(
    mixer_core_flops,
    unquantised_matrix_rate,
    mixer_core_traffic,
    achieved_hbm_bandwidth,
    mixer_serial_time,
    mixer_efficiency,
    mixer_core_launches,
    launch_overhead,
    prefill_passes,
):
    """Time of the recurrence of one layer in one pass of the prefill, by resource.

    Every pass takes its part of the tokens and starts all kernels.
    """
    on_chip = xp.maximum(mixer_core_flops / unquantised_matrix_rate, mixer_serial_time * only("mixer_kernel", "states"))
    kernels = roofline_shares(
        arithmetic=on_chip / mixer_efficiency / prefill_passes,
        hbm=mixer_core_traffic / achieved_hbm_bandwidth / mixer_efficiency / prefill_passes,
        launch=mixer_core_launches * launch_overhead,
    )
    return total(kernels, "mixer_kernel")


@formula(unit="byte", source="leviathan2023speculative")
def step_state_traffic(mixer_decoded_sequences, recurrent_state_bytes, convolution_state_bytes, step_tokens):
    """States of one layer that a decoding step moves on one rank: read once, written for every token to be verified."""
    return mixer_decoded_sequences * (recurrent_state_bytes + convolution_state_bytes) * (1 + step_tokens)


@formula(unit="s", source="dao2024mamba2")
def decode_mixer_time(
    mixer_decode_flops, step_tokens, vector_rate, step_state_traffic, achieved_hbm_bandwidth, launch_overhead
):
    """Time of the recurrence of one layer in one decoding step, by resource: one kernel on the vector units."""
    return roofline_shares(
        arithmetic=step_tokens * mixer_decode_flops / vector_rate,
        hbm=step_state_traffic / achieved_hbm_bandwidth,
        launch=launch_overhead,
    )


@formula(unit="byte", source="dao2024mamba2")
def mixer_streams_traffic(pass_tokens, rank_convolution_channels, mixer_output_rows, activation_size):
    """Memory traffic of the streaming kernels of one recurrent layer on one rank, by pass.

    The convolution in and out; the gated norm reads results and gates and writes results.
    """
    return pass_tokens * (2 * rank_convolution_channels + 3 * mixer_output_rows) * activation_size


@formula(unit="s", source="dao2024mamba2")
def mixer_streams_time(mixer_streams_traffic, achieved_hbm_bandwidth, convolution_length, launch_overhead):
    """Time of the convolution and of the gated norm of one recurrent layer, by resource and pass."""
    kernels = xp.where(convolution_length > 0, 2.0, 1.0)
    return roofline_shares(hbm=mixer_streams_traffic / achieved_hbm_bandwidth, launch=kernels * launch_overhead)


@recurrent("mixers_time", "s", "dao2024mamba2")
def LABEL_mixers_time(mixer_layers, prefill_mixer_time, decode_mixer_time, mixed_iterations, mixer_streams_time):
    """Time of the recurrences of one pass through all layers, without products, by resource and pass."""
    return mixer_layers * (with_steps(prefill_mixer_time, decode_mixer_time, mixed_iterations) + mixer_streams_time)


# ---- energy ---------------------------------------------------------------------------------------------------------


@recurrent("mixers_energy", "J", "hong2010power")
def LABEL_mixers_energy(
    mixer_layers,
    mixer_core_flops,
    mixer_core_traffic,
    prefill_passes,
    mixed_iterations,
    mixer_decode_flops,
    step_state_traffic,
    step_tokens,
    mixer_streams_traffic,
    unquantised_operation_energy,
    vector_operation_energy,
    crossing_byte_energy,
    memory_access_energy,
):
    """Energy of the recurrences of one pass through all layers, by resource and pass: operations and bytes."""
    products, moved = (
        total(whole, "mixer_kernel") / prefill_passes for whole in (mixer_core_flops, mixer_core_traffic)
    )
    steps = step_tokens * mixer_decode_flops * vector_operation_energy
    work = with_steps(products * unquantised_operation_energy, steps, mixed_iterations)
    traffic = with_steps(moved, step_state_traffic, mixed_iterations) + mixer_streams_traffic
    return mixer_layers * energy.streamed(traffic, crossing_byte_energy, memory_access_energy, work)


@constraint(
    reason="tensor-parallel ranks do not divide the heads of recurrent layers",
    source="shoeybi2019megatron",
    about="prefill_mixer_time",
)
def recurrent_heads_split(mixer_heads, tp):
    """Every rank has the same number of heads."""
    return mixer_heads % tp == 0


@constraint(
    reason="recurrent layers cannot be split over context-parallel ranks",
    source="yang2024fla",
    about="prefill_mixer_time",
)
def recurrences_are_whole(mixer_layers, cp):
    """The tokens of a recurrence follow each other on one rank."""
    return (mixer_layers == 0) | (cp == 1)
