"""Every formula of inference: units, sources, glossary, finite values and derivatives; the grid against a replay."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.engine import replay, resolve
from perfgrid.engine.graph.resolver import resolve_checked
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Space
from perfgrid.formulas import COLLECTIVES, KERNELS, PARALLELISM, SERVING, TRANSFORMER, every_formula
from perfgrid.formulas.hardware import device, power, scaling
from perfgrid.formulas.mixer_kinds import RECURRENT
from perfgrid.formulas.transformer import parameters
from perfgrid.study.entries import unit_of
from tests.units import check

from .designs import LABELS, point, registry

RULES = ("given", "memory", "run", "rate")
DISTRIBUTIONS = ("constant", "uniform", "lognormal")
OUTPUTS = (
    "time_to_first_token",
    "time_per_output_token",
    "request_latency",
    "output_tokens_per_second",
    "output_tokens_per_second_per_device",
    "memory_per_device",
    "largest_batch",
    "running_batch",
    "goodput",
    "decode_tokens_per_second",
    "prefill_tokens_per_second",
    "energy_per_output_token",
    "average_power",
    "tokens_per_second",
    "decode_kernels_time",
    "prefill_kernels_time",
    "decode_communication_time",
    "prefill_communication_time",
    "request_bound_time",
    "decode_bandwidth_utilization",
    "prefill_flops_utilization",
)


def of_labels(labels):
    """The quantities that exist for these labels."""
    formulas = registry().formulas
    other = {n for n, f in formulas.items() if f.by is not None and f.label != labels.get(f.by)}
    other |= {formulas[n].of for n in other} - {f.of for n, f in formulas.items() if n not in other}
    asked = (parameters, device, scaling, power, *SERVING)  # systems: tests/system, tests/cost
    drawn = (*TRANSFORMER, *KERNELS, *COLLECTIVES, *PARALLELISM)
    own = every_formula().of_workload("inference", asked, drawn).names()
    return [n for n in own if n not in other and n not in of_systems()]


def of_systems():
    """What follows from prices and power of whole systems."""
    return {"working_charge", "cost_per_million_output_tokens"}


@pytest.mark.parametrize(
    ("rule", "precision", "stored"),
    [
        ("clients", "bf16", "bf16"),
        ("given", "bf16", "fp16"),
        ("memory", "fp8", "fp8"),
        ("run", "int8", "int4"),
        ("rate", "tf32", "fp4"),
        ("rate", "fp32", "fp32"),
        ("given", "fp16", "int8"),
        ("given", "fp16", "bf16"),
    ],
)
def test_every_formula_keeps_its_units(rule, precision, stored):
    stated = {"batch_rule": rule, "precision": precision, "weight_precision": stored, "kv_precision": stored}
    labels = {**stated, "library": "nccl", "step_launching": "eager", "mixer": "gated_delta_net", "indexer": "top_k"}
    labels["network_sizing"] = "rate"
    labels["length_distribution"] = "uniform" if precision in ("fp8", "tf32") else "lognormal"
    labels["limit_statistic"] = "p99" if rule in ("rate", "clients") else "mean"
    space = Space((), {**point(), **labels})
    names = [n for n in of_labels(labels) if "ideal" not in n and not n.startswith("shape")]
    units = {name: unit_of(load_catalog().variables, name) for name in space.names()}
    problems = check(Plan(registry(), space, names), units)
    assert not problems, "\n".join(sorted(set(problems)))


def test_every_source_is_in_the_bibliography_and_every_given_quantity_in_the_glossary():
    catalog = load_catalog()
    for formula in registry().formulas.values():
        for key in formula.source.split(", "):
            assert key in catalog.references, f"{formula.name}: {key}"
    labels = {
        "batch_rule": RULES,
        "precision": ("bf16",),
        "weight_precision": ("bf16",),
        "kv_precision": ("fp8",),
        "library": ("nccl",),
        "step_launching": ("graphs", "eager"),
        "length_distribution": DISTRIBUTIONS,
        "limit_statistic": ("mean", "p99"),
        "network_sizing": ("rate",),
    }
    labels |= {"device_basis": ("device",), "circuit_basis": ("own_node",)}
    for mixer in ("none", *RECURRENT):
        leaves = resolve(
            registry(), OUTPUTS, point(), labels=labels | {"mixer": (mixer,), "indexer": ("top_k",)}
        ).leaves
        assert {name.removeprefix("stated_") for name in leaves} <= {*catalog.variables, *labels, "link_is_native"}


MODELS = (
    *("llama-2-7b", "llama-3.1-70b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "mistral-7b-v0.1"),
    *("kimi-linear-48b-a3b", "nemotron-h-8b"),
)


def drawn_study(generator: np.random.Generator) -> pg.Study:
    """A study of a few thousand points: models, devices, layouts, formats, batches and rules, as drawn."""

    def some(values, most=2):
        count = int(generator.integers(1, most + 1))
        return [values[int(i)] for i in sorted(generator.choice(len(values), min(count, len(values)), replace=False))]

    axes: dict[str, Any] = {
        "model": some(MODELS, 3),
        "device": some(["a100-sxm-80gb", "h100-sxm-80gb", "b200", "mi300x", "tpu-v5p"]),
        "topology": some(["rail-optimized", "hgx-h100-400g", "fat-tree-2to1"]),
        "software": some(["tensorrt-llm-2024", "vllm", "deepseek-serving", "fastertransformer"]),
        "batch_rule": some(list(RULES), 3),
        "weight_precision": some(["bf16", "fp8", "int4"]),
        "kv_precision": some(["bf16", "fp8"]),
        "prefix_hit_rate": some([0.0, 0.4, 1.0]),
        "draft_tokens": some([0, 3]),
        "parallelism": {"devices": some([8, 16]), "tp": [1, 2, 8], "pp": [1, 2], "ep": some([1, 8])},
        "hbm_bandwidth": {"scale": [0.5, 1.0, 3.0]},
    }
    order = generator.permutation(list(axes))
    sizes = {
        "prompt_tokens": int(generator.choice([100, 2048, 30000])),
        "output_tokens": int(generator.choice([1, 2, 400])),
        "batch": int(generator.choice([8, 64])),
        "request_rate": float(generator.choice([0.1, 5.0])),
        "requests": 300,
        "draft_acceptance": 0.7,
    }
    axes = {str(name): axes[str(name)] for name in order}
    return pg.Study.make(workload="inference", outputs=list(OUTPUTS), axes=axes, workload_parameters=sizes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_grid_equals_a_replay(seed):
    """Every output and constraint at drawn points; float32 is compared with the largest value of its unit."""
    generator = np.random.default_rng(seed)
    made = drawn_study(generator)
    space = made.space
    graph = resolve_checked(made.registry, OUTPUTS, space.names(), labels=space.label_quantities())
    dtype, tolerance = [("float32", 2e-5), ("float64", 1e-11)][seed % 2]
    ds = pg.evaluate(made, dtype, 3000, [None, 0][seed // 2 % 2])
    for _ in range(12):
        index = tuple(int(generator.integers(n)) for n in space.shape)
        values = replay(graph, {n: space.at(n, index) for n in graph.leaves})
        at = {a.name: i for a, i in zip(space.axes, index, strict=True)}
        stated = {str(a.labels[i]) for a, i in zip(space.axes, index, strict=True)}
        for name in OUTPUTS:
            variable = ds[name]
            found = np.squeeze(variable.isel({d: at[str(d)] for d in variable.dims if d in at}).values)
            expected = np.squeeze(np.asarray(values[name]))
            assert np.all(np.isfinite(expected)), name
            scale = np.abs(expected).max() + 1e-12
            # batches from a table solved backwards, and waits near saturation, cost float32 a digit
            wide = 2 if dtype == "float32" and {"rate", "separate"} & stated else 1
            assert np.abs(found - expected).max() <= wide * tolerance * scale, (name, found, expected)


DIFFERENTIATED = (
    "hbm_bandwidth",
    "peak_bf16_rate",
    "l2_bandwidth",
    "vector_rate",
    "launch_overhead",
    "step_overhead",
    "collective_overhead",
    "request_rate",
    "draft_acceptance",
    "prefix_hit_rate",
    "hbm_efficiency",
)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "rule"), [("gpt-oss-120b", "run"), ("deepseek-v3", "rate")])
def test_derivatives_are_finite_and_agree_with_differences(model, rule):
    given = point(
        model,
        software="deepseek-serving",
        tp=2.0,
        dp=4.0,
        ep=8.0,
        batch=64.0,
        batch_rule=rule,
        draft_tokens=2.0,
        draft_acceptance=0.6,
        prefix_hit_rate=0.3,
        devices=8.0,
    )
    labels = {name: (str(given[name]),) for name in LABELS if name in given}
    graph = resolve(registry(), ("request_latency", "output_tokens_per_second"), point(), labels=labels)
    leaves = {n: 0.0 if n in LABELS else given[n] for n in graph.leaves}
    names = [n for n in DIFFERENTIATED if n in leaves]
    at = np.array([float(leaves[n]) for n in names])

    def latency(numbers):
        values = {**leaves, **{n: numbers[i] for i, n in enumerate(names)}}
        for node in graph.nodes.values():
            values[node.name] = node.function(*(values[a] for a in node.arguments))
        return (jnp if isinstance(numbers, jax.Array) else np).squeeze(values["request_latency"])

    with jax.enable_x64(True):
        slopes = np.asarray(jax.jacfwd(latency)(jnp.asarray(at)))
    assert np.isfinite(slopes).all(), dict(zip(names, slopes, strict=True))
    for i, name in enumerate(names):
        step = 1e-6 * max(at[i], 1e-9)
        low, high = (float(latency(at + d * (np.arange(len(at)) == i))) for d in (-step, step))
        difference = (high - low) / (2 * step)
        noise = 1e-12 * abs(high) / step
        assert abs(slopes[i] - difference) <= 1e-3 * abs(difference) + noise, (name, slopes[i], difference)
