"""The matrix products of a model on one rank, by `product`: shapes, and how often each runs in a layer.

Training and serving share this list; what they make of it is in `gemm`. Products of routed experts vary along axes of a
study of their own and are a list of their own (`expert_product`, in `moe`), as are those of attention without weights.
A product that a model does not have is at least one element wide and runs never. With low ranks a mixer makes its
decays and gates in two products, of which ``mixer_inner`` is the second: H(N + P) columns, side by side.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label
from perfgrid.formulas.axes import only, table
from perfgrid.formulas.mixer_kinds import NONE

from .parameters import router_columns

OF_ATTENTION = ("qkv", "attention_output")  # which latents add to
MIXER_COLUMNS, MIXER_ROWS = ("mixer_input", "mixer_inner"), "mixer_output"  # split over ranks by columns, by rows

FORMULAS = by_label(
    "mixer",
    {
        f"mixer_product_{size}": ("1", "dao2024mamba2", f"{size.capitalize()} of the products of a mixer, by product.")
        for size in ("columns", "depth")
    },
    {NONE: (0, 0)},
)


@formula(unit="1", source="shoeybi2019megatron")
def gemm_outputs(
    hidden_size,
    rank_qkv_width,
    rank_query_width,
    rank_expanded_width,
    value_head_width,
    rank_ffn_size,
    rank_shared_ffn_size,
    ffn_input_matrices,
    experts,
    expert_latent_size,
    rank_vocab_size,
    tp,
    mixer_product_columns,
):
    """Output columns of each product on one rank, by product."""
    columns = table(
        "product",
        qkv=rank_qkv_width,
        query_up=rank_query_width,
        key_up=rank_expanded_width,  # keys and values
        value_up=value_head_width,
        attention_output=hidden_size,
        ffn_up=rank_ffn_size * ffn_input_matrices,
        ffn_down=hidden_size,
        shared_up=rank_shared_ffn_size * ffn_input_matrices,
        shared_down=hidden_size,
        router=router_columns(experts, expert_latent_size),
        mtp_projection=hidden_size / tp,
        logits=rank_vocab_size,
        mixer_input=mixer_product_columns,
        mixer_inner=mixer_product_columns,
        mixer_output=hidden_size,
    )
    return xp.maximum(columns, 1.0)


@formula(unit="1", source="shoeybi2019megatron")
def gemm_inputs(
    hidden_size,
    rank_context_width,
    q_lora_rank,
    kv_lora_rank,
    rank_ffn_size,
    rank_shared_ffn_size,
    mixer_product_depth,
):
    """Depth of each product on one rank, by product."""
    depth = table(
        "product",
        qkv=hidden_size,
        query_up=q_lora_rank,
        key_up=kv_lora_rank,
        value_up=kv_lora_rank,
        attention_output=rank_context_width,
        ffn_up=hidden_size,
        ffn_down=rank_ffn_size,
        shared_up=hidden_size,
        shared_down=rank_shared_ffn_size,
        router=hidden_size,
        mtp_projection=2 * hidden_size,
        logits=hidden_size,
        mixer_input=hidden_size,
        mixer_inner=mixer_product_depth,
        mixer_output=mixer_product_depth,
    )
    return xp.maximum(depth, 1.0)


# ---- how often each runs in one layer of a model in training --------------------------------------------------------


@alternative(of="layer_gemms", by="mixer", label=NONE, unit="1", source="dai2024deepseekmoe")
def plain_layer_gemms(latent_gemms, kind_is_dense, kind_has_experts, kind_has_shared_experts):
    """How often each product runs in one layer, by product: a feed-forward block is dense or has experts."""
    return (
        latent_gemms
        + only("product", *OF_ATTENTION)
        + kind_is_dense * only("product", "ffn_up", "ffn_down")
        + kind_has_experts * only("product", "router")
        + kind_has_shared_experts * only("product", "shared_up", "shared_down")
    )
