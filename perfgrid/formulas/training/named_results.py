"""Recomputation of all but named results of a layer, as the policies of MaxText choose them (``recompute = "named"``).

Of the products of a layer those run again whose results neither stay nor are inputs of a kept sum: the shares of their
multiplications. Norms and activation functions come back with them.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import mean_of_kinds


def named(of: str, unit: str, flags: tuple[str, ...] = ()):
    """The alternative of a quantity where results are named."""
    return alternative(of=of, by="recompute", label="named", unit=unit, source="google2026maxtext", flags=flags)


@formula(unit="1", source="google2026maxtext")
def core_products(sequence_length, rank_context_width, causal):
    """Multiplications of the attention core for a token, both products: half of the sequence where it is causal."""
    return sequence_length * rank_context_width * xp.where(causal, 1.0, 2.0)


@named("layer_recomputed", "1")
def named_layer_recomputed(
    kind_layers,
    active_ffn_parameters,
    tp,
    core_products,
    hidden_size,
    rank_qkv_width,
    rank_context_width,
    ffn_input_matrices,
    kept_qkv,
    kept_context,
    kept_attention_output,
    kept_ffn_inputs,
    kept_ffn_output,
):
    """Part of a layer that is computed again: of its multiplications those whose results do not stay."""
    qkv, output = hidden_size * rank_qkv_width, hidden_size * rank_context_width
    last = mean_of_kinds(kind_layers, active_ffn_parameters) / tp / (1 + ffn_input_matrices)
    parts = (
        (kept_qkv, qkv),
        (kept_context, core_products),
        (kept_attention_output, output),
        (kept_ffn_inputs, last * ffn_input_matrices),
        (kept_ffn_output, last),
    )
    again = sum(xp.where(kept, 0.0, part) for kept, part in parts)
    return again / (qkv + output + core_products + last * (1 + ffn_input_matrices))


@named("core_recomputed", "1")
def named_core_recomputed(kept_context):
    """Repetitions of the unfused attention core."""
    return xp.where(kept_context, 0.0, 1.0)


@named("layer_activations", "byte")
def named_layer_activations(
    layer_input_activations,
    layer_score_activations,
    microbatch_tokens,
    sharded_tokens,
    hidden_size,
    activation_size,
    rank_qkv_width,
    rank_context_width,
    rank_ffn_size,
    ffn_input_matrices,
    kind_is_dense,
    kind_has_experts,
    expert_layer_activations,
    kept_qkv,
    kept_context,
    kept_attention_output,
    kept_ffn_inputs,
    kept_ffn_output,
):
    """Activations of one layer and microbatch that stay: its input and the named results."""
    first = kind_is_dense * microbatch_tokens * rank_ffn_size * ffn_input_matrices * activation_size
    sums = xp.where(kept_attention_output, 1.0, 0.0) + xp.where(kept_ffn_output, 1.0, 0.0)
    attention = xp.where(kept_qkv, rank_qkv_width, 0.0) + xp.where(kept_context, rank_context_width, 0.0)
    return (
        layer_input_activations
        + (attention * microbatch_tokens + sums * sharded_tokens * hidden_size) * activation_size
        + xp.where(kept_context, layer_score_activations, 0.0)
        + xp.where(kept_ffn_inputs, first + kind_has_experts * expert_layer_activations, 0.0)
    )


@named("recompute_choice", "1", flags=("none", "selective", "full_in_part", "full"))
def named_recompute_choice(kept_qkv, kept_context, kept_attention_output, kept_ffn_inputs, kept_ffn_output):
    """What is computed again: all where nothing stays."""
    kept = kept_qkv | kept_context | kept_attention_output | kept_ffn_inputs | kept_ffn_output
    return xp.where(kept, 1.0, 3.0)
