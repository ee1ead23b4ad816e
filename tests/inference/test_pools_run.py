"""Studies of two pools: reasons of what is impossible, mistakes in one line, and what users run and measured."""

import json
from pathlib import Path

import pytest

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.formulas import registry_of
from perfgrid.validation.schema import UNSEEN, Record, read_records
from perfgrid.validation.two_pools import mapped, one_pool
from tests.test_bad_input import run

from .test_pools import MACHINE, joined, study

STUDY = Path(__file__).parents[2] / "studies" / "deepseek_serving.toml"

# ---- constraints and errors -----------------------------------------------------------------------------------------


def flags(found):
    return {str(n) for n, v in found.data_vars.items() if "constraint" in v.attrs and not bool(v.all())}


def test_impossible_pools_are_flagged_with_their_reason():
    found = pg.evaluate(study("clients", {"devices": [3], "tp": [3]}, [1], batch=8))
    assert flags(found) == {"prefill_pool_is_legal"}
    assert "do not divide the attention heads" in str(found.prefill.values[0])
    large = {"model": ["llama-3.1-405b"]}
    content = {"outputs": ["served_rate"], "axes": MACHINE | large, "workload_parameters": {"batch_rule": "clients"}}
    content["workload_parameters"] |= {"prompt_tokens": 100, "output_tokens": 10, "batch": 4}
    pools = {pool: {"axes": {"parallelism": {"devices": [1], "tp": [1]}}} for pool in ("prefill", "decode")}
    broken = flags(pg.evaluate(pg.join_pools(content | pools)))
    assert {"prefill_pool_fits_memory", "decode_pool_fits_memory"} <= broken


def test_arrivals_limits_and_links_are_checked():
    names = ("arrivals_are_served", "first_token_in_time", "output_tokens_in_time", "links_carry_the_caches")
    good = joined(*names, rule="rate")
    assert all(good.values())
    many = joined(*names, rule="rate", request_rate=100.0)
    assert not many["arrivals_are_served"]
    late = joined(*names, rule="rate", time_to_first_token_limit=0.1, time_per_output_token_limit=0.01)
    assert not late["first_token_in_time"]
    assert not late["output_tokens_in_time"]
    assert not joined(*names, rule="rate", prefill_rank_rate=5e9)["links_carry_the_caches"]


def test_every_constraint_of_two_pools_has_a_test():
    tested = {"arrivals_are_served", "first_token_in_time", "output_tokens_in_time", "links_carry_the_caches"}
    tested |= {f"{pool}_pool_{what}" for pool in ("prefill", "decode") for what in ("is_legal", "fits_memory")}
    assert {c.name for c in registry_of("pools").constraints()} == tested


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefil": {}}, "unknown key 'prefil'; did you mean 'prefill'"),
        ({"prefill": {"axis": {}}}, "prefill.axis"),
        ({"decode": None}, "decode"),
        ({"prefill": {"axes": {"parallelism": {"devices": [1], "tq": [1]}}}}, "study, prefill, axes.parallelism"),
        ({"axes": MACHINE | {"model": ["llama-3.1-8b", "llama-3.1-70b"]}}, "axes.model: both pools share it"),
        ({"workload_parameters": {"promt_tokens": 5}}, "promt_tokens"),
        ({"outputs": ["step_tim"]}, "unknown quantity 'step_tim'"),
    ],
)
def test_mistakes_are_reported_in_one_line(changes, message):
    pool = {"axes": {"parallelism": {"devices": [1], "tp": [1]}}}
    sizes = {"prompt_tokens": 100, "output_tokens": 10, "batch_rule": "clients", "batch": 4}
    content = {
        "outputs": ["served_rate"],
        "axes": MACHINE,
        "workload_parameters": sizes,
        "prefill": pool,
        "decode": pool,
    }
    content |= changes
    if "promt_tokens" in content["workload_parameters"]:
        content["workload_parameters"] = sizes | content["workload_parameters"]
    with pytest.raises(pg.PerfgridError) as error:
        pg.join_pools({key: stated for key, stated in content.items() if stated is not None})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# ---- as users run it ------------------------------------------------------------------------------------------------


def test_deepseeks_deployment_is_near_what_its_authors_published():
    """20 to 22 tokens per second for a user, 14.8 k per second and node of decoding; the prefill pool has room."""
    found = pg.evaluate(pg.join_pools(STUDY)).isel(decode=0).squeeze()
    assert 1 / float(found["time_per_output_token"]) == pytest.approx(21, rel=0.15)
    assert 8 * float(found["decode_capacity_per_device"]) == pytest.approx(14.8e3, rel=0.15)
    assert 0.4 < float(found["prefill_pool_load"]) < 0.8


