"""Configurations of published models become catalog entries: counts, fields, and every mistake told by its key."""

import json
import tomllib
from pathlib import Path

import pytest

from perfgrid.analysis.catalog_check import counted_parameters
from perfgrid.catalog import load_catalog
from perfgrid.catalog.architectures import ARCHITECTURES
from perfgrid.catalog.huggingface import catalog_text, imported
from perfgrid.cli import main as cli
from perfgrid.engine.errors import PerfgridError
from tests.each import each
from tests.huggingface_configs import (
    CONFIGS,
    DEEPSEEK_V3,
    FALCON_180B,
    GPT_OSS,
    LLAMA_4,
    LLAMA_8B,
    MAVERICK,
    MPT_7B,
    OTHERS,
    QWEN3_MOE,
    model_values,
    sizes,
)
from tests.huggingface_configs import model_of as read_model
from tests.huggingface_hybrids import HYBRIDS, HYBRIDS_ALIKE
from tests.test_bad_input import run

CATALOG = load_catalog()
RECENT = json.loads(Path(__file__).with_name("huggingface_recent.json").read_text(encoding="utf-8"))
ENTRIES = CONFIGS | RECENT["catalog"] | HYBRIDS  # configurations of models that the catalog has
COUNTED = OTHERS | {n: tuple(pair) for n, pair in RECENT["others"].items()}  # published parameters; none where unread
MORE = RECENT["catalog"]
UNLIKE = ("glm-4.5", "minimax-m2", "ernie-4.5-21b-a3b", "hunyuan-a13b", "exaone-4-32b", "qwen1.5-moe-a2.7b", "gpt-j-6b")
RELATED = {  # read as another architecture, which is tried
    "RefinedWebModel": "falcon",  # an older name, with one key-value head
    "ministral": "mistral",
    "mimo": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "glm": "glm4",
    "granite": "llama",
    "hunyuan_v1_dense": "llama",
    "internlm2": "llama",
    "baichuan": "llama",
    "apertus": "nemotron",
    "arcee": "nemotron",
    "granitemoe": "mixtral",
    **HYBRIDS_ALIKE,
}


def loaded(tmp_path, name, config, source="huggingface2026models"):
    """The entry after writing and loading the file that an import gives."""
    path = tmp_path / "imported.toml"
    values = model_values(config, CATALOG.variables, "config.json")
    path.write_text(catalog_text(name, name, source, values, CATALOG.variables, ["a comment"]), encoding="utf-8")
    return load_catalog(path).entry("model", name)


@each("name", ENTRIES)
def test_an_import_equals_the_entry_of_the_catalog(tmp_path, name):
    """Field by field; published counts are no part of a configuration, and most of these leave out the context.

    So do they the encoder of images.
    """
    entry, known = loaded(tmp_path, f"my-{name}", ENTRIES[name]), CATALOG.entry("model", name)
    published = ("parameters", "active_parameters", "context_length", "published_context")
    published = (*published, "vision_hidden_size", "vision_layers")
    assert {q: v for q, v in entry.values.items() if q not in published} == {
        q: v for q, v in known.values.items() if q not in published
    }
    assert set(entry.sources.values()) == {"huggingface2026models"}


def test_an_encoder_of_images_beside_a_language_model_is_noted(tmp_path):
    """Its width, and its layers where they have the name by which SGLang asks for them."""
    language = {"text_config": ENTRIES["llama-3.1-8b"]}
    for encoder, layers in (
        ({"hidden_size": 1152, "depth": 27}, 24),
        ({"hidden_size": 1408, "num_hidden_layers": 34}, 34),
    ):
        seeing = loaded(tmp_path, f"seeing-{layers}", language | {"vision_config": encoder}).values
        assert (seeing["vision_hidden_size"], seeing["vision_layers"]) == (encoder["hidden_size"], layers)
    assert loaded(tmp_path, "blind", language).values["vision_hidden_size"] == 0


@each("name", [name for name, (_, published) in COUNTED.items() if published])
def test_an_import_counts_the_published_parameters(tmp_path, name):
    config, published = COUNTED[name]
    entry = loaded(tmp_path, name, config)
    assert counted_parameters(entry.values)["total_parameters"] == pytest.approx(published, rel=0.01)


