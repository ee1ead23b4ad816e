"""Recurrent mixers over a prompt, chunk by chunk: Mamba-2 and lightning attention, gated delta net and Kimi's.

The state S of a head is a matrix of N x P. ``LINEAR``: S <- decay S + k v'. ``DELTA``: S <- decay S, then
S <- S + k (b (v - S'k))'. The result is S'q. Inside a chunk of C tokens both become matrix products, with the decays
inside: results A V + Q S, A the lower half of QK'. A delta rule first solves for what its tokens write:
T = (1 + lower half of b KK')^-1, W = T bK, U = T bV, V' = U - W S; the state becomes decay S + K'V'.

Kernels run one after the other: cumulated decays, KK' or QK' of chunks, the inverse, what chunks write, the pass over
the states (one chunk after the other), and the results. With fixed decays (lightning attention) two are enough: the
pass over the states multiplies keys and values itself. Fused they are one kernel that keeps all of it on chip.
Everything is counted in whole chunks; tiles above the diagonal are computed as the kernels do.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import bind, by_label
from perfgrid.formulas.axes import INNER, at, only, table, total
from perfgrid.formulas.kernels.tiling import steps_of, whole
from perfgrid.formulas.mixer_kinds import DELTA, DENSE, KEEPING, LINEAR, NONE, SOFTMAX, SPARSE

KERNELS = {  # of the core over a prompt: one each, in this order; a fused recurrence is that of the states alone
    ("mamba2",): ("decays", "scores", "writes", "states", "results"),
    ("lightning", NONE): ("states", "results"),
    DELTA: ("decays", "scores", "inverse", "writes", "states", "results"),
    DENSE: ("results",),
    (SPARSE,): ("index", "choice", "results"),
}
STATE_COLUMNS = 64.0  # of the state that one core keeps in the pass over the states (flash-linear-attention)


def kernels_of(*names):
    """A function that counts the kernels of the core, by mixer_kernel."""

    def launches(mixer_fused=False):
        return xp.where(mixer_fused, only("mixer_kernel", "states"), only("mixer_kernel", *names))

    return launches


FORMULAS = (
    *by_label(
        "mixer",
        {
            "mixer_dependent_products": (
                *("1", "yang2024gateddelta"),
                "Operations of one step that wait for each other beyond their arithmetic.",
            ),
            "recurrence_operations": (
                *("1", "yang2024gateddelta"),
                "Operations for a token and element of a state: decay 1, k v' and S'q 2 each; of a delta rule S'k 2.",
            ),
        },
        {(*LINEAR, NONE): (1, 5), DELTA: (2, 7), SOFTMAX: (0, 0)},  # the state is added; the products W S and K'V'
    ),
    *(
        entry
        for labels, names in KERNELS.items()
        for label in labels
        for entry in bind(
            kernels_of(*names),
            f"{label}_core_launches",
            "mixer_fused" if label in KEEPING else "",
            *("1", "yang2024fla", f"Kernels of the core over a prompt, by mixer_kernel: {', '.join(names)}."),
            of=("mixer_core_launches", "mixer", label),
        )
    ),
)


@formula(unit="1", source="dao2024mamba2")
def mixer_chunk_tokens(mixer_tokens, mixer_chunk):
    """Tokens of a sequence in whole chunks."""
    return whole(mixer_tokens, mixer_chunk)


# ---- FLOPs ----------------------------------------------------------------------------------------------------------


@alternative(of="mixer_token_flops", by="mixer", label=(*LINEAR, NONE), unit="1", source="dao2024mamba2")
def LABEL_core_token_flops(rank_mixer_heads, rank_mixer_key_heads, mixer_key_dim, mixer_value_dim, mixer_chunk):
    """FLOPs of the chunked recurrence per token on one rank, by core_product.

    QK': 2CN for each key head; A V: 2CP, K'V: 2NP and Q S: 2NP for each head.
    """
    state = 2 * mixer_key_dim * mixer_value_dim * rank_mixer_heads
    return table(
        "core_product",
        key_products=0.0,
        inverse=0.0,
        keys_solved=0.0,
        values_solved=0.0,
        state_correction=0.0,
        state_update=state,
        scores=2 * mixer_chunk * mixer_key_dim * rank_mixer_key_heads,
        values=2 * mixer_chunk * mixer_value_dim * rank_mixer_heads,
        state_output=state,
        index_scores=0.0,
    )


@alternative(of="mixer_token_flops", by="mixer", label=DELTA, unit="1", source="yang2024gateddelta")
def LABEL_delta_token_flops(rank_mixer_heads, mixer_key_dim, mixer_value_dim, mixer_chunk):
    """FLOPs of the chunked delta rule per token on one rank, by core_product.

    For each head KK': 2CN, T: (C^2 - 1)/3 by substitution, W: 2CN, U: 2CP, W S: 2NP, K'V': 2NP, QK': 2CN, A V': 2CP,
    Q S: 2NP. Products of keys are computed for every head, whose strengths and decays they hold.
    """
    state = 2 * mixer_key_dim * mixer_value_dim * rank_mixer_heads
    keys = 2 * mixer_chunk * mixer_key_dim * rank_mixer_heads
    values = 2 * mixer_chunk * mixer_value_dim * rank_mixer_heads
    return table(
        "core_product",
        key_products=keys,
        inverse=rank_mixer_heads * (mixer_chunk * mixer_chunk - 1) / 3,
        keys_solved=keys,
        values_solved=values,
        state_correction=state,
        state_update=state,
        scores=keys,
        values=values,
        state_output=state,
        index_scores=0.0,
    )


def by_kernel(**kernels):
    """Values by mixer_kernel, 0 where none is given."""
    return table("mixer_kernel", **{name: kernels.get(name, 0.0) for name in INNER.labels["mixer_kernel"]})


def in_one(values, fused):
    """Values by mixer_kernel, in the pass over the states if it does the work of all."""
    return xp.where(fused, total(values, "mixer_kernel") * only("mixer_kernel", "states"), values)


def added(by_product, *products):
    """Sum of some products of a table by core_product."""
    return sum(at(by_product, core_product=name) for name in products)


@alternative(of="mixer_core_flops", by="mixer", label="mamba2", unit="1", source="dao2024mamba2")
def mamba2_core_flops(mixer_token_flops, mixer_chunk_tokens, mixer_sequences, mixer_fused):
    """FLOPs of the recurrence over all sequences on one rank, by mixer_kernel."""
    per_token = by_kernel(
        scores=added(mixer_token_flops, "scores"),
        writes=added(mixer_token_flops, "state_update"),
        results=added(mixer_token_flops, "values", "state_output"),
    )
    return mixer_sequences * mixer_chunk_tokens * in_one(per_token, mixer_fused)


@alternative(of="mixer_core_flops", by="mixer", label=("lightning", NONE), unit="1", source="yang2024fla")
def LABEL_linear_core_flops(mixer_token_flops, mixer_chunk_tokens, mixer_sequences, mixer_fused):
    """FLOPs of the recurrence over all sequences on one rank, by mixer_kernel."""
    per_token = by_kernel(
        states=added(mixer_token_flops, "state_update"),
        results=added(mixer_token_flops, "scores", "values", "state_output"),
    )
    return mixer_sequences * mixer_chunk_tokens * in_one(per_token, mixer_fused)


@alternative(of="mixer_core_flops", by="mixer", label=DELTA, unit="1", source="yang2024gateddelta")
def LABEL_delta_flops(mixer_token_flops, mixer_chunk_tokens, mixer_sequences, mixer_fused):
    """FLOPs of the delta rule over all sequences on one rank, by mixer_kernel."""
    per_token = by_kernel(
        scores=added(mixer_token_flops, "key_products"),
        inverse=added(mixer_token_flops, "inverse"),
        writes=added(mixer_token_flops, "keys_solved", "values_solved"),
        states=added(mixer_token_flops, "state_correction", "state_update"),
        results=added(mixer_token_flops, "scores", "values", "state_output"),
    )
    return mixer_sequences * mixer_chunk_tokens * in_one(per_token, mixer_fused)


# ---- memory traffic -------------------------------------------------------------------------------------------------


@alternative(of="mixer_minimal_traffic", by="mixer", label=KEEPING, unit="byte", source="yang2024fla")
def LABEL_minimal_core_traffic(
    rank_mixer_heads,
    rank_mixer_key_heads,
    mixer_key_dim,
    mixer_value_dim,
    mixer_gate_bytes,
    activation_size,
    mixer_chunk_tokens,
    recurrent_state_bytes,
    mixer_sequences,
):
    """Least memory traffic of the recurrence on one rank: queries, keys, values and gates in, results and state out."""
    keys = 2 * rank_mixer_key_heads * mixer_key_dim
    values = 2 * rank_mixer_heads * mixer_value_dim
    per_token = (keys + values) * activation_size + mixer_gate_bytes
    return mixer_sequences * (mixer_chunk_tokens * per_token + recurrent_state_bytes)


@alternative(of="mixer_gate_bytes", by="mixer", label=(*LINEAR, NONE, *SOFTMAX), unit="byte", source="dao2024mamba2")
def LABEL_gate_token_bytes(rank_mixer_heads, mixer_decay_width, float32_size):
    """Decays of one token on one rank, in single precision."""
    return rank_mixer_heads * mixer_decay_width * float32_size


@alternative(of="mixer_gate_bytes", by="mixer", label=DELTA, unit="byte", source="yang2024gateddelta")
def LABEL_delta_gate_token_bytes(rank_mixer_heads, mixer_decay_width, float32_size):
    """Decays and strength of writing of one token on one rank, in single precision."""
    return rank_mixer_heads * (mixer_decay_width + 1) * float32_size


@alternative(of="mixer_unfused_traffic", by="mixer", label="mamba2", unit="byte", source="dao2024mamba2")
def mamba2_unfused_core_traffic(
    rank_mixer_heads,
    rank_mixer_key_heads,
    mixer_key_dim,
    mixer_value_dim,
    mixer_chunk,
    mixer_gate_bytes,
    activation_size,
    float32_size,
    mixer_chunk_tokens,
    recurrent_state_bytes,
    mixer_sequences,
):
    """Memory traffic of the kernels of the recurrence on one rank, by mixer_kernel.

    Each reads its operands and writes its results: scores of chunks and states of chunks in single precision.
    """
    key = rank_mixer_key_heads * mixer_key_dim * activation_size
    value = rank_mixer_heads * mixer_value_dim * activation_size
    scores = rank_mixer_key_heads * mixer_chunk * float32_size
    states = rank_mixer_heads * mixer_key_dim * mixer_value_dim / mixer_chunk * float32_size
    gates = mixer_gate_bytes
    per_token = by_kernel(
        decays=2 * gates,
        scores=2 * key + scores,
        writes=key + value + gates + states,
        states=2 * states,
        results=key + value + scores + states + gates + value,
    )
    return mixer_sequences * (mixer_chunk_tokens * per_token + recurrent_state_bytes * only("mixer_kernel", "states"))


@alternative(of="mixer_unfused_traffic", by="mixer", label=("lightning", NONE), unit="byte", source="yang2024fla")
def LABEL_linear_unfused_core_traffic(
    rank_mixer_heads,
    rank_mixer_key_heads,
    mixer_key_dim,
    mixer_value_dim,
    mixer_chunk,
    activation_size,
    mixer_chunk_tokens,
    recurrent_state_bytes,
    mixer_sequences,
):
    """Memory traffic of the kernels of the recurrence on one rank, by mixer_kernel: states of chunks as activations."""
    key = rank_mixer_key_heads * mixer_key_dim * activation_size
    value = rank_mixer_heads * mixer_value_dim * activation_size
    states = rank_mixer_heads * mixer_key_dim * mixer_value_dim / mixer_chunk * activation_size
    per_token = by_kernel(states=key + value + states, results=2 * key + value + states + value)
    return mixer_sequences * (mixer_chunk_tokens * per_token + recurrent_state_bytes * only("mixer_kernel", "states"))


@alternative(of="mixer_unfused_traffic", by="mixer", label=DELTA, unit="byte", source="yang2024fla")
def LABEL_unfused_delta_traffic(
    rank_mixer_heads,
    rank_mixer_key_heads,
    mixer_key_dim,
    mixer_value_dim,
    mixer_chunk,
    mixer_decay_width,
    mixer_gate_bytes,
    activation_size,
    float32_size,
    mixer_chunk_tokens,
    recurrent_state_bytes,
    mixer_sequences,
):
    """Memory traffic of the kernels of the delta rule on one rank, by mixer_kernel.

    Each reads its operands and writes its results: KK' in single precision, its inverse, W, U, V' and the state before
    each chunk in the format of activations.
    """
    heads, size = rank_mixer_heads, activation_size
    key = rank_mixer_key_heads * mixer_key_dim * size
    value, keys_solved = heads * mixer_value_dim * size, heads * mixer_key_dim * size
    products, inverse = heads * mixer_chunk * float32_size, heads * mixer_chunk * size
    states = heads * mixer_key_dim * mixer_value_dim / mixer_chunk * size
    decays = heads * mixer_decay_width * float32_size
    per_token = by_kernel(
        decays=2 * decays,
        scores=key + mixer_gate_bytes + products,
        inverse=products + inverse,
        writes=inverse + key + value + mixer_gate_bytes + keys_solved + value,
        states=keys_solved + value + key + decays + value + states,
        results=2 * key + value + states + decays + value,
    )
    return mixer_sequences * (mixer_chunk_tokens * per_token + recurrent_state_bytes * only("mixer_kernel", "states"))


@alternative(of="mixer_core_traffic", by="mixer", label=KEEPING, unit="byte", source="yang2024fla")
def LABEL_core_traffic(mixer_unfused_traffic, mixer_minimal_traffic, mixer_fused):
    """Memory traffic of the core over all sequences on one rank, by mixer_kernel."""
    return xp.where(mixer_fused, mixer_minimal_traffic * only("mixer_kernel", "states"), mixer_unfused_traffic)


# ---- how the work is shared out -------------------------------------------------------------------------------------


@alternative(of="mixer_units", by="mixer", label=KEEPING, unit="1", source="yang2024fla")
def LABEL_units(rank_mixer_heads, mixer_value_dim, mixer_sequences, mixer_fused):
    """Items of work that may run side by side in the pass over the states: heads, in parts of 64 columns.

    The columns of a state do not meet; a fused kernel keeps a head whole, since its scores belong to all columns.
    """
    parts = xp.where(mixer_fused, 1.0, steps_of(mixer_value_dim, STATE_COLUMNS))
    return mixer_sequences * rank_mixer_heads * parts


@alternative(of="mixer_serial_steps", by="mixer", label=KEEPING, unit="1", source="dao2024mamba2")
def LABEL_serial_steps(mixer_tokens, mixer_chunk):
    """Steps of the pass over the states that wait for each other: chunks."""
    return steps_of(mixer_tokens, mixer_chunk)


@alternative(of="mixer_core_passes", by="mixer", label=KEEPING, unit="1", source="yang2024fla")
def LABEL_core_passes():
    """Work of each kernel over that of its forward pass, by phase and mixer_kernel; all backward as input gradient.

    A product has two gradients. What chunks write and the states before them are computed again.
    """
    again = only("mixer_kernel", "writes", "states")
    return table("phase", forward=1.0, input_gradient=2 + again, weight_gradient=0.0)


# ---- decoding -------------------------------------------------------------------------------------------------------


@alternative(of="mixer_decode_flops", by="mixer", label=KEEPING, unit="1", source="dao2024mamba2")
def LABEL_decode_core_flops(
    recurrence_operations, rank_mixer_heads, mixer_key_dim, mixer_value_dim, mixer_decoded_sequences
):
    """FLOPs of one step of the recurrence on one rank: 5NP for each head, 7NP of a delta rule, at any context."""
    return recurrence_operations * mixer_decoded_sequences * rank_mixer_heads * mixer_key_dim * mixer_value_dim


@alternative(of="mixer_decode_traffic", by="mixer", label=KEEPING, unit="byte", source="dao2024mamba2")
def LABEL_decode_core_traffic(recurrent_state_bytes, convolution_state_bytes, mixer_decoded_sequences):
    """Memory traffic of one step on one rank: the states of all sequences are read and written, at any context."""
    return 2 * mixer_decoded_sequences * (recurrent_state_bytes + convolution_state_bytes)
