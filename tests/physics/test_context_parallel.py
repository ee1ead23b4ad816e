"""Context parallelism against loops over ranks, chunks and blocks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgrid.formulas import BREAKDOWN, INNER
from perfgrid.formulas.collectives import exchange
from perfgrid.formulas.kernels import flash
from perfgrid.formulas.parallelism import context_parallel

from .cases import LABELS, design, rows

RESOURCE = INNER.position("resource")
METHODS = LABELS["cp_method"]
PHASES = ("forward", "input_gradient")


def zig_zag(ranks, chunk):
    """Rows of blocks of every rank: of 2·ranks chunks one from the front and its mirror image."""
    return [
        [*range(i * chunk, (i + 1) * chunk), *range((2 * ranks - 1 - i) * chunk, (2 * ranks - i) * chunk)]
        for i in range(ranks)
    ]


def visible(row, column, reach, causal):
    """A block of scores holds a pair that sees each other: less than ``reach`` blocks apart, not ahead if causal."""
    return (column <= row if causal else column - row < reach) and row - column < reach


def work_of_ranks(ranks, chunk, reach, causal):
    """Visible blocks of every rank."""
    columns = range(2 * ranks * chunk)
    return [sum(visible(row, c, reach, causal) for row in own for c in columns) for own in zig_zag(ranks, chunk)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("ranks", "chunk"), [(1, 4), (2, 3), (4, 2), (8, 1), (3, 5)])
def test_blocks_of_the_busiest_rank_against_a_loop(ranks, chunk, causal):
    block = 128
    sequence = 2 * ranks * chunk * block
    for reach in (1, 2, 5, 2 * ranks * chunk):
        found, longest = flash.visible_blocks(sequence, block, (reach - 1) * block, causal, ranks)
        work = work_of_ranks(ranks, chunk, reach, causal)
        assert found == max(work), (reach, work)
        assert longest == min(reach if causal else 2 * reach - 1, 2 * ranks * chunk)
    balanced = work_of_ranks(ranks, chunk, 2 * ranks * chunk, causal)
    assert len(set(balanced)) == 1
    assert ranks * balanced[0] == flash.visible_blocks(sequence, block, sequence, causal)[0]


def passes_by_loop(ranks, chunk):
    """Blocks of every rank in every pass of a causal ring: keys of rank i - j come by rank i in pass j."""
    held = zig_zag(ranks, chunk)
    return [
        [sum(column <= row for row in held[i] for column in held[(i - j) % ranks]) for i in range(ranks)]
        for j in range(ranks)
    ]


@pytest.mark.parametrize(("ranks", "chunk"), [(2, 4), (4, 2), (8, 3)])
def test_all_passes_of_a_causal_ring_are_alike(ranks, chunk):
    """2n² blocks on every rank in every pass, and n more in the first, which holds the diagonal (n rows a chunk)."""
    passes = passes_by_loop(ranks, chunk)
    assert passes[0] == [2 * chunk**2 + chunk] * ranks
    assert all(work == [2 * chunk**2] * ranks for work in passes[1:])
    total = flash.visible_blocks(2 * ranks * chunk * 64, 64, 10**6, True, ranks)[0]
    assert total == sum(work[0] for work in passes)


def ring_by_loop(ranks, transfer, work):
    """End of the last pass: each begins when its keys are there and the one before is done; keys go on meanwhile."""
    now, arrived = 0.0, 0.0
    for _ in range(ranks):
        start = max(now, arrived)
        arrived, now = start + transfer, start + work
    return now


@pytest.mark.parametrize("transfer", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_what_a_ring_does_not_hide_against_a_replay(ranks, transfer):
    waited = ring_by_loop(ranks, transfer, 1.0) - ranks
    assert context_parallel.exposed_in_ring(float(ranks), transfer, float(ranks)) == pytest.approx(waited)


def case(**changes):
    given_ = {"tp": 2.0, "cp": 4.0, "sequence_length": 32768.0, "recompute": "none", "global_batch": 4.0, **changes}
    return design("llama-3.1-8b", "h100-sxm-80gb", **given_)


@pytest.mark.parametrize("domain", [8.0, 2.0])
def test_a_ring_waits_for_the_slowest_link(domain):
    """Keys and values of 8192 tokens and four heads to the next rank: inside the node, or between nodes."""
    q = case(scale_up_size=domain, communication_cores=0.0)
    seconds = rows(np.sum(q["flash_time"], axis=RESOURCE, keepdims=True), "phase")
    tier = "scale_up" if domain == 8 else "scale_out"
    latency = q["collective_launch_latency"] + rows(q["tier_transfer_latency"], "tier")[tier]
    bandwidth = rows(q["tier_peer_bandwidth"], "tier")[tier]
    expected = []
    for phase in PHASES:
        message = 8192 * 4 * (128 + 128) * 2 * (1 if phase == "forward" else 2)  # backward with gradients
        transfer = latency + message / bandwidth
        expected.append(ring_by_loop(4, transfer, seconds[phase] / 4) - seconds[phase])
    assert q["layer_forward_exposed_cp_time"] == pytest.approx(expected[0], abs=1e-15)
    assert q["layer_backward_exposed_cp_time"] == pytest.approx(expected[1], abs=1e-15)
    exposed = case(scale_up_size=domain, cp_overlap=0.0, communication_cores=0.0)
    assert exposed["layer_forward_exposed_cp_time"] == pytest.approx(3 * (latency + message / 2 / bandwidth))


def backward_ring_by_loop(ranks, returned):
    """Hand-overs of keys with values and of their gradients in the backward pass of one rank.

    After every pass gradients go on with what it added; where the keys of the first pass were a rank's own, those of
    the last one are its neighbour's, whose gradients have one way more to go.
    """
    keys = gradients = 0
    for done in range(ranks):
        keys += done < ranks - 1
        gradients += done < ranks - 1 or returned
    return keys, gradients


@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("size", [0.0, 4.0])
def test_gradients_are_sent_at_the_size_of_their_sums(size, returned):
    """Keys and values of 8192 tokens and four heads in 16 bits; gradients as these or in 32 bits."""
    changes = {"ring_partial_size": size, "returned_key_gradients": returned, "communication_cores": 0.0}
    q = case(**changes, cp_overlap=0.0)
    keys, gradients = backward_ring_by_loop(4, returned)
    own = 8192 * 4 * (128 + 128)
    sent = own * (2 * keys + max(size, 2) * gradients)
    assert q["layer_cp_bytes"] == sent + 3 * own * 2  # the forward pass too
    assert q["cp_memory"] == 2 * own * (2 + max(size, 2))
    latency = q["collective_launch_latency"] + rows(q["tier_transfer_latency"], "tier")["scale_up"]
    bandwidth = rows(q["tier_peer_bandwidth"], "tier")["scale_up"]
    assert q["layer_backward_exposed_cp_time"] == pytest.approx(3 * latency + sent / bandwidth)
    hidden = case(**changes)["layer_backward_exposed_cp_time"]
    home = own * max(size, 2) / bandwidth if returned else 0.0  # beside nothing, whatever else is hidden
    assert hidden == pytest.approx(home, rel=1e-9, abs=1e-15)
    gathered = case(**changes, cp_method="all_gather")
    assert gathered["layer_cp_bytes"] == 3 * 3 / 4 * gathered["cp_message"]  # no partial sums, no ring


@pytest.mark.parametrize(("size", "per_element"), [(0.0, 2 + 2 + 2), (4.0, 2 + 4 + 4)])
def test_merging_reads_and_writes_sums_as_they_are_kept(size, per_element):
    """In each pass but one: what it gives is read, the sum so far read and written."""
    merged, once = case(ring_partial_size=size), case(cp_method="all_gather")
    rank = 8192 * 16 * 128  # elements of the results of one rank, and of the gradients of its queries
    keys = 8192 * 4 * (128 + 128)
    statistics = 4 * 8192 * 16
    mask = INNER.position("mask")
    traffic = [rows(np.max(q["flash_exposed_traffic"], axis=mask, keepdims=True), "phase") for q in (merged, once)]
    forward = traffic[0]["forward"] - traffic[1]["forward"]
    assert forward == 3 * (per_element * rank + 2 * 2 * rank + statistics)  # and all of a row again in every pass
    backward = traffic[0]["input_gradient"] - traffic[1]["input_gradient"]
    again = 2 * 2 * rank + 2 * 4 * rank + 2 * rank + statistics
    assert backward == 3 * (per_element * (rank + keys) + again)


def test_repeated_keys_are_sent_for_every_query_head():
    """Sixteen query heads on a rank share four key heads; repeated, each reads, sends and adds to its own."""
    once, repeated = case(), case(repeated_keys=True)
    assert (once["kernel_key_heads"], repeated["kernel_key_heads"]) == (4, 16)
    assert repeated["cp_message"] == 32768 * 16 * (128 + 128) * 2 == 4 * once["cp_message"]
    assert repeated["key_value_tensor"] == 4 * once["key_value_tensor"]
    assert repeated["layer_cp_bytes"] == 4 * once["layer_cp_bytes"]
    alone = case(kv_heads=32.0), case(kv_heads=32.0, repeated_keys=True)  # nothing to repeat
    assert alone[0]["step_time"] == alone[1]["step_time"]
    exchanged = case(cp_method="ulysses", repeated_keys=True)["exchanged_activations"]
    assert exchanged == 8192 * (16 + 16 + 16 + 16) * 128 * 2


def test_compiled_layers_wait_for_ring_transfers():
    """torchtitan, 8 ranks on a node: compiled nothing is hidden, otherwise only gradients on their way home are not."""
    run = {"tp": 1.0, "cp": 8.0, "sequence_length": 262144.0, "communication_cores": 0.0, "zero": 3.0}
    compiled, eager = (case(**run, software=f"torchtitan-2024{x}") for x in ("", "-eager"))
    bandwidth = rows(compiled["tier_peer_bandwidth"], "tier")["scale_up"]
    own = 32768 * 32 * (128 + 128)  # keys and values for all 32 query heads
    waited = compiled["layer_forward_exposed_cp_time"] + compiled["layer_backward_exposed_cp_time"]
    assert waited == pytest.approx((2 * 7 * 2 * own + 8 * 4 * own) / bandwidth, rel=0.01)  # latencies are short
    assert eager["layer_forward_exposed_cp_time"] == 0
    assert eager["layer_backward_exposed_cp_time"] == pytest.approx(4 * own / bandwidth)


@pytest.mark.parametrize("vocabulary", [128256.0, 1024.0])
def test_buffers_of_a_ring_lie_where_the_loss_keeps_its_logits(vocabulary):
    """Both are in use for moments, never at once: the larger one counts."""
    q = case(vocab_size=vocabulary, ring_partial_size=4.0)
    head = q["weight_copies"] * q["last_stage_heads"] * q["head_activations"]
    assert (head > q["cp_memory"]) == (vocabulary > 1024)
    held = q["state_memory"] + q["last_stage_kept_activations"] + q["loss_working_memory"]
    layers = q["layer_working_memory"] - q["loss_working_memory"]
    assert layers >= q["cp_memory"]
    assert q["memory_per_device"] - q["reserved_memory"] == pytest.approx(held + max(head, layers), rel=1e-12)
    larger = case(vocab_size=vocabulary, ring_partial_size=8.0)
    grown = larger["memory_per_device"] - q["memory_per_device"]
    assert grown == pytest.approx(0.0 if vocabulary > 1024 else larger["cp_memory"] - q["cp_memory"], abs=1.0)


def moved_by_loop(ranks, length, heads, keys):
    """(token, head) pairs that rank 0 sends when tokens split over ranks become heads split over ranks, and back.

    Counted for queries, keys, values and results; where there are fewer key heads than ranks each goes to several.
    """
    tokens = length // ranks
    forth = sum(owner != 0 for owner in range(ranks) for _ in range(tokens * heads // ranks))
    each = max(keys // ranks, 1)
    forth_keys = sum(owner != 0 for owner in range(ranks) for _ in range(tokens * each))
    return 2 * forth + 2 * forth_keys


@pytest.mark.parametrize(("cp", "kv_heads"), [(2, 8), (4, 8), (8, 8), (8, 2)])
def test_ulysses_moves_what_changes_hands(cp, kv_heads):
    q = case(tp=1.0, cp=float(cp), kv_heads=float(kv_heads), cp_method="ulysses")
    pairs = moved_by_loop(cp, 32768, 32, kv_heads)
    assert q["layer_cp_bytes"] == 2 * 2 * 128 * pairs  # both ways, 16 bits, 128 wide
    assert q["head_split_divides"]
    assert q["kernel_heads"] == 32 / cp
    assert q["kernel_key_heads"] == max(kv_heads / cp, 1)
    inside, domains = rows(q["head_split_tier_ranks"], "tier").values()
    assert (inside, domains) == (cp, 1)
    transfer, posting = (rows(q[f"tier_{x}_latency"], "tier")["scale_up"] for x in ("transfer", "message"))
    latency = q["collective_launch_latency"] + transfer + (cp - 1) * posting
    wait = 4 * latency + 2 * 128 * pairs / rows(q["tier_bandwidth"], "tier")["scale_up"]
    assert q["layer_forward_exposed_cp_time"] == pytest.approx(wait)
    assert q["layer_backward_exposed_cp_time"] == pytest.approx(wait)


def test_equal_parts_over_two_tiers_against_a_loop():
    """Rank 0 of 4 in 2 domains: one part stays, two leave."""
    sent = {"scale_up": 0, "scale_out": 0}
    for peer in range(1, 4):
        sent["scale_up" if peer < 2 else "scale_out"] += 100
    assert rows(exchange.equal_parts(400, 4, 2), "tier") == sent


def test_gathered_keys_are_waited_for():
    """Llama 3: gathered forward; gathered again and gradients scattered backward; one exchange of its bytes each."""
    q = case(cp_method="all_gather")
    assert q["cp_message"] == 32768 * 4 * (128 + 128) * 2
    assert q["layer_forward_exposed_cp_time"] == q["cp_gather_time"] > 0
    assert q["layer_backward_exposed_cp_time"] == 2 * q["cp_gather_time"]
    assert q["layer_cp_bytes"] == 3 * 3 / 4 * q["cp_message"]
    assert case(cp_method="all_gather", recompute="full")["layer_cp_bytes"] == q["cp_message"] * 3
    assert q["cp_memory"] == 2 * q["cp_message"]


@pytest.mark.parametrize("method", METHODS)
def test_one_rank_is_no_context_parallelism(method):
    one, alone = case(cp=1.0, cp_method=method), case(cp=1.0)
    for name in ("step_time", *BREAKDOWN, "memory_per_device", "layer_time", "flash_time", "cp_bytes"):
        assert np.array_equal(one[name], alone[name]), name
    assert one["exposed_cp_time"] == one["cp_memory"] == one["cp_bytes"] == 0


def test_hybrids_with_one_factor_equal_that_method():
    for ranks, method in ((1.0, "ring"), (4.0, "ulysses")):
        mixed, pure = case(cp_method="hybrid", ulysses_ranks=ranks), case(cp_method=method)
        for name in ("step_time", "exposed_cp_time", "layer_cp_bytes", "flash_time", "cp_memory"):
            assert np.allclose(mixed[name], pure[name], rtol=1e-12), (method, name)
    mixed = case(cp_method="hybrid", ulysses_ranks=2.0)
    assert (mixed["head_split"], mixed["sequence_split"], mixed["ring_passes"]) == (2, 2, 2)
    assert mixed["sequence_split_stride"] == 4
    keys, moved = 32768 * 2 * 256 * 2, 8192 * (16 + 16 + 4 + 4) * 128 * 2
    assert mixed["layer_cp_bytes"] == 3 * keys / 2 + 2 * moved / 2


@settings(max_examples=25, deadline=None)
@given(
    method=st.sampled_from(METHODS),
    cp=st.sampled_from([2.0, 4.0, 8.0]),
    tp=st.sampled_from([1.0, 2.0]),
    model=st.sampled_from(["llama-3.1-8b", "deepseek-v3"]),
    inner=st.sampled_from([1.0, 2.0]),
    causal=st.booleans(),
    length=st.sampled_from([16384.0, 65536.0]),
)
def test_properties_of_all_methods(method, cp, tp, model, inner, causal, length):
    drawn = {
        "tp": tp,
        "cp_method": method,
        "ulysses_ranks": inner,
        "causal": causal,
        "sequence_length": length,
        "recompute": "none",
        "global_batch": 8.0,
    }
    many, one = (design(model, "h100-sxm-80gb", cp=c, **drawn) for c in (cp, 1.0))
    assert many["context_divides"]
    assert many["head_split_divides"]
    # the same products in all; tiles at the edges of chunks only add to them
    for phase in PHASES:
        whole, part = (np.max(rows(q["flash_volume"], "phase", "mask")[phase, "whole"]) for q in (one, many))
        assert whole <= cp * part * (1 + 1e-12)
        assert cp * part <= whole * 1.05
    assert np.ravel(many["layer_activations"]) * cp == pytest.approx(np.ravel(one["layer_activations"]))
    assert cp * many["microbatch_tokens"] == one["microbatch_tokens"]
    for part in BREAKDOWN:
        assert np.isfinite(many[part])
        assert many[part] >= 0
    assert many["step_time"] == pytest.approx(sum(many[part] for part in BREAKDOWN), rel=1e-9)
    slower = design(model, "h100-sxm-80gb", cp=cp, **drawn, cp_overlap=0.5)
    assert many["step_time"] <= slower["step_time"] * (1 + 1e-12)
    assert np.all(many["layer_time"] * cp >= one["layer_time"] * 0.95)


def test_impossible_splits_are_flagged():
    for reason, changes in {
        "context_divides": {"sequence_length": 4100.0},
        "sequence_divides": {"sequence_length": 4104.0, "tp": 4.0},
        "context_is_fused": {"flash_attention": False},
        "ring_sees_everything": {"window": 1024.0},
        "head_split_divides": {"cp_method": "ulysses", "cp": 3.0, "sequence_length": 6144.0},
    }.items():
        q = case(**{"sequence_length": 8192.0, **changes})
        assert not q[reason], reason
        assert case(sequence_length=8192.0)[reason]
    assert case(window=1024.0, cp_method="all_gather")["ring_sees_everything"]
    assert not case(cp_method="hybrid", ulysses_ranks=3.0)["head_split_divides"]


# ---- packed documents -----------------------------------------------------------------------------------------------


def test_equal_documents_against_a_loop():
    """Eight documents of 1024 tokens: blocks on the diagonal of the score matrix only."""
    q = case(cp=1.0, sequence_length=8192.0, document_length=1024.0)
    blocks = sum(column <= row and row // 8 == column // 8 for row, column in itertools.product(range(64), range(64)))
    assert rows(q["head_blocks"], "mask")["whole"] == blocks
    assert rows(q["longest_row_blocks"], "mask")["whole"] == 8
    whole = case(cp=1.0, sequence_length=8192.0)
    assert q["model_flops_per_token"] == whole["model_flops_per_token"]
    assert q["step_time"] < whole["step_time"]
    assert case(cp=1.0, sequence_length=8192.0, document_length=8192.0)["step_time"] == whole["step_time"]
    assert case(cp=1.0, sequence_length=8192.0, document_length=1e6)["step_time"] == whole["step_time"]


def test_uneven_documents_have_as_many_scores_as_longer_equal_ones():
    lengths = np.random.default_rng(0).gamma(2.0, 300.0, size=4000)
    mean, variation = lengths.mean(), lengths.std() / lengths.mean()
    q = case(cp=1.0, sequence_length=1e6, document_length=mean, document_variation=variation, microbatch=1.0)
    span = q["attended_span"]
    scores = np.sum(lengths**2) / np.sum(lengths) * 1e6  # of a million tokens, in whole squares
    assert 1e6 / span * span**2 == pytest.approx(scores, rel=1e-9)


@pytest.mark.parametrize("cp", [1.0, 2.0])
def test_shorter_documents_are_never_slower(cp):
    times = [case(cp=cp, document_length=length)["layer_time"] for length in (2048.0, 8192.0, 16384.0, 0.0)]
    assert times == sorted(times)