def model_of(config):
    return next((config[key] for key in ("text_config",) if key in config), config)


def test_every_architecture_is_tried():
    """With the numbers of a published model, or as one that is."""
    tried = [model_of(c) for c in (*ENTRIES.values(), *(config for config, _ in COUNTED.values()))]
    kinds = {c["model_type"] for c in tried}
    assert kinds | set(RELATED) == set(ARCHITECTURES)
    assert not kinds & set(RELATED)
    assert len(ARCHITECTURES) >= 45


@each("kind", RELATED)
def test_a_related_architecture_is_read_alike(kind):
    """Key by key, but for what sets it apart."""
    tried = [model_of(c) for c in (*ENTRIES.values(), *(config for config, _ in COUNTED.values()))]
    config = next(c for c in tried if c["model_type"] == RELATED[kind])
    apart = {
        "qwen3_vl_text": {"window": 0.0},
        "mimo": {"mtp_layers": 0.0},
    }
    found = values(config, model_type=kind)
    assert found == values(config) | apart.get(kind, {})


def test_experts_in_every_nth_layer():
    """By a period, by the layers that have experts, by those that have none: all say the same."""
    second = values(MAVERICK)
    assert (second["dense_layers"], second["expert_layer_step"]) == (24, 2)
    assert values(MAVERICK, moe_layers=list(range(1, 48, 2))) == second
    assert values(LLAMA_4, num_local_experts=128, moe_layers=list(range(1, 48, 2))) == second
    fourth = values(MAVERICK, moe_layers=list(range(7, 48, 4)))  # after four dense layers
    assert (fourth["dense_layers"], fourth["expert_layer_step"]) == (37, 4)
    by_step, by_list = (
        values(QWEN3_MOE, decoder_sparse_step=2),
        values(QWEN3_MOE, mlp_only_layers=list(range(0, 48, 2))),
    )
    assert by_step == by_list
    assert (by_step["dense_layers"], by_step["expert_layer_step"]) == (24, 2)
    assert values(LLAMA_4, no_rope_layers=[1, 1, 1, 0] * 12) == values(LLAMA_4)
    everywhere = values(LLAMA_4, no_rope_layers=[0] * 48)
    assert (everywhere["window"], "chunked_window" in everywhere) == (0, False)


def values(config, **changes):
    stated = {k: v for k, v in {**config, **changes}.items() if v != "left out"}
    return model_values(stated, CATALOG.variables, "config.json")


def test_the_context_is_that_of_the_positions():
    assert values(CONFIGS["llama-3.1-8b"], max_position_embeddings=131072)["context_length"] == 131072
    assert values(OTHERS["gpt2-xl"][0])["context_length"] == values(OTHERS["gpt2-xl"][0])["learned_positions"] == 1024
    assert "context_length" not in values(CONFIGS["llama-3.1-8b"])


def test_windows_and_patterns():
    qwen = {"model_type": "qwen2", **sizes(28, 3584, 28, 4, 18944, 152064), "sliding_window": 4096}
    assert values(qwen)["window"] == 0
    on = values(qwen, use_sliding_window=True, max_window_layers=21)
    assert (on["window"], on["window_layers"]) == (4096, 7)
    gemma = CONFIGS["gemma-2-27b"]
    listed = values(gemma, layer_types=["sliding_attention"] * 40 + ["full_attention"] * 6)
    assert listed["window_layers"] == 40
    assert values(gemma, layer_types=["full_attention"] * 46)["window"] == 0
    gemma3 = CONFIGS["gemma-3-27b"]["text_config"]
    assert values(gemma3, sliding_window_pattern=2)["window_layers"] == 31
    assert values(GPT_OSS, layer_types="left out")["window_layers"] == 12
    command = MORE["command-a"]
    assert values(command, layer_types="left out")["window_layers"] == 48
    assert values({**command, "num_hidden_layers": 40}, layer_types="left out")["window_layers"] == 30
    exaone = MORE["exaone-4-32b"]
    assert values(exaone, sliding_window_pattern=4)["window_layers"] == 48
    assert values(exaone, sliding_window_pattern="LG")["window_layers"] == 32
    assert values(exaone, sliding_window=None)["window"] == 0
    own = {**LLAMA_8B, "model_type": "own", "sliding_window": 512}
    assert values(own)["window_layers"] == 32
    assert values(own, use_sliding_window=False)["window"] == 0