def test_a_study_of_two_pools_is_run_saved_and_explained(monkeypatch, capsys, tmp_path):
    status, text, _ = run(monkeypatch, capsys, "run", STUDY, "-o", tmp_path / "r.nc")
    assert status == 0
    assert "batch_limit 176" in text
    at = "prefill=tp1.pp1.dp320.ep32.etp1,decode=tp1.pp1.dp432.ep144.etp1 batch_limit 88"
    explained = [run(monkeypatch, capsys, "explain", what, "time_to_first_token", "--at", at) for what in
                 (STUDY, tmp_path / "r.nc")]  # fmt: skip
    assert [status for status, *_ in explained] == [0, 0]
    assert explained[0][1] == explained[1][1]
    assert "prompt_queue_time" in explained[0][1]
    status, text, _ = run(monkeypatch, capsys, "run", STUDY, "--set", "decode.axes.parallelism.ep=[432]")
    assert status == 0
    assert "3 of 3 designs of the decode pool: there are more expert-parallel ranks than experts" in text
    with pytest.raises(pg.PerfgridError, match="join_pools"):
        pg.load_study(STUDY)


SERVE = ("serve", "llama-3.1-8b", "--on", "h100-sxm-80gb", "--devices", "8", "--clients", "64")


def test_serve_finds_the_best_pair_of_pools(monkeypatch, capsys):
    status, text, _ = run(monkeypatch, capsys, *SERVE, "--prefill", "tp=1", "--decode", "auto", "--json")
    assert status == 0
    (best,) = json.loads(text)["best"]
    found = best["outputs"]
    assert best["chosen"]["prefill"].startswith("tp1.pp1")
    assert found["devices"] <= 8
    status, text, _ = run(monkeypatch, capsys, *SERVE, "--prefill", "tp=1", "--decode", "tp=2,workers=1", "--json")
    (stated,) = json.loads(text)["best"]
    name = "output_tokens_per_second_per_device"
    assert stated["outputs"][name] <= found[name] * (1 + 1e-9)
    status, text, _ = run(monkeypatch, capsys, *SERVE, "--prefill", "tp=1,workers=2", "--decode", "tp=2,device=b200")
    assert status == 0
    assert "tp1.pp1.dp2" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prefill", "tp=1,workrs=2"), "did you mean 'workers'"),
        (("--prefill", "tp=x"), "tp: 'x' is not a number such as 64"),
        (("--decode", "tp=1,tp=2"), "states tp twice"),
        (("--decode", "tp=8"), "the pool takes 8 devices, and both have 8 together"),
        (("--decode", "device=h10"), "did you mean"),
        (("--decode", "auto", "--price", "2"), "--price is not for two pools"),
        (("--decode", "auto", "--rate", "3"), "either the rate of requests or the number of clients"),
    ],
)
def test_mistakes_in_pools_end_in_one_line(monkeypatch, capsys, words, message):
    status, text, error = run(monkeypatch, capsys, *SERVE, *words)
    assert (status, text) == (2, "")
    assert message in error
    assert error.count("\n") == 1


def test_records_of_two_pools_are_mapped_as_they_state(tmp_path):
    path = UNSEEN / "silicon_disagg_trtllm.jsonl"
    lines = map(json.loads, path.read_text().splitlines())
    line = next(line for line in lines if line["id"] == "disagg_trtllm-05-ttft")
    record = Record.model_validate(line)
    prefill, decode = (one_pool(record, pool) for pool in ("prefill", "decode"))
    assert prefill.plan is not None
    assert decode.plan is not None
    assert decode.workload is not None
    assert (prefill.devices, decode.devices, record.devices) == (4, 40, 44)
    assert (prefill.plan.dp, prefill.plan.ep, decode.plan.tp, decode.plan.dp) == (4, 4, 8, 5)
    assert decode.workload.microbatch == 32  # places of a worker, fewer than its share of the clients
    (row,) = mapped([record], load_catalog()).rows
    assert row.columns["batch"] == 180
    assert row.columns["loop_requests"] == 1800
    assert row.columns["decode_places"] == pytest.approx(160)
    line["plan"]["decode"] = None
    (tmp_path / "r.jsonl").write_text(json.dumps(line))
    (problem,) = read_records([tmp_path])[1]
    assert "both pools, prefill and decode, or neither" in problem.reason
