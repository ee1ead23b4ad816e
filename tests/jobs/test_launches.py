"""Public jobs as they are started: read without a format, with the quantities that were worked out by hand."""

import tomllib
from pathlib import Path

from perfgrid.jobs.job import UNKNOWN
from perfgrid.jobs.read import read_job
from perfgrid.jobs.subjects import could_change
from tests.each import each

JOBS = tomllib.loads((Path(__file__).parent / "launches.toml").read_text())["job"]


def read(job, **more):
    asked = {"stated": job.get("given"), "model": job.get("with"), "ignore": job.get("ignore", ())}
    return read_job(
        {name: text.lstrip() for name, text in job["files"].items()}, which=job.get("which"), **asked, **more
    )


@each("job", JOBS)
def test_a_public_job_is_read_as_it_is_started(job):
    found = read(job)
    assert found.format.name == job["format"]
    assert {name: found.values.get(name) for name in job["expected"]} == job["expected"]
    assert list(found.open) == job.get("open", [])
    assert found.model is not None
    assert found.model.name == job.get("model", job.get("with"))
    unknown = [key for key, _, why in found.ignored if why.startswith(UNKNOWN)]
    assert not [key for key in unknown if could_change(key)]
