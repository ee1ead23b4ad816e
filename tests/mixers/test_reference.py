"""FLOPs and traffic of every mixer against the same algorithm in loops, whose results are those of the plain one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from . import reference
from .cases import design, row

NUMBERS = st.integers(0, 2**31)
SHAPES = st.tuples(  # tokens, chunk, groups, heads of a group, key and value width
    st.integers(1, 13), st.sampled_from([1, 2, 4, 8]), st.integers(1, 2), st.integers(1, 3), st.integers(1, 4),
    st.integers(1, 5),
)  # fmt: skip
FEW = settings(max_examples=25, deadline=None)


def shape_of(mixer, tokens, groups, share, key, value, **given):
    return design(
        mixer=mixer,
        hidden_size=64,
        sequence_length=tokens,
        mixer_heads=groups * share,
        mixer_key_heads=groups,
        mixer_key_dim=key,
        mixer_value_dim=value,
        **given,
    )


def assert_counts(q, count, tokens):
    """FLOPs by product and bytes by kernel, fused and not, are those of the loops."""
    for name, flops in row(q["mixer_token_flops"], "core_product").items():
        assert flops * tokens == pytest.approx(count.flops[name], rel=1e-12), name
    assert np.sum(q["mixer_core_flops"]) == pytest.approx(sum(count.flops.values()), rel=1e-12)
    for name, traffic in row(q["mixer_unfused_traffic"], "mixer_kernel").items():
        assert traffic == pytest.approx(count.bytes[name], rel=1e-12), name
    assert float(np.sum(q["mixer_minimal_traffic"])) == pytest.approx(count.bytes["least"], rel=1e-12)


@given(shape=SHAPES, seed=NUMBERS)
@FEW
def test_mamba2(shape, seed):
    tokens, chunk, groups, share, key, value = shape
    draw = np.random.default_rng(seed)
    q, k = draw.normal(size=(2, tokens, groups, key))
    v = draw.normal(size=(tokens, groups * share, value))
    g = -draw.random((tokens, groups * share))
    out, state, count = reference.linear_chunked(q, k, v, g, chunk)
    expected, last = reference.linear_recurrence(q, k, v, g)
    np.testing.assert_allclose(out, expected, atol=1e-10)
    np.testing.assert_allclose(state, last, atol=1e-10)
    quantities = shape_of("mamba2", tokens, groups, share, key, value, mixer_chunk=chunk)
    assert_counts(quantities, count, chunk * -(-tokens // chunk))
    fused = shape_of("mamba2", tokens, groups, share, key, value, mixer_chunk=chunk, mixer_fused=True)
    assert np.sum(fused["mixer_core_traffic"]) == pytest.approx(count.bytes["least"], rel=1e-12)


@given(shape=SHAPES, seed=NUMBERS)
@FEW
def test_lightning_attention(shape, seed):
    """In whole chunks: behind a sequence a fixed decay would go on."""
    chunks, chunk, heads, _, key, value = shape
    tokens, draw = chunks * chunk, np.random.default_rng(seed)
    q, k = draw.normal(size=(2, tokens, heads, key))
    v = draw.normal(size=(tokens, heads, value))
    out, state, count = reference.fixed_chunked(q, k, v, -0.3, chunk)
    expected, last = reference.linear_recurrence(q, k, v, np.full((tokens, heads), -0.3))
    np.testing.assert_allclose(out, expected, atol=1e-10)
    np.testing.assert_allclose(state, last, atol=1e-10)
    given_ = {"mixer_chunk": chunk, "state_element_size": 2}
    assert_counts(shape_of("lightning", tokens, heads, 1, key, value, **given_), count, tokens)
    fused = shape_of("lightning", tokens, heads, 1, key, value, mixer_fused=True, **given_)
    assert np.sum(fused["mixer_core_traffic"]) == pytest.approx(count.bytes["least"], rel=1e-12)


@pytest.mark.parametrize("mixer", ["gated_delta_net", "kimi_delta_attention"])
@given(shape=SHAPES, seed=NUMBERS)
@FEW
def test_delta_rules(mixer, shape, seed):
    tokens, chunk, groups, share, key, value = shape
    draw = np.random.default_rng(seed)
    width = 1 if mixer == "gated_delta_net" else key
    q, k = draw.normal(size=(2, tokens, groups, key)) / np.sqrt(key)
    v = draw.normal(size=(tokens, groups * share, value))
    g, strength = -draw.random((tokens, groups * share, width)), draw.random((tokens, groups * share))
    out, state, count = reference.delta_chunked(q, k, v, g, strength, chunk)
    expected, last = reference.delta_recurrence(q, k, v, g, strength)
    np.testing.assert_allclose(out, expected, atol=1e-8)
    np.testing.assert_allclose(state, last, atol=1e-8)
    quantities = shape_of(mixer, tokens, groups, share, key, value, mixer_chunk=chunk)
    assert_counts(quantities, count, chunk * -(-tokens // chunk))
    fused = shape_of(mixer, tokens, groups, share, key, value, mixer_chunk=chunk, mixer_fused=True)
    assert np.sum(fused["mixer_core_traffic"]) == pytest.approx(count.bytes["least"], rel=1e-12)


@pytest.mark.parametrize("mixer", ["mamba2", "lightning", "gated_delta_net", "kimi_delta_attention"])
@given(shape=SHAPES, seed=NUMBERS)
@FEW
def test_a_decoding_step(mixer, shape, seed):
    """The step is the next one of the recurrence; it reads and writes the state, whatever the context."""
    tokens, _, groups, share, key, value = shape
    draw, delta = np.random.default_rng(seed), mixer in ("gated_delta_net", "kimi_delta_attention")
    q, k = draw.normal(size=(2, tokens, 1, key))
    v, strength = draw.normal(size=(tokens, 1, value)), draw.random((tokens, 1))
    g = -draw.random((tokens, 1, key if mixer == "kimi_delta_attention" else 1))
    state = np.zeros((key, value))
    for t in range(tokens):
        by = strength[t, 0] if delta else None
        out, state, flops = reference.step(state, q[t, 0], k[t, 0], v[t, 0], g[t, 0], by)
    if delta:
        expected, last = reference.delta_recurrence(q, k, v, g, strength)
    else:
        expected, last = reference.linear_recurrence(q, k, v, g[:, :, 0])
    np.testing.assert_allclose(out, expected[-1, 0], atol=1e-8)
    np.testing.assert_allclose(state, last[0], atol=1e-8)
    short, long = (shape_of(mixer, s, groups, share, key, value, microbatch=3) for s in (tokens, 10**6))
    heads = 3 * groups * share
    assert short["mixer_decode_flops"] == heads * flops
    assert short["mixer_decode_traffic"] == heads * 2 * 4 * state.size
    assert short["mixer_decode_time"] == long["mixer_decode_time"]


def seen_by(mixer, span):
    """The tokens that a token sees."""
    return {
        "full_attention": lambda t: range(t + 1),
        "window_attention": lambda t: range(max(0, t + 1 - span), t + 1),
        "chunked_attention": lambda t: range(t // span * span, t + 1),
    }[mixer]


@pytest.mark.parametrize("mixer", ["full_attention", "window_attention", "chunked_attention"])
@given(shape=SHAPES, span=st.integers(1, 9), seed=NUMBERS)
@FEW
def test_masks(mixer, shape, span, seed):
    tokens, _, groups, share, key, value = shape
    draw = np.random.default_rng(seed)
    q = draw.normal(size=(tokens, groups * share, key))
    k, v = draw.normal(size=(tokens, groups, key)), draw.normal(size=(tokens, groups, value))
    seen = seen_by(mixer, span)
    out, count = reference.attend(q, k, v, seen)
    mask = np.array([[s in seen(t) for s in range(tokens)] for t in range(tokens)])
    np.testing.assert_allclose(out, reference.masked_attention(q, k, v, mask), atol=1e-10)
    quantities = shape_of(mixer, tokens, groups, share, key, value, mixer_span=span)
    assert quantities["mixer_pairs"] == count.pairs == mask.sum()
    count.bytes["results"] = count.bytes["least"]
    assert_counts(quantities, count, tokens)
    most = max(len(seen(t)) for t in range(10 * span)) if mixer != "full_attention" else tokens
    kept = min(tokens, most)  # the cache; a decoding step reads all of it
    per_token = 2 * groups * (key + value)
    assert quantities["mixer_memory"] == kept * per_token
    assert quantities["mixer_decode_traffic"] == kept * per_token
    assert quantities["mixer_decode_flops"] == 2 * kept * groups * share * (key + value)


@given(
    tokens=st.integers(1, 12),
    heads=st.integers(1, 3),
    latent=st.integers(1, 4),
    rope=st.integers(1, 3),
    index=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    chosen=st.integers(1, 14),
    seed=NUMBERS,
)
@FEW
def test_sparse_attention(tokens, heads, latent, rope, index, chosen, seed):
    draw = np.random.default_rng(seed)
    queries, keys = draw.normal(size=(tokens, *index)), draw.normal(size=(tokens, index[1]))
    choice, scores, count = reference.index_choice(queries, keys, draw.normal(size=(tokens, index[0])), chosen)
    q = draw.normal(size=(tokens, heads, latent + rope))
    latents, rotary = draw.normal(size=(tokens, 1, latent)), draw.normal(size=(tokens, 1, rope))
    k = np.concatenate([latents, rotary], axis=2)
    out, attention = reference.attend(q, k, latents, lambda t: choice[t])
    mask = np.zeros((tokens, tokens), bool)
    for t, found in enumerate(scores):  # no score left out is above one that is chosen
        mask[t, choice[t]] = True
        left = [s for s in range(t + 1) if s not in choice[t]]
        assert not left or max(found[left]) <= min(found[choice[t]])
    np.testing.assert_allclose(out, reference.masked_attention(q, k, latents, mask), atol=1e-10)
    given_ = {"kv_lora_rank": latent, "qk_rope_head_dim": rope, "index_heads": index[0], "index_head_dim": index[1]}
    q_ = shape_of("sparse_attention", tokens, heads, 1, 3, 3, index_top_k=chosen, **given_)
    assert q_["mixer_pairs"] == attention.pairs == mask.sum()
    count.flops |= attention.flops
    scales = 4 * index[1] / 128 * tokens  # of the keys in 8 bits
    count.bytes["index"] += scales
    count.bytes["results"] = 2 * (q.size + k.size + out.size)  # latents once: keys and values are one
    count.bytes["least"] = count.bytes["index"] - count.bytes["choice"] + count.bytes["results"]
    assert_counts(q_, count, tokens)
    assert q_["gathered_traffic"] == 2 * attention.pairs * (latent + rope)
    step = len(choice[-1])
    per_key = index[1] + 4 * index[1] / 128
    assert q_["mixer_decode_traffic"] == pytest.approx(tokens * per_key + step * 2 * (latent + rope))
    flops = 2 * tokens * index[0] * index[1] + 2 * step * heads * (2 * latent + rope)
    assert q_["mixer_decode_flops"] == flops
    assert q_["mixer_memory"] == pytest.approx(tokens * (per_key + 2 * (latent + rope)))  # a choice caps no cache


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_ranks_split_heads(tp):
    """Ranks hold equal parts of the heads and copies of key heads that are fewer than they."""
    one, part = (
        design(mixer="mamba2", hidden_size=64, sequence_length=64, mixer_heads=8, mixer_key_heads=2, tp=float(n))
        for n in (1, tp)
    )
    copies = max(1, tp / 2)
    assert part["rank_mixer_key_heads"] * tp == 2 * copies
    assert part["recurrent_state_bytes"] * tp == one["recurrent_state_bytes"]
    assert part["mixer_input_columns"] * tp - one["mixer_input_columns"] == 2 * (copies - 1) * 2 * 128
    assert part["mixer_output_rows"] * tp == one["mixer_output_rows"]
