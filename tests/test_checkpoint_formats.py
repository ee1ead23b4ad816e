"""Formats of weights as published: every method of quantisation, by part of the model.

Facts of the configurations (`huggingface_2026.json`) are from the published ``config.json`` files of the models named;
keys without effect are left out.
"""

import json
from pathlib import Path

import pytest

from perfgrid.catalog import load_catalog
from perfgrid.catalog.modules import PARTS
from perfgrid.engine.errors import PerfgridError
from tests.huggingface_configs import DEEPSEEK_V3, GPT_OSS, LLAMA_8B, QWEN3_MOE, model_values, sizes

CATALOG = load_catalog()
OF_2026 = json.loads(Path(__file__).with_name("huggingface_2026.json").read_text(encoding="utf-8"))
LLAMA_405B = {"model_type": "llama", **sizes(126, 16384, 128, 8, 53248, 128256, tie_word_embeddings=False)}
BLOCKED = 1 + 4 / 128**2  # bytes of a weight in 8 bits with a 32-bit scale for a block of 128 by 128


def published(config, quantised):
    """Bytes of a weight by part that differs from 16 bits, and the words of most weights and of the cache."""
    found = model_values({**config, "quantization_config": quantised}, CATALOG.variables, "config.json")
    parts = {part: found[quantity] for part, quantity in PARTS.items() if found.get(quantity, 2.0) != 2.0}
    words = (CATALOG.variables[name].word(found.get(name, CATALOG.variables[name].default_value)) for name in WORDS)
    return parts, *words


WORDS = ("published_precision", "published_kv_precision")


def compressed(*groups, **more):
    """A table of compressed tensors with groups of (targets, weights)."""
    held = {f"group_{i}": {"targets": targets, "weights": weights} for i, (targets, weights) in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": held, **more}


def int4(group, **more):
    return {"num_bits": 4, "type": "int", "group_size": group, "strategy": "group", "symmetric": True, **more}


def both(size):
    """The parts of a dense layer in one format."""
    return {"attention": size, "ffn": size}


KEPT_WIDE = ["lm_head", "re:.*self_attn.*"]
DYNAMIC = {"-:.*down_proj": {}, "+:.*o_proj": {"bits": 8}}
NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
OUTER = [f"model.layers.{i}.{part}" for i in range(126) for part in ("self_attn",)]  # as its makers list them
OUTER += [f"model.layers.{i}.mlp.{name}_proj" for i in (0, 125) for name in ("gate", "up", "down")]


@pytest.mark.parametrize(
    ("config", "quantised", "parts", "most", "kept"),
    [
        (LLAMA_8B, {"quant_method": "fp8"}, both(1), "fp8", "bf16"),
        (
            DEEPSEEK_V3,
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            dict.fromkeys(("attention", "ffn", "shared", "experts"), BLOCKED),
            "fp8",
            "bf16",
        ),
        (
            LLAMA_405B,
            {"quant_method": "fbgemm_fp8", "modules_to_not_convert": OUTER, "activation_scale_ub": 1200.0},
            {"ffn": (124 + 2 * 2) / 126},
            "fp8",
            "bf16",
        ),
        (GPT_OSS, {"quant_method": "mxfp4"}, {"experts": 0.53125}, "mxfp4", "bf16"),
        (LLAMA_8B, compressed((["Linear"], int4(32)), ignore=["lm_head"]), both(0.5625), "int4", "bf16"),
        (LLAMA_8B, compressed((["Linear"], int4(128)), ignore=KEPT_WIDE), {"ffn": 0.515625}, "int4", "bf16"),
        (
            LLAMA_8B,
            compressed((["Linear"], int4(128, symmetric=False))),
            dict.fromkeys(("attention", "ffn", "head"), 0.5 + 2.5 / 128),
            "int4",
            "bf16",
        ),
        (
            LLAMA_8B,
            compressed(
                (["re:.*self_attn.*"], FP8), (["Linear"], NVFP4), ignore=["lm_head"],
                kv_cache_scheme={"num_bits": 8, "type": "float"},
            ),
            {"attention": 1, "ffn": 0.5625},
            "fp4",
            "fp8",
        ),
        (LLAMA_8B, {"quant_method": "awq", "bits": 4, "group_size": 64}, both(0.5390625), "int4", "bf16"),
        (LLAMA_8B, {"quant_method": "gptq", "bits": 8, "group_size": -1}, both(1), "int8", "bf16"),
        (LLAMA_8B, {"quant_method": "gptq", "lm_head": True}, both(0.51953125) | {"head": 0.51953125}, "int4", "bf16"),
        (
            LLAMA_8B,
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": DYNAMIC},
            {
                "attention": (0.51953125 * 1.5 + (1 + 3 / 128) * 1) / 2.5,  # queries, keys, values; results
                "ffn": (0.51953125 * 2 + 2) / 3,
            },
            "int4",
            "bf16",
        ),
        (LLAMA_8B, {"quant_method": "bitsandbytes", "load_in_4bit": True}, both(0.5625), "int4", "bf16"),
        (LLAMA_8B, {"quant_method": "bitsandbytes", "load_in_8bit": True}, both(1), "int8", "bf16"),
        (
            QWEN3_MOE,
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}},
                "exclude": ["lm_head", "*self_attn*", "*mlp.gate"],
            },
            {"experts": 0.53125},
            "mxfp4",
            "bf16",
        ),
        (
            QWEN3_MOE,
            {
                "quant_algo": "NVFP4",
                "kv_cache_quant_algo": "FP8",
                "group_size": 16,
                "exclude_modules": ["lm_head", *(f"model.layers.{i}.mlp.gate" for i in range(48)), "model.layers.0*"],
            },
            {"attention": (47 * 0.5625 + 2) / 48, "experts": (47 * 0.5625 + 2) / 48},
            "fp4",
            "fp8",
        ),
        (LLAMA_8B, None, {}, "bf16", "bf16"),
        (LLAMA_8B, {"quant_algo": None, "kv_cache_quant_algo": "FP8"}, {}, "bf16", "fp8"),
        (LLAMA_8B, compressed(kv_cache_scheme={"num_bits": 8, "type": "int"}), {}, "bf16", "int8"),
        (LLAMA_8B, {"quant_algo": "NVFP4", "exclude_modules": ["*"]}, {}, "bf16", "bf16"),
    ],
)  # fmt: skip
def test_formats_are_read_by_part(config, quantised, parts, most, kept):
    found, *words = published(config, quantised)
    assert found == pytest.approx(parts, rel=1e-8)
    assert words == [most, kept]


