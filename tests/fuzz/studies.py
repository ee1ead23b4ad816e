"""Small studies of every workload, evaluated in NumPy: as they are, varied legally, and mutated."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .values import chance, hostile, mutated, texts, toml

TRAINING = {
    "title": "small training",
    "outputs": ["step_time", "memory_per_device"],
    "axes": {
        "model": ["llama-2-7b"],
        "device": ["h100-sxm-80gb", "a100-sxm-80gb"],
        "topology": ["rail-optimized"],
        "microbatch": [1, 2],
        "parallelism": {"devices": [8], "tp": [1, 2, 4], "pp": [1, 2]},
    },
    "workload_parameters": {"sequence_length": 2048, "global_batch": 64},
    "best": {"over": ["parallelism", "microbatch"], "minimize": "step_time"},
}
INFERENCE = {
    "workload": "inference",
    "outputs": ["time_to_first_token", "time_per_output_token"],
    "axes": {
        "model": ["llama-3.1-8b"],
        "device": ["h100-sxm-80gb"],
        "topology": ["rail-optimized"],
        "parallelism": {"devices": [1, 2], "tp": [1, 2], "pp": [1]},
    },
    "workload_parameters": {"prompt_tokens": 512, "output_tokens": 64, "batch": 8},
    "best": {"over": ["parallelism"], "minimize": "time_per_output_token"},
}
COLLECTIVES = {
    "workload": "collectives",
    "outputs": ["collective_time", "bus_bandwidth"],
    "axes": {
        "collective": ["all_reduce", "all_gather"],
        "group_size": [8, 64],
        "message_size": ["1 KiB", "1 GiB"],
        "system": {
            "labels": ["rails", "mesh"],
            "zip": {"device": ["h100-sxm-80gb", "mi300x"], "topology": ["rails", "mi300x-mesh-400g"]},
        },
    },
    "workload_parameters": {"devices": 1024},
    "best": {"over": ["system"], "maximize": "bus_bandwidth"},
}
MANUFACTURING = {
    "workload": "manufacturing",
    "outputs": ["die_cost", "die_yield"],
    "axes": {
        "device": ["b200", "mi300x"],
        "yield_model": ["negative_binomial", "harvested"],
        "defect_density": {"scale": {"start": 0.5, "stop": 2, "num": 3, "spacing": "log"}},
    },
    "best": {"over": ["device"], "minimize": "die_cost"},
    "optimize": {"minimize": "die_cost", "over": {"die_area": [1e-4, 8e-4]}},
}
MIXERS = {
    "workload": "sequence_mixer",
    "outputs": ["mixer_decode_time", "mixer_forward_time"],
    "axes": {
        "device": ["h100-sxm-80gb", "mi300x"],
        "mixer": ["gated_delta_net", "full_attention"],
        "sequence_length": [1024, 65536],
    },
    "workload_parameters": {"tp": 1},
    "overrides": {
        "hidden_size": 4096,
        "mixer_heads": 32,
        "mixer_key_heads": 16,
        "mixer_key_dim": 128,
        "mixer_value_dim": 128,
    },
    "best": {"over": ["mixer"], "minimize": "mixer_decode_time"},
}
BASES = {
    "training": TRAINING,
    "inference": INFERENCE,
    "collectives": COLLECTIVES,
    "manufacturing": MANUFACTURING,
    "sequence_mixer": MIXERS,
}
ANY: dict[tuple[str, ...], list[Any]] = {  # other values, legal in every study
    ("dtype",): ["float32", "float64"],
    ("title",): ["\x1b[31mred", "[bold]", "two\nlines", "x" * 300],
    ("axes", "sample"): [{"num": 4}, {"num": 2, "method": "latin_hypercube", "seed": 3}, {"method": "one_at_a_time"}],
    ("view",): [
        [{"name": "own", "kind": "bars", "title": "\x1b[31m", "see": "$x$", "count": 1}],
        [{"x": "device"}, {"kind": "heatmap", "x": "device", "y": "device"}],
        [{"kind": "scatter", "y_scale": "log", "units": {"step_time": "ms", "die_cost": "k$"}}],
        [{"name": "own", "kind": "lines", "colour": "devise"}],
        [
            {
                "kind": "waterfall",
                "x": "device",
                "y": "step_time",
                "published": [{"name": "p", "values": {}, "source": "x"}],
            }
        ],
    ],
    ("axes", "price"): [["market-2025"], ["market-2025", "market-2025-photonics"]],
}
VARIED: dict[str, dict[tuple[str, ...], list[Any]]] = {  # and in one of a workload
    "training": {
        ("where",): ["tp in [1, 2]", "not (tp == 2)", "devices / tp > 1 and pp < 2", "device != 'a100-sxm-80gb'"],
        ("axes", "device"): [["b200"], ["h200-sxm-141gb", "mi300x"], ["tpu-v5p"]],
        ("axes", "model"): [["deepseek-v3"], ["mixtral-8x7b"], ["llama-2-70b", "llama-2-7b"]],
        ("axes", "topology"): [["fat-tree-2to1"], ["rails"]],
        ("axes", "hbm_bandwidth"): [{"scale": [0.5, 1, 2]}, ["3 TB/s"], {"start": 1e12, "stop": 4e12, "num": 3}],
        ("axes", "precision"): [["bf16", "fp8"]],
        ("axes", "recompute"): [["none", "selective", "full"]],
        ("axes", "schedule"): [["1f1b", "zb_v", "dualpipe"]],
        ("axes", "parallelism", "devices"): [[64], [7], [1], [8, 16]],
        ("axes", "parallelism", "ep"): [[1, 2]],
        ("axes", "parallelism", "cp"): [[1, 2]],
        ("workload_parameters", "sequence_length"): [1, 131072],
        ("workload_parameters", "global_batch"): [1, 4096],
        ("overrides", "hbm_capacity"): ["1 GiB", "1 TiB"],
        ("choices", "tp_gather_algorithm"): ["ring"],
        ("outputs",): [["step_energy", "step_time"], ["training_cost", "step_time"], ["step_time", "fits_memory"]],
    },
    "inference": {
        ("where",): ["tp in [1, 2]", "devices >= 2"],
        ("axes", "device"): [["b200"], ["mi300x"]],
        ("axes", "model"): [["deepseek-v3"], ["mixtral-8x7b", "qwen3-next-80b-a3b"], ["nemotron-h-8b"]],
        ("axes", "software"): [["vllm", "tensorrt-llm"]],
        ("axes", "precision"): [["bf16", "fp8"]],
        ("axes", "quantised_attention"): [[True, False]],
        ("axes", "shared_prefix_tokens"): [[0, 100, 5000]],
        ("axes", "parallelism", "cp"): [[1, 2]],
        ("workload_parameters", "batch"): [1, 100_000],
        ("workload_parameters", "output_tokens"): [1, 4096],
        ("outputs",): [["time_per_output_token", "cost_per_million_output_tokens"]],
    },
    "collectives": {
        ("where",): ["group_size > 8", "message_size < 1e6"],
        ("axes", "collective"): [["all_to_all", "reduce_scatter"], ["broadcast"]],
        ("axes", "group_size"): [[1, 2, 1024]],
        ("axes", "group_stride"): [[1, 8]],
        ("outputs",): [["collective_algorithm", "collective_time"]],
    },
    "sequence_mixer": {
        ("where",): ["sequence_length > 1024", "mixer != 'full_attention'"],
        ("axes", "mixer"): [["mamba2", "lightning"], ["kimi_delta_attention", "chunked_attention"]],
        ("axes", "sequence_length"): [[1, 1_000_000]],
        ("axes", "mixer_chunk"): [[1, 64, 256]],
        ("workload_parameters", "tp"): [2, 3],
        ("overrides", "mixer_key_heads"): [5],
        ("outputs",): [["mixer_memory"], ["mixer_backward_time", "mixer_decode_time"]],
    },
    "manufacturing": {
        ("where",): ["device != 'b200'", "yield_model == 'harvested'"],
        ("axes", "device"): [["h100-sxm-80gb"], ["b200"]],
        ("axes", "budget"): [["h100-budget"]],
        ("axes", "node"): [["n5", "n3"], ["n7"]],
        ("axes", "memory"): [["hbm3"], ["hbm3e", "hbm4"]],
        ("axes", "die_area"): [{"scale": [0.5, 1]}, ["4 cm^2"]],
        ("overrides", "wafer_price"): ["9000 USD"],
        ("outputs",): [["manufacturing_cost"], ["die_cost", "device_cost"]],
    },
}


@st.composite
def documents(draw: Any, workload: str) -> dict[str, Any]:
    """A study: most of them legal or nearly so, a fifth mutated."""
    document = {key: dict(held) if isinstance(held, dict) else held for key, held in BASES[workload].items()}
    varied = ANY | VARIED[workload]
    for path in draw(st.lists(st.sampled_from(list(varied)), max_size=2, unique=True)):
        *tables, last = path
        holder = document
        for table in tables:
            holder[table] = dict(holder.get(table, {}))
            holder = holder[table]
        holder[last] = draw(st.sampled_from(varied[path]))
    if chance(draw, 20):
        document = draw(mutated(document))
    if chance(draw, 5):
        document["where"] = draw(wheres)
    return document


@st.composite
def files(draw: Any, workload: str) -> bytes:
    """The bytes of a study file; a few are no TOML, or no text."""
    text = toml(draw(documents(workload))).encode()
    if chance(draw, 2):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(st.binary(max_size=8)) + text[place:]
    elif chance(draw, 2):
        text = draw(st.binary(max_size=200))
    return text


NAMES = (
    "tp",
    "pp",
    "dp",
    "devices",
    "device",
    "model",
    "microbatch",
    "step_time",
    "hbm_bandwidth",
    "group_size",
    "zzz",
)
_operands = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.sampled_from(
        ["1", "2", "8", "1e400", "-1", "0", "nan", "'b200'", "'1'", "''", "true", "[1, 2]", "['b200']", "[1, 'a', []]"]
    ),
    texts.map(repr),
)


def _joined(inside: Any) -> Any:
    sign = st.sampled_from(
        ["==", "!=", "<", ">=", "in", "not in", "+", "-", "*", "/", "%", "**", "and", "or", "if", "."]
    )
    return st.one_of(
        st.tuples(inside, sign, inside).map(" ".join),
        inside.map(lambda text: f"({text})"),
        inside.map(lambda text: f"not {text}"),
        st.tuples(st.sampled_from(["-", "(", "not ", "2 * "]), st.sampled_from([1, 30, 5000]), inside).map(
            lambda part: part[0] * part[1] + part[2]
        ),
    )


wheres = st.one_of(st.recursive(_operands, _joined, max_leaves=6), hostile)
