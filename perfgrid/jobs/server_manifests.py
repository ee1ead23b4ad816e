"""Manifests of Kubernetes and values of Helm charts: the servers that their containers start.

A server is a command in the format of its engine, with the devices of its pods, its replicas and perhaps its pool.
Deployments and the like, LeaderWorkerSets, DisaggregatedSets, ModelServices and Helm values of llm-d, InferenceServices
and LLMInferenceServices of KServe, Helm values of the vLLM production stack and Docker Compose are read. Nothing is
rendered: what a template leaves open is not read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from perfgrid.catalog.reading import from_yaml
from perfgrid.engine.errors import PerfgridError, shortened

from .others import refuse_others
from .shell import Script, script_of
from .syntaxes import launched

POOLS = ("prefill", "decode")
PLAIN = ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job", "Pod", "Service")  # Service: of Knative
GROUPS = ("LeaderWorkerSet", "DisaggregatedSet")
SERVICES = ("ModelService", "InferenceService", "LLMInferenceService")
KINDS = (*PLAIN, *GROUPS, *SERVICES)
GPU = re.compile(
    r"(?:nvidia|amd)\.com/gpu|gpu|habana\.ai/gaudi|google\.com/tpu|gpu\.intel\.com/\w+|aws\.amazon\.com/neuron\w*"
)
SERVE = ["vllm", "serve"]  # what the charts start
PARALLEL = {  # of charts and KServe: a word of `parallelism` -> flag of vLLM
    **{"tensor": "tensor-parallel-size", "data": "data-parallel-size", "pipeline": "pipeline-parallel-size"},
    "expert": "enable-expert-parallel",
}
_KIND = re.compile(r"^kind:\s*[\"']?(\w+)", re.MULTILINE)
_VALUES = re.compile(r"^(?:modelArtifacts|servingEngineSpec):", re.MULTILINE)
_COMPOSE = (re.compile(r"^services:", re.MULTILINE), re.compile(r"^[ \t]+(?:image|command|entrypoint):", re.MULTILINE))
_ROLE = re.compile(r"(?:^|[-_. ])(prefill|decode)(?:$|[-_. ])")
_VARIABLE = re.compile(r"\$\(([A-Za-z_]\w*)\)")
_HUB = re.compile(r"hf://|oci://|pvc://|s3://|gs://")


@dataclass(frozen=True)
class Server:
    """Replicas of a server: the words of its command, files by name, GPUs of a replica, its pool."""

    name: str
    words: list[str]
    files: Mapping[str, str] = field(default_factory=dict)
    replicas: int = 1
    gpus: int | None = None
    role: str = ""
    assumed: tuple[tuple[str, str, str], ...] = ()


def is_manifest(text: str) -> bool:
    """Whether a text is a manifest of a server, or values of a chart that makes one."""
    if {*_KIND.findall(text)} & {*KINDS} and re.search(r"^apiVersion:", text, re.MULTILINE):
        return True
    return _VALUES.search(text) is not None or all(pattern.search(text) for pattern in _COMPOSE)


def servers_in(file: str, text: str, programs: Iterable[str]) -> list[Server]:
    """The servers of a manifest. PerfgridError for none, with the kinds of objects that were found."""
    programs = list(programs)
    documents = [one for one in from_yaml(text, f"{file}: ", every=True) if isinstance(one, Mapping)]
    configs = configs_in(documents)
    found = [server for one in documents for server in _servers(file, one, documents, programs)]
    found = [Server(s.name, s.words, _files(s, configs), s.replicas, s.gpus, s.role, s.assumed) for s in found]
    if not found:
        kinds = ", ".join(dict.fromkeys(str(one.get("kind", "values of a chart")) for one in documents))
        raise PerfgridError(f"{file}: no container starts a server that perfgrid reads (found {shortened(kinds, 100)})")
    roles = {server.role for server in found}
    if len(roles) == 1 and not any(_flagged(server.words) for server in found):  # a name alone makes no pool
        found = [Server(s.name, s.words, s.files, s.replicas, s.gpus, "", s.assumed) for s in found]
    return found


def configs_in(documents: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The files that ConfigMaps hold, by name."""
    maps = (one.get("data") for one in documents if one.get("kind") == "ConfigMap")
    return {str(name): str(held) for data in maps if isinstance(data, Mapping) for name, held in data.items()}


def tables_in(held: Any) -> Iterator[Mapping[str, Any]]:
    """All tables within a value."""
    if isinstance(held, Mapping):
        yield held
    for inner in held.values() if isinstance(held, Mapping) else held if isinstance(held, list) else ():
        yield from tables_in(inner)


