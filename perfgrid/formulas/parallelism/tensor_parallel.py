"""Tensor parallelism: what its ranks exchange for a layer, the embedding and the head, and what of it stays exposed.

A block (attention, feed-forward) is a column-parallel product followed by a row-parallel one (Megatron-LM). Its partial
results are added up by an all-reduce or, with sequence parallelism, by a reduce-scatter, and an all-gather before the
next block brings them together again: the same bytes, 2·(t - 1)/t of a message. Backward the two change places.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula, synonyms
from perfgrid.engine.graph.tables import by_label, constants
from perfgrid.formulas.axes import at, only, total
from perfgrid.formulas.hardware.device import QUANTISED, UNQUANTISED
from perfgrid.formulas.hardware.scaling import converted_copies
from perfgrid.formulas.transformer.layer_products import MIXER_COLUMNS, MIXER_ROWS

BLOCKS = {"BLOCK": ("attention", "ffn")}
ENDS = {"PART": ("embedding", "head")}
LOSS_REDUCTIONS = 3  # of a vocabulary-parallel cross-entropy: maximum, logit of the label, sum of exponentials

FORMULAS = (
    *by_label(
        "precision",
        {
            "operand_message": ("byte", "korthikanti2022", "Operands of one microbatch that ranks gather."),
            "operand_gathering_time": (
                "s",
                "korthikanti2022",
                "Time to gather operands; 0 without sequence parallelism.",
            ),
            "output_gradient_gathers": ("1", "korthikanti2022", "Gathers of an output gradient."),
            "output_gradient_gathering_time": (
                "s",
                "korthikanti2022",
                "Time to gather the output gradients of a block.",
            ),
        },
        {UNQUANTISED: ("tp_message", "tp_gathering_time", 1, "tp_gathering_time")},
    ),
    *constants(
        {"attention_tp_blocks": (1.0, "1", "shoeybi2019megatron", "Communicating blocks that attention begins.")}
    ),
    *synonyms(
        {
            "ffn_gathering_time": (
                *("operand_gathering_time", "s", "korthikanti2022"),
                "Time to gather the input of the feed-forward block's column-parallel products.",
            ),
            "ffn_reduction_time": (
                *("tp_reduction_time", "s", "korthikanti2022"),
                "Time to add partial input gradients of the feed-forward block's column-parallel products.",
            ),
            "embedding_forward_exposed_tp_time": (
                *("tp_reduction_time", "s", "korthikanti2022"),
                "Exposed communication of a vocabulary-parallel embedding's forward pass: its results are added up.",
            ),
            "embedding_backward_exposed_tp_time": (
                *("tp_gathering_time", "s", "korthikanti2022"),
                "Exposed communication of a vocabulary-parallel embedding's backward pass: gradients are gathered.",
            ),
        }
    ),
)


# ---- equations ------------------------------------------------------------------------------------------------------


def exposed_time(communication, hidden_behind):
    """What is left of a communication after the work that it runs beside: max(c - w, 0)."""
    return xp.maximum(communication - hidden_behind, 0.0)


def exposed_in_parts(communication, parts, hidden_behind):
    """What is left of a communication in n equal parts, each beside the work for another: one part always stays.

    With work w in as many parts the whole takes max(w, c) + min(w, c)/n (Wang 2023), so max(c/n, c - w·(1 - 1/n)) is
    exposed. Buckets of gradients alike (Li 2020).
    """
    return xp.maximum(communication / parts, communication - hidden_behind * (1 - 1 / parts))


def with_cores_taken(exposed, communication, core_share):
    """Exposed time of a communication, and what kernels take longer while the rest of it holds a part of the cores."""
    return exposed + core_share * (communication - exposed)


def block_time(gemm_time, layer_gemms, among):
    """Time of those products of a layer that are ``among`` some, by phase."""
    return total(total(gemm_time, "resource") * (layer_gemms * among), "product")


@formula(unit="1", source="deepseek2024v3")
def communication_core_share(communication_cores, cores):
    """Part of a device's cores that a collective beside the computation takes from it."""
    return xp.minimum(communication_cores / cores, 1.0)


# ---- calls ----------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="korthikanti2022")
def tp_message(microbatch_tokens, hidden_size, activation_size):
    """Activations of one microbatch that a tensor-parallel collective gathers, scatters or reduces: s·b·h elements."""
    return microbatch_tokens * hidden_size * activation_size


def _quantised(of, unit):
    """What operands of formats with scales need; ranks gather those of other formats as they gather activations."""
    return alternative(of=of, by="precision", label=QUANTISED, unit=unit, source="nvidia2026telinear")


@_quantised("operand_message", "byte")
def LABEL_operand_message(
    microbatch_tokens, hidden_size, activation_size, operand_size, quantised_operands, scaling_recipe
):
    """Bytes of the operands of one microbatch that tensor-parallel ranks gather: quantised before, or activations."""
    converted = quantised_operands & (converted_copies(scaling_recipe) > 0)
    size = xp.where(converted, xp.minimum(activation_size, operand_size), activation_size)
    return microbatch_tokens * hidden_size * size


@_quantised("output_gradient_gathers", "1")
def LABEL_output_gradient_gathers(quantised_operands, scaling_recipe):
    """Gathers of an output gradient: one, or one per quantised copy that its two products need."""
    return xp.where(quantised_operands, xp.maximum(converted_copies(scaling_recipe), 1.0), 1.0)


@formula(unit="byte", source="shoeybi2019megatron")
def vocab_message(microbatch_tokens, float32_size):
    """Message of each reduction of a vocabulary-parallel loss: one float32 per token of a microbatch."""
    return microbatch_tokens * float32_size


