"""Keys and values that a token leaves behind, and states that a sequence keeps, beside published figures and code.

Published: table 1 of "Insights into DeepSeek-V3" (arXiv:2505.09343), section 2.1.4 of DeepSeek-V2 (arXiv:2405.04434),
table 1 of Jamba (arXiv:2403.19887), whose GB are GiB, section 2 of Mistral 7B (arXiv:2310.06825), and the fact sheets
of S. Raschka's LLM Architecture Gallery (sebastianraschka.com/llm-architecture-gallery). All others are derived:
products of the numbers in the published configurations, as the caches of vLLM and Transformers have them.
"""

from math import prod

import numpy as np
import pytest

from tests.mixers.cases import PUBLISHED, design

from .designs import evaluate, value

KIB, GIB = 2**10, 2**30

# ---- bytes of a token in 16 bits, windows not counted ---------------------------------------------------------------

INSIGHTS = {"deepseek-v3": 70_272, "qwen-2.5-72b": 327_680, "llama-3.1-405b": 516_096}
GALLERY = {
    "llama-3.1-8b": 128 * KIB,  # of Llama 3 8B
    "llama-3.2-1b": 32 * KIB,
    "olmo-2-7b": 512 * KIB,
    "deepseek-v3": 68.625 * KIB,  # printed as 68.6
}
DEEPSEEK_V2 = {"deepseek-v2": 4.5 * 128 * 60 * 2}  # 9/2 of a head's width in every layer
DERIVED = {  # layers, key-value heads, width of a head: keys and values of 2 bytes
    "llama-3.1-70b": 80 * 8 * 128 * 4,
    "mixtral-8x22b": 56 * 8 * 128 * 4,
    "mistral-large-2": 88 * 8 * 128 * 4,
    "falcon-180b": 80 * 8 * 64 * 4,
    "command-r": 40 * 64 * 128 * 4,  # no shared heads
    "command-r-plus": 64 * 8 * 128 * 4,
    "phi-4": 40 * 10 * 128 * 4,
    "starcoder2-15b": 40 * 4 * 128 * 4,
    "qwen3-8b": 36 * 8 * 128 * 4,
    "qwen3-32b": 64 * 8 * 128 * 4,
    "qwen3-235b-a22b": 94 * 4 * 128 * 4,
    "glm-4.5": 92 * 8 * 128 * 4,
    "glm-4.6": 92 * 8 * 128 * 4,
    "minimax-m2": 62 * 8 * 128 * 4,
    "ernie-4.5-300b-a47b": 54 * 8 * 128 * 4,
    "hunyuan-a13b": 32 * 8 * 128 * 4,
    "dots.llm1": 62 * 32 * 128 * 4,
    "gpt-oss-120b": 36 * 8 * 64 * 4,
    "deepseek-v2-lite": 27 * (512 + 64) * 2,  # a latent and one rotary key
    "kimi-k2": 61 * (512 + 64) * 2,
    "mistral-large-3": 61 * (512 + 64) * 2,
}
TOKENS = [*INSIGHTS.items(), *GALLERY.items(), *DEEPSEEK_V2.items(), *DERIVED.items()]


@pytest.mark.parametrize(("model", "size"), TOKENS)
def test_bytes_of_a_token(model, size):
    assert value("key_value_size_per_token", model=model) == pytest.approx(size, rel=1e-12)
    assert value("key_value_size_per_token", model=model, kv_precision="fp8") == pytest.approx(size / 2, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "ranks", "share"),
    [("llama-3.1-70b", 8, 1 / 8), ("qwen3-235b-a22b", 8, 1 / 4), ("deepseek-v3", 8, 1)],
)
def test_bytes_of_a_token_on_a_rank(model, ranks, share):
    """Ranks split the heads, hold copies where they outnumber them, and all hold a latent (vLLM)."""
    whole = value("key_value_size_per_token", model=model)
    tokens = {"prompt_tokens": 4096.0, "output_tokens": 1024.0, "tp": float(ranks)}
    kept = value("sequence_cache_memory", model=model, software="vllm", **tokens)
    assert kept == pytest.approx(5120 * whole * share, rel=5e-3)  # but for the page of the last token


# ---- bytes of a sequence --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "size"), [("llama-2-7b", 128), ("mixtral-8x7b", 32)])
def test_bytes_of_256_thousand_tokens(model, size):
    """Jamba, table 1: GiB in 16 bits."""
    assert value("rank_prompt_cache", model=model, prompt_tokens=256.0 * KIB) == size * GIB


def test_a_window_of_4096_keeps_an_eighth_of_32_thousand_tokens():
    """Mistral 7B, section 2."""
    given = {"model": "mistral-7b-v0.1", "prompt_tokens": 32.0 * KIB}
    assert value("rank_prompt_cache", **given, window=0.0) == 8 * value("rank_prompt_cache", **given)


LONG = 131_072


