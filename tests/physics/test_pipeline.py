"""Pipeline schedules: the closed forms against event-by-event execution."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .cases import design
from .closed_pipeline import closed
from .schedules import Pipeline, layers_of_chunks, stage_times


def executed(schedule, layers, pp, chunks, forward, backward, transfer=0.0):
    held = layers_of_chunks(layers, pp, chunks)
    return Pipeline(stage_times(held, *forward), stage_times(held, *backward), transfer, schedule)


def both(schedule, layers, pp, chunks, microbatches, forward, backward, transfer=0.0):
    """(time by the closed form, time by execution) of one step's passes."""
    q = closed(schedule, layers, pp, chunks, microbatches, forward, backward, transfer)
    pipeline = executed(schedule, layers, pp, chunks, forward, backward, transfer)
    return microbatches * q["slowest_stage_time"] + q["bubble_time"] + q["exposed_pp_time"], pipeline.run(microbatches)


# equal stages: 1F1B, interleaved and GPipe have well-known times and bubbles
EQUAL = [(2, 2, 1), (4, 8, 1), (4, 9, 1), (8, 64, 1), (35, 70, 1), (4, 8, 2), (8, 64, 3), (8, 8, 2), (35, 105, 3)]


@pytest.mark.parametrize(("pp", "microbatches", "chunks"), EQUAL)
def test_equal_stages(pp, microbatches, chunks):
    one = ((1.0, 0.0, 0.0), (2.0, 0.0, 0.0))
    q = closed("1f1b", pp * chunks, pp, chunks, microbatches, *one)
    assert q["bubble_time"] == pytest.approx(3.0 * (pp - 1))
    assert q["slowest_stage_time"] == pytest.approx(3.0 * chunks)
    found, expected = both("1f1b", pp * chunks, pp, chunks, microbatches, *one)
    assert found == pytest.approx(expected)


# (schedule, stages, microbatches, chunks), forward 1 and backward 2 per stage: time, microbatches in flight at stage 0
KNOWN = {
    ("gpipe", 4, 8, 1): (33.0, 8.0),
    ("interleaved", 4, 8, 2): (28.5, 5.5),
    ("gpipe", 8, 16, 1): (69.0, 16.0),
    ("interleaved", 8, 16, 2): (58.5, 11.5),
    ("gpipe", 4, 4, 1): (21.0, 4.0),
    ("interleaved", 4, 4, 2): (16.5, 4.0),
    ("gpipe", 8, 8, 1): (45.0, 8.0),
    ("interleaved", 8, 8, 2): (34.5, 8.0),
    ("gpipe", 4, 2, 1): (15.0, 2.0),
    ("gpipe", 2, 16, 1): (51.0, 16.0),
    ("interleaved", 2, 16, 2): (49.5, 2.5),
}


@pytest.mark.parametrize("case", KNOWN)
def test_known_answers(case):
    schedule, pp, microbatches, chunks = case
    time, in_flight = KNOWN[case]
    name = "gpipe" if schedule == "gpipe" else "1f1b"
    q = closed(name, pp * chunks, pp, chunks, microbatches, (1 / chunks, 0.0, 0.0), (2 / chunks, 0.0, 0.0))
    assert microbatches * q["slowest_stage_time"] + q["bubble_time"] == pytest.approx(time)
    assert q["first_stage_in_flight"] == pytest.approx(in_flight)


