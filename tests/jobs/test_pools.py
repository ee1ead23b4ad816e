"""Jobs of two pools: suggestions, studies that `best` takes, and deployments that are written and read back."""

import re

import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.cli.main import app
from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.deploy import write_pools
from perfgrid.jobs.deployments import POOLS
from perfgrid.jobs.design import study_content
from perfgrid.jobs.read import read_job
from perfgrid.jobs.suggest import suggest
from perfgrid.jobs.suggest_pools import _Asked
from tests.each import each
from tests.jobs.test_round_trips import DEPLOYMENTS, EXAMPLES, serving_designs, unlike

STATED = {"prompt_tokens": 1000, "output_tokens": 200, "batch": 128}
DEVICE = "h100-sxm-80gb"


def pools(prefill, decode, replicas=(1, 1), more=""):
    """A graph with a worker of so many ranks for each pool."""
    worker = f"python3 -m dynamo.vllm --model Qwen/Qwen3-8B {more} --tensor-parallel-size"
    return "kind: DynamoGraphDeployment\nspec:\n  services:\n" + "".join(
        f"    {pool}: {{replicas: {n}, extraPodSpec: "
        f"{{mainContainer: {{args: [{worker} {tp} --disaggregation-mode {pool}]}}}}}}\n"
        for pool, tp, n in zip(POOLS, (prefill, decode), replicas, strict=True)
    )


def run(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output + str(done.exception)
    return done.stdout


def predicted(text):
    """The tokens per second of a job as the study of its pools gives them."""
    content = study_content(read_job(text, stated=STATED), DEVICE)
    content |= {"outputs": ["output_tokens_per_second"], "best": None}
    found = pg.evaluate(pg.join_pools(content))
    return float(found.output_tokens_per_second.squeeze())


def test_suggestions_for_pools_agree_with_the_studies_of_the_changed_jobs():
    """Of one pool, of both pools' formats, and of workers that change pools: one prefills, three decode."""
    text = pools(2, 4, (1, 3))
    found = suggest(read_job(text, stated=STATED), DEVICE, load_catalog())
    assert found.value == pytest.approx(predicted(text), rel=1e-9)
    assert found.interval[0] < found.value < found.interval[1]
    changed = {
        (("prefill: replicas", "1", "3"), ("decode: replicas", "3", "2")): pools(2, 4, (3, 2)),
        (("prefill: replicas", "1", "2"), ("prefill: --tensor-parallel-size", "2", "1")): pools(1, 4, (2, 3)),
        (("--quantization", "absent", "fp8"),): pools(2, 4, (1, 3), "--quantization fp8"),
    }
    told = {change.settings: change for change in found.singles}
    for keys, other in changed.items():
        assert told[keys].value == pytest.approx(predicted(other), rel=1e-9)
        assert told[keys].ratio == pytest.approx(found.value / told[keys].value)
        assert told[keys].low < told[keys].ratio < told[keys].high
    assert found.combination is not None
    assert found.combination.ratio < told[next(iter(changed))].ratio


def test_workers_change_pools_in_whole_workers_and_both_pools_keep_one():
    """Three workers of 2 devices and two of 4: one of decoding becomes two of prefill, or two of these become one."""
    asked = _Asked(read_job(pools(2, 4, (3, 2)), stated=STATED), {"axes": {"software": ["vllm"]}}, load_catalog(), "")
    moved = [tuple((own["devices"], own["dp"]) for own in move.values()) for move in asked.moves()]
    assert moved == [((10, 5), (4, 1)), ((2, 1), (12, 3))]


@each("name", DEPLOYMENTS)
def test_written_pools_of_different_layouts_are_read_back(name):
    form = DEPLOYMENTS[name]

    @settings(max_examples=max(3, EXAMPLES // 2), deadline=None)
    @given(serving_designs(), serving_designs())
    def check(first, second):
        model = load_catalog().entry("model", first[0])
        parts = {"prefill": first[1], "decode": {n: v for n, v in second[1].items() if "precision" not in n}}
        parts["decode"] |= {n: v for n, v in first[1].items() if "precision" in n}
        if not model.values["experts"]:
            parts = {pool: {n: v for n, v in own.items() if n not in ("ep", "etp")} for pool, own in parts.items()}
        elif "ep" not in parts["decode"]:
            parts["decode"] |= {"ep": 1, "etp": parts["decode"]["tp"] * parts["decode"]["dp"]}
        launch = write_pools(parts, model, form, form.versions[-1])
        noted = {note.partition(" = ")[0] for note in launch.notes if " = " in note}
        job = read_job(launch.text, model=model.name)
        for pool, own in parts.items():
            kept = own if job.pools else {name: own[name] for name in ("tp", "pp", "kv_precision")}
            assert set(unlike(kept, job.pools.get(pool, job))) <= noted, launch.text

    check()


def test_a_pair_of_pools_is_launched_and_read_as_a_study_that_best_takes(tmp_path):
    graph, study = tmp_path / "graph.yaml", tmp_path / "job.toml"
    asked = ("serve", "qwen3-8b", "--on", DEVICE, "--devices", 16, "--clients", 128)
    layouts = ("--prefill", "tp=2,workers=3", "--decode", "tp=4,workers=2")
    run(*asked, *layouts, "--launch", f"dynamo={graph}")
    text = graph.read_text()
    assert re.search(r"Dynamo .*: Qwen3 8B on 6 h100-sxm-80gb for prefill and 8 h100-sxm-80gb for decode", text)
    job = read_job(text)
    names = ("tp", "dp", "devices", "batch_limit")
    assert [[job.pools[pool].values.get(n) for n in names] for pool in POOLS] == [[2, 3, 6, 1024], [4, 2, 8, 64]]
    run("read-job", graph, "--on", DEVICE, *(x for n, v in STATED.items() for x in ("--set", f"{n}={v}")), "-o", study)
    shown = run("best", study, "--launch", "dynamo")
    again = read_job(shown[shown.index("# Dynamo") :])
    assert {p: one.values for p, one in again.pools.items()} == {p: one.values for p, one in job.pools.items()}
    with pytest.raises(PerfgridError, match=r"vLLM starts one server.*give --launch dynamo"):
        app([*map(str, asked), *layouts, "--launch", "vllm"], standalone_mode=False)


def test_replicas_state_one_number_of_ranks():
    """What a worker states, or leaves open, is of one replica; the job has those of all."""
    text = pools(2, 2, (4, 4)).replace("prefill", "worker").splitlines()[:-1]
    worker = "\n".join(text).replace("--disaggregation-mode worker", "")
    job = read_job(worker)
    assert job.values["dp"] == 4
    assert [row for row in job.assumed if row[0] == "dp"] == []
    assert any(key == "replicas" and of.startswith("dp = 4: 4 of dp = 1, no") for key, _, of in job.understood)
    stated = read_job(worker.replace("--tensor-parallel-size 2", "--tensor-parallel-size 2 --data-parallel-size 2"))
    assert stated.values["dp"] == 8
    assert ("--data-parallel-size", "2", "dp = 2 in a replica") in stated.understood
