"""Context parallelism: every sequence is split over the ranks of the group ``cp``; how attention sees all of it again.

The label ``cp_method`` says what the ranks split while attention runs, and what they exchange for one layer. Of c
ranks each sends, per forward pass and for keys and values of K bytes, queries and results of Q bytes on all ranks:

- ``ring`` splits queries: keys and values move from rank to rank in c passes, each beside attention to the previous
  ones (Liu 2023): (c - 1)/c·K in c - 1 transfers; backward twice that, with their gradients. Each of 2c chunks of a
  sequence is paired with its mirror image (zig-zag), so that a causal mask leaves every rank the same work.
- ``all_gather`` splits queries alike: keys and values are gathered before attention starts, backward once more, and
  their gradients are reduce-scattered (Llama 3): the bytes of a ring, nothing hidden.
- ``ulysses`` splits heads: queries, keys, values and results change places in four all-to-alls (Jacobs 2023):
  (c - 1)/c²·(K + Q), which falls with c; backward the same. At most as many ranks as heads.
- ``hybrid`` splits heads inside groups of ``ulysses_ranks`` and queries between them, with a ring (Fang 2024).

``head_split`` ranks split the heads, ``sequence_split`` ranks the queries; their product is cp.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula, synonyms
from perfgrid.engine.graph.tables import bind, by_label
from perfgrid.formulas.axes import at, of_kinds, only, table, total
from perfgrid.formulas.collectives.nccl import PEERS, transfer_time
from perfgrid.formulas.kernels.flash import partial_share
from perfgrid.formulas.mixer_kinds import ALL

from .tensor_parallel import exposed_time, with_cores_taken

FORMULAS = (
    *bind(
        *(transfer_time, "ring_library_transfer_time", f"ring_message sequence_split_tier_ranks {PEERS}", "s"),
        *("liu2023ring", "Time of one point-to-point transfer to the next rank of a ring, by phase."),
        of=("ring_transfer_time", "library", "nccl"),
    ),
    *synonyms(
        {
            f"{group}_longest_call_time": (
                *(f"{group}_gather_time", "s", source),
                "Time of the longest collective of these ranks in a step.",
            )
            for group, source in {"cp": "grattafiori2024llama3", "etp": "liu2025folding"}.items()
        }
    ),
    *by_label(
        "cp_method",
        {
            "head_split": ("1", "fang2024usp", "Ranks of a context-parallel group that split the heads of attention."),
            "ring_passes": (
                "1",
                "liu2023ring",
                "Passes in which a rank attends to all keys: ranks of a ring.",
            ),
            "key_wait": (
                *("s", "liu2023ring"),
                "Time that attention of one layer waits for keys and values, by phase: what a ring does not hide.",
            ),
            "head_wait": ("s", "jacobs2023ulysses", "Mean time of the four all-to-alls of heads in a pass of a layer."),
            "cp_memory": (
                *("byte", "jacobs2023ulysses"),
                "Buffers of context parallelism while attention runs.",
            ),
            "cp_tier_time": (
                *("s", "rashidi2020astrasim"),
                "Time for which context parallelism of a layer keeps each tier busy, hidden or not, by tier.",
            ),
        },
        {
            "ring": (1, "sequence_split", "ring_wait", 0, None, "ring_tier_time"),
            "hybrid": (None, "sequence_split", "ring_wait", "head_exchange_time", None, None),
            "all_gather": (1, 1, None, 0, None, None),
            "ulysses": ("cp", 1, 0, "head_exchange_time", "exchanged_activations", "head_tier_time"),
        },
    ),
)


@alternative(of="cp_message", by="indexer", label=ALL, unit="byte", source="ainslie2023gqa")
def dense_cp_message(key_value_tensor):
    """Keys and values of one microbatch that a context-parallel group gathers."""
    return 1.0 * key_value_tensor


def _by_method(of, label, unit, source):
    return alternative(of=of, by="cp_method", label=label, unit=unit, source=source)


# ---- equations ------------------------------------------------------------------------------------------------------


def exposed_in_ring(passes, transfer, hidden_behind):
    """What is left of the transfers of a ring: (n - 1)·max(t - w/n, 0) in n passes.

    Every pass but the last runs beside one transfer t; the work w is that of all passes.
    """
    return (passes - 1) * exposed_time(transfer, hidden_behind / passes)


# ---- what is split --------------------------------------------------------------------------------------------------


@_by_method("head_split", "hybrid", "1", "fang2024usp")
def hybrid_head_split(cp, ulysses_ranks):
    """Ranks of a context-parallel group that split the heads of attention: those of its inner groups."""
    return xp.minimum(ulysses_ranks, cp)


@formula(unit="1", source="fang2024usp")
def sequence_split(cp, head_split):
    """Ranks that split the queries of a head: cp/head_split."""
    return cp / head_split


@formula(unit="1", source="jacobs2023ulysses")
def kernel_heads(rank_heads, head_split):
    """Query heads of one microbatch on one rank while attention runs."""
    return rank_heads / head_split


@formula(unit="1", source="ainslie2023gqa")
def attended_key_heads(rank_key_heads, heads, tp, repeated_keys):
    """Key heads of one tensor-parallel rank as its attention sees them: its own, or one for each of its query heads."""
    return xp.where(repeated_keys, heads / tp, rank_key_heads)


@formula(unit="1", source="jacobs2023ulysses")
def kernel_key_heads(microbatch, attended_key_heads, head_split):
    """Key heads of one microbatch on one rank while attention runs; fewer of them than ranks are replicated."""
    return microbatch * xp.maximum(attended_key_heads / head_split, 1.0)


@formula(unit="1", source="liu2023ring")
def rank_sequence(sequence_length, sequence_split):
    """Queries of one sequence and head on one rank while attention runs."""
    return sequence_length / sequence_split


# ---- keys and values ------------------------------------------------------------------------------------------------


@formula(unit="byte", source="liu2023ring")
def ring_message(cp_message, sequence_split, ring_partial_size, activation_size):
    """Bytes that a rank sends to the next in each pass of a ring, by phase: keys, values, backward their gradients."""
    own = cp_message / sequence_split
    gradients = own * partial_share(ring_partial_size, activation_size)
    return table("phase", forward=own, input_gradient=own + gradients, weight_gradient=0.0)


@formula(unit="1", source="fang2024usp")
def sequence_split_stride(tp, head_split):
    """Distance between neighbouring ranks that split the queries."""
    return tp * head_split


@formula(unit="s", source="liu2023ring")
def ring_wait(
    ring_transfer_time,
    ring_passes,
    flash_time,
    unfused,
    cp_overlap,
    communication_core_share,
    returned_key_gradients,
):
    """Time that the passes of one layer wait for keys and values (and their gradients), by phase.

    Transfers run beside the fused kernel. Gradients that the last pass still adds to are then sent once more, beside
    nothing: the part of a backward transfer beyond keys and values.
    """
    hidden_behind = cp_overlap * (1 - unfused) * total(flash_time, "resource")
    exposed = exposed_in_ring(ring_passes, ring_transfer_time, hidden_behind)
    wait = with_cores_taken(exposed, (ring_passes - 1) * ring_transfer_time, communication_core_share)
    returned = xp.where(returned_key_gradients & (ring_passes > 1), only("phase", "input_gradient"), 0.0)
    return wait + returned * (ring_transfer_time - at(ring_transfer_time, phase="forward"))


@_by_method("key_wait", "all_gather", "s", "grattafiori2024llama3")
def all_gather_key_wait(cp_gather_time):
    """Time that attention of one layer waits for keys and values, by phase.

    An all-gather forward; backward another one and a reduce-scatter of their gradients.
    """
    return cp_gather_time * table("phase", forward=1.0, input_gradient=2.0, weight_gradient=0.0)


# ---- all-to-alls of heads -------------------------------------------------------------------------------------------


@formula(unit="byte", source="jacobs2023ulysses")
def exchanged_activations(
    microbatch_tokens,
    rank_query_width,
    rank_context_width,
    attended_key_heads,
    head_split,
    query_head_width,
    value_head_width,
    activation_size,
):
    """Queries, keys, values and results of one layer and microbatch on one rank, which all-to-alls redistribute.

    tokens·(query, context, key and value width) elements; 0 if heads are not split. Fewer key heads than ranks are
    replicated before.
    """
    keys = xp.maximum(attended_key_heads, head_split) * (query_head_width + value_head_width)
    width = rank_query_width + rank_context_width + keys
    return xp.where(head_split > 1, microbatch_tokens * width * activation_size, 0.0)


# ---- exposed time ---------------------------------------------------------------------------------------------------


@formula(unit="s", source="grattafiori2024llama3, jacobs2023ulysses")
def layer_forward_exposed_cp_time(key_wait, head_wait, cp):
    """Exposed context-parallel communication of one layer's forward pass: waits for keys, and four all-to-alls."""
    return xp.where(cp > 1, at(key_wait, phase="forward") + 4 * head_wait, 0.0)


