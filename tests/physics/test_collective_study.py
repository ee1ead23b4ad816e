"""The workload "collectives": curves of bus bandwidth against single calls and against what training takes."""

from pathlib import Path

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.calculators.collective import collective_choice, collective_time
from perfgrid.catalog import load_catalog
from perfgrid.engine.grid.plan import Plan
from perfgrid.formulas import registry_of
from perfgrid.formulas.collectives.schedules.algorithms import COLLECTIVES
from tests.units import check

from .cases import design
from .test_fabrics import topology_of

STUDY = Path(__file__).parents[2] / "studies" / "collectives.toml"


def curves(fabrics, device="h100-sxm-80gb", devices=64, groups=((64, 1),), **parameters):
    return pg.Study.make(
        workload="collectives",
        outputs=["collective_time", "bus_bandwidth", "algorithm_bandwidth", "collective_algorithm"],
        dtype="float64",
        axes={
            "topology": fabrics,
            "device": [device],
            "collective": list(COLLECTIVES),
            "message_size": ["4 KiB", "1 MiB", "1 GiB"],
            "group": {"zip": {"group_size": [g for g, _ in groups], "group_stride": [s for _, s in groups]}},
        },
        workload_parameters={"devices": devices, **parameters},
    )


@pytest.mark.parametrize(
    ("device", "fabric", "devices", "groups"),
    [
        ("h100-sxm-80gb", "rails", 64, [(64, 1), (8, 1), (8, 8), (2, 4)]),
        ("h100-sxm-80gb", "dragonfly-72", 576, [(576, 1), (8, 1), (16, 1)]),
        ("tpu-v5p", "tpu-torus-8x8x8", 1024, [(512, 1), (64, 1), (8, 8), (2, 512)]),
        ("tpu-v5p", "tpu-twisted-4x4x8", 128, [(128, 1), (64, 1)]),
    ],
)
def test_a_curve_equals_single_calls(device, fabric, devices, groups):
    ds = pg.evaluate(curves([fabric], device, devices, groups)).squeeze(["topology", "device"])
    topology, legal = topology_of(device, fabric, devices), 0
    for collective in COLLECTIVES:
        for row, (size, stride) in enumerate(groups):
            for message in ds.message_size.values:
                at = ds.sel(collective=collective, message_size=message).isel(group=row)
                case = {"collective": collective, "topology": topology, "size": float(message)}
                try:
                    name, time = collective_choice(group={"size": size, "stride": stride}, **case)
                except pg.PerfgridError:
                    assert not at.group_fills_tiers
                    continue
                legal += 1
                assert at.group_fills_tiers
                assert at.collective_offered
                assert float(at.collective_time) == pytest.approx(time, rel=1e-9)
                word = ds.collective_algorithm.attrs["flag_meanings"].split()[int(at.collective_algorithm)]
                same = collective_time(algorithm=word, group={"size": size, "stride": stride}, **case)
                assert same == pytest.approx(time, rel=1e-5), (name, word)
                factor = {"all_reduce": 2 * (size - 1) / size, "broadcast": 1, "send_recv": 1}
                rate = message / time * factor.get(collective, (size - 1) / size)
                assert float(at.bus_bandwidth) == pytest.approx(rate, rel=1e-9)
    assert legal >= 18


def test_nccl_runs_as_in_training():
    """The same times but for the launch: benchmarks wait for it, a training step queues its collectives ahead."""
    given = {"dp": 64.0, "tp": 1.0, "pp": 1.0}
    q = design("llama-3.1-8b", "h100-sxm-80gb", "rail-optimized", **given)
    made = pg.Study.make(
        workload="collectives",
        outputs=["collective_time"],
        dtype="float64",
        axes={"topology": ["rail-optimized"], "device": ["h100-sxm-80gb"], "collective": ["all_reduce", "all_gather"]},
        workload_parameters={"devices": 64, "group_size": 64, "message_size": q["replica_message"]},
        overrides={"collective_launch_latency": q["launch_overhead"]},
    )
    found = pg.evaluate(made).collective_time.squeeze()
    np.testing.assert_allclose(found, [q["replica_all_reduce_time"], q["replica_gather_time"]], rtol=1e-12)


