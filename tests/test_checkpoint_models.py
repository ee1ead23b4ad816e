"""Checkpoints as published: folders with their files, what entries weigh, names on a hub, configurations of 2026.

Facts of the configurations (`huggingface_2026.json`) are from the published ``config.json`` files of the models named;
keys without effect are left out. Published counts are those of model cards and reports, of the language models alone.
"""

import json
from pathlib import Path

import pytest

import perfgrid as pg
from perfgrid.analysis.catalog_check import counted_parameters
from perfgrid.answers.entries import model_with_remarks
from perfgrid.catalog import load_catalog
from perfgrid.catalog.architectures import ARCHITECTURES
from perfgrid.catalog.checkpoints import PUBLISHED, formats_text, kept_cache, stored_weights
from perfgrid.catalog.huggingface import imported
from perfgrid.catalog.number_formats import NUMBER_FORMATS
from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.models import named_model, of_named
from tests.huggingface_configs import DEEPSEEK_V3, GPT_OSS, LLAMA_8B, model_of, model_values
from tests.test_bad_input import run

CATALOG = load_catalog()
OF_2026 = json.loads(Path(__file__).with_name("huggingface_2026.json").read_text(encoding="utf-8"))


# ---- folders --------------------------------------------------------------------------------------------------------


def folder(tmp_path, config, beside=None):
    path = tmp_path / "my-model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    if beside is not None:
        (path / "hf_quant_config.json").write_text(json.dumps(beside))
    return path


def test_the_file_beside_a_configuration_says_the_formats(tmp_path):
    """An NVFP4 folder is not "bf16 as published", and its cache is in the format that it asks for."""
    quantised = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    path = folder(tmp_path, LLAMA_8B, {"producer": {"name": "modelopt"}, "quantization": quantised})
    entry = model_of(CATALOG, path)
    assert formats_text(entry, CATALOG.variables) == "fp4 (embedding, head in 16 bits)"
    answer = pg.serve(path, "b200", 1, prompt=1000, output=100)
    assert any("weights in fp4 (embedding, head in 16 bits) as published" in a for a in answer.attrs["assumptions"])
    assert any("cache in fp8" in line for line in answer.attrs["assumptions"])
    matrices = 8_030_261_248 - 2 * 128256 * 4096
    wide = 2 * 2 * 128256 * 4096
    assert answer["weight_memory"].item() == pytest.approx(matrices * 0.5625 + wide, rel=2e-3)


def test_two_files_that_contradict_each_other(tmp_path):
    stated = {**LLAMA_8B, "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
    with pytest.raises(PerfgridError, match=r"hf_quant_config.json contradict each other: quant_algo 'FP8', 'NVFP4'"):
        model_of(CATALOG, folder(tmp_path, stated, {"quantization": {"quant_algo": "NVFP4"}}))


def test_a_file_beside_that_is_no_table(tmp_path):
    with pytest.raises(PerfgridError, match="must hold one JSON object with quantization"):
        model_of(CATALOG, folder(tmp_path, LLAMA_8B, [1]))


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (LLAMA_8B, 16_060_522_496),
        (GPT_OSS, 13_761_264_768),
        ({**DEEPSEEK_V3, "num_nextn_predict_layers": 1}, 688_586_727_753),
    ],
)
def test_a_configuration_is_refused_where_its_files_weigh_otherwise(tmp_path, config, size):
    """Sizes that the published indices state: Llama 3.1 8B, gpt-oss-20b, DeepSeek-V3 with its prediction layer."""
    path = folder(tmp_path, config)
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": {}}))
    assert model_of(CATALOG, path).values["layers"] == config["num_hidden_layers"]
    index.write_text(json.dumps({"metadata": {"total_size": 1.2 * size}}))
    with pytest.raises(PerfgridError, match=r"is read as weights of .* GB, but the files beside it hold .* GB"):
        model_of(CATALOG, path)
    index.write_text(json.dumps({"metadata": {"total_size": "all"}}))
    with pytest.raises(PerfgridError, match="total_size must be a number of bytes"):
        model_of(CATALOG, path)
    index.write_text("{}")
    assert model_of(CATALOG, path).name == "my-model"


# ---- entries and what they weigh ------------------------------------------------------------------------------------


def weights(model, tp, device="h100-sxm-80gb", stored=PUBLISHED):
    """Bytes of weights on a device."""
    stated = {"weight_precision": stored, "precision": "bf16", "prompt_tokens": 1000, "output_tokens": 100}
    study = pg.Study.make(
        workload="inference",
        outputs=["weight_memory"],
        axes={"model": [model], "device": [device], "parallelism": {"devices": [tp], "tp": [tp]}},
        workload_parameters={**stated, "batch": 1, "batch_rule": "given"},
        overrides={"padded_expert_width": 0},  # files are not padded
    )
    return pg.evaluate(study)["weight_memory"].item()


