"""Training of models with recurrent layers: layers with attention, with mixers, and where they stand."""

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.engine.grid.replay import replay_point
from tests.mixers.cases import design as of_mixer

QWEN = "qwen3-next-80b-a3b"
HYBRIDS = [n for n, m in load_catalog().tables["model"].items() if m.values.get("mixer_layers")]


def value(output, model=QWEN, layout=None, recompute="none", workload=None, **changes):
    """One quantity of one design in double precision, as a number or as an array along its inner axes."""
    study = pg.Study.make(
        outputs=[output],
        axes={
            "model": [model],
            "device": ["h100-sxm-80gb"],
            "topology": ["hgx-h100-400g"],
            "software": ["megatron-core"],
            "recompute": [recompute],
            "parallelism": {"devices": [8], "tp": [1], **(layout or {})},
            **{name: [changed] for name, changed in changes.items()},
        },
        workload_parameters={
            **{"sequence_length": 4096, "global_batch": 64, "sequence_parallel": True},
            **(workload or {}),
        },
    )
    index = (0,) * len(study.space.axes)
    found = np.asarray(replay_point(study.registry, study.space, [output], index)[1][output])
    return found.item() if found.size == 1 else found


@pytest.mark.parametrize("model", HYBRIDS)
def test_parameters_of_all_ranks_are_those_of_the_model(model):
    dense, experts = (value(f"stage_{kind}parameters", model, mtp_layers=0) for kind in ("", "expert_"))
    counted = (
        value("total_parameters", model) - load_catalog().entry("model", model).values["hidden_size"]
    )  # stages leave out the final norm
    assert dense + experts == pytest.approx(counted, rel=1e-12)


def test_flops_of_a_token_by_hand():
    h, s = 2048, 4096
    attention = h * (2 * 4096 + 2 * 512 + 4096)  # queries and their gate, keys and values, results
    mixer = h * (3 * 4096 + 2 * 2048 + 2 * 32) + 4 * (4096 + 2 * 2048) + 2 * 32 + 128
    experts = h * 512 + (10 + 1) * 3 * h * 512
    weights = 12 * attention + 36 * mixer + 48 * experts + 151_936 * h
    cores = 12 * 4 * s * 4096 + 36 * 7 * 32 * 128 * 128
    assert value("model_flops_per_token") == pytest.approx(3 * (2 * weights + cores), rel=1e-12)


def test_activations_of_a_mixer_by_hand():
    keys, values, heads, chunk = 2048, 4096, 32, 64
    convolution, qkv, gate, results, gated = 2 * keys + values, 2 * keys + values, values, values, values
    bytes_of_token = 2 * (convolution + qkv + gate + results + gated + heads * chunk) + 4 * 2 * heads
    assert value("mixer_activations") == pytest.approx(4096 * bytes_of_token, rel=1e-12)
    assert value("mixer_activations", layout={"tp": [2]}) == pytest.approx(2048 * bytes_of_token, rel=1e-12)