@pytest.mark.parametrize(
    ("device", "fabric", "devices"),
    [
        ("a100-sxm-80gb", "hgx-a100-200g", 8),
        ("h100-sxm-80gb", "hgx-h100-400g", 64),
        ("b200", "hgx-b200-400g", 32),
        ("mi300x", "rail-optimized", 16),
    ],
)
def test_nccl_agrees_with_single_calls(device, fabric, devices):
    groups = [(devices, 1), (4, 1), (8, 1)]
    ds = pg.evaluate(curves([fabric], device, devices, groups)).squeeze(["topology", "device"])
    topology = topology_of(device, fabric, devices) | {"library": fabric, "device": device}
    if device == "mi300x":
        tier = topology["tiers"][0]
        topology["tiers"][0] = tier | {"kind": "fully_connected", "bandwidth": tier["bandwidth"] / 7}
        topology["tiers"][0].pop("in_network")
    for collective in COLLECTIVES:
        for row, (size, stride) in enumerate(groups):
            for message in ds.message_size.values:
                found = ds.collective_time.sel(collective=collective, message_size=message).isel(group=row)
                case = {"collective": collective, "topology": topology, "size": float(message)}
                single = collective_time(group={"size": size, "stride": stride}, algorithm="library", **case)
                assert float(found) == pytest.approx(single, rel=1e-9), (collective, size, message)
    assert ds.collective_offered.values.all()


def test_a_study_may_name_an_algorithm_of_the_library():
    whole = pg.evaluate(curves(["hgx-h100-400g"]))
    named = {
        name: pg.evaluate(curves(["hgx-h100-400g"], algorithm=name))
        for name in ("ring", "double_binary_tree", "in_network", "swing", "direct")
    }
    offered = {
        name: set(COLLECTIVES[i] for i in np.flatnonzero(ds.collective_offered.values.reshape(6, 3).all(1)))
        for name, ds in named.items()
    }
    assert offered == {
        "ring": {"all_reduce", "reduce_scatter", "all_gather", "broadcast"},
        "double_binary_tree": {"all_reduce"},
        "in_network": {"all_reduce"},
        "swing": set(),
        "direct": {"all_to_all", "send_recv"},
    }
    words = whole.collective_algorithm.attrs["flag_meanings"].split()
    for collective in COLLECTIVES:
        for message in whole.message_size.values:
            at = {"collective": collective, "message_size": message}
            word = words[int(whole.collective_algorithm.sel(at).item())]
            least = whole.collective_time.sel(at).item()
            assert named[word].collective_time.sel(at).item() == pytest.approx(least, rel=1e-12)


def test_a_named_algorithm_is_a_workload_parameter():
    ds = pg.evaluate(curves(["rails"], algorithm="ring")).squeeze(["topology", "device", "group"])
    one = ds.sel(collective="all_gather", message_size=2.0**20)
    topology = topology_of("h100-sxm-80gb", "rails", 64)
    with pytest.raises(pg.PerfgridError):  # a ring through two tiers has another name
        collective_time(collective="all_gather", topology=topology, size=2.0**20, algorithm="ring")
    assert not one.collective_offered
    with pytest.raises(pg.PerfgridError, match=r"algorithm must be one of best, direct.*found 'rign'.*'ring'"):
        curves(["rails"], algorithm="rign")


def test_units_and_sources():
    registry, catalog = registry_of("collectives"), load_catalog()
    references = catalog.references
    units = {v.name: v.unit for v in catalog.variables.values()}
    for fabric in ("rails", "rail-optimized", "hgx-h100-400g"):
        made = curves([fabric])
        plan = Plan(registry, made.space, (*made.outputs, "bus_factor"))
        assert not check(plan, units)
        assert all(n.source in references or "," in n.source for n in plan.graph.nodes.values())


def test_the_study_of_the_repository():
    made = pg.load_study(STUDY)
    ds = pg.evaluate(made)
    assert ds.bus_bandwidth.dims == ("collective", "group_size", "message_size", "system")
    large = ds.sel(collective="all_reduce", group_size=8).isel(message_size=-1)
    rates = dict(zip(large.system.values, large.bus_bandwidth.values, strict=True))
    assert rates["H100 on rails"] <= 450e9
    assert rates["H100 with in-network sums"] > rates["H100 on rails"]
    assert (ds.bus_bandwidth.diff("message_size") >= -1e-3 * ds.bus_bandwidth.max()).mean() > 0.9