def test_published_checkpoints_weigh_what_their_files_do():
    """gpt-oss-120b: 65.17 GB. Llama 3.1 405B in 8 bits: 56.7 GiB of 8 devices; with the 16 key-value heads of its first
    files, of which vLLM reported 57.75 GiB, another 126·2·8·128·16384 weights in 16 bits.
    """
    assert weights("gpt-oss-120b", 1) == pytest.approx(65.17e9, rel=1e-3)
    found = weights("llama-3.1-405b-fp8", 8)
    assert found / 2**30 == pytest.approx(56.71, abs=0.02)
    doubled = 126 * 2 * 8 * 128 * 16384 * 2 / 8
    assert (found + doubled) / 2**30 == pytest.approx(57.75, rel=2e-3)
    assert weights("deepseek-v3", 8) == pytest.approx(weights("deepseek-v3", 8, stored="fp8"), rel=3e-4)


def test_sizes_of_formats():
    found = {word: form.element_size for word, form in NUMBER_FORMATS.items()}
    assert found == {
        "fp32": 4,
        "fp16": 2,
        "bf16": 2,
        "fp8": 1,
        "int8": 1,
        "int4": 0.515625,
        "fp4": 0.5625,
        "mxfp4": 0.53125,
    }
    assert set(found) == set(CATALOG.variables["published_precision"].codes)


def test_parts_in_16_bits_run_in_16_bits():
    """Products of attention of Llama 3.1 405B in 8 bits are those of a model that is stated to keep it in 16."""
    parameters = {"precision": "fp8", "prompt_tokens": 1000, "output_tokens": 100, "batch": 8, "batch_rule": "given"}
    times = {}
    for model, stored in (("llama-3.1-405b-fp8", PUBLISHED), ("llama-3.1-405b", "fp8")):
        kept = {} if stored == PUBLISHED else {"quantised_attention": False}
        study = pg.Study.make(
            workload="inference",
            outputs=["prefill_time", "decode_step_time"],
            axes={"model": [model], "device": ["h100-sxm-80gb"], "parallelism": {"devices": [8], "tp": [8]}},
            workload_parameters={"weight_precision": stored, **kept, **parameters},
        )
        times[model] = [pg.evaluate(study)[name].item() for name in ("prefill_time", "decode_step_time")]
    first, second = times.values()
    assert first == pytest.approx(second, rel=0.02)
    assert first != second  # feed-forward weights of two layers are read in 16 bits


# ---- names on a hub -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "model", "stored"),
    [
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2-thinking", PUBLISHED),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2", PUBLISHED),
        ("moonshotai/Kimi-K2-Other", None, None),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "qwen-2.5-14b", "bf16"),
        ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3", PUBLISHED),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct-FP8", "llama-3.1-405b-fp8", PUBLISHED),
        ("nvidia/Llama-3.1-405B-Instruct-FP8", "llama-3.1-405b", "fp8"),
        ("meta-llama/Llama-3.1-405B-Instruct", "llama-3.1-405b", "bf16"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16", "llama-3.1-70b", "int4"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.1-70b", "fp8"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", "qwen3-235b-a22b", "fp8"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "qwen-2.5-72b", "int4"),
        ("openai/gpt-oss-20b", "gpt-oss-20b", PUBLISHED),
        ("unsloth/gpt-oss-20b-BF16", "gpt-oss-20b", "bf16"),
    ],
)
def test_a_name_is_never_replaced_by_another_model(name, model, stored):
    found = named_model(CATALOG, name)
    assert (found and found.name) == model
    assert found is None or of_named(found, name)["published_weights"] == stored


def test_a_job_tells_the_formats_that_it_takes(monkeypatch, capsys, tmp_path):
    job = tmp_path / "serve.sh"
    job.write_text("vllm serve meta-llama/Meta-Llama-3.1-405B-Instruct-FP8 --tensor-parallel-size 8\n")
    status, out, _ = run(monkeypatch, capsys, "read-job", job, "--json")
    rows = {row[0]: row[1:] for row in map(tuple, (r.values() for r in json.loads(out)["assumed"]))}
    assert status == 0
    assert rows["weights"][0] == "fp8 (attention, embedding, head in 16 bits; dense blocks in 8.13 bits)"
    job.write_text("vllm serve RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16\n")
    status, out, _ = run(monkeypatch, capsys, "read-job", job, "--wide")
    assert status == 0
    assert "of the same shape and number formats as RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16" in out
    assert "by the end of the name: all but embedding, head, router, in groups of 128" in out
    job.write_text("vllm serve moonshotai/Kimi-K2-Thinkin\n")
    status, _, err = run(monkeypatch, capsys, "read-job", job)
    assert status == 2
    assert "no model of the catalog is called 'moonshotai/Kimi-K2-Thinkin'; did you mean 'kimi-k2-thinking'" in err


