"""Prompts that begin alike or come in several passes: what is computed, held and read, by hand and by loops."""

from itertools import product
from typing import Any

import jax
import numpy as np
import pytest

import perfgrid as pg
from perfgrid.engine import resolve
from tests.inference.designs import LABELS, evaluate, point, registry, value
from tests.slopes import slopes_of_graph

TOKEN = 32 * 2 * 4096 * 2  # bytes that one token of Llama 2 7B leaves in the cache
LONG: dict[str, Any] = {"prompt_tokens": 5000.0, "output_tokens": 1000.0}


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_a_shared_prefix_is_held_once():
    """4000 of 5000 tokens are shared: 63 pages of 64 once; each sequence has 2000 of its own in 32 pages, or 94."""
    found = evaluate("sequence_cache_memory", "shared_prefix_memory", shared_prefix_tokens=4000.0, **LONG)
    assert found["shared_prefix_memory"] == 63 * 64 * TOKEN
    assert found["sequence_cache_memory"] == 32 * 64 * TOKEN
    assert value("sequence_cache_memory", **LONG) == 94 * 64 * TOKEN
    assert value("shared_prefix_memory", **LONG) == 0
    room = {"batch_rule": "memory", "device": "h200-sxm-141gb"}
    capacity = value("cache_capacity", shared_prefix_tokens=4000.0, **LONG, **room)
    fitting = (capacity - 63 * 64 * TOKEN) // (32 * 64 * TOKEN)
    assert value("largest_batch", shared_prefix_tokens=4000.0, **LONG, **room) == fitting
    assert fitting > 2 * value("largest_batch", **LONG, **room)


def test_every_replica_holds_the_prefix():
    common = {"shared_prefix_tokens": 4000.0, "tp": 2.0, "dp": 3.0, "batch": 12.0} | LONG
    assert value("kv_cache_memory", **common) == (4 * 32 + 63) * 64 * TOKEN / 2


def test_a_window_keeps_no_more_of_a_prefix_than_it_holds():
    masks = {"window": 1024.0, "windowed_layers_fraction": 1.0, "shared_prefix_tokens": 4000.0} | LONG
    assert value("shared_prefix_memory", **masks) == value("sequence_cache_memory", **masks) == 1024 * TOKEN


# ---- what is computed and read --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "shared", "computed"), [(0, 0, 5000), (0.5, 0, 2500), (0.5, 2000, 2500),
                                                          (0.5, 3000, 2000), (1, 0, 1), (0, 5000, 1)])  # fmt: skip
def test_a_shared_prefix_is_always_found(rate, shared, computed):
    given = {"prefix_hit_rate": float(rate), "shared_prefix_tokens": float(shared)}
    assert value("computed_prompt_tokens", **LONG, **given) == computed


def test_what_is_found_is_worth_the_same_however_it_is_said():
    ways = ({"prefix_hit_rate": 0.8}, {"shared_prefix_tokens": 4000.0}, {})
    rate, shared, none = (value("time_to_first_token", **LONG, **way) for way in ways)
    assert rate == pytest.approx(shared, rel=1e-12)
    assert rate < 0.5 * none


def test_every_sequence_reads_the_prefix_that_it_shares():
    """No kernel that reads it once for all is modelled: a decoding step takes as long as without sharing."""
    step = {"batch": 32.0} | LONG
    assert value("decode_step_time", shared_prefix_tokens=4000.0, **step) == value("decode_step_time", **step)


@pytest.mark.parametrize(("prompt", "cached", "chunk"), [(8192, 0, 1024), (10_000, 2000, 500), (4096, 0, 4096)])
def test_passes_read_what_earlier_passes_left(prompt, cached, chunk):
    """Llama 2 7B, pass by pass: the pass that begins with token t reads t tokens."""
    given = {"prompt_tokens": float(prompt), "prefix_hit_rate": cached / prompt, "prefill_chunk_tokens": float(chunk)}
    read = sum(range(cached, prompt, chunk))
    assert value("prefix_traffic", **given) == pytest.approx(read * TOKEN / 32)


