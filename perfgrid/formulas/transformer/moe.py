"""Mixtures of experts: what one rank computes, moves and keeps for the experts of a layer, and what divides what.

A token's router chooses some of many experts. ``etp`` ranks share every expert (its width is split as in tensor
parallelism), ``ep`` ranks divide the experts among them, and with sequence parallelism every tensor-parallel rank
routes its own part of the tokens (`sharded_tokens`); attention and experts factor the same ranks in two ways (Liu
2025). A rank therefore receives the choices of etp·ep ranks for 1/ep of the experts. Its experts are one grouped
product; router and shared experts stand among the products of `gemm`. Which layers have experts: `layer_kinds`. Left
out are the gradients of expert biases, which the products of the backward pass add up on their way.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import constraint, formula, synonyms
from perfgrid.formulas.axes import only, table, total
from perfgrid.formulas.kernels.roofline import roofline_shares
from perfgrid.formulas.kernels.stream import by_phase, expert_stream_operations

from .parameters import LAID_OUT

FORMULAS = synonyms(
    {
        "layer_grouped_gemms": (
            *("kind_has_experts", "1", "dai2024deepseekmoe"),
            "How often each product of experts runs in one layer.",
        ),
        "grouped_operand_size": (
            *("operand_size", "byte", "micikevicius2022fp8"),
            "Bytes of one operand element of these products.",
        ),
    }
)


# ---- rows of the experts of one rank --------------------------------------------------------------------------------


def largest_expert_load(experts, experts_per_token, ep):
    """What the fullest rank may receive at most, over the mean: every token that visits any of its experts."""
    return xp.maximum(xp.minimum(ep, experts / xp.maximum(experts_per_token, 1.0)), 1.0)


@formula(unit="1", source="fedus2022switch", where="equation 3")
def expert_load(expert_imbalance, capacity_factor, experts, experts_per_token, ep):
    """Rows of the fullest rank over their mean: all wait for it; with a capacity all ranks are padded to it."""
    most = xp.maximum(experts / xp.maximum(experts_per_token, 1.0), 1.0)
    padded = xp.minimum(capacity_factor, most)
    uneven = xp.minimum(expert_imbalance, largest_expert_load(experts, experts_per_token, ep))
    return xp.where(capacity_factor > 0, padded, uneven)


@formula(unit="1", source="fedus2022switch")
def uneven_load(expert_load, capacity_factor):
    """Rows that the fullest rank processes over those of the mean rank: 1 where all are padded to a capacity.

    Time is that of the fullest rank; energy, of all ranks together, is that of the mean one.
    """
    return xp.where(capacity_factor > 0, 1.0, expert_load)


@formula(unit="1", source="liu2025folding")
def rank_expert_rows(sharded_tokens, experts_per_token, etp, expert_load):
    """Rows that the experts of the fullest rank process together: those that its etp ranks received, gathered."""
    return sharded_tokens * experts_per_token * etp * expert_load


@formula(unit="1", source="liu2025folding")
def rank_expert_ffn_size(expert_ffn_size, etp):
    """Inner width of one expert on one rank."""
    return expert_ffn_size / etp


@formula(unit="1", source="dai2024deepseekmoe")
def rank_shared_ffn_size(shared_experts, expert_ffn_size, tp):
    """Inner width of all shared experts together on one tensor-parallel rank."""
    return shared_experts * expert_ffn_size / tp


# ---- grouped products (see `gemm` for what is made of their shapes) -------------------------------------------------


@formula(unit="1", source="gale2023megablocks")
def grouped_batch(experts, ep):
    """Products that one grouped kernel computes: one for each expert of the rank."""
    return xp.maximum(experts / ep, 1.0)


@formula(unit="1", source="gale2023megablocks")
def grouped_tokens(rank_expert_rows, grouped_batch, shared_tile_rows, dies):
    """Rows of one expert's forward product, where the rows of a rank spread evenly over its experts.

    Kernels that cut the rows of all experts into equal tiles compute a tile that two experts share for each of them:
    n experts take n - 1 tiles more (``shared_tile_rows``), on every die that runs a program of its own.
    """
    shared = dies * shared_tile_rows * (grouped_batch - 1) / grouped_batch
    return xp.maximum(rank_expert_rows / grouped_batch + shared, 1.0)


@formula(unit="1", source="shazeer2020glu")
def grouped_outputs(expert_width, rank_expert_ffn_size, ffn_input_matrices):
    """Output columns of each expert's forward product on one rank, by expert_product."""
    up = xp.maximum(rank_expert_ffn_size, 1.0) * ffn_input_matrices
    return table("expert_product", expert_up=up, expert_down=expert_width)


