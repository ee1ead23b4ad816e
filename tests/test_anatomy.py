"""Anatomy of a step: its parts add up, and published profiles are compared category by category."""

import numpy as np
import pytest

from perfgrid import PerfgridError, Study
from perfgrid.analysis.execution import PASSES as TIMED
from perfgrid.analysis.execution import execute
from perfgrid.analysis.step_anatomy import CATEGORIES, OF_KERNEL, PASSES, step_anatomy
from perfgrid.analysis.timeline import dataset
from perfgrid.catalog import load_catalog
from perfgrid.engine.grid.replay import index_of, replay_point
from perfgrid.formulas import INNER
from tools.validation.anatomy import FAR, Category, main, passes_of, profiles

KERNELS_BY = ("product", "attention_kernel", "stream_kernel", "expert_product", "expert_stream_kernel")


def study(model, software, layout, **parameters):
    schedule = {"schedule": [parameters.pop("schedule")]} if "schedule" in parameters else {}
    return Study.make(
        outputs=["step_time"],
        dtype="float64",
        axes={
            "model": [model],
            "device": ["h100-sxm-80gb"],
            "topology": ["hgx-h100-400g"],
            "software": [software],
            "parallelism": layout,
            **schedule,
        },
        workload_parameters={"sequence_length": 4096, "global_batch": 256, "zero": 1} | parameters,
    )


def labels(made):
    return {axis.name: axis.labels[0].item() for axis in made.space.axes}


