"""Volume of tensor parallelism: collectives that a device takes part in, and the bytes that it sends to other ranks."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import of_kinds
from perfgrid.formulas.collectives.placement import gathered_share

from .tensor_parallel import LOSS_REDUCTIONS

EMBEDDING_REDUCTIONS = 1  # results of the split embedding are added up once


def exchanged_bytes(reductions, gathers, ranks, message, sequence_parallel, gathered_message=None):
    """Bytes that a rank sends: (t - 1)/t of a message for a gather or reduce-scatter, twice that for an all-reduce.

    Valid for rings; other bandwidth-optimal algorithms send as much. ``gathered_message`` is that of gathers where
    it differs from that of reductions.
    """
    added = reductions * xp.where(sequence_parallel, 1.0, 2.0) * message
    return gathered_share(ranks) * (added + gathers * (message if gathered_message is None else gathered_message))


@formula(unit="1", source="korthikanti2022")
def layer_tp_reductions(attention_tp_blocks, ffn_tp_blocks, layer_recomputed):
    """Reductions of one layer over its tensor-parallel ranks: forward, recomputed and input gradients."""
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
def head_tp_reductions(head_passes, mtp_layers, last_kind, layer_tp_reductions):
    """Reductions of the head over the tensor-parallel ranks, those of the loss apart.

    A module for further tokens: those of embedding and layer, and gradients of both inputs of its projection.
    """
    return head_passes + mtp_layers * (EMBEDDING_REDUCTIONS + of_kinds(last_kind, layer_tp_reductions) + 2)


@formula(unit="1", source="korthikanti2022")
def embedding_tp_gathers(sequence_parallel):
    """Gathers of the embedding: its output gradients."""
    return xp.where(sequence_parallel, 1.0, 0.0)


@formula(unit="1", source="korthikanti2022")
def head_tp_gathers(sequence_parallel, head_passes, mtp_layers, last_kind, embedding_tp_gathers, layer_tp_gathers):
    """Gathers of the head: its input, forward and backward.

    A module for further tokens: those of embedding and layer, and both inputs of its projection, twice.
    """
    modules = mtp_layers * (embedding_tp_gathers + of_kinds(last_kind, layer_tp_gathers) + 4)
    return xp.where(sequence_parallel, 2 * head_passes + modules, 0.0)


@formula(unit="byte", source="korthikanti2022")
def layer_tp_bytes(
    layer_tp_reductions, layer_tp_gathers, tp, tp_message, operand_message, sequence_parallel, latent_saved_bytes
):
    """Bytes that one device sends to tensor-parallel ranks for one layer and microbatch."""
    calls = (layer_tp_reductions, layer_tp_gathers, tp)
    return exchanged_bytes(*calls, tp_message, sequence_parallel, operand_message) - latent_saved_bytes


@formula(unit="byte", source="korthikanti2022")
def embedding_tp_bytes(embedding_tp_gathers, tp, tp_message, sequence_parallel):
    """Bytes that one device sends to tensor-parallel ranks for the embedding and one microbatch."""
    return exchanged_bytes(EMBEDDING_REDUCTIONS, embedding_tp_gathers, tp, tp_message, sequence_parallel)


@formula(unit="byte", source="korthikanti2022")
def head_tp_bytes(
    head_tp_reductions,
    head_tp_gathers,
    layer_tp_reductions,
    layer_tp_gathers,
    layer_tp_bytes,
    mtp_kind_layers,
    tp,
    tp_message,
    sequence_parallel,
):
    """Bytes that one device sends to tensor-parallel ranks for the head and one microbatch, the loss apart.

    The layers of modules for further tokens are like the last one of the model.
    """
    reductions = head_tp_reductions - of_kinds(mtp_kind_layers, layer_tp_reductions)
    gathers = head_tp_gathers - of_kinds(mtp_kind_layers, layer_tp_gathers)
    own = exchanged_bytes(reductions, gathers, tp, tp_message, sequence_parallel)
    return own + of_kinds(mtp_kind_layers, layer_tp_bytes)


@formula(unit="byte", source="shoeybi2019megatron")
def loss_tp_bytes(tp, vocab_message, head_passes):
    """Bytes that one device of the last stage sends to tensor-parallel ranks for the loss of one microbatch."""
    return head_passes * LOSS_REDUCTIONS * 2 * gathered_share(tp) * vocab_message


@formula(unit="byte", source="korthikanti2022")
def tp_bytes(
    microbatches,
    slowest_stage_kind_layers,
    slowest_stage_embeddings,
    slowest_stage_heads,
    layer_tp_bytes,
    embedding_tp_bytes,
    head_tp_bytes,
    loss_tp_bytes,
):
    """Bytes that one device of the slowest stage sends to tensor-parallel ranks in one step."""
    return microbatches * (
        of_kinds(slowest_stage_kind_layers, layer_tp_bytes)
        + slowest_stage_embeddings * embedding_tp_bytes
        + slowest_stage_heads * (head_tp_bytes + loss_tp_bytes)
    )


@formula(unit="1", source="korthikanti2022")
def tp_calls(
    tp,
    microbatches,
    slowest_stage_kind_layers,
    slowest_stage_embeddings,
    slowest_stage_heads,
    layer_tp_reductions,
    layer_tp_gathers,
    embedding_tp_gathers,
    head_tp_reductions,
    head_tp_gathers,
    head_passes,
):
    """Tensor-parallel collectives of one device of the slowest stage in one step."""
    calls = (
        of_kinds(slowest_stage_kind_layers, layer_tp_reductions + layer_tp_gathers)
        + slowest_stage_embeddings * (EMBEDDING_REDUCTIONS + embedding_tp_gathers)
        + slowest_stage_heads * (head_tp_reductions + head_tp_gathers + head_passes * LOSS_REDUCTIONS)
    )
    return xp.where(tp > 1, microbatches * calls, 0.0)
