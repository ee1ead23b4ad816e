"""The same text under JAX: single precision agrees with the replay, and derivatives exist everywhere."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfgrid.catalog import load_catalog

from .cases import LABELS, QUICK, evaluate, graph, point

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


TIMES = ("step_time", "model_flops_utilization", "exposed_dp_time")


def leaves_of(given):
    coded = {k: float(LABELS[k].index(v)) if k in LABELS and k != "library" else v for k, v in given.items()}
    coded["library"] = 0.0  # each graph has one
    return {name: jnp.asarray(coded[name]) for name in graph((), given["library"]).leaves}


def everything(leaves, library):
    results = dict(leaves)
    for node in graph((), library).nodes.values():
        results[node.name] = node.function(*(results[a] for a in node.arguments))
    return results


traced = jax.jit(everything, static_argnums=1, compiler_options=QUICK)


@partial(jax.jit, static_argnums=1)
def differentiated(leaves, library):
    """Derivatives of `TIMES` with respect to every differentiable quantity, and the values of all."""
    names = [v.name for v in load_catalog().variables.values() if v.differentiable and v.name in leaves]

    def times(hardware):
        found = everything({**leaves, **hardware}, library)
        return jnp.stack([jnp.reshape(found[n], ()) for n in TIMES]), found

    return jax.jacfwd(times, has_aux=True)({name: leaves[name] * 1.0 for name in names})


@pytest.mark.parametrize("changes", POINTS)
def test_single_precision_agrees_with_the_replay(changes):
    given = point(**changes)
    exact = evaluate(given)
    ideal = given["library"] == "ideal"  # compiled once, with the derivatives
    single = differentiated(leaves_of(given), "ideal")[1] if ideal else traced(leaves_of(given), given["library"])
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


@pytest.mark.parametrize("changes", [*(pytest.param(p, marks=pytest.mark.slow) for p in POINTS[:-1]), POINTS[-1]])
def test_derivatives_exist_everywhere(changes):
    given = point(**changes)
    slopes, _ = differentiated(leaves_of(given), given["library"])
    assert len(slopes) >= 15
    for name, slope in slopes.items():
        slope = np.reshape(slope, (3, -1))
        assert np.all(np.isfinite(slope)), name
        if name in ("hbm_bandwidth", "peak_bf16_rate", "scale_up_bandwidth"):
            assert slope[0].sum() <= 0, name
