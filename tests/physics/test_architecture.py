"""FLOPs against the closed forms, ranks against the whole, and what divides what."""

import pytest

from .cases import design


def test_gpt_flops_are_equation_7_of_korthikanti():
    layers, h, s, vocabulary, batch = 96, 12288, 2048, 51200, 64
    q = design("gpt3-175b", tp=8.0, pp=8.0, global_batch=float(batch), flash_attention=False, recompute="full")
    model = 72 * batch * layers * s * h**2 * (1 + s / (6 * h) + vocabulary / (12 * h * layers))
    hardware = 96 * batch * layers * s * h**2 * (1 + s / (6 * h) + vocabulary / (16 * h * layers))
    assert q["model_flops_per_step"] == pytest.approx(model, rel=1e-12)
    assert q["hardware_flops_per_token"] * q["tokens_per_step"] == pytest.approx(hardware, rel=1e-12)


def test_ranks_add_up_to_the_model():
    one, eight = design("llama-3.1-70b", tp=1.0), design("llama-3.1-70b", tp=8.0)
    assert 8 * eight["rank_layer_matrix_parameters"] == one["layer_matrix_parameters"]
    sixteen = design("llama-3.1-70b", tp=16.0)  # 8 key heads on 16 ranks: two copies of each
    key_and_value = 2 * 8192 * 8 * 128
    assert 16 * sixteen["rank_layer_matrix_parameters"] == one["layer_matrix_parameters"] + key_and_value


@pytest.mark.parametrize(("tp", "padded"), [(1, 50_304), (2, 50_432), (8, 51_200)])
def test_a_padded_vocabulary(tp, padded):
    """GPT-2's 50,257 entries as Megatron-LM trains them: 51,200 in its papers, on eight ranks."""
    q = design("gpt3-175b", tp=float(tp), vocab_size=50_257.0)
    assert q["rank_vocab_size"] * tp == padded
    assert q["vocabulary_divides"]
    assert q["total_parameters"] == design("gpt3-175b", tp=1.0, vocab_size=50_257.0)["total_parameters"]
    assert bool(design("gpt3-175b", software="deepspeed", tp=2.0, vocab_size=50_257.0)["vocabulary_divides"]) is False


def test_divisibility_is_said():
    q = design("llama-3.1-70b", software="torchtitan", tp=5.0, dp=3.0, pp=7.0, global_batch=8.0)
    for name in ("heads_divide", "kv_heads_divide", "ffn_divides", "vocabulary_divides", "sequence_divides"):
        assert not q[name], name
    assert not q["batch_divides"]
    assert design("llama-3.1-70b", tp=16.0)["kv_heads_divide"]
