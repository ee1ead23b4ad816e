"""Explanations of the numbers of real studies: parts add up, and a screen holds them."""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.analysis.explanation.story import FOLDED
from perfgrid.analysis.explanation.text import OPEN, _shortened, most_lines, story_lines
from perfgrid.catalog import load_catalog
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE
from perfgrid.formulas import BREAKDOWN, INNER, every_formula
from perfgrid.study.study import load_study
from tests.paths import study_path
from tests.physics.test_engine_agrees import OUTPUTS, drawn_study
from tests.test_bad_input import run

ROOT = Path(__file__).parents[1]
DESIGNS = {
    "korthikanti": ("step_time", {"row": "22b full"}),
    "deepseek": (
        "step_time",
        {
            "schedule": "dualpipe",
            "microbatch": 1,
            "run": "deepseek-v3",
            "system": "H800",
            "parallelism": "tp1.cp1.pp16.dp128.ep64",
        },
    ),
    "chat_service": (
        "time_per_output_token",
        {"device": "b200", "format": "8 bits", "parallelism": "tp2.pp1.dp4"},
    ),
}


@cache
def study(name):
    return pg.load_study(study_path(name))


def check(part):
    """All parts below add up, and all but a hundredth is listed."""
    if part.parts:
        largest = max(abs(p.value) for p in part.parts)
        together = sum(p.value for p in part.parts) + part.folded.value
        assert together == pytest.approx(part.value, rel=1e-9, abs=1e-12 * largest), part.name
        assert abs(part.folded.value) <= FOLDED * abs(part.value)
    for below in part.below:
        check(below)


@pytest.mark.parametrize("name", DESIGNS)
def test_every_output_is_the_sum_of_its_parts_and_fits_a_screen(name):
    quantity, at = DESIGNS[name]
    for output in dict.fromkeys((quantity, *study(name).outputs)):
        found = pg.explain(study(name), output, at)
        for depth in (2, 4):
            check(found.story(depth, most_lines(depth)))
        for depth, most in ((2, 25), (3, 60)):
            lines = list(story_lines(found, INNER, depth))
            assert len(lines) <= most, output
            assert max(map(len, lines[1:])) <= 120
            assert lines[0].startswith("at ")
            if output == quantity:
                assert len(lines) > (6 if depth == 2 else 10)
                assert lines[1].startswith(quantity)
                assert lines[-1].startswith("% per 1 % more: ")


def test_the_parts_of_a_step_are_what_it_waits_for():
    given = load_study(
        ROOT / "studies" / "papers" / "korthikanti.toml", ("software.megatron-lm.library_efficiency=0.94",)
    )
    found = pg.explain(given, "step_time", DESIGNS["korthikanti"][1])
    story = found.story(2, most_lines(2))
    pace, *waits = story.below
    assert pace.quantity == "slowest_stage_time"
    largest = ["arithmetic_time", "hbm_time", "exposed_tp_time", "l2_time", "shared_memory_time", "launch_time"]
    assert [p.name for p in pace.below] == largest
    assert {p.name for p in waits} <= {*BREAKDOWN, "step_gap"}  # the time between steps
    values = [p.value for p in story.below]
    assert values == sorted(values, reverse=True)


def test_elasticities_are_those_of_the_sensitivity():
    at = DESIGNS["korthikanti"][1]
    found = pg.explain(study("korthikanti"), "step_time", at).elasticities()
    names = ["peak_bf16_rate", "hbm_bandwidth", "step_gap"]
    known = pg.sensitivity(study("korthikanti"), "step_time", names, at, dtype="float64").step_time_elasticity
    for name in names:
        assert found[name] == pytest.approx(known.sel(parameter=name).item(), rel=1e-6)
    assert np.diff(np.abs([*found.values()])).max() <= 1e-12  # largest first


@pytest.mark.parametrize("seed", range(3))
def test_parts_of_drawn_designs_add_up(seed):
    generator = np.random.default_rng(seed)
    drawn = drawn_study(generator)
    at = {a.name: a.labels[int(generator.integers(len(a)))].item() for a in drawn.space.axes}
    for output in generator.choice(OUTPUTS, 8, replace=False).tolist():
        found = pg.explain(drawn, output, at)
        check(found.story(3, most_lines(3)))
        assert float(np.sum(found.derivation.value)) == pytest.approx(found.story(0).value, nan_ok=True)


def test_data_of_an_explanation(monkeypatch, capsys):
    path = ROOT / "studies" / "chat_service.toml"
    at = ",".join(f"{axis}={label}" for axis, label in DESIGNS["chat_service"][1].items())
    _, out, _ = run(monkeypatch, capsys, "explain", path, "cost_per_million_output_tokens", "--at", at, "--json")
    found = json.loads(out)
    story = found["story"]
    assert (story["unit"], story["relation"]) == ("USD", "part")
    assert {p["relation"] for p in story["below"]} == {"factor", "divisor"}
    assert all(p["source"] and p["meaning"] for p in story["below"])
    assert story["formula"].startswith("cost_per_million_output_tokens(")
    assert found["elasticities"]["purchase_price"] == pytest.approx(0.84, abs=0.1)