# ---- where the layers of each kind stand ---------------------------------------------------------------------------


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 48])
def test_every_fourth_layer_has_attention(pp):
    """Layers of Qwen3-Next handed out one by one: three recurrent layers, then one with attention.

    Of the fullest middle stages that with the longest layers counts: recurrent ones for short sequences.
    """
    full, missing = -(-48 // pp), -48 % pp
    stages = [full] * pp
    for stage in [pp - 1, 0, *range(pp - 2, 0, -1)][:missing]:
        stages[stage] -= 1
    kinds = iter(["recurrent", "recurrent", "recurrent", "attention"] * 12)
    dealt = [[next(kinds) for _ in range(n)] for n in stages]
    held = [(stage.count("attention"), stage.count("recurrent")) for stage in dealt]

    def of_stage(stage, tokens=4096):
        layout = {"devices": [64 * pp], "pp": [pp], "ep": [8]}
        workload = {"global_batch": 64 * 48, "sequence_length": tokens}
        return value(f"{stage}_stage_kind_layers", layout=layout, workload=workload).ravel()

    assert of_stage("first") == pytest.approx(held[0], abs=1e-12)
    assert of_stage("last") == pytest.approx(held[-1], abs=1e-12)
    if pp > 2:
        fullest = [h for h in held[1:-1] if sum(h) == max(stages[1:-1])]
        assert of_stage("middle", 2048) == pytest.approx(min(fullest), abs=1e-12)  # fewest with attention
        assert of_stage("middle", 262_144) == pytest.approx(max(fullest), abs=1e-12)


def test_dense_layers_of_a_hybrid_come_first():
    """Kimi Linear: a dense layer, then experts; a layer with attention ends each period of four."""
    held = value("first_stage_kind_layers", "kimi-linear-48b-a3b", {"devices": [64], "pp": [4]}).reshape(2, 2)
    assert np.sum(held, axis=1) == pytest.approx([1, 6])  # dense, experts
    assert np.sum(held, axis=0) == pytest.approx([1, 6])  # attention, recurrent


@pytest.mark.parametrize("model", HYBRIDS)
@pytest.mark.parametrize("layout", [{"pp": [4]}, {"pp": [8]}, {"pp": [4], "schedule": ["gpipe"]}])
def test_closed_forms_of_hybrid_pipelines_against_their_execution(model, layout):
    study = pg.Study.make(
        outputs=["step_time"],
        axes={
            "model": [model],
            "device": ["h100-sxm-80gb"],
            "topology": ["hgx-h100-400g"],
            "recompute": ["full"],
            "schedule": layout.get("schedule", ["1f1b"]),
            "parallelism": {"devices": [64], "tp": [2], "pp": layout["pp"]},
        },
        workload_parameters={"sequence_length": 16_384, "global_batch": 128},
    )
    found = pg.timeline(study)
    assert found.attrs["pipeline_time"] == pytest.approx(found.attrs["closed_form_time"], rel=0.02)


@pytest.mark.parametrize("output", ["step_time", "memory_per_device", "step_energy", "model_flops_per_token"])
def test_a_hybrid_lies_between_its_pure_kinds(output):
    series = [value(output, mixer_layers=n, attention_free_layers=n) for n in (0.0, 12.0, 24.0, 36.0, 48.0)]
    steps = np.diff(series)
    assert np.all(np.isfinite(series))
    assert abs(np.sign(steps).sum()) == len(steps), series


def test_no_software_is_a_bound_for_hybrids():
    bound, other = (value("mixer_recurrence_time", software=s).sum() for s in ("ideal", "megatron-core"))
    assert bound < 0.6 * other


def test_impossible_designs_are_flagged():
    assert value("recurrences_stay_whole", layout={"cp": [2]}) == 0
    assert value("mixer_heads_divide", layout={"tp": [2]}) == 1


def test_kernels_of_a_step_take_as_long_as_in_a_study_of_the_mixer():
    shape = {"mixer_heads": 32, "mixer_key_heads": 16, "mixer_key_dim": 128, "mixer_value_dim": 128}
    alone = of_mixer(
        device="h100-sxm-80gb",
        software="megatron-core",
        mixer="gated_delta_net",
        hidden_size=2048,
        convolution_length=4,
        sequence_length=4096,
        **shape,
    )
    kernels = value("mixer_recurrence_time").sum(axis=0).squeeze().sum(axis=-1)  # over resource and mixer_kernel
    np.testing.assert_allclose(kernels, np.ravel(alone["mixer_core_time"]), rtol=1e-12)


@pytest.mark.parametrize("model", HYBRIDS)
def test_gradients_are_finite(model):
    study = pg.Study.make(
        outputs=["step_time"],
        axes={
            "model": [model],
            "device": ["h100-sxm-80gb"],
            "topology": ["hgx-h100-400g"],
            "parallelism": {"devices": [8]},
            "host_launch_time": [0.0],  # kernels set the pace
        },
        workload_parameters={"sequence_length": 4096, "global_batch": 8},
    )
    slopes = pg.gradient(study, "step_time", ["hbm_bandwidth", "recurrence_efficiency"])["step_time_gradient"]
    assert np.all(np.isfinite(slopes))
    assert np.all(slopes < 0), slopes


# ---- adapters -------------------------------------------------------------------------------------------------------

DENSE = "qwen3.5-27b"  # 16 layers with gated attention, 48 gated delta nets
H, FFN, HEADS, KEYS = 5120, 17_408, 24 * 256, 4 * 256
MIXER_KEYS, MIXER_VALUES, MIXER_HEADS = 16 * 128, 48 * 128, 48
ATTENTION = [(H, 2 * HEADS + 2 * KEYS), (HEADS, H)]
MIXER = [(H, 2 * MIXER_KEYS + 2 * MIXER_VALUES + 2 * MIXER_HEADS), (MIXER_VALUES, H)]
BLOCK = [(H, 2 * FFN), (FFN, H)]


@pytest.mark.parametrize(("targets", "products"), [("all", 2), ("attention", 2), ("qkv", 1)])
def test_adapters_beside_the_matrices_of_mixers(targets, products):
    """Each adapted matrix K x N has r(K + N) parameters; they alone are trained."""
    workload = {"lora_rank": 16, "lora_targets": targets}
    matrices = 16 * ATTENTION[:products] + 48 * MIXER[:products] + (64 * BLOCK if targets == "all" else [])
    counted = 16 * sum(k + n for k, n in matrices)
    for layout in ({}, {"tp": [2]}):
        assert value("adapter_parameters", DENSE, layout, workload=workload, mtp_layers=0) == counted
    assert value("stage_trained_parameters", DENSE, workload=workload, mtp_layers=0) == pytest.approx(
        counted, rel=1e-12
    )
    flops = value("adapter_flops", DENSE, workload=workload, mtp_layers=0)
    assert flops.ravel() @ [16, 48] == pytest.approx(2 * 4096 * counted, rel=1e-12)


@pytest.mark.parametrize("model", ["falcon-h1-34b", DENSE])
def test_adapters_of_a_model_do_not_depend_on_its_ranks(model):
    """Ranks that share a key head hold the same columns, which count once."""
    workload = {"lora_rank": 16, "lora_targets": "all"}
    one, eight = (value("adapter_parameters", model, {"tp": [n]}, workload=workload) for n in (1, 8))
    assert eight == pytest.approx(one, rel=1e-12)


def test_frozen_mixers_have_no_gradients():
    """4 FLOPs per weight and token in place of 6, and less time and memory than training all weights."""
    frozen = {"lora_rank": 16, "lora_targets": "qkv"}
    for output in ("step_time", "memory_per_device", "step_energy"):
        assert value(output, DENSE, workload=frozen, mtp_layers=0) < value(output, DENSE, mtp_layers=0)
    less = value("model_flops_per_token", DENSE, mtp_layers=0)
    less -= value("model_flops_per_token", DENSE, workload=frozen, mtp_layers=0)
    assert less == pytest.approx(2 * value("parameters_per_token", DENSE), rel=1e-3)  # norms apart
