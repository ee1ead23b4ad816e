"""Which kernels memory bounds: the ratio against what the list of kernels says they wait for, and its views."""

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.engine.errors import PerfgridError
from perfgrid.pictures.views.make import picture_of
from tests.paths import study_path

BATCHES = [1, 16, 128]


@pytest.fixture(scope="module")
def study():
    settings = ['axes.device=["a100-sxm-80gb", "h100-sxm-80gb"]', f"axes.batch={BATCHES}"]
    return pg.load_study(study_path("compute_or_memory"), settings)


@pytest.fixture(scope="module")
def ratio(study):
    return pg.evaluate(study).kernel_memory_ratio.squeeze(drop=True)


@pytest.mark.parametrize("device", ["a100-sxm-80gb", "h100-sxm-80gb"])
@pytest.mark.parametrize("batch", [1, 128])
def test_the_ratio_says_what_kernels_wait_for(study, ratio, device, batch):
    """Above 1 a kernel waits for memory, below for something on chip, unless launches take longer than both."""
    compared = 0
    for kernel in pg.kernels(study, {"device": device, "batch": batch}).kernels:
        if kernel.name not in ratio.kernel:
            continue
        for phase, bound in kernel.bound_by.items():
            if (kernel.name, phase) == ("attention", "prefill"):  # which hides only part of its traffic
                continue
            here = float(ratio.sel({"device": device, "batch": batch, "kernel": kernel.name, "pass": phase}))
            if bound != "launch" and abs(here - 1) > 0.02:
                assert (bound == "hbm") == (here > 1), (kernel.name, phase, here, bound)
                compared += 1
    assert compared >= 8


def test_a100_is_bound_by_compute_and_h100_by_memory(ratio):
    """Prefill of 200 tokens of Llama 2 13B, batch 1, as in Kundu et al. 2024."""
    layer = ratio.sel({"kernel": ["qkv", "attention_output", "ffn_up", "ffn_down"], "pass": "prefill", "batch": 1})
    assert (layer.sel(device="a100-sxm-80gb") < 1).all()
    assert (layer.sel(device="h100-sxm-80gb") > 1).all()


def test_kernels_that_a_model_has_not(ratio):
    absent = ["query_up", "key_up", "router", "shared_up", "mixer_input", "expert_up", "expert_down"]
    assert (ratio.sel(kernel=absent) == 0).all()
    mixture = pg.Study.make(
        workload="inference",
        outputs=["kernel_memory_ratio"],
        axes={
            "model": ["mixtral-8x7b", "deepseek-v3"],
            "device": ["b200"],
            "batch": [64],
            "parallelism": {"devices": [8], "tp": [8]},
        },
        workload_parameters={"prompt_tokens": 512, "output_tokens": 128, "precision": "bf16"},
    )
    found = pg.evaluate(mixture).kernel_memory_ratio.squeeze(drop=True)
    assert (found.sel(kernel=["expert_up", "expert_down", "attention"]) > 0).all()
    assert np.isfinite(found).all()


def test_views_of_inner_axes(study, ratio):
    """An inner axis of an output is an axis of a view: its numbers are those of the dataset."""
    at = {"pass": "decode", "device": "h100-sxm-80gb", "kernel": ["qkv", "logits"]}
    picture = picture_of(
        study, {"kind": "heatmap", "x": "batch", "y": "kernel", "value": "kernel_memory_ratio", "at": at}
    )
    cells = picture.panels[0].cells
    assert cells is not None
    assert picture.panels[0].y.categories == ("logits", "qkv")
    assert np.array(cells.numbers) == pytest.approx(
        ratio.sel(at).sel(kernel=["logits", "qkv"]).transpose("kernel", "batch").values, rel=1e-5
    )


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ({"pass": "decode"}, "kernel_memory_ratio has a number for each kernel: name it in x, y, colour, facets or at"),
        ({"pass": "decod", "kernel": "qkv"}, "no label of pass: 'decod'; did you mean 'decode'"),
        ({"pass": "decode", "kernel": "qkv", "phase": "forward"}, "the view names 'phase', along which"),
    ],
)
def test_mistakes_in_views_of_inner_axes(study, at, message):
    with pytest.raises(PerfgridError, match=message):
        picture_of(study, {"kind": "lines", "x": "batch", "colour": "device", "y": "kernel_memory_ratio", "at": at})


def test_a_setting_of_axes_leaves_out_views_that_do_not_fit(study):
    assert [view.name for view in study.file.view] == ["decode", "prefill", "products"]
    fewer = pg.load_study(study_path("compute_or_memory"), ['axes.device=["a100-sxm-80gb"]'])
    assert [view.name for view in fewer.file.view] == ["decode", "prefill"]
    with pytest.raises(PerfgridError, match="has no label 'h100-sxm-80gb'"):
        pg.Study.make(**{**fewer.file.model_dump(exclude_unset=True), "view": [study.file.view[2].model_dump()]})