def test_mixed_layers_are_each_in_their_own_format():
    """Qwen3.6 in mixed precision: projections in 8 bits, feed-forward blocks and head in 4; nothing is the first's."""
    config = OF_2026["nvidia/Qwen3.6-27B-NVFP4"]["config"]
    root = "model.language_model.layers"
    layers = {f"{root}.{i}.mlp.{name}_proj": "W4A16_NVFP4" for i in range(64) for name in ("gate", "up", "down")}
    layers |= {f"{root}.{i}.self_attn.{n}_proj": "FP8" for i in range(3, 64, 4) for n in "qkvo"}
    mixing = [i for i in range(64) if i % 4 != 3]
    layers |= {f"{root}.{i}.linear_attn.{n}": "FP8" for i in mixing for n in ("in_proj_qkv", "in_proj_z", "out_proj")}
    algorithms = {name: {"quant_algo": algorithm} for name, algorithm in (layers | {"lm_head": "W4A16_NVFP4"}).items()}
    quantised = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": algorithms,
        "ignore": ["mtp*", "mtp.layers.0*"],
    }
    found, most, _ = published(config, quantised)
    assert found == {"attention": 1, "mixer": 1, "ffn": 0.5625, "head": 0.5625}
    assert most == "fp4"
    for name in [n for n in algorithms if ".3." in n or ".1." in n]:
        del algorithms[name]
    fewer, *_ = published(config, quantised)
    assert fewer["ffn"] == pytest.approx((62 * 0.5625 + 2 * 2) / 64)
    assert fewer["mixer"] == pytest.approx((47 + 2) / 48)
    assert fewer["attention"] == pytest.approx((15 + 2) / 16)


