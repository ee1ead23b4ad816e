"""Results as datasets: minimal dims, CF attributes, round trip, feasibility."""

import numpy as np
import pytest
import xarray as xr

from perfgrid.engine.execution.evaluation import Evaluation
from perfgrid.engine.grid.dataset import SPACE_ATTRIBUTE, feasible, space_from_json, space_to_json, to_dataset
from perfgrid.engine.grid.plan import Plan

from . import toys

pytestmark = pytest.mark.optimised


def dataset(order=(0, 1, 2, 3, 4), tile_points=2**21, small_points=None, **options):
    space = toys.space(**options).permuted(order)
    plan = Plan(toys.registry(), space, toys.OUTPUTS, small_points=small_points)
    return to_dataset(plan, Evaluation(plan, "float64", tile_points).collect(), {"toy": "A Toy (2026)."})


def test_variables_lie_on_their_own_axes_in_study_order():
    ds = dataset()
    assert ds.order_time.dims == ("product", "layout", "material", "machine_rate", "distance")
    assert ds.piece_time.dims == ("product", "layout", "material", "machine_rate")
    assert ds.tool_time.dims == ("product", "layout", "material", "machine_rate", "shift", "tool")
    assert ds.pieces_divide.dims == ("product", "layout")
    assert ds.transport_choice.dims == ("layout", "distance")
    assert list(ds.tool.values) == ["saw", "drill", "press"]
    assert ds.lanes.dims == ("layout",)
    assert dataset((3, 1, 4, 0, 2)).order_time.dims == ("machine_rate", "layout", "distance", "product", "material")


def test_an_axis_of_one_row_stays_a_dimension():
    ds = dataset(product=1, rate=1)
    assert ds.order_time.dims == ("product", "layout", "material", "machine_rate", "distance")


def test_permuted_and_tiled_results_are_equal():
    reference = dataset()
    for order, tile in [((4, 3, 2, 1, 0), 2**21), ((1, 0, 3, 2, 4), 500), ((2, 4, 0, 1, 3), 64)]:
        other = dataset(order, tile, small_points=0, product=3)
        for name in reference.data_vars:
            np.testing.assert_allclose(
                other[name].transpose(*reference[name].dims).values, reference[name].values, rtol=1e-12
            )


def test_attributes_follow_cf():
    ds = dataset()
    assert ds.order_time.attrs["units"] == "s"
    assert ds.order_time.attrs["long_name"] == "Time of all orders, the line filling up first"
    assert ds.order_time.attrs["references"] == "A Toy (2026)."
    assert set(ds.order_time.attrs["ancillary_variables"].split()) == {"pieces_divide", "in_time"}
    flag = ds.pieces_divide
    assert flag.dtype == np.int8
    assert list(flag.attrs["flag_values"]) == [0, 1]
    assert flag.attrs["flag_meanings"] == "violated satisfied"
    assert flag.attrs["reason"] == "pieces do not divide by lines"
    assert ds.transport_choice.attrs["flag_meanings"] == "truck rail"
    assert ds.attrs["Conventions"].startswith("CF-")
    assert ds.attrs["references"] == "A Toy (2026)."


def test_feasible_masks_lazily_and_by_kind():
    ds = dataset()
    both, legal = feasible(ds), feasible(ds, ("illegal",))
    assert set(legal.dims) == {"product", "layout"}
    assert 0 < int(legal.sum()) < legal.size
    assert float(both.mean()) < float(legal.mean())
    assert ds.order_time.where(feasible(ds)).isnull().any()
    assert not ds.order_time.isnull().any()  # values stay unmasked in the result


def test_results_survive_a_file_and_remember_their_space(tmp_path):
    import json

    ds = dataset()
    ds.to_netcdf(tmp_path / "toy.nc")
    with xr.open_dataset(tmp_path / "toy.nc") as back:
        xr.testing.assert_equal(back.load(), ds)
        restored = space_from_json(json.loads(back.attrs[SPACE_ATTRIBUTE]))
    assert space_to_json(restored) == space_to_json(toys.space())
