"""All-to-all of equal and of unlike parts, on ideal fabrics and by NCCL, against single calls and counts."""

import numpy as np
import pytest

from perfgrid.calculators.collective import collective_time
from perfgrid.engine.graph.registry import Registry
from perfgrid.engine.graph.resolver import replay, resolve
from perfgrid.formulas.axes import INNER, table
from perfgrid.formulas.collectives import exchange, ideal, nccl, topology
from perfgrid.formulas.collectives.exchange import exchange_time

from .cases import entry, rows
from .test_fabrics import topology_of

REGISTRY = Registry.collect((exchange, ideal, nccl, topology), INNER)


def evaluated(device, fabric, names, **given):
    """Quantities of one exchange; ``given``: the group and what it sends."""
    stated = entry("device", device) | entry("topology", fabric)
    runs = stated.pop("library")
    values = stated | {"collective_launch_latency": 3e-6} | given
    labels = {"library": (runs,), "network_sizing": ("rate",)}
    graph = resolve(REGISTRY, names, (*values, *labels), labels=labels)
    return replay(graph, {name: values.get(name, 0.0) for name in graph.leaves})


CASES = [  # device, fabric, devices, size, stride, members inside a domain
    ("h100-sxm-80gb", "rails", 64, 8, 1, 8),
    ("h100-sxm-80gb", "rails", 64, 8, 8, 1),
    ("mi300x", "mi300x-mesh-400g", 64, 8, 1, 8),
    ("tpu-v5p", "tpu-torus-8x8x8", 512, 512, 1, 512),
    ("tpu-v5p", "tpu-torus-8x8x8", 512, 8, 8, 8),
    ("tpu-v5p", "tpu-twisted-4x4x8", 128, 128, 1, 128),
    ("tpu-v6e", "tpu-mesh-8x8", 64, 64, 1, 64),
    ("h100-sxm-80gb", "dragonfly-72", 576, 72, 8, 1),
    ("h100-sxm-80gb", "fat-tree-16x8-2to1", 1024, 128, 8, 1),
]


@pytest.mark.parametrize(("device", "fabric", "devices", "size", "stride", "inside"), CASES)
def test_equal_parts_on_one_tier_are_the_all_to_all_of_the_fabric(device, fabric, devices, size, stride, inside):
    message = 5e7
    found = evaluated(
        device,
        fabric,
        ["head_exchange_time"],
        devices=float(devices),
        head_split=float(size),
        head_split_stride=float(stride),
        head_split_tier_ranks=table("tier", scale_up=float(inside), scale_out=size / inside),
        exchanged_activations=4 * message,
    )
    single = collective_time(
        collective="all_to_all",
        topology=topology_of(device, fabric, devices),
        size=message,
        algorithm="direct",
        group={"size": size, "stride": stride},
    )
    assert found["head_exchange_time"] == pytest.approx(single, rel=1e-9)


@pytest.mark.parametrize(("together", "messages"), [(1.0, (7.0, 24.0)), (0.0, (7.0, 3.0))])
def test_nccl_posts_messages_one_by_one(together, messages):
    """Four nodes of eight: every byte and message counted; tiers at once, or one after the other."""
    sent = {"scale_up": 3e7, "scale_out": 1.2e7}
    found = evaluated(
        "h100-sxm-80gb",
        "hgx-h100-400g",
        ["expert_exchange_time"],
        ep=32.0,
        ep_stride=1.0,
        ep_tier_ranks=table("tier", scale_up=8.0, scale_out=4.0),
        token_dispatch=0.0 if together else float(exchange.TWO_PHASE),
        etp_gather_time=0.0,
        tier_bandwidth=table("tier", scale_up=370e9, scale_out=47e9),
        tier_peer_bandwidth=table("tier", scale_up=370e9, scale_out=47e9),
        ep_messages=table("tier", scale_up=messages[0], scale_out=messages[1]),
        ep_dispatch_tier_bytes=table("tier", **sent),
        ep_combine_tier_bytes=table("tier", scale_up=0.0, scale_out=0.0),
    )
    latency = (3e-6 + 3.4e-6 + messages[0] * 1e-6, 3e-6 + 14e-6 + messages[1] * 1e-6)
    by_tier = (latency[0] + 3e7 / 370e9, latency[1] + 1.2e7 / 47e9)
    ways = max if together else sum
    assert found["expert_exchange_time"] == pytest.approx(ways(by_tier) + ways(latency))


def test_a_group_of_one_has_nothing_to_exchange():
    alone = {
        "head_split": 1.0,
        "head_split_stride": 1.0,
        "head_split_tier_ranks": table("tier", scale_up=1.0, scale_out=1.0),
    }
    for device, fabric in (("h100-sxm-80gb", "rails"), ("h100-sxm-80gb", "hgx-h100-400g")):
        found = evaluated(
            device,
            fabric,
            ["head_exchange_time"],
            devices=64.0,
            exchanged_activations=4e8,
            **alone,
        )
        assert found["head_exchange_time"] == 0


def test_one_copy_per_node_saves_network_time():
    """Hierarchical exchange on a torus of slices: what leaves a slice shrinks, what moves inside stays."""
    latency, rate = table("tier", scale_up=1e-6, scale_out=9e-6), table("tier", scale_up=1e-12, scale_out=2e-11)
    direct = exchange_time(table("tier", scale_up=1e7, scale_out=7e7), latency, rate, 1.0)
    copies = exchange_time(table("tier", scale_up=8e7, scale_out=3e7), latency, rate, 1.0)
    assert float(np.squeeze(direct)) == pytest.approx(9e-6 + 7e7 * 2e-11)
    assert float(np.squeeze(copies)) == pytest.approx(9e-6 + 3e7 * 2e-11)
    assert rows(rate, "tier")["scale_up"] < rows(rate, "tier")["scale_out"]