# ---- keys that are not known ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OF_2026)
def test_configurations_of_2026_import_or_are_refused_for_a_kind_of_layer(name):
    said = OF_2026[name]
    if "refused" in said:
        with pytest.raises(PerfgridError, match=f"{said['refused']}, which is not supported") as caught:
            imported(said["config"], CATALOG.variables, "config.json")
        assert "\n" not in str(caught.value)
        return
    model = imported(said["config"], CATALOG.variables, "config.json")
    assert model.keys.by_row
    assert model.keys.unknown == ()
    given = {v.name: model.values.get(v.name, v.default) for v in CATALOG.variables.values() if v.of == "model"}
    assert counted_parameters(given)["total_parameters"] == pytest.approx(said["parameters"], rel=0.01)


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("my_gate_kind", "swish", "ignored"),
        ("use_my_norm", True, "ignored"),
        ("temperature_of_scores", 0.7, "ignored"),
        ("num_my_things", 0, "ignored"),
        ("my_thing", None, "no_effect"),
        ("output_gate_type", "swish", "no_effect"),
        ("my_number", 3, "unknown"),
        ("my_list", [1, 2], "unknown"),
        ("my_table", {"a": 1}, "unknown"),
        ("mlp_ratio", 2.5, "unknown"),
        ("my_layer_kind", "sparse", "unknown"),
        ("use_expert_bias_of_mine", True, "unknown"),
    ],
)
def test_an_unknown_key_stops_only_where_it_could_matter(key, value, place, tmp_path):
    config = {**LLAMA_8B, key: value}
    keys = imported(config, CATALOG.variables, "config.json").keys
    assert key in getattr(keys, place)
    path = folder(tmp_path, config)
    if place == "unknown":
        with pytest.raises(PerfgridError, match=f"does not understand {key}"):
            model_of(CATALOG, path)
        return
    entry, remarks = model_with_remarks(CATALOG, path)
    assert entry.values["layers"] == 32
    assert [key in remark for remark in remarks] == ([True] if place == "ignored" else [])


def test_an_ignored_key_is_a_warning_on_the_screen(monkeypatch, capsys, tmp_path):
    path = folder(tmp_path, {**LLAMA_8B, "my_gate_kind": "swish"})
    status, out, err = run(
        monkeypatch, capsys, "serve", path, "--on", "h100-sxm-80gb", "--devices", "1", "--prompt", 100, "--output", 10
    )
    assert status == 0
    assert "taken to be without effect, as words and flags: my_gate_kind" in " ".join((out + err).split())


def test_shared_indexers_are_counted():
    config = OF_2026["zai-org/GLM-5.2-FP8"]["config"]
    found = model_values(config, CATALOG.variables, "config.json")
    assert (found["index_layers"], found["layers"]) == (21, 78)
    known = CATALOG.entry("model", "glm-5.2").values
    given = ("layers", "hidden_size", "heads", "experts", "index_layers", "index_heads", "index_top_k", "vocab_size")
    assert {n: found[n] for n in given} == {n: known[n] for n in given}
    for changes, part in (
        ({"indexer_types": ["shared"] * 78}, "shares before the first indexer"),
        ({"indexer_types": ["full"] * 3}, "each of 78 layers full or shared"),
        ({"indexer_types": [["full"]] * 78}, "each of 78 layers full or shared"),
        ({"indexer_types": None}, "lacks indexer_types"),
    ):
        with pytest.raises(PerfgridError, match=part):
            model_values({**config, **changes}, CATALOG.variables, "config.json")


def test_a_billion_layers_are_refused_at_once():
    """Counts are bounded before lists of layers are made."""
    for kind, row in ARCHITECTURES.items():
        keys = dict.fromkeys(row.keys_of("layers"), 10**9)
        if keys:  # others count the blocks that they list
            with pytest.raises(PerfgridError, match="must be > 0 and <= 10000, found 1000000000"):
                model_values({**LLAMA_8B, "model_type": kind, **keys}, CATALOG.variables, "config.json")


def test_stored_weights_and_cache_of_entries():
    words = {name: stored_weights(CATALOG.entry("model", name), CATALOG.variables) for name in CATALOG.tables["model"]}
    assert words["llama-3.1-8b"] == "bf16"
    assert words["mistral-large-3"] == "fp8"
    assert {words[name] for name in ("gpt-oss-20b", "kimi-k2.5", "minimax-m2", "deepseek-v3.2")} == {PUBLISHED}
    assert kept_cache(CATALOG.entry("model", "kimi-k2"), CATALOG.variables) == "bf16"
