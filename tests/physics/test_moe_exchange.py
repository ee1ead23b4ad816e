"""The exchange of tokens with experts against enumerations, links counted one by one and the dense block's exchange."""

from itertools import combinations, product
from statistics import mean

import numpy as np
import pytest

from perfgrid.formulas import INNER
from perfgrid.formulas.parallelism.expert_parallel import ALL_TO_ALL, DEDUPLICATED, TWO_PHASE, places_reached

from .cases import ONE_EXPERT, design, rows

EXCHANGES = {"all_to_all": ALL_TO_ALL, "two_phase": TWO_PHASE, "deduplicated": DEDUPLICATED}


# ---- routing: every choice of experts, one after the other -----------------------------------------------------------


def routings(experts, chosen, groups, chosen_groups):
    """The experts of every token that the router may send, all equally likely."""
    size = experts // groups
    for some in combinations(range(groups), chosen_groups):
        allowed = [e for e in range(experts) if e // size in some]
        yield from combinations(allowed, chosen)


@pytest.mark.parametrize(("groups", "chosen_groups"), [(1, 1), (2, 1), (4, 2), (8, 3)])
@pytest.mark.parametrize("places", [1, 2, 4, 8])
def test_places_reached_against_an_enumeration(places, groups, chosen_groups):
    experts, chosen = 8, 2 if chosen_groups * 8 // groups > 2 else 1
    found = mean(
        len({e * places // experts for e in choice}) for choice in routings(experts, chosen, groups, chosen_groups)
    )
    assert places_reached(places, experts, chosen, groups, chosen_groups) == pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize(("ranks", "reached"), [(8, 5.294652), (16, 6.523280), (32, 7.266800), (64, 7.675750)])
def test_ranks_reached_by_eight_of_256_experts(ranks, reached):
    """Monte-Carlo of 8 different experts drawn from 256: 5.302, 6.526, 7.272, 7.678."""
    assert places_reached(ranks, 256, 8) == pytest.approx(reached, abs=1e-6)


def test_node_limited_routing_of_deepseek_v3():
    """8 of 256 experts in at most 4 of 8 nodes of 8 ranks: fewer nodes than 4, about as many ranks as experts."""
    assert places_reached(8, 256, 8, 8, 4) == pytest.approx(3.629011, abs=1e-6)
    assert places_reached(64, 256, 8, 8, 4) == pytest.approx(7.359370, abs=1e-6)


def copies(kind, source, choice, per_node, per_rank):
    """Copies of one token that cross links inside nodes, and network ports, counted link by link."""
    ranks = [e // per_rank for e in choice]
    inside = outside = 0
    if kind == "deduplicated":
        nodes = {r // per_node for r in ranks}
        outside = len(nodes - {source // per_node})
        for rank in set(ranks):  # handed on by the rank with the source's place in that node
            inside += rank % per_node != source % per_node
        return inside, outside
    for rank in ranks:
        beyond = rank // per_node != source // per_node
        outside += beyond
        if kind == "two_phase":
            inside += rank % per_node != source % per_node
        else:
            inside += not beyond and rank != source
    return inside, outside


@pytest.mark.parametrize("kind", EXCHANGES)
@pytest.mark.parametrize(("groups", "chosen_groups"), [(0, 0), (4, 2)])
def test_copies_by_tier_against_counting_links(kind, groups, chosen_groups):
    """16 experts on 8 ranks in nodes of 4, 3 for each token; all sources and all choices."""
    q = design(
        "mixtral-8x7b",
        tp=1.0,
        dp=8.0,
        ep=8.0,
        global_batch=8.0,
        scale_up_size=4.0,
        experts=16.0,
        experts_per_token=3.0,
        groups=float(groups),
        groups_per_token=float(chosen_groups),
        token_dispatch=float(EXCHANGES[kind]),
    )
    every = list(routings(16, 3, groups or 1, chosen_groups or 1))
    counted = [copies(kind, source, choice, 4, 2) for source, choice in product(range(8), every)]
    found = rows(q["ep_copies"], "tier")
    assert found["scale_up"] == pytest.approx(mean(c[0] for c in counted), rel=1e-12)
    assert found["scale_out"] == pytest.approx(mean(c[1] for c in counted), rel=1e-12)
    posted = {"all_to_all": (3, 4), "two_phase": (3, 1), "deduplicated": (3, 1)}[kind]
    assert tuple(rows(q["ep_messages"], "tier").values()) == posted


def test_bytes_of_a_dispatch_by_hand():
    """DeepSeek-V3 on 8 nodes of 8: 4096 tokens, 8 bits with a scale for 128 values out, 16 bits back."""
    q = design(
        "deepseek-v3",
        "h800-sxm-80gb",
        tp=1.0,
        pp=1.0,
        dp=64.0,
        ep=64.0,
        global_batch=64.0,
        sequence_length=4096.0,
        token_dispatch=float(DEDUPLICATED),
        dispatch_size=1 + 4 / 128,
    )
    sent, back = rows(q["ep_dispatch_tier_bytes"], "tier"), rows(q["ep_combine_tier_bytes"], "tier")
    assert sent["scale_out"] == pytest.approx(4096 * 3.629011 * 7 / 8 * 7168 * 1.03125, rel=1e-6)
    assert sent["scale_up"] == pytest.approx(4096 * 7.359370 * 7 / 8 * 7168 * 1.03125, rel=1e-6)
    assert back["scale_out"] == pytest.approx(sent["scale_out"] * 2 / 1.03125)
    by_tier = [
        q["ep_exchange_latency"] + q[f"ep_{x}_tier_bytes"] * q["ep_exchange_inverse_bandwidth"]
        for x in ("dispatch", "combine")
    ]
    assert q["expert_exchange_time"] == pytest.approx(sum(np.max(times) for times in by_tier))


# ---- a whole step ----------------------------------------------------------------------------------------------------


def test_gathered_rows_replace_the_exchange_of_the_dense_block():
    """With etp = tp each rank gathers and scatters what a dense block's ranks do, and no other exchange is left."""
    base = {"tp": 4.0, "dp": 4.0, "global_batch": 16.0, "recompute": "none"}
    dense = design("llama-3.1-8b", **base)
    mixed = design("llama-3.1-8b", **base, etp=4.0, **ONE_EXPERT)
    assert mixed["etp_message"] == dense["tp_message"]
    assert mixed["expert_exchange_time"] == pytest.approx(2 * dense["tp_gather_time"])
    assert mixed["ffn_tp_blocks"] == 0
    assert mixed["layer_tp_reductions"] == dense["layer_tp_reductions"] / 2


@pytest.mark.parametrize(("recompute", "passes"), [("none", 2), ("selective", 2), ("full", 3)])
def test_exchanges_of_a_step(recompute, passes):
    """Out and back in every pass of the 58 layers with experts, all waited for where nothing overlaps."""
    q = design("deepseek-v3", tp=1.0, dp=64.0, ep=64.0, global_batch=256.0, recompute=recompute, mtp_layers=0.0)
    assert q["ep_calls"] == pytest.approx(4 * 58 * passes * 2)
    assert q["exposed_ep_time"] == pytest.approx(4 * 58 * passes * q["expert_exchange_time"])
    sent = sum(rows(q["ep_dispatch_tier_bytes"], "tier").values())
    assert q["ep_bytes"] == pytest.approx(q["ep_calls"] * sent)


@pytest.mark.parametrize(("recompute", "passes"), [("none", 2), ("full", 3)])
def test_ranks_that_share_experts_send_their_rows(recompute, passes):
    """Two of four ranks' choices are gathered by each and its parts scattered, in the 32 layers and every pass."""
    q = design("mixtral-8x7b", tp=4.0, dp=4.0, ep=4.0, etp=4.0, global_batch=16.0, recompute=recompute)
    received = 2048 / 4 * 2  # two choices of every token, from four ranks for a quarter of the experts
    other_three = 3 * received * 4096 * 2
    assert q["layer_etp_bytes"] == pytest.approx(2 * passes * other_three)
    assert q["etp_bytes"] == pytest.approx(4 * 32 * q["layer_etp_bytes"])
    assert design("mixtral-8x7b", tp=4.0, dp=4.0, ep=4.0, global_batch=16.0)["etp_bytes"] == 0


# ---- what hides it ---------------------------------------------------------------------------------------------------


def test_an_exchange_hides_behind_kernels():
    """Behind the shared expert at most its time, behind another microbatch everything if kernels take longer."""
    base = {"tp": 1.0, "dp": 64.0, "ep": 64.0, "global_batch": 640.0, "recompute": "none", "communication_cores": 0.0}
    exposed = design("deepseek-v3", "h100-sxm-80gb", **base)
    beside = design("deepseek-v3", "h100-sxm-80gb", **base, shared_expert_overlap=1.0)
    shared = sum(rows(beside["shared_hiding_time"], "phase").values())
    saved = exposed["layer_exposed_ep_time"] - beside["layer_exposed_ep_time"]
    assert np.ravel(saved) == pytest.approx([0, shared])
    paired = design("deepseek-v3", "h100-sxm-80gb", **base, ep_overlap=1.0)
    kernels = np.sum(INNER.at(exposed["layer_busy_time"], layer_kind="experts"))
    left = max(np.ravel(exposed["layer_exposed_ep_time"])[1] - kernels, 0.0)
    assert np.ravel(paired["layer_exposed_ep_time"]) == pytest.approx([0, left])
    near = design("deepseek-v3", "gb200", **base, ep_overlap=1.0)
    assert near["exposed_ep_time"] == 0 < near["expert_exchange_time"]


def test_cores_set_aside_for_exchanges():
    """Of 132 cores 20: kernels on them take 20/112 longer in pairs, where an exchange would take them for its time."""
    base = {"tp": 1.0, "pp": 16.0, "dp": 128.0, "ep": 64.0, "global_batch": 15360.0, "schedule": "dualpipe"}
    base |= {"software": "hai-llm", "recompute": "none", "paired_ep_overlap": 1.0}
    q, at_times = (design("deepseek-v3", "h800-sxm-80gb", **base, dedicated_cores=d) for d in (True, False))
    busy = rows(INNER.at(q["layer_busy_time"], layer_kind="experts"), "resource")
    on_cores = sum(time for resource, time in busy.items() if resource not in ("hbm", "launch"))
    assert np.ravel(q["layer_exposed_ep_time"]) == pytest.approx([0, 20 / 112 * on_cores])
    exchanges = 2 * q["expert_exchange_time"]
    assert np.ravel(at_times["layer_exposed_ep_time"]) == pytest.approx([0, 20 / 132 * exchanges])
    assert np.ravel(at_times["unpaired_ep_time"]) == pytest.approx([0, (1 - 20 / 132) * exchanges / 2])
    alone = [
        design("deepseek-v3", "h800-sxm-80gb", **base | {"schedule": "1f1b", "dedicated_cores": d})
        for d in (True, False)
    ]
    assert alone[0]["step_time"] == alone[1]["step_time"]
