"""How the configurations of each Hugging Face ``model_type`` are read, as data: one row per architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .schema import Value

_SIZES = {
    "layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn_size": ("intermediate_size",),
    "vocab_size": ("vocab_size",),
    "tied_embeddings": ("tie_word_embeddings",),
}


@dataclass(frozen=True)
class Architecture:
    """How configurations of one ``model_type`` are read."""

    keys: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _SIZES)  # quantity -> keys that may hold it
    fixed: Mapping[str, Value] = field(default_factory=dict)  # what every such model has
    absent: Mapping[str, Value] = field(default_factory=dict)  # what a missing or null key means
    ffn_multiple: float = 0  # of the hidden size where no key states the feed-forward width; 0: it must be stated
    full_every: int = 0  # every n-th layer attends beyond the window; 0: none does
    only: Mapping[str, Any] = field(default_factory=dict)  # keys of which one value alone is expressed

    def but(self, **changes: Any) -> Architecture:
        """A copy with mappings extended and other fields replaced."""
        return replace(
            self, **{k: {**getattr(self, k), **v} if isinstance(v, Mapping) else v for k, v in changes.items()}
        )


_LLAMA = Architecture(
    fixed={"gated_ffn": True, "learned_positions": 0.0},
    absent={"tied_embeddings": False},
)
_MISTRAL = _LLAMA.but(keys={"window": ("sliding_window",)})
_GEMMA = _MISTRAL.but(absent={"tied_embeddings": True})
_GEMMA_3 = _GEMMA.but(  # published configurations state only what differs from these
    absent={"heads": 8.0, "kv_heads": 4.0, "head_dim": 256.0, "vocab_size": 262208.0, "window": 4096.0}, full_every=6
)
_GPT = Architecture(fixed={"gated_ffn": False, "biases": True}, absent={"tied_embeddings": True})
_MIXTRAL = _MISTRAL.but(
    keys={
        "experts": ("num_local_experts",),
        "experts_per_token": ("num_experts_per_tok", "experts_per_token"),
        "expert_ffn_size": ("intermediate_size",),
    }
)
QWEN_MOE = _MISTRAL.but(
    keys={
        "experts": ("num_experts",),
        "experts_per_token": ("num_experts_per_tok",),
        "expert_ffn_size": ("moe_intermediate_size",),
    },
    only={"decoder_sparse_step": 1},
)
_DEEPSEEK = _LLAMA.but(
    keys={
        "head_dim": ("v_head_dim",),
        "experts": ("n_routed_experts",),
        "experts_per_token": ("num_experts_per_tok",),
        "expert_ffn_size": ("moe_intermediate_size",),
        "shared_experts": ("n_shared_experts",),
        "dense_layers": ("first_k_dense_replace",),
        "groups": ("n_group",),
        "groups_per_token": ("topk_group",),
        "mtp_layers": ("num_nextn_predict_layers",),
        **{k: (k,) for k in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")},
    },
    absent=dict.fromkeys(("shared_experts", "dense_layers", "groups", "groups_per_token", "mtp_layers"), 0.0)
    | {"q_lora_rank": 0.0},
    only={"moe_layer_freq": 1},
)
FALCON = Architecture(
    keys={
        "layers": ("num_hidden_layers", "n_layer"),
        "heads": ("num_attention_heads", "n_head"),
        "kv_heads": ("num_kv_heads", "n_head_kv"),
        "ffn_size": ("ffn_hidden_size",),
        "parallel_block": ("parallel_attn",),
        "biases": ("bias",),
        **{k: _SIZES[k] for k in ("hidden_size", "vocab_size", "tied_embeddings")},
    },
    fixed={"gated_ffn": False, "learned_positions": 0.0},
    absent={"tied_embeddings": True, "parallel_block": True, "biases": False},
    ffn_multiple=4,
)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _MISTRAL,
    "qwen3": _MISTRAL,
    "phi3": _MISTRAL,
    "gemma": _LLAMA.but(absent={"tied_embeddings": True}),
    "gemma2": _GEMMA.but(full_every=2),
    "gemma3_text": _GEMMA_3,
    "nemotron": _LLAMA.but(fixed={"gated_ffn": False}),
    "gpt2": _GPT.but(
        keys={
            "layers": ("n_layer",),
            "hidden_size": ("n_embd",),
            "heads": ("n_head",),
            "ffn_size": ("n_inner",),
            "learned_positions": ("n_positions",),
        },
        ffn_multiple=4,
    ),
    "gpt_neox": _GPT.but(
        keys={"parallel_block": ("use_parallel_residual",)},
        fixed={"learned_positions": 0.0},
        absent={"tied_embeddings": False, "parallel_block": True},
    ),
    "opt": _GPT.but(
        keys={"ffn_size": ("ffn_dim",), "learned_positions": ("max_position_embeddings",), "biases": ("enable_bias",)},
        absent={"biases": True},
    ),
    "bloom": _GPT.but(
        keys={
            "layers": ("n_layer", "num_hidden_layers"),
            "hidden_size": ("hidden_size", "n_embed"),
            "heads": ("n_head", "num_attention_heads"),
            "ffn_size": ("n_inner",),
        },
        fixed={"learned_positions": 0.0},
        ffn_multiple=4,
    ),
    "falcon": FALCON,
    "RefinedWeb": FALCON,
    "RefinedWebModel": FALCON,
    "mpt": _GPT.but(
        keys={
            "layers": ("n_layers",),
            "hidden_size": ("d_model",),
            "heads": ("n_heads",),
            "kv_heads": ("attn_config.kv_n_heads",),
            "ffn_size": ("ffn_hidden_size",),
        },
        fixed={"learned_positions": 0.0},
        ffn_multiple=4,
    ),
    "mixtral": _MIXTRAL,
    "gpt_oss": _MIXTRAL.but(full_every=2),
    "qwen3_moe": QWEN_MOE,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
}
