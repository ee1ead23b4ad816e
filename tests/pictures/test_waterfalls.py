"""Waterfalls: between two designs, and along an axis from label to label."""

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.pictures.views.make import picture_of

from .drawn import STEPS, Drawn

ALONG: dict[str, Any] = {"kind": "waterfall", "x": "step", "y": "manufacturing_cost", "facets": "node"}


def test_a_waterfall_ends_at_the_times_compared(layouts):
    study, _ = layouts
    a, b, at = {"device": "h100-sxm-80gb"}, {"device": "b200"}, {"hbm_bandwidth": 1.0}
    found = pg.compare(study, a, b, at)
    panel = picture_of(study, {"kind": "waterfall", "a": a, "b": b, "at": at}).panels[0]
    bars = {p: (low, high) for s in panel.series for low, high, p in zip(s.base, s.x, s.y, strict=True)}
    steps = [bars[place] for place in sorted(bars, reverse=True)]
    times = [time / panel.x.size for time in found.times]
    assert steps[0][1] == pytest.approx(times[0])
    assert steps[-1] == pytest.approx((0, times[1]))
    for before, after in itertools.pairwise(steps[1:-1]):
        assert before[1] == pytest.approx(after[0])
    assert steps[-2][1] == pytest.approx(times[1], rel=1e-6)


@pytest.mark.parametrize("scale", ["log", "linear"])
def test_a_waterfall_along_an_axis_goes_from_label_to_label(scale, tmp_path):
    study = pg.Study.make(**STEPS)
    costs = pg.evaluate(study).manufacturing_cost
    published = {"name": "bought", "values": {"A100": 100.0, "B200": "800 USD"}, "source": "kundu2024"}
    picture = picture_of(study, {**ALONG, "y_scale": scale, "published": [published]})
    assert [panel.title for panel in picture.panels] == ["node n7", "node n5", "bought"]
    chains = [*costs.transpose("node", "step").values.tolist(), [100.0, np.nan, 800.0]]
    for panel, chain in zip(picture.panels, chains, strict=True):
        assert panel.y.categories == ("all steps", "B200", "H100", "A100")
        bars = {at: (b, e) for s in panel.series for at, b, e in zip(s.y, s.base, s.x, strict=True)}
        known = [(3.0 - i, value / panel.x.size) for i, value in enumerate(chain) if math.isfinite(value)]
        assert sorted(bars) == sorted([0.0, *(at for at, _ in known)])
        for (_, before), (at, value) in itertools.pairwise(known):
            assert bars[at] == pytest.approx((before, value))
        assert bars[known[0][0]][1] == pytest.approx(known[0][1])
        assert bars[0.0] == pytest.approx((bars[known[0][0]][0], known[-1][1]))
        texts = {at: text for s in panel.series for at, text in zip(s.y, s.texts, strict=True)}
        factor = f"\u00d7{chain[-1] / chain[0]:.3g}"
        assert texts[0.0].endswith(factor) == (scale == "log")
    assert any(line == "bought: Kundu et al. 2024." for line in picture.caption)
    drawn, panel = Drawn(picture, tmp_path), picture.panels[0]
    number, first = next((n, s) for n, s in enumerate(panel.series) if s.name != "total")
    corners = drawn.path(f"panel-0-series-{number}")[:, 0]
    ends = drawn.ruler("x", log=scale == "log")([corners.min(), corners.max()])
    np.testing.assert_allclose(ends, sorted((first.base[0], first.x[0])), rtol=5e-3)


def test_labels_without_a_design_are_passed_over(layouts):
    study, _ = layouts
    view: Any = {
        "kind": "waterfall",
        "x": "tp",
        "y": "step_time",
        "at": {"device": "h100-sxm-80gb", "hbm_bandwidth": 1},
    }
    (panel,) = picture_of(study, view).panels
    crossed = {at for s in panel.series for at, why in zip(s.y, s.reasons, strict=False) if why}
    bars = {at for s in panel.series for at, value in zip(s.y, s.x, strict=True) if math.isfinite(value)}
    assert crossed
    assert crossed | bars == {0.0, 1.0, 2.0, 3.0}
    assert not crossed & bars


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ({"x": None, "facets": None}, "a waterfall needs labels of two designs"),
        ({"colour": "node", "facets": None}, "without colour"),
        ({"y": ["die_cost", "manufacturing_cost"]}, "shows one output in y"),
        ({"published": [{"name": "p", "values": {"A10": 1}, "source": "kundu2024"}]}, "unknown label 'A10'"),
        (
            {"published": [{"name": "p", "values": {"A100": 1}, "source": "kundu"}]},
            "'kundu' is not in the bibliography",
        ),
        ({"published": [{"name": "p", "values": {"A100": "1 s"}, "source": "kundu2024"}]}, "expected USD"),
        ({"kind": "bars", "published": [{"name": "p", "values": {}, "source": "kundu2024"}]}, "a waterfall along x"),
    ],
)
def test_waterfalls_that_say_too_little(view, message):
    with pytest.raises(pg.PerfgridError, match=re.escape(message)):
        picture_of(pg.Study.make(**STEPS, view=[{k: v for k, v in {**ALONG, **view}.items() if v is not None}]))
