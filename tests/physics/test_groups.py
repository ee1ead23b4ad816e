"""Where the ranks of every group lie, against a list of all ranks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfgrid as pg

from .cases import design, rows

power = st.sampled_from([1, 2, 4])
ORDERS = {"tp-cp-dp-pp": ("tp", "cp", "dp", "pp"), "tp-cp-pp-dp": ("tp", "cp", "pp", "dp")}


def inside(q, group):
    """Ranks of a group inside one scale-up domain."""
    return rows(q[f"{group}_tier_ranks"], "tier")["scale_up"]


def members(sizes, order, group):
    """The ranks that differ from rank 0 only in the coordinates of the group (a tuple of names)."""
    found = []
    for number, place in enumerate(itertools.product(*(range(sizes[name]) for name in reversed(order)))):
        at = dict(zip(reversed(order), place, strict=True))
        if all(at[name] == 0 for name in order if name not in group):
            found.append(number)
    return found


@settings(max_examples=40, deadline=None)
@given(
    tp=power, cp=power, dp=power, pp=power, order=st.sampled_from(sorted(ORDERS)), domain=st.sampled_from([4, 8, 64])
)
def test_dense_groups(tp, cp, dp, pp, order, domain):
    sizes = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    q = design(
        "llama-3.1-8b",
        "h100-sxm-80gb",
        **{k: float(v) for k, v in sizes.items()},
        rank_order=order,
        scale_up_size=float(domain),
        global_batch=64.0,
        zero=1.0,
    )
    assert q["layout_fills_cluster"]
    for group in (("tp",), ("cp",), ("pp",), ("cp", "dp")):
        name = "replica" if len(group) > 1 else group[0]
        ranks = members(sizes, ORDERS[order], group)
        assert q[name] == len(ranks)
        assert inside(q, name) == sum(rank < domain for rank in ranks), name
        if len(ranks) > 1:
            assert q[f"{name}_stride"] == ranks[1]
    assert q["shard"] == q["replica"]
    assert inside(q, "shard") == inside(q, "replica")


@settings(max_examples=40, deadline=None)
@given(
    tp=power,
    cp=power,
    dp=power,
    pp=power,
    etp=power,
    ep=st.sampled_from([1, 2, 8]),
    domain=st.sampled_from([4, 8, 64]),
    order=st.sampled_from(sorted(ORDERS)),
)
def test_expert_groups(tp, cp, dp, pp, etp, ep, domain, order):
    """The experts of a stage lie on the same ranks as its dense weights, in an order of their own."""
    q = design(
        "mixtral-8x7b",
        "h100-sxm-80gb",
        tp=float(tp),
        cp=float(cp),
        dp=float(dp),
        pp=float(pp),
        etp=float(etp),
        ep=float(ep),
        rank_order=order,
        scale_up_size=float(domain),
        global_batch=64.0,
    )
    assert q["experts_fill_stage"] == (tp * cp * dp % (etp * ep) == 0)
    adjoin = order == "tp-cp-dp-pp" or pp == 1 or tp * cp % (etp * ep) == 0
    assert q["experts_adjoin"] == adjoin
    if not (q["experts_fill_stage"] and adjoin):
        return
    if order == "tp-cp-dp-pp":
        sizes = {"etp": etp, "ep": ep, "edp": tp * cp * dp // (etp * ep), "pp": pp}
        order_of_experts, replicas = ("etp", "ep", "edp", "pp"), ("edp",)
    else:  # the ranks with the same experts lie partly beside each other, partly around the pipeline
        beside = max(tp * cp // (etp * ep), 1)
        sizes = {"etp": etp, "ep": ep, "beside": beside, "pp": pp, "around": tp * cp * dp // (etp * ep) // beside}
        order_of_experts, replicas = ("etp", "ep", "beside", "pp", "around"), ("beside", "around")
    for name, group in (("etp", ("etp",)), ("ep", ("ep",)), ("expert_replica", replicas)):
        ranks = members(sizes, order_of_experts, group)
        assert q[name] == len(ranks)
        assert inside(q, name) == sum(rank < domain for rank in ranks), name
        if len(ranks) > 1:
            assert q[f"{name}_stride"] == ranks[1], name


def test_a_dense_model_has_nothing_to_spread():
    q = design("llama-3.1-8b", "h100-sxm-80gb", dp=8.0, ep=8.0)
    assert not q["experts_exist"]
    assert q["exposed_dp_time"] == design("llama-3.1-8b", "h100-sxm-80gb", dp=8.0)["exposed_dp_time"]


def test_ideal_fabrics_need_replicas_at_one_distance():
    layout = {"tp": 2.0, "cp": 2.0, "pp": 2.0, "dp": 2.0, "global_batch": 8.0}
    fabric = ("llama-3.1-8b", "h100-sxm-80gb", "rails")
    assert design(*fabric, **layout)["replicas_at_one_distance"]
    assert not design(*fabric, **layout, rank_order="tp-cp-pp-dp")["replicas_at_one_distance"]


def test_every_layout_is_listed(tmp_path):
    lists = {"tp": [1, 2, 8], "cp": [1, 2], "pp": [1, 2], "ep": [1, 4, 16], "etp": [1, 2]}
    text = f"""