def test_the_figures_of_a_product_make_its_value_in_the_units_beside_them():
    """Costs of the cluster and of a device per hour: what the two lines print is right as it stands."""
    found = pg.explain(study("chat_service"), "working_charge", DESIGNS["chat_service"][1])
    _, charge, _, cost, *_ = story_lines(found, INNER, 2)
    for line, unit, product in (
        (charge, r"\$/h", r"8 x (\S+) \$/h / 0.9;"),
        (cost, r"\$/h", r"(\S+) \$/h / 8;"),
    ):
        figures = re.search(rf" ([\d.]+) {unit} +{product}", line)
        assert figures, line
        value, factor = map(float, figures.groups())
        assert value == pytest.approx(factor * (8 / 0.9 if line is charge else 1 / 8), rel=1e-3)


def test_axes_within_a_formula_are_no_labels():
    at = {"device": "b200", "yield_model": "harvested"}  # a yield that is integrated over the density of defects
    made = pg.Study.make(workload="manufacturing", outputs=["die_yield"], axes={k: [v] for k, v in at.items()})
    below = {part.name for part in pg.explain(made, "die_yield", at).story(1).below}
    assert {"die_defects", "core_area_share"} <= below


@pytest.mark.parametrize(
    ("models", "pattern"), [(["llama-3.1-8b"], "uniform"), (["mixtral-8x7b", "deepseek-v3"], "dense_first")]
)
def test_a_result_from_before_there_were_kinds_of_layers(models, pattern, tmp_path):
    """Its file states no label ``layer_pattern``, which follows from its models: the same number, found again."""
    layout = {"devices": [64], "tp": [8], "pp": [1], "ep": [1]}
    study = pg.Study.make(
        outputs=["step_time"],
        axes={"model": models, "device": ["b200"], "parallelism": layout},
        workload_parameters={"sequence_length": 4096, "global_batch": 64},
    )
    result = pg.evaluate(study)
    space = json.loads(result.attrs[SPACE_ATTRIBUTE])
    assert space["constants"].pop("layer_pattern") == pattern
    old = result.assign_attrs({SPACE_ATTRIBUTE: json.dumps(space)})
    pg.save(old, tmp_path / "old.nc")
    opened = pg.open_result(tmp_path / "old.nc")
    assert "layer_pattern" not in opened.attrs[SPACE_ATTRIBUTE]
    for model in models:
        again, at_once = (pg.explain(r, "step_time", {"model": model}).story(2).value for r in (opened, result))
        assert again == pytest.approx(result["step_time"].sel(model=model).item(), rel=1e-5)
        assert again == pytest.approx(at_once, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "room", "short"),
    [
        ("Time by which one more prompt lengthens a pass of the pool", 24, "Time by which one..."),
        (
            "Gains of the norms of one dense layer and, with biases, those of norms",
            50,
            "Gains of the norms of one dense layer...",
        ),
        ("Weights, gradients and states of one rank", 30, "Weights, gradients..."),
        ("Tier ranks by rank order: tp-cp-dp-pp, tp-cp-pp-dp", 45, "Tier ranks by rank order"),
        ("Ranks of a group (hybrid sharding); 0: all that hold it", 45, "Ranks of a group (hybrid sharding)"),
        ("What all-gathers (reduce-scatters) of the group ask", 45, "What all-gathers (reduce-scatters)..."),
        ("Host time of each kernel, launched one by one", 40, "Host time of each kernel"),
        ("Area of a die (the largest): stated", 20, "Area of a die"),
    ],
)
def test_a_short_meaning_is_whole_clauses_or_says_that_it_goes_on(text, room, short):
    assert _shortened(text, room) == short


def test_short_meanings_of_all_quantities():
    known = every_formula()
    every = (*known.formulas.values(), *known.choices.values(), *load_catalog().variables.values())
    for meaning in {row.meaning.rstrip(".") for row in every}:
        for room in (40, 50, 60):
            short = _shortened(meaning, room)
            assert len(short) <= room
            if short != meaning:
                assert short.removesuffix("...").split()[-1] not in OPEN, short
            if short != meaning and not short.endswith("..."):
                assert meaning.startswith(short)
                behind = meaning[len(short) :]
                assert behind[0] in ";:," or re.match(r" \([^)]*\)(?! \w)", behind), meaning
                assert behind[0] != "," or not re.search(r" (and|or) ", behind.split(";")[0].split(":")[0]), meaning