@formula(unit="1", source="shazeer2020glu")
def grouped_inputs(expert_width, rank_expert_ffn_size):
    """Depth of each expert's forward product on one rank, by expert_product."""
    return table("expert_product", expert_up=expert_width, expert_down=xp.maximum(rank_expert_ffn_size, 1.0))


@formula(unit="FLOP/s", source="gale2023megablocks")
def grouped_matrix_rate(matrix_rate, library_efficiency, expert_efficiency):
    """Rate that large products of routed experts reach."""
    return library_efficiency * expert_efficiency * matrix_rate


# ---- streaming kernels ----------------------------------------------------------------------------------------------


@formula(unit="1", source="nvidia2026moe")
def expert_stream_elements(
    sharded_tokens, experts, experts_per_token, expert_width, rank_expert_rows, rank_expert_ffn_size
):
    """Elements that each streaming kernel of the experts processes on one rank, by expert_stream_kernel.

    Scores of the router; copies of the tokens in the order of their destinations, and of the received ones in the order
    of the experts; inputs of the activation function.
    """
    copies = sharded_tokens * experts_per_token * expert_width
    return table(
        "expert_stream_kernel",
        routing=sharded_tokens * experts,
        permute=copies,
        sort=rank_expert_rows * expert_width,
        unpermute=copies,
        expert_activation=rank_expert_rows * rank_expert_ffn_size,
    )


@formula(unit="byte", source="nvidia2026moe")
def expert_stream_sizes(
    activation_size, float32_size, mask_size, ffn_input_matrices, experts_per_token, permutation_passes
):
    """Bytes read and written per element, by phase and expert_stream_kernel.

    Routing in single precision: softmax, choice of the best, map of choices and their probabilities, balancing loss. A
    copy is read and written; the copies of a token are added up where they return, forward and backward. Stacks that
    repeat, gather and add in kernels of their own move a multiple of these bytes (``permutation_passes``).
    """
    a, f = activation_size, float32_size
    moved = a * permutation_passes
    added_up = moved * (1 + 1 / xp.maximum(experts_per_token, 1.0))
    return by_phase(
        "expert_stream_kernel",
        routing=(5 * f + 2 * mask_size, 3 * f, 0.0),
        permute=(2 * moved, added_up, 0.0),
        sort=(2 * moved, 2 * moved, 0.0),
        unpermute=(added_up, 2 * moved, 0.0),
        expert_activation=((ffn_input_matrices + 1) * a, (2 * ffn_input_matrices + 1) * a, 0.0),
    )


@formula(unit="1", source="nvidia2026moe")
def layer_expert_streams(kind_has_experts, experts, ep, etp, ep_direct):
    """How often each streaming kernel of the experts runs in one layer, by expert_stream_kernel.

    What arrives source by source is sorted by expert, and back again: needless on one rank, with one expert, or where
    the exchange itself delivers in that order.
    """
    sorts = xp.where((experts > ep) & (ep * etp > 1), 2 * ep_direct, 0.0)
    return kind_has_experts * table(
        "expert_stream_kernel", routing=1.0, permute=1.0, sort=sorts, unpermute=1.0, expert_activation=1.0
    )


@formula(unit="s", source="williams2009roofline")
def expert_stream_time(
    expert_stream_elements, expert_stream_sizes, vector_rate, achieved_hbm_bandwidth, launch_overhead
):
    """Time of each streaming kernel of the experts by resource, phase and expert_stream_kernel."""
    return roofline_shares(
        arithmetic=expert_stream_elements * expert_stream_operations() / vector_rate,
        hbm=expert_stream_elements * expert_stream_sizes / achieved_hbm_bandwidth,
        launch=launch_overhead * only("phase", "forward", "input_gradient"),
    )


@formula(unit="s", source="williams2009roofline")
def expert_cast_time(rank_expert_rows, expert_width, cast_size, achieved_hbm_bandwidth, launch_overhead):
    """Time to convert the inputs of the experts and the gradients of their results to 8 bits, by resource and phase."""
    phases = only("phase", "forward", "input_gradient")
    traffic = rank_expert_rows * expert_width * cast_size / achieved_hbm_bandwidth
    launches = xp.where(cast_size > 0, launch_overhead, 0.0)
    return phases * (traffic * only("resource", "hbm") + launches * only("resource", "launch"))


