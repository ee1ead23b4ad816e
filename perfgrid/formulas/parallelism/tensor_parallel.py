"""Tensor parallelism: what its ranks exchange for a layer, the embedding and the head, and what of it stays exposed."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import at, only, total
from perfgrid.formulas.collectives.collectives import gathered_share

BLOCKS = {"BLOCK": ("attention", "ffn")}
PARTS = {"PART": ("layer", "embedding", "head")}
LOSS_REDUCTIONS = 3  # of a vocabulary-parallel cross-entropy: maximum, logit of the label, sum of exponentials

# ---- equations ------------------------------------------------------------------------------------------------------


def exposed_time(communication, hidden_behind):
    """What is left of a communication after the work that it runs beside."""
    return xp.maximum(communication - hidden_behind, 0.0)


def exposed_in_parts(communication, parts, hidden_behind):
    """What is left of a communication in equal parts, each beside the work for another: one part always stays.

    With work w in as many parts, max(w, c) + min(w, c)/n in all (Wang 2023); buckets of gradients alike (Li 2020).
    """
    return xp.maximum(communication / parts, communication - hidden_behind * (1 - 1 / parts))


def exchanged_bytes(reductions, gathers, ranks, message, sequence_parallel, gathered_message=None):
    """Bytes that a rank sends (rings, as all senders): an all-reduce is a reduce-scatter and a gather.

    ``gathered_message``: what is gathered, where it is not what is added up.
    """
    added = reductions * xp.where(sequence_parallel, 1.0, 2.0) * message
    return gathered_share(ranks) * (added + gathers * (message if gathered_message is None else gathered_message))


def with_cores_taken(exposed, communication, core_share):
    """Exposed time of a communication, and what kernels take longer while the rest of it holds a part of the cores."""
    return exposed + core_share * (communication - exposed)


@formula(unit="1", source="deepseek2024v3")
def communication_core_share(communication_cores, cores):
    """Part of a device's cores that a collective beside the computation takes from it."""
    return xp.minimum(communication_cores / cores, 1.0)


# ---- calls ----------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="korthikanti2022")
def tp_message(microbatch_tokens, hidden_size, activation_size):
    """Activations of one microbatch that a tensor-parallel collective gathers, scatters or reduces."""
    return microbatch_tokens * hidden_size * activation_size


@formula(unit="1", source="korthikanti2022")
def operand(tp):
    """Ranks that gather operands of products: the tensor-parallel ones."""
    return tp


@formula(unit="byte", source="nvidia2026telinear")
def operand_message(
    microbatch_tokens, hidden_size, activation_size, operand_size, quantised_operands, converted_copies
):
    """Operands of the products of one microbatch that tensor-parallel ranks gather: converted before, or 16 bits."""
    converted = quantised_operands & (converted_copies > 0)
    size = xp.where(converted, xp.minimum(activation_size, operand_size), activation_size)
    return microbatch_tokens * hidden_size * size


@formula(unit="1", source="nvidia2026telinear")
def output_gradient_gathers(quantised_operands, converted_copies):
    """Gathers of an output gradient: one, or one for each of the copies that its two products need."""
    return xp.where(quantised_operands, xp.maximum(converted_copies, 1.0), 1.0)


@formula(unit="byte", source="shoeybi2019megatron")
def vocab_message(microbatch_tokens, float32_size):
    """Numbers of one microbatch that each reduction of a vocabulary-parallel loss adds up: one per token."""
    return microbatch_tokens * float32_size


@formula(unit="s", source="korthikanti2022")
def tp_reduction_time(tp_gather_time, tp_all_reduce_time, sequence_parallel):
    """Time to add partial results of the ranks: a reduce-scatter with sequence parallelism, otherwise an all-reduce."""
    return xp.where(sequence_parallel, tp_gather_time, tp_all_reduce_time)


@formula(unit="s", source="korthikanti2022", family={"GROUP": ("tp", "operand")})
def GROUP_gathering_time(GROUP_gather_time, sequence_parallel):
    """Time to gather what sequence parallelism has scattered over the GROUP ranks; without it nothing is gathered."""
    return xp.where(sequence_parallel, GROUP_gather_time, 0.0)


@formula(unit="s", source="korthikanti2022")
def ffn_gathering_time(operand_gathering_time):
    """Time to gather the input of the feed-forward block's column-parallel products."""
    return operand_gathering_time


@formula(unit="s", source="korthikanti2022")
def output_gradient_gathering_time(operand_gathering_time, output_gradient_gathers):
    """Time to gather the output gradients of the row-parallel products of a block."""
    return operand_gathering_time * output_gradient_gathers


@formula(unit="s", source="korthikanti2022")
def ffn_reduction_time(tp_reduction_time):
    """Time to add partial input gradients of the feed-forward block's column-parallel products."""
    return tp_reduction_time


