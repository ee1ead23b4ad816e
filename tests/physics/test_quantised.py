"""What 8-bit recipes gather and keep in 8 bits: bytes counted by hand, and nothing changes in 16 bits."""

import numpy as np
import pytest

from perfgrid.formulas.hardware.scaling import NAMES

from .cases import design, evaluate, point

LAYOUT = {"tp": 4.0, "dp": 4.0, "zero": 1.0, "global_batch": 16.0, "recompute": "none", "sequence_length": 4096.0}
SCALES = {"delayed": 0.0, "tensor": 0.0, "row": 0.0, "block": 4 / 128, "mx": 1 / 32}  # bytes of scales per element


def eight_bits(scaling, model="llama-3.1-8b", **changes):
    given = LAYOUT | {"precision": "fp8", "scaling": float(NAMES.index(scaling))} | changes
    return design(model, "b200", software="nemo", **given)


@pytest.mark.parametrize("scaling", SCALES)
def test_weights_are_gathered_in_8_bits_where_a_tensor_has_one_scale(scaling):
    q, plain = eight_bits(scaling), eight_bits(scaling, quantised_gathering=False)
    size = 1 if scaling in ("delayed", "tensor") else 2
    assert q["weight_message"] == pytest.approx(size * q["stage_parameters"])
    assert plain["weight_message"] == pytest.approx(2 * q["stage_parameters"])
    assert q["gradient_message"] == plain["gradient_message"]
    assert (q["dp_gathering_time"] < 0.7 * plain["dp_gathering_time"]) == (size == 1)


@pytest.mark.parametrize("scaling", SCALES)
def test_bytes_that_tensor_parallel_ranks_exchange_for_a_layer(scaling):
    """Four reductions in 16 bits; inputs gathered forward and backward, output gradients once for each copy."""
    q = eight_bits(scaling)
    whole = 4096 * q["hidden_size"] * 3 / 4  # elements that a ring of four sends
    converted, copies = 1 + SCALES[scaling], 1 if scaling in ("delayed", "tensor") else 2
    if scaling == "row":  # a column's scale spans the tokens of all ranks
        converted, copies = 2, 1
    assert q["layer_tp_bytes"] == pytest.approx(whole * (4 * 2 + 2 * (2 + copies) * converted))


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt3-175b"])
def test_bytes_that_a_layer_keeps(model):
    """Inputs of all four products in 8 bits; of both norms, of attention and of the activation function in 16."""
    q = eight_bits("delayed", model, dropout=False)
    h, tokens, t = q["hidden_size"], 4096, 4
    heads, keys, wide = q["heads"] * q["head_dim"], q["kv_heads"] * q["head_dim"], q["ffn_size"]
    norms = 2 * tokens * h / t * (2 + 1)
    attention = tokens / t * (2 * (heads + 2 * keys) + (2 + 1) * heads)
    block = tokens / t * wide * ((2 if q["gated_ffn"] else 1) * 2 + 1)
    assert q["layer_linear_activations"] == pytest.approx(norms + attention + block)
    assert (
        eight_bits("delayed", model, dropout=False, quantised_operands=False)["layer_linear_activations"]
        > (q["layer_linear_activations"])
    )


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3"])
def test_nothing_changes_in_16_bits(model):
    given = point(model, "b200", software="nemo", **LAYOUT)
    flags = {"quantised_gathering": False, "quantised_operands": False}
    for name in ("step_time", "tp_bytes", "activation_memory", "dp_bytes"):
        assert evaluate(given)[name] == evaluate(given | flags)[name]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize("scaling", SCALES)
def test_converting_before_gathering_never_costs_more_bytes_or_memory(model, scaling):
    q, plain = (eight_bits(scaling, model, quantised_operands=flag) for flag in (True, False))
    assert q["tp_bytes"] <= plain["tp_bytes"] * (1 + 2 * SCALES[scaling])
    assert q["activation_memory"] <= plain["activation_memory"]
    assert np.isfinite(q["step_time"])
