"""``perfgrid read-job``: a configuration of a framework, its verdict, its study, and what makes it faster."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from typer import Argument, Option

from perfgrid.analysis.joined_pools import join_pools
from perfgrid.answers.entries import model_with_remarks
from perfgrid.answers.origins import origin
from perfgrid.answers.question import stated as given
from perfgrid.answers.stacks import engine_named
from perfgrid.catalog import Catalog, load_catalog
from perfgrid.engine.errors import PerfgridError, shortened
from perfgrid.jobs.changes import KEPT
from perfgrid.jobs.design import model_text, study_content
from perfgrid.jobs.job import FILE, UNKNOWN, Job
from perfgrid.jobs.placed import on_device_of
from perfgrid.jobs.read import read_files
from perfgrid.jobs.suggest import Suggestions, suggest
from perfgrid.jobs.verdict import inputs_of, verdict_of
from perfgrid.printing.assumptions_table import assumptions_data, print_assumptions
from perfgrid.printing.console import err, out, print_json
from perfgrid.printing.tables import print_table
from perfgrid.results.files import check_output, write_text
from perfgrid.study.ledger import Origin
from perfgrid.study.study import build_study, setting_of
from perfgrid.text.numbers import column

from .arguments import on_device
from .job_formats import show_formats
from .options import AsJson, Assumptions, CatalogFiles, Overwrite, Software, Topology, Wide
from .verdicts import NO_DEVICE, print_verdict, verdict_data

GAINS = {  # what a suggestion gains, by what the job is judged by
    "step_time": "faster by",
    "output_tokens_per_second": "more tokens/s by",
    "largest_request_rate": "more requests/s by",
}
VALUES = {  # what a change reaches, where the job itself is not feasible
    "step_time": "step [s]",
    "output_tokens_per_second": "tokens/s",
    "largest_request_rate": "requests/s",
}
OFFICIAL = {"vllm/vllm-openai": "vllm", "lmsysorg/sglang": "sglang"}  # images whose tags are versions of an engine
VERSION = re.compile(r"v?(\d+\.\d+)")  # at the beginning of such a tag
SHORT = {"time_to_first_token": "TTFT", "time_per_output_token": "TPOT"}


def read_job_command(
    files: Annotated[
        list[Path] | None, Argument(help="Scripts or configurations of one job; later ones replace earlier.")
    ] = None,
    format: Annotated[
        str | None, Option(help="Such as megatron-lm or megatron-lm@0.14. Default: the one that knows the keys.")
    ] = None,
    on: Annotated[str | None, Option("--on", help="Device of the catalog; needed for the verdict and a study.")] = None,
    devices: Annotated[str | None, Option(help="Number of devices, if the files state none.")] = None,
    model: Annotated[str | None, Option(help="Model of the catalog, if the files state none.")] = None,
    settings: Annotated[
        list[str] | None, Option("--set", help="What the files leave open, such as sequence_length=4096.")
    ] = None,
    which: Annotated[
        str | None, Option(help="Of several launches or recipes in a file: its number, from 1, or its name.")
    ] = None,
    ignore: Annotated[
        list[str] | None, Option("--ignore", help="Key of the files to leave out, though it may change the answer.")
    ] = None,
    list_formats: Annotated[
        bool, Option("--formats", help="List the formats: how many of their keys are known, and how.")
    ] = False,
    topology: Topology = None,
    software: Software = None,
    suggestions: Annotated[
        bool, Option("--suggest", help="List changes of the job's settings that are predicted to make it faster.")
    ] = False,
    assumptions: Assumptions = False,
    output: Annotated[Path | None, Option("--output", "-o", help="Study to write (.toml).")] = None,
    catalog: CatalogFiles = None,
    overwrite: Overwrite = False,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Read the configuration of a training or serving job: what it states, and with --on the verdict."""
    if list_formats:
        show_formats(as_json)
        return
    if not files:
        raise PerfgridError("name the files of a job, or ask for --formats")
    known = load_catalog(*(catalog or ()))
    stated = dict(setting_of(setting) for setting in settings or ())
    known, device = on_device(known, on)
    own = None
    if model is not None and Path(model).exists() and model not in known.tables["model"]:
        own, remarks = model_with_remarks(known, model)
        known, model = known.with_entry(own), own.name
        for remark in remarks:
            err.print(f"note: {remark}")
    count = given(devices, "devices", "--devices")
    asked = {"format": format, "devices": count, "model": model, "which": which, "ignore": ignore or ()}
    job = read_files(files, stated=stated, catalog=known, **asked)
    known, software = engine_of(known, software or of_image(job))
    job = on_device_of(job, device, known, software)
    job = job if own is None else replace(job, own=True)  # no catalog has it
    for key, why in misspelled(job):
        err.print(f"warning: {key} is ignored: {why}")
    for key, value, why in job.ignored:
        if why.startswith(FILE) and Path(value).name not in {file.name for file in files}:
            err.print(f"warning: {key} {value} {why}")
    found = None
    if suggestions:
        if device is None:
            raise PerfgridError("--suggest needs the device of the job: name it with --on")
        found = suggest(job, device, known, topology, software)
    if output is not None:
        _save(job, output, on, topology, software, known, catalog or [], overwrite)
    verdict = None if device is None else verdict_of(job, device, known, topology, software)
    inputs: tuple[Any, ...] = ()
    if assumptions:
        if device is None or verdict is None or job.pools:
            raise PerfgridError("--assumptions needs the device of the job (--on), and is for one pool")
        context = verdict.held[0].context or 1 if verdict.held and verdict.lacking else 0
        runs: dict[str, Origin] = {"software": origin("--software", software, f"{job.format.title} runs on it")}
        runs |= {"devices": ("stated", "--devices")} if count is not None else {}
        runs |= (
            {"prompt_tokens": None, "output_tokens": None, "batch_rule": None, "context_limit": None} if context else {}
        )
        if context or not verdict.lacking:  # else the verdict says what is to be stated
            inputs = (*inputs_of(job, device, known, topology, software, context), job.origins(stated) | runs)
    if as_json:
        data = as_data(job) | {"verdict": None if verdict is None else verdict_data(verdict)}
        data |= {"inputs": assumptions_data(*inputs)} if inputs else {}
        print_json(data | ({"suggestions": _suggested(found)} if found else {}))
        return
    print_job(job, software)
    if found is not None:
        print_suggestions(found)
    if verdict is None:
        out.print(NO_DEVICE)
    else:
        print_verdict(verdict)
    if inputs:
        print_assumptions(*inputs, of_what="job")
    if output is not None:
        out.print(f"saved {output}")