@st.composite
def pipelines(draw, schedules=("gpipe", "1f1b", "interleaved")):
    """Legal pipelines with layers that divide or not, embedding and head, and ratios of backward to forward time."""
    schedule = draw(st.sampled_from(schedules))
    pp = draw(st.integers(1 if schedule != "interleaved" else 3, 10))
    chunks = draw(st.integers(2, 4)) if schedule == "interleaved" else 1
    if schedule == "interleaved":
        layers = pp * chunks * draw(st.integers(1, 4)) - draw(st.integers(0, 2))
        microbatches = pp * draw(st.integers(1, 5))
    else:
        layers = draw(st.integers(2 * pp, 8 * pp))
        microbatches = draw(st.integers(1, 4 * pp))
    ratio = draw(st.floats(1.5, 3.0))
    embedding, head = draw(st.floats(0.0, 0.05)), draw(st.floats(0.0, 1.2))
    forward = (1.0, embedding, head)
    backward = (ratio, draw(st.floats(1.0, 3.0)) * embedding, 2 * head)
    name = "gpipe" if schedule == "gpipe" else "1f1b"
    return name, layers, pp, chunks, microbatches, forward, backward


many = settings(max_examples=300, deadline=None, derandomize=True)


@many
@given(pipelines(("gpipe",)), st.floats(0.0, 0.5))
def test_gpipe_is_met_exactly(case, transfer):
    found, expected = both(*case, transfer=transfer)
    assert found == pytest.approx(expected, rel=1e-9)


@many
@given(pipelines(("1f1b",)))
def test_uneven_stages_of_1f1b(case):
    """Never above; at most 0.5 % below with more microbatches than stages, 1.5 % with fewer."""
    _, _, pp, _, microbatches, *_ = case
    found, expected = both(*case)
    below = 0.005 if microbatches > pp else 0.015
    assert expected * (1 - below) <= found <= expected * (1 + 1e-9)


def test_uneven_stages_of_1f1b_are_met_exactly_in_practice():
    """Stages that lack a layer, a head of up to a layer, more microbatches than stages: equality."""
    for pp, layers, head in itertools.product((2, 4, 8, 16), (32, 80, 105, 126), (0.3, 1.0)):
        for ratio in (2.0, 3.0):
            case = ("1f1b", layers, pp, 1, 3 * pp, (1.0, 0.01, head), (ratio, 0.05, 2 * head))
            found, expected = both(*case)
            assert found == pytest.approx(expected, rel=1e-9), case


@many
@given(pipelines(("interleaved",)))
def test_uneven_chunks(case):
    """Exact where the layers divide and the last stage is the longest; otherwise within 1.5 %."""
    _, layers, pp, chunks, _, forward, backward = case
    found, expected = both(*case)
    exact = layers % (pp * chunks) == 0 and forward[1] + backward[1] <= forward[2] + backward[2]
    assert found == pytest.approx(expected, rel=1e-9 if exact else 0.015)


@many
@given(pipelines(("1f1b", "interleaved")), st.floats(0.001, 0.05))
def test_exposed_transfers(case, transfer):
    """Up to 5 % of a layer's forward time per transfer: the step within 3 %, never less than without them."""
    found, expected = both(*case, transfer=transfer)
    assert found == pytest.approx(expected, rel=0.03)
    assert found >= both(*case)[0]


@pytest.mark.parametrize(("pp", "microbatches", "chunks"), [*EQUAL, (4, 3, 1), (4, 1, 1), (6, 11, 1), (8, 4, 1)])
def test_exposed_transfers_of_equal_stages(pp, microbatches, chunks):
    case = ("1f1b", pp * chunks, pp, chunks, microbatches, (1.0, 0.0, 0.0), (2.0, 0.0, 0.0))
    delay = 1e-3
    without, delayed = executed(*case[:4], *case[5:]), executed(*case[:4], *case[5:], delay)
    expected = delayed.run(microbatches) - without.run(microbatches)
    assert closed(*case, delay)["exposed_pp_time"] == pytest.approx(expected, rel=1e-6)
    if microbatches % pp == 0 and chunks == 1:
        assert expected / delay == pytest.approx(2 * (pp - 1) * (microbatches / pp + 1) - 2)