# ---- products that collectives may hide behind ----------------------------------------------------------------------


@formula(unit="1", source="shoeybi2019megatron")
def attention_tp_blocks():
    """Communicating blocks of a layer that attention begins."""
    return 1.0


@formula(unit="1", source="chowdhery2022palm")
def ffn_tp_blocks(layer_blocks, dense_ffn_share):
    """Communicating blocks of the mean layer that the feed-forward block begins: none if it runs beside attention.

    Routed experts exchange tokens in a way of their own (`expert_parallel`).
    """
    return (layer_blocks - 1) * dense_ffn_share


@formula(unit="1", source="shoeybi2019megatron")
def attention_column_gemms(parallel_block, latent_gemms, compressed_queries):
    """Products of the attention block whose weights are split by columns, by gemm_kernel: their inputs are gathered.

    Where latents are gathered, the product that makes them comes before.
    """
    up = xp.where(parallel_block, 1.0, 0.0) * only("gemm_kernel", "ffn_up")
    return (1 - compressed_queries) * only("gemm_kernel", "qkv") + latent_gemms + up


@formula(unit="1", source="shoeybi2019megatron")
def attention_row_gemms(parallel_block):
    """Products of the attention block whose weights are split by rows, by gemm_kernel: their results are added up."""
    both = only("gemm_kernel", "attention_output", "ffn_down")
    return xp.where(parallel_block, both, only("gemm_kernel", "attention_output"))


@formula(unit="1", source="shoeybi2019megatron")
def ffn_column_gemms(moe_share, moe_shared_share, dense_ffn_share):
    """Products of a communicating feed-forward block with weights split by columns, by gemm_kernel: dense or shared."""
    products = (1 - moe_share) * only("gemm_kernel", "ffn_up") + moe_shared_share * only("gemm_kernel", "shared_up")
    return products / xp.where(dense_ffn_share > 0, dense_ffn_share, 1.0)


@formula(unit="1", source="shoeybi2019megatron")
def ffn_row_gemms(moe_share, moe_shared_share, dense_ffn_share):
    """Products of a communicating feed-forward block with weights split by rows, by gemm_kernel: dense or shared."""
    products = (1 - moe_share) * only("gemm_kernel", "ffn_down") + moe_shared_share * only("gemm_kernel", "shared_down")
    return products / xp.where(dense_ffn_share > 0, dense_ffn_share, 1.0)


@formula(unit="s", source="korthikanti2022", family={**BLOCKS, "SPLIT": ("column", "row")})
def BLOCK_SPLIT_time(gemm_time, BLOCK_SPLIT_gemms):
    """Time of the SPLIT-parallel products of the BLOCK block, by phase."""
    return total(total(gemm_time, "resource") * BLOCK_SPLIT_gemms, "gemm_kernel")


@formula(unit="1", source="wang2023overlap")
def tp_ring_share(tp_ring_overlap, sequence_parallel):
    """Fraction of a product's time behind which its own collective hides: only a gather or a scatter can be split."""
    return xp.where(sequence_parallel, tp_ring_overlap, 0.0)


# ---- exposed time ---------------------------------------------------------------------------------------------------


@formula(unit="s", source="korthikanti2022", family=BLOCKS)
def BLOCK_forward_exposed_tp_time(
    BLOCK_tp_blocks,
    tp,
    BLOCK_gathering_time,
    tp_reduction_time,
    tp_ring_share,
    BLOCK_column_time,
    BLOCK_row_time,
    communication_core_share,
):
    """Tensor-parallel communication of the BLOCK block's forward pass that is not hidden.

    Its input is gathered for the column-parallel product, the result of the row-parallel one is reduced: part by part
    beside these products where collectives are decomposed into rings, otherwise before and after them.
    """
    columns = tp_ring_share * at(BLOCK_column_time, phase="forward")
    rows = tp_ring_share * at(BLOCK_row_time, phase="forward")
    gathering = exposed_in_parts(BLOCK_gathering_time, tp, columns)
    exposed = gathering + exposed_in_parts(tp_reduction_time, tp, rows)
    communication = BLOCK_gathering_time + tp_reduction_time
    return BLOCK_tp_blocks * with_cores_taken(exposed, communication, communication_core_share)


