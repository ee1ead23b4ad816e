"""Configurations of models with recurrent layers: counts of layers, contradictions, what is refused, an answer."""

import json

import pytest

from perfgrid.analysis.catalog_check import counted_parameters
from perfgrid.catalog import load_catalog
from perfgrid.catalog.huggingface import imported
from perfgrid.engine.errors import PerfgridError
from tests.each import each
from tests.huggingface_configs import LLAMA_8B, model_values
from tests.huggingface_hybrids import (
    EVERY_FOURTH,
    FALCON_H1,
    GRANITE,
    HYBRIDS,
    KIMI_LINEAR,
    MINIMAX_M1,
    NANO,
    NEMOTRON_H_8B,
    QWEN3_NEXT,
    QWEN35_MOE,
)
from tests.test_answers import perfgrid

CATALOG = load_catalog()
COUNTED = {  # as built from these configurations by their published code, in 1e9
    "qwen3-next-80b-a3b": 79.67,
    "qwen3.5-27b": 26.90,
    "qwen3.5-35b-a3b": 34.66,
    "qwen3.5-397b-a17b": 396.35,
    "kimi-linear-48b-a3b": 49.12,
    "minimax-m1": 456.09,
    "nemotron-3-nano-30b-a3b": 31.58,
    "nemotron-3-super-120b-a12b": 120.67,
    "nemotron-h-8b": 8.10,
    "granite-4.0-h-small": 32.21,
    "falcon-h1-34b": 33.64,
}
TEXT = QWEN35_MOE["text_config"]
KDA = KIMI_LINEAR["linear_attn_config"]


def values(config, **changes):
    stated = {k: v for k, v in {**config, **changes}.items() if v != "left out"}
    return model_values(stated, CATALOG.variables, "config.json")


@each("name", HYBRIDS)
def test_parameters_are_counted_as_the_published_code_counts_them(name):
    given = {q: v.default for q, v in CATALOG.variables.items() if v.of == "model"} | values(HYBRIDS[name])
    assert counted_parameters(given)["total_parameters"] == pytest.approx(COUNTED[name] * 1e9, abs=0.006e9)


def layers(found):
    return [found.get(q) for q in ("layers", "mixer_layers", "attention_free_layers", "ffn_free_layers")]


def test_the_kinds_of_layers_are_said_in_several_ways():
    assert layers(values(QWEN3_NEXT)) == layers(values(QWEN3_NEXT, full_attention_interval="left out"))
    assert layers(values(QWEN3_NEXT, layer_types=EVERY_FOURTH * 12)) == [48, 36, 36, None]
    assert layers(values(QWEN3_NEXT, full_attention_interval=5)) == [48, 39, 39, None]
    assert layers(values(TEXT, full_attention_interval="left out")) == [60, 45, 45, None]
    words = ["linear_attention"] * 7 + ["full_attention"]
    assert values(MINIMAX_M1, attn_type_list="left out", layer_types=words * 10) == values(MINIMAX_M1)
    assert layers(values(NANO)) == [26, 23, 20, 3]
    blocks = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    listed = [blocks[letter] for letter in NANO["hybrid_override_pattern"]]
    assert values(NANO, hybrid_override_pattern="left out", layers_block_type=listed) == values(NANO)
    newer = {"hybrid_override_pattern": "left out", "num_hidden_layers": "left out", "layers_block_type": listed}
    assert values(NANO, **newer) == values(NANO)
    assert layers(values(FALCON_H1)) == [72, 72, 0, None]


def test_a_pattern_may_have_dense_blocks_before_experts():
    some = values(NANO, hybrid_override_pattern="M-M-M*-" + "ME" * 22 + "*")
    assert (some["dense_layers"], some["experts"], some["ffn_free_layers"]) == (3, 128, 1)
    assert "experts" not in values(NEMOTRON_H_8B, n_routed_experts=8)


def test_without_recurrent_layers_there_is_no_mixer():
    dense = values(GRANITE, layer_types=["attention"] * 40, num_local_experts=0, num_experts_per_tok=0)
    assert not {"mixer", "mixer_layers", "mixer_heads", "experts", "shared_experts"} & set(dense)
    assert dense["ffn_size"] == 1536


def test_widths_and_states_of_mixers():
    assert values(FALCON_H1, mamba_d_head="auto") == values(FALCON_H1)
    assert values(GRANITE, mamba_d_head="auto") == values(GRANITE)
    assert values(FALCON_H1, mamba_d_ssm=None, mamba_d_head="left out")["mixer_value_dim"] == 320
    assert values(NANO, mamba_ssm_cache_dtype="bfloat16")["state_element_size"] == 2
    assert values(TEXT, mamba_ssm_dtype="float32")["state_element_size"] == 4
    assert values(MINIMAX_M1, block_size=128)["mixer_chunk"] == 128
    assert values(TEXT, attn_output_gate=False)["attention_gate"] is False