@many
@given(pipelines())
def test_microbatches_in_flight(case):
    name, layers, pp, chunks, microbatches, forward, backward = case
    q = closed(*case)
    pipeline = executed(name, layers, pp, chunks, forward, backward)
    pipeline.run(microbatches)
    assert q["first_stage_in_flight"] == pytest.approx(pipeline.kept[0])
    assert q["last_stage_in_flight"] == pytest.approx(pipeline.kept[-1])
    if pp > 2:
        assert q["middle_stage_in_flight"] == pytest.approx(max(pipeline.kept[1:-1]))


@pytest.mark.parametrize("layers", [32, 80, 105, 126])
@pytest.mark.parametrize("pp", [1, 2, 3, 4, 5, 8, 16])
def test_layers_of_stages_against_dealing_them(layers, pp):
    q = design("llama-3.1-70b", layers=float(layers), tp=1.0, pp=float(pp), global_batch=64.0)
    stages = [n for (n,) in layers_of_chunks(layers, pp, 1)]
    assert sum(stages) == layers
    assert q["first_stage_layers"] == stages[0]
    assert q["last_stage_layers"] == stages[-1]
    if pp > 2:
        assert q["middle_stage_layers"] == max(stages[1:-1])
    expected = [n * q["layer_time"] for n in stages]
    expected[0] += q["embedding_time"]
    expected[-1] += q["head_time"]
    assert q["slowest_stage_time"] == pytest.approx(max(expected))
    assert q["model_pass_time"] == pytest.approx(sum(expected))


def test_llama_405b_runs_interleaved_with_126_layers():
    """126 layers as 128 chunks on 16 stages: the first chunk holds the embedding only, the last one the head only."""
    for chunks in (1.0, 2.0, 4.0, 8.0):
        q = design("llama-3.1-405b", tp=8.0, pp=16.0, chunks=chunks, global_batch=64.0)
        assert q["layers_interleave"]
        assert q["layers_suffice"]
        assert q["schedule_takes_chunks"]
    assert not design("llama-3.1-405b", tp=8.0, pp=16.0, chunks=3.0, global_batch=64.0)["layers_interleave"]
    assert not design("llama-3.1-405b", tp=8.0, pp=16.0, chunks=16.0, global_batch=64.0)["schedule_takes_chunks"]


def test_impossible_schedules_are_flagged():
    assert not design("llama-3.1-8b", tp=1.0, pp=4.0, chunks=2.0, global_batch=6.0)["microbatches_interleave"]
    assert not design("llama-3.1-8b", tp=1.0, pp=4.0, chunks=3.0)["layers_interleave"]
    assert not design("llama-3.1-8b", tp=1.0, pp=64.0)["layers_suffice"]
    assert not design("llama-3.1-8b", tp=1.0, chunks=2.0)["chunks_need_stages"]
    assert not design("llama-3.1-8b", tp=1.0, pp=4.0, devices=8.0)["layout_fills_cluster"]
    assert not design("llama-3.1-8b", tp=1.0, pp=4.0, chunks=2.0, schedule="gpipe")["schedule_takes_chunks"]
    assert design("llama-3.1-8b", tp=1.0, pp=4.0, schedule="gpipe")["schedule_takes_chunks"]
    assert design("llama-3.1-8b", tp=1.0, pp=4.0, chunks=2.0, global_batch=8.0)["layers_interleave"]


def test_gpipe_keeps_all_microbatches():
    given_ = {"tp": 1.0, "pp": 4.0, "global_batch": 64.0, "recompute": "full"}
    gpipe, plain = design("llama-3.1-8b", **given_, schedule="gpipe"), design("llama-3.1-8b", **given_)
    assert gpipe["first_stage_in_flight"] == 64
    assert plain["first_stage_in_flight"] == 4
    assert gpipe["layer_activation_memory"] == 16 * plain["layer_activation_memory"]
    assert gpipe["memory_per_device"] > plain["memory_per_device"]
    assert gpipe["bubble_time"] == pytest.approx(plain["bubble_time"])
