"""Public configurations: how much of them is understood, and that the job is the one that they state."""

import json
import tomllib
from pathlib import Path

import pytest

from perfgrid.jobs.formats import format_of
from perfgrid.jobs.read import read_job
from tests.paths import ROOT

JOBS = tomllib.loads((Path(__file__).parent / "public.toml").read_text())["job"]
LEAST = 0.95  # of all keys: known to perfgrid, each with what it states or why it is ignored


def text_of(job):
    """The facts of a configuration as a text of its format."""
    syntax = format_of(job["format"])[0].syntaxes[-1]
    pairs = [(key, str(value).lower() if isinstance(value, bool) else value) for key, value in job["keys"]]
    if syntax == "variables":
        return "".join(f"export {key}={value}\n" for key, value in pairs)
    if syntax == "json":
        return json.dumps(nested(job["keys"]))
    if syntax == "pairs":
        return "train " + " ".join(f"{key}={value}" for key, value in pairs)
    return "train " + " ".join(
        f"--{key}" if value == "true" else f"--{key} {'none' if value == '' else value}" for key, value in pairs
    )


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
    return read_job(text_of(job), format=job["format"], stated=job.get("given"))


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["address"].rpartition("/")[2])
def test_a_public_configuration_is_read(job):
    found = read(job)
    assert {n: found.values.get(n) for n in job.get("expected", {})} == job.get("expected", {})
    if "model" in job:
        assert found.model is not None
        assert found.model.name == job["model"]
    if "record" in job:
        plan, workload = recorded(job["record"])
        degrees = {n: plan[n] for n in ("tp", "pp", "cp", "dp", "chunks", "sequence_parallel")}
        degrees |= {n: workload[n] for n in ("global_batch", "microbatch", "precision")}
        assert {n: found.values[n] for n in degrees} == degrees


def test_nearly_all_keys_of_public_configurations_are_known():
    found = [read(job) for job in JOBS]
    stated = sum(len(job.understood) + len(job.ignored) for job in found)
    known = sum(job.share * (len(job.understood) + len(job.ignored)) for job in found)
    assert known / stated >= LEAST


def recorded(name):
    """Plan and workload of a record."""
    for path in (ROOT / "perfgrid" / "validation" / "records").glob("mlperf_*.jsonl"):
        for line in path.read_text().splitlines():
            if (record := json.loads(line))["id"] == name:
                return record["plan"], record["workload"]
    raise AssertionError(name)
