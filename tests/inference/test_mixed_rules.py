"""Studies whose designs differ in who decides the batch, in the kind of model and in options: each as it is alone."""

import itertools
import random

import numpy as np
import pytest

import perfgrid as pg
from perfgrid import PerfgridError, Study

WHOLE = 2**24
RULES = ("given", "memory", "run", "concurrency", "rate", "clients")
OUTPUTS = [
    "output_tokens_per_second",
    "time_to_first_token",
    "time_per_output_token",
    "request_latency",
    "running_batch",
    "served_rate",
    "memory_per_device",
    "cost_per_million_output_tokens",
    "energy_per_output_token",
]
SINGLE = {"pp": 1, "cp": 1, "ep": 1}
OPTIONS = {  # every one on its own axis of rows
    "model": ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-120b"),
    "device": ("h100-sxm-80gb", "b200", "mi300x"),
    "software": ("vllm", "sglang", "tensorrt-llm"),
    "batch_rule": RULES,
    "length_distribution": ("constant", "lognormal", "uniform"),
    "weight_precision": ("bf16", "fp8", "fp4"),
    "kv_precision": ("bf16", "fp8"),
    "limit_statistic": ("mean", "p50", "p99"),
    "draft_tokens": (0, 3),
    "prefix_hit_rate": (0.0, 0.5),
    "batch": (4, 64),
    "requests": (100, 500),
    "loop_requests": (0, 320),
    "request_rate": (0.5, 2.0),
    "prompt_tokens": (100, 5000),
    "output_tokens": (1, 200),
    "prompt_variation": (0.0, 0.5),
    "output_variation": (0.3, 0.5),
    "tp": (4, 8),
    "dp": (1, 2),
}


def of_rows(rows, **parameters):
    zipped = {name: [row[name] for row in rows] for name in rows[0]}
    study = Study.make(
        workload="inference",
        outputs=OUTPUTS,
        dtype="float64",
        axes={"row": {"labels": [f"row {i}" for i in range(len(rows))], "zip": zipped}},
        workload_parameters=SINGLE | parameters,
    )
    return pg.evaluate(study, small_points=WHOLE)


def check(rows, **parameters):
    """Values and verdicts of rows evaluated together against those of each alone."""
    both, fits = of_rows(rows, **parameters), 0
    verdicts = pg.feasible(both, of=["request_latency"])
    for i, row in enumerate(rows):
        alone = of_rows([row], **parameters)
        for name in OUTPUTS:
            here = both[name].isel(row=i) if "row" in both[name].dims else both[name]
            np.testing.assert_allclose(here, alone[name].squeeze(), rtol=1e-9, err_msg=f"{name} of {row}")
        fit = bool(pg.feasible(alone, of=["request_latency"]).squeeze())
        assert bool(verdicts.isel(row=i) if "row" in verdicts.dims else verdicts) == fit, row
        fits += fit
    return fits


def plain(rule, **more):
    return {
        "model": "llama-3.1-8b",
        "device": "h100-sxm-80gb",
        "batch_rule": rule,
        "tp": 2,
        "dp": 2,
        "devices": 4,
        **more,
    }


PARAMETERS = {"prompt_tokens": 1000, "output_tokens": 200}
ASKED = {"requests": 300, "loop_requests": 300, "request_rate": 2.0, "batch": 16}


def test_every_pair_of_batch_rules_on_one_axis():
    alone = {rule: of_rows([plain(rule)], **PARAMETERS, **ASKED) for rule in RULES}
    for pair in itertools.combinations(RULES, 2):
        both = of_rows([plain(rule) for rule in pair], **PARAMETERS, **ASKED)
        for name in OUTPUTS:
            expected = [alone[rule][name].item() for rule in pair]
            np.testing.assert_allclose(np.broadcast_to(both[name].squeeze(), 2), expected, rtol=1e-9, err_msg=str(pair))


def random_rows(seed, count):
    chosen = random.Random(seed)
    rows = [{name: chosen.choice(values) for name, values in OPTIONS.items()} for _ in range(count)]
    for row in rows:
        row["devices"] = row["tp"] * row["dp"]
    return rows


def test_kinds_of_models_batch_rules_and_options_on_one_axis():
    assert check(random_rows(5, 10)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_many_rows_of_anything(seed):
    assert check(random_rows(seed, 40)) > 10


# ---- rows that leave a quantity open --------------------------------------------------------------------------------

NAN = float("nan")


def opened(**cells):
    rules = ["concurrency", "rate", "clients"]
    zipped = {"batch_rule": rules, "batch": [16, NAN, 8], "request_rate": [NAN, 2.0, None]} | cells
    return Study.make(
        workload="inference",
        outputs=OUTPUTS[:4],
        dtype="float64",
        axes={"model": ["llama-3.1-8b"], "device": ["b200"], "asked": {"labels": rules, "zip": zipped}},
        workload_parameters=SINGLE | PARAMETERS | {"devices": 1, "tp": 1, "dp": 1},
    )


def test_rows_leave_open_what_their_rule_does_not_need():
    found = pg.evaluate(opened(), small_points=WHOLE)
    full = pg.evaluate(opened(batch=[16, 999, 8], request_rate=[7.0, 2.0, 0.1]), small_points=WHOLE)
    for name in OUTPUTS[:4]:
        np.testing.assert_allclose(found[name], full[name], rtol=1e-12)
    assert "batch" not in found.coords  # what was put in open cells is shown nowhere
    assert "batch" in full.coords


def test_an_open_cell_with_a_default_is_the_default():
    found, full = (pg.evaluate(opened(draft_tokens=cells)) for cells in ([NAN, 2, NAN], [0, 2, 0]))
    np.testing.assert_allclose(found["request_latency"], full["request_latency"], rtol=1e-12)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"batch": [NAN, NAN, 8]}, "row 'concurrency': leaves 'batch' open, which"),
        ({"request_rate": [1.0, NAN, NAN]}, "row 'rate': leaves 'request_rate' open, which"),
        ({"batch": [NAN, NAN, NAN]}, "every row leaves 'batch' open"),
        ({"hbm_bandwidth": [4e12, NAN, 4e12]}, "leaves 'hbm_bandwidth' of the device open"),
        ({"request_latency": [1.0, NAN, 1.0]}, "row 'rate': leaves 'request_latency' open, which other rows state"),
    ],
)
def test_a_row_that_needs_what_it_leaves_open_is_refused(cells, words):
    with pytest.raises(PerfgridError, match=words):
        opened(**cells)
