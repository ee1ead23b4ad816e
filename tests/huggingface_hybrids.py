"""Configurations of published models with recurrent layers, also with keys that have no effect."""

from tests.huggingface_configs import UNTIED, sizes

EVERY_FOURTH = ["linear_attention"] * 3 + ["full_attention"]
MOE = {"mlp_only_layers": [], "norm_topk_prob": True, "output_router_logits": False, "router_aux_loss_coef": 0.001}


def delta_nets(value_heads):
    return {
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": 128,
        "full_attention_interval": 4,
        "partial_rotary_factor": 0.25,
        "max_position_embeddings": 262144,
    }


def qwen35(kind, layers, hidden, heads, kv_heads, value_heads, **more):
    """The language model stands in text_config."""
    text = {
        "model_type": f"{kind}_text",
        **sizes(layers, hidden, heads, kv_heads, None, 248320, head_dim=256),
        **delta_nets(value_heads),
        "attn_output_gate": True,
        "layer_types": EVERY_FOURTH * (layers // 4),
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        **more,
    }
    return {"model_type": kind, "text_config": text, "vision_config": {"depth": 27}, **UNTIED}


def nemotron_h(layers, hidden, heads, kv_heads, ffn, pattern, mamba_heads, state, **more):
    return {
        "model_type": "nemotron_h",
        **sizes(layers, hidden, heads, kv_heads, ffn, 131072, **UNTIED),
        "hybrid_override_pattern": pattern,
        "mamba_num_heads": mamba_heads,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": state,
        "conv_kernel": 4,
        "chunk_size": 128,
        "expand": 2,
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        "mamba_proj_bias": False,
        "use_conv_bias": True,
        "use_mamba_kernels": True,
        "time_step_floor": 0.0001,
        "time_step_limit": [0.0, 1e9],
        "sliding_window": None,
        "rescale_prenorm_residual": True,
        "residual_in_fp32": False,
        "num_logits_to_keep": 1,
        "hidden_dropout": 0.0,
        **more,
    }


QWEN3_NEXT = {
    "model_type": "qwen3_next",
    **sizes(48, 2048, 16, 2, 5120, 151936, head_dim=256, **UNTIED),
    **delta_nets(32),
    **MOE,
    "decoder_sparse_step": 1,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "use_sliding_window": False,
}
QWEN35_MOE = qwen35(
    "qwen3_5_moe", 60, 4096, 32, 2, 64, num_experts=512, num_experts_per_tok=10, moe_intermediate_size=1024,
    shared_expert_intermediate_size=1024, **MOE,
)  # fmt: skip
FULL = [4, 8, 12, 16, 20, 24, 27]
KIMI_LINEAR = {
    "model_type": "kimi_linear",
    **sizes(27, 2304, 32, 32, 9216, 163840, head_dim=72, **UNTIED),
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "mla_use_nope": True,
    "linear_attn_config": {
        "full_attn_layers": FULL,
        "head_dim": 128,
        "kda_layers": [n for n in range(1, 28) if n not in FULL],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "num_experts": 256,
    "num_experts_per_token": 8,
    "moe_intermediate_size": 1024,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "use_grouped_topk": True,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_nextn_predict_layers": 0,
    "model_max_length": 1048576,
}
MINIMAX_M1 = {
    "model_type": "minimax_m1",
    **sizes(80, 6144, 64, 8, 9216, 200064, head_dim=128, **UNTIED),
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
    "num_local_experts": 32,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid",
    "postnorm": True,
    "layernorm_linear_attention_alpha": 3.5566,
    "layernorm_mlp_beta": 1.0,
    "rotary_dim": 64,
    "sliding_window": None,
    "router_jitter_noise": 0.0,
}
NANO = nemotron_h(
    52, 2688, 32, 2, 1856, "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", 64, 128, head_dim=128,
    mamba_ssm_cache_dtype="float32", n_routed_experts=128, n_shared_experts=1, num_experts_per_tok=6, n_group=1,
    topk_group=1, moe_intermediate_size=1856, moe_shared_expert_intermediate_size=3712, norm_topk_prob=True,
    routed_scaling_factor=2.5,
)  # fmt: skip
NEMOTRON_SUPER = nemotron_h(  # of the order of the blocks their numbers alone are used
    88, 4096, 32, 2, 2688, "MEMEM*EMEME" * 8, 128, 128, head_dim=128, mamba_ssm_cache_dtype="float32",
    n_routed_experts=512, n_shared_experts=1, num_experts_per_tok=22, n_group=1, topk_group=1, moe_latent_size=1024,
    moe_intermediate_size=2688, moe_shared_expert_intermediate_size=5376, num_nextn_predict_layers=1,
    mtp_hybrid_override_pattern="*E",
)  # fmt: skip
NEMOTRON_H_8B = nemotron_h(
    52, 4096, 32, 8, 21504, "M-M-M-M*-" + "M-M-M-M-M*-" * 3 + "M-M-M-M-M-", 128, 128, attention_head_dim=128
)
GRANITE = {
    "model_type": "granitemoehybrid",
    **sizes(40, 4096, 32, 8, 768, 100352, tie_word_embeddings=True),
    "layer_types": ["mamba" if i % 10 != 5 else "attention" for i in range(40)],
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "mamba_proj_bias": False,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "shared_intermediate_size": 1536,
    "position_embedding_type": "nope",
    "normalization_function": "rmsnorm",
    "init_method": "mup",
    "logits_scaling": 16,
    "residual_multiplier": 0.22,
}
FALCON_H1 = {
    "model_type": "falcon_h1",
    **sizes(72, 5120, 20, 4, 21504, 261120, head_dim=128, **UNTIED),
    "mamba_chunk_size": 128,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 128,
    "mamba_d_ssm": 4096,
    "mamba_d_state": 256,
    "mamba_expand": 2,
    "mamba_n_groups": 2,
    "mamba_n_heads": 32,
    "mamba_norm_before_gate": False,
    "mamba_proj_bias": False,
    "mamba_rms_norm": False,
    "mamba_use_mlp": True,
    "mlp_expansion_factor": 8,
    "mlp_multipliers": [0.5, 0.1],
    "key_multiplier": 0.4,
    "ssm_in_multiplier": 0.5,
    "ssm_multipliers": [0.3, 0.2],
    "ssm_out_multiplier": 0.2,
    "projectors_bias": False,
    "time_step_rank": 256,
}
HYBRIDS = {  # by their names in the catalog
    "qwen3-next-80b-a3b": QWEN3_NEXT,
    "qwen3.5-27b": qwen35("qwen3_5", 64, 5120, 24, 4, 48, intermediate_size=17408),
    "qwen3.5-35b-a3b": qwen35(
        "qwen3_5_moe", 40, 2048, 16, 2, 32, num_experts=256, num_experts_per_tok=8, moe_intermediate_size=512,
        shared_expert_intermediate_size=512, **MOE,
    ),
    "qwen3.5-397b-a17b": QWEN35_MOE,
    "kimi-linear-48b-a3b": KIMI_LINEAR,
    "minimax-m1": MINIMAX_M1,
    "nemotron-3-nano-30b-a3b": NANO,
    "nemotron-3-super-120b-a12b": NEMOTRON_SUPER,
    "nemotron-h-8b": NEMOTRON_H_8B,
    "granite-4.0-h-small": GRANITE,
    "falcon-h1-34b": FALCON_H1,
}  # fmt: skip
HYBRIDS_ALIKE = {"minimax": "minimax_m1", "minimax_text_01": "minimax_m1"}  # read as another one