def engine_of(known: Catalog, software: str | None) -> tuple[Catalog, str | None]:
    """A catalog with the software of ``--software``, also an engine with its version or with brackets; its name."""
    name = engine_named(None, software)
    return (known, None) if name is None else known.named("software", name, "--software: ")


def of_image(job: Job) -> str | None:
    """The engine with its version, where the files name an image of this engine that states it."""
    images = (value.rpartition(":")[::2] for key, value, _ in job.ignored if key == "image")
    own = (tag for image, tag in images if OFFICIAL.get(image) == job.format.software)
    version = next((found[1] for tag in own if (found := VERSION.match(tag))), None)
    if version is None or job.format.workload != "inference":
        return None
    try:
        return engine_named(f"{job.format.software} {version}", None)
    except PerfgridError:  # of a version before the first one of the catalog
        return None


def _save(job, output, on, topology, software, known, catalog, overwrite) -> None:
    """Write the study, and beside it the model that no catalog has."""
    if on is None:
        raise PerfgridError("a study needs the device of the job: name it with --on")
    device = on if "[" in on else known.name_of("device", on)  # other values stay in brackets
    content = study_content(job, device, topology, software, f"{job.format.title} job")
    check_output(output, overwrite, ".toml")
    named = list(catalog)
    if text := model_text(job, known):
        beside = output.with_suffix(".model.toml")
        check_output(beside, overwrite, ".toml")
        write_text(beside, text)
        named.append(beside)
    checked = join_pools(content, catalog=load_catalog(*named)) if job.pools else None
    (checked or build_study(content, str(output), load_catalog(*named))).plan()  # before anything refers to it
    content |= {"catalog": [os.path.relpath(file, output.parent) for file in named]} if named else {}
    write_text(output, tomli_w.dumps(content))


def misspelled(job: Job) -> list[tuple[str, str]]:
    """Unknown keys, and why each is ignored: one for each that is close to a known key, one for the others."""
    unknown = [(key, why) for key, _, why in job.ignored if why.startswith(UNKNOWN)]
    near = [(key, why) for key, why in unknown if "did you mean" in why]
    others = [(key, why) for key, why in unknown if "did you mean" not in why]
    return near + ([(shortened(", ".join(key for key, _ in others), 200), others[0][1])] if others else [])