outputs = ["layout_fills_cluster", "experts_fill_stage", "edp"]
[axes]
model = ["mixtral-8x7b"]
device = ["h100-sxm-80gb"]
topology = ["rail-optimized"]
[axes.parallelism]
devices = [16]
{chr(10).join(f"{k} = {v}" for k, v in lists.items())}
[workload_parameters]
global_batch = 64
sequence_length = 4096
"""
    path = tmp_path / "layouts.toml"
    path.write_text(text, encoding="utf-8")
    ds = pg.evaluate(pg.load_study(path))
    expected = [
        (tp, cp, pp, ep, etp)
        for tp, pp, cp, ep, etp in itertools.product(*(lists[k] for k in ("tp", "pp", "cp", "ep", "etp")))
        if 16 % (tp * cp * pp) == 0 and 16 // pp % (ep * etp) == 0
    ]
    found = [tuple(int(ds[k][i]) for k in ("tp", "cp", "pp", "ep", "etp")) for i in range(ds.sizes["parallelism"])]
    assert found == expected
    assert ds.layout_fills_cluster.all()
    assert ds.experts_fill_stage.all()
    assert ds.parallelism.values[0] == "tp1.cp1.pp1.dp16.ep1.etp1"


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_the_order_of_ranks(order):
    """Stages of a pipeline in one domain make point-to-point transfers cheap and reductions expensive."""
    given = {"tp": 1.0, "pp": 8.0, "dp": 8.0, "global_batch": 64.0, "rank_order": order, "zero": 1.0}
    q = design("llama-3.1-8b", "h100-sxm-80gb", **given)
    assert (inside(q, "pp") == 8) == (order == "tp-cp-pp-dp")
    assert (inside(q, "replica") == 8) == (order == "tp-cp-dp-pp")


@pytest.mark.parametrize(("tp", "ep", "split"), [(8, 1, 8), (8, 2, 4), (8, 8, 1), (2, 8, 1), (1, 4, 1), (3, 2, 3)])
def test_experts_are_split_over_the_tensor_parallel_ranks_that_ep_leaves(tp, ep, split):
    """As in Megatron-Core and vLLM without expert parallelism, TensorRT-LLM with some, DeepSeek with much."""

    def memory(**stated):
        layout = {"devices": 24, "tp": tp, "pp": 1, "ep": ep} | stated
        study = pg.Study.make(
            workload="inference",
            outputs=["memory_per_device"],
            axes={"model": ["deepseek-v3"], "device": ["h200-sxm-141gb"], "parallelism": layout},
            workload_parameters={"prompt_tokens": 1000, "output_tokens": 100, "batch": 8},
        )
        return float(pg.evaluate(study).memory_per_device.squeeze())

    assert memory() == memory(etp=split)


@pytest.mark.parametrize(("size", "inside"), [(20, 5), (36, 6), (30, 6), (24, 8), (12, 6), (22, 5.5)])
def test_groups_fill_nodes_of_eight_evenly_where_their_number_allows(size, inside):
    q = design("gpt3-175b", tp=1.0, dp=float(size))
    assert rows(q["replica_tier_ranks"], "tier")["scale_up"] == inside
    assert q["replica_fills_tiers"] == (inside == int(inside))