@pytest.mark.parametrize(
    ("model", "size"),
    [  # layers with a window and others, key-value heads, width of a head
        ("gpt-oss-120b", (18 * 128 + 18 * LONG) * 8 * 64 * 4),
        ("gpt-oss-20b", (12 * 128 + 12 * LONG) * 8 * 64 * 4),
        ("gemma-2-27b", (23 * 4096 + 23 * LONG) * 16 * 128 * 4),
        ("gemma-3-1b", (22 * 512 + 4 * LONG) * 1 * 256 * 4),
        ("gemma-3-27b", (52 * 1024 + 10 * LONG) * 16 * 128 * 4),
        ("olmo-3-32b", (48 * 4096 + 16 * LONG) * 8 * 128 * 4),
        ("exaone-4-32b", (48 * 4096 + 16 * LONG) * 8 * 128 * 4),
        ("starcoder2-15b", 40 * 4096 * 4 * 128 * 4),
        ("llama-4-scout", (36 * 8192 + 12 * LONG) * 8 * 128 * 4),
    ],
)
def test_bytes_of_windows(model, size):
    """Derived from the lists of layers: a layer with a window keeps its last tokens."""
    assert value("rank_prompt_cache", model=model, prompt_tokens=LONG) == pytest.approx(size, rel=1e-9)


def test_decoding_in_chunks_reads_those_of_the_own_chunk():
    """Position by position; a sequence never keeps more than a chunk in three of four layers."""
    given = {"model": "llama-4-scout", "prompt_tokens": 10_000.0, "output_tokens": 9_000.0}
    found = evaluate("attended_context", "cached_tokens", **given)
    read, kept = (np.reshape(found[name], (-1, 2))[:, 1] for name in ("attended_context", "cached_tokens"))  # by mask
    expected = np.mean([(p - 1) % 8192 + 1 for p in range(10_001, 19_000)])
    assert read == pytest.approx(np.full(len(read), expected))
    assert kept == 8192


# ---- hybrids: a layer of each kind, times their number --------------------------------------------------------------

LAYERS = PUBLISHED | {
    "qwen3.5-397b": PUBLISHED["qwen3.5-35b"] | {"hidden_size": 4096, "mixer_heads": 64},
    "nemotron-3-nano": PUBLISHED["nemotron-3-super"] | {"hidden_size": 2688, "mixer_heads": 64},
    "minimax-01 full": PUBLISHED["llama-4-scout"] | {"mixer": "full_attention", "hidden_size": 6144, "mixer_heads": 64},
    "llama-4-scout full": PUBLISHED["llama-4-scout"] | {"mixer": "full_attention"},
    "jamba full": PUBLISHED["llama-4-scout"] | {"mixer": "full_attention", "hidden_size": 4096, "mixer_heads": 32},
    "glm-5": PUBLISHED["deepseek-v3.2"] | {"hidden_size": 6144, "mixer_heads": 64, "mixer_key_heads": 64},
}
STATES = [  # layer, how many; tensors of vLLM's layers/mamba: the state with its bytes, the convolution in 16 bits
    ("qwen3.5-35b", 30, ((32, 128, 128), 4), (3, 2 * 16 * 128 + 32 * 128)),
    ("qwen3.5-35b", 36, ((32, 128, 128), 4), (3, 2 * 16 * 128 + 32 * 128)),  # the layers of Qwen3-Next 80B
    ("qwen3.5-397b", 45, ((64, 128, 128), 4), (3, 2 * 16 * 128 + 64 * 128)),
    ("kimi-linear", 20, ((32, 128, 128), 4), (3, 3 * 32 * 128)),
    ("kimi-k3", 69, ((96, 128, 128), 4), (3, 3 * 96 * 128)),
    ("nemotron-3-nano", 23, ((64, 64, 128), 4), (3, 64 * 64 + 2 * 8 * 128)),
    ("nemotron-3-super", 40, ((128, 64, 128), 4), (3, 128 * 64 + 2 * 8 * 128)),
    ("minimax-01", 70, ((64, 128, 128), 2), (0,)),
]


@pytest.mark.parametrize(("layer", "count", "state", "convolution"), STATES)
def test_states_of_a_sequence(layer, count, state, convolution):
    """Of all recurrent layers, at any length."""
    shape, size = state
    for tokens in (1, LONG):
        q = design(sequence_length=tokens, **LAYERS[layer])
        kept = float(np.sum(q["mixer_memory"])) * count
        assert kept == count * (prod(shape) * size + prod(convolution) * 2)


@pytest.mark.parametrize(
    ("layer", "count", "size"),
    [
        ("qwen3.5-35b full", 10, 20 * KIB),  # 2 heads of 256 in 10 of 40 layers
        ("qwen3.5-35b full", 12, 24 * KIB),  # Qwen3-Next 80B: 12 of 48
        ("minimax-01 full", 10, 40 * KIB),  # 8 heads of 128 in 10 of 80
        ("deepseek-v3.2", 61, 61 * (656 + 132)),  # 8 bits: vLLM's flashmla_sparse, the indexer of the inference code
        ("glm-5", 78, 78 * (656 + 132)),
    ],
)
def test_bytes_of_a_token_in_layers_of_one_kind(layer, count, size):
    q = design(sequence_length=1, **LAYERS[layer])
    assert float(np.sum(q["mixer_memory"])) * count == size


def test_bytes_of_256_thousand_tokens_of_jamba():
    """Its table 1: 4 GiB, of keys and values in 4 of 32 layers."""
    layer = design(sequence_length=256 * KIB, **LAYERS["jamba full"])
    assert 4 * layer["mixer_memory"] == 4 * GIB


def test_chunks_of_llama_4():
    """Scout: 36 of 48 layers keep no more than 8192 tokens."""
    chunked = design(sequence_length=LONG, mixer_span=8192, **LAYERS["llama-4-scout"])["mixer_memory"]
    full = design(sequence_length=LONG, **LAYERS["llama-4-scout full"])["mixer_memory"]
    assert 36 * chunked + 12 * full == (36 * 8192 + 12 * LONG) * 8 * 128 * 4
