"""Results that a policy of rematerialisation names, against an enumeration of what stays and what runs again."""

import pytest

from .cases import design

TOKENS, HIDDEN, KEYS, FFN = 8192, 4096, 1024, 14336
GIVEN = {"model": "llama-3.1-8b", "tp": 1.0, "sequence_length": float(TOKENS), "software": "maxtext", "zero": 3.0}
RESULTS = {  # bytes that stay, multiplications of a token
    "kept_qkv": (TOKENS * 2 * (HIDDEN + 2 * KEYS), HIDDEN * (HIDDEN + 2 * KEYS)),
    "kept_context": (TOKENS * (2 * HIDDEN + 32 * 4), TOKENS * HIDDEN),
    "kept_attention_output": (TOKENS * 2 * HIDDEN, HIDDEN * HIDDEN),
    "kept_ffn_inputs": (TOKENS * 2 * 2 * FFN, HIDDEN * 2 * FFN),
    "kept_ffn_output": (TOKENS * 2 * HIDDEN, HIDDEN * FFN),
}
POLICIES = {  # of MaxText
    "save_qkv_proj": ("kept_qkv",),
    "save_out_proj": ("kept_attention_output",),
    "save_dot_except_mlp": ("kept_qkv", "kept_attention_output"),
    "save_dot_with_context_except_mlp": ("kept_qkv", "kept_context", "kept_attention_output"),
    "save_dot_except_mlpwi": ("kept_qkv", "kept_attention_output", "kept_ffn_output"),
    "all": tuple(RESULTS),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_policy_keeps_and_repeats(policy):
    kept = POLICIES[policy]
    q = design(**GIVEN, recompute="named", **dict.fromkeys(kept, True))
    full = design(**GIVEN, recompute="full")
    assert q["layer_activations"] == TOKENS * 2 * HIDDEN + sum(RESULTS[name][0] for name in kept)
    work = sum(products for _, products in RESULTS.values())
    again = sum(products for name, (_, products) in RESULTS.items() if name not in kept)
    assert q["layer_recomputed"] == pytest.approx(again / work, rel=1e-3, abs=1e-12)  # norms beside the products
    assert q["step_time"] < full["step_time"]
    assert q["kept_activations_by_stage"].max() > full["kept_activations_by_stage"].max()


def test_of_experts_those_that_a_token_visits_run_again():
    """Mixtral 8x7B: two of eight experts, so that nine tenths of a layer run again where attention stays."""
    kept = {"kept_qkv": True, "kept_attention_output": True}
    q = design(**GIVEN | {"model": "mixtral-8x7b"}, recompute="named", **kept)
    core, experts = TOKENS * HIDDEN, 2 * 3 * HIDDEN * FFN + 8 * HIDDEN  # with the router
    attention = HIDDEN * (HIDDEN + 2 * KEYS) + HIDDEN * HIDDEN
    assert q["layer_recomputed"] == pytest.approx((core + experts) / (core + experts + attention), rel=1e-3)


def test_nothing_named_is_full_recomputation():
    named, full = (design(**GIVEN, recompute=mode) for mode in ("named", "full"))
    for name in ("layer_activations", "memory_per_device", "step_time", "recompute_choice"):
        assert named[name] == pytest.approx(full[name], rel=1e-12), name
