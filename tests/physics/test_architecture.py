"""Parameters and FLOPs against published counts and an enumeration of the weights."""

import pytest

from .cases import design


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
    ],
)
def test_total_parameters_are_those_of_the_published_checkpoints(model, parameters):
    assert design(model, tp=1.0)["total_parameters"] == parameters


def enumerate_parameters(hidden, layers, heads, kv_heads, head_dim, ffn, vocabulary, positions, gated, tied, biased):
    """Every weight tensor of a model as a list of shapes, summed."""
    shapes = [(vocabulary, hidden), (positions, hidden)]
    for _ in range(layers):
        matrices = [(hidden, heads * head_dim), (hidden, kv_heads * head_dim), (hidden, kv_heads * head_dim)]
        matrices += [(heads * head_dim, hidden)]
        matrices += [(hidden, ffn)] * (2 if gated else 1) + [(ffn, hidden)]
        shapes += matrices + [(1, hidden)] * 2
        if biased:
            shapes += [(1, m[1]) for m in matrices] + [(1, hidden)] * 2
    shapes += [(1, hidden)] * (2 if biased else 1)
    if not tied:
        shapes.append((vocabulary, hidden))
    return sum(a * b for a, b in shapes)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_total_parameters_against_an_enumeration_of_tensors(gated, tied, biased):
    shape = {"hidden_size": 96.0, "layers": 5.0, "heads": 8.0, "kv_heads": 2.0, "head_dim": 16.0, "ffn_size": 320.0}
    q = design(
        **shape,
        vocab_size=1000.0,
        learned_positions=64.0,
        gated_ffn=gated,
        tied_embeddings=tied,
        biases=biased,
        tp=1.0,
    )
    assert q["total_parameters"] == enumerate_parameters(96, 5, 8, 2, 16, 320, 1000, 64, gated, tied, biased)


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


def test_divisibility_is_said():
    q = design("llama-3.1-70b", tp=5.0, dp=3.0, pp=7.0, global_batch=8.0)
    for name in ("heads_divide", "kv_heads_divide", "ffn_divides", "vocabulary_divides", "sequence_divides"):
        assert not q[name], name
    assert not q["batch_divides"]
    assert design("llama-3.1-70b", tp=16.0)["kv_heads_divide"]
