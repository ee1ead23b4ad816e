"""Streaming kernels (norms, element-wise operations, softmax, look-ups, loss): limited by memory or by vector units.

A kernel reads and writes each element once and does a few operations on it, so its intensity is a few operations per
byte, far below what a device needs to be limited by arithmetic. The backward pass is in the phase ``input_gradient``;
the gradients of norms and biases are in ``weight_gradient``: a second pass over what the first one read.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import only, table
from perfgrid.formulas.hardware.device import QUANTISED, UNQUANTISED
from perfgrid.formulas.mixer_kinds import NONE

from .roofline import roofline_shares


def by_phase(axis, **rows):
    """A table along ``phase`` and an axis of kernels: each row has a forward, an input and a weight gradient."""
    columns = zip(*rows.values(), strict=True)
    forward, input_gradient, weight_gradient = (table(axis, **dict(zip(rows, c, strict=True))) for c in columns)
    return table("phase", forward=forward, input_gradient=input_gradient, weight_gradient=weight_gradient)


AS_THEY_RUN = ("embedding", "bias", "ffn_bias")  # streaming kernels that no stack runs in several passes
NORMS = ("norm", "latent_norm")


@formula(unit="1", source="korthikanti2022")
def stream_elements(
    sharded_tokens,
    microbatch_tokens,
    rank_heads,
    hidden_size,
    looked_up_width,
    rank_query_width,
    rank_key_width,
    rank_value_width,
    latent_attention,
    heads,
    tp,
    qk_rope_head_dim,
    latent_width,
    rank_ffn_size,
    rank_shared_ffn_size,
    sequence_length,
    rank_vocab_size,
    ffn_input_matrices,
):
    """Elements that each streaming kernel processes on one rank, by stream_kernel.

    Rotary: queries and keys; with latent attention the rotary part of each query, and all of the keys and values, which
    are put together from their parts on the way. Bias: the results of the matrices of attention, and of a dense
    feed-forward block.
    """
    latent = heads / tp * qk_rope_head_dim + rank_key_width + rank_value_width
    rotary = xp.where(latent_attention > 0, latent, rank_query_width + rank_key_width)
    results = rank_query_width + rank_key_width + rank_value_width + hidden_size
    dense_results = rank_ffn_size * ffn_input_matrices + hidden_size
    return table(
        "stream_kernel",
        norm=sharded_tokens * hidden_size,
        residual=sharded_tokens * hidden_size,
        activation=microbatch_tokens * rank_ffn_size,
        shared_activation=microbatch_tokens * rank_shared_ffn_size,
        latent_norm=sharded_tokens * latent_width,
        rotary=microbatch_tokens * rotary,
        softmax=rank_heads * sequence_length * sequence_length,
        embedding=microbatch_tokens * looked_up_width,
        loss=microbatch_tokens * rank_vocab_size,
        bias=microbatch_tokens * results,
        ffn_bias=microbatch_tokens * dense_results,
    )


@formula(unit="byte", source="shoeybi2019megatron")
def stream_traffic(
    stream_elements,
    activation_size,
    mask_size,
    gradient_size,
    ffn_input_matrices,
    dropout,
    run_pointwise_passes,
    run_norm_passes,
    loss_traffic,
    score_copy_size,
):
    """Memory traffic of each streaming kernel, by phase and stream_kernel: elements times bytes of each.

    Forward: softmax with scale and mask is one kernel and its dropout another (Megatron-LM); bias, dropout and residual
    addition are fused, as are the two factors of a gated activation; the loss moves what the software states. Backward:
    the residual adds the gradients of its two branches, the embedding accumulates into its table. For the gradients of
    its gains a norm reads its input and output gradient again; that of a bias sums an output gradient over the tokens.

    Frameworks that interpret a model run element-wise kernels operation by operation (``pointwise_passes``), few of
    them norms, too (``norm_passes``); look-ups, loss and sums for biases are counted as they run.
    """
    a = activation_size
    mask, dropped = xp.where(dropout, mask_size, 0.0), xp.where(dropout, 2 * a + mask_size, 0.0)
    activation = ((ffn_input_matrices + 1) * a, (2 * ffn_input_matrices + 1) * a, 0.0)
    fused = by_phase(
        "stream_kernel",
        norm=(2 * a, 3 * a, 2 * a),
        residual=(3 * a + mask, 3 * a + dropped, 0.0),
        activation=activation,
        shared_activation=activation,
        latent_norm=(2 * a, 3 * a, 2 * a),
        rotary=(2 * a, 2 * a, 0.0),
        softmax=(2 * a + dropped, 3 * a + dropped, 0.0),
        embedding=(2 * a, a + 2 * gradient_size, 0.0),
        loss=(0.0, 0.0, 0.0),
        bias=(0.0, 0.0, a),
        ffn_bias=(0.0, 0.0, a),
    )
    as_they_run, norms = (only("stream_kernel", *names) for names in (AS_THEY_RUN, NORMS))
    passes = as_they_run + norms * run_norm_passes + (1 - as_they_run - norms) * run_pointwise_passes
    apart = loss_traffic * only("stream_kernel", "loss") + score_copy_size * only("stream_kernel", "softmax")
    return stream_elements * (passes * fused + apart)


def stream_operations():
    """Vector operations per element (an exponential or tanh counted as its polynomial), by phase and stream_kernel.

    Counted from the kernels that Ivanov 2021 lists.
    """
    return by_phase(
        "stream_kernel",
        norm=(7.0, 10.0, 4.0),
        residual=(3.0, 3.0, 0.0),
        activation=(10.0, 20.0, 0.0),
        shared_activation=(10.0, 20.0, 0.0),
        latent_norm=(7.0, 10.0, 4.0),
        rotary=(3.0, 3.0, 0.0),
        softmax=(8.0, 6.0, 0.0),
        embedding=(1.0, 1.0, 0.0),
        loss=(8.0, 2.0, 0.0),
        bias=(0.0, 0.0, 1.0),
        ffn_bias=(0.0, 0.0, 1.0),
    )


def expert_stream_operations():
    """Vector operations per element, by phase and expert_stream_kernel (see `stream_operations`)."""
    return by_phase(
        "expert_stream_kernel",
        routing=(12.0, 6.0, 0.0),
        permute=(0.0, 1.0, 0.0),
        sort=(0.0, 0.0, 0.0),
        unpermute=(2.0, 1.0, 0.0),
        expert_activation=(10.0, 20.0, 0.0),
    )


def stream_launches():
    """Kernels started per run of each streaming kernel, by phase and stream_kernel: one for all biases of a layer."""
    passes = only("phase", "forward", "input_gradient")
    gradients = only("phase", "weight_gradient") * only("stream_kernel", "norm", "latent_norm", "bias")
    return passes * (1 - only("stream_kernel", "bias", "ffn_bias")) + gradients


@formula(unit="s", source="williams2009roofline")
def stream_time(stream_elements, stream_traffic, computed_phases, vector_rate, achieved_hbm_bandwidth, launch_overhead):
    """Time of each streaming kernel by resource, phase and stream_kernel.

    The longer of vector operations and memory traffic: max(operations / vector rate, bytes / bandwidth) + launches.
    """
    return computed_phases * roofline_shares(
        arithmetic=stream_elements * stream_operations() / vector_rate,
        hbm=stream_traffic / achieved_hbm_bandwidth,
        launch=launch_overhead * stream_launches(),
    )


@alternative(of="layer_streams", by="mixer", label=NONE, unit="1", source="shoeybi2019megatron")
def plain_layer_streams(
    learned_positions,
    biases,
    layer_blocks,
    latent_attention,
    compressed_queries,
    kind_is_dense,
    kind_has_shared_experts,
):
    """How often each streaming kernel runs in one layer apart from the attention core, by stream_kernel.

    A block begins with a norm and ends with a residual addition.
    """
    rotary = xp.where(learned_positions > 0, 0.0, 1.0)
    biased = xp.where(biases, 1.0, 0.0)
    return table(
        "stream_kernel",
        norm=layer_blocks,
        residual=layer_blocks,
        activation=kind_is_dense,
        shared_activation=kind_has_shared_experts,
        latent_norm=latent_attention,
        rotary=rotary,
        softmax=0.0,
        embedding=0.0,
        loss=0.0,
        bias=biased,
        ffn_bias=biased * kind_is_dense,
    )


# ---- conversion to 8 and 4 bits -------------------------------------------------------------------------------------


@alternative(
    of="cast_size",
    by="precision",
    label=QUANTISED,
    unit="byte",
    source="micikevicius2022fp8",
    others={UNQUANTISED: 0.0},
)
def LABEL_scaled_cast_size(activation_size, operand_size, scaling_reads):
    """Bytes per element of a conversion to LABEL: read as often as the scaling asks, written for two products.

    The products of the two passes sum along different dimensions: operands are stored in two layouts, each with scales.
    """
    return scaling_reads * activation_size + 2 * operand_size


@alternative(of="cast_elements", by="mixer", label=NONE, unit="1", source="micikevicius2022fp8")
def plain_cast_elements(
    microbatch_tokens,
    hidden_size,
    rank_query_width,
    rank_key_width,
    rank_value_width,
    rank_context_width,
    kind_is_dense,
    kind_has_shared_experts,
):
    """Operand elements of one layer that a kernel of its own converts, by phase; those of experts apart.

    Forward the attention output; backward the output gradients of both projections and of queries, keys and values.
    Norms and activation functions convert what they write.
    """
    projections = 1 + kind_is_dense + kind_has_shared_experts
    return microbatch_tokens * table(
        "phase",
        forward=rank_context_width,
        input_gradient=projections * hidden_size + rank_query_width + rank_key_width + rank_value_width,
        weight_gradient=0.0,
    )


@formula(unit="s", source="williams2009roofline")
def cast_time(cast_elements, cast_size, achieved_hbm_bandwidth, launch_overhead):
    """Time of conversions to 8 or 4 bits in one layer, by resource and phase."""
    kernels = xp.where(cast_size > 0, 1.0, 0.0) * table("phase", forward=1.0, input_gradient=3.0, weight_gradient=0.0)
    traffic = cast_elements * cast_size / achieved_hbm_bandwidth
    return traffic * only("resource", "hbm") + launch_overhead * kernels * only("resource", "launch")