DESIGNS = {
    "unfused": ("llama-2-7b", "megatron-core", {"tp": 2, "pp": 4}, {"flash_attention": False}),
    "interleaved": ("llama-2-7b", "megatron-core", {"pp": 2, "chunks": 4}, {"recompute": "full"}),
    "modules": (
        "llama-2-7b",
        "megatron-core",
        {"pp": 4},
        {"schedule": "zb_h1", "recompute": "none", "recompute_norms": True, "recompute_activation_function": True},
    ),
    "context": ("llama-2-7b", "torchtitan", {"cp": 2}, {"recompute": "least", "zero": 3}),
    "sharded in part": ("llama-2-7b", "torchtitan", {}, {"recompute": "selective", "zero": 3, "zero_size": 8}),
    "adapters": ("llama-3.1-70b", "nemo", {"tp": 8}, {"lora_rank": 16, "lora_targets": "qkv"}),
    "latent attention": (
        "deepseek-v3",
        "hai-llm",
        {"devices": 512, "pp": 16, "ep": 32},
        {"schedule": "dualpipe", "global_batch": 2048, "recompute_latents": True, "recompute_norms": True},
    ),
    "sparse attention": ("deepseek-v3.2", "megatron-bridge", {"devices": 512, "pp": 8, "ep": 32}, {"precision": "fp8"}),
    "hybrid": ("qwen3-next-80b-a3b", "megatron-core", {"tp": 2, "pp": 2, "ep": 16}, {"recompute": "full"}),
    "experts": ("qwen3-30b-a3b", "nanotron", {"ep": 8}, {"recompute": "none"}),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_parts_add_up(name):
    """Kernels add up to the passes of a step, and with what it waits for to the step."""
    model, software, layout, parameters = DESIGNS[name]
    made = study(
        model, software, {k: [v] for k, v in ({"devices": 64, "tp": 1, "pp": 1} | layout).items()}, **parameters
    )
    found = step_anatomy(made, labels(made))
    assert sum(found.by_category().values()) == pytest.approx(found.step_time, rel=1e-9)
    index = index_of(made.space, labels(made))
    names = {f"{done}_time": done for done in PASSES}
    _, values = replay_point(made.registry, made.space, names, index, made.file.choices)
    for quantity, done in names.items():
        spent = sum(share.time for share in found.shares if share.done == done)
        assert spent == pytest.approx(np.squeeze(values[quantity]).item(), rel=1e-9), done
    assert found.seconds("kernels") == pytest.approx(sum(found.by_kernel().values()))
    assert sum(found.seconds(c) for c in CATEGORIES) == pytest.approx(found.seconds("kernels"))
    assert found.in_all["all-gather"] >= 0


def test_exposed_collectives_are_parts_of_them():
    """Of one microbatch whose gathers hide nothing all is exposed, gathers before the backward pass among them."""
    layout = {"devices": [64], "tp": [1], "pp": [1]}
    parameters = {"zero": 3, "global_batch": 64, "recompute": "full"}
    made = study("llama-2-7b", "torchtitan", layout, **parameters)
    alone = Study.make(
        outputs=["step_time"],
        dtype="float64",
        axes={name: [label] for name, label in labels(made).items() if name != "parallelism"} | {"parallelism": layout},
        workload_parameters={"sequence_length": 4096, **parameters},
        overrides={"dp_overlap": 0, "parameter_overlap": 0},
    )
    found = step_anatomy(alone, labels(alone))
    for name in ("all-gather", "reduce-scatter"):
        assert found.seconds(f"{name}, exposed") == pytest.approx(found.in_all[name])


def test_every_kernel_has_a_category():
    assert {label for axis in KERNELS_BY for label in INNER.labels[axis]} <= set(OF_KERNEL)


def test_what_cannot_be_taken_apart():
    layout = {"devices": [64], "tp": [1], "pp": [1]}
    made = study("llama-2-7b", "torchtitan", layout, zero=3)
    with pytest.raises(PerfgridError, match="no part 'matrix product'"):
        step_anatomy(made, labels(made)).seconds("matrix product")
    made = study("llama-2-7b", "torchtitan", layout)
    with pytest.raises(PerfgridError, match="illegal: the software stores shards"):
        step_anatomy(made, labels(made))


def test_passes_of_a_device():
    """DualPipe on two devices: each takes three seconds for each of eight microbatches, side by side or alone."""
    events = dataset(execute("dualpipe", 2, 1, 8, {name: [1.0, 1.0] for name in TIMED}, 0.1), {})
    found = passes_of(events, 0)
    assert sum(found.values()) == pytest.approx(events.attrs["pipeline_time"])
    assert sum(time for name, time in found.items() if name != "idle") == pytest.approx(8 * 3.0)
    assert found["pairs"] % 3 == 0
    assert found["pairs"] > found["forward alone"] > 0


def test_profiles_are_valid():
    references = load_catalog().references
    found = profiles()
    assert len(found) >= 4
    assert len({p.name for p in found}) == len(found)
    for profile in found:
        assert profile.stated["source"] in references
        assert profile.stated["not_compared"]
        assert len(profile.categories) >= 5
        for category in profile.categories:
            assert 0 < category.measured < 100
            assert 0 < category.predicted < 20 * category.measured, (profile.name, category)
        step = sum(share.time for share in profile.anatomy({}).shares)
        assert sum(profile.beside.values()) <= step


def test_norms_of_a_profile_by_hand():
    """Megatron-FSDP: two norms in each of 80 layers and a last one; two microbatches; passes of 4096 x 8192 values."""
    (profile,) = profiles(["llama-70b-megatron-fsdp"])
    catalog = load_catalog()
    entries = catalog.entry("software", "megatron-fsdp"), catalog.entry("device", "h100-sxm-80gb")
    values = {name: value for entry in entries for name, value in entry.values.items()}
    names = ("norm_passes", "launch_overhead", "hbm_bandwidth", "hbm_efficiency")
    passes, launch, bandwidth, efficiency = (float(str(values[name])) for name in names)
    value = 2 * passes * 4096 * 8192 / (bandwidth * efficiency)  # read or written once
    forward, backward = 2 * value + launch, 5 * value + 2 * launch
    expected = 2 * (80 * 2 * (2 * forward + backward) + forward + backward)
    (norms,) = (c for c in profile.categories if c.name == "norms")
    assert norms.predicted == pytest.approx(expected, rel=1e-6)
    assert norms.measured == pytest.approx(0.072)


def test_reasons_of_large_differences():
    assert not Category("a", 1.0, 1 + FAR / 2, "why").reason
    assert Category("a", 1.0, 1 + 2 * FAR, "why").reason == "why"
    assert Category("a", 1.0, 1 - 2 * FAR).reason == "not explained"


def test_the_command_prints_them(capsys):
    main(["gpt-22b-layer", "qwen3-30b-h100"])
    text = capsys.readouterr().out
    for part in ("gpt-22b-layer: One layer", "backward, all recomputed", "0.0195", "not compared:", "also predicted:"):
        assert part in text
    with pytest.raises(SystemExit):
        main(["gpt-22b"])
    assert "no profile 'gpt-22b'" in capsys.readouterr().err
