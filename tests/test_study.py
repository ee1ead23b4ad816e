"""What a study file says is what is evaluated."""

import numpy as np
import pytest
import xarray as xr

import perfgrid as pg
from perfgrid.formulas import BREAKDOWN
from perfgrid.study.study import Study
from tests import small
from tests.replays import assert_grid_is_replay


def test_layouts_are_all_factorisations_of_each_cluster():
    made = small.study(axes={**small.CONTENT["axes"], "parallelism": {"devices": [12, 16]}})
    axis = next(a for a in made.space.axes if a.name == "parallelism")
    rows = list(zip(*(axis.columns[c].tolist() for c in ("devices", "tp", "pp", "dp")), strict=True))
    expected = [
        (n, tp, pp, n // (tp * pp))
        for n in (12, 16)
        for tp in range(1, n + 1)
        for pp in range(1, n + 1)
        if n % (tp * pp) == 0
    ]
    assert rows == expected


@pytest.mark.parametrize(
    ("small_points", "tile_points", "dtype"),
    [
        (None, 2**21, "float64"),
        (200, 1500, "float32"),
        pytest.param(None, 2**21, "float32", marks=pytest.mark.slow),
        pytest.param(200, 1500, "float64", marks=pytest.mark.slow),
        pytest.param(0, 2**21, "float32", marks=pytest.mark.slow),
        pytest.param(0, 2**21, "float64", marks=pytest.mark.slow),
    ],
)
def test_the_grid_of_the_real_physics_equals_a_replay(small_points, tile_points, dtype):
    made = small.study(outputs=[*small.CONTENT["outputs"], *BREAKDOWN, "layer_activation_memory"])
    ds = pg.evaluate(made, dtype, tile_points, small_points)
    assert_grid_is_replay(made, ds, np.random.default_rng(1), 40, {"float32": 1e-5, "float64": 1e-12}[dtype])


def test_axes_can_come_in_any_order():
    reference = pg.evaluate(small.study())
    axes = dict(reversed(small.CONTENT["axes"].items()))
    other = pg.evaluate(small.study(axes=axes), tile_points=3000)
    for name in reference.data_vars:
        xr.testing.assert_allclose(other[name].transpose(*reference[name].dims), reference[name], rtol=1e-6)


def test_a_swept_value_equals_the_same_value_stated():
    axes = {**small.CONTENT["axes"], "hbm_bandwidth": ["1 TB/s", 2e12]}
    swept = pg.evaluate(small.study(axes=axes)).step_time
    del axes["hbm_bandwidth"]
    for value in (1e12, 2e12):
        stated = pg.evaluate(small.study(axes=axes, overrides={"hbm_bandwidth": value})).step_time
        np.testing.assert_allclose(swept.sel(hbm_bandwidth=value).values, stated.values, rtol=1e-6)


def test_computed_quantities_and_formulas_can_be_replaced():
    fixed = pg.evaluate(small.study(overrides={"exposed_dp_time": "1 ms"}, outputs=["step_time", "exposed_dp_time"]))
    assert float(fixed.exposed_dp_time) == pytest.approx(1e-3)

    @pg.formula(unit="s", source="mine")
    def exposed_dp_time(dp):
        """My own idea of data parallelism."""
        return dp * 0.25

    made = Study.make(formulas=[exposed_dp_time], **small.content(outputs=["exposed_dp_time"]))
    found = pg.evaluate(made).exposed_dp_time
    np.testing.assert_allclose(found.values, found.dp.values * 0.25)


def test_choices_fix_an_alternative():
    @pg.alternative(of="snapshot_time", label="at_once", unit="s", source="mine")
    def snapshot_at_once(layer_time):
        """All at once."""
        return layer_time

    @pg.alternative(of="snapshot_time", label="in_quarters", unit="s", source="mine")
    def snapshot_in_quarters(layer_time, pp):
        """In quarters, one on each of as many stages."""
        return layer_time * 4 / pp

    def found(**more):
        content = small.content(outputs=["snapshot_time"], **more)
        made = Study.make(formulas=[snapshot_at_once, snapshot_in_quarters], **content)
        return pg.evaluate(made).snapshot_time.values

    fixed = [
        np.broadcast_to(found(choices={"snapshot_time": label}), found().shape) for label in ("at_once", "in_quarters")
    ]
    assert (fixed[0] < fixed[1]).any()
    assert (fixed[1] < fixed[0]).any()
    np.testing.assert_allclose(found(), np.minimum(*fixed))


def test_where_drops_rows_and_joint_terms_flag_points():
    ds = pg.evaluate(small.study(where="tp <= 4 and microbatch * pp <= 4"))
    assert ds.tp.max() == 4
    assert ds["where"].dims == ("microbatch", "parallelism")
    np.testing.assert_array_equal(ds["where"].values == 1, (ds.microbatch * ds.pp <= 4).values)
    assert "excluded by the study" in ds["where"].attrs["reason"]


def test_settings_change_catalog_and_study(tmp_path):
    (tmp_path / "s.toml").write_text(
        'outputs = ["step_time"]\n[axes]\nmodel = ["llama-2-7b"]\ndevice = ["b200"]\ntopology = ["rail-optimized"]\n'
        "[axes.parallelism]\ndevices = [8]\ntp = [8]\npp = [1]\n"
        "[workload_parameters]\nsequence_length = 2048\nglobal_batch = 8\n"
    )
    plain = pg.load_study(tmp_path / "s.toml")
    changed = pg.load_study(
        tmp_path / "s.toml",
        ["device.b200.hbm_bandwidth=10 TB/s", "workload_parameters.global_batch=16", "axes.microbatch=[1, 2]"],
    )
    assert plain.space.at("hbm_bandwidth", (0, 0, 0, 0)) == 8e12
    assert changed.space.at("hbm_bandwidth", (0, 0, 0, 0, 0)) == 10e12
    assert changed.space.at("global_batch", (0, 0, 0, 0, 0)) == 16
    assert changed.space.shape == (1, 1, 1, 1, 2)


def test_a_study_brings_its_own_catalog(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'kind = "device"\n[my-h100]\nextends = "h100-sxm-80gb"\nhbm_bandwidth = "5 TB/s"\n'
    )
    (tmp_path / "s.toml").write_text(
        'outputs = ["step_time"]\ncatalog = ["mine.toml"]\n[axes]\nmodel = ["llama-2-7b"]\ndevice = ["my-h100"]\n'
        'topology = ["rail-optimized"]\nparallelism = { devices = [8], tp = [8], pp = [1] }\n'
        "[workload_parameters]\nsequence_length = 2048\nglobal_batch = 8\n"
    )
    assert pg.load_study(tmp_path / "s.toml").space.at("hbm_bandwidth", (0, 0, 0, 0)) == 5e12


LITTLE = {
    "model": ["llama-2-7b"],
    "device": ["h100-sxm-80gb"],
    "topology": ["rail-optimized"],
    "parallelism": {"devices": [64], "tp": [8], "pp": [2]},
}


@pytest.mark.parametrize(
    ("alternative", "quantity", "value", "labels"),
    [
        ("bf16_peak_matrix_rate", "peak_matrix_rate", 1e14, {"precision": ["bf16", "fp8"]}),
        ("bf16_operand_size", "operand_size", 4.0, {"precision": ["bf16", "fp8"]}),  # a constant
        ("tp_nccl_gather_time", "tp_gather_time", 1.0, {"library": ["nccl", "ideal"]}),
    ],
)
def test_stating_the_only_alternative_of_a_quantity_states_the_quantity(alternative, quantity, value, labels):
    def evaluated(**changes):
        return pg.evaluate(small.study(**{"axes": LITTLE, "outputs": ["step_time", quantity], **changes}))

    found = evaluated(overrides={alternative: value})
    assert found[quantity].item() == pytest.approx(value)
    for axis, (first, _) in labels.items():  # the same with a second alternative beside it
        beside = evaluated(axes=LITTLE | labels, overrides={alternative: value}).sel({axis: first})
        assert beside.step_time.item() == pytest.approx(found.step_time.item(), rel=1e-6)
    swept = evaluated(axes=LITTLE | {alternative: [value, 2 * value]})
    assert swept.step_time[..., 0].item() == pytest.approx(found.step_time.item(), rel=1e-6)
    assert swept.step_time[..., 1].item() != swept.step_time[..., 0].item()


def test_another_name_that_nothing_reads_cannot_be_stated():
    unread = "no formula of this workload depends on 'scatter_stride', another name of 'shard_stride'"
    with pytest.raises(pg.PerfgridError, match=unread):
        small.study(axes=LITTLE, overrides={"scatter_stride": 4})
    stated = small.study(axes=LITTLE, overrides={"core_kernels": 3.0})  # another name that formulas read
    assert pg.evaluate(stated).step_time.item() > pg.evaluate(small.study(axes=LITTLE)).step_time.item()


def test_own_formulas_without_arguments():
    @pg.formula(unit="1", source="mine")
    def ours():
        """True or false, a number, or an error."""
        return outcome()

    @pg.formula(unit="1", source="mine")
    def reader(ours, tp):
        """What reads it."""
        return ours * tp

    made = small.study(axes=LITTLE, outputs=["reader"], formulas=[ours, reader])
    for returned in (True, 1, 1.0, np.float32(1)):
        outcome = lambda returned=returned: returned  # noqa: E731
        assert pg.evaluate(made).reader.item() == 8.0
    outcome = lambda: 1 / 0  # noqa: E731
    with pytest.raises(pg.PerfgridError, match=r"formula 'ours' fails on inner shapes .*: division by zero"):
        pg.evaluate(made)
    for returned in (None, "much"):
        outcome = lambda returned=returned: returned  # noqa: E731
        with pytest.raises(pg.PerfgridError, match="formula 'ours' must return numbers"):
            pg.evaluate(made)


def test_a_reader_of_a_true_constant_may_negate_it():
    @pg.formula(unit="1", source="mine")
    def ours():
        """True."""
        return True

    @pg.constraint(kind="exceeds", reason="never", source="mine")
    def possible(ours):
        """Never."""
        return ~ours

    assert not pg.evaluate(small.study(axes=LITTLE, formulas=[ours, possible])).possible.item()
