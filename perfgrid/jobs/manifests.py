"""Manifests of Kubernetes that start a training job, as the script that they start: PyTorchJob, MPIJob, JobSet.

Pods are the nodes of a job, their limits of accelerators its devices. The command of the first pod with one is the
launch; variables of its container stand before it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from perfgrid.catalog.reading import from_yaml
from perfgrid.engine.errors import PerfgridError

KINDS = ("PyTorchJob", "MPIJob", "JobSet")
ACCELERATORS = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "habana.ai/gaudi")
_KIND = re.compile(rf"^kind:\s*[\"']?({'|'.join(KINDS)})\b", re.MULTILINE)


def as_script(text: str, where: str) -> str:
    """The script that a manifest starts, with a line for what it allocates; any other text as it is."""
    if not _KIND.search(text):
        return text
    documents = [one for one in from_yaml(text, where, every=True) if isinstance(one, Mapping)]
    jobs = [one for one in documents if one.get("kind") in KINDS]
    if len(jobs) != 1:
        raise PerfgridError(f"{where}holds {len(jobs)} jobs: give a file of one")
    kind, spec = str(jobs[0]["kind"]), _table(jobs[0].get("spec"))
    pods = [(count, own) for count, own in _pods(kind, spec) if count > 0]
    working = [(count, own) for count, own in pods if _accelerators(own)]
    commands = [own for _, own in pods if own.get("command") or own.get("args")]
    if not commands:
        raise PerfgridError(f"{where}{f'{kind} {_name(jobs[0])}'.strip()} states no command")
    per_node = {_accelerators(own) for _, own in working}
    lines = []
    if len(per_node) == 1:
        nodes, gpus = sum(count for count, _ in working), per_node.pop()
        lines = [
            f"#{kind} --nodes={nodes} --gpus-per-node={gpus}",
            f"export PET_NNODES={nodes}",
            f"export WORLD_SIZE={nodes}",
        ]
    for variable in commands[0].get("env") or ():
        if isinstance(variable, Mapping) and isinstance(variable.get("value"), (str, int)):
            lines.append(f"export {variable.get('name')}={shlex.quote(str(variable['value']))}")
    words = [str(word) for key in ("command", "args") for word in commands[0].get(key) or ()]
    if len(words) > 2 and words[1].lstrip("-").endswith("c"):  # a shell with its script
        return "\n".join([*lines, words[2]]) + "\n"
    return "\n".join([*lines, shlex.join(words)]) + "\n"


def _pods(kind: str, spec: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """How many pods of each sort there are, and the first container of one."""
    if kind == "JobSet":
        for job in spec.get("replicatedJobs") or ():
            inner = _table(_table(_table(job).get("template")).get("spec"))
            pods = _whole(_table(job).get("replicas", 1)) * _whole(inner.get("parallelism", 1))
            yield pods, _container(inner)
        return
    for replica in _table(spec.get("pytorchReplicaSpecs" if kind == "PyTorchJob" else "mpiReplicaSpecs")).values():
        yield _whole(_table(replica).get("replicas", 1)), _container(_table(replica))


def _container(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = _table(_table(holder.get("template")).get("spec")).get("containers") or [{}]
    return _table(containers[0])


def _accelerators(container: Mapping[str, Any]) -> int:
    limits = _table(_table(container.get("resources")).get("limits"))
    return next((_whole(limits[name]) for name in ACCELERATORS if name in limits), 0)


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int:
    return int(value) if re.fullmatch(r"\d{1,6}", str(value)) else 0


def _name(job: Mapping[str, Any]) -> str:
    return str(_table(job.get("metadata")).get("name", ""))
