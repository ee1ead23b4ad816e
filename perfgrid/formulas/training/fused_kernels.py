"""Kernels that replace those of a software stack: of norms, gates and rotary (``layer_kernels``), and of the loss.

Liger's norms read their input once and keep it as it is with one number a row; its gate multiplies in the kernel of the
activation function and keeps both inputs; its rotary is one kernel. ``cross_entropy`` selects the loss:

| label | logits |
|---|---|
| stack | as the software has it |
| chunked | whole in 16 bits, converted chunk by chunk; their log-softmax stays |
| fused_linear | of a chunk of tokens at once: Liger makes gradients of hidden states and head in the forward pass |
| cut | never in memory: the backward pass makes them again, block by block |
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import at, only, table, total

CHUNKS = 8.0  # of a chunked loss
FORWARD_CHUNK, BACKWARD_CHUNK = 1.0, 2.0  # float32 tables of a chunk: a copy; two gradients

FORMULAS = (
    *by_label(
        "layer_kernels",
        {
            "run_pointwise_passes": (
                "1",
                "linkedin2024liger",
                "Passes of element-wise kernels over fused ones.",
            ),
            "run_norm_passes": (
                "1",
                "linkedin2024liger",
                "Bytes that norms move over those of a fused one.",
            ),
            "kept_norm_size": ("byte", "linkedin2024liger", "Bytes per element that a norm keeps of its input."),
            "gate_result_size": ("byte", "linkedin2024liger", "Bytes per element of an activation function's result."),
        },
        {
            "stack": ("pointwise_passes", "norm_passes", None, None),
            "liger": (1, 1, "stream_size", 0),
        },
    ),
    *by_label(
        "cross_entropy",
        {
            "loss_traffic": ("byte", "pytorch2025memory", "Bytes that the loss reads and writes per logit, by phase."),
            "held_logits": (
                "byte",
                "pytorch2025memory",
                "What a head's loss holds when the backward pass starts.",
            ),
            "forward_logits": (
                "byte",
                "pytorch2025memory",
                "What a head's loss holds in the forward pass at most.",
            ),
            "reserved_logits": ("byte", "pytorch2025memory", "What an allocator reserves for a head's loss beside it."),
            "loss_recompute_time": ("s", "wijmans2024cut", "Time to make the logits of one head again, by resource."),
        },
        {
            "stack": ("loss_size", None, None, None, 0),
            "chunked": ("loss_size", None, None, 0, 0),
            "fused_linear": (None, None, None, 0, 0),
            "cut": (0, 0, 0, 0, None),
        },
    ),
)


def of_loss(quantity, label, source="pytorch2025memory", unit="byte"):
    """The alternative of a quantity for a loss."""
    return alternative(of=quantity, by="cross_entropy", label=label, unit=unit, source=source)


# ---- norms and gates ------------------------------------------------------------------------------------------------


@alternative(of="kept_norm_size", by="layer_kernels", label="stack", unit="byte", source="wolf2020transformers")
def stack_kept_norm_size(activation_size, norms_upcast, float32_size, trains_weights, stream_size):
    """Bytes per element that a norm keeps of its input: that, or its float32 copy and, for its weight, the quotient."""
    return xp.where(norms_upcast, float32_size + trains_weights * stream_size, activation_size)


@alternative(of="gate_result_size", by="layer_kernels", label="stack", unit="byte", source="wolf2020transformers")
def stack_gate_result_size(gate_results_kept, ffn_input_matrices, activation_size):
    """Bytes per element of an activation function's result that stay: where a gate multiplies in its own kernel."""
    return xp.where(gate_results_kept & (ffn_input_matrices > 1), activation_size, 0.0)


# ---- the loss -------------------------------------------------------------------------------------------------------


@formula(unit="1", source="korthikanti2022")
def rank_logits(microbatch_tokens, rank_vocab_size):
    """Logits of one microbatch on one rank."""
    return microbatch_tokens * rank_vocab_size


@formula(unit="byte", source="pytorch2025memory")
def head_backward(
    rank_logits,
    rank_head_parameters,
    activation_size,
    gradient_size,
    weight_cast_size,
    fused_accumulation,
    trains_weights,
    weights_sharded,
):
    """What the backward pass of a trained head holds: the 16-bit gradient of its logits, and that of its weights.

    Autocast makes that in 16 bits and then in the format of the weights. Sharded ones are gathering_memory.
    """
    weights = activation_size + xp.where(weight_cast_size > 0, gradient_size, 0.0)
    apart = trains_weights * (1 - weights_sharded) * xp.where(fused_accumulation, 0.0, 1.0)
    return apart * (rank_logits * activation_size + rank_head_parameters * weights)