def rows_of(value: Any) -> list[Mapping[str, Any]]:
    """The tables of a list; none of another value."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def whole(value: Any) -> int | None:
    """A count as a manifest states it, perhaps as text."""
    return int(str(value)) if str(value).isdecimal() and len(str(value)) < 8 else None


def words_of(container: Mapping[str, Any]) -> list[str]:
    """The words of command and arguments, with the variables of the container that they name as ``$(NAME)``."""
    env = environment(container)
    held = [container.get(key) for key in ("command", "args")]
    words = [str(w) for some in held for w in (some if isinstance(some, list) else [some]) if w is not None]
    return [_VARIABLE.sub(lambda name: env.get(name[1], name[0]), word) for word in words]


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a container that have a stated value."""
    rows = rows_of(container.get("env"))
    return {str(row["name"]): str(row["value"]) for row in rows if {"name", "value"} <= row.keys()}


def commands_of(name: str, words: list[str], env: Mapping[str, str]) -> list[list[str]]:
    """The commands that the words of a container run: those of a script that it hands to a shell, or its own."""
    inner = next((word for before, word in pairwise(words) if re.fullmatch(r"-\w*c", before)), None)
    script = script_of(inner if inner is not None else shlex.join(words), name, Script(variables=dict(env)))
    return [*script.commands, *script.unsure]


def _files(server: Server, configs: Mapping[str, str]) -> dict[str, str]:
    """The files of ConfigMaps that a command names."""
    named = {part.rpartition("/")[2] for word in server.words for part in word.split("=")}
    return {f"{server.name}, {name}": held for name, held in configs.items() if name in named}


def _servers(
    file: str, one: Mapping[str, Any], every: list[Mapping[str, Any]], programs: list[str]
) -> Iterator[Server]:
    """The servers of one document."""
    kind, spec = one.get("kind"), one.get("spec")
    name = f"{file}, {_named(one)}" if kind else file
    if kind is None and isinstance(one.get("services"), Mapping):
        for service, container in one["services"].items():
            yield from _of_compose(f"{file}, {service}", container, programs)
    elif kind is None and isinstance(one.get("servingEngineSpec"), Mapping):
        yield from _of_stack(file, one["servingEngineSpec"], programs)
    elif kind is None and "modelArtifacts" in one:
        yield from _of_charts(file, one, programs)
    elif not isinstance(spec, Mapping):
        return
    elif kind in PLAIN:
        pods = spec.get("template", one if kind == "Pod" else None)
        yield from _of_pods(name, pods, whole(spec.get("replicas", 1)), 0, one, programs)
    elif kind == "LeaderWorkerSet":
        yield from _of_group(name, spec, 1, one, programs)
    elif kind == "DisaggregatedSet":
        slices = whole(spec.get("slices", 1)) or 1
        for role in rows_of(spec.get("roles")):
            if isinstance(role.get("spec"), Mapping):
                own = {"metadata": {"name": role.get("name")}, "spec": role["spec"]}
                yield from _of_group(f"{name} {role.get('name')}", role["spec"], slices, own, programs)
    elif kind == "ModelService":
        yield from _of_charts(name, spec, programs)
    elif kind == "LLMInferenceService":
        parts = {"decode": spec, "prefill": spec.get("prefill"), "modelArtifacts": spec.get("model")}
        yield from _of_charts(name, parts, programs)
    elif kind == "InferenceService":
        yield from _of_kserve(name, spec, every, programs)


