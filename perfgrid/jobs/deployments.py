"""Deployments: workers of an engine in one pool or two, from commands, a graph (Dynamo) or manifests for Kubernetes.

Each worker is a job in the format of its engine. Workers of one kind are replicas; pools for prefill and decode are two
jobs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from perfgrid.catalog.reading import from_yaml
from perfgrid.engine.errors import PerfgridError, shortened

from .formats import Format, format_of
from .job import Job
from .server_manifests import (
    POOLS,
    commands_of,
    configs_in,
    environment,
    gpus_in,
    is_manifest,
    servers_in,
    tables_in,
    whole,
)
from .server_manifests import words_of as words_in
from .shell import Script, script_of
from .syntaxes import launched

GRAPH = "DynamoGraphDeployment"
MODULE = re.compile(r"\bdynamo[.](vllm|sglang|trtllm)\b")
MODULES = ("dynamo.vllm", "dynamo.sglang", "dynamo.trtllm")
MOST_WORKERS = 16
MODE = "--disaggregation-mode"
CONFIG = ("--extra-engine-args", "--extra_engine_args", "--config")


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


def deployment_in(text: str) -> str:
    """The format of a text that starts workers; empty for others."""
    if MODULE.search(text) is not None or f"kind: {GRAPH}" in text:
        return "dynamo"
    return "kubernetes" if is_manifest(text) else ""


def read_pools(
    texts: Mapping[str, str], form: Format, version: str, read: Callable[..., Job], which: str | None = None
) -> dict[str, Job]:
    """The jobs of prefill and decode, or that of all workers under an empty name; errors as of `read_deployment`."""
    workers = [worker for file, text in texts.items() for worker in _workers(file, text, form)]
    where = ", ".join(texts)
    if not workers:
        raise PerfgridError(f"{where}: starts no worker: no command with dynamo.vllm, dynamo.sglang or dynamo.trtllm")
    workers = workers if which is None else [_chosen(workers, which, where)]
    by_role: dict[str, Job] = {}
    for worker in workers[:MOST_WORKERS]:
        if worker.role in by_role:
            kinds = shortened(", ".join(f"{i} ({w.name})" for i, w in enumerate(workers, 1)), 300)
            raise PerfgridError(
                f"{where}: several kinds of {worker.role or 'worker'}: choose one with --which: {kinds}"
            )
        by_role[worker.role] = _worker_job(worker, form, version, read)
    if len(by_role) == 1 and "" in by_role:
        return by_role
    if set(by_role) == {"", "prefill"}:  # a worker of which nothing is said decodes
        by_role["decode"] = by_role.pop("")
    if set(by_role) != set(POOLS):
        raise PerfgridError(f"{where}: two pools need workers for prefill and decode, found {', '.join(by_role)}")
    return by_role


def _chosen(workers: list[Worker], which: str, where: str) -> Worker:
    """The worker of a number, from 1, or of a name; it is then no pool of a pair."""
    named = [w for w in workers if which in (w.name, w.name.rpartition(", ")[2])]
    named = [workers[int(which) - 1]] if which.isdecimal() and 0 < int(which[:9]) <= len(workers) else named
    if len(named) != 1:
        names = shortened(", ".join(f"{i} ({w.name})" for i, w in enumerate(workers, 1)), 300)
        raise PerfgridError(f"{where}: has no worker {which!r}: its workers are {names}")
    return replace(named[0], role="")


def read_deployment(
    texts: Mapping[str, str], form: Format, version: str, read: Callable[..., Job], which: str | None = None
) -> Job:
    """The job of a deployment; ``read`` reads that of an engine. PerfgridError for none, and for unlike workers."""
    by_role = read_pools(texts, form, version, read, which)
    if "" in by_role:
        return by_role[""]
    where = ", ".join(texts)
    prefill, decode = (by_role[pool] for pool in POOLS)
    tables = {n: [(f"{p}: {k}", v, w) for p in POOLS for k, v, w in getattr(by_role[p], n)] for n in _TABLES}
    if prefill.model is None or decode.model is None or prefill.model.name != decode.model.name:
        raise PerfgridError(f"{where}: both pools serve one model: name it with --model")
    return replace(decode, pools=by_role, **tables)


_TABLES = ("understood", "assumed", "ignored")


def _worker_job(worker: Worker, form: Format, version: str, read: Callable[..., Job]) -> Job:
    """The job of all replicas of a worker, in the format of its engine with what the deployment adds."""
    engine, newest = format_of(form.engines[worker.engine])
    ignored = {why: (*engine.ignored.get(why, ()), *keys) for why, keys in form.ignored.items()}
    known = engine.model_copy(update={"ignored": dict(engine.ignored) | ignored})
    vars(known).pop("arguments", None)  # computed from the keys
    job = read({worker.name: shlex.join(worker.words), **worker.files}, known, newest)
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
    own = form.model_copy(
        update={
            "title": f"{engine.title} on {form.title}" if form.writes is None else form.title,
            "software": engine.software,
            "engines": {worker.engine: engine.name},
            "whole_context": engine.whole_context,
        }
    )
    assumed = [*worker.assumed, *assumed]
    return replace(job, format=own, version=version, values=values, understood=understood, assumed=assumed)


def _workers(file: str, text: str, form: Format) -> Iterator[Worker]:
    """The workers of a file: of a graph or a manifest with their replicas, of a script those of its commands."""
    if f"kind: {GRAPH}" not in text and is_manifest(text):
        for server in servers_in(file, text, [*_programs(form), *MODULES]):
            found = _worker(server.name, server.words, {}, form)
            yield replace(
                found,
                role=found.role or server.role,
                files={**server.files, **found.files},
                replicas=server.replicas,
                gpus=server.gpus,
                assumed=(*server.assumed, *found.assumed),
            )
        return
    if f"kind: {GRAPH}" not in text:
        yield from (_worker(file, words, {}, form) for words in _commands(file, text))
        return
    documents = [document for document in from_yaml(text, f"{file}: ", every=True) if isinstance(document, Mapping)]
    configs = configs_in(documents)
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
    container = next((c for c in tables_in(service) if {"args", "command"} & c.keys() and _starts(c)), None)
    if container is None:
        return None
    words = words_in(container)
    script = next((word for word in words if MODULE.search(word) and len(word.split()) > 2), None)
    words = words if script is None else ["bash", "-c", script]
    commands = [one for one in commands_of(name, words, environment(container)) if any(map(MODULE.search, one))]
    if len(commands) != 1:
        raise PerfgridError(f"{name}: starts {len(commands) or 'no'} workers: state one command in each component")
    limits = [t["limits"] for t in tables_in(service) if isinstance(t.get("limits"), Mapping)]
    gpus = next(filter(None, (gpus_in({"resources": {"limits": held}}) for held in limits)), None)
    nodes = next((whole(t["nodeCount"]) for t in tables_in(service) if "nodeCount" in t), 1)
    replicas = whole(service.get("replicas", 1))
    role = str(service.get("subComponentType") or "")
    found = _worker(name, commands[0], configs, form)
    return replace(
        found,
        role=found.role or (role if role in POOLS else ""),
        replicas=replicas or 1,
        gpus=gpus * (nodes or 1) if gpus else None,
    )


def _starts(container: Mapping[str, Any]) -> bool:
    return any(MODULE.search(word) for word in words_in(container))


def _commands(file: str, text: str) -> Iterator[list[str]]:
    """The commands of a script that start a worker."""
    script = script_of(text, file, Script())
    yield from (words for words in script.commands if any(MODULE.search(word) for word in words))


def _programs(form: Format) -> list[str]:
    """The commands that start an engine of a deployment."""
    return [program for name in form.engines.values() for program in format_of(name)[0].programs]


def _worker(name: str, words: list[str], configs: Mapping[str, str], form: Format) -> Worker:
    """The worker of a command, as a command of its engine: its role, and the file that it is given."""
    module = next((found for word in words if (found := MODULE.search(word))), None)
    if module is not None:
        engine, start = module[1], next(i for i, word in enumerate(words) if MODULE.search(word)) + 1
        program = format_of(form.engines[engine])[0].programs[0].rpartition(" = ")[2].split()
    else:
        engine = next(word for word, own in form.engines.items() if launched(words, format_of(own)[0].programs))
        start = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
        program = words[:start]
    role, kept, files, assumed = "", list(program), dict[str, str](), ()
    rest = iter(words[start:])
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
    return Worker(name, engine, role, kept, files, assumed)
