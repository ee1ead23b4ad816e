"""The benchmark study is what its page says, and plain broadcasting gives the evaluator's values."""

import numpy as np

from benchmarks.__main__ import GRID, broadcast, full_grid_outputs
from perfgrid.engine.stages import Evaluation
from perfgrid.study import load_study


def test_the_benchmark_grid_is_as_large_as_asked():
    plan = load_study(GRID).plan()
    axes = {a.name: len(a) for a in plan.space.axes}
    assert axes["parallelism"] >= 512
    assert axes["hbm_bandwidth"] > 1
    assert axes["scale_up_bandwidth"] > 1
    assert len(plan.outputs) == 20
    assert len(full_grid_outputs(plan)) >= 8


def test_plain_broadcasting_agrees_with_the_evaluator():
    small = (
        'axes.model=["llama-2-70b"]',
        'axes.device=["h100-sxm-80gb", "b200"]',
        "axes.parallelism.devices=[1024]",
        "axes.hbm_bandwidth.scale=[0.5, 1.0]",
        "axes.scale_up_bandwidth.scale=[1.0, 2.0]",
    )
    plan = load_study(GRID, small).plan(small_points=100)
    evaluated, plain = Evaluation(plan).collect(), broadcast(plan)
    for name in plan.outputs:
        expected = np.broadcast_to(plain[name], plan.result_shape(name))
        np.testing.assert_allclose(evaluated[name], expected, rtol=2e-4 if "exposed" in name else 2e-5, err_msg=name)
