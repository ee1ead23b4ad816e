"""Training of hybrid models: layers with attention, layers with a recurrent mixer, layers with both or without a FFN.

A layer of each kind along ``mixer_kind`` has ``attention_share`` of attention and ``mixer_share`` of a mixer; where
the kinds stand is counted by `layer_kinds`. Layers without a feed-forward part are spread alike over both, and the
layer of a module that predicts further tokens is the mean of both.

The mixer itself is that of `recurrent_layers`. Tensor-parallel ranks split its heads, so that its block communicates
as attention does. Each function below is that of the same name without ``LABEL``, weighted.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.engine.graph.tables import bind
from perfgrid.formulas.axes import of_kinds, only, table, total
from perfgrid.formulas.mixer_kinds import RECURRENT
from perfgrid.formulas.transformer.layer_products import MIXER_COLUMNS, MIXER_ROWS, OF_ATTENTION

from .step_energy import energy_beside_core
from .training import time_beside_core


def of_attention(plain, attention_share, otherwise=0.0):
    """What layers with attention have, and what the others have instead; by mixer_kind."""
    return attention_share * plain + (1 - attention_share) * otherwise


ATTENTION_ALONE = {  # what only attention has: unit and source
    "latent_gemms": ("1", "nvidia2025nemotronh"),
    "core_busy_time": ("s", "nvidia2025nemotronh"),
    "core_phase_energy": ("J", "hong2010power"),
    "latent_saved_bytes": ("byte", "nvidia2026latent"),
    "masked_core_flops": ("1", "dao2023flash2"),
    "latent_expansion_flops": ("1", "deepseek2024v2"),
    "expanded_activations": ("byte", "korthikanti2022"),
    "layer_score_activations": ("byte", "korthikanti2022"),
}
INPUT_OF_BLOCK = {  # of the first block: latents of attention, otherwise the input of the layer
    "attention_gathering_time": "operand_gathering_time",
    "attention_reduction_time": "tp_reduction_time",
}


def _hybrid(quantity, unit, source, others=""):
    meaning = f"The {quantity.replace('_', ' ')} of a layer of a hybrid model: that of layers with attention, weighted."
    arguments = f"plain_{quantity} attention_share {others}"
    selected = (quantity, "mixer", "LABEL")
    about = (unit, source, meaning)
    return bind(of_attention, f"LABEL_{quantity}", arguments, *about, of=selected, family={"LABEL": RECURRENT})


FORMULAS = (
    *(entry for quantity, about in ATTENTION_ALONE.items() for entry in _hybrid(quantity, *about)),
    *(e for quantity, other in INPUT_OF_BLOCK.items() for e in _hybrid(quantity, "s", "nvidia2026latent", other)),
)


def of_hybrid(of, unit, source):
    """Marks the function of a layer of hybrid models, whatever their mixer."""
    return alternative(of=of, by="mixer", label=RECURRENT, unit=unit, source=source)


@formula(unit="1", source="nvidia2025nemotronh")
def attention_share():
    """Softmax attention in a layer of each kind, by mixer_kind."""
    return only("mixer_kind", "attention")


@formula(unit="1", source="nvidia2025nemotronh")
def mixer_share(mixer_layers, attention_layers, layers):
    """Recurrent mixers in a layer of each kind, by mixer_kind: beside attention only where layers have both."""
    beside = xp.maximum(attention_layers + mixer_layers - layers, 0.0)
    alone = (mixer_layers - beside) / xp.maximum(layers - attention_layers, 1.0)
    return table("mixer_kind", attention=beside / xp.maximum(attention_layers, 1.0), recurrent=alone)


# ---- a layer: kernels -----------------------------------------------------------------------------------------------


@of_hybrid("layer_gemms", "1", "nvidia2025nemotronh")
def LABEL_layer_gemms(plain_layer_gemms, attention_share, mixer_share, mixer_inner_weights):
    """How often each product runs in one layer, by product: of attention in some layers, of a mixer in some."""
    attention, inner = only("product", *OF_ATTENTION), xp.where(mixer_inner_weights > 0, 1.0, 0.0)
    mixer = only("product", "mixer_input", "mixer_output") + inner * only("product", "mixer_inner")
    return plain_layer_gemms * (1 - attention + attention_share * attention) + mixer_share * mixer


@of_hybrid("layer_streams", "1", "nvidia2025nemotronh")
def LABEL_layer_streams(plain_layer_streams, attention_share):
    """How often each streaming kernel runs in one layer, by stream_kernel: those of attention in some."""
    attention = only("stream_kernel", "latent_norm", "rotary", "bias")
    return plain_layer_streams * (1 - attention + attention_share * attention)


@of_hybrid("cast_elements", "1", "micikevicius2022fp8")
def LABEL_cast_elements(
    plain_cast_elements,
    attention_share,
    mixer_share,
    microbatch_tokens,
    kind_is_dense,
    kind_has_shared_experts,
    hidden_size,
    mixer_input_columns,
    mixer_output_rows,
):
    """Operand elements of one layer that a kernel of its own converts, by phase: of attention, mixer and the rest."""
    ffn = (kind_is_dense + kind_has_shared_experts) * hidden_size * microbatch_tokens * only("phase", "input_gradient")
    mixer = table(
        "phase", forward=mixer_output_rows, input_gradient=hidden_size + mixer_input_columns, weight_gradient=0.0
    )
    return attention_share * (plain_cast_elements - ffn) + ffn + mixer_share * microbatch_tokens * mixer


@of_hybrid("rest_busy_time", "s", "nvidia2025nemotronh")
def LABEL_rest_busy_time(
    gemm_time,
    layer_gemms,
    stream_time,
    layer_streams,
    cast_time,
    adapter_time,
    expert_busy_time,
    flash_time,
    unfused,
    attention_share,
    mixer_busy_time,
):
    """Time of one layer without an unfused attention core, by resource and phase."""
    kernels = (gemm_time, layer_gemms, stream_time, layer_streams, cast_time, adapter_time, expert_busy_time)
    return time_beside_core(*kernels) + attention_share * (1 - unfused) * flash_time + mixer_busy_time


@of_hybrid("rest_phase_energy", "J", "hong2010power")
def LABEL_rest_phase_energy(
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
    attention_share,
    mixer_phase_energy,
):
    """Energy of one layer without an unfused attention core, by resource and phase."""
    products = (gemm_pass_energy, layer_gemms, stream_energy, layer_streams)
    experts = (grouped_pass_energy, layer_grouped_gemms, expert_stream_energy, layer_expert_streams)
    rest = energy_beside_core(*products, *experts, cast_energy, adapter_energy)
    return rest + attention_share * (1 - unfused) * flash_energy + mixer_phase_energy


# ---- a layer: work, parameters, activations -------------------------------------------------------------------------


@of_hybrid("core_forward_flops", "1", "shoeybi2019megatron")
def LABEL_core_forward_flops(
    plain_core_forward_flops,
    attention_share,
    mixer_share,
    recurrence_operations,
    mixer_heads,
    mixer_key_dim,
    mixer_value_dim,
):
    """FLOPs per token of the cores of one layer's forward pass: scores and context, or a recurrence, token by token.

    Those of the recurrence itself, not of its chunks.
    """
    recurrence = recurrence_operations * mixer_heads * mixer_key_dim * mixer_value_dim
    return attention_share * plain_core_forward_flops + mixer_share * recurrence


@of_hybrid("layer_forward_flops", "1", "shoeybi2019megatron")
def LABEL_layer_forward_flops(
    attention_matrix_parameters,
    active_ffn_parameters,
    core_forward_flops,
    attention_share,
    mixer_share,
    mixer_layer_parameters,
):
    """FLOPs per token of one layer's forward pass: 2 per weight, those of a convolution among them, and the cores."""
    mixing = attention_share * attention_matrix_parameters + mixer_share * mixer_layer_parameters
    return 2 * (mixing + active_ffn_parameters) + core_forward_flops


