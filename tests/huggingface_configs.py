"""Configurations of published models, and the parameters that their publishers count."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfgrid.answers.entries import model_with_remarks
from perfgrid.catalog import Catalog, Entry, Variable
from perfgrid.catalog.huggingface import imported
from perfgrid.catalog.schema import Value


def sizes(layers, hidden, heads, kv_heads, ffn, vocabulary, **more):
    """The keys that most architectures share."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        **more,
    }


def indexer(heads):
    """The keys of an indexer of sparse attention."""
    return {"index_n_heads": heads, "index_head_dim": 128, "index_topk": 2048}


MLA = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
UNTIED = {"tie_word_embeddings": False}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    **sizes(61, 7168, 128, 128, 18432, 129280, **MLA, **UNTIED),
    "quantization_config": {"fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "n_group": 8,
    "topk_group": 4,
    "num_nextn_predict_layers": 1,
}
LLAMA_8B = {"model_type": "llama", **sizes(32, 4096, 32, 8, 14336, 128256, **UNTIED), "attention_dropout": 0.0}
GPT_OSS = {
    "model_type": "gpt_oss",
    **sizes(24, 2880, 64, 8, 2880, 201088, head_dim=64, **UNTIED),
    "quantization_config": {"quant_method": "mxfp4"},
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    **sizes(48, 2048, 32, 4, 6144, 151936, head_dim=128, **UNTIED),
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 48,
}
FALCON_180B = {
    "model_type": "falcon",
    "num_hidden_layers": 80,
    "hidden_size": 14848,
    "num_attention_heads": 232,
    "num_kv_heads": 8,
    "vocab_size": 65024,
    "new_decoder_architecture": True,
    "multi_query": True,
    "parallel_attn": True,
    "bias": False,
    "alibi": False,
    "hidden_dropout": 0.0,
}
MPT_7B = {
    "model_type": "mpt",
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "expansion_ratio": 4,
    "vocab_size": 50432,
    "max_seq_len": 2048,
    "learned_pos_emb": True,
    "no_bias": True,
    "resid_pdrop": 0,
    "attn_config": {"alibi": True, "attn_type": "multihead_attention", "attn_pdrop": 0},
}

