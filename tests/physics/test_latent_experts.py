"""Experts that work on latents of tokens (Nemotron 3 Super): counts by hand, training and serving."""

import numpy as np
import pytest

from .test_recurrent_training import value

SUPER = "nemotron-3-super-120b-a12b"
H, LATENT, INNER_WIDTH, EXPERTS, CHOSEN = 4096, 1024, 2688, 512, 22


def test_parameters_by_hand():
    """Two matrices of each expert; the router and the shared experts see the residual stream."""
    assert value("expert_parameters", SUPER) == 2 * LATENT * INNER_WIDTH
    dense, experts = (value(f"stage_{kind}parameters", SUPER, mtp_layers=0) for kind in ("", "expert_"))
    assert experts == 40 * EXPERTS * 2 * LATENT * INNER_WIDTH
    assert dense + experts == pytest.approx(value("total_parameters", SUPER) - H, rel=1e-12)


def test_flops_of_latents_by_hand():
    """Per token and layer with experts: narrower experts, and two products between token and latent."""
    narrow, wide = (value("model_flops_per_token", SUPER, expert_latent_size=w, mtp_layers=0) for w in (LATENT, 0.0))
    saved = CHOSEN * 2 * (H - LATENT) * INNER_WIDTH - 2 * H * LATENT
    assert wide - narrow == pytest.approx(3 * 2 * 40 * saved, rel=1e-9)


def test_exchanges_carry_latents():
    narrow, wide = (
        np.sum(value("ep_dispatch_tier_bytes", SUPER, layout={"ep": [8]}, expert_latent_size=w)) for w in (LATENT, 0.0)
    )
    assert wide == pytest.approx(4 * narrow)


@pytest.mark.parametrize("output", ["step_time", "step_energy", "memory_per_device"])
def test_latents_as_wide_as_tokens_add_their_two_products(output):
    without, as_wide, narrow = (value(output, SUPER, expert_latent_size=w) for w in (0.0, float(H), LATENT))
    assert without < as_wide < 1.15 * without
    assert narrow < without