@of_hybrid("rank_layer_parameters", "1", "shoeybi2019megatron")
def LABEL_rank_layer_parameters(
    plain_rank_layer_parameters,
    rank_attention_parameters,
    hidden_size,
    kind_is_dense,
    kind_has_experts,
    attention_share,
    mixer_share,
    mixer_matrix_parameters,
    mixer_vector_parameters,
):
    """Parameters of one layer on one tensor-parallel rank apart from routed experts.

    Layers without attention keep the norms; one without a feed-forward part has one norm.
    """
    with_ffn = kind_is_dense + kind_has_experts
    around = with_ffn * (plain_rank_layer_parameters - rank_attention_parameters) + (1 - with_ffn) * hidden_size
    mixer = mixer_share * (mixer_matrix_parameters + mixer_vector_parameters)
    return attention_share * rank_attention_parameters + mixer + around


@of_hybrid("attention_activations", "byte", "korthikanti2022")
def LABEL_attention_activations(
    microbatch_tokens,
    rank_context_width,
    expanded_activations,
    latent_activations,
    latents_dropped,
    attention_output_size,
    attention_gate,
    activation_size,
    attention_share,
    mixer_share,
    mixer_activations,
):
    """Activations of attention and mixer of one layer and microbatch; with an output gate it and what it multiplies."""
    gate = xp.where(attention_gate, 2 * activation_size, 0.0)
    attention = microbatch_tokens * rank_context_width * (attention_output_size + gate) + latent_activations
    expanded = (1 - latents_dropped) * expanded_activations
    return attention_share * attention + expanded + mixer_share * mixer_activations