@of_loss("held_logits", "stack", "korthikanti2022")
def stack_held_logits(rank_logits, logit_size, split_logit_size, tp, head_backward):
    """What the loss of one head holds when the backward pass starts: more where ranks have parts of the vocabulary.

    Or what its own backward pass holds, which comes next and is more for few tokens.
    """
    size = xp.where((tp > 1) & (split_logit_size > 0), split_logit_size, logit_size)
    return xp.maximum(rank_logits * size, head_backward)


@of_loss("forward_logits", "stack")
def stack_forward_logits(rank_logits, forward_logit_size, logit_size, split_logit_size, tp):
    """What the loss of one head holds in the forward pass at most."""
    size = xp.where((tp > 1) & (split_logit_size > 0), split_logit_size, logit_size)
    return rank_logits * xp.where(forward_logit_size > 0, forward_logit_size, size)


@of_loss("reserved_logits", "stack")
def stack_reserved_logits(rank_logits, logit_size, reserved_logit_size):
    """What an allocator reserves for a head's loss beside it."""
    return rank_logits * xp.where(reserved_logit_size > 0, reserved_logit_size - logit_size, 0.0)


@formula(unit="byte", source="pytorch2025torchtune")
def chunked_logit_size(activation_size, float32_size):
    """Bytes per logit that stay in a chunked loss: 16 bits, and the log-softmax in float32."""
    return activation_size + float32_size


@of_loss("held_logits", "chunked", "pytorch2025torchtune")
def chunked_held_logits(rank_logits, chunked_logit_size, float32_size, head_backward):
    """What the loss of one head holds when the backward pass starts: what stays, and gradients of one chunk."""
    size = chunked_logit_size + BACKWARD_CHUNK / CHUNKS * float32_size
    return xp.maximum(rank_logits * size, head_backward)


@of_loss("forward_logits", "chunked", "pytorch2025torchtune")
def chunked_forward_logits(rank_logits, chunked_logit_size, float32_size):
    """What the loss of one head holds in the forward pass at most: what stays, and a copy of one chunk."""
    return rank_logits * (chunked_logit_size + FORWARD_CHUNK / CHUNKS * float32_size)


@formula(unit="1", source="linkedin2024liger")
def loss_chunk_tokens(microbatch_tokens, rank_vocab_size, hidden_size):
    """Tokens of a chunk of the fused loss: its logits take about what all hidden states take, a power of two."""
    share = microbatch_tokens / xp.ceil(rank_vocab_size / hidden_size)
    return xp.minimum(2.0 ** xp.ceil(xp.log2(xp.maximum(share, 1.0)) - 1e-5), microbatch_tokens)


@of_loss("held_logits", "fused_linear", "linkedin2024liger")
def fused_linear_held_logits(
    microbatch_tokens, hidden_size, activation_size, trains_weights, rank_head_parameters, weight_size
):
    """What a head's loss holds when the backward pass starts: gradients of hidden states and of a trained head."""
    return microbatch_tokens * hidden_size * activation_size + trains_weights * rank_head_parameters * weight_size


@of_loss("forward_logits", "fused_linear", "linkedin2024liger")
def fused_linear_forward_logits(
    fused_linear_held_logits,
    loss_chunk_tokens,
    rank_vocab_size,
    activation_size,
    trains_weights,
    rank_head_parameters,
    weight_size,
):
    """What a head's loss holds in the forward pass at most: a chunk of logits, gradients, one of the head anew."""
    again = trains_weights * rank_head_parameters * weight_size
    return fused_linear_held_logits + loss_chunk_tokens * rank_vocab_size * activation_size + again


@of_loss("loss_traffic", "fused_linear", "linkedin2024liger")
def fused_linear_loss_traffic(activation_size):
    """Bytes that the loss reads and writes per logit, by phase: read twice, gradient written in their place."""
    return table("phase", forward=3 * activation_size, input_gradient=0.0, weight_gradient=0.0)


@of_loss("loss_recompute_time", "cut", "wijmans2024cut", "s")
def cut_loss_recompute_time(gemm_time, head_passes):
    """Time to make the logits of one head again, by resource."""
    return head_passes * total(at(gemm_time, phase="forward") * only("product", "logits"), "product")
