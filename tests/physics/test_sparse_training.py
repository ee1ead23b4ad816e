"""Training with attention to chosen tokens: counts token by token, limits, and what dense attention would take."""

import numpy as np
import pytest

from perfgrid.catalog import load_catalog

from .test_recurrent_training import value as of_study

V32, V3 = "deepseek-v3.2", "deepseek-v3"
K, LATENT, ROTARY, HEADS = 2048, 512, 64, 128
INDEX_HEADS, INDEX_WIDTH = 64, 128


def value(output, model=V32, sequence=8192, workload=None, **given):
    """One quantity of one microbatch of one sequence."""
    workload = {"sequence_length": sequence, "cp_method": "all_gather", **(workload or {})}
    return of_study(output, model, workload=workload, mtp_layers=0, **given)


def by_phase(found):
    """Forward, and the backward pass."""
    forward, backward, *_ = np.ravel(found)
    return forward, backward


# ---- counts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sequence", [1000, 2048, 8192])
def test_pairs_token_by_token(sequence):
    assert value("scored_pairs", sequence=sequence) == sum(t + 1 for t in range(sequence))
    assert value("attended_pairs", sequence=sequence) == sum(min(t + 1, K) for t in range(sequence))


def test_documents_and_context_parallel_ranks_have_their_part():
    documents = value("attended_pairs", workload={"document_length": 4096})
    assert documents == 2 * value("attended_pairs", sequence=4096)
    assert value("scored_pairs", layout={"cp": [2]}) == value("scored_pairs") / 2


def test_flops_pair_by_pair():
    """Scores and values forward; scores again and four gradients backward. The indexer: all pairs, then the chosen."""
    scored, attended = (sum(min(t + 1, most) for t in range(4096)) for most in (4096, K))
    q, v = LATENT + ROTARY, LATENT
    forward, backward = by_phase(value("sparse_core_flops", sequence=4096))
    assert forward == 2 * attended * HEADS * (q + v)
    assert backward == 2 * attended * HEADS * ((q) + (v) + (v) + (q) + (q))  # scores, dP, dV, dQ, dK
    halved = by_phase(value("sparse_core_flops", sequence=4096, layout={"tp": [2]}))
    assert halved == (forward / 2, backward / 2)
    forward, backward = by_phase(value("trained_index_flops", sequence=4096))
    assert forward == 2 * scored * INDEX_HEADS * INDEX_WIDTH
    assert backward == 2 * attended * (3 * INDEX_HEADS * INDEX_WIDTH + HEADS * q)  # scores again, two gradients


def test_flops_of_a_token_by_hand():
    """Against DeepSeek-V3, whose weights are the same: three times the difference of the forward passes."""
    sequence, matrices = 16384, 7168 * (128 + 64) + 1536 * 64 * 128
    sparse = K * HEADS * (2 * LATENT + ROTARY) + matrices + sequence * INDEX_HEADS * INDEX_WIDTH
    dense = sequence * HEADS * (192 + 128)
    found, other = (value("model_flops_per_token", model, sequence=sequence) for model in (V32, V3))
    assert found - other == pytest.approx(3 * 61 * 2 * (sparse - dense), rel=1e-9)


@pytest.mark.parametrize("model", [V32, "glm-5"])
def test_parameters_of_all_ranks_are_those_of_the_model(model):
    dense, experts = (value(f"stage_{kind}parameters", model) for kind in ("", "expert_"))
    hidden = load_catalog().entry("model", model).values["hidden_size"]  # stages leave out the final norm
    assert dense + experts == pytest.approx(value("total_parameters", model) - hidden, rel=1e-12)


def test_what_an_indexer_keeps_by_hand():
    """Queries, keys and weights of heads in 16 bits, and the places of the chosen tokens in 32."""
    kept = 8192 * 2 * (64 * 128 + 128 + 64) + 4 * sum(min(t + 1, K) for t in range(8192))
    assert value("latent_activations") - value("latent_activations", V3) == kept


def test_what_attention_keeps_by_hand():
    """Queries without positions, absorbed ones with them, results in latents; up to 2048 tokens those of DeepSeek-V3.

    Multi-head: queries and keys of 192 and values of 128 for each head.
    """
    assert value("expanded_activations") == 8192 * 2 * HEADS * (128 + (LATENT + ROTARY) + LATENT)
    assert value("expanded_activations", sequence=2048) == 2048 * 2 * HEADS * (192 + 192 + 128)
    assert value("expanded_activations", V3) == 8192 * 2 * HEADS * (192 + 192 + 128)


# ---- limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["step_time", "step_energy", "memory_per_device"])
def test_without_indexers_short_sequences_are_those_of_dense_attention(output):
    """Up to 2048 tokens attention is the same, and the indexer is added."""
    dense, without, with_indexer = (
        value(output, model, sequence=K, **given)
        for model, given in ((V3, {}), (V32, {"index_layers": 0.0}), (V32, {}))
    )
    assert without == pytest.approx(dense, rel=1e-12)
    assert with_indexer > dense


def test_long_sequences_cost_less_than_dense_attention():
    """A step of as many tokens: dense attention grows with the length, the chosen tokens do not, scores do."""
    lengths = (8192, 32768, 131072)
    times = {model: [np.sum(value("flash_time", model, sequence=s)) / s for s in lengths] for model in (V3, V32)}
    core = [np.sum(value("sparse_core_time", sequence=s)) / s for s in lengths]
    assert max(core) / min(core) < 1.2
    assert times[V3][2] / times[V3][1] == pytest.approx(4, rel=0.1)
    assert times[V32][2] < times[V3][2] / 3
    assert times[V32][2] > times[V32][1]  # the indexer scores all pairs


def test_the_indexer_is_run_by_every_tensor_parallel_rank():
    one, two = (np.reshape(value("indexer_time", layout={"tp": [t]}), (-1, 3))[:, 0] for t in (1, 2))
    core, halved = (np.sum(value("sparse_core_time", layout={"tp": [t]})) for t in (1, 2))
    assert two == pytest.approx(one, rel=1e-12)  # forward; what it learns from is split with the heads
    assert halved < 0.6 * core


def test_impossible_designs_are_flagged():
    assert value("indexers_see_all_keys", layout={"cp": [2]}) == 1
    assert value("indexers_see_all_keys", layout={"cp": [2]}, workload={"cp_method": "ring"}) == 0
    assert value("indexers_see_all_keys", layout={"cp": [2]}, workload={"cp_method": "ulysses"}) == 0
    assert value("chosen_tokens_are_fused") == 1
    assert value("chosen_tokens_are_fused", workload={"flash_attention": False}) == 0
    assert value("indexers_see_all_keys", V3, layout={"cp": [2]}, workload={"cp_method": "ring"}) == 1