@pytest.mark.parametrize(
    ("quantised", "parts"),
    [
        ([], ["quantization_config must be a table"]),
        ({"quant_method": "hqq"}, ["quant_method = 'hqq'", "not supported", "gptq"]),
        ({"quant_method": ["fp8"]}, ["quant_method", "not supported"]),
        ({"quant_method": "gtpq"}, ["'gtpq'", "did you mean 'gptq'"]),
        ({"quant_algo": "INT3"}, ["quant_algo = 'INT3'", "NVFP4"]),
        ({"quant_algo": "MIXED_PRECISION"}, ["quantized_layers"]),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP7"}, ["kv_cache_quant_algo = 'FP7'", "FP8"]),
        ({"quant_method": "gptq", "bits": 9}, ["integers of 9 bits"]),
        ({"quant_method": "gptq", "bits": "4"}, ["bits must be a whole number", "'4'"]),
        ({"quant_method": "awq", "bits": 4, "group_size": 1e30}, ["group_size must be a whole number"]),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, ["a block of weights is two whole numbers"]),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, ["modules_to_not_convert must list"]),
        (compressed((["Linear"], {"num_bits": 6, "type": "float"})), ["floating point of 6 bits"]),
        (compressed((["re:(a+)+$"], FP8)), ["repeats more than is tried"]),
        (compressed((["re:["], FP8)), ["no regular expression"]),
        (compressed((["x" * 400], FP8)), ["400 characters"]),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": 3}}, ["config_groups.a must be a table"]),
        (
            compressed((["Linear"], FP8), ignore=[f"re:.*{i}.*x.*y" for i in range(1000)]),
            ["lists more patterns than are tried"],
        ),
    ],
)
def test_what_is_no_format_is_told_in_one_line(quantised, parts):
    with pytest.raises(PerfgridError) as caught:
        published(LLAMA_8B, quantised)
    sentence = str(caught.value)
    assert sentence.startswith("config.json, quantization_config")
    assert "\n" not in sentence
    assert len(sentence) < 400
    for part in parts:
        assert part in sentence, sentence


WHOLE = {  # every method with every key that it reads
    "fp8": {"weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]},
    "compressed-tensors": {**compressed((["Linear"], int4(32)), ignore=["lm_head"]), "kv_cache_scheme": FP8},
    "modelopt": {
        "quant_algo": "W4A16_AWQ",
        "group_size": 64,
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["*gate"],
    },
    "gptq": {"bits": 4, "group_size": 128, "dynamic": {"+:.*": {"bits": 8}}, "lm_head": True},
    "awq": {"bits": 4, "group_size": 128, "zero_point": True},
    "bitsandbytes": {"load_in_4bit": True, "bnb_4bit_use_double_quant": True, "llm_int8_skip_modules": ["lm_head"]},
    "quark": {"global_quant_config": {"weight": {"dtype": "int4", "group_size": 32}}, "layer_quant_config": {"*q": {}}},
}


def replaced(held, value):
    """A table with each value in turn, of any depth, replaced by another."""
    for key, inner in held.items():
        yield {**held, key: value}
        if isinstance(inner, dict):
            yield from ({**held, key: changed} for changed in replaced(inner, value))


HELD = (None, "x", "\x1b[31m", -1, 0, 1e30, float("nan"), [], ["x", []], {}, {"a": 1}, True, "re:(", "*" * 99)


@pytest.mark.parametrize("method", WHOLE)
def test_whatever_a_key_holds_a_format_or_one_sentence_comes_out(method):
    whole = {"quant_method": method, **WHOLE[method]}
    assert published(LLAMA_8B, whole)[0]
    sentences = []
    for changed in (changed for value in HELD for changed in replaced(whole, value)):
        try:
            found, *_ = published(LLAMA_8B, changed)
        except PerfgridError as error:
            sentences.append(str(error))
        else:
            assert all(0 < float(str(size)) <= 4 for size in found.values())
    assert len(sentences) >= len(HELD) - 1  # of the method alone
    assert all(s.startswith("config.json, quantization_config") and len(s) < 600 for s in sentences)
    assert not [s for s in sentences if "\n" in s or "\x1b" in s]
