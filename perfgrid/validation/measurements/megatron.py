"""Logs of Megatron-LM and what descends from it: a line for each logged iteration, and at the start all arguments.

``iteration 43/ 100 | elapsed time per iteration (ms): 5444.9 | ... | global batch size: 128 |``
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from perfgrid.catalog import Catalog
from perfgrid.catalog.numerals import amount, count
from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.formats import formats
from perfgrid.jobs.job import Job
from perfgrid.jobs.read import read_job

from .measured import Measured, last_run, lines_of, steady
from .setup import setup_of
from .steps import Found, log_records

TIME, SIZE, RANKS, MEMORY = "elapsed time per iteration (ms)", "global batch size", "world size", "max reserved"
STEP = re.compile(rf"iteration\s+([^\s/|]+)\s*/.*?{re.escape(TIME)}:([^|]*)")
BATCH = re.compile(rf"{SIZE}:([^|]*)")
WORLD = re.compile(rf"using {RANKS}:\s*([^\s,]*)")
ARGUMENT = re.compile(r"^(?:\S+:\s+)?\s*([a-z][a-z0-9_]*) \.\.+ ?(.*)$")
ARGUMENTS = re.compile(r"-{8,} arguments -{8,}")
RESERVED = re.compile(rf"\(after \S+ iterations\) memory \(MB\).*?{MEMORY}:\s*([^\s|]*)")
UNSET = ("None", "[]", "")
FLAGS = {  # arguments whose flag has another name or sense: argument -> value -> flag
    "add_bias_linear": {"False": "--disable-bias-linear"},
    "position_embedding_type": {"rope": "--position-embedding-type rope"},
    "gradient_accumulation_fusion": {"False": "--no-gradient-accumulation-fusion"},
}
PRINTED = re.compile(
    r"\['([^',]+)'\]|AttnBackend\.(\w+)|torch\.(\w+)"
)  # a list of one, a member, a type: as flags have them
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}
LEFT_OUT = ("nnodes", "model")


def is_megatron(text: str) -> bool:
    """Whether a text has lines of iterations, or the list of arguments before them."""
    return f"{TIME}:" in text or ARGUMENTS.search(text) is not None


def megatron_records(
    measured: Measured, text: str, catalog: Catalog, record: type[BaseModel]
) -> Iterator[tuple[int, Any]]:
    """The step time of a log, and the memory that its allocator reserved. PerfgridError for a log without a step."""
    where = str(measured.path)
    lines = lines_of(text)
    worlds = {count(m[1], f"{where}:{i}: {RANKS}"): i for i, line in reversed(lines) if (m := WORLD.search(line))}
    if len(worlds) > 1:
        told = ", ".join(f"{size} in line {i}" for size, i in sorted(worlds.items(), key=lambda item: item[1]))
        raise PerfgridError(f"{where}: runs of several world sizes ({told}): give a log of each")
    steps = [_step(line, f"{where}:{i}", i) for i, line in lines if f"{TIME}:" in line]
    if not steps:
        raise PerfgridError(f"{where}: no line of an iteration: the log ends before the first one, or logs no time")
    ended = last_run(((i, number, "") for i, number, *_ in steps), alone=True)
    steps = [step for step in steps if step[0] > ended]
    heads = [i for i, line in lines if i < steps[0][0] and (WORLD.search(line) or ARGUMENTS.search(line))]
    begin = max(
        [ended, *heads]
    )  # memory is logged after an iteration: a line of the run before may follow its last one
    setup = setup_of(measured, catalog, record)
    job = _arguments(text, measured, catalog)
    if job is not None:
        if job.model is not None:
            setup.take_model(job.model, "the log")
        setup.state({n: v for n, v in job.values.items() if n != "global_batch"}, "the arguments in the log")
        setup.assume_as(job)
        setup.usual_name("software", job.format.software)
    if worlds:
        setup.state({"devices": next(iter(worlds))}, "the log")
    batches = [batch for *_, batch in steps if batch]
    if batches:
        steps = [step for step in steps if step[3] in (None, batches[-1])]
        if len(set(batches)) > 1 and setup.values.get("global_batch", 0) > batches[-1]:
            del setup.values["global_batch"]  # the end of a ramp, which these steps have not reached
        setup.state({"global_batch": batches[-1]}, "the lines of iterations")
    found = steady([n for _, n, *_ in steps], [seconds for _, _, seconds, _ in steps], where)
    setup.usual_name("software", "megatron-core")
    printed = ("elapsed time per iteration", found.median * 1e3, "ms")
    place, note = (steps[0][0], steps[-1][0]), found.words("logged iterations")
    step = Found(found.median, printed, place, note, quartiles=found.quartiles)
    found_in = ((i, m) for i, line in lines if i > begin and (m := RESERVED.search(line)))
    memory = [(amount(m[1], f"{where}:{i}: {MEMORY}"), i) for i, m in found_in]
    reserved = None
    if memory:
        most, line = max(memory)
        printed = ("allocator_memory", most, "MiB")
        reserved = Found(most * 2**20, printed, (line, line), "of the ranks that the log shows")
    yield from log_records(setup, measured, "Megatron-LM", step, reserved)


def _step(line: str, place: str, number: int) -> tuple[int, int, float, int | None]:
    """Line, iteration, seconds and batch of a line of an iteration. PerfgridError for one of which a number is none."""
    found, batch = STEP.search(line), BATCH.search(line)
    if found is None:
        raise PerfgridError(f"{place}: {TIME} without the number of an iteration before it: the line is damaged")
    milliseconds = amount(found[2], f"{place}: {TIME}")
    sequences = count(batch[1], f"{place}: {SIZE}") if batch else None
    return number, count(found[1], f"{place}: iteration", zero=True), milliseconds / 1e3, sequences


def _arguments(text: str, measured: Measured, catalog: Catalog) -> Job | None:
    """The job that the list of arguments at the start of a log states; None where it has none."""
    lists = list(ARGUMENTS.finditer(text))
    if not lists:
        return None
    begin = lists[-1]
    stated: dict[str, str] = {}
    for _, line in lines_of(text[begin.end() :])[1:]:
        if "end of arguments" in line:
            break
        if (found := ARGUMENT.match(re.sub(r"^\[?\w*\d\]?:\s?", "", line))) and found[1] not in stated:
            stated[found[1]] = found[2]
    if not stated:
        return None
    model = measured.stated.get("model")
    return read_job({f"{measured.path} (arguments)": command_line(stated)}, "megatron-lm", model=model, catalog=catalog)


def command_line(stated: Mapping[str, str]) -> str:
    """Arguments as flags: those that `perfgrid read-job` knows."""
    form = formats()["megatron-lm"]
    known = {*form.by_name, *(key for case in form.cases for key in case.keys)}
    words = ["pretrain_gpt.py"]
    if (padded := stated.get("padded_vocab_size", "None")) not in UNSET:
        stated = {**stated, "vocab_size": padded}
    if stated.get("num_layers_per_virtual_pipeline_stage") in UNSET:
        stated = {
            **stated,
            "num_virtual_stages_per_pipeline_rank": stated.get("virtual_pipeline_model_parallel_size", "None"),
        }
    for name, printed in stated.items():
        key, value = (
            name.replace("_", "-"),
            PRINTED.sub(lambda found: found[1] or found[2] or DTYPES.get(found[3], found[3]), printed),
        )
        if flag := FLAGS.get(name, {}).get(value):
            words.append(flag)
        elif (key in known or form.unpriced_row(key)) and key not in LEFT_OUT and value not in (*UNSET, "False"):
            row = form.keys.get(key)
            if row is None or form.has(row, form.versions[-1]):
                words.append(f"--{key}" if value == "True" else f"--{key} '{value}'")
    return " ".join(words)
