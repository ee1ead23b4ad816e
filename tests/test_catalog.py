"""The catalog: every number has a source, published counts and peak rates agree."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import perfgrid as pg
from perfgrid.analysis.catalog_check import counted_parameters
from perfgrid.catalog import load_catalog
from perfgrid.catalog.schema import AXIS_LABELS
from perfgrid.formulas.axes import INNER
from tests.each import each

CATALOG = load_catalog()
ENTRIES = [entry for table in CATALOG.tables.values() for entry in table.values()]
MODELS = list(CATALOG.tables["model"].values())
DEVICES = list(CATALOG.tables["device"].values())
FORMULAS = Path(pg.__file__).parent / "formulas"
FORMULA_FILES = sorted(f for f in FORMULAS.rglob("*.py") if f.parent.name != "schedules")
SCHEDULE_FILES = sorted(FORMULAS.glob("collectives/schedules/*.py"))


def values_of(table: str, name: str) -> Any:
    """The values of an entry, of whatever kind they are."""
    return CATALOG.entry(table, name).values


# ---- the data -------------------------------------------------------------------------------------------------------


@each(
    "table, names",
    [
        (
            "model",
            "megatron-1.7b megatron-3.6b megatron-7.5b megatron-18b megatron-22b megatron-39b megatron-76b "
            "megatron-145b megatron-310b megatron-530b megatron-1t gpt3-13b gpt3-175b opt-175b bloom-176b "
            "gpt-neox-20b mpt-7b mpt-30b mpt-70b llama-2-7b llama-2-13b llama-2-70b llama-3.1-8b llama-3.1-70b "
            "llama-3.1-405b-fp8 kimi-k2-thinking glm-5.2 "
            "llama-3.1-405b mistral-7b-v0.1 nemotron-4-15b nemotron-4-340b qwen-2.5-72b qwen3-32b gemma-2-27b "
            "gemma-3-27b palm-540b falcon-40b falcon-180b mixtral-8x7b mixtral-8x22b qwen3-30b-a3b qwen3-235b-a22b "
            "gpt-oss-120b gpt-oss-20b deepseek-67b deepseek-v2 deepseek-v3 kimi-k2 gpt-moe-1.8t "
            "qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b qwen3-14b qwen-2.5-7b qwen-2.5-14b qwen-2.5-32b llama-3.2-1b "
            "llama-3.2-3b olmo-2-7b olmo-2-13b olmo-2-32b olmo-3-7b olmo-3-32b phi-4 gemma-3-1b gemma-3-4b "
            "gemma-3-12b mistral-small-3 mistral-large-2 starcoder2-3b starcoder2-7b starcoder2-15b command-r "
            "command-r-plus smollm3-3b seed-oss-36b exaone-4-32b qwen3-next-80b-a3b "
            "qwen3.5-27b qwen3.5-35b-a3b qwen3.5-397b-a17b kimi-linear-48b-a3b minimax-m1 nemotron-3-nano-30b-a3b "
            "nemotron-h-8b nemotron-h-56b granite-4.0-h-small falcon-h1-34b glm-4.5 glm-4.5-air minimax-m2 kimi-k2.5 "
            "qwen3-coder-480b-a35b ernie-4.5-21b-a3b ernie-4.5-300b-a47b hunyuan-a13b dots.llm1 ling-lite "
            "ling-mini-2.0 olmoe-1b-7b deepseek-v2-lite phi-3.5-moe dbrx qwen1.5-moe-a2.7b "
            "command-a gemma-3-270m ernie-4.5-0.3b glm-4.6 ling-1t mistral-large-3 deepseek-v3.2 glm-5 "
            "llama-4-scout llama-4-maverick nemotron-3-super-120b-a12b gemma-3n-e4b hunyuan-large",
        ),
        (
            "device",
            "v100-sxm-32gb a100-sxm-40gb a100-sxm-80gb a100-pcie-80gb l40s rtx-4090 h100-sxm-80gb h100-pcie-80gb "
            "h100-sxm-96gb-500w-hbm2e h800-sxm-80gb h200-sxm-141gb gh200 b200 b300 gb200 gb300 mi250x mi300x mi325x "
            "mi350x mi355x tpu-v3 tpu-v4 tpu-v5e tpu-v5p tpu-v6e tpu-v7 gaudi2 gaudi3",
        ),
        (
            "topology",
            "rail-optimized fat-tree-2to1 ethernet-400g ici-ring hgx-a100-200g hgx-h100-400g hgx-h100-roce-400g "
            "hgx-h100-efa-400g hgx-h100-efa-shared hgx-b200-400g hgx-b300-800g gb200-nvl72-400g gb300-nvl72-800g "
            "rails rails-in-network "
            "nvl72-rails-64 rail-only rails-spine-2to1 fat-tree-16x8-2to1 dragonfly-72 dragonfly-1056 "
            "clos fat-tree-512-2to1 dragonfly-512 hyperx-512 full-mesh-512 torus-512 mesh-512 hyperx-of-devices-512 "
            "full-mesh-of-devices-512 dragonfly-16k hyperx-17k "
            "mi300x-mesh-400g mi355x-mesh-400g gaudi3-mesh-600g tpu-torus-4x4x4 tpu-torus-8x8x8 "
            "tpu-torus-16x16x16 tpu-torus-8x8x16 tpu-twisted-4x4x8 tpu-torus-4x4x8 tpu-torus-4x8x8 tpu-twisted-4x8x8 "
            "tpu-torus-16x16 tpu-mesh-8x8 wafer-mesh-5x5 "
            "wafer-mesh-8x8",
        ),
        (
            "software",
            "megatron-lm megatron-lm-2020 megatron-lm-2022 megatron-core nemo nemo-graphs megatron-bridge "
            "megatron-bridge-2025 megatron-fsdp primus ideal llmq hai-llm "
            "megatron-deepspeed megatron-deepspeed-fp16 deepspeed hf-deepspeed deepspeed-alst optimum-gaudi nanotron "
            "hf-trainer hf-trainer-bf16 hf-trainer-qlora hf-fsdp hf-fsdp-qlora "
            "torchtitan torchtitan-2024 torchtitan-2024-eager pytorch pytorch-compiled nemo-automodel llm-foundry "
            "llm-foundry-2023 "
            "maxtext maxtext-gpu paxml "
            "fastertransformer tensorrt-llm-2023 tensorrt-llm-2024 tensorrt-llm vllm vllm-0.14 vllm-2025 "
            "vllm-2024 sglang "
            "deepseek-serving meta-inference jetstream optimum-habana vllm-2024-rocm turbomind-2023 lmdeploy",
        ),
    ],
)
def test_tables_hold_the_named_entries(table, names):
    assert set(names.split()) == set(CATALOG.tables[table])


@each("entry", ENTRIES)
def test_every_value_has_a_source_in_the_bibliography(entry):
    assert set(entry.values) == set(entry.sources)
    assert set(entry.sources.values()) <= set(CATALOG.references)


@each("entry", ENTRIES)
def test_every_entry_states_all_quantities_of_its_table(entry):
    assert set(entry.values) == {n for n, v in CATALOG.variables.items() if v.of == entry.kind}
    assert entry.title


@each("entry", ENTRIES)
def test_estimates_carry_a_range(entry):
    for quantity, detail in entry.details.items():
        value = entry.values[quantity]
        measurable = isinstance(value, float) and "tile" not in quantity
        if detail.confidence == "estimate" and measurable and entry.kind in ("device", "software"):
            assert detail.low is not None, quantity
            assert detail.high is not None, quantity
            assert detail.note, quantity
        if detail.low is not None and detail.high is not None:
            assert detail.low <= value <= detail.high


@each("path", FORMULA_FILES)
def test_sources_of_formulas_stand_in_the_bibliography(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for decorator in getattr(node, "decorator_list", ()):
            for keyword in getattr(decorator, "keywords", ()):
                if keyword.arg == "source":
                    keys = [k.strip() for k in ast.literal_eval(keyword.value).split(",")]
                    assert set(keys) <= {*CATALOG.references, ""}, getattr(node, "name", path)


@each("path", SCHEDULE_FILES)
def test_sources_of_schedules_stand_in_the_bibliography(path):
    """Equations that are no quantities of a study cite in their docstrings."""
    cited = re.findall(r"Source: ([^.]*)\.", path.read_text(encoding="utf-8"))
    keys = {k for text in cited for k in re.findall(r"\b[a-z]+\d{4}[a-z0-9]*\b", text)}
    assert keys <= set(CATALOG.references), keys - set(CATALOG.references)
    assert keys or not cited


def test_references_have_author_title_year_and_a_link():
    for key, text in CATALOG.references.items():
        assert len(text.split(", ")) >= 4, key
        assert any(link in text for link in ("arXiv:", "doi:", "https://", "tools/")), key  # the last: our own


def attention_weights(value):
    """Weights of the attention of one layer, written out."""
    hidden, heads = value["hidden_size"], value["heads"]
    if value["kv_lora_rank"]:
        nope, rope, wide = value["qk_nope_head_dim"], value["qk_rope_head_dim"], value["v_head_dim"]
        rank, wide_query = value["q_lora_rank"], heads * (nope + rope)
        queries = rank * (hidden + wide_query) if rank else hidden * wide_query
        latents = hidden * (value["kv_lora_rank"] + rope) + value["kv_lora_rank"] * heads * (nope + wide)
        return queries + latents + heads * wide * hidden
    return 2 * hidden * value["head_dim"] * (heads + value["kv_heads"])


def mixer_weights(value):
    """Weights of the matrices of one recurrent mixer, tensor by tensor as the checkpoints hold them."""
    hidden, heads = value["hidden_size"], value["mixer_heads"]
    values, keys = heads * value["mixer_value_dim"], value["mixer_key_heads"] * value["mixer_key_dim"]
    convolution = [(values + 2 * keys, value["convolution_length"])]
    gates, rank = heads * (value["mixer_key_dim"] + value["mixer_value_dim"]), value["gate_rank"]
    tensors = {
        "none": [],
        "mamba2": [(hidden, values + values + keys + keys + heads), *convolution],
        "lightning": [(hidden, values + keys + keys), (hidden, values)],
        "gated_delta_net": [(hidden, 2 * keys + 2 * values), (hidden, 2 * heads), *convolution],
        "kimi_delta_attention": [(hidden, keys), (hidden, keys), (hidden, values), (hidden, heads), *convolution]
        + 2 * [(hidden, rank)]
        + [(rank, gates)],
    }[value["mixer"]]
    return sum(rows * columns for rows, columns in [*tensors, (values, hidden)])


def weights(value, experts, tables):
    """Weights with so many routed experts per layer and vocabulary tables, without the norms and biases."""
    hidden, layers = value["hidden_size"], value["layers"]
    matrices = 3 if value["gated_ffn"] else 2
    feed_forward = layers - value["ffn_free_layers"]
    expert_layers = feed_forward - value["dense_layers"] if value["experts"] else 0
    dense_width = value["ffn_size"] + value["layer_embedding_size"]
    dense = (feed_forward - expert_layers) * matrices * hidden * dense_width
    latent = value["expert_latent_size"]
    chosen = matrices * (experts * (latent or hidden) + value["shared_experts"] * hidden) * value["expert_ffn_size"]
    sparse = expert_layers * (chosen + hidden * (value["experts"] + 2 * latent))
    gate = hidden * value["heads"] * value["head_dim"] * value["attention_gate"]
    attention = (layers - value["attention_free_layers"]) * (attention_weights(value) + gate)
    attention -= value["shared_key_layers"] * 2 * hidden * value["kv_heads"] * value["head_dim"]
    heads, width = value["index_heads"], value["index_head_dim"]
    attention += value["index_layers"] * (hidden * (heads + width) + value["q_lora_rank"] * heads * width)
    return (
        attention
        + value["mixer_layers"] * mixer_weights(value)
        + dense
        + sparse
        + hidden * value["vocab_size"] * tables
    )


def agrees(model, quantity, counts):
    """One of the counts is within 1 % of a published number, or in the range that its rounding leaves."""
    published, detail = model.values[quantity], model.details.get(quantity)
    low = published if detail is None or detail.low is None else detail.low
    high = published if detail is None or detail.high is None else detail.high
    rounding = max(0.05 * published, 0.5e9)  # to whole billions; a range excuses nothing else
    assert published - rounding <= low <= published <= high <= published + rounding
    return any(low <= c <= high or c == pytest.approx(published, rel=0.01) for c in counts)


@each("model", MODELS)
def test_counted_parameters_are_the_published_ones(model):
    """Counted here and by the formulas; active parameters with or without the table of the input."""
    v, formulas = model.values, counted_parameters(model.values)
    tables = 1 if v["tied_embeddings"] else 2
    whole = weights(v, v["experts"], tables) + v["hidden_size"] * v["learned_positions"]
    whole += v["vocab_size"] * v["layers"] * v["layer_embedding_size"]
    active = [weights(v, v["experts_per_token"], n) for n in (1, tables)]
    assert formulas["total_parameters"] == pytest.approx(whole, rel=1e-3)
    assert formulas["parameters_per_token"] == pytest.approx(active[0], rel=1e-3)
    if model.name != "mpt-70b":  # of which no count is published
        assert v["parameters"] > 0
        assert agrees(model, "parameters", [formulas["total_parameters"]])
    assert (v["active_parameters"] > 0) == (v["experts"] > 0)
    if v["experts"]:
        table = 0 if v["tied_embeddings"] else formulas["output_head_parameters"]
        per_token = formulas["parameters_per_token"]
        assert agrees(
            model, "active_parameters", [per_token, per_token + table, per_token - formulas["output_head_parameters"]]
        )


@each("model", MODELS)
def test_shapes_of_models_are_consistent(model):
    v = values_of("model", model.name)
    assert v["heads"] % v["kv_heads"] == 0
    assert v["window_layers"] <= v["layers"]
    assert (v["window"] > 0) == (v["window_layers"] > 0)
    assert v["experts_per_token"] <= v["experts"]
    assert v["dense_layers"] < v["layers"]
    assert v["groups_per_token"] <= v["groups"] <= v["experts"]
    if v["groups"]:
        assert v["experts"] % v["groups"] == 0


def test_known_figures():
    h100 = values_of("device", "h100-sxm-80gb")
    assert h100["hbm_bandwidth"] == 3.35e12
    assert h100["hbm_capacity"] == 80 * 2**30
    assert h100["scale_up_bandwidth"] == 450e9
    assert h100["scale_out_bandwidth"] == 50e9
    software = values_of("software", "megatron-lm")
    assert software["weight_size"] + software["gradient_size"] + software["optimizer_state_size"] == 18
    assert software["launch_overhead"] == 3e-6


STATE_SIZES = {
    "deepspeed": 16,
    "nemo": 20,
    "megatron-bridge": 20,
    "megatron-bridge-2025": 20,
    "hf-deepspeed": 16,
    "hf-trainer": 16,
    "hf-trainer-bf16": 8,
    "hf-trainer-qlora": 16,
    "hf-fsdp": 16,
    "hf-fsdp-qlora": 16,
    "deepspeed-alst": 16,
    "optimum-gaudi": 16,
    "nemo-automodel": 16,
    "paxml": 16,
    "hai-llm": 14,
    "nanotron": 20,
    "torchtitan": 16,
    "torchtitan-2024": 16,
    "torchtitan-2024-eager": 16,
    "pytorch": 16,
    "pytorch-compiled": 16,
    "llm-foundry": 16,
    "maxtext": 16,
    "maxtext-gpu": 16,
    "megatron-lm-2020": 20,
    "megatron-lm-2022": 20,
    "megatron-deepspeed-fp16": 16,
    "llm-foundry-2023": 16,
    "nemo-graphs": 20,
    "ideal": 20,
}


@each("stack", CATALOG.tables["software"])
def test_state_of_a_parameter_with_adam(stack):
    """Weight, gradient, master weight, two moments: 18 bytes, 20 with a second gradient, 16 without 16-bit copies.

    8 where all of them have 16 bits.
    """
    v = values_of("software", stack)
    assert v["weight_size"] + v["gradient_size"] + v["optimizer_state_size"] == STATE_SIZES.get(stack, 18)
    numbers = 2 if stack == "hf-trainer-bf16" else 4  # Adam alone reads four float32 numbers and writes three
    kernels = (
        9 if stack.startswith(("hf-trainer", "hf-fsdp")) else 1
    )  # of one tensor, which read or write three numbers each
    assert 28 <= 4 / numbers * v["optimizer_traffic"] <= max(52, kernels * 3 * 4)
    assert v["gradient_communication_size"] in (0, 2, 4)
    assert 0.1e-6 < v["launch_overhead"] < 10e-6 or stack == "ideal"


def test_step_latencies_agree_with_the_library_table():
    v = values_of("topology", "rail-optimized")
    for tier, expected in (("scale_up", 3.4e-6), ("scale_out", 14e-6)):
        total = v["tier_step_latency"][tier] + v["tier_hops"][tier] * v["tier_hop_latency"][tier]
        assert total == pytest.approx(expected, rel=0.02)


def test_every_device_fits_fabrics_of_its_links():
    chips = [d.name for d in DEVICES if d.name.startswith("tpu")]
    others = [d.name for d in DEVICES if d.name not in chips]
    for name in CATALOG.tables["topology"]:
        fabric = values_of("topology", name)["topology_link"]
        fits = [d.name for d in DEVICES if shared(values_of("device", d.name)["device_link"], fabric)]
        assert fits
        assert set(fits) <= set(chips if fabric["ici"] else others)
    for device in DEVICES:
        assert any(
            shared(values_of("device", device.name)["device_link"], values_of("topology", name)["topology_link"])
            for name in CATALOG.tables["topology"]
        )


def shared(a, b):
    return any(a[label] * b[label] for label in a)


def test_axis_labels_are_those_of_the_formulas():
    for axis, labels in AXIS_LABELS.items():
        assert INNER.labels[axis] == labels
