"""Layers that use keys and values of earlier ones, and embeddings of layers (Gemma 3n): counts by hand, limits."""

import pytest

import perfgrid as pg
from perfgrid.formulas.axes import INNER as INNER_AXES
from tests.inference.designs import value as of_serving

from .test_recurrent_training import value

GEMMA = "gemma-3n-e4b"
LAYERS, SHARED, H, OWN, VOCABULARY = 35, 15, 2048, 256, 262_400
QUERIES, KEYS, INNER = 8 * 256, 2 * 256, 16_384
EMBEDDING = INNER_AXES.labels["stream_kernel"].index("embedding")
TABLES = VOCABULARY * (H + LAYERS * OWN)


def matrices(of_layers=LAYERS, with_keys=LAYERS - SHARED):
    """Weights of the matrices of all layers, written out."""
    attention = of_layers * 2 * H * QUERIES + with_keys * 2 * H * KEYS
    return attention + of_layers * 3 * H * (INNER + OWN)


def test_parameters_by_hand():
    assert value("total_parameters", GEMMA) == matrices() + TABLES + (2 * LAYERS + 1) * H
    assert value("stage_parameters", GEMMA) == pytest.approx(matrices() + TABLES + 2 * LAYERS * H, rel=1e-12)


def test_flops_of_a_token_by_hand():
    """Tables are looked up; every layer attends, whosever keys it uses."""
    core = LAYERS * 4 * QUERIES * 4096
    weights = matrices() + VOCABULARY * H
    assert value("model_flops_per_token", GEMMA, window=0.0, window_layers=0.0) == pytest.approx(
        3 * (2 * weights + core), rel=1e-12
    )


def test_what_a_token_looks_up():
    """35 embeddings of 256 elements besides its own: 17.9 kB of 16 bits."""
    assert (value("looked_up_width", GEMMA) - H) * 2 == 17_920
    assert value("stream_elements", GEMMA)[EMBEDDING] == 4096 * (H + LAYERS * OWN)


def test_a_cache_of_twenty_layers():
    """Keys and values of 20 of 35 layers, four of them whole."""
    point = {"model": GEMMA, "kv_precision": "bf16", "prompt_tokens": 32_000.0}
    assert of_serving("key_value_size_per_token", **point) == 20 * 2 * KEYS * 2
    assert of_serving("rank_prompt_cache", **point) == pytest.approx((4 * 32_000 + 16 * 512) * 2 * KEYS * 2)


def test_serving_reads_the_weights_that_there_are():
    """Tables take memory and hardly any time; without keys of their own layers read less."""
    point = {"model": GEMMA, "batch": 1.0, "precision": "bf16", "weight_precision": "bf16"}
    assert of_serving("weight_memory", **point) == pytest.approx(2 * (matrices() + TABLES), rel=1e-12)
    found = [of_serving("decode_step_time", shared_key_layers=n, **point) for n in (0.0, float(SHARED))]
    assert 0.9 * found[0] < found[1] < found[0]


def test_shared_keys_and_embeddings_stay_on_a_stage():
    """Of two stages the second would lack them: a flagged point with its reason."""
    study = pg.Study.make(
        outputs=["step_time"],
        axes={
            "model": [GEMMA, "gemma-3-4b"],
            "device": ["h100-sxm-80gb"],
            "topology": ["hgx-h100-400g"],
            "parallelism": {"devices": [8], "tp": [1], "pp": [1, 2]},
        },
        workload_parameters={"sequence_length": 4096, "global_batch": 64},
    )
    flag = pg.evaluate(study)["shared_keys_stay_on_a_stage"]
    assert flag.sel(model=GEMMA).values.tolist() == [1, 0]
    assert flag.sel(model="gemma-3-4b").values.tolist() == [1, 1]
    assert "pp must be 1" in flag.attrs["reason"]
    assert not of_serving("shared_keys_stay_on_a_stage", model=GEMMA, pp=2.0)
