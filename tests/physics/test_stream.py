"""Streaming kernels against a list of the tensors that one layer reads and writes."""

import numpy as np
import pytest

from perfgrid.formulas import INNER

from .cases import design, rows


def tensors_of_a_gpt_layer(tokens, shard, hidden, width, ffn, scores, t):
    """(kernel, phase, elements, bytes per element) of every tensor that passes through memory."""
    h, f, w = shard * hidden, tokens * ffn // t, tokens * width // t
    biased = {"bias": [3 * w, tokens * hidden], "ffn_bias": [f, tokens * hidden]}
    found = []
    for _ in range(2):  # norms: x -> y; dy, x -> dx; dy, x for the gains
        found += [("norm", "forward", h, 2)] * 2 + [("norm", "input_gradient", h, 2)] * 3
        found += [("norm", "weight_gradient", h, 2)] * 2
    for _ in range(2):  # bias + dropout + residual: x, residual -> y, mask; dy, mask -> dx; two branches -> dy
        found += [("residual", "forward", h, 2)] * 3 + [("residual", "forward", h, 1)]
        found += [("residual", "input_gradient", h, 2)] * 5 + [("residual", "input_gradient", h, 1)]
    found += [("activation", "forward", f, 2)] * 2 + [("activation", "input_gradient", f, 2)] * 3
    found += [("softmax", "forward", scores, 2)] * 4 + [("softmax", "forward", scores, 1)]
    found += [("softmax", "input_gradient", scores, 2)] * 5 + [("softmax", "input_gradient", scores, 1)]
    found += [(kernel, "weight_gradient", elements, 2) for kernel, sizes in biased.items() for elements in sizes]
    return found


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_gpt_layer_against_its_tensors(sequence_parallel):
    q = design("megatron-22b", microbatch=4.0, flash_attention=False, sequence_parallel=sequence_parallel, biases=True)
    tokens, t = 4 * 2048, 8
    shard = tokens // t if sequence_parallel else tokens
    expected: dict[tuple[str, str], float] = {}
    for kernel, phase, elements, size in tensors_of_a_gpt_layer(
        tokens, shard, 6144, 6144, 24576, 4 * 64 // t * 2048 * 2048, t
    ):
        expected[phase, kernel] = expected.get((phase, kernel), 0.0) + elements * size
    counts = {
        k: a + b
        for (k, a), b in zip(
            rows(q["layer_streams"], "stream_kernel").items(),
            rows(q["core_streams"], "stream_kernel").values(),
            strict=True,
        )
    }
    found = rows(q["stream_traffic"], "phase", "stream_kernel")
    for (phase, kernel), value in found.items():
        assert value * counts[kernel] == pytest.approx(expected.get((phase, kernel), 0.0)), (phase, kernel)


def test_what_is_done_to_scores_apart_is_counted_once():
    """Position biases: written into the result of the first product and read back by it, 16 bits each; forward only."""
    given = {"microbatch": 2.0, "flash_attention": False, "tp": 4.0, "pointwise_passes": 2.0}
    some, none = (
        rows(
            design("megatron-22b", software="megatron-deepspeed", **given, **more)["stream_traffic"],
            "phase",
            "stream_kernel",
        )
        for more in ({}, {"score_copy_size": 0.0})
    )
    scores = 2 * 64 // 4 * 2048 * 2048
    for key, value in some.items():
        assert value - none[key] == pytest.approx(4 * scores if key == ("forward", "softmax") else 0.0, abs=1.0), key


@pytest.mark.parametrize("size", [(38.0, 14.0), (12.0, 8.0), (6.0, 0.0)])
def test_the_loss_moves_what_its_software_states(size):
    """Bytes for each logit of a rank, by phase, whatever the precision; separate kernels in single precision: 38, 14.

    Forward they read 16-bit logits and move nine numbers of 4 bytes, backward three and a 16-bit gradient.
    """
    default = design("llama-3.1-8b", vocab_size=131072.0, microbatch=2.0, pointwise_passes=2.0, norm_passes=3.0)
    stated = INNER.vector("phase", [*size, 0.0])
    q = design(
        "llama-3.1-8b", vocab_size=131072.0, microbatch=2.0, pointwise_passes=2.0, norm_passes=3.0, loss_size=stated
    )
    logits = 2 * 2048 * 131072 / 8
    found, other = (rows(x["stream_traffic"], "phase", "stream_kernel") for x in (q, default))
    for (phase, kernel), value in found.items():
        if kernel == "loss":
            assert value == pytest.approx(
                logits * dict(zip(("forward", "input_gradient"), size, strict=True)).get(phase, 0)
            )
        else:
            assert value == other[phase, kernel], (phase, kernel)
    assert other["forward", "loss"] == pytest.approx(logits * (2 + 9 * 4))
    assert other["input_gradient", "loss"] == pytest.approx(logits * (2 + 3 * 4))


def test_streaming_is_bound_by_memory_or_vector_units():
    q = design("llama-3.1-8b", "h100-sxm-80gb")
    time = rows(np.sum(q["stream_time"], axis=INNER.position("resource")), "phase", "stream_kernel")
    traffic = rows(q["stream_traffic"], "phase", "stream_kernel")
    for key, value in traffic.items():
        assert time[key] >= value / 3.35e12
    assert rows(q["layer_streams"], "stream_kernel")["rotary"] == 1
    assert rows(q["layer_streams"], "stream_kernel")["bias"] == 0