@formula(unit="s", source="korthikanti2022", family=BLOCKS)
def BLOCK_backward_exposed_tp_time(
    BLOCK_tp_blocks,
    tp,
    output_gradient_gathering_time,
    BLOCK_gathering_time,
    BLOCK_reduction_time,
    tp_ring_share,
    tp_overlap,
    BLOCK_column_time,
    BLOCK_row_time,
    communication_core_share,
):
    """Tensor-parallel communication of the BLOCK block's backward pass that is not hidden.

    Output gradients are gathered for the row-parallel product, part by part beside it or before anything else. Inputs
    are gathered again beside the input-gradient product of the column-parallel matrix, input gradients are reduced
    beside its weight-gradient product.
    """
    rows = tp_ring_share * at(BLOCK_row_time, phase="input_gradient")
    beside = tp_overlap * BLOCK_column_time
    exposed = (
        exposed_in_parts(output_gradient_gathering_time, tp, rows)
        + exposed_time(BLOCK_gathering_time, at(beside, phase="input_gradient"))
        + exposed_time(BLOCK_reduction_time, at(beside, phase="weight_gradient"))
    )
    communication = output_gradient_gathering_time + BLOCK_gathering_time + BLOCK_reduction_time
    return BLOCK_tp_blocks * with_cores_taken(exposed, communication, communication_core_share)


@formula(unit="s", source="korthikanti2022")
def layer_forward_exposed_tp_time(attention_forward_exposed_tp_time, ffn_forward_exposed_tp_time):
    """Exposed tensor-parallel communication of one layer's forward pass."""
    return attention_forward_exposed_tp_time + ffn_forward_exposed_tp_time


@formula(unit="s", source="korthikanti2022")
def layer_backward_exposed_tp_time(
    attention_backward_exposed_tp_time,
    ffn_backward_exposed_tp_time,
    layer_forward_exposed_tp_time,
    layer_recomputed,
    attention_gathering_time,
    latents_recomputed,
):
    """Exposed tensor-parallel communication of one layer's backward pass, with that of recomputed forward passes.

    Latents that are expanded again are gathered again.
    """
    own = attention_backward_exposed_tp_time + ffn_backward_exposed_tp_time
    repeated = layer_recomputed * layer_forward_exposed_tp_time + latents_recomputed * attention_gathering_time
    return own + repeated


@formula(unit="s", source="korthikanti2022")
def embedding_forward_exposed_tp_time(tp_reduction_time):
    """Exposed communication of a vocabulary-parallel embedding's forward pass: its results are added up."""
    return tp_reduction_time


@formula(unit="s", source="korthikanti2022")
def embedding_backward_exposed_tp_time(tp_gathering_time):
    """Exposed communication of a vocabulary-parallel embedding's backward pass: gradients are gathered if scattered."""
    return tp_gathering_time


@formula(unit="s", source="shoeybi2019megatron")
def head_forward_exposed_tp_time(
    tp_gathering_time, vocab_all_reduce_time, head_passes, mtp_layers, mtp_forward_exposed_tp_time
):
    """Exposed communication of a vocabulary-parallel head and loss in the forward pass.

    A scattered input is gathered; maximum, logit of the label and sum of exponentials are reduced for every token.
    """
    own = tp_gathering_time + LOSS_REDUCTIONS * vocab_all_reduce_time
    return head_passes * own + mtp_layers * mtp_forward_exposed_tp_time


@formula(unit="s", source="korthikanti2022")
def head_backward_exposed_tp_time(
    tp_gathering_time, tp_reduction_time, head_passes, mtp_layers, mtp_backward_exposed_tp_time
):
    """Exposed communication of a vocabulary-parallel head's backward pass: input gathered again, gradients added up."""
    return head_passes * (tp_gathering_time + tp_reduction_time) + mtp_layers * mtp_backward_exposed_tp_time


@formula(unit="s", source="korthikanti2022", family=PARTS)
def PART_exposed_tp_time(PART_forward_exposed_tp_time, PART_backward_exposed_tp_time):
    """Exposed tensor-parallel communication of the PART for one microbatch."""
    return PART_forward_exposed_tp_time + PART_backward_exposed_tp_time


# ---- volume ---------------------------------------------------------------------------------------------------------


@formula(unit="1", source="korthikanti2022")
def layer_tp_reductions(attention_tp_blocks, ffn_tp_blocks, layer_recomputed):
    """Results that a layer adds up over its tensor-parallel ranks: forward, recomputed and input gradients."""
    return (attention_tp_blocks + ffn_tp_blocks) * (2 + layer_recomputed)


@formula(unit="1", source="korthikanti2022")
def layer_tp_gathers(
    attention_tp_blocks, ffn_tp_blocks, layer_recomputed, latents_recomputed, sequence_parallel, output_gradient_gathers
):
    """Gathers of one layer: forward, recomputed, output gradients, and inputs once more for the weight gradients."""
    blocks = attention_tp_blocks + ffn_tp_blocks
    own = blocks * (2 + layer_recomputed + output_gradient_gathers)
    return xp.where(sequence_parallel, own + latents_recomputed, 0.0)


@formula(unit="1", source="korthikanti2022")
def embedding_tp_reductions():
    """Results that the embedding adds up over the tensor-parallel ranks."""
    return 1.0