@formula(unit="s", source="grattafiori2024llama3, jacobs2023ulysses")
def layer_backward_exposed_cp_time(key_wait, head_wait, cp, layer_forward_exposed_cp_time, layer_recomputed):
    """Exposed context-parallel communication of one layer's backward pass, with that of recomputed forward passes."""
    own = xp.where(cp > 1, at(key_wait, phase="input_gradient") + 4 * head_wait, 0.0)
    return own + layer_recomputed * layer_forward_exposed_cp_time


# ---- memory ---------------------------------------------------------------------------------------------------------


@_by_method("cp_memory", "ring", "byte", "liu2023ring")
def ring_cp_memory(ring_message, sequence_split):
    """Working space of a ring: two buffers each for keys with values and for their gradients."""
    return xp.where(sequence_split > 1, 2 * at(ring_message, phase="input_gradient"), 0.0)


@_by_method("cp_memory", "hybrid", "byte", "fang2024usp")
def hybrid_cp_memory(exchanged_activations, ring_cp_memory):
    """Working space of all-to-alls of heads, and of the rings between their groups."""
    return exchanged_activations + ring_cp_memory


@_by_method("cp_memory", "all_gather", "byte", "grattafiori2024llama3")
def all_gather_cp_memory(cp_message, sequence_split):
    """Working space of context parallelism: the gathered keys and values of one layer, and their gradients."""
    return xp.where(sequence_split > 1, 2 * cp_message, 0.0)


