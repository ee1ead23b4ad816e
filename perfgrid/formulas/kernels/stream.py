"""Streaming kernels (norms, element-wise operations, softmax, look-ups, loss): limited by memory or by vector units.

Each kernel processes a number of elements at so many bytes and vector operations each. Their backward pass stands in
the phase ``input_gradient``; what it does for the gradients of norms and biases is in ``weight_gradient``: a second
pass over what the first one read.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import only, table
from perfgrid.formulas.hardware.device import QUANTISED, UNQUANTISED

from .roofline import roofline_shares


@formula(unit="1", source="korthikanti2022")
def stream_elements(
    sharded_tokens,
    microbatch_tokens,
    rank_heads,
    hidden_size,
    rank_query_width,
    rank_key_width,
    rank_value_width,
    rotary_width,
    latent_width,
    rank_ffn_size,
    rank_shared_ffn_size,
    moe_share,
    sequence_length,
    rank_vocab_size,
    ffn_input_matrices,
):
    """Elements that each streaming kernel processes on one rank, by stream_kernel.

    Rotary: queries and keys. Bias: the results of all matrices of the mean layer but those of experts.
    """
    return table(
        "stream_kernel",
        norm=sharded_tokens * hidden_size,
        residual=sharded_tokens * hidden_size,
        activation=microbatch_tokens * rank_ffn_size,
        shared_activation=microbatch_tokens * rank_shared_ffn_size,
        latent_norm=sharded_tokens * latent_width,
        rotary=microbatch_tokens * rotary_width,
        softmax=rank_heads * sequence_length * sequence_length,
        embedding=microbatch_tokens * hidden_size,
        loss=microbatch_tokens * rank_vocab_size,
        bias=microbatch_tokens
        * (
            rank_query_width
            + rank_key_width
            + rank_value_width
            + hidden_size
            + (1 - moe_share) * (rank_ffn_size * ffn_input_matrices + hidden_size)
        ),
    )


@formula(unit="byte", source="shoeybi2019megatron")
def stream_forward_size(activation_size, mask_size, float32_size, ffn_input_matrices, dropout):
    """Bytes read and written per element in the forward pass, by stream_kernel.

    Softmax with scale and mask is one kernel and its dropout another (Megatron-LM); bias, dropout and residual addition
    are fused, as are the two factors of a gated activation; the loss works in single precision.
    """
    a = activation_size
    mask = xp.where(dropout, mask_size, 0.0)
    return table(
        "stream_kernel",
        norm=2 * a,
        residual=3 * a + mask,
        activation=(ffn_input_matrices + 1) * a,
        shared_activation=(ffn_input_matrices + 1) * a,
        latent_norm=2 * a,
        rotary=2 * a,
        softmax=2 * a + xp.where(dropout, 2 * a + mask_size, 0.0),
        embedding=2 * a,
        loss=a + 9 * float32_size,
        bias=0.0,
    )


@formula(unit="byte", source="shoeybi2019megatron")
def stream_backward_size(activation_size, mask_size, float32_size, gradient_size, ffn_input_matrices, dropout):
    """Bytes read and written per element in the backward pass, by stream_kernel.

    The residual adds the gradients of its two branches; the embedding accumulates into its table.
    """
    a = activation_size
    dropped = xp.where(dropout, 2 * a + mask_size, 0.0)
    return table(
        "stream_kernel",
        norm=3 * a,
        residual=3 * a + dropped,
        activation=(2 * ffn_input_matrices + 1) * a,
        shared_activation=(2 * ffn_input_matrices + 1) * a,
        latent_norm=3 * a,
        rotary=2 * a,
        softmax=3 * a + dropped,
        embedding=a + 2 * gradient_size,
        loss=a + 3 * float32_size,
        bias=0.0,
    )


@formula(unit="byte", source="shoeybi2019megatron")
def stream_weight_gradient_size(activation_size):
    """Bytes read per element for gradients of gains and biases, by stream_kernel.

    A norm reads its input and output gradient again; the gradient of a bias sums an output gradient over the tokens.
    """
    a = activation_size
    return 2 * a * only("stream_kernel", "norm", "latent_norm") + a * only("stream_kernel", "bias")


@formula(unit="1", source="ivanov2021data")
def stream_passes(pointwise_passes):
    """Bytes that each streaming kernel moves over those of one fused kernel, by stream_kernel.

    Frameworks that interpret a model run some of them operation by operation; look-ups, loss and sums for biases, which
    are counted as they run, are not concerned.
    """
    counted = only("stream_kernel", "embedding", "loss", "bias")
    return counted + (1 - counted) * pointwise_passes


@formula(unit="byte", source="shoeybi2019megatron")
def stream_traffic(
    stream_elements,
    stream_forward_size,
    stream_backward_size,
    stream_weight_gradient_size,
    stream_passes,
    score_copy_size,
):
    """Memory traffic of each streaming kernel, by phase and stream_kernel; what is done to scores goes with softmax."""
    fused = table(
        "phase",
        forward=stream_forward_size,
        input_gradient=stream_backward_size,
        weight_gradient=stream_weight_gradient_size,
    )
    return stream_elements * (stream_passes * fused + score_copy_size * only("stream_kernel", "softmax"))


@formula(unit="1", source="ivanov2021data")
def stream_operations():
    """Vector operations per element (an exponential or tanh counted as its polynomial), by phase and stream_kernel."""
    forward = table(
        "stream_kernel",
        norm=7.0,
        residual=3.0,
        activation=10.0,
        shared_activation=10.0,
        latent_norm=7.0,
        rotary=3.0,
        softmax=8.0,
        embedding=1.0,
        loss=8.0,
        bias=0.0,
    )
    backward = table(
        "stream_kernel",
        norm=10.0,
        residual=3.0,
        activation=20.0,
        shared_activation=20.0,
        latent_norm=10.0,
        rotary=3.0,
        softmax=6.0,
        embedding=1.0,
        loss=2.0,
        bias=0.0,
    )
    gradients = 4 * only("stream_kernel", "norm", "latent_norm") + only("stream_kernel", "bias")
    return table("phase", forward=forward, input_gradient=backward, weight_gradient=gradients)


@formula(unit="1", source="shoeybi2019megatron")
def stream_launches():
    """Kernels started per run of each streaming kernel, by phase and stream_kernel."""
    passes = only("phase", "forward", "input_gradient")
    gradients = only("phase", "weight_gradient") * only("stream_kernel", "norm", "latent_norm", "bias")
    return passes * (1 - only("stream_kernel", "bias")) + gradients


@formula(unit="s", source="williams2009roofline")
def stream_time(
    stream_elements,
    stream_operations,
    stream_traffic,
    stream_launches,
    computed_phases,
    vector_rate,
    achieved_hbm_bandwidth,
    launch_overhead,
):
    """Time of each streaming kernel by the resource it waits for, by resource, phase and stream_kernel."""
    return computed_phases * roofline_shares(
        arithmetic=stream_elements * stream_operations / vector_rate,
        hbm=stream_traffic / achieved_hbm_bandwidth,
        launch=launch_overhead * stream_launches,
    )


@formula(unit="1", source="shoeybi2019megatron")
def layer_streams(
    learned_positions, biases, layer_blocks, latent_attention, compressed_queries, moe_share, moe_shared_share
):
    """How often each streaming kernel runs in the mean layer apart from the attention core, by stream_kernel.

    A block begins with a norm and ends with a residual addition.
    """
    rotary = xp.where(learned_positions > 0, 0.0, 1.0)
    return table(
        "stream_kernel",
        norm=layer_blocks,
        residual=layer_blocks,
        activation=1 - moe_share,
        shared_activation=moe_shared_share,
        latent_norm=latent_attention,
        rotary=rotary,
        softmax=0.0,
        embedding=0.0,
        loss=0.0,
        bias=xp.where(biases, 1.0, 0.0),
    )


# ---- conversion to 8 and 4 bits -------------------------------------------------------------------------------------


@alternative(
    of="cast_size", by="precision", label="FORMAT", unit="byte", source="micikevicius2022fp8", family=UNQUANTISED
)
def FORMAT_cast_size():
    """Bytes per element of a conversion of operands: none is needed for FORMAT products."""
    return 0.0


@alternative(
    of="cast_size", by="precision", label="FORMAT", unit="byte", source="micikevicius2022fp8", family=QUANTISED
)
def FORMAT_scaled_cast_size(activation_size, operand_size, scaling_reads):
    """Bytes per element of a conversion to FORMAT: read as often as the scaling asks, written for two products.

    The products of the two passes sum along different dimensions: operands are stored in two layouts, each with scales.
    """
    return scaling_reads * activation_size + 2 * operand_size


@formula(unit="1", source="micikevicius2022fp8")
def cast_elements(
    microbatch_tokens,
    hidden_size,
    rank_query_width,
    rank_key_width,
    rank_value_width,
    rank_context_width,
    dense_ffn_share,
):
    """Operand elements of the mean layer that a kernel of its own converts, by phase; those of experts apart.

    Forward the attention output; backward the output gradients of both projections and of queries, keys and values.
    Norms and activation functions convert what they write.
    """
    return microbatch_tokens * table(
        "phase",
        forward=rank_context_width,
        input_gradient=(1 + dense_ffn_share) * hidden_size + rank_query_width + rank_key_width + rank_value_width,
        weight_gradient=0.0,
    )


@formula(unit="s", source="williams2009roofline")
def cast_time(cast_elements, cast_size, achieved_hbm_bandwidth, launch_overhead):
    """Time of conversions to 8 or 4 bits in one layer, by resource and phase."""
    kernels = xp.where(cast_size > 0, 1.0, 0.0) * table("phase", forward=1.0, input_gradient=3.0, weight_gradient=0.0)
    traffic = cast_elements * cast_size / achieved_hbm_bandwidth
    return traffic * only("resource", "hbm") + launch_overhead * kernels * only("resource", "launch")
