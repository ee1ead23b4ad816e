"""Number formats of inference: how weights and cache are stored, what 8-bit integers compute, who converts operands.

A norm or an activation can write the next operand rounded, with a scale that it knows: of a tensor or a row. Blocks of
values have scales of their own, which a kernel finds first, and so do results of attention in any format. Copies that
are sent to experts are quantised as they are made.
"""

from perfgrid.catalog.number_formats import NUMBER_FORMATS
from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import Cell, by_label
from perfgrid.formulas.axes import at, only, table
from perfgrid.formulas.hardware.device import QUANTISED, UNQUANTISED
from perfgrid.formulas.hardware.scaling import NAMES, of_recipe

NEVER_QUANTISED = ("embedding", "head", "router")  # parts of a model whose weights stay in 16 bits
STORED = ("fp32", "fp16", "bf16", "fp8", "int8", "int4", "fp4", "mxfp4")  # formats of weights, keys and values
SIZES: dict[str | tuple[str, ...], tuple[Cell]] = {
    name: (NUMBER_FORMATS[name].element_size,) for name in STORED
}  # bytes, scales among them
ROW = float(NAMES.index("row"))  # number of the scaling with one scale per row

STORED_BY = "kwon2023vllm, micikevicius2022fp8, dettmers2022int8, lin2023awq, nvidia2025blackwell, rouhani2023mx"

FORMULAS = (
    *by_label(
        "precision",
        {
            "peak_matrix_rate": ("FLOP/s", "stas2025ml", "Peak rate; 0 where there is none."),
            "operand_size": ("byte", "dettmers2022int8", "Bytes of one operand element of a product."),
            "usual_scaling": ("1", "dettmers2022int8", "Number of the scaling that a format suggests."),
            "activation_size": ("byte", "dettmers2022int8", "Bytes of an activation."),
        },
        {"int8": ("peak_int8_rate", 1.0, ROW, "bf16_operand_size")},
    ),
    *by_label(
        "precision",
        {"head_size": ("byte", "micikevicius2022fp8, dettmers2022int8", "Bytes of a weight of embedding or head.")},
        {**{name: (f"{name}_operand_size",) for name in UNQUANTISED}, (*QUANTISED, "int8"): ("bf16_operand_size",)},
    ),
    *by_label("weight_precision", {"weight_element_size": ("byte", STORED_BY, "Bytes of a weight.")}, SIZES),
    *by_label("kv_precision", {"kv_element_size": ("byte", STORED_BY, "Bytes of an element of the cache.")}, SIZES),
)


# ---- weights by part of the model -----------------------------------------------------------------------------------


@alternative(
    of="part_weight_size", by="weight_precision", label=tuple(NUMBER_FORMATS), unit="byte", source="lin2023awq"
)
def LABEL_part_weight_size(weight_element_size, head_size, quantised_attention):
    """Bytes of one weight by part of the model, all in LABEL: but head, embedding and router, and attention if stated.

    Those stay in the format of products that are not quantised.
    """
    attention = only("weight_part", "attention", "mixer")
    kept = only("weight_part", *NEVER_QUANTISED) + xp.where(quantised_attention, 0.0, 1.0) * attention
    return weight_element_size * (1 - kept) + head_size * kept


@alternative(
    of="part_weight_size", by="weight_precision", label="published", unit="byte", source="huggingface2026models"
)
def published_part_weight_size(
    published_attention_size,
    published_mixer_size,
    published_indexer_size,
    published_ffn_size,
    published_shared_size,
    published_expert_size,
    published_embedding_size,
    published_head_size,
    head_size,
):
    """Bytes of one weight by part of the model, as its checkpoint holds them: means over layers, scales among them."""
    return table(
        "weight_part",
        attention=published_attention_size,
        mixer=published_mixer_size,
        indexer=published_indexer_size,
        ffn=published_ffn_size,
        shared_experts=published_shared_size,
        experts=published_expert_size,
        embedding=published_embedding_size,
        head=published_head_size,
        router=head_size,
    )


@alternative(of="reached_fraction", by="precision", label="int8", unit="1", source="stas2025ml")
def int8_reached_fraction(fp8_matrix_efficiency, matrix_efficiency):
    """Fraction of the peak rate that large products of 8-bit integers reach: as 8-bit floating point, or 16 bits."""
    return xp.where(fp8_matrix_efficiency > 0, fp8_matrix_efficiency, matrix_efficiency)


@alternative(of="unquantised_matrix_rate", by="precision", label="int8", unit="FLOP/s", source="stas2025ml")
def int8_unquantised_matrix_rate(half_precision_rate, matrix_efficiency):
    """Rate of the products that stay in 16-bit formats: attention and the output head."""
    return half_precision_rate * matrix_efficiency


@alternative(of="scaling_fits", by="precision", label="int8", unit="1", source="dettmers2022int8")
def int8_scaling_fits(scaling_recipe):
    """1 where the scaling serves 8-bit integers: of tensors or rows."""
    return xp.where(scaling_recipe <= ROW, 1.0, 0.0)


# ---- kernels that quantise ------------------------------------------------------------------------------------------


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