LLAMA_4 = {  # of text and images
    "model_type": "llama4_text",
    "num_hidden_layers": 48,
    "hidden_size": 5120,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "vocab_size": 202048,
    "tie_word_embeddings": False,
    "attention_chunk_size": 8192,
    "no_rope_layers": [],
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "interleave_moe_layer_step": 1,
    "use_qk_norm": True,
    "attn_temperature_tuning": True,
    "for_llm_compressor": False,
}
MAVERICK = LLAMA_4 | {"num_local_experts": 128, "interleave_moe_layer_step": 2, "use_qk_norm": False}
CONFIGS = {  # entries of the catalog, as their publishers configure them
    "llama-3.1-8b": LLAMA_8B,
    "llama-2-70b": {"model_type": "llama", **sizes(80, 8192, 64, 8, 28672, 32000, **UNTIED)},
    "mistral-7b-v0.1": {
        "model_type": "mistral",
        **sizes(32, 4096, 32, 8, 14336, 32000, **UNTIED),
        "sliding_window": 4096,
    },
    "qwen-2.5-72b": {
        "model_type": "qwen2",
        **sizes(80, 8192, 64, 8, 29568, 152064, **UNTIED),
        "sliding_window": 131072,
        "use_sliding_window": False,
        "max_window_layers": 80,
    },
    "gemma-2-27b": {
        "model_type": "gemma2",
        **sizes(46, 4608, 32, 16, 36864, 256000, head_dim=128),
        "sliding_window": 4096,
    },
    "gemma-3-27b": {  # of several modalities, and silent about what its class takes anyway
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "num_hidden_layers": 62,
            "hidden_size": 5376,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "intermediate_size": 21504,
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152},
    },
    "gemma-3n-e4b": {
        "model_type": "gemma3n",
        "text_config": {
            "model_type": "gemma3n_text",
            **sizes(35, 2048, 8, 2, [16384] * 35, 262400, head_dim=256, max_position_embeddings=32768),
            "layer_types": ([*["sliding_attention"] * 4, "full_attention"]) * 7,
            "sliding_window": 512,
            "num_kv_shared_layers": 15,
            "hidden_size_per_layer_input": 256,
            "vocab_size_per_layer_input": 262144,
            "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 25,
            "altup_num_inputs": 4,
            "laurel_rank": 64,
        },
        "vision_config": {"hidden_size": 2048},
        "audio_config": {"hidden_size": 1536},
    },
    "llama-4-scout": {"model_type": "llama4", "text_config": LLAMA_4, "vision_config": {"hidden_size": 1408}},
    "llama-4-maverick": {"model_type": "llama4", "text_config": MAVERICK, "vision_config": {"hidden_size": 1408}},
    "nemotron-4-340b": {"model_type": "nemotron", **sizes(96, 18432, 96, 8, 73728, 256000, head_dim=192, **UNTIED)},
    "gpt-neox-20b": {
        "model_type": "gpt_neox",
        **{k: v for k, v in sizes(44, 6144, 64, 0, 24576, 50432, **UNTIED).items() if k != "num_key_value_heads"},
        "use_parallel_residual": True,
        "hidden_dropout": 0.0,
    },
    "opt-175b": {
        "model_type": "opt",
        "num_hidden_layers": 96,
        "hidden_size": 12288,
        "num_attention_heads": 96,
        "ffn_dim": 49152,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": 12288,
        "dropout": 0.1,
    },
    "bloom-176b": {
        "model_type": "bloom",
        "n_layer": 70,
        "n_embed": 14336,
        "num_attention_heads": 112,
        "n_inner": None,
        "vocab_size": 250880,
        "hidden_dropout": 0.0,
    },
    "mpt-7b": MPT_7B,
    "falcon-180b": FALCON_180B,
    "falcon-40b": {
        "model_type": "RefinedWeb",
        "n_layer": 60,
        "hidden_size": 8192,
        "n_head": 128,
        "n_head_kv": 8,
        "vocab_size": 65024,
        "parallel_attn": True,
        "bias": False,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        **sizes(32, 4096, 32, 8, 14336, 32000, **UNTIED),
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen3-30b-a3b": QWEN3_MOE,
    "gpt-oss-20b": GPT_OSS,
    "deepseek-v2": {
        "model_type": "deepseek_v2",
        **sizes(60, 5120, 128, 128, 12288, 102400, **MLA, **UNTIED),
        "n_routed_experts": 160,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1536,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 8,
        "topk_group": 3,
    },
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v3.2": {**DEEPSEEK_V3, "model_type": "deepseek_v32", **indexer(64)},
    "glm-5": {
        "model_type": "glm_moe_dsa",
        **sizes(78, 6144, 64, 64, 12288, 154880, **UNTIED, **indexer(32)),
        **{
            "q_lora_rank": 2048,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64,
            "v_head_dim": 256,
        },
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "n_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 1,
    },
    "kimi-k2": {
        **DEEPSEEK_V3,
        "model_type": "kimi_k2",
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "vocab_size": 163840,
        "n_routed_experts": 384,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
    },
}
OTHERS = {  # (configuration, published number of parameters)
    "gpt2-xl": (
        {
            "model_type": "gpt2",
            "n_layer": 48,
            "n_embd": 1600,
            "n_head": 25,
            "n_positions": 1024,
            "vocab_size": 50257,
            "resid_pdrop": 0.1,
        },
        1_557_611_200,
    ),
    "phi-3-mini": (
        {"model_type": "phi3", **sizes(32, 3072, 32, 32, 8192, 32064, **UNTIED), "sliding_window": 2047},
        3_821_079_552,
    ),
    "qwen3-32b": (
        {"model_type": "qwen3", **sizes(64, 5120, 64, 8, 25600, 151936, head_dim=128, **UNTIED)},
        32_762_123_264,
    ),
    "gemma-7b": ({"model_type": "gemma", **sizes(28, 3072, 16, 16, 24576, 256000, head_dim=256)}, 8_537_680_896),
    "gemma-3-4b": (
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "sliding_window": 1024,
        },
        3_880_099_328,
    ),
    "falcon-7b": (
        {
            "model_type": "falcon",
            "num_hidden_layers": 32,
            "hidden_size": 4544,
            "num_attention_heads": 71,
            "vocab_size": 65024,
            "new_decoder_architecture": False,
            "multi_query": True,
            "parallel_attn": True,
        },
        6_921_720_704,
    ),
    "deepseek-v2-lite": (  # without compression of queries
        {
            "model_type": "deepseek_v2",
            **sizes(27, 2048, 16, 16, 10944, 102400, **MLA | {"q_lora_rank": None}),
            "n_routed_experts": 64,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1408,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
        },
        15_706_484_224,
    ),
}


def model_of(catalog: Catalog, model: str | Path) -> Entry:
    """A model of the catalog, or of a ``config.json`` or a folder with one. Errors as of `model_with_remarks`."""
    return model_with_remarks(catalog, model)[0]


def model_values(config: Mapping[str, Any], variables: Mapping[str, Variable], where: str) -> dict[str, Value]:
    """The quantities of the model that a configuration describes, checked; ``where`` names the file in errors."""
    return dict(imported(config, variables, where).values)