# ---- volume ---------------------------------------------------------------------------------------------------------


@formula(unit="byte", source="liu2023ring")
def layer_key_bytes(
    cp_message,
    sequence_split,
    ring_passes,
    ring_partial_size,
    activation_size,
    returned_key_gradients,
    layer_recomputed,
):
    """Bytes of keys, values and their gradients that one device sends or gathers for one layer and microbatch.

    (n - 1)/n of the keys and values in every forward pass and once backward; their gradients backward, in a ring at
    the size of its partial sums and, where they return apart, in one transfer more.
    """
    others = (sequence_split - 1) / sequence_split
    sent = others + xp.where(returned_key_gradients, 1 / sequence_split, 0.0)
    gradients = xp.where(ring_passes > 1, sent * partial_share(ring_partial_size, activation_size), others)
    return ((2 + layer_recomputed) * others + gradients) * cp_message


@formula(unit="byte", source="liu2023ring")
def layer_cp_bytes(layer_key_bytes, exchanged_activations, head_split, layer_recomputed):
    """Bytes that one device sends to context-parallel ranks for one layer and microbatch.

    Keys, values and their gradients, and (n - 1)/n of what all-to-alls redistribute in every pass.
    """
    heads = (head_split - 1) / head_split * exchanged_activations
    return layer_key_bytes + (2 + layer_recomputed) * heads


@formula(unit="byte", source="liu2025folding", family={"GROUP": ("etp",)})
@formula(unit="byte", source="liu2023ring", family={"GROUP": ("cp",)})
def GROUP_bytes(microbatches, slowest_stage_kind_layers, slowest_stage_heads, mtp_kind_layers, layer_GROUP_bytes):
    """Bytes that one device of the slowest stage sends to GROUP ranks in one step."""
    layers = slowest_stage_kind_layers + slowest_stage_heads * mtp_kind_layers
    return microbatches * of_kinds(layers, layer_GROUP_bytes)


# ---- constraints ----------------------------------------------------------------------------------------------------


@constraint(reason="twice the context-parallel ranks must divide the sequence", source="nvidia2026bridge")
def context_divides(sequence_length, cp):
    """Every rank has two chunks of each sequence, one from each end."""
    return (cp == 1) | (sequence_length % (2 * cp) == 0)


@constraint(reason="context parallelism needs the fused attention kernel", source="nvidia2026transformerengine")
def context_is_fused(cp, flash_attention):
    """Partial results of attention are merged with the softmax statistics that only the fused kernel keeps."""
    return (cp == 1) | flash_attention


@constraint(
    reason="ring attention does not support sliding windows: choose all_gather or ulysses",
    source="nvidia2026transformerengine",
)
def ring_sees_everything(ring_passes, windowed_layers_fraction):
    """In a ring every rank attends to all keys that come by."""
    return (ring_passes == 1) | (windowed_layers_fraction == 0)


@constraint(
    reason="the ranks that split heads (ulysses) must divide the context-parallel ranks and the heads of a rank",
    source="jacobs2023ulysses",
)
def head_split_divides(cp, head_split, heads, tp, attended_key_heads):
    """All ranks have equally many query heads, and key heads are split or replicated evenly."""
    queries = (cp % head_split == 0) & (heads % (tp * head_split) == 0)
    few = head_split > attended_key_heads
    return queries & (xp.where(few, head_split % attended_key_heads, attended_key_heads % head_split) == 0)
