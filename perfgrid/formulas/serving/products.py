"""Matrix products of inference by `pass`: shapes, weights read from memory, and how often each runs.

Times come from the same equations as those of training (`gemm`): with few rows a product turns into a pass over its
weights. Latent attention is computed with full heads in the prefill, where keys and values are multiplied up from their
latent (`key_up`), and absorbed in decoding, where `key_up` takes the queries of each head into the latent space and
`value_up` the results back (DeepSeek-V2, section 2.1.2).
"""

from perfgrid.catalog.number_formats import NUMBER_FORMATS, WIDE
from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula, synonyms
from perfgrid.formulas.axes import at, only, table, total

PART_OF_PRODUCT = {  # the part of the model whose weights a product multiplies
    **dict.fromkeys(("qkv", "query_up", "key_up", "value_up", "attention_output"), "attention"),
    **dict.fromkeys(("ffn_up", "ffn_down"), "ffn"),
    **dict.fromkeys(("shared_up", "shared_down"), "shared_experts"),
    **{"router": "router", "mtp_projection": "head", "logits": "head"},
    **dict.fromkeys(("mixer_input", "mixer_inner", "mixer_output"), "mixer"),
}
NEVER_QUANTISED = ("logits", "router")

FORMULAS = (
    *synonyms(
        {"expert_operand_size": ("operand_size", "byte", "micikevicius2022fp8", "Bytes of one of its operands.")}
    ),
    *synonyms(
        {
            "gemm_result_size": ("activation_size", "byte", "pope2022inference", "Bytes that it writes per element."),
            "expert_result_size": ("activation_size", "byte", "pope2022inference", "The same of a product of experts."),
        },
        workload="inference",
    ),
)

# ---- shapes ---------------------------------------------------------------------------------------------------------


@formula(unit="1", source="shoeybi2019megatron")
def rank_query_heads(heads, tp):
    """Query heads of one tensor-parallel rank."""
    return heads / tp


@formula(unit="1", source="shoeybi2019megatron")
def attended_tokens(cached_prompt_tokens, computed_prompt_tokens, own_passes, prefill_sequences, prefill_passes, cp):
    """Tokens that those of a pass of the prefill attend to, cached ones too, on the rank that holds them.

    A prompt in n passes attends to its first i parts of n in the i-th.
    """
    each = own_passes * cached_prompt_tokens + computed_prompt_tokens * (own_passes + 1) / 2
    return prefill_sequences * each / prefill_passes / cp


@alternative(of="gemm_rows", by="workload", label="inference", unit="1", source="shoeybi2019megatron")
def serving_gemm_rows(pass_tokens, pass_sequences, expanded_tokens):
    """Rows of each product, by pass and product: the tokens of a pass, for the head those whose next one is wanted."""
    head, key_up = only("product", "logits"), only("product", "key_up") * only("pass", "prefill")
    return pass_tokens * (1 - head - key_up) + pass_sequences * head + expanded_tokens * key_up


def absorbed_keys():
    """1 for `key_up` in decoding, where it takes queries of each head into the latent space."""
    return only("product", "key_up") * only("pass", "decode")


@alternative(of="gemm_columns", by="workload", label="inference", unit="1", source="shoeybi2019megatron")
def serving_gemm_columns(gemm_outputs, kv_lora_rank):
    """Columns of each product on one rank, by pass and product."""
    absorbed = absorbed_keys()
    return gemm_outputs * (1 - absorbed) + xp.maximum(kv_lora_rank, 1.0) * absorbed


@alternative(of="gemm_depth", by="workload", label="inference", unit="1", source="shoeybi2019megatron")
def serving_gemm_depth(gemm_inputs, qk_nope_head_dim):
    """Depth of each product on one rank, by pass and product."""
    absorbed = absorbed_keys()
    return gemm_inputs * (1 - absorbed) + xp.maximum(qk_nope_head_dim, 1.0) * absorbed


