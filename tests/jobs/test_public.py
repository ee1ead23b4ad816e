"""Public configurations: how much of them is understood, and that the job is the one that they state.

``python -m tests.jobs.test_public`` prints the shares by format.
"""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

import perfgrid as pg
from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.formats import format_of, formats
from perfgrid.jobs.read import read_job
from tests.each import each

JOBS = tomllib.loads((Path(__file__).parent / "public.toml").read_text())["job"]
LEAST = 0.95  # of all keys: known to perfgrid, each with what it states or why it is ignored


def facts(text):
    """Keys and values of a text of key=value."""
    return [tuple(word.split("=", 1)) for word in shlex.split(text)]


def text_of(job):
    """The facts of a configuration as a text of its format."""
    if "workers" in job:
        return graph_of(job["workers"])
    syntax = format_of(job["format"])[0].syntaxes[-1]
    stated = [*job.get("keys", []), *facts(job.get("facts", ""))]
    pairs = [(key, str(value).lower() if isinstance(value, bool) else value) for key, value in stated]
    if syntax == "variables":
        return "".join(f"export {key}={value}\n" for key, value in pairs)
    if syntax in ("json", "yaml"):
        return json.dumps(nested([(key, plain(value)) for key, value in stated]), indent=1)
    if syntax == "pairs":
        return "train " + " ".join(f"{key}={shlex.quote(str(value))}" for key, value in pairs)
    return f"train {flags(pairs)}"


def flags(pairs):
    words = ((key, shlex.quote(v) if "(" in (v := str(value)) else v or "none") for key, value in pairs)
    return " ".join(f"--{key}" if value == "true" else f"--{key} {value}" for key, value in words)


def plain(value):
    """A value of a text as JSON has it."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def graph_of(workers):
    """A graph of a deployment, and the files of its engines."""
    parts, held = [], {}
    for worker in workers:
        words = [*worker["command"].split(), *flags(facts(worker["facts"])).split()]
        if "file" in worker:
            held[f"{worker['name']}.yaml"] = json.dumps(
                nested([(k, plain(v)) for k, v in facts(worker["file"])]), indent=1
            )
            words += ["--extra-engine-args", f"/config/{worker['name']}.yaml"]
        pod = {"mainContainer": {"args": words}}
        part = {"replicas": worker["replicas"], "extraPodSpec": pod, "resources": {"limits": {"gpu": worker["gpus"]}}}
        parts.append((worker["name"], part | {"multinode": {"nodeCount": worker.get("nodes", 1)}}))
    documents = [
        {"kind": "ConfigMap", "data": held},
        {"kind": "DynamoGraphDeployment", "spec": {"services": dict(parts)}},
    ]
    return yaml.safe_dump_all(documents)


def nested(pairs):
    found = {}
    for key, value in pairs:
        *tables, last = key.split(".")
        holder = found
        for table in tables:
            holder = holder.setdefault(table, {})
        holder[last] = value
    return found


def read(job):
    asked = {"stated": job.get("given"), "model": job.get("with"), "ignore": job.get("ignore", ())}
    return read_job(text_of(job), format=job["format"], **asked)


@each("job", JOBS)
def test_a_public_configuration_is_read(job):
    """Or refused by the name of what is not modelled, as ``refused`` says."""
    if "refused" in job:
        with pytest.raises(PerfgridError, match=re.escape(job["refused"])):
            read(job)
        return
    found = read(job)
    assert {n: found.values.get(n) for n in job.get("expected", {})} == job.get("expected", {})
    for pool, values in job.get("pools", {}).items():
        assert {n: found.pools[pool].values.get(n) for n in values} == values
    if "model" in job:
        assert found.model is not None
        assert found.model.name == job["model"]
    if "record" in job:
        plan, workload = recorded(job["record"])
        degrees = {n: plan[n] for n in ("tp", "pp", "cp", "dp", "chunks", "sequence_parallel")}
        degrees |= {n: workload[n] for n in ("global_batch", "microbatch", "precision")}
        assert {n: found.values[n] for n in degrees} == degrees


def test_there_are_sixty_public_configurations_of_every_format():
    assert len(JOBS) >= 60
    files = [Path(__file__).parent / name for name in ("launches.toml", "servers.toml", "finetuning.toml")]
    launched = [job for file in files for of in tomllib.loads(file.read_text()).values() for job in of]
    found = [format_of(job["format"])[0].name for job in (*JOBS, *launched)]
    assert {*found} == {*formats()}
    trained = {name for name, form in formats().items() if form.strict and not name.startswith("primus-")}
    assert {name: found.count(name) for name in trained if found.count(name) < 4} == {}


def test_nearly_all_keys_of_public_configurations_are_known():
    found = [read(job) for job in JOBS if "refused" not in job]
    stated = sum(len(job.understood) + len(job.ignored) for job in found)
    known = sum(job.share * (len(job.understood) + len(job.ignored)) for job in found)
    assert known / stated >= LEAST


def recorded(name):
    """Plan and workload of a record."""
    for path in (Path(pg.__file__).parent / "validation" / "records").glob("mlperf_*.jsonl"):
        for line in path.read_text().splitlines():
            if (record := json.loads(line))["id"] == name:
                return record["plan"], record["workload"]
    raise AssertionError(name)


def main():
    """The share of keys that state a quantity, are ignored for a stated reason, or are unknown, by format."""
    found = [(format_of(job["format"])[0].title, read(job)) for job in JOBS if "refused" not in job]
    print(f"{'format':32}{'files':>6}{'keys':>6}{'stated':>8}{'ignored':>9}{'unknown':>9}")
    for title in dict.fromkeys(title for title, _ in found):
        jobs = [job for one, job in found if one == title]
        every = sum(len(job.understood) + len(job.ignored) for job in jobs)
        stated = sum(len(job.understood) for job in jobs)
        unknown = round(sum((1 - job.share) * (len(job.understood) + len(job.ignored)) for job in jobs))
        print(f"{title:32}{len(jobs):6}{every:6}{stated:8}{every - stated - unknown:9}{unknown:9}")


if __name__ == "__main__":
    main()