def test_tiny_passes_wait_for_the_cache():
    """Chunks of 16 tokens have less to compute than the cache before them takes to be read; of 2048 far more."""
    prompt = {"prompt_tokens": 65536.0, "output_tokens": 2.0}
    small, large = (
        np.sum(evaluate("dense_attention_time", prefill_chunk_tokens=c, **prompt)["dense_attention_time"])
        for c in (16.0, 2048.0)
    )
    least = sum(range(0, 65536, 16)) * TOKEN / 3.35e12
    assert small > least > 2 * large


def test_a_grid_of_prefixes_and_formats_is_what_its_points_are():
    axes: dict[str, Any] = {
        "model": ["llama-3.1-70b"],
        "device": ["h100-sxm-80gb"],
        "topology": ["rail-optimized"],
        "software": ["vllm", "meta-inference"],
        "shared_prefix_tokens": [0, 4000],
        "quantised_attention": [True, False],
        "parallelism": {"devices": [8], "tp": [4], "pp": [1], "cp": [1, 2]},
    }
    fixed = {"precision": "fp8", "weight_precision": "fp8", "batch": 16, **LONG}
    names = ("request_latency", "memory_per_device", "energy_per_request")
    ds = pg.evaluate(pg.Study.make(workload="inference", outputs=names, axes=axes, workload_parameters=fixed))
    counted = (range(len(axes[name])) for name in ("software", "shared_prefix_tokens", "quantised_attention"))
    for i, j, k, cp in product(*counted, (1, 2)):
        point = ds.isel(software=i, shared_prefix_tokens=j, quantised_attention=k)
        chosen = {name: axes[name][n] for name, n in zip(list(axes)[3:6], (i, j, k), strict=True)}
        layout = {"model": "llama-3.1-70b", "tp": 4.0, "cp": float(cp), "dp": 2.0 / cp}
        expected = evaluate(*names, **layout, **chosen, **fixed)
        for name in names:
            found = point[name].sel(parallelism=f"tp4.cp{cp}.pp1.dp{2 // cp}")
            assert float(found.squeeze()) == pytest.approx(expected[name], rel=1e-5), (name, chosen, cp)


# ---- derivatives ----------------------------------------------------------------------------------------------------


ENDS = pytest.mark.parametrize(
    ("rate", "shared"), [(0.0, 0.0), (1.0, 0.0), (0.5, 2500.0), (0.0, 5000.0), (0.0, 6000.0)]
)
OUTPUTS = ("request_latency", "memory_per_device", "largest_batch")


def graph_and_values():
    given = point(batch_rule="rate", cp=2.0, tp=2.0, **LONG)
    labels = {name: (str(given[name]),) for name in LABELS if name in given}
    graph = resolve(registry(), OUTPUTS, point(), labels=labels)
    return graph, {n: 0.0 if n in LABELS else given[n] for n in graph.leaves}


@ENDS
def test_derivatives_are_finite(rate, shared):
    graph, values = graph_and_values()
    free = {"prefix_hit_rate": rate, "shared_prefix_tokens": shared}
    slopes = slopes_of_graph(graph, values | free, free)
    assert set(OUTPUTS) <= slopes.keys()
    assert all(np.isfinite(slope).all() for along in slopes.values() for slope in along.values())


@pytest.mark.slow
@ENDS
def test_derivatives_in_reverse_mode_are_finite(rate, shared):
    graph, leaves = graph_and_values()

    def found(numbers):
        values: dict[str, Any] = leaves | dict(zip(("prefix_hit_rate", "shared_prefix_tokens"), numbers, strict=True))
        for node in graph.nodes.values():
            values[node.name] = node.function(*(values[a] for a in node.arguments))
        return [jax.numpy.sum(values[name]) for name in OUTPUTS]

    with jax.enable_x64(True):
        assert np.isfinite(np.asarray(jax.jacrev(found)(jax.numpy.asarray([rate, shared])))).all()
