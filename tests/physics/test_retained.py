"""What a framework retains: named results, buffers of a pipeline, tables of the loss, by hand."""

import pytest

from tests.physics.cases import design

TITAN = {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "software": "torchtitan-2024", "zero": 3.0}
RUN = {**TITAN, "tp": 1.0, "dp": 8.0, "microbatch": 2.0, "global_batch": 16.0, "sequence_length": 8192.0}
TOKENS = 2 * 8192
SOFTWARE = ("torchtitan", "torchtitan-2024", "torchtitan-2024-eager")


def test_named_results_of_a_layer():
    """Llama 3 8B: input, queries, fused core 4096 each, values 1024, first product 14336, in 16 bits; one statistic."""
    q = design(**RUN, recompute="selective")
    assert q["layer_activations"] == TOKENS * (2 * (3 * 4096 + 1024 + 14336) + 32 * 4)
    split = design(**{**RUN, "tp": 8.0, "dp": 1.0}, recompute="selective", sequence_parallel=True)
    rank = TOKENS * (2 * ((2 * 4096 + 1024 + 14336) / 8 + 2 * 4096 / 8) + 32 / 8 * 4)  # with the scattered sums
    assert split["layer_activations"] == pytest.approx(rank, rel=1e-12)


def test_results_that_nothing_asks_for():
    """Without a compiler also the last product of a gated block stays; of a plain one it is the sixth, which goes."""
    eager = {**RUN, "software": "torchtitan-2024-eager", "recompute": "selective"}
    more = (
        design(**eager)["layer_activations"] - design(**{**eager, "software": "torchtitan-2024"})["layer_activations"]
    )
    assert more == TOKENS * 4096 * 2
    plain = [design(**{**eager, "software": s}, gated_ffn=False)["layer_activations"] for s in SOFTWARE[1:]]
    assert plain[0] == plain[1]
    split = {"tp": 8.0, "dp": 1.0, "sequence_parallel": True}
    parts = [design(**{**eager, **split, "software": s})["layer_activations"] for s in SOFTWARE[1:]]
    assert parts[1] - parts[0] == TOKENS * 4096 * 2 * (1 + 1 / 8)


@pytest.mark.parametrize("software", SOFTWARE)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_naming_results_never_keeps_more_than_all_nor_less_than_the_input(software, recompute):
    q = design(**{**RUN, "software": software}, recompute=recompute)
    assert q["layer_input_activations"] <= q["layer_activations"] <= q["none_layer_activations"]


@pytest.mark.parametrize(("software", "whole", "split"), [("torchtitan-2024", 14, 18), ("torchtitan", 4, 4)])
def test_tables_of_the_loss(software, whole, split):
    """Bytes of each logit, beside inputs of the norm and of the head; with tensor parallelism a part on each rank."""
    given = {**RUN, "software": software, "recompute": "full"}
    assert design(**given)["head_activations"] == TOKENS * (2 * 4096 * 2 + 128256 * whole)
    parts = design(**{**given, "tp": 8.0, "dp": 1.0}, sequence_parallel=True)["head_activations"]
    assert parts == TOKENS / 8 * (2 * 4096 * 2 + 128256 * split)


def test_buffers_of_a_pipeline():
    """Eight microbatches through four stages: 8 outputs and 8 gradients each, inputs that are not in flight yet."""
    pipeline = {**RUN, "dp": 1.0, "pp": 4.0, "recompute": "full"}
    q = design(**pipeline)
    message = TOKENS * 4096 * 2
    assert q["microbatches"] == 8
    assert q["first_stage_buffers"] == (8 + 8) * message
    assert q["middle_stage_in_flight"] == 3
    assert q["middle_stage_buffers"] == ((8 - 3) + 8 + 8) * message
    assert q["last_stage_buffers"] == (8 - 1) * message + (8 - 1) * TOKENS * 128256 * 2
    assert design(**{**pipeline, "software": "megatron-core", "zero": 1.0})["last_stage_buffers"] == 0
    assert design(**RUN)["first_stage_buffers"] == design(**RUN)["last_stage_buffers"] == 0


def test_buffers_of_chunks():
    """Two chunks of a device: one of the first holds the embedding, one of the last the head."""
    q = design(**{**RUN, "dp": 1.0, "pp": 4.0, "chunks": 2.0, "recompute": "full"})
    message = TOKENS * 4096 * 2
    waiting = max(8 * 2 - 8 - 2 * q["first_stage_in_flight"], 0)
    assert q["first_stage_buffers"] == (waiting + 16 + 16) * message
    assert q["last_stage_buffers"] == pytest.approx(
        (max(16 - 2 * q["last_stage_in_flight"], 0) + 8 + 8) * message + 7 * TOKENS * 128256 * 2
    )


def test_what_an_allocator_takes_of_a_published_run():
    """Llama 3 8B on 8 devices: 77.0 GiB are published with compiled layers, by hand 76.7 GiB at the loss."""
    q = design(**RUN, recompute="selective")
    state = 16 * 8030261248 / 8
    layers = 32 * TOKENS * (2 * (3 * 4096 + 1024 + 14336) + 32 * 4)
    head = TOKENS * (2 * 4096 * 2 + 128256 * 14)
    gathered = (218112000 + 128256 * 4096) * 2 + 128256 * 4096 * (2 + 4)
    peak = state + layers + head + gathered
    assert q["memory_per_device"] == pytest.approx(peak + 2 * 2**30, rel=1e-4)
    assert q["allocator_memory"] == pytest.approx(peak + 0.05 * (layers + head), rel=1e-4)
    assert q["allocator_memory"] == pytest.approx(76.7 * 2**30, rel=2e-3)
