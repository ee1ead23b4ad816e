"""Deployments: workers of an engine in one pool or two, from commands or a graph for Kubernetes (Dynamo).

Each worker is a job in the format of its engine. Workers of one kind are replicas; pools for prefill and decode of one
layout are `separate` pools of one job, others are two jobs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from perfgrid.catalog.reading import from_yaml
from perfgrid.engine.errors import PerfgridError

from .formats import Format, format_of
from .job import Job
from .shell import Script, script_of

GRAPH = "DynamoGraphDeployment"
POOLS = ("prefill", "decode")
MODULE = re.compile(r"\bdynamo[.](vllm|sglang|trtllm)\b")
MOST_WORKERS = 16
MODE = "--disaggregation-mode"
CONFIG = ("--extra-engine-args", "--extra_engine_args", "--config")
ALIKE = ("devices", "dp", "pools")  # may differ between pools of one layout


@dataclass(frozen=True)
class Worker:
    """Replicas of an engine: the word of its module, its command, files by name, GPUs of a replica if stated."""

    name: str
    engine: str
    role: str
    words: list[str]
    files: Mapping[str, str]
    assumed: tuple[tuple[str, str, str], ...] = ()
    replicas: int = 1
    gpus: int | None = None


def is_deployment(text: str) -> bool:
    """Whether a text starts workers."""
    return MODULE.search(text) is not None or f"kind: {GRAPH}" in text


def read_pools(texts: Mapping[str, str], form: Format, version: str, read: Callable[..., Job]) -> dict[str, Job]:
    """The jobs of prefill and decode, or that of all workers under an empty name; errors as of `read_deployment`."""
    workers = [worker for file, text in texts.items() for worker in _workers(file, text, form)]
    where = ", ".join(texts)
    if not workers:
        raise PerfgridError(f"{where}: starts no worker: no command with dynamo.vllm, dynamo.sglang or dynamo.trtllm")
    by_role: dict[str, Job] = {}
    for worker in workers[:MOST_WORKERS]:
        if worker.role in by_role:
            kinds = ", ".join(w.name for w in workers)
            raise PerfgridError(f"{where}: several kinds of {worker.role or 'worker'} ({kinds}): state one of each")
        by_role[worker.role] = _worker_job(worker, form, version, read)
    if len(by_role) == 1 and "" in by_role:
        return by_role
    if set(by_role) == {"", "prefill"}:  # a worker of which nothing is said decodes
        by_role["decode"] = by_role.pop("")
    if set(by_role) != set(POOLS):
        raise PerfgridError(f"{where}: two pools need workers for prefill and decode, found {', '.join(by_role)}")
    return by_role


def read_deployment(texts: Mapping[str, str], form: Format, version: str, read: Callable[..., Job]) -> Job:
    """The job of a deployment; ``read`` reads that of an engine. PerfgridError for none, and for unlike workers."""
    by_role = read_pools(texts, form, version, read)
    if "" in by_role:
        return by_role[""]
    where = ", ".join(texts)
    prefill, decode = (by_role[pool] for pool in POOLS)
    tables = {n: [(f"{p}: {k}", v, w) for p in POOLS for k, v, w in getattr(by_role[p], n)] for n in _TABLES}
    differing = {n for n in {*prefill.values, *decode.values} if prefill.values.get(n) != decode.values.get(n)}
    if prefill.model is None or decode.model is None or prefill.model.name != decode.model.name:
        raise PerfgridError(f"{where}: both pools serve one model: name it with --model")
    if differing - {*ALIKE}:
        return replace(decode, pools=by_role, **tables)
    both = {name: prefill.values[name] + decode.values[name] for name in ("devices", "dp")}
    own = {"pools": "separate", "prefill_replicas": prefill.values["dp"]}
    return replace(decode, values=decode.values | both | own, **tables)


_TABLES = ("understood", "assumed", "ignored")


def _worker_job(worker: Worker, form: Format, version: str, read: Callable[..., Job]) -> Job:
    """The job of all replicas of a worker, in the format of its engine with what the deployment adds."""
    engine, newest = format_of(form.engines[worker.engine])
    ignored = {why: (*engine.ignored.get(why, ()), *keys) for why, keys in form.ignored.items()}
    known = engine.model_copy(update={"ignored": dict(engine.ignored) | ignored})
    words = [_underscored(word) for word in worker.words] if worker.engine == "trtllm" else worker.words
    job = read({worker.name: shlex.join(words), **worker.files}, known, newest)
    got = job.values.get("devices", 1)
    if worker.gpus is not None and worker.gpus != got:
        raise PerfgridError(f"{worker.name}: a replica has {worker.gpus} GPUs, its flags take {got}")
    values = dict(job.values)
    values |= {name: values.get(name, 1) * worker.replicas for name in ("devices", "dp")}
    understood, assumed = list(job.understood), list(job.assumed)
    if worker.replicas > 1:  # dp is of all replicas together
        each = f"dp = {job.values.get('dp', 1)}"
        understood = [(key, value, re.sub(rf"\b{each}$", f"{each} in a replica", of)) for key, value, of in understood]
        why = "".join(f", {why}" for name, _, why in assumed if name == "dp")
        assumed = [row for row in assumed if row[0] != "dp"]
        one = f"{worker.replicas} of {each}{why}"
        understood.append(("replicas", str(worker.replicas), f"dp = {values['dp']}: {one}"))
    own = form.model_copy(update={"software": engine.software, "engines": {worker.engine: engine.name}})
    assumed = [*worker.assumed, *assumed]
    return replace(job, format=own, version=version, values=values, understood=understood, assumed=assumed)


def _underscored(word: str) -> str:
    """A flag as the configuration of TensorRT-LLM names it."""
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if name.startswith("--") else word


def _workers(file: str, text: str, form: Format) -> Iterator[Worker]:
    """The workers of a file: of a graph with their replicas, of a script those of its commands."""
    if f"kind: {GRAPH}" not in text:
        yield from (_worker(file, words, {}, form) for words in _commands(file, text))
        return
    documents = [document for document in from_yaml(text, f"{file}: ", every=True) if isinstance(document, Mapping)]
    configs = {
        name: str(held)
        for document in documents
        if document.get("kind") == "ConfigMap"
        for name, held in (document.get("data") or {}).items()
    }
    for document in documents:
        spec = document.get("spec")
        if document.get("kind") != GRAPH or not isinstance(spec, Mapping):
            continue
        services, parts = spec.get("services"), spec.get("components")
        named = dict(services) if isinstance(services, Mapping) else {}
        named |= {str(p.get("name")): p for p in parts or () if isinstance(p, Mapping)}
        for name, service in named.items():
            if (found := _service(f"{file}, {name}", service, configs, form)) is not None:
                yield found


def _service(name: str, service: Any, configs: Mapping[str, str], form: Format) -> Worker | None:
    """The worker of one component of a graph; None for a front end and the like."""
    container = next((c for c in _tables(service) if {"args", "command"} & c.keys() and _starts(c)), None)
    if container is None:
        return None
    words = _words(container)
    script = next((word for word in words if MODULE.search(word) and len(word.split()) > 2), None)
    env = [
        (str(e["name"]), str(e["value"])) for e in container.get("env") or () if isinstance(e, Mapping) and "value" in e
    ]
    commands = list(_commands(name, script or shlex.join(words), dict(env)))
    if len(commands) != 1:
        raise PerfgridError(f"{name}: starts {len(commands) or 'no'} workers: state one command in each component")
    limits = [t["limits"] for t in _tables(service) if isinstance(t.get("limits"), Mapping)]
    gpus = next((_whole(held[key]) for held in limits for key in ("gpu", "nvidia.com/gpu") if key in held), None)
    nodes = next((_whole(t["nodeCount"]) for t in _tables(service) if "nodeCount" in t), 1)
    replicas = _whole(service.get("replicas", 1))
    role = str(service.get("subComponentType") or "")
    found = _worker(name, commands[0], configs, form)
    return replace(
        found,
        role=found.role or (role if role in POOLS else ""),
        replicas=replicas or 1,
        gpus=gpus * (nodes or 1) if gpus else None,
    )


def _whole(value: Any) -> int | None:
    """A count as a graph states it, perhaps as text."""
    return int(str(value)) if str(value).isdecimal() and len(str(value)) < 8 else None


def _tables(held: Any) -> Iterator[Mapping[str, Any]]:
    """All tables within a value."""
    if isinstance(held, Mapping):
        yield held
    for inner in held.values() if isinstance(held, Mapping) else held if isinstance(held, list) else ():
        yield from _tables(inner)


def _words(container: Mapping[str, Any]) -> list[str]:
    return [str(w) for key in ("command", "args") for w in (container.get(key) or ()) if not isinstance(w, Mapping)]


def _starts(container: Mapping[str, Any]) -> bool:
    return any(MODULE.search(word) for word in _words(container))


def _commands(file: str, text: str, env: Mapping[str, str] | None = None) -> Iterator[list[str]]:
    """The commands of a script that start a worker."""
    script = script_of(text, file, Script(variables=dict(env or {})))
    yield from (words for words in script.commands if any(MODULE.search(word) for word in words))


def _worker(name: str, words: list[str], configs: Mapping[str, str], form: Format) -> Worker:
    """The worker of a command: its role, and the file that it is given."""
    start = next(i for i, word in enumerate(words) if MODULE.search(word))
    engine = MODULE.search(words[start])
    role, kept, files, assumed = "", ["python3", "-m", words[start]], dict[str, str](), ()
    rest = iter(words[start + 1 :])
    for word in rest:
        flag, equals, value = word.partition("=")
        if renamed := form.renamed.get(flag.lstrip("-")):
            role = renamed.to.split()[-1]
            assumed = ((flag, "", f"renamed to --{renamed.to} in {renamed.version}: read as that"),)
        elif flag == MODE:
            value = value if equals else next(rest, "")
            role = value if value in POOLS else ""
        elif flag in CONFIG:
            path = value if equals else next(rest, "")
            held = configs.get(path.rpartition("/")[2])
            files |= {} if held is None else {f"{name}, {path}": held}
            kept += [] if held is not None else [flag, path]
        else:
            kept.append(word)
    return Worker(name, engine[1] if engine else "", role, kept, files, assumed)
