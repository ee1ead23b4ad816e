"""Kernels that quantise operands: what no kernel writes in the number format of the product that reads it.

A norm or an activation can write the next operand rounded, with a scale that it knows: of a tensor or a row. Blocks of
values have scales of their own, which a kernel finds first, and so do results of attention in any format. Copies that
are sent to experts are quantised as they are made.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.formulas.axes import at
from perfgrid.formulas.hardware.scaling import of_recipe


@formula(unit="1", source="micikevicius2022fp8")
def quantised_share(operand_size, activation_size):
    """1 where products take operands in fewer bits than activations have."""
    return xp.where(operand_size < activation_size, 1.0, 0.0)


@formula(unit="1", source="deepseek2024v3, nvidia2025nvfp4")
def apart_share(quantised_share, scaling_recipe, fused_streams):
    """1 where kernels of their own quantise what norms and activations write: in blocks with a scale each, or where
    streams are not fused.
    """
    blocks = xp.where(of_recipe(scaling_recipe, 0) > 0, 1.0, 0.0)
    return quantised_share * xp.where(fused_streams, blocks, 1.0)


@formula(unit="1", source="grattafiori2024llama3")
def quantised_norms(unquantised_products, layer_blocks, ffn_free_layers, layers):
    """Part of the norms whose result is the operand of a quantised product: all, or those of feed-forward blocks."""
    attention = 1 - at(unquantised_products, product="qkv")
    return xp.where(attention > 0, 1.0, (1 - ffn_free_layers / layers) / layer_blocks)


@formula(unit="1", source="deepseek2024v2")
def attention_quantising(quantised_share, unquantised_products, attention_layers, layers):
    """Part of the layers whose projections of attention take quantised operands."""
    attention = 1 - at(unquantised_products, product="qkv")
    return quantised_share * xp.where(attention > 0, attention_layers / layers, 0.0)


@formula(unit="1", source="deepseek2024v3")
def quantising_launches(attention_quantising, compressed_queries, apart_share, ffn_share, moe_share, shared_experts):
    """Kernels of a layer that quantise, mean of all layers: results of attention, latent queries, and apart the inputs
    of attention and feed-forward blocks (experts: of shared ones, and what both activations write).
    """
    shared = xp.where(shared_experts > 0, 2.0, 0.0)
    ffn = 2 * (1 - moe_share) + (1 + shared) * moe_share
    return attention_quantising * (1 + compressed_queries + apart_share) + apart_share * ffn_share * ffn


@formula(unit="1", source="deepseek2024v3")
def quantised_width(
    attention_quantising,
    compressed_queries,
    apart_share,
    ffn_share,
    moe_share,
    hidden_size,
    rank_context_width,
    q_lora_rank,
    activated_width,
    shared_experts,
):
    """Elements of a token that these kernels quantise in a layer on one rank, mean of all layers."""
    attention = rank_context_width + compressed_queries * q_lora_rank + apart_share * hidden_size
    inputs = xp.where(shared_experts > 0, 1.0, 1 - moe_share)  # routed experts take copies
    return attention_quantising * attention + apart_share * ffn_share * (inputs * hidden_size + activated_width)


@formula(unit="1", source="shoeybi2019megatron")
def ffn_share(layers, ffn_free_layers):
    """Part of the layers that have a feed-forward block."""
    return 1 - ffn_free_layers / layers
