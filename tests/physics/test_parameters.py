"""Parameters against published checkpoints and against an enumeration of the weight tensors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfgrid.analysis.catalog_check import counted_parameters
from perfgrid.catalog import load_catalog
from perfgrid.engine.graph.registry import Registry
from perfgrid.formulas.transformer import parameters

MODELS = load_catalog().tables["model"]
SMALL = {  # of no real model; what each test does not set is absent
    "layers": 5.0,
    "hidden_size": 96.0,
    "heads": 8.0,
    "kv_heads": 2.0,
    "head_dim": 16.0,
    "ffn_size": 320.0,
    "vocab_size": 1000.0,
    "learned_positions": 64.0,
    "gated_ffn": True,
    "tied_embeddings": False,
    "biases": False,
    "experts": 0.0,
    "experts_per_token": 0.0,
    "expert_ffn_size": 0.0,
    "shared_experts": 0.0,
    "expert_latent_size": 0.0,
    "dense_layers": 0.0,
    "q_lora_rank": 0.0,
    "kv_lora_rank": 0.0,
    "qk_nope_head_dim": 0.0,
    "qk_rope_head_dim": 0.0,
    "v_head_dim": 0.0,
    "mixer": "none",
    "indexer": "none",
    "mixer_layers": 0.0,
    "attention_free_layers": 0.0,
    "ffn_free_layers": 0.0,
    "attention_gate": 0.0,
    "shared_key_layers": 0.0,
    "layer_embedding_size": 0.0,
}
MOE = {"experts": 6.0, "experts_per_token": 2.0, "expert_ffn_size": 48.0, "shared_experts": 1.0, "dense_layers": 2.0}
MLA = {"kv_lora_rank": 40.0, "qk_nope_head_dim": 16.0, "qk_rope_head_dim": 8.0, "v_head_dim": 24.0}


@pytest.mark.parametrize(
    ("model", "stored"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-3.1-405b", 405_853_388_800),
        ("bloom-176b", 176_247_271_424),
        ("gpt-neox-20b", 20_554_567_680),
        ("mistral-7b-v0.1", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
    ],
)
def test_total_parameters_are_those_of_the_published_checkpoints(model, stored):
    """Exactly; BLOOM alone normalises its embedding too."""
    extra = 2 * 14336 if model == "bloom-176b" else 0
    assert counted_parameters(MODELS[model].values)["total_parameters"] + extra == stored


@pytest.mark.parametrize(
    ("model", "stored"),
    [
        ("gemma-2-27b", 27_227_128_320),  # four norms per layer instead of two
        ("qwen3-30b-a3b", 30_532_122_624),  # norms of query and key heads
        ("qwen3-235b-a22b", 235_093_634_560),
        ("kimi-k2", 1_026_408_232_448),  # biases of the router
    ],
)
def test_what_is_not_counted_is_tiny(model, stored):
    assert counted_parameters(MODELS[model].values)["total_parameters"] == pytest.approx(stored, rel=2e-5)


def test_parts_of_published_models():
    """Shares that the reports of DeepSeek-V2 and gpt-oss state: elements cached per token, attention and experts."""
    deepseek = counted_parameters(MODELS["deepseek-v2"].values)
    assert deepseek["key_value_cache_width"] == 4.5 * 128  # its table 1: as of 2.25 groups of key and value heads
    oss = MODELS["gpt-oss-120b"].values
    v = {k: x for k, x in oss.items() if isinstance(x, float)}
    widths = (v["heads"] * v["head_dim"], v["kv_heads"] * v["head_dim"])
    attention = parameters.attention_matrix_parameters(v["hidden_size"], v["heads"], *widths, 1, 0, 0, 0, 0, 0, False)
    expert = parameters.feed_forward_weights(v["hidden_size"], v["expert_ffn_size"], 2.0)
    assert v["layers"] * attention == pytest.approx(0.96e9, rel=0.01)
    assert v["layers"] * v["experts"] * expert == pytest.approx(114.71e9, rel=0.001)
    assert 2 * v["vocab_size"] * v["hidden_size"] == pytest.approx(1.16e9, rel=0.01)


SHARED = {"shared_key_layers": 2.0, "layer_embedding_size": 12.0}


def tensors_of_attention(v, layer):
    """Shapes of the matrices of one attention block; the last layers may use keys and values of earlier ones."""
    hidden, heads = v["hidden_size"], v["heads"]
    if not v["kv_lora_rank"]:
        wide, narrow = heads * v["head_dim"], v["kv_heads"] * v["head_dim"]
        keys = [] if layer >= v["layers"] - v["shared_key_layers"] else 2 * [(hidden, narrow)]
        return [(hidden, wide), *keys, (wide, hidden)]
    query_head = v["qk_nope_head_dim"] + v["qk_rope_head_dim"]
    if v["q_lora_rank"]:
        queries = [(hidden, v["q_lora_rank"]), (v["q_lora_rank"], heads * query_head), (1, v["q_lora_rank"])]
    else:
        queries = [(hidden, heads * query_head)]
    rank = v["kv_lora_rank"]
    keys = [(hidden, rank + v["qk_rope_head_dim"]), (1, rank), (rank, heads * v["qk_nope_head_dim"])]
    return [*queries, *keys, (rank, heads * v["v_head_dim"]), (heads * v["v_head_dim"], hidden)]


def tensors_of_ffn(v, inner, width):
    """Shapes of the matrices of one feed-forward block of tokens of this width."""
    return [(width, inner)] * (2 if v["gated_ffn"] else 1) + [(inner, width)]


def with_biases(v, matrices):
    return matrices + ([(1, m[1]) for m in matrices] if v["biases"] else [])


def enumerated(v, experts, tables):
    """The elements of every weight tensor with so many routed experts and vocabulary tables, added up one by one."""
    norms = [(1, v["hidden_size"])] * (2 if v["biases"] else 1)
    shapes = [(v["vocab_size"], v["hidden_size"])] * tables + norms
    for layer in range(int(v["layers"])):
        shapes += with_biases(v, tensors_of_attention(v, layer)) + 2 * norms
        if own := v["layer_embedding_size"]:
            shapes += 3 * [(v["hidden_size"], own)]  # a gate, up again, and what the model's input adds to it
        if v["experts"] and layer >= v["dense_layers"]:
            latent = v["expert_latent_size"]
            shapes += [(v["hidden_size"], v["experts"]), (v["hidden_size"], latent), (latent, v["hidden_size"])]
            for expert in range(int(experts + v["shared_experts"])):
                width = latent if latent and expert < experts else v["hidden_size"]
                shapes += with_biases(v, tensors_of_ffn(v, v["expert_ffn_size"], width))
        else:
            shapes += with_biases(v, tensors_of_ffn(v, v["ffn_size"], v["hidden_size"]))
    return sum(rows * columns for rows, columns in shapes)


@pytest.mark.parametrize("attention", [{}, MLA, MLA | {"q_lora_rank": 32.0}], ids=["full", "mla", "mla+q"])
@pytest.mark.parametrize(
    "ffn",
    [{}, MOE, MOE | {"dense_layers": 0.0, "shared_experts": 0.0}, MOE | {"expert_latent_size": 24.0}],
    ids=["dense", "moe", "plain", "latent"],
)
def test_counts_against_an_enumeration_of_tensors(attention, ffn):
    model = SMALL | attention | ffn
    for gated, tied, biased in itertools.product([False, True], repeat=3):
        if biased and (attention or model["expert_latent_size"]):
            continue  # latent attention and experts on latents have no biases
        v = model | {"gated_ffn": gated, "tied_embeddings": tied, "biases": biased}
        found = counted_parameters(v)
        positions = v["learned_positions"] * v["hidden_size"]
        assert found["total_parameters"] == enumerated(v, v["experts"], 1 if tied else 2) + positions
        assert found["parameters_per_token"] == enumerated(v, v["experts_per_token"], 1)
        cached = v["kv_lora_rank"] + v["qk_rope_head_dim"] if attention else 2 * v["kv_heads"] * v["head_dim"]
        assert found["key_value_cache_width"] == cached


@pytest.mark.parametrize("tied", [False, True])
def test_shared_keys_and_embeddings_of_layers_against_an_enumeration_of_tensors(tied):
    v = SMALL | SHARED | {"tied_embeddings": tied, "learned_positions": 0.0}
    found, table = counted_parameters(v), v["vocab_size"] * v["layers"] * v["layer_embedding_size"]
    assert found["total_parameters"] == pytest.approx(enumerated(v, 0, 1 if tied else 2) + table, rel=1e-12)
    assert found["parameters_per_token"] == pytest.approx(enumerated(v, 0, 1), rel=1e-12)


def test_counts_are_differentiable_in_every_size():
    """No branch that is not taken spoils a derivative."""
    registry = Registry.collect([parameters])
    flags = ("gated_ffn", "tied_embeddings", "biases", "attention_gate", "mixer", "indexer")
    for features in ({}, MOE, MLA, SHARED, MOE | MLA | {"q_lora_rank": 32.0}):
        v = SMALL | features
        sizes = {k: jnp.asarray(x) for k, x in v.items() if k not in flags}

        def counts(sizes, v=v):
            known = {**{k: v[k] for k in flags}, **sizes, "mixer_layer_parameters": 0.0, "index_parameters": 0.0}
            for f in registry.formulas.values():
                known[f.name] = f.function(*(known[a] for a in f.arguments))
            return known["total_parameters"] + known["parameters_per_token"] + known["key_value_cache_width"]

        slopes = jax.grad(counts)(sizes)
        assert all(np.isfinite(s) for s in slopes.values())
        assert slopes["layers"] > 0
        assert slopes["hidden_size"] > 0
        assert (slopes["experts"] > 0) == ("experts" in features)
