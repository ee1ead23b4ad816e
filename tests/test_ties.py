"""Ties by what differs: what the records' pairs say, counted by hand; who is never told apart better; the commands."""

import json
from math import exp, sqrt
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgrid import compare, evaluate, load_catalog, load_study, save
from perfgrid.analysis.prediction_intervals import SIZE, Interval, between, differing, tie_margin
from perfgrid.formulas.training.error import CENTRAL_90
from perfgrid.validation.groups import Prediction
from tests.test_bad_input import run
from tools.validation.ties import FURTHER, LAYOUT, SCALED, enough, scales

STUDY = """
outputs = ["step_time"]
[axes]
model = ["llama-3.1-8b"]
device = ["h100-sxm-80gb", "b200"]
topology = ["rail-optimized"]
software = ["nanotron"]
recompute = ["none", "selective"]
microbatch = [1, 2]
[axes.parallelism]
devices = [64, 128]
tp = [2, 4]
[workload_parameters]
sequence_length = 4096
global_batch = 256
"""
AT = {"device": "h100-sxm-80gb", "recompute": "none", "microbatch": 1}
SMALL, LARGE, OTHER = "tp2.pp1.dp32", "tp2.pp1.dp64", "tp4.pp1.dp16"


def bare(shared: float = 0.2, scaled: float = 0.1, **design: Any) -> Interval:
    """An interval without assumptions."""
    return Interval(1.0, 1.0, 1.0, (), np.zeros((0, 2)), np.eye(0), 0.3, shared, scaled, design)


# ---- what records say -----------------------------------------------------------------------------------------------


def test_nine_of_ten_of_a_further_source_by_hand():
    """Of nine sources the largest pair, of nineteen with a pair each the second largest; of eight nothing is known."""
    assert enough([]) is None
    assert enough([np.array([1.0])] * 8) is None
    assert enough([np.array([float(i)]) for i in range(9)]) == 8
    assert enough([np.array([float(i)]) for i in range(19)]) == 17
    assert enough([np.arange(100.0), *(np.array([float(i)]) for i in range(18))]) == 17  # a hundred weigh as one


def test_pairs_are_reported_by_what_differs():
    """Nine sources of five records: one, one of twice the devices, one of eight times those, one of another tp."""
    rows = []
    for source in range(9):
        for name, error, design in (
            ("one", 0.0, {"devices": 8, "dp": 8, "tp": 1}),
            ("two", 0.1, {"devices": 16, "dp": 16, "tp": 1}),
            ("far", -0.2, {"devices": 128, "dp": 128, "tp": 1}),
            ("tp", 0.3, {"devices": 8, "dp": 4, "tp": 2}),
            ("old", 2.0, {"devices": 16, "dp": 16, "tp": 1}),  # of another release: in no pair
        ):
            title = SimpleNamespace(title="first release" if name != "old" else "second")
            record = SimpleNamespace(id=f"{source}-{name}", group=f"s{source}", value=1.0, source=title)
            rows.append(Prediction(cast(Any, record), predicted=exp(error), interval=bare(0.09, 0.07, **design)))
    found = scales(rows, {})
    assert set(found) == {SCALED, FURTHER, LAYOUT, "layout, devices and batch", "any of these"}
    near, far, layout, every = (found[name] for name in (SCALED, FURTHER, LAYOUT, "any of these"))
    assert found["layout, devices and batch"] == every  # the others hold pairs in which nothing else differs
    # one-two 0.1, two-far 0.3 apart; one-far 0.2; one-tp 0.3; also tp-two 0.2 and tp-far 0.5
    assert [of["pairs"] for of in (near, far, layout, every)] == [18, 9, 9, 54]
    assert {of["sources"] for of in found.values()} == {9}
    assert [of["usual"] for of in (near, far, layout)] == pytest.approx([0.2 / 0.6745, 0.2 / 0.6745, 0.3 / 0.6745])
    assert [of["enough"] * CENTRAL_90 for of in (near, far, layout, every)] == pytest.approx([0.3, 0.2, 0.3, 0.5])
    margins = [0.07 * sqrt(2), 0.09 * sqrt(2), 0.09 * sqrt(2), 0.09 * sqrt(2)]  # 0.16 and 0.21 of ln
    assert [of["margin"] for of in (near, far, layout, every)] == pytest.approx(margins)
    assert [of["inside"] for of in (near, far, layout, every)] == pytest.approx([1 / 2, 1, 0, 1 / 2])
    assert near["left_out"] is None  # of eight others nothing is known


