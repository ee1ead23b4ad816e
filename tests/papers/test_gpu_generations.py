"""GPT-3 175B from A100 to GB200: shares add up, and the picture's sentence is true of the study."""

import runpy

import numpy as np
import pytest

import perfgrid as pg
from tests.paths import ROOT, study_path

STUDY = study_path("gpu_generations")
SHARES = ["arithmetic", "on_chip", "hbm", "launch", "host", "communication", "bubble", "straggler", "optimizer"]
FEWER = [
    "axes.parallelism={devices=[1024], tp=[2, 4], pp=[4, 8], chunks=[1, 4]}",
    f"outputs={['step_time', *(f'{share}_fraction' for share in SHARES)]}",
]


def test_generations():
    best = pg.best(pg.load_study(STUDY, FEWER)).squeeze()
    times = best.step_time.to_series()
    assert times.is_monotonic_decreasing
    assert 7 < times.iloc[0] / times["B200 NDR fp8"] < 10 < times.iloc[0] / times.iloc[-1] < 35
    shares = {share: best[f"{share}_fraction"].to_series() for share in SHARES}
    np.testing.assert_allclose(sum(shares.values()), 1, atol=1e-3)  # tied embeddings have no share of their own
    assert all((shares["arithmetic"] >= share).all() for share in shares.values())
    for growing in ("communication", "host"):
        assert shares[growing].iloc[-1] > 2 * shares[growing].iloc[0]


@pytest.mark.slow
def test_the_whole_study_and_its_notebook(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(ROOT)
    found = runpy.run_path(str(STUDY.with_suffix(".py")))
    see = found["study"].file.view[0].see
    communication, host = found["split"].communication, found["shares"].host_fraction
    assert f"from {100 * communication.iloc[0]:.0f} to {100 * communication.iloc[-1]:.0f} % of the step" in see
    assert f"host to {100 * host.iloc[-1]:.0f} %" in see