def print_job(job: Job, software: str | None = None) -> None:
    """What was understood, assumed and ignored, as three tables."""
    name = job.model.title if job.model else "no model stated"
    out.print(f"{job.format.title}: {name}")
    tables = {
        "understood": (("key", "value", "understood as"), job.understood),
        "assumed": (("assumed", "value", "why"), job.assumed),
        "ignored": (("ignored", "value", "why"), job.ignored),
    }
    for headers, rows in tables.values():
        if rows:
            out.print()
            print_table(headers, rows, prose=headers[1:], names=False)
    for name in job.open:
        out.print()
        if name == "devices":
            out.print(f"Open: {name}: no launcher states it: give --{name}")
        else:
            out.print(f"Open: {name}: what is named states it and is not read: give its file, or --set {name}=...")
    out.print()
    out.print(f"{job.share:.0%} of {len(job.understood) + len(job.ignored)} keys are known to perfgrid")
    out.print(
        f"Assumed: {software or job.format.software} runs it (--software), options of {job.format.title} {job.version}"
    )


def print_suggestions(found: Suggestions) -> None:
    """The prediction for the job, single changes by gain, and the best combination."""
    low, high = found.interval
    name, unit = ("step", "s") if found.aim == "step_time" else (found.aim.replace("_", " "), "/s")
    _, texts = column([found.value, low, high], unit)
    unit, _ = column([found.value], unit)
    own, first, last = (text.strip() for text in texts)
    out.print()
    beside = "".join(f", {SHORT[n]} {v * 1e3:.4g} ms" for n, v in found.beside.items())
    memory = f"{found.memory / 2**30:.4g} GiB of memory"
    if found.why_not:
        out.print(f"the job is not feasible: {found.why_not[0]}")
    else:
        out.print(f"{name} of the job: {own} ({first} to {last}) {unit}, {memory}{beside}")
    changes = [*found.singles, *([found.combination] if found.combination else [])]
    if not changes:
        better = "feasible" if found.why_not else "better"
        out.print(f"none of the {found.tried:,} changed designs that were tried is {better}")
        return
    rows = []
    for change in changes:
        name = "together: " if change is found.combination else ""
        settings = ", ".join(f"{key} {before} -> {after}" for key, before, after in change.settings)
        gains = (f"{1 / change.ratio - 1:+.1%}", f"{1 / change.high - 1:+.0%} to {1 / change.low - 1:+.0%}")
        reached = (f"{change.value:.4g}",) if found.why_not else gains
        memory = f"{change.memory / 2**30:.4g}"
        others = (f"{value * 1e3:.4g}" for value in change.beside.values())
        marks = (["tie"] if change.tied else []) + (["number format"] if {*change.changes} & {*KEPT} else [])
        marks += [f"on {change.changes['devices']} devices"] if "devices" in change.changes else []
        rows.append((name + settings, *reached, memory, *others, ", ".join(marks)))
    times = (f"{SHORT[n]} [ms]" for n in found.beside)
    reached = (VALUES[found.aim],) if found.why_not else (GAINS[found.aim], "90 of 100 within")
    headers = ("change", *reached, "memory [GiB]", *times, "")
    out.print()
    print_table(headers, rows, right=headers[1:-1], prose=headers[:1], names=False)
    refused = sum(found.infeasible.values())
    out.print(f"{found.tried:,} designs tried; of single changes {refused} are not feasible")
    if found.left_out:
        lost = ", ".join(f"{name} ({some} of {every})" for name, (some, every) in found.left_out.items())
        out.print(f"combinations leave out the changes that help least alone: {lost}")


def _suggested(found: Suggestions) -> dict:
    """Suggestions as a JSON object: nothing is predicted for a job that is not feasible, nor gained over it."""
    data = asdict(found)
    if found.why_not:
        data |= {"value": None, "interval": None, "beside": {}}
        for change in (*data["singles"], *filter(None, [data["combination"]])):
            change |= {"ratio": None, "low": None, "high": None}
    return data


def as_data(job: Job) -> dict:
    """A job as a JSON object."""
    of = {"understood": ("key", "value", "as"), "assumed": ("what", "value", "why"), "ignored": ("key", "value", "why")}
    data = {"format": job.format.name, "version": job.version, "model": job.model.name if job.model else None}
    data |= {"values": job.values, "open": list(job.open), "share_known": job.share}
    return data | {name: [dict(zip(keys, row, strict=True)) for row in getattr(job, name)] for name, keys in of.items()}
