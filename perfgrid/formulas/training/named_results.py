"""Recomputation of all but named results of a layer, as the policies of MaxText choose them (``recompute = "named"``).

Of the products of a layer those run again whose results neither stay nor are inputs of a kept sum: the shares of their
multiplications. Norms and activation functions come back with them. Results stay on the device, or in host memory
(``offload = "named"``), and so may the input of the layer.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import mean_of_kinds

RESULTS = {"RESULT": ("qkv", "context", "attention_output", "ffn_inputs", "ffn_output")}


FORMULAS = by_label(
    "recompute",
    {"results_named": ("1", "google2026maxtext", "1 where results of a layer that stay are named.")},
    {("none", "selective", "full", "layers", "least"): (0,), "named": (1,)},
)


def named(of: str, unit: str, flags: tuple[str, ...] = ()):
    """The alternative of a quantity where results are named."""
    return alternative(of=of, by="recompute", label="named", unit=unit, source="google2026maxtext", flags=flags)


@formula(unit="1", source="google2026maxtext", family=RESULTS)
def stays_RESULT(kept_RESULT, offloaded_RESULT):
    """Whether RESULT stays: on the device or in host memory."""
    return kept_RESULT | offloaded_RESULT


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
    stays_qkv,
    stays_context,
    stays_attention_output,
    stays_ffn_inputs,
    stays_ffn_output,
):
    """Part of a layer that is computed again: of its multiplications those whose results do not stay."""
    qkv, output = hidden_size * rank_qkv_width, hidden_size * rank_context_width
    last = mean_of_kinds(kind_layers, active_ffn_parameters) / tp / (1 + ffn_input_matrices)
    parts = (
        (stays_qkv, qkv),
        (stays_context, core_products),
        (stays_attention_output, output),
        (stays_ffn_inputs, last * ffn_input_matrices),
        (stays_ffn_output, last),
    )
    again = sum(xp.where(kept, 0.0, part) for kept, part in parts)
    return again / (qkv + output + core_products + last * (1 + ffn_input_matrices))


@named("core_recomputed", "1")
def named_core_recomputed(stays_context):
    """Repetitions of the unfused attention core."""
    return xp.where(stays_context, 0.0, 1.0)


def named_sizes(
    microbatch_tokens,
    sharded_tokens,
    hidden_size,
    activation_size,
    rank_qkv_width,
    rank_context_width,
    layer_score_activations,
    first_ffn_results,
    which,
):
    """Activations of the results of one layer and microbatch that are meant, in the order of RESULTS."""
    sums = sharded_tokens * hidden_size * activation_size
    sizes = (
        microbatch_tokens * rank_qkv_width * activation_size,
        microbatch_tokens * rank_context_width * activation_size + layer_score_activations,
        sums,
        first_ffn_results,
        sums,
    )
    return sum(xp.where(one, size, 0.0) for one, size in zip(which, sizes, strict=True))


@formula(unit="byte", source="google2026maxtext")
def first_ffn_results(
    microbatch_tokens,
    rank_ffn_size,
    ffn_input_matrices,
    activation_size,
    kind_is_dense,
    kind_has_experts,
    expert_layer_activations,
):
    """Results of the first products of a feed-forward block for one layer and microbatch; what experts keep."""
    dense = microbatch_tokens * rank_ffn_size * ffn_input_matrices * activation_size
    return kind_is_dense * dense + kind_has_experts * expert_layer_activations


@named("layer_activations", "byte")
def named_layer_activations(
    layer_input_activations,
    microbatch_tokens,
    sharded_tokens,
    hidden_size,
    activation_size,
    rank_qkv_width,
    rank_context_width,
    layer_score_activations,
    first_ffn_results,
    stays_qkv,
    stays_context,
    stays_attention_output,
    stays_ffn_inputs,
    stays_ffn_output,
):
    """Activations of one layer and microbatch that stay: its input and the named results."""
    shape = (microbatch_tokens, sharded_tokens, hidden_size, activation_size, rank_qkv_width, rank_context_width)
    which = (stays_qkv, stays_context, stays_attention_output, stays_ffn_inputs, stays_ffn_output)
    return layer_input_activations + named_sizes(*shape, layer_score_activations, first_ffn_results, which)


@alternative(of="resident_share", by="offload", label="named", unit="1", source="google2026maxtext")
def named_resident_share(
    named_layer_activations,
    layer_input_activations,
    microbatch_tokens,
    sharded_tokens,
    hidden_size,
    activation_size,
    rank_qkv_width,
    rank_context_width,
    layer_score_activations,
    first_ffn_results,
    offloaded_input,
    offloaded_qkv,
    offloaded_context,
    offloaded_attention_output,
    offloaded_ffn_inputs,
    offloaded_ffn_output,
):
    """Part of a layer's activations that stays on the device: what is neither recomputed nor in host memory."""
    shape = (microbatch_tokens, sharded_tokens, hidden_size, activation_size, rank_qkv_width, rank_context_width)
    which = (
        *(offloaded_qkv, offloaded_context, offloaded_attention_output),
        *(offloaded_ffn_inputs, offloaded_ffn_output),
    )
    away = named_sizes(*shape, layer_score_activations, first_ffn_results, which)
    return 1 - (away + xp.where(offloaded_input, layer_input_activations, 0.0)) / named_layer_activations


@named("recompute_choice", "1", flags=("none", "selective", "full_in_part", "full"))
def named_recompute_choice(stays_qkv, stays_context, stays_attention_output, stays_ffn_inputs, stays_ffn_output):
    """What is computed again: all where nothing stays."""
    kept = stays_qkv | stays_context | stays_attention_output | stays_ffn_inputs | stays_ffn_output
    return xp.where(kept, 1.0, 3.0)


@constraint(
    reason="results of a layer are in host memory where they are named: recompute must be named",
    source="google2026maxtext",
)
def named_results_move(moves_named, results_named):
    """Results that policies name move to the host."""
    return moves_named <= results_named