def test_a_further_source_is_held_as_promised():
    """Sources of unlike scatter and unlike numbers of pairs: of the next source nine pairs of ten or more."""
    rng = np.random.default_rng(5)
    held = []
    for _ in range(3000):
        *known, further = [np.exp(rng.normal()) * rng.exponential(size=rng.integers(1, 40)) for _ in range(16)]
        held.append(np.mean(further <= enough(known)))
    assert 0.89 <= np.mean(held) <= 0.97


# ---- what ties take -------------------------------------------------------------------------------------------------

QUANTITIES = ("devices", "dp", "global_batch", "tp", "microbatch", "recompute", "hbm_bandwidth")


@given(
    st.sets(st.sampled_from(QUANTITIES)),
    st.sets(st.sampled_from(QUANTITIES)),
    st.sampled_from([2, 10, 16]),
    *[st.floats(0, 1) for _ in range(2)],
)
def test_a_further_difference_never_makes_a_tie_narrower(few, more, factor, shared, scaled):
    base = bare(shared, scaled, **dict.fromkeys(QUANTITIES, 1))
    one, other = (bare(shared, scaled, **{q: factor if q in s else 1 for q in QUANTITIES}) for s in (few, few | more))
    assert differing(base, one) == few
    assert tie_margin(base, one) == tie_margin(one, base) <= tie_margin(base, other)
    near = few <= SIZE and (factor <= 10 or not few)
    expected = min(shared, scaled) if near else shared
    assert tie_margin(base, one) == pytest.approx(exp(CENTRAL_90 * sqrt(2) * expected) - 1)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("ties") / "study.toml"
    path.write_text(STUDY)
    return path


def scatter(found):
    """The deviation of a tie beyond what the designs do not share."""
    a, b = found.intervals
    return sqrt((np.log1p(found.tie_margin) / CENTRAL_90) ** 2 - max(between(a, b, s) for s in (-1, 1)) ** 2)


@pytest.mark.parametrize(
    ("a", "b", "scaled"),
    [
        ({"parallelism": SMALL}, {"parallelism": LARGE}, True),
        ({"parallelism": SMALL}, {"parallelism": OTHER}, False),
        ({"parallelism": SMALL, "microbatch": 1}, {"parallelism": SMALL, "microbatch": 2}, False),
        ({"parallelism": SMALL, "recompute": "none"}, {"parallelism": SMALL, "recompute": "selective"}, False),
        ({"parallelism": SMALL, "device": "h100-sxm-80gb"}, {"parallelism": SMALL, "device": "b200"}, False),
    ],
)
def test_only_sizes_of_one_design_tie_by_less_than_their_stack(file, tmp_path, a, b, scaled):
    study = load_study(file)
    software, glossary = load_catalog().entry("software", "nanotron").values, load_catalog().variables
    at = {k: v for k, v in AT.items() if k not in a}
    wanted: Any = glossary["scaling_error"].default_at() if scaled else software["ranking_error"]
    assert scatter(compare(study, a, b, at)) == pytest.approx(sqrt(2) * wanted, rel=1e-6)
    result = evaluate(study, "float64")
    save(result, tmp_path / "r.nc")
    assert compare(result, a, b, at).tie_margin == pytest.approx(compare(study, a, b, at).tie_margin)


def test_the_command_tells_ties_by_what_differs(file, monkeypatch, capsys):
    def told(a, b, at, *more):
        status, out, _ = run(monkeypatch, capsys, "compare", file, "--a", a, "--b", b, "--at", at, *more)
        assert status == 0
        return out

    sizes = f"parallelism={SMALL}", f"parallelism={LARGE}", "device=h100-sxm-80gb,microbatch=1,recompute=none"
    layouts = f"parallelism={SMALL}", f"parallelism={OTHER}", "device=h100-sxm-80gb,microbatch=1,recompute=none"
    size, layout = (json.loads(told(*which, "--json")) for which in (sizes, layouts))
    assert size["tie_margin"] < 0.35 < 0.49 < layout["tie_margin"]
    assert not size["tied"]
    assert layout["tied"]
    assert layout["step_time"][0] != layout["step_time"][1]
    assert f"a tie: differences below {layout['tie_margin']:.0%}" in told(*layouts)
    (line,) = (line for line in told(*sizes).splitlines() if line.startswith("B takes"))
    ratio = size["step_time"][1] / size["step_time"][0]
    low, high = ratio / (1 + size["tie_margin"]), ratio * (1 + size["tie_margin"])
    assert line.startswith(f"B takes {ratio:.3g} times as long as A, 90 of 100 within {low:.3g} to {high:.3g} (")
    assert "a tie" not in told(*sizes)
