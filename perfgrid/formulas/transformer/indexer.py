"""The indexer of sparse attention (DeepSeek-V3.2): which models have one, its weights, and the pairs it chooses.

An indexer of H_I heads of width d_I scores every earlier token, I(t, s) = sum over its heads of w(t) relu(q(t) k(s)),
and a token attends to the ``index_top_k`` best. Queries come from the latent of the queries, keys and weights of heads
from the hidden state. The label ``indexer`` says whether a model has one: ``none`` or ``top_k``.
"""

from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.mixer_kinds import ALL, CHOSEN


@formula(unit="1", source="deepseek2025v32")
def index_key_width(index_heads, index_head_dim):
    """Columns of the product of the hidden state with the indexer: one key, and a weight of each head."""
    return index_head_dim + index_heads


@formula(unit="1", source="deepseek2025v32")
def index_query_width(index_heads, index_head_dim):
    """Width of the indexer's queries."""
    return index_heads * index_head_dim


@formula(unit="1", source="deepseek2025v32")
def index_matrix_parameters(hidden_size, q_lora_rank, index_key_width, index_query_width):
    """Weights of the indexer's matrices in one layer."""
    return hidden_size * index_key_width + q_lora_rank * index_query_width


@alternative(of="index_parameters", by="indexer", label=ALL, unit="1", source="deepseek2025v32")
def no_index_parameters():
    """Parameters of the indexers of all layers: none."""
    return 0.0


@alternative(of="index_parameters", by="indexer", label=CHOSEN, unit="1", source="deepseek2025v32")
def top_k_index_parameters(index_layers, index_matrix_parameters, index_head_dim):
    """Parameters of the indexers of all layers: matrices, and the norm of the key with its bias."""
    return index_layers * (index_matrix_parameters + 2 * index_head_dim)


@constraint(
    reason="a sparse-attention indexer needs latent attention, of queries and of keys", source="deepseek2025v32"
)
def indexer_has_latents(index_layers, q_lora_rank, kv_lora_rank):
    """Queries of an indexer come from the latent of the queries; chosen latents are keys and values of all heads."""
    return (index_layers == 0) | ((q_lora_rank > 0) & (kv_lora_rank > 0))