@each(
    "config, changes, parts",
    [
        (QWEN3_NEXT, {"layer_types": EVERY_FOURTH}, ["contradicts itself", "48 layers", "layer_types lists 4"]),
        (QWEN3_NEXT, {"layer_types": EVERY_FOURTH * 12, "full_attention_interval": 6}, ["name different layers"]),
        (QWEN3_NEXT, {"layer_types": ["mamba"] * 48}, ["layer_types holds 'mamba'", "supported are", "linear_att"]),
        (QWEN3_NEXT, {"full_attention_interval": 0}, ["full_attention_interval must be a whole number", "0"]),
        (QWEN3_NEXT, {"full_attention_interval": 1}, ["output gate", "without recurrent layers"]),
        (QWEN3_NEXT, {"linear_num_value_heads": "left out"}, ["lacks linear_num_value_heads"]),
        (QWEN3_NEXT, {"linear_num_value_heads": 0}, ["linear_num_value_heads = 0", "recurrent"]),
        (QWEN3_NEXT, {"linear_num_key_heads": 12}, ["12 key heads", "do not divide 32 mixer heads"]),
        (QWEN3_NEXT, {"linear_gate": 3}, ["linear_gate", "linear attention", "not supported"]),
        (TEXT, {"mlp_only_layers": [0]}, ["mlp_only_layers = 0", "only []"]),
        (TEXT, {"mamba_ssm_dtype": "float8"}, ["mamba_ssm_dtype = 'float8'", "only float32"]),
        (KIMI_LINEAR, {"linear_attn_config": {**KDA, "kda_layers": [1, 2]}}, ["kda_layers", "each of 27 layers"]),
        (KIMI_LINEAR, {"linear_attn_config": {**KDA, "kda_layers": 20}}, ["kda_layers must list", "20"]),
        (KIMI_LINEAR, {"linear_attn_config": None}, ["lacks", "linear_attn_config.kda_layers", "kinds of the layers"]),
        (KIMI_LINEAR, {"routed_expert_hidden_size": 1024}, ["experts of a latent width", "not supported"]),
        (KIMI_LINEAR, {"model_type": "kimi_k3"}, ["Kimi delta attention", "not supported"]),
        (MINIMAX_M1, {"attn_type_list": [0, 1, 2, 0] * 20}, ["attn_type_list holds 2"]),
        (MINIMAX_M1, {"attn_type_list": None}, ["lacks layer_types or attn_type_list"]),
        (MINIMAX_M1, {"sliding_window": 4096}, ["sliding_window = 4096", "not supported"]),
        (MINIMAX_M1, {"shared_intermediate_size": 1024}, ["shared_intermediate_size = 1024", "only 0"]),
        (NANO, {"hybrid_override_pattern": "ME*"}, ["52 blocks", "hybrid_override_pattern lists 3"]),
        (NANO, {"hybrid_override_pattern": "MG" * 26}, ["hybrid_override_pattern holds 'G'"]),
        (NANO, {"hybrid_override_pattern": "ME" * 25 + "M-"}, ["only dense layers before sparse"]),
        (NANO, {"hybrid_override_pattern": "M" * 40 + "E" * 12}, ["half of the blocks"]),
        (NANO, {"n_routed_experts": "left out"}, ["hybrid_override_pattern has experts", "n_routed_experts"]),
        (NANO, {"moe_shared_expert_intermediate_size": 2000}, ["= 2000", "multiples", "1856"]),
        (GRANITE, {"mamba_n_heads": 96}, ["96 mixer heads of 64 are not 8192 wide"]),
        (FALCON_H1, {"mamba_d_ssm": 5120}, ["32 mixer heads of 128 are not 5120 wide"]),
        (LLAMA_8B, {"model_type": "falcon_mamba"}, ["state-space layers", "not supported"]),
    ],
)
def test_mistakes_are_reported_by_key(config, changes, parts):
    with pytest.raises(PerfgridError) as caught:
        values(config, **changes)
    sentence = str(caught.value)
    assert sentence.startswith("config.json")
    assert "\n" not in sentence
    for part in parts:
        assert part in sentence, sentence


def test_a_key_that_is_not_understood_is_listed():
    config = {**KIMI_LINEAR, "linear_attn_config": {**KDA, "lower_bound": -5.0}, "mine": 3}
    assert imported(config, CATALOG.variables, "config.json").keys.unknown == ("linear_attn_config.lower_bound", "mine")


@each("name", HYBRIDS)
def test_whatever_a_key_holds_an_entry_or_one_sentence_comes_out(name):
    whole, sentences = HYBRIDS[name].get("text_config", HYBRIDS[name]), []
    nested = {k: {**whole[k]} for k in whole if isinstance(whole[k], dict)}
    for held in (None, "x", -1, 0, 1e30, [], ["x", []], {}, {"a": 1}, [1, True], True, float("inf")):
        changed = [{key: held} for key in whole]
        changed += [{key: {**inner, part: held}} for key, inner in nested.items() for part in inner]
        for change in changed:
            try:
                assert values(whole, **change)["layers"]
            except PerfgridError as error:
                sentences.append(str(error))
    assert all(s.startswith("config.json") and "\n" not in s for s in sentences)
    assert len(sentences) > len(whole)


def test_a_configuration_is_served_as_the_entry_of_the_catalog(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(NANO))
    asked = ("--on", "h100-sxm-80gb", "--devices", 8, "--json")
    own = perfgrid("serve", folder / "config.json", *asked, folder=tmp_path)
    assert own.returncode == 0, own.stderr
    known = perfgrid("serve", "nemotron-3-nano-30b-a3b", *asked, folder=tmp_path)
    mine, entry = (json.loads(done.stdout)["designs"] for done in (own, known))
    assert mine == entry
