"""Recommended designs beside what the oracle simulates of them, and three loads of one design at one point."""

import numpy as np
import pytest

import perfgrid as pg
from perfgrid.answers.serve_pools import serve_pools
from tests.inference.designs import evaluate

from .winners import DEEPSEEK, MEASURES, QUESTIONS, answered, recommended, stored, within

REACHED = {"throughput": 1.0, "first_token": 0.86, "per_token": 1.0}  # of drawn questions, within 15 %
UNCONFIRMED = (
    1  # better by 1.3 % as said, which is less than the 12 % by which pipelines of endless queues are too fast
)
SAME = 0.05  # throughput of one design at one point, by different loads


@pytest.fixture(scope="module")
def records():
    return stored()


def test_recommendations_are_as_simulated(records):
    """Stored by ``python -m tests.inference.oracle.winners``."""
    drawn = [r for r in records if r["set"] == "drawn"]
    assert len(drawn) == QUESTIONS
    found = within(drawn)
    assert all(found[name] >= REACHED[name] for name in MEASURES), found


def test_pipelines_are_recommended_where_the_simulation_prefers_them(records):
    pipelines = [r for r in records if "confirmed" in r]
    assert len(pipelines) >= 3
    assert [r["confirmed"] for r in pipelines].count(False) <= UNCONFIRMED
    assert max(abs(r["errors"]["throughput"]) for r in pipelines) < 0.13


def test_answers_for_deepseek_are_as_simulated(records):
    own = [r for r in records if r["set"] == "deepseek"]
    assert len(own) == len(DEEPSEEK)
    for name in ("throughput", "per_token"):
        assert max(abs(r["errors"][name]) for r in own) < 0.05, name
    # prompts in small parts that queue for room in iterations, where requests never end; two pools are within 20 %
    assert max(abs(r["errors"]["first_token"]) for r in own if r["batch_rule"] == "concurrency") < 0.35
    assert max(abs(r["errors"]["first_token"]) for r in own if r["batch_rule"] != "concurrency") < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("row", [0, 1, 4, 20, 25])
def test_a_stored_answer_is_given_again(records, row):
    record = records[row]
    found = answered(record["asked"])
    assert found is not None
    assert found["label"] == record["label"]
    for name in MEASURES:
        assert found["predicted"][name] == pytest.approx(record["predicted"][name], rel=1e-3)
        value, half = record["simulated"][name]
        assert found["simulated"][name][0] == pytest.approx(value, rel=0.01, abs=half)


# ---- three loads at one point ---------------------------------------------------------------------------------------

ASKED = {"prompt": 4000, "output": 1000, "ttft": 2.0, "tpot": 0.03}
NAMES = ("served_rate", "time_to_first_token", "time_per_output_token")


@pytest.mark.parametrize("device", ["b200", "h200-sxm-141gb", "gb200"])
def test_a_queue_clients_and_a_rate_agree_on_a_recommended_design(device):
    """DeepSeek-V3 without a rate; as many clients; and arrivals that leave so many sequences under way."""
    winner = recommended({"model": "deepseek-v3", "on": device, "devices": 64, **ASKED, "pools": False})
    assert winner is not None
    varied = {"length_distribution": "lognormal", "prompt_variation": 0.3, "output_variation": 0.3}
    design = winner["design"] | varied | {"front_end_time": 0.0}
    queue = evaluate(*NAMES, **design)
    assert queue["served_rate"] == pytest.approx(winner["predicted"]["throughput"], rel=0.02)
    clients = evaluate(*NAMES, **design | {"batch_rule": "clients", "loop_requests": 1e4 * design["batch"]})
    assert clients["served_rate"] == pytest.approx(queue["served_rate"], rel=SAME)
    assert clients["time_per_output_token"] == pytest.approx(queue["time_per_output_token"], rel=SAME)
    rate = 0.9 * queue["served_rate"]
    open_ = evaluate(*NAMES, **design | {"batch_rule": "rate", "request_rate": rate})
    under_way = rate * (open_["time_to_first_token"] + (ASKED["output"] - 1) * open_["time_per_output_token"])
    same = evaluate(*NAMES, **design | {"batch": under_way})
    assert same["served_rate"] == pytest.approx(rate, rel=SAME)


@pytest.mark.parametrize("device", ["b200", "gb200"])
def test_clients_and_a_rate_agree_on_two_pools(device):
    """As many clients as 20 requests per second leave under way ask about as often."""
    asked = {"model": "deepseek-v3", "on": device, "devices": 64} | ASKED
    pools = {"prefill": "tp=1,ep=8,dp=8", "decode": "tp=1,ep=8,dp=8"}
    rate = serve_pools(**asked, **pools, rate=20.0).winner
    clients = round(20.0 * float(rate["request_latency"]))
    loop = serve_pools(**asked, **pools, clients=clients).winner
    assert float(loop["served_rate"]) == pytest.approx(20.0, rel=SAME)
    assert float(loop["time_per_output_token"]) == pytest.approx(float(rate["time_per_output_token"]), rel=SAME)


@pytest.mark.slow
def test_numbers_of_devices_at_a_rate_are_those_without_one():
    """20 requests per second on as many devices as the design without a rate needs for them, up to a quarter."""
    asked = {"prompt": 4000, "output": 1000, "ttft": 2.0, "tpot": 0.03}
    for device in ("b200", "h200-sxm-141gb"):
        most = pg.serve("deepseek-v3", device, devices=64, **asked).squeeze()
        each = float(most["output_tokens_per_second_per_device"])
        found = pg.serve("deepseek-v3", device, devices=[8 * n for n in range(1, 21)], rate=20.0, **asked).squeeze()
        needed = np.ceil(20 * 1000 / each / 8) * 8
        assert needed * 0.75 <= float(found["size"]) <= needed * 1.1