@formula(unit="s", source="korthikanti2022")
def tp_reduction_time(tp_gather_time, tp_all_reduce_time, sequence_parallel):
    """Time to add up the ranks' partial results: an all-reduce, with sequence parallelism a reduce-scatter."""
    return xp.where(sequence_parallel, tp_gather_time, tp_all_reduce_time)


@formula(unit="s", source="korthikanti2022")
def tp_gathering_time(tp_gather_time, sequence_parallel):
    """Time to all-gather what sequence parallelism has scattered over the tensor-parallel ranks; 0 without it."""
    return xp.where(sequence_parallel, tp_gather_time, 0.0)


@_quantised("operand_gathering_time", "s")
def LABEL_operand_gathering_time(operand_gather_time, sequence_parallel):
    """Time to all-gather operands that sequence parallelism has scattered; 0 without it."""
    return xp.where(sequence_parallel, operand_gather_time, 0.0)


@_quantised("output_gradient_gathering_time", "s")
def LABEL_output_gradient_gathering_time(operand_gathering_time, output_gradient_gathers):
    """Time to gather the output gradients of the row-parallel products of a block."""
    return operand_gathering_time * output_gradient_gathers


# ---- products that collectives may hide behind ----------------------------------------------------------------------


@formula(unit="1", source="chowdhery2022palm")
def ffn_tp_blocks(parallel_block, kind_is_dense, kind_has_shared_experts):
    """Communicating blocks of one layer that the feed-forward block begins: none if it runs beside attention.

    Routed experts exchange tokens in a way of their own (`expert_parallel`).
    """
    return xp.where(parallel_block, 0.0, kind_is_dense + kind_has_shared_experts)


@formula(unit="s", source="shoeybi2019megatron")
def attention_column_time(gemm_time, layer_gemms, parallel_block, compressed_queries):
    """Time of the first block's products with weights split by columns, whose inputs are gathered; by phase.

    Where latents are gathered, the product that makes them comes before; in a parallel block the feed-forward block's
    first product has the same input.
    """
    first, gathered = only("product", "qkv"), only("product", "query_up", "key_up", *MIXER_COLUMNS)
    beside = xp.where(parallel_block, 1.0, 0.0) * only("product", "ffn_up")
    return block_time(gemm_time, layer_gemms, (1 - compressed_queries) * first + gathered + beside)


@formula(unit="s", source="shoeybi2019megatron")
def attention_row_time(gemm_time, layer_gemms, parallel_block):
    """Time of the first block's products with weights split by rows, whose results are added up; by phase."""
    beside = xp.where(parallel_block, 1.0, 0.0) * only("product", "ffn_down")
    return block_time(gemm_time, layer_gemms, only("product", "attention_output", MIXER_ROWS) + beside)


@formula(unit="s", source="shoeybi2019megatron")
def ffn_column_time(gemm_time, layer_gemms):
    """Time of a communicating feed-forward block's products with weights split by columns, by phase."""
    return block_time(gemm_time, layer_gemms, only("product", "ffn_up", "shared_up"))


@formula(unit="s", source="shoeybi2019megatron")
def ffn_row_time(gemm_time, layer_gemms):
    """Time of a communicating feed-forward block's products with weights split by rows, by phase."""
    return block_time(gemm_time, layer_gemms, only("product", "ffn_down", "shared_down"))


@formula(unit="1", source="wang2023overlap")
def tp_ring_share(tp_ring_overlap, sequence_parallel):
    """Fraction of a product's time behind which its own collective hides: only a gather or a scatter can be split."""
    return xp.where(sequence_parallel, tp_ring_overlap, 0.0)


# ---- exposed time ---------------------------------------------------------------------------------------------------


@formula(unit="s", source="korthikanti2022")
def layer_forward_exposed_tp_time(
    ffn_tp_blocks,
    tp,
    attention_gathering_time,
    operand_gathering_time,
    tp_reduction_time,
    tp_ring_share,
    attention_column_time,
    attention_row_time,
    ffn_column_time,
    ffn_row_time,
    communication_core_share,
):
    """Tensor-parallel communication of one layer's forward pass that is not hidden.

    The input of a block is gathered for the column-parallel product, the result of the row-parallel one is reduced:
    part by part beside these products where collectives are decomposed into rings, otherwise before and after them.
    """

    def exposed(gathering, columns, rows):
        beside = (tp_ring_share * at(time, phase="forward") for time in (columns, rows))
        calls = (gathering, tp_reduction_time)
        left = sum(exposed_in_parts(call, tp, work) for call, work in zip(calls, beside, strict=True))
        return with_cores_taken(left, sum(calls), communication_core_share)

    ffn = exposed(operand_gathering_time, ffn_column_time, ffn_row_time)
    return exposed(attention_gathering_time, attention_column_time, attention_row_time) + ffn_tp_blocks * ffn


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


@formula(unit="s", source="korthikanti2022", family=ENDS)
def PART_exposed_tp_time(PART_forward_exposed_tp_time, PART_backward_exposed_tp_time):
    """Exposed tensor-parallel communication of the PART for one microbatch."""
    return PART_forward_exposed_tp_time + PART_backward_exposed_tp_time


@formula(unit="s", source="korthikanti2022")
def tp_longest_call_time(tp_reduction_time, tp_gather_time, sequence_parallel, pp):
    """Time of the longest collective of the tensor-parallel ranks in a step.

    They gather what sequence parallelism has scattered, or what a pipeline stage receives in parts.
    """
    return xp.maximum(tp_reduction_time, xp.where(sequence_parallel | (pp > 1), tp_gather_time, 0.0))
