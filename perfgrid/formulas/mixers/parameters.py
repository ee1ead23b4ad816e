"""Parameters of one layer's recurrent mixer, whole: a rank has those of `widths`.

H heads with values P wide, G with keys N wide, hidden size h; a short convolution of k tokens runs over HP + 2GN
channels.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.mixer_kinds import NONE

FORMULAS = by_label(
    "mixer",
    {"mixer_layer_parameters": ("1", "dao2024mamba2", "Parameters of one recurrent mixer.")},
    {NONE: (0,)},
)


def matrices(hidden_size, input_columns, values):
    """Weights of the input product and of the output product."""
    return hidden_size * (input_columns + values)


def channels(values, keys, convolution_length):
    """Channels of the short convolution: values, keys and queries; 0 without one."""
    return xp.where(convolution_length > 0, values + 2 * keys, 0.0)


@formula(unit="1", source="dao2024mamba2")
def mixer_value_width(mixer_heads, mixer_value_dim):
    """Width of all values of one recurrent mixer: HP."""
    return mixer_heads * mixer_value_dim


@formula(unit="1", source="dao2024mamba2")
def mixer_key_width(mixer_key_heads, mixer_key_dim):
    """Width of all keys of one recurrent mixer: GN."""
    return mixer_key_heads * mixer_key_dim


@alternative(of="mixer_layer_parameters", by="mixer", label="mamba2", unit="1", source="dao2024mamba2")
def mamba2_layer_parameters(hidden_size, mixer_heads, mixer_value_width, mixer_key_width, convolution_length):
    """Parameters of one mixer: h(3HP + 2GN + H), convolution with bias, A, D, step bias, norm."""
    values, keys = mixer_value_width, mixer_key_width
    short = channels(values, keys, convolution_length) * (convolution_length + 1)
    return matrices(hidden_size, 2 * (values + keys) + mixer_heads, values) + short + 3 * mixer_heads + values


@alternative(of="mixer_layer_parameters", by="mixer", label="lightning", unit="1", source="minimax2025")
def lightning_layer_parameters(hidden_size, mixer_value_width, mixer_key_width):
    """Parameters of one mixer: h(3HP + 2GN) and a norm; the decays are fixed."""
    values, keys = mixer_value_width, mixer_key_width
    return matrices(hidden_size, 2 * (values + keys), values) + values


@alternative(of="mixer_layer_parameters", by="mixer", label="gated_delta_net", unit="1", source="yang2024gateddelta")
def gated_delta_net_layer_parameters(
    hidden_size, mixer_heads, mixer_value_dim, mixer_value_width, mixer_key_width, convolution_length
):
    """Parameters of one mixer: h(3HP + 2GN + 2H), convolution, A, decay bias, a norm of heads."""
    values, keys = mixer_value_width, mixer_key_width
    short = channels(values, keys, convolution_length) * convolution_length
    return matrices(hidden_size, 2 * (values + keys + mixer_heads), values) + short + 2 * mixer_heads + mixer_value_dim


@alternative(of="mixer_layer_parameters", by="mixer", label="kimi_delta_attention", unit="1", source="kimi2025linear")
def kimi_delta_attention_layer_parameters(
    hidden_size,
    mixer_heads,
    mixer_key_dim,
    mixer_value_dim,
    mixer_value_width,
    mixer_key_width,
    convolution_length,
    gate_rank,
):
    """Parameters of one mixer: h(2HP + 2GN + H), decays and gates, convolution, A, decay bias, a norm of heads.

    Decays and gates are H(N + P) wide: from the hidden state, or twice through a low rank.
    """
    values, keys = mixer_value_width, mixer_key_width
    gates = mixer_heads * mixer_key_dim + values
    low = gate_rank * (2 * hidden_size + gates)
    wide = xp.where(gate_rank > 0, low, hidden_size * gates)
    short = channels(values, keys, convolution_length) * convolution_length
    return (
        matrices(hidden_size, values + 2 * keys + mixer_heads, values)
        + wide
        + short
        + mixer_heads * (1 + mixer_key_dim)
        + mixer_value_dim
    )
