"""Fine-tuning with low-rank adapters (LoRA): frozen weights, and two small matrices beside each adapted one.

``lora_rank`` = 0 trains all weights. Adapters need the products of frozen weights in the forward pass and for input
gradients, 4 FLOPs per weight and token instead of 6; gradients and optimizer state exist for adapters only. The output
of an adapted matrix K x N gains x·A·B with A of K x r and B of r x N. Such narrow products wait for memory.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.axes import mean_of_kinds, of_kinds, only, table, total
from perfgrid.formulas.kernels.roofline import roofline_shares
from perfgrid.formulas.mixer_kinds import NONE
from perfgrid.formulas.transformer.layer_products import MIXER_COLUMNS, MIXER_ROWS

ATTENTION, QKV = 1.0, 2.0  # codes of lora_targets: all, attention, qkv

# ---- which weights are trained --------------------------------------------------------------------------------------


@formula(unit="1", source="hu2021lora")
def trains_weights(lora_rank):
    """1 where all weights are trained, 0 where only adapters are."""
    return xp.where(lora_rank > 0, 0.0, 1.0)


@formula(unit="1", source="hu2021lora")
def computed_phases(trains_weights):
    """1 for the phases whose products run, by phase: frozen weights have no gradients."""
    return table("phase", forward=1.0, input_gradient=1.0, weight_gradient=trains_weights)


@formula(unit="1", source="hu2021lora")
def ffn_inputs_kept(trains_weights, lora_targets):
    """1 where products of the feed-forward block keep their inputs: for gradients of weights or of adapters."""
    return xp.where((trains_weights > 0) | (lora_targets == 0), 1.0, 0.0)


@formula(unit="1", source="hu2021lora")
def adapted_gemms(lora_rank, lora_targets, layer_gemms):
    """How often products with an adapter run in one layer, by product: all of a layer, of attention, or its first."""
    first = only("product", "qkv", *MIXER_COLUMNS)
    outputs = xp.where(lora_targets <= ATTENTION, 1.0, 0.0) * only("product", "attention_output", MIXER_ROWS)
    others = xp.where(lora_targets == 0, 1.0, 0.0) * only("product", "ffn_up", "ffn_down")
    return xp.where(lora_rank > 0, layer_gemms, 0.0) * (first + outputs + others)


@formula(unit="1", source="huggingface2026trainer")
def joined_matrices(adapters_per_matrix, ffn_input_matrices):
    """Adapters of one product, by product: one, or one of each matrix that it joins (queries, keys, values; gate)."""
    inputs = 2 * only("product", "qkv") + (ffn_input_matrices - 1) * only("product", "ffn_up")
    return 1 + xp.where(adapters_per_matrix, 1.0, 0.0) * inputs


@formula(unit="1", source="hu2021lora", where="section 4.1")
def rank_adapter_parameters(lora_rank, adapted_gemms, joined_matrices, gemm_inputs, gemm_outputs):
    """Parameters of the adapters of one layer on one tensor-parallel rank: r·(K + N) for each adapted matrix."""
    return lora_rank * total(adapted_gemms * (joined_matrices * gemm_inputs + gemm_outputs), "product")


@formula(unit="1", source="hu2021lora")
def adapter_parameters_by_stage(kind_layers_by_stage, rank_adapter_parameters, weight_copies):
    """Parameters of adapters on one device of each stage, by stage."""
    return weight_copies * of_kinds(kind_layers_by_stage, rank_adapter_parameters)


@formula(unit="1", source="hu2021lora")
def stage_trained_parameters(
    stage_parameters, stage_layers, kind_layers, rank_adapter_parameters, trains_weights, weight_copies
):
    """Parameters that are trained on one device of the fullest stage, routed experts apart."""
    adapters = weight_copies * stage_layers * mean_of_kinds(kind_layers, rank_adapter_parameters)
    return xp.where(trains_weights > 0, stage_parameters, adapters)


@alternative(of="adapter_parameters", by="mixer", label=NONE, unit="1", source="hu2021lora")
def plain_adapter_parameters(
    lora_rank,
    lora_targets,
    layers,
    attention_layers,
    ffn_free_layers,
    hidden_size,
    query_width,
    key_value_width,
    own_key_share,
    attention_gate,
    dense_width,
    ffn_input_matrices,
    adapters_per_matrix,
):
    """Parameters of the adapters of the whole model beside matrices of attention and feed-forward blocks."""
    queries = xp.where(attention_gate, 2.0, 1.0) * query_width
    inputs, gates = (xp.where(adapters_per_matrix, several, 1.0) for several in (3.0, ffn_input_matrices))
    attention = inputs * hidden_size + queries + 2 * own_key_share * key_value_width
    attention = attention + xp.where(lora_targets <= ATTENTION, query_width + hidden_size, 0.0)
    feed_forward = (1 + gates) * hidden_size + dense_width * (ffn_input_matrices + 1)
    blocks = xp.where(lora_targets == 0, layers - ffn_free_layers, 0.0)
    return lora_rank * (attention_layers * attention + blocks * feed_forward)


@formula(unit="1", source="hu2021lora")
def trained_parameters(trains_weights, total_parameters, adapter_parameters):
    """Parameters of the whole model that are trained."""
    return xp.where(trains_weights > 0, total_parameters, adapter_parameters)


# ---- time and work --------------------------------------------------------------------------------------------------


def adapter_elements(rank, depth, columns):
    """Elements that the products of adapters move for one token, by phase; rank and depth those of all joined ones.

    Forward x·A, u·B and an addition to the output; backward dy·B', du·A' and an addition to the input gradient, and
    the gradients u'·dy and x'·du. Every product reads its operands and writes its result once.
    """
    return table(
        "phase",
        forward=depth + 3 * rank + 2 * columns,
        input_gradient=columns + 3 * rank + 2 * depth,
        weight_gradient=depth + columns + 2 * rank,
    )


def adapter_traffic(joined, rank, depth, columns, element_size, input_traffic, output_traffic):
    """Bytes that the adapters of one product move for one token, by phase: products, and kernels beside them."""
    products = adapter_elements(joined * rank, joined * depth, columns) * element_size
    return products + joined * depth * input_traffic + columns * output_traffic


def adapter_shares(adapted, joined, rank, depth, columns, traffic, tokens, matrix_rate, bandwidth, launch):
    """Time of the adapters of each product of one layer, by resource and phase."""
    kernels = table("phase", forward=3.0, input_gradient=3.0, weight_gradient=2.0)
    return roofline_shares(
        arithmetic=adapted * 2 * tokens * rank * (joined * depth + columns) / matrix_rate,
        hbm=adapted * tokens * traffic / bandwidth,
        launch=adapted * joined * kernels * launch,
    )


@formula(unit="s", source="hu2021lora")
def adapter_time(
    lora_rank,
    adapted_gemms,
    joined_matrices,
    gemm_inputs,
    gemm_outputs,
    adapter_input_traffic,
    adapter_output_traffic,
    microbatch_tokens,
    activation_size,
    unquantised_matrix_rate,
    achieved_hbm_bandwidth,
    launch_overhead,
    dequantisation_time,
):
    """Time of the adapters of one layer, and to bring frozen matrices into 16 bits, by resource and phase."""
    shape = (joined_matrices, lora_rank, gemm_inputs, gemm_outputs)
    traffic = adapter_traffic(*shape, activation_size, adapter_input_traffic, adapter_output_traffic)
    machine = (microbatch_tokens, unquantised_matrix_rate, achieved_hbm_bandwidth, launch_overhead)
    return total(adapter_shares(adapted_gemms, *shape, traffic, *machine), "product") + dequantisation_time


@formula(unit="1", source="hu2021lora")
def adapter_flops(rank_adapter_parameters, microbatch_tokens):
    """FLOPs of the adapters of one layer in each phase."""
    return 2 * microbatch_tokens * rank_adapter_parameters


@constraint(
    reason="adapters (LoRA) are modelled for dense layers with full heads only: lora_rank must be 0",
    source="hu2021lora",
)
def adapters_fit_model(lora_rank, experts, kv_lora_rank):
    """Adapters lie beside dense matrices."""
    return (lora_rank == 0) | ((experts == 0) & (kv_lora_rank == 0))
