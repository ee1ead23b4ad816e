"""What is written is taken by the frameworks: by lists of their keys always, by their own parsers where these are.

The lists in ``perfgrid/jobs/keys`` are what ``parsers.py`` reads from the parsers: name, type, legal values, default,
and the first version of the last three that has it. The parsers run in environments of their own,
``$PERFGRID_PARSERS/NAME/bin/python`` (gigabytes, so these tests are slow ones).
"""

import contextlib
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import Phase, given, settings

import perfgrid as pg
from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.design import written
from perfgrid.jobs.formats import format_of
from tests.each import each
from tests.jobs.test_round_trips import serving_designs, training_designs

FLAGS = Path(pg.__file__).parent / "jobs" / "keys"
PARSED = {  # the environment of each parser, and the version whose keys are listed
    "megatron-lm": ("torch", "0.19"),
    "deepspeed": ("torch", "0.19"),
    "accelerate": ("torch", "1.15"),
    "torchtitan": ("torch", "0.3"),
    "maxtext": ("maxtext", "0.2"),
    "sglang": ("torch", "0.5"),
    "vllm": ("vllm", "0.32"),
}
BEYOND = {  # refused by a parser for what the machine lacks: no fault of what is written
    "accelerate": r"FP8 is not available",
    "torchtitan": r"torchao",
    "maxtext": r"dcn context parallelism|number of microbatches|the number of pipeline|global causal attention",
    # a node stands for a slice, pipelines of 9 do not fill its topology, and Gemma's layers are counted in pairs
    "megatron-lm": r"[Tt]ransformer[ _-]?[Ee]ngine",
}
OF_LAUNCHER = ("nproc-per-node", "nnodes", "world-size", "model", "per_device_train_batch_size")  # or of a trainer
DRAWN = int(os.environ.get("PERFGRID_ROUND_TRIPS", "25"))


def listed(name):
    """Key -> type, legal values; dashes and underscores count as the same."""
    rows = [line.split("\t") for line in (FLAGS / f"{name}.txt").read_text().splitlines()]
    return {plain(row[0]): (row[1], row[2].split("|") if len(row) > 2 and row[2] else []) for row in rows}


def plain(key):
    return key.replace("_", "-").removeprefix("no-") if not key.startswith("no-") else key.replace("_", "-")


def drawn(name, count, version=None):
    """Launches of drawn designs that the format can have."""
    form, version = format_of(f"{name}@{version or PARSED[name][1]}")
    found, catalog = [], load_catalog()
    designs = training_designs() if form.workload == "training" else serving_designs()

    @settings(max_examples=count, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(designs)
    def collect(design):
        with contextlib.suppress(PerfgridError):  # a layout that it does not have: test_round_trips
            found.append(written(design[1], catalog.entry("model", design[0]), form, version))

    collect()
    return found


@each("name", PARSED)
def test_every_written_key_is_one_of_the_framework_with_a_legal_value(name):
    keys = listed(name)
    partial = name == "deepspeed"  # of which only the sharding is strict
    for launch in drawn(name, DRAWN):
        for key, value in launch.settings.items():
            if key.startswith("env:") or key.endswith(":") or (partial and not key.startswith("zero_optimization.")):
                continue
            known = plain(key.partition(".device")[0] if partial else key)
            known = re.sub(r"\.no-", ".", known)
            if name == "torchtitan" and known in ("module", "config"):
                continue
            if name == "accelerate" and known.startswith("fp8-config."):  # a table whose keys are not listed
                known = "fp8-config"
            assert known in keys, (key, launch.text)
            kind, legal = keys[known]
            words = str(value).split()
            assert not legal or all(w in legal or w.lower() in map(str.lower, legal) for w in words), (key, value)
            if kind.rstrip("*") == "int":
                assert all(re.fullmatch(r"-?\d+", f"{float(w):.15g}") for w in words), (key, value)
            if kind == "switch":
                assert isinstance(value, bool), (key, value)


@each("name", PARSED)
def test_the_keys_of_a_format_are_those_of_the_framework(name):
    """Every key that a format knows in the listed version, but for the launcher's and old names."""
    form, version = format_of(f"{name}@{PARSED[name][1]}")
    if name == "deepspeed":
        return
    keys = listed(name)
    known = {key for key, row in form.keys.items() if form.has(row, version)} - {*OF_LAUNCHER}
    unknown = sorted(key for key in known if plain(key) not in keys and not key.endswith(":"))
    assert unknown in ([], ["module"], ["speculative-config.num_speculative_tokens"]), unknown


@each("version", ["0.17", "0.18"])
def test_what_is_written_for_an_older_version_has_its_keys(version):
    """The first version that has a key, among those whose parser is at hand."""
    rows = [line.split("\t") for line in (FLAGS / "megatron-lm.txt").read_text().splitlines()]
    since = {row[0]: row[4] for row in rows}
    form = format_of("megatron-lm")[0]
    for launch in drawn("megatron-lm", DRAWN, version):
        for key in (key for key in launch.settings if not key.startswith("env:")):
            assert form.versions.index(since[key]) <= form.versions.index(version), key


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSED)
def test_the_parser_of_the_framework_takes_what_is_written(name, tmp_path):
    python = Path(os.environ.get("PERFGRID_PARSERS", "/nowhere")) / PARSED[name][0] / "bin" / "python"
    if not python.exists():
        pytest.skip(f"the parser of {name} is not installed: $PERFGRID_PARSERS/{PARSED[name][0]}/bin/python")
    launches = drawn(name, int(os.environ.get("PERFGRID_PARSED", "120")))
    read = {"deepspeed": json.loads, "accelerate": yaml.safe_load}.get(name, words_of)
    lines = [json.dumps(read(one.text)) for one in launches]
    command = [str(python), str(Path(__file__).with_name("parsers.py")), name, "check"]
    plainly = {k: v for k, v in os.environ.items() if not k.startswith(("JAX", "XLA", "PYTHON"))}
    asked = {"input": "\n".join(lines), "capture_output": True, "text": True, "cwd": tmp_path, "env": plainly}
    done = subprocess.run(command, check=False, **asked)
    said = done.stdout.splitlines()
    assert len(said) == len(launches), done.stderr[-500:]
    beyond = [line for line in said if name in BEYOND and re.search(BEYOND[name], line)]
    refused = [(line, launch.text) for line, launch in zip(said, launches, strict=True) if line != "ok"]
    print(f"{name}: {said.count('ok')} of {len(said)} taken, {len(beyond)} need what is not installed")
    assert len(refused) == len(beyond), [one for one in refused if one[0] not in beyond][:3]
    assert said.count("ok") > len(said) / 3


def words_of(text):
    """The words of a written command line."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return shlex.split(lines.replace("\\\n", " "))
