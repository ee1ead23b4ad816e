"""Between jobs and studies: a job as a study of one design, and the design at labels of a study as quantities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np

from perfgrid.catalog import Catalog, Entry
from perfgrid.catalog.writing import entry_text
from perfgrid.engine.errors import PerfgridError
from perfgrid.results.evaluate import evaluate
from perfgrid.study.selection import selected
from perfgrid.study.study import Study

from .deploy import write_deployment, write_pools
from .deployments import POOLS
from .formats import USUAL, Format, formats, glossary
from .job import Job
from .write import COMPARED, OVERLAPS, Launch, limited, write_launch

TOLD = ("memory_fraction", "cache_fraction", "static_memory_fraction", "batch_limit", "prefill_chunk_tokens")
THOUSAND = 1024
LAYOUT = ("devices", "tp", "cp", "pp", "dp", "ep", "etp", "chunks")
OUTPUTS = {
    "training": (
        "step_time",
        "tokens_per_second",
        "causal_model_flops_utilization",
        "memory_per_device",
        "hbm_capacity",
    ),
    "inference": (
        "time_to_first_token",
        "time_per_output_token",
        "output_tokens_per_second_per_device",
        "memory_per_device",
    ),
    "pools": (
        *("time_to_first_token", "time_per_output_token", "output_tokens_per_second_per_device"),
        *("largest_request_rate", "running_batch"),
    ),
}
REQUIRED = {
    "training": {
        "devices": "--devices",
        "sequence_length": "--set sequence_length",
        "global_batch": "--set global_batch",
    },
    "inference": {
        "devices": "--devices",
        "prompt_tokens": "--set prompt_tokens",
        "output_tokens": "--set output_tokens",
    },
}


def study_content(
    job: Job, device: str, topology: str | None = None, software: str | None = None, title: str = "The job"
) -> dict[str, Any]:
    """The content of a study file whose only design is the job. PerfgridError for a quantity that the job lacks."""
    workload = job.format.workload
    if job.model is None:
        raise PerfgridError("the configuration states no model: name it with --model")
    open_ = {name: option for name, option in REQUIRED[workload].items() if job.values.get(name) is None}
    if workload == "inference" and not {"batch", "request_rate", "batch_rule"} & {*job.values}:
        open_["load"] = "--set batch=64 (clients) or --set request_rate=10"
    if open_:
        raise PerfgridError(f"the configuration states no {', '.join(open_)}: give {', '.join(open_.values())}")
    software = software or job.format.software
    if job.pools:
        return _pools_content(job, device, topology, software, title)
    axes: dict[str, Any] = {"model": [job.model.name], "device": [device]}
    axes |= {} if topology is None else {"topology": [topology]}
    axes["software"] = [software]
    axes["parallelism"] = {n: [job.values[n]] for n in LAYOUT if n in job.values}
    others = {n: v for n, v in job.values.items() if n not in LAYOUT}
    overrides = {n: v for n, v in others.items() if glossary()[n].of in ("software", "device")}
    parameters = {n: v for n, v in others.items() if n not in overrides}
    if workload == "inference" and "batch" in parameters:
        parameters.setdefault("batch_rule", "clients")
    elif workload == "inference" and "request_rate" in parameters:
        parameters.setdefault("batch_rule", "rate")
    content = {
        "title": title,
        "outputs": list(OUTPUTS[workload]),
        "dtype": "float64",
        "workload": workload,
        "axes": axes,
    }
    content |= {"workload_parameters": parameters} | ({"overrides": overrides} if overrides else {})
    best = {"minimize": "step_time"} if workload == "training" else {"maximize": OUTPUTS[workload][2]}
    return content | {"best": {"over": ["parallelism"], **best}}


def _pools_content(job: Job, device: str, topology: str | None, software: str, title: str) -> dict[str, Any]:
    """The content of a study of two pools, each with a layout of its own."""
    axes: dict[str, Any] = {"model": [job.model.name if job.model else ""], "device": [device]}
    axes |= {} if topology is None else {"topology": [topology]}
    axes["software"] = [software]
    content: dict[str, Any] = {
        "title": title,
        "workload": "pools",
        "outputs": list(OUTPUTS["pools"]),
        "dtype": "float64",
    }
    held = {pool: dict(one.values) for pool, one in job.pools.items()}
    first, second = held.values()
    same = {n: v for n, v in first.items() if second.get(n) == v and n not in LAYOUT}
    both = {n: v for n, v in same.items() if glossary()[n].of == "workload"}
    if "batch" in both:
        both.setdefault("batch_rule", "clients")
    elif "request_rate" in both:
        both.setdefault("batch_rule", "rate")
    decisive = "largest_request_rate" if both.get("batch_rule") == "rate" else "output_tokens_per_second_per_device"
    content |= {"axes": axes, "workload_parameters": both}
    for pool, values in held.items():
        own = {n: v for n, v in values.items() if n not in (*both, *LAYOUT)}
        over = {n: v for n, v in own.items() if glossary()[n].of == "software"}
        table = {"axes": {"parallelism": {n: [values[n]] for n in LAYOUT if n in values and n != "chunks"}}}
        table |= {"workload_parameters": rest} if (rest := {n: v for n, v in own.items() if n not in over}) else {}
        content[pool] = table | ({"overrides": over} if over else {})
    return content | {"best": {"over": list(POOLS), "maximize": decisive}}


def model_text(job: Job, catalog: Catalog) -> str:
    """The catalog file of a model that no catalog has; empty for others."""
    return entry_text(job.model, catalog.variables, catalog.references) if job.own and job.model else ""


@dataclass(frozen=True)
class Design:
    """One design of a study: its quantities of the glossary, its model, device and software.

    ``engine``: the software of the catalog behind an entry of the user's own.
    """

    values: dict[str, Any]
    model: Entry
    device: str
    software: str
    engine: str


def design_at(study: Study, labels: Mapping[str, Any]) -> Design:
    """The design at labels of a study; an axis without one has its first.

    Scaled quantities are left out, since a launch does not state hardware. PerfgridError for a study without a model.
    """
    found: dict[str, Any] = {}
    usual = {**study.defaults, **study.space.constants}
    entries = {table: str(usual.get(table, "")) for table in ("model", "device", "software")}
    wanted = {v.name for v in glossary().values() if v.of in ("workload", "parallelism")}
    for axis in study.space.axes:
        row = axis.index(study.label(axis.name, labels[axis.name])) if axis.name in labels else 0
        columns: dict[str, Sequence[Any] | np.ndarray] = {axis.name: axis.labels, **axis.columns}
        for name, column in columns.items():
            if name in entries:
                entries[name] = str(column[row])
            elif (
                (name in wanted or (name in axis.shown and name in COMPARED["inference"]))
                and name not in axis.scales
                and np.ndim(column) == 1
            ):
                found[name] = _plain(name, column[row])
    found |= {n: _plain(n, v) for n, v in study.space.constants.items() if n in wanted and np.ndim(v) == 0}
    stated = study.file.overrides
    found |= {n: v for n, v in stated.items() if n in glossary() and n not in found and not isinstance(v, dict)}
    if not entries["model"]:
        raise PerfgridError("the study names no model to launch")
    model = study.catalog.entry("model", entries["model"])
    engine = entries["software"]
    if stack := study.catalog.tables["software"].get(engine):
        found |= {n: 0 for n in OVERLAPS if stack.values[n] == 0}
        own = {n: _plain(n, stack.values[n]) for n in stack.stated if n in COMPARED["inference"]}
        found = own | found  # what brackets and own entries state of an engine
        engine = stack.base if stack.stated and stack.base else engine
    values = {n: v for n, v in found.items() if v != USUAL}
    return Design(values, model, entries["device"], entries["software"], engine)


def launch_of(study: Study, labels: Mapping[str, Any], form: Format, version: str) -> Launch:
    """The configuration of a design for a framework. PerfgridError for a design or a layout that it cannot have."""
    if study.pools:
        return _launch_of_pools(study, labels, form, version)
    if study.file.workload != form.workload:
        raise PerfgridError(
            f"{form.title} is a framework for {form.workload}, the study is one of {study.file.workload}"
        )
    design = design_at(study, labels)
    on, stack = _machine(design), f", predicted for {design.software}" if design.software else ""
    form, title = _of_engine(form, design.engine), f"{design.model.title}{on and f' on {on}'}{stack}"
    values = _told(study, labels, design, form) | _domain(study.catalog, design)
    return written(values, design.model, form, version, title)


def _told(study: Study, labels: Mapping[str, Any], design: Design, form: Format) -> dict[str, Any]:
    """The quantities of a design with limits of memory that it leaves to its engine."""
    own = {n: v for n, v in design.values.items() if (n, v) != ("context_limit", 0)}  # none stated
    return _limits(study, labels, design, form) | own


def _limits(study: Study, labels: Mapping[str, Any], design: Design, form: Format) -> dict[str, Any]:
    """Memory options of a launch with which the engine starts and has the predicted cache.

    The limits of its entry, whatever other versions take; and where it insists on room for the longest request of the
    model, and there is none, the longest one that fits, in thousands of tokens.
    """
    keys = {row.quantity for row in _server(form).keys.values() if row.write}
    stack = study.catalog.tables["software"].get(design.software)
    if form.workload != "inference" or stack is None:
        return {}
    found = {n: _plain(n, stack.values[n]) for n in TOLD if n in keys and stack.values[n]}
    published = int(design.model.values["published_context"] or design.model.values["context_length"] or 0)  # pyright: ignore
    if not _server(form).whole_context or not published:
        return found
    needs = ("fitting_context", "longest_context")
    asked = replace(study, file=study.file.model_copy(update={"outputs": [*needs]}))
    at = {axis.name: labels[axis.name] for axis in study.space.axes if axis.name in labels}
    fits, least = (int(np.ravel(evaluate(selected(asked, at))[name].values)[0]) for name in needs)
    context = max(fits // THOUSAND * THOUSAND, min(least, fits))
    return found | ({"context_limit": context} if 0 < context < published else {})


def _server(form: Format) -> Format:
    """The format of the engine that a deployment starts, or of the engine itself."""
    return formats()[next(iter(form.engines.values()))] if form.engines else form


def _launch_of_pools(study: Study, labels: Mapping[str, Any], form: Format, version: str) -> Launch:
    """The configuration of a pair of pools."""
    if not form.engines:
        names = ", ".join(name for name, other in formats().items() if other.engines and other.writes)
        raise PerfgridError(f"{form.title} starts one server, the study is one of two pools: give --launch {names}")
    found = {}
    for pool, own in study.pools.items():
        row = study.file.axes[pool]["labels"].index(labels[pool]) if pool in labels else 0
        places = zip(own.space.axes, np.unravel_index(row, own.space.shape), strict=True)
        at = {axis.name: axis.labels[place] for axis, place in places}
        design = design_at(own, at)
        found[pool] = replace(design, values=_told(own, at, design, form))
    last = found["decode"]
    both = {name: study.space.constants[name] for name in ("batch", "batch_rule") if name in study.space.constants}
    pools = {pool: design.values | _domain(study.catalog, design) for pool, design in found.items()}
    pools["decode"] = limited(pools["decode"] | {n: _plain(n, v) for n, v in both.items()}, last.values.get("dp", 1))
    on = " and ".join(f"{_machine(design)} for {pool}" for pool, design in found.items())
    title = f"{last.model.title} on {on}, predicted for {last.software}"
    return write_pools(pools, last.model, _of_engine(form, last.engine), version, title)


def _machine(design: Design) -> str:
    return f"{design.values.get('devices', 1)} {design.device}" if design.device else ""


def _domain(catalog: Catalog, design: Design) -> dict[str, int]:
    """The devices of a scale-up domain that a design fills."""
    if design.device not in catalog.tables["device"]:
        return {}
    size = catalog.entry("device", design.device).values.get("scale_up_size")
    return {"domain": gcd(int(size), design.values.get("devices", 1))} if isinstance(size, float) else {}


def _of_engine(form: Format, software: str) -> Format:
    """A deployment of the engine that a software is; of its first one where none is."""
    engines = {word: name for word, name in form.engines.items() if formats()[name].software == software}
    return form.model_copy(update={"engines": engines}) if engines else form


def written(values: Mapping[str, Any], model: Entry, form: Format, version: str, title: str = "") -> Launch:
    """A design as the configuration of a framework, or as a deployment of an engine. Errors as of `write_launch`."""
    return (write_deployment if form.engines else write_launch)(values, model, form, version, title)


def _plain(name: str, value: Any) -> Any:
    """A value of the grid as a study states it: a word of a code, a whole number, a flag, a text."""
    variable = glossary()[name]
    value = value.item() if isinstance(value, np.generic) else value
    if variable.kind == "code" and not isinstance(value, str):
        return variable.word(value)
    if variable.kind == "flag":
        return bool(value)
    whole = isinstance(value, float) and value == int(value) if not isinstance(value, str) else False
    return int(value) if whole else value