def _of_pods(
    name: str, pods: Any, replicas: int | None, size: int, one: Mapping[str, Any], programs: list[str]
) -> Iterator[Server]:
    """The server of a template of pods, of which ``size`` make one replica (0: a pod outside a group)."""
    spec = pods.get("spec") if isinstance(pods, Mapping) else None
    for container in rows_of(spec.get("containers")) if isinstance(spec, Mapping) else ():
        env = {"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "leader"} if size else {}
        words = _started(name, container, env, programs)
        if words:
            gpus = gpus_in(container)
            role = _role(words, one, pods, container)
            count, gpus = 1 if replicas is None else replicas, gpus and gpus * max(size, 1)
            yield Server(name, words, {}, count, gpus, role, _held_back(replicas))
            return


def _held_back(replicas: int | None) -> tuple[tuple[str, str, str], ...]:
    return () if replicas is not None else (("replicas", "1", "not a number in the manifest"),)


def _started(name: str, container: Mapping[str, Any], env: Mapping[str, str], programs: list[str]) -> list[str]:
    """The words of the server that a container starts, from its program on; none for other containers."""
    own = {**env, **environment(container)}
    words = words_of(container)
    if not container.get("command"):
        words = [str(container.get("image", "")), *words]
    commands = commands_of(name, words, own) if any(words) else []
    found = list(filter(None, (launched(command, programs) for command in commands)))
    refuse_others(() if found else commands, name)
    if len(found) > 1:
        raise PerfgridError(f"{name}: starts {len(found)} servers in one container: state one command")
    return found[0] if found else []


def _of_group(
    name: str, spec: Mapping[str, Any], times: int, one: Mapping[str, Any], programs: list[str]
) -> Iterator[Server]:
    """The server of a group of pods: a leader and its workers."""
    group = spec.get("leaderWorkerTemplate")
    if not isinstance(group, Mapping):
        return
    size, replicas = whole(group.get("size", 1)) or 1, whole(spec.get("replicas", 1))
    for template in ("leaderTemplate", "workerTemplate"):
        count = None if replicas is None else replicas * times
        found = list(_of_pods(name, group.get(template), count, size, {**one, "spec": spec}, programs))
        if found:
            yield from found
            return


def _of_charts(name: str, values: Mapping[str, Any], programs: list[str]) -> Iterator[Server]:
    """The servers of values with tables for decode and prefill, whose chart writes the command from `parallelism`."""
    model = _model(values.get("modelArtifacts")) or _model(values.get("routing"))
    for role in POOLS[::-1]:
        part = values.get(role)
        if not isinstance(part, Mapping) or part.get("create") is False or part.get("replicas") == 0:
            continue
        own = part.get("template")
        template = own if isinstance(own, Mapping) else part
        containers = rows_of(template.get("containers")) or [{}]
        container = next((c for c in containers if c.get("modelCommand") or words_of(c) or gpus_in(c)), containers[0])
        start = container.get("modelCommand")
        if start in ("custom", "imageDefault") or (start is None and container.get("command")):
            words = _started(f"{name}, {role}", container, {}, programs)
        else:
            more = _split(environment(container).get("VLLM_ADDITIONAL_ARGS", ""), name)
            words = [*SERVE, *([model] if model else []), *words_of({"args": container.get("args")}), *more]
        if not words:
            continue
        flags = _flags(part.get("parallelism"), words)
        replicas = whole(part.get("replicas", 1))
        yield Server(
            f"{name}, {role}", [*words, *flags], {}, replicas or 1, gpus_in(container), role, _held_back(replicas)
        )


def _of_compose(name: str, service: Any, programs: list[str]) -> Iterator[Server]:
    """The server of a service of Docker Compose."""
    if not isinstance(service, Mapping):
        return
    of = {"image": service.get("image", ""), "command": service.get("entrypoint"), "args": service.get("command")}
    split = {key: _split(held, name) if isinstance(held, str) and key != "image" else held for key, held in of.items()}
    env = service.get("environment")
    listed = [str(one).split("=", 1) for one in env if "=" in str(one)] if isinstance(env, list) else []
    pairs = env.items() if isinstance(env, Mapping) else listed
    words = _started(name, split, {str(key): str(value) for key, value in pairs}, programs)
    devices = [t for t in tables_in(service.get("deploy")) if "capabilities" in t]
    ids = next((t["device_ids"] for t in devices if isinstance(t.get("device_ids"), list)), ())
    gpus = next(filter(None, (whole(t.get("count")) for t in devices)), len(ids))
    if words:
        yield Server(name, words, {}, 1, gpus or None, "")


def _of_stack(name: str, spec: Mapping[str, Any], programs: list[str]) -> Iterator[Server]:
    """The servers of values of the vLLM production stack: flags in camel case, GPUs as a request."""
    for model in rows_of(spec.get("modelSpec")):
        if model.get("enabled") is False:
            continue
        config = model.get("vllmConfig")
        words = [*SERVE, str(model.get("modelURL", ""))]
        for key, value in config.items() if isinstance(config, Mapping) else ():
            flag = "--" + re.sub(r"(?<=[a-z0-9])([A-Z])", r"-\1", str(key)).lower()
            if key == "extraArgs":
                words += [str(word) for word in value] if isinstance(value, list) else []
            elif isinstance(value, bool):
                words += [flag] if value else []
            elif not isinstance(value, (Mapping, list)) and not str(key).startswith("v0") and str(key) != "v1":
                words += [flag, str(value)]
        replicas = whole(model.get("replicaCount", 1))
        gpus = whole(model.get("requestGPU"))
        yield Server(f"{name}, {model.get('name', 'model')}", words, {}, replicas or 1, gpus, "", _held_back(replicas))


def _of_kserve(
    name: str, spec: Mapping[str, Any], every: list[Mapping[str, Any]], programs: list[str]
) -> Iterator[Server]:
    """The server of an InferenceService: its own container, or that of its runtime with the model and its arguments."""
    predictor = spec.get("predictor")
    if not isinstance(predictor, Mapping):
        return
    replicas = max(whole(predictor.get("minReplicas", 1)) or 1, 1)
    most = whole(predictor.get("maxReplicas", replicas)) or replicas
    why = f"the least number of a service that scales to {most}" if most != replicas else ""
    assumed = (("replicas", str(replicas), why),) if why else ()
    model = predictor.get("model")
    if not isinstance(model, Mapping):
        for server in _of_pods(name, {"spec": predictor}, replicas, 0, {}, programs):
            yield Server(name, server.words, {}, replicas, server.gpus, "", assumed)
        return
    runtime = str(model.get("runtime", ""))
    runtimes = [one for one in every if one.get("kind") in ("ServingRuntime", "ClusterServingRuntime")]
    chosen = next((one for one in runtimes if _named(one) == runtime or len(runtimes) == 1), None)
    containers = [c for t in tables_in(chosen) for c in rows_of(t.get("containers"))]
    words = next(filter(None, (_started(name, c, {}, programs) for c in containers)), [])
    named = " ".join(map(str, (runtime, model.get("modelFormat")))).lower()
    if not words and ("vllm" in named or "huggingface" in named):
        words = list(SERVE)
    if words:
        held = [gpus_in(model), *map(gpus_in, containers)]
        words = [*words, *words_of({"args": model.get("args")}), *_of_uri(model.get("storageUri"))]
        yield Server(name, words, {}, replicas, next(filter(None, held), None), "", assumed)


def _split(text: str, name: str) -> list[str]:
    """The words of a text as a shell splits them. PerfgridError for an open quote."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise PerfgridError(f"{name}: cannot be read as words: {str(error).lower()}") from None


def _of_uri(uri: Any) -> list[str]:
    """The model of a place in storage, which replaces the folder where it is mounted."""
    return ["--model", _HUB.sub("", str(uri))] if uri else []


def _model(held: Any) -> str:
    """The model of a table of a chart: its place on a hub, or its name."""
    if not isinstance(held, Mapping):
        return ""
    uri = str(held.get("uri", ""))
    return uri[len("hf://") :] if uri.startswith("hf://") else str(held.get("name") or held.get("modelName") or "")


def _flags(parallelism: Any, words: list[str]) -> list[str]:
    """The flags that a chart makes of its table of degrees, but for those that the arguments have."""
    stated = parallelism if isinstance(parallelism, Mapping) else {}
    found = []
    for word, flag in PARALLEL.items():
        value = stated.get(word)
        if value in (None, False) or any(w.partition("=")[0] == f"--{flag}" for w in words):
            continue
        found += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    return found


def gpus_in(container: Mapping[str, Any]) -> int | None:
    """The devices that a container has, by its limits or else its requests."""
    resources = container.get("resources")
    for key in ("limits", "requests"):
        held = resources.get(key) if isinstance(resources, Mapping) else None
        counts = [whole(n) for name, n in held.items() if GPU.fullmatch(str(name))] if isinstance(held, Mapping) else []
        if any(counts):
            return next(filter(None, counts))
    return None


def _role(words: list[str], *held: Any) -> str:
    """The pool of a server: by its flags, else by labels or its name."""
    if found := _flagged(words):
        return found
    for one in held:
        metadata = one.get("metadata") if isinstance(one, Mapping) else None
        if isinstance(metadata, Mapping):
            labels = metadata.get("labels")
            labels = labels.items() if isinstance(labels, Mapping) else ()
            label = next((str(v) for k, v in labels if str(k).rpartition("/")[2] == "role"), "")
            for text in (label, str(metadata.get("name", ""))):
                if found := _ROLE.search(text):
                    return found[1]
    return ""


def _flagged(words: list[str]) -> str:
    """The pool that the flags of a server state."""
    text = " ".join(words)
    if found := re.search(r"--disaggregation[-_]mode[ =](prefill|decode)", text):
        return found[1]
    found = re.search(r"kv_role\W{1,5}kv_(producer|consumer)", text)
    return "" if found is None else "prefill" if found[1] == "producer" else "decode"


def _named(one: Mapping[str, Any]) -> str:
    metadata = one.get("metadata")
    return str(metadata.get("name", one.get("kind"))) if isinstance(metadata, Mapping) else str(one.get("kind"))