@alternative(of="gemm_batch", by="workload", label="inference", unit="1", source="deepseek2024v2")
def serving_gemm_batch(latent_attention, rank_query_heads):
    """Products that one kernel computes, by pass and product: in decoding one per head where weights are absorbed."""
    heads = table("pass", prefill=1.0, decode=xp.where(latent_attention > 0, rank_query_heads, 1.0))
    absorbed = only("product", "key_up", "value_up")
    return heads * absorbed + (1 - absorbed)


@formula(unit="1", source="pope2022inference")
def product_count(
    layers,
    attention_layers,
    ffn_free_layers,
    moe_layers,
    mixer_layers,
    gate_rank,
    latent_attention,
    q_lora_rank,
    shared_experts,
):
    """How often each product runs in one pass through all layers, by pass and product."""
    latents = latent_attention * attention_layers
    shared = xp.where(shared_experts > 0, moe_layers, 0.0)
    return table(
        "product",
        qkv=attention_layers,
        query_up=xp.where(q_lora_rank > 0, latents, 0.0),
        key_up=latents,
        value_up=latents * only("pass", "decode"),
        attention_output=attention_layers,
        ffn_up=layers - ffn_free_layers - moe_layers,
        ffn_down=layers - ffn_free_layers - moe_layers,
        shared_up=shared,
        shared_down=shared,
        router=moe_layers,
        mtp_projection=0.0,
        logits=1.0,
        mixer_input=mixer_layers,
        mixer_inner=xp.where(gate_rank > 0, mixer_layers, 0.0),
        mixer_output=mixer_layers,
    )


@alternative(of="gemm_weight_size", by="workload", label="inference", unit="byte", source="lin2023awq")
def serving_gemm_weight_size(part_weight_size):
    """Bytes of one weight in memory, by product: those of the part of the model that it belongs to."""
    parts = {product: at(part_weight_size, weight_part=part) for product, part in PART_OF_PRODUCT.items()}
    return table("product", **parts)


@alternative(
    of="unquantised_products",
    by="weight_precision",
    label=tuple(NUMBER_FORMATS),
    unit="1",
    source="micikevicius2022fp8, grattafiori2024llama3, nvidia2025r1fp4, openai2025gptoss",
)
def LABEL_unquantised_products(quantised_attention):
    """1 for products that stay in 16 bits, by product: head, router, and all of attention unless it is quantised."""
    feed_forward = only("product", "ffn_up", "ffn_down", "shared_up", "shared_down")
    return xp.where(quantised_attention, only("product", *NEVER_QUANTISED), 1 - feed_forward)


@alternative(
    of="unquantised_products", by="weight_precision", label="published", unit="1", source="grattafiori2024llama3"
)
def published_unquantised_products(gemm_weight_size):
    """1 for products that stay in 16 bits, by product: head, router, and those whose weights are published so."""
    never = only("product", *NEVER_QUANTISED)
    return xp.where(gemm_weight_size < WIDE, never, 1.0)


@alternative(of="gemm_operand_size", by="workload", label="inference", unit="byte", source="micikevicius2022fp8")
def serving_gemm_operand_size(operand_size, head_size, unquantised_products):
    """Bytes of one operand element as the matrix units take it, by product."""
    return operand_size * (1 - unquantised_products) + head_size * unquantised_products


@alternative(of="gemm_matrix_rate", by="workload", label="inference", unit="FLOP/s", source="micikevicius2022fp8")
def serving_gemm_matrix_rate(matrix_rate, unquantised_matrix_rate, library_efficiency, unquantised_products):
    """Rate that large products reach, by product."""
    rate = matrix_rate * (1 - unquantised_products) + unquantised_matrix_rate * unquantised_products
    return library_efficiency * rate


@formula(unit="s", source="williams2009roofline")
def products_time(gemm_product_time, product_count):
    """Time of all products with dense weights in one pass through all layers, by resource and pass."""
    return total(gemm_product_time * product_count, "product")
