"""Fine-tuning with low-rank adapters (LoRA): frozen weights, and two small matrices beside each adapted one.

``lora_rank`` = 0 trains all weights. Adapters need the products of frozen weights in the forward pass and for input
gradients, 4 FLOPs per weight and token instead of 6; gradients and optimizer state exist for adapters only. The output
of an adapted matrix K x N gains x·A·B with A of K x r and B of r x N. Such narrow products wait for memory.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import constraint, formula
from perfgrid.formulas.axes import only, table, total
from perfgrid.formulas.kernels.roofline import roofline_shares
from perfgrid.formulas.pipelines.stages import STAGES

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
def adapted_gemms(lora_rank, lora_targets):
    """1 where a product with weights has an adapter, by gemm_kernel: all of a layer, of attention, or its first."""
    rest = xp.where(lora_targets == 0, 1.0, 0.0) * only("gemm_kernel", "ffn_up", "ffn_down")
    output = xp.where(lora_targets <= ATTENTION, 1.0, 0.0) * only("gemm_kernel", "attention_output")
    return xp.where(lora_rank > 0, 1.0, 0.0) * (only("gemm_kernel", "qkv") + output + rest)


@formula(unit="1", source="hu2021lora")
def rank_adapter_parameters(lora_rank, adapted_gemms, gemm_inputs, gemm_outputs):
    """Parameters of the adapters of one layer on one tensor-parallel rank: r·(K + N) for each adapted matrix."""
    return lora_rank * total(adapted_gemms * (gemm_inputs + gemm_outputs), "gemm_kernel")


@formula(unit="1", source="hu2021lora", family=STAGES)
def STAGE_stage_adapter_parameters(STAGE_stage_layers, rank_adapter_parameters, weight_copies):
    """Parameters of adapters on one device of the STAGE stage."""
    return weight_copies * STAGE_stage_layers * rank_adapter_parameters


@formula(unit="1", source="hu2021lora", family=STAGES)
def STAGE_stage_trained_parameters(STAGE_stage_parameters, STAGE_stage_adapter_parameters, trains_weights):
    """Parameters that are trained on one device of the STAGE stage, routed experts apart."""
    return xp.where(trains_weights > 0, STAGE_stage_parameters, STAGE_stage_adapter_parameters)


@formula(unit="1", source="hu2021lora")
def stage_trained_parameters(stage_parameters, stage_layers, rank_adapter_parameters, trains_weights, weight_copies):
    """Parameters that are trained on one device of the fullest stage, routed experts apart."""
    return xp.where(trains_weights > 0, stage_parameters, weight_copies * stage_layers * rank_adapter_parameters)


@formula(unit="1", source="hu2021lora")
def adapter_parameters(
    lora_rank, lora_targets, layers, hidden_size, query_width, key_value_width, ffn_size, ffn_input_matrices
):
    """Parameters of the adapters of the whole model."""
    attention = hidden_size + query_width + 2 * key_value_width
    attention = attention + xp.where(lora_targets <= ATTENTION, query_width + hidden_size, 0.0)
    feed_forward = 2 * hidden_size + ffn_size * (ffn_input_matrices + 1)
    return layers * lora_rank * (attention + xp.where(lora_targets == 0, feed_forward, 0.0))


@formula(unit="1", source="hu2021lora")
def trained_parameters(trains_weights, total_parameters, adapter_parameters):
    """Parameters of the whole model that are trained."""
    return xp.where(trains_weights > 0, total_parameters, adapter_parameters)


# ---- time -----------------------------------------------------------------------------------------------------------


@formula(unit="s", source="hu2021lora")
def adapter_time(
    lora_rank,
    adapted_gemms,
    gemm_inputs,
    gemm_outputs,
    microbatch_tokens,
    activation_size,
    unquantised_matrix_rate,
    achieved_hbm_bandwidth,
    launch_overhead,
):
    """Time of the adapters of one layer, by resource and phase.

    Forward x·A, u·B and an addition to the output; backward dy·B', du·A' and an addition to the input gradient, and
    the gradients u'·dy and x'·du. Every product reads its operands and writes its result once.
    """
    r, k, n = lora_rank, gemm_inputs, gemm_outputs
    moved = table("phase", forward=k + 3 * r + 2 * n, input_gradient=n + 3 * r + 2 * k, weight_gradient=k + n + 2 * r)
    kernels = table("phase", forward=3.0, input_gradient=3.0, weight_gradient=2.0)
    shares = roofline_shares(
        arithmetic=adapted_gemms * 2 * microbatch_tokens * r * (k + n) / unquantised_matrix_rate,
        hbm=adapted_gemms * microbatch_tokens * moved * activation_size / achieved_hbm_bandwidth,
        launch=adapted_gemms * kernels * launch_overhead,
    )
    return total(shares, "gemm_kernel")


@constraint(
    reason="adapters (LoRA) are expressed for dense layers with full heads: lora_rank must be 0", source="hu2021lora"
)
def adapters_fit_model(lora_rank, experts, kv_lora_rank):
    """Adapters lie beside dense matrices."""
    return (lora_rank == 0) | ((experts == 0) & (kv_lora_rank == 0))
