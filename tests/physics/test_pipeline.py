"""Pipeline schedules: the closed forms against event-by-event execution."""

import pytest

from perfgrid.formulas import memory, pipeline

from .cases import design
from .schedules import simulate

SCHEDULES = [(2, 2, 1), (4, 8, 1), (4, 9, 1), (8, 64, 1), (35, 70, 1), (4, 8, 2), (8, 64, 3), (8, 8, 2), (35, 105, 3)]


@pytest.mark.parametrize(("pp", "microbatches", "chunks"), SCHEDULES)
def test_bubble_against_execution(pp, microbatches, chunks):
    makespan, _ = simulate(pp, microbatches, chunks, [1.0] * pp, [2.0] * pp)
    assert microbatches * 3.0 + pipeline.bubble(pp * 3.0, 3.0, chunks) == pytest.approx(makespan)


@pytest.mark.parametrize(("pp", "microbatches", "chunks"), SCHEDULES)
@pytest.mark.parametrize("slow", ["first", "middle", "last"])
def test_uneven_stages_against_execution(pp, microbatches, chunks, slow):
    stretch = [1.0] * pp
    stretch[{"first": 0, "middle": pp // 2, "last": -1}[slow]] = 1.25
    makespan, _ = simulate(pp, microbatches, chunks, stretch, [2 * s for s in stretch])
    slowest, everything = 3 * 1.25, 3 * sum(stretch)
    found = microbatches * slowest + pipeline.bubble(everything, slowest, chunks)
    if slow == "last":
        assert found == pytest.approx(makespan)
    else:
        excess = (pp - 1) * 3 * 0.25 if chunks == 1 else (everything - slowest) / chunks
        assert makespan - 1e-9 <= found <= makespan + excess + 1e-9


@pytest.mark.parametrize(("pp", "microbatches", "chunks"), [s for s in SCHEDULES if s[1] % s[0] == 0])
def test_exposed_handovers_against_execution(pp, microbatches, chunks):
    without, _ = simulate(pp, microbatches, chunks, [1.0] * pp, [2.0] * pp)
    with_delay, _ = simulate(pp, microbatches, chunks, [1.0] * pp, [2.0] * pp, handover=1e-3)
    waits = (with_delay - without) / 1e-3
    assert pipeline.exposed_handovers(pp, microbatches, chunks) == pytest.approx(waits, rel=1e-6)


@pytest.mark.parametrize(("pp", "microbatches", "chunks"), SCHEDULES)
def test_microbatches_in_flight_against_execution(pp, microbatches, chunks):
    _, kept = simulate(pp, microbatches, chunks, [1.0] * pp, [2.0] * pp)
    for rank in range(pp):
        found = memory.stages_in_flight(pp, rank, chunks, microbatches)
        assert found == pytest.approx(kept[rank]), rank


def layers_by_dealing(layers, pp):
    """Layers dealt to stages one by one; a stage short of one is the last, then the first, then any other."""
    stages = [layers // pp] * pp
    order = [*range(1, pp - 1), 0, pp - 1] if pp > 1 else [0]
    for stage in order[: layers % pp]:
        stages[stage] += 1
    return stages


@pytest.mark.parametrize("layers", [32, 80, 105, 126])
@pytest.mark.parametrize("pp", [1, 2, 3, 4, 5, 8, 16])
def test_layers_of_stages_against_dealing_them(layers, pp):
    q = design("llama-3.1-70b", layers=float(layers), tp=1.0, pp=float(pp), global_batch=64.0)
    stages = layers_by_dealing(layers, pp)
    assert q["first_stage_layers"] == stages[0]
    assert q["last_stage_layers"] == stages[-1]
    if pp > 2:
        assert q["middle_stage_layers"] == max(stages[1:-1])
    expected = [n * q["layer_time"] for n in stages]
    expected[0] += q["embedding_time"]
    expected[-1] += q["head_time"]
    assert q["slowest_stage_time"] == pytest.approx(max(expected))
    assert q["model_pass_time"] == pytest.approx(sum(expected))


def test_impossible_schedules_are_flagged():
    assert not design("llama-3.1-8b", tp=1.0, pp=4.0, chunks=2.0, global_batch=6.0)["microbatches_interleave"]
    assert not design("llama-3.1-8b", tp=1.0, pp=4.0, chunks=3.0)["layers_interleave"]
    assert not design("llama-3.1-8b", tp=1.0, pp=64.0)["layers_suffice"]
    assert not design("llama-3.1-8b", tp=1.0, chunks=2.0)["chunks_need_stages"]
    assert not design("llama-3.1-8b", tp=1.0, pp=4.0, devices=8.0)["layout_fills_cluster"]
    assert design("llama-3.1-8b", tp=1.0, pp=4.0, chunks=2.0, global_batch=8.0)["layers_interleave"]
