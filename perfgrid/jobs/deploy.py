"""Writing a deployment: a design as workers of an engine in a graph for Kubernetes (Dynamo)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from perfgrid.catalog import Entry
from perfgrid.engine.errors import PerfgridError, printable

from .deployments import CONFIG, GRAPH, MODE, read_pools
from .formats import Format, format_of
from .job import Job
from .models import PUBLISHED_FORMATS, of_model
from .read import stated_values
from .write import COMPARED, Launch, default_word, limited, word_of, write_launch

WORKER = "worker"  # of a deployment of one pool


def write_deployment(values: Mapping[str, Any], model: Entry, form: Format, version: str, title: str = "") -> Launch:
    """A design of one pool as a graph for Kubernetes. Errors as of `write_launch`."""
    return _graph({WORKER: values}, model, form, version, title)


def write_pools(
    pools: Mapping[str, Mapping[str, Any]], model: Entry, form: Format, version: str, title: str = ""
) -> Launch:
    """Designs of a pool for prefill and one for decode as a graph for Kubernetes. Errors as of `write_launch`."""
    return _graph(pools, model, form, version, title)


def _graph(pools: Mapping[str, Mapping[str, Any]], model: Entry, form: Format, version: str, title: str) -> Launch:
    """The graph of some pools."""
    word, name = next(iter(form.engines.items()))
    engine, newest = format_of(name)
    services, settings, notes, wanted = {}, dict[str, Any](), list[str](), {}
    for pool, values in pools.items():
        known, dp = dict(values), int(values.get("dp", 1))
        ranks = int(known.get("tp", 1)) * int(known.get("cp", 1))  # of attention in one part of a worker
        spread = model.values["experts"] and "ep" in known
        together = max(1, int(known["ep"] * known.get("etp", 1)) // ranks) if spread else 1
        if dp % together:
            raise PerfgridError(
                f"dp {dp} of the {pool} pool is not a multiple of the {together} replicas that share experts"
            )
        known = limited(known, dp)  # of the whole, before workers get their parts
        share = known | {"dp": together, "devices": int(known.get("devices", 1)) * together // dp}
        launch = write_launch(share, model, engine, newest)
        notes += launch.notes
        shown = {"replicas": dp // together} | {engine.shown(key): value for key, value in launch.settings.items()}
        settings |= {key if pool == WORKER else f"{pool}: {key}": value for key, value in shown.items()}
        role = [] if pool == WORKER else [MODE, pool]
        command, config = _command(word, launch, engine, model.name)
        services[pool] = _written(pool, command + role, share["devices"], dp // together, config)
        wanted[pool] = known
    graph = {"apiVersion": "nvidia.com/v1beta1", "kind": GRAPH, "metadata": {"name": "perfgrid"}}
    frontend = {"name": "Frontend", "type": "frontend", "replicas": 1, **_pod(["python3", "-m", "dynamo.frontend"], 0)}
    documents = [
        graph | {"spec": {"backendFramework": word, "components": [frontend, *(s for s, _ in services.values())]}}
    ]
    documents += [config for _, config in services.values() if config]
    text = yaml.safe_dump_all(documents, sort_keys=False)
    notes = [*dict.fromkeys(notes)]
    notes += dict.fromkeys(_lost(text, wanted, notes, model, form, version))
    lines = [f"{form.title} {version}: {title or model.title}", f"perfgrid format: {form.name}@{version}"]
    lines += [f"not supported: {note}" for note in notes]
    return Launch("".join(f"# {printable(line)}\n" for line in lines) + text, tuple(notes), settings)


def _lost(
    text: str,
    pools: Mapping[str, Mapping[str, Any]],
    noted: Sequence[str],
    model: Entry,
    form: Format,
    version: str,
) -> Iterator[str]:
    """What a written graph does not say of a design: quantities that are others when it is read again."""

    def read(texts: Mapping[str, str], engine: Format, newest: str) -> Job:
        own = {name: of_model(model)[name] for name in ("layers", *PUBLISHED_FORMATS)}
        return Job(engine, newest, stated_values(texts, engine, newest, {}, own), model)

    try:
        found = read_pools({"this design": text}, form, version, read)
    except PerfgridError as error:
        raise PerfgridError(f"{form.title} cannot express the layout of {error}") from None
    dense = set() if model.values["experts"] else {"ep", "etp"}
    for name in COMPARED[form.workload]:
        for pool, wanted in pools.items():
            own = found["" if pool == WORKER else pool].values.get(name, default_word(name))
            if name not in wanted or name in dense or any(note.startswith(f"{name} = ") for note in noted):
                continue
            if wanted[name] != own:
                yield f"{name} = {word_of(wanted[name])}: {form.title} takes {word_of(own)}"


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