def test_what_an_expert_block_says_by_other_keys():
    glm = MORE["glm-4.5"]
    assert values(glm, mlp_layer_types=["dense"] * 2 + ["sparse"] * 90)["dense_layers"] == 2
    assert values(DEEPSEEK_V3, topk_method="greedy")["groups"] == 0
    assert values(DEEPSEEK_V3, moe_layer_freq=[1] * 61)["experts"] == 256
    assert values(MORE["minimax-m2"])["mtp_layers"] == 3
    assert values(MORE["minimax-m2"], use_mtp=False)["mtp_layers"] == 0
    own = values(MORE["ling-lite"], model_type="own")
    assert own == values(MORE["ling-lite"])
    assert values(DEEPSEEK_V3, model_type="own", head_dim=128) == values(DEEPSEEK_V3)
    assert "experts" not in values(LLAMA_8B, model_type="own")


def test_what_became_of_every_key():
    stated = {**MORE["glm-4.5"], "bos_token_id": 1, "rope_theta": 1e6, "my_own": 3, "nothing": None}
    keys = imported(stated, CATALOG.variables, "config.json").keys
    assert keys.by_row
    assert keys.unknown == ("my_own",)
    assert {"attention_bias", "use_qk_norm"} == set(keys.small)
    assert {"bos_token_id", "rope_theta", "nothing", "norm_topk_prob"} <= set(keys.no_effect)
    assert sorted((*keys.read, *keys.small, *keys.no_effect, *keys.unknown)) == sorted(stated)
    for name, config in (ENTRIES | {name: config for name, (config, _) in COUNTED.items()}).items():
        streams = ("altup_num_inputs", "laurel_rank") if name == "gemma-3n-e4b" else ()
        assert imported(config, CATALOG.variables, name).keys.unknown == streams, name
    nested = imported(MORE["kimi-k2.5"], CATALOG.variables, "config.json")
    assert (nested.kind, nested.towers) == ("kimi_k2", ("vision_config",))


def test_keys_of_single_architectures():
    assert values(FALCON_180B, new_decoder_architecture=False)["kv_heads"] == 1
    assert values(FALCON_180B, new_decoder_architecture=False, multi_query=False)["kv_heads"] == 232
    assert values(MPT_7B, attn_config={"alibi": False})["learned_positions"] == 2048
    assert values(MPT_7B, attn_config={"alibi": True, "attn_type": "multiquery_attention"})["kv_heads"] == 1
    assert values(MPT_7B, attn_config={"alibi": True, "kv_n_heads": 8})["kv_heads"] == 8
    assert values(MPT_7B, no_bias=False)["biases"] is True
    assert values(QWEN3_MOE, mlp_only_layers=[0, 1])["dense_layers"] == 2
    assert values(LLAMA_8B, num_key_value_heads="left out")["kv_heads"] == 32
    assert values(LLAMA_8B, attention_dropout=0.1)["dropout"] is True


