"""Writing a deployment: a design as workers of an engine in a graph for Kubernetes (Dynamo)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from perfgrid.catalog import Entry
from perfgrid.engine.errors import PerfgridError, printable

from .deployments import CONFIG, GRAPH, MODE, read_deployment
from .formats import Format, format_of
from .job import Job
from .models import of_model
from .read import stated_values
from .write import COMPARED, Launch, default_word, limited, word_of, write_launch

TOTALS = ("devices", "dp", "pools", "prefill_replicas")  # what the workers state together


def write_deployment(values: Mapping[str, Any], model: Entry, form: Format, version: str, title: str = "") -> Launch:
    """A design as a graph for Kubernetes: of one pool, or of two of one layout. Errors as of `write_launch`."""
    word, name = next(iter(form.engines.items()))
    engine, newest = format_of(name)
    known, services, notes, settings = dict(values), {}, list[str](), dict[str, Any]()
    separate, dp = known.pop("pools", "shared") == "separate", int(known.get("dp", 1))
    first = int(known.pop("prefill_replicas", 0))
    ranks = int(known.get("tp", 1)) * int(known.get("cp", 1))  # of attention in one part of a worker
    together = (
        max(1, int(known["ep"] * known.get("etp", 1)) // ranks) if model.values["experts"] and "ep" in known else 1
    )
    pools = {"prefill": first, "decode": dp - first} if separate else {"worker": dp}
    if separate and not 0 < first < dp:
        raise PerfgridError("a deployment of two pools needs prefill_replicas, above zero and below dp")
    known = limited(known, dp - first if separate else dp)  # of the whole, before workers get their parts
    for pool, size in pools.items():
        if size % together:
            raise PerfgridError(f"the {pool} pool of dp {size} is no multiple of the {together} that share experts")
        share = known | {"dp": together, "devices": int(known.get("devices", 1)) * together // dp}
        launch = write_launch(share, model, engine, newest)
        notes += launch.notes
        settings = dict(launch.settings) if pool != "prefill" else settings
        role = [MODE, pool] if separate else []
        command, config = _command(word, launch, engine, model.name)
        services[pool] = _written(pool, command + role, share["devices"], size // together, config)
    graph = {"apiVersion": "nvidia.com/v1beta1", "kind": GRAPH, "metadata": {"name": "perfgrid"}}
    frontend = {"name": "Frontend", "type": "frontend", "replicas": 1, **_pod(["python3", "-m", "dynamo.frontend"], 0)}
    documents = [
        graph | {"spec": {"backendFramework": word, "components": [frontend, *(s for s, _ in services.values())]}}
    ]
    documents += [config for _, config in services.values() if config]
    text = yaml.safe_dump_all(documents, sort_keys=False)
    notes = [*dict.fromkeys(notes)]
    notes += _lost(text, known | {name: values[name] for name in TOTALS if name in values}, notes, model, form, version)
    lines = [f"{form.title} {version}: {title or model.title}", f"perfgrid format: {form.name}@{version}"]
    lines += [f"not expressed: {note}" for note in notes]
    return Launch("".join(f"# {printable(line)}\n" for line in lines) + text, tuple(notes), settings)


def _lost(
    text: str, wanted: Mapping[str, Any], noted: Sequence[str], model: Entry, form: Format, version: str
) -> Iterator[str]:
    """What a written graph does not say of a design: quantities that are others when it is read again."""

    def read(texts: Mapping[str, str], engine: Format, newest: str) -> Job:
        own = {name: of_model(model)[name] for name in ("layers", "published_weights", "published_products")}
        given = {name: wanted[name] for name in engine.open if name in wanted}
        return Job(engine, newest, stated_values(texts, engine, newest, given, own), model)

    try:
        found = read_deployment({"this design": text}, form, version, read)
    except PerfgridError as error:
        raise PerfgridError(f"{form.title} cannot express the layout of {error}") from None
    dense = set() if model.values["experts"] else {"ep", "etp"}
    for name in dict.fromkeys((*TOTALS, *COMPARED[form.workload])):
        if name not in wanted or name in dense or any(note.startswith(f"{name} = ") for note in noted):
            continue
        took = {pool: job.values.get(name, default_word(name)) for pool, job in found.pools.items()}
        took = took or {"": found.values.get(name, default_word(name))}
        if any(wanted[name] != value for value in took.values()):
            texts = " and ".join(word_of(value) for value in dict.fromkeys(took.values()))
            yield f"{name} = {word_of(wanted[name])}: {form.title} takes {texts}"


def _command(word: str, launch: Launch, engine: Format, model: str) -> tuple[list[str], str]:
    """The command of a worker, and the file of its engine where that is configured by one."""
    start = ["python3", "-m", f"dynamo.{word}"]
    if engine.writes == "yaml":
        return [*start, "--model-path", model, CONFIG[0], "/config/engine.yaml"], launch.text
    words = shlex.split(launch.text.replace("\\\n", " "), comments=True)
    flags = words[next((i for i, w in enumerate(words) if w.startswith("--")), len(words)) :]
    return [*start, *([] if any(w.startswith("--model") for w in flags) else ["--model", model]), *flags], ""


def _written(
    pool: str, command: list[str], gpus: int, replicas: int, config: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A component, and the table that holds the file of its engine."""
    own = {"name": pool, "type": "worker", "replicas": replicas}
    if not config:
        return own | _pod(command, gpus), {}
    file = f"{pool}.yaml"
    words = [f"/config/{file}" if word == "/config/engine.yaml" else word for word in command]
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{pool}-engine"}, "data": {file: config}}
    return own | _pod(words, gpus), held


def _pod(command: list[str], gpus: int) -> dict[str, Any]:
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    return {"podTemplate": {"spec": {"containers": [{"name": "main", "command": command, **limits}]}}}
