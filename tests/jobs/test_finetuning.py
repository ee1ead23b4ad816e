"""Jobs of fine-tuning stacks: Transformers, TRL, LLaMA-Factory, Axolotl, with Accelerate and DeepSpeed.

``finetuning.toml`` has jobs after public ones with what they state by the documents of their frameworks; ``flags/`` the
keys that the frameworks publish.
"""

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.formats import formats
from perfgrid.jobs.job import UNKNOWN
from perfgrid.jobs.kinds import UNKNOWN as NOT_KNOWN
from perfgrid.jobs.kinds import keys_of, kind_of
from perfgrid.jobs.read import read_job

HERE = Path(__file__).parent
JOBS = tomllib.loads((HERE / "finetuning.toml").read_text())["job"]
STACKS = ("transformers", "trl", "llama-factory", "axolotl")


def read(job):
    return read_job(job["files"], stated=job.get("given"), model=job.get("with"))


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["address"].rpartition("/")[2][:40].replace(" ", "-"))
def test_a_job_is_read_as_its_framework_runs_it(job):
    """Recognised without its format, in any order of its files, with the stack that runs it."""
    if "refused" in job:
        with pytest.raises(PerfgridError, match=re.escape(job["refused"])):
            read(job)
        return
    found = read(job)
    assert (found.format.name, found.format.software) == (job["format"], job["software"])
    assert {name: found.values.get(name) for name in job["expected"]} == job["expected"]
    assert found.model is not None
    assert found.model.name == job.get("model", job.get("with"))
    assert not [key for key, _, why in found.ignored if why.startswith(UNKNOWN) and "data" not in key]
    files = dict(reversed(job["files"].items()))
    assert read(job | {"files": files}).values == found.values


def test_there_are_four_jobs_of_every_framework():
    count = Counter(job["format"] for job in JOBS)
    assert {name: count[name] for name in (*STACKS, "accelerate", "deepspeed") if count[name] < 3} == {}
    assert len({job["address"] for job in JOBS}) == len(JOBS)


@pytest.mark.parametrize("name", [*STACKS, "accelerate", "deepspeed"])
def test_every_published_key_is_known(name):
    """With an effect, without one, or as what stops the reader."""
    form = formats()[name]
    assert len(keys_of(form)) > 40
    assert [key for key in keys_of(form) if kind_of(form, key) == NOT_KNOWN] == []