@each(
    "config, changes, parts",
    [
        (LLAMA_8B, {"model_type": "left out"}, ["lacks model_type"]),
        (LLAMA_8B, {"model_type": ["llama"]}, ["model_type ['llama']"]),
        (LLAMA_8B, {"model_type": "t5", "is_encoder_decoder": True}, ["is_encoder_decoder = True", "not supported"]),
        (LLAMA_8B, {"model_type": "own", "vocab_size": None}, ["lacks vocab_size or padded_vocab_size", "own"]),
        (LLAMA_8B, {"model_type": "own", "mamba_d_state": 128}, ["mamba_d_state", "state-space", "not supported"]),
        (LLAMA_8B, {"model_type": "own", "num_experts": 8}, ["lacks num_experts_per_tok"]),
        (LLAMA_8B, {"model_type": "jamba", "hidden_size": None}, ["'jamba' has state-space layers", "not supported"]),
        (LLAMA_8B, {"hidden_size": "left out"}, ["lacks hidden_size", "llama"]),
        (LLAMA_8B, {"vocab_size": None}, ["lacks vocab_size"]),
        (LLAMA_8B, {"hidden_size": "wide"}, ["config.json, hidden_size", "'wide'"]),
        (LLAMA_8B, {"hidden_size": "4096"}, ["config.json, hidden_size", "number", "'4096'"]),
        (LLAMA_8B, {"tie_word_embeddings": 1}, ["tie_word_embeddings", "true or false", "1"]),
        (LLAMA_8B, {"hidden_size": 4096.5}, ["hidden_size", "whole number", "4096.5"]),
        (LLAMA_8B, {"hidden_size": -1}, ["hidden_size", "> 0", "-1"]),
        (LLAMA_8B, {"num_hidden_layers": True}, ["num_hidden_layers", "True"]),
        (LLAMA_8B, {"num_hidden_layers": float("nan")}, ["num_hidden_layers", "finite"]),
        (LLAMA_8B, {"num_hidden_layers": 1e12}, ["num_hidden_layers", "<= 10000"]),
        (LLAMA_8B, {"tie_word_embeddings": "no"}, ["tie_word_embeddings", "flag", "'no'"]),
        (LLAMA_8B, {"attention_dropout": "much"}, ["attention_dropout", "'much'"]),
        (LLAMA_8B, {"num_key_value_heads": 5}, ["contradicts itself", "5 key-value heads", "32 heads"]),
        (LLAMA_8B, {"num_attention_heads": 24, "num_key_value_heads": 24}, ["head_dim", "24 heads", "4096"]),
        (LLAMA_8B, {"text_config": {"hidden_size": 3}}, ["config.json, text_config lacks model_type"]),
        (FALCON_180B, {"n_head": 128}, ["num_attention_heads = 232", "n_head = 128"]),
        (FALCON_180B, {"multi_query": 1, "new_decoder_architecture": False}, ["multi_query", "true or false"]),
        (MPT_7B, {"d_model": "left out"}, ["lacks d_model", "mpt"]),
        (CONFIGS["opt-175b"], {"max_position_embeddings": None}, ["lacks max_position_embeddings", "opt"]),
        (MPT_7B, {"expansion_ratio": 0.3}, ["ffn_size", "whole number"]),
        (CONFIGS["opt-175b"], {"word_embed_proj_dim": 512}, ["word_embed_proj_dim = 512", "12288"]),
        (GPT_OSS, {"layer_types": ["full_attention"]}, ["24 layers", "layer_types lists 1"]),
        (GPT_OSS, {"layer_types": ["linear_attention"] * 24}, ["'linear_attention'", "not supported"]),
        (GPT_OSS, {"sliding_window": None}, ["layer_types has windows", "sliding_window"]),
        (GPT_OSS, {"experts_per_token": 2}, ["num_experts_per_tok = 4", "experts_per_token = 2"]),
        (GPT_OSS, {"num_local_experts": "left out"}, ["lacks num_local_experts"]),
        (GPT_OSS, {"num_local_experts": 2}, ["num_experts_per_tok = 4 exceeds num_local_experts = 2"]),
        (QWEN3_MOE, {"decoder_sparse_step": 5}, ["decoder_sparse_step is not supported", "every n-th layer", "last"]),
        (QWEN3_MOE, {"mlp_only_layers": 3}, ["mlp_only_layers must list", "found 3"]),
        (QWEN3_MOE, {"mlp_only_layers": [3]}, ["mlp_only_layers is not supported", "every n-th layer"]),
        (QWEN3_MOE, {"mlp_only_layers": [48]}, ["mlp_only_layers = [48]", "layers of 48 once"]),
        (LLAMA_4, {"moe_layers": [0, 1, 3]}, ["moe_layers is not supported", "every n-th layer"]),
        (
            LLAMA_4,
            {"attention_chunk_size": None},
            ["no_rope_layer_interval has windows, attention_chunk_size has none"],
        ),
        (LLAMA_4, {"no_rope_layers": [1, 0]}, ["48 layers", "no_rope_layers lists 2"]),
        (DEEPSEEK_V3, {"kv_lora_rank": "left out"}, ["lacks kv_lora_rank", "deepseek_v3"]),
        (DEEPSEEK_V3, {"first_k_dense_replace": 62}, ["first_k_dense_replace = 62 exceeds num_hidden_layers = 61"]),
        (DEEPSEEK_V3, {"topk_group": 9}, ["topk_group = 9 exceeds n_group = 8"]),
        (DEEPSEEK_V3, {"moe_layer_freq": 2}, ["moe_layer_freq = 2", "only 1"]),
        (DEEPSEEK_V3, {"moe_layer_freq": [0, 1, 1]}, ["moe_layer_freq differs between layers"]),
        (DEEPSEEK_V3, {"index_topk": 2048}, ["index_topk", "indexer", "not supported"]),
        (
            MORE["glm-4.5"],
            {"mlp_layer_types": ["sparse"] * 91 + ["dense"]},
            ["mlp_layer_types is not supported", "the last one"],
        ),
        (MORE["minimax-m2"], {"attn_type_list": [1, 0] * 31}, ["attn_type_list differs between layers"]),
        (MORE["minimax-m2"], {"attn_type_list": [0] * 62}, ["attn_type_list = 0", "only 1"]),
        (MORE["minimax-m2"], {"shared_intermediate_size": 1536}, ["shared_intermediate_size = 1536", "only 0"]),
        (MORE["ernie-4.5-21b-a3b"], {"moe_layer_end_index": 20}, ["moe_layer_end_index = 20", "last layer"]),
        (MORE["ernie-4.5-21b-a3b"], {"moe_layer_interval": 3}, ["moe_layer_interval is not", "the last one"]),
        (MORE["hunyuan-a13b"], {"moe_topk": [8, 4] * 16}, ["moe_topk differs between layers"]),
        (MORE["hunyuan-a13b"], {"use_cla": True, "cla_share_factor": 1.5}, ["cla_share_factor must be a whole", "1.5"]),
        (
            MORE["hunyuan-a13b"],
            {"moe_intermediate_size": 1536},
            ["moe_intermediate_size = 1536", "intermediate_size = 3072"],
        ),
        (
            MORE["ling-mini-2.0"],
            {"moe_shared_expert_intermediate_size": 1024},
            ["= 1024", "moe_intermediate_size = 512"],
        ),
        (MORE["qwen1.5-moe-a2.7b"], {"shared_expert_intermediate_size": 5000}, ["= 5000", "multiples", "1408"]),
        (MORE["qwen1.5-moe-a2.7b"], {"use_sliding_window": True}, ["use_sliding_window = True", "only False"]),
        (MORE["command-r"], {"use_parallel_block": False}, ["use_parallel_block = False", "only True"]),
        (MORE["command-a"], {"layer_switch": 2}, ["layer_switch = 2", "only 4"]),
        (MORE["command-a"], {"order_of_interleaved_layers": "full_first"}, ["'full_first'", "only 'local_attn_first'"]),
        (MORE["smollm3-3b"], {"use_sliding_window": True}, ["use_sliding_window = True", "only False"]),
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


@each("name", [*CONFIGS, *OTHERS, *UNLIKE])
def test_whatever_a_key_holds_an_entry_or_one_sentence_comes_out(name):
    whole = model_of(ENTRIES.get(name) or COUNTED[name][0])
    sentences = []
    for key in whole:
        for held in (None, "x", "3 GB", -1, 0, 1e30, [], ["x", []], {}, {"a": 1}, True, float("inf")):
            try:
                found = values(whole, **{key: held})
            except PerfgridError as error:
                sentences.append(str(error))
            else:
                text = catalog_text("x", "x", "y", found, CATALOG.variables)
                assert tomllib.loads(text)["x"]["layers"] == found["layers"]
    assert all(s.startswith("config.json") and "\n" not in s for s in sentences)
    assert len(sentences) > len(whole)


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def importing(monkeypatch, capsys, tmp_path):
    """Import a configuration by the command: (exit status, standard output, standard error)."""
    assert cli.app

    def call(config, *arguments):
        path = tmp_path / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
        return run(monkeypatch, capsys, "catalog", "import", path, *arguments)

    return call


def test_the_printed_entry_is_a_catalog_file(importing, tmp_path):
    status, text, _ = importing(DEEPSEEK_V3, "--name", "mine-1.0")
    assert status == 0
    assert text.splitlines()[0] == (
        "# 671,026,404,352 parameters, of which a token's forward pass multiplies 36,625,603,584"
    )
    path = tmp_path / "mine.toml"
    path.write_text(text)
    entry = load_catalog(path).entry("model", "mine-1.0")
    assert counted_parameters(entry.values)["total_parameters"] == 671_026_404_352
    assert entry.values["kv_lora_rank"] == 512


def test_a_file_is_written_whole_or_not_at_all(importing, tmp_path):
    target = tmp_path / "mine.toml"
    status, _, err = importing({**LLAMA_8B, "hidden_size": None}, "--name", "x", "-o", target)
    assert status == 2
    assert "lacks hidden_size" in err
    assert not target.exists()
    status, out, _ = importing({**LLAMA_8B, "_name_or_path": "meta-llama/Llama-3.1-8B"}, "-o", target)
    assert status == 0
    assert out.splitlines()[-1] == f"saved {target} (llama-3.1-8b)"
    assert out.splitlines()[-2] == "not understood: none"
    assert load_catalog(target).entry("model", "llama-3.1-8b").title == "llama-3.1-8b"
    before = target.read_text()
    status, _, err = importing(DEEPSEEK_V3, "--name", "x", "-o", target)
    assert status == 2
    assert "--overwrite" in err
    assert target.read_text() == before
    assert importing(DEEPSEEK_V3, "--name", "x", "-o", target, "--overwrite")[0] == 0
    assert load_catalog(target).entry("model", "x").values["experts"] == 256


@each(
    "config, arguments, parts",
    [
        ("{", ["--name", "x"], ["config.json", "not valid JSON"]),
        ("[]", ["--name", "x"], ["config.json", "one JSON object", "list"]),
        (LLAMA_8B, [], ["config.json", "--name"]),
        (LLAMA_8B, ["--name", "x", "--source", "touvron2023lama2"], ["--source", "'touvron2023llama2'"]),
        (LLAMA_8B, ["--name", "my, own"], ["--name", "'my, own'", "only letters, digits"]),
        (LLAMA_8B, ["--name", "x", "-o", "x.json"], ["x.json", ".toml"]),
    ],
)
def test_bad_imports_end_with_one_sentence(importing, config, arguments, parts):
    status, out, err = importing(config, *arguments)
    assert status == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    for part in parts:
        assert part in err


def test_an_import_as_json_and_with_an_own_source(importing, tmp_path):
    bib = tmp_path / "own.bib"
    bib.write_text("@misc{own2026, author={Me}, title={My model}, year={2026}, url={https://example.org}}")
    status, out, _ = importing(LLAMA_8B, "--name", "x", "--source", "own2026", "--catalog", bib, "--json")
    data = json.loads(out)
    assert status == 0
    assert data["source"] == "own2026"
    assert data["values"]["kv_heads"] == 8
    assert data["counted"]["total_parameters"] == 8_030_261_248
    assert data["keys"]["unknown"] == []
    assert "num_hidden_layers" in data["keys"]["read"]


def test_an_unknown_architecture_is_read_by_its_keys_and_says_so(importing, tmp_path):
    own = {**LLAMA_8B, "model_type": "lama", "attention_bias": True, "my_layers": 3}
    status, text, _ = importing(own, "--name", "x")
    assert status == 0
    said = [line for line in text.splitlines() if line.startswith("#")]
    assert any("'lama' is unknown" in line and "'llama'" in line and "three feed-forward" in line for line in said)
    assert any("below 0.1 %" in line and line.endswith("attention_bias") for line in said)
    assert any("may change the result: my_layers" in line for line in said)
    assert tomllib.loads(text)["x"]["layers"] == 32
    path = tmp_path / "config.json"
    with pytest.raises(
        PerfgridError, match="does not understand my_layers; write its entry with perfgrid catalog import"
    ):
        read_model(CATALOG, path)
    path.write_text(json.dumps({**LLAMA_8B, "model_type": "lama"}))
    with pytest.raises(PerfgridError, match="does not know model_type 'lama'"):
        read_model(CATALOG, path)