@formula(unit="s", source="gale2023megablocks")
def expert_busy_time(
    grouped_time, layer_grouped_gemms, expert_stream_time, layer_expert_streams, expert_cast_time, kind_has_experts
):
    """Kernel time of routing and routed experts of one layer, by resource and phase."""
    return (
        total(grouped_time * layer_grouped_gemms, "expert_product")
        + total(expert_stream_time * layer_expert_streams, "expert_stream_kernel")
        + kind_has_experts * expert_cast_time
    )


# ---- activations of one rank -------------------------------------------------------------------------


@formula(unit="byte", source="korthikanti2022")
def expert_layer_activations(
    sharded_tokens,
    microbatch_tokens,
    experts,
    expert_width,
    rank_expert_rows,
    rank_expert_ffn_size,
    rank_shared_ffn_size,
    ffn_input_matrices,
    function_input_size,
    kept_operand_size,
    float32_size,
):
    """Feed-forward activations of one layer with experts and microbatch kept for the backward pass.

    The scores of the router; of every row that reaches the rank its copy and the inputs of the activation function and
    of the second matrix; the same inputs of the shared experts.
    """
    inner = ffn_input_matrices * function_input_size + kept_operand_size
    routed = rank_expert_rows * (expert_width * kept_operand_size + rank_expert_ffn_size * inner)
    shared = microbatch_tokens * rank_shared_ffn_size * inner
    return routed + shared + sharded_tokens * experts * float32_size


@formula(unit="byte", source="nvidia2026moe")
def expert_buffers(
    sharded_tokens, experts_per_token, rank_expert_rows, expert_width, activation_size, ep, etp, experts
):
    """Space of one exchange with experts: the copies that a rank sends, and those that it receives or gathers."""
    buffers = (sharded_tokens * experts_per_token + rank_expert_rows) * expert_width * activation_size
    return xp.where((ep * etp > 1) & (experts > 0), buffers, 0.0)


# ---- what divides what ----------------------------------------------------------------------------------------------


@constraint(reason="expert-parallel ranks do not divide the experts", source="lepikhin2021gshard")
def experts_divide(experts, ep):
    """Every expert-parallel rank has the same number of experts."""
    return experts % ep == 0


@constraint(
    reason="the tensor-parallel ranks of an expert do not divide its width", source="liu2025folding", workload=LAID_OUT
)
def expert_width_divides(expert_ffn_size, etp):
    """Every tensor-parallel rank of an expert has the same part of its width."""
    return expert_ffn_size % etp == 0


@constraint(
    reason="tensor-parallel ranks do not divide the width of the shared experts",
    source="liu2025folding",
    workload=LAID_OUT,
)
def shared_width_divides(shared_experts, expert_ffn_size, tp):
    """Every tensor-parallel rank has the same part of the shared experts."""
    return (shared_experts * expert_ffn_size) % tp == 0


@constraint(
    reason="a mixture of experts with tensor parallelism needs sequence parallelism: without it every rank would route "
    "the same tokens",
    source="nvidia2026moe",
)
def experts_need_sequence_parallel(experts, tp, sequence_parallel):
    """Tensor-parallel ranks route different tokens."""
    return (experts == 0) | (tp == 1) | sequence_parallel


@constraint(
    reason="experts per token must be at least one and at most the number of experts",
    source="fedus2022switch",
    workload=LAID_OUT,
)
def choices_suffice(experts, experts_per_token, groups, groups_per_token):
    """The experts of one token are different ones, in the groups that it may visit."""
    within = xp.where(groups > 0, experts * groups_per_token / xp.maximum(groups, 1.0), experts)
    return (experts == 0) | ((experts_per_token >= 1) & (experts_per_token <= within))


@constraint(
    reason="a parallel block (feed-forward beside attention) with experts is not modelled", source="chowdhery2022palm"
)
def experts_follow_attention(experts, parallel_block):
    """Experts read what attention has written."""
    return xp.logical_not(parallel_block) | (experts == 0)


@constraint(
    kind="exceeds",
    reason="the fullest experts receive more tokens than their capacity holds: some are dropped",
    source="fedus2022switch",
)
def capacity_suffices(capacity_factor, expert_imbalance, experts, experts_per_token, ep):
    """No token is dropped."""
    needed = xp.minimum(expert_imbalance, largest_expert_load(experts, experts_per_token, ep))
    return (capacity_factor == 0) | (capacity_factor >= needed)
