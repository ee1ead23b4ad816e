"""The same text under JAX: single precision agrees with the replay, and derivatives exist everywhere."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfgrid.catalog import load_catalog
from perfgrid.engine import resolve
from tests.slopes import slopes_of_graph

from .cases import LABELS, evaluate, point, step_registry

POINTS = [
    {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "tp": 1.0},
    {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "tp": 2.0, "pp": 4.0, "dp": 16.0, "zero": 1.0},
    {"model": "gpt3-175b", "tp": 8.0, "pp": 8.0, "chunks": 3.0, "global_batch": 64.0, "flash_attention": False},
    {"model": "qwen-2.5-72b", "device": "mi300x", "tp": 16.0, "dp": 3.0, "pp": 3.0, "recompute": "full"},
    {"model": "llama-2-7b", "device": "v100-sxm-32gb", "tp": 3.0, "precision": "fp8"},
    {"model": "llama-2-7b", "device": "h100-sxm-80gb", "topology": "rails", "tp": 4.0, "pp": 2.0, "dp": 4.0},
    {"model": "deepseek-v3", "device": "h100-sxm-80gb", "tp": 2.0, "cp": 4.0, "sequence_length": 16384.0},
    {
        "model": "llama-3.1-8b",
        "device": "b200",
        "cp": 4.0,
        "tp": 2.0,
        "cp_method": "hybrid",
        "ulysses_ranks": 2.0,
        "document_length": 512.0,
    },
    {"model": "gpt3-175b", "device": "tpu-v5p", "topology": "tpu-torus-4x4x4", "tp": 16.0, "pp": 4.0, "dp": 2.0},
]
SHARDED = [  # shards, adapters, offloading, scaled formats
    {"model": "llama-3.1-8b", "device": "gb200", "global_batch": 64.0, "sequence_length": 4096.0} | changes
    for changes in (
        {"software": "torchtitan", "zero": 3.0, "dp": 16.0, "tp": 1.0, "recompute": "least"},
        {"software": "torchtitan", "zero": 3.0, "dp": 16.0, "pp": 2.0, "tp": 2.0, "zero_size": 8.0},
        {"software": "megatron-core", "zero": 1.0, "dp": 8.0, "offload": "optimizer", "lora_rank": 16.0},
        {"software": "maxtext", "zero": 3.0, "dp": 1.0, "tp": 1.0, "offload": "activations", "recompute": "full"},
        {"software": "deepspeed", "zero": 2.0, "dp": 8.0, "precision": "fp4", "offload": "activations"},
    )
]
WANTED = (
    "step_time",
    "model_flops_utilization",
    "exposed_dp_time",
    "memory_per_device",
    "expected_training_time",
    "dp_bytes",
)
PROGRAM = {  # what is not set in `tests.conftest`
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    **({"xla_cpu_use_fusion_emitters": True} if jax.__version_info__ < (0, 11, 1) else {}),
}
BOTH = ("nccl", "ideal")
MORE = ("dp_overlap", "parameter_overlap", "device_failure_rate", "checkpoint_bandwidth", "gathering_copy_size")


@cache
def graph_of(libraries):
    """The graph of the training physics with the fabrics of ``libraries`` as labels: compiled once for all points."""
    registry = step_registry()
    return resolve(registry, registry.names(), point(), labels=LABELS | {"library": libraries})


def values_of(leaves, libraries):
    """The values of all quantities."""
    results = dict(leaves)
    for node in graph_of(libraries).nodes.values():
        results[node.name] = node.function(*(results[a] for a in node.arguments))
    return results


def differentiated(leaves, libraries):
    """Derivatives of `WANTED` with respect to `free_names`."""

    def wanted(free):
        results = values_of({**leaves, **free}, libraries)
        return jnp.stack([jnp.reshape(results[n], ()) for n in WANTED])

    return jax.jacfwd(wanted)({name: leaves[name] * 1.0 for name in free_names(leaves)})


def free_names(leaves):
    """Every differentiable quantity and `MORE`."""
    names = [v.name for v in load_catalog().variables.values() if v.differentiable or v.name in MORE]
    return [name for name in names if name in leaves]


values_compiled = jax.jit(values_of, static_argnums=1)
differentiated_as_the_program = jax.jit(differentiated, static_argnums=1, compiler_options=PROGRAM)


def coded(given, libraries):
    """The values of all given quantities; labels as their numbers."""
    labels = LABELS | {"library": libraries}
    numbers = {k: float(labels[k].index(v)) if k in labels else v for k, v in given.items() if k != "layer_pattern"}
    return {name: numbers.get(name, 0.0) for name in graph_of(libraries).leaves}


def under_jax(given, function, libraries=BOTH):
    """What a function finds of a design in single precision."""
    return function({name: jnp.asarray(value) for name, value in coded(given, libraries).items()}, libraries)


@pytest.mark.slow
@pytest.mark.parametrize("changes", POINTS)
def test_single_precision_agrees_with_the_replay(changes):
    given = point(**changes) | {"layer_pattern": "dense_first"}
    exact = evaluate(given)
    single = under_jax(given, values_compiled)
    # differences that clip at zero and roundings of counts are not compared: the engine evaluates them in double
    for name in (
        "gemm_time",
        "flash_time",
        "core_product_time",
        "stream_time",
        "layer_time",
        "step_time",
        "memory_per_device",
    ):
        assert np.allclose(np.asarray(single[name]).reshape(-1), np.reshape(exact[name], -1), rtol=2e-5), name
    for name, value in single.items():
        if np.issubdtype(value.dtype, np.floating):
            assert np.all(np.isfinite(value)), name


def assert_finite(slopes):
    assert len(slopes) >= 15
    for name, slope in slopes.items():
        slope = np.reshape(slope, (len(slope), -1))
        assert np.all(np.isfinite(slope)), name
        if name in ("hbm_bandwidth", "peak_bf16_rate", "scale_up_bandwidth"):
            assert slope[0].sum() <= 0, name


@pytest.mark.parametrize("changes", [*POINTS, *SHARDED])
def test_derivatives_exist_everywhere(changes):
    values = coded(point(**changes), BOTH)
    slopes = slopes_of_graph(graph_of(BOTH), values, free_names(values))
    wanted = [slopes.get(name, {}) for name in WANTED]
    found = {name: np.stack([np.sum(along.get(name, 0.0)) for along in wanted]) for name in free_names(values)}
    assert set(MORE) <= set(found)
    assert_finite(found)
    if changes in SHARDED:
        assert found["hbm_bandwidth"][0] < 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "libraries"), [*((p, BOTH) for p in (*POINTS[:-1], *SHARDED)), (POINTS[-1], ("ideal",))]
)
def test_derivatives_exist_in_single_precision(changes, libraries):
    """Of code that is compiled as the program compiles it."""
    slopes = under_jax(point(**changes), differentiated_as_the_program, libraries)
    assert set(MORE) <= set(slopes)
    assert_finite(slopes)