@formula(unit="1", source="korthikanti2022")
def head_tp_reductions(head_passes, mtp_layers, embedding_tp_reductions, layer_tp_reductions):
    """Results that the head adds up over the tensor-parallel ranks, those of the loss apart.

    A module for further tokens: those of embedding and layer, and gradients of both inputs of its projection.
    """
    return head_passes + mtp_layers * (embedding_tp_reductions + layer_tp_reductions + 2)


@formula(unit="1", source="korthikanti2022")
def embedding_tp_gathers(sequence_parallel):
    """Gathers of the embedding: its output gradients."""
    return xp.where(sequence_parallel, 1.0, 0.0)


@formula(unit="1", source="korthikanti2022")
def head_tp_gathers(sequence_parallel, head_passes, mtp_layers, embedding_tp_gathers, layer_tp_gathers):
    """Gathers of the head: its input, forward and backward.

    A module for further tokens: those of embedding and layer, and both inputs of its projection, twice.
    """
    modules = mtp_layers * (embedding_tp_gathers + layer_tp_gathers + 4)
    return xp.where(sequence_parallel, 2 * head_passes + modules, 0.0)


@formula(unit="byte", source="korthikanti2022")
def layer_tp_bytes(
    layer_tp_reductions, layer_tp_gathers, tp, tp_message, operand_message, sequence_parallel, latent_saved_bytes
):
    """Bytes that one device sends to tensor-parallel ranks for one layer and microbatch."""
    calls = (layer_tp_reductions, layer_tp_gathers, tp)
    return exchanged_bytes(*calls, tp_message, sequence_parallel, operand_message) - latent_saved_bytes


@formula(unit="byte", source="korthikanti2022")
def embedding_tp_bytes(embedding_tp_reductions, embedding_tp_gathers, tp, tp_message, sequence_parallel):
    """Bytes that one device sends to tensor-parallel ranks for the embedding and one microbatch."""
    return exchanged_bytes(embedding_tp_reductions, embedding_tp_gathers, tp, tp_message, sequence_parallel)


@formula(unit="byte", source="korthikanti2022")
def head_tp_bytes(
    head_tp_reductions, head_tp_gathers, layer_tp_reductions, layer_tp_gathers, layer_tp_bytes, mtp_layers, tp,
    tp_message, sequence_parallel,
):  # fmt: skip
    """Bytes that one device sends to tensor-parallel ranks for the head and one microbatch, the loss apart.

    The layers of modules for further tokens are like all others.
    """
    reductions = head_tp_reductions - mtp_layers * layer_tp_reductions
    gathers = head_tp_gathers - mtp_layers * layer_tp_gathers
    return exchanged_bytes(reductions, gathers, tp, tp_message, sequence_parallel) + mtp_layers * layer_tp_bytes


@formula(unit="byte", source="shoeybi2019megatron")
def loss_tp_bytes(tp, vocab_message, head_passes):
    """Bytes that one device of the last stage sends to tensor-parallel ranks for the loss of one microbatch."""
    return head_passes * LOSS_REDUCTIONS * 2 * gathered_share(tp) * vocab_message


@formula(unit="byte", source="korthikanti2022")
def tp_bytes(
    microbatches,
    slowest_stage_layers,
    slowest_stage_embeddings,
    slowest_stage_heads,
    layer_tp_bytes,
    embedding_tp_bytes,
    head_tp_bytes,
    loss_tp_bytes,
):
    """Bytes that one device of the slowest stage sends to tensor-parallel ranks in one step."""
    return microbatches * (
        slowest_stage_layers * layer_tp_bytes
        + slowest_stage_embeddings * embedding_tp_bytes
        + slowest_stage_heads * (head_tp_bytes + loss_tp_bytes)
    )


@formula(unit="1", source="korthikanti2022")
def tp_calls(
    tp,
    microbatches,
    slowest_stage_layers,
    slowest_stage_embeddings,
    slowest_stage_heads,
    layer_tp_reductions,
    layer_tp_gathers,
    embedding_tp_reductions,
    embedding_tp_gathers,
    head_tp_reductions,
    head_tp_gathers,
    head_passes,
):
    """Tensor-parallel collectives of one device of the slowest stage in one step."""
    calls = (
        slowest_stage_layers * (layer_tp_reductions + layer_tp_gathers)
        + slowest_stage_embeddings * (embedding_tp_reductions + embedding_tp_gathers)
        + slowest_stage_heads * (head_tp_reductions + head_tp_gathers + head_passes * LOSS_REDUCTIONS)
    )
    return xp.where(tp > 1, microbatches * calls, 0.0)


@formula(unit="s", source="korthikanti2022")
def tp_longest_call_time(tp_reduction_time, tp_gathering_time, pp_gathering_time):
    """Time of the longest collective of the tensor-parallel ranks in a step."""
    return xp.maximum(tp_reduction_time, xp.maximum(tp_gathering_time, pp_gathering_time))