@of_hybrid("dropped_activations", "byte", "nvidia2026recompute")
def LABEL_dropped_activations(
    plain_dropped_activations, attention_share, latents_dropped, sharded_tokens, latent_width, activation_size
):
    """Activations of one layer and microbatch that single modules drop and compute again."""
    latents = latents_dropped * sharded_tokens * latent_width * activation_size
    return plain_dropped_activations - (1 - attention_share) * latents


@of_hybrid("named_attention_results", "byte", "liang2024torchtitan")
def LABEL_named_attention_results(
    plain_named_attention_results, attention_share, mixer_share, selective_share, mixer_activations
):
    """Results of attention that stay, for one layer and microbatch; of a mixer the share that is not repeated."""
    return attention_share * plain_named_attention_results + mixer_share * (1 - selective_share) * mixer_activations


# ---- a layer: adapters ----------------------------------------------------------------------------------------------


@of_hybrid("adapter_parameters", "1", "hu2021lora")
def LABEL_adapter_parameters(
    plain_adapter_parameters,
    lora_rank,
    adapted_gemms,
    gemm_inputs,
    gemm_outputs,
    rank_mixer_key_heads,
    mixer_key_heads,
    mixer_key_dim,
    kind_layers,
    tp,
):
    """Parameters of the adapters of the whole model: ranks split columns, of the output product its depth.

    Ranks that share a key head hold the same columns of queries and keys.
    """
    columns, output, first = (only("product", *names) for names in (MIXER_COLUMNS, (MIXER_ROWS,), ("mixer_input",)))
    copied = 2 * (tp * rank_mixer_key_heads - mixer_key_heads) * mixer_key_dim * first
    by_columns = columns * (gemm_inputs + tp * gemm_outputs - copied)
    by_rows = output * (tp * gemm_inputs + gemm_outputs)
    of_layer = total(adapted_gemms * (by_columns + by_rows), "product")
    return plain_adapter_parameters + lora_rank * of_kinds(kind_layers, of_layer)


# ---- what is possible -----------------------------------------------------------------------------------------------


@constraint(
    reason="tensor-parallel ranks do not divide the heads of recurrent layers",
    source="shoeybi2019megatron",
    about="mixer_share",
)
def mixer_heads_divide(mixer_heads, tp):
    """Every rank has the same number of heads."""
    return mixer_heads % tp == 0


@constraint(
    reason="recurrent layers cannot be split over context-parallel ranks", source="yang2024fla", about="mixer_share"
)
def recurrences_stay_whole(mixer_layers, cp):
    """The tokens of a recurrence follow each other on one rank."""
    return (mixer_layers == 0) | (cp == 1)
