"""What starts the processes of a job, and so how many devices it has: Slurm, srun, mpirun, torchrun, environments.

An allocation (``#SBATCH``), a step (``srun``, ``mpirun``) and a launcher of a node (``torchrun``) may stand around one
program. The innermost one states the processes; the user is asked where two lead to different numbers of devices. A
number is never made from a batch.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from perfgrid.engine.errors import PerfgridError

from .shell import is_unread

_DIRECTIVE = re.compile(r"#(SBATCH|PyTorchJob|MPIJob|JobSet)[ \t]+(.*)")
_BEHIND_STEP = re.compile(r"(?<![\w/.-])(srun|mpirun|mpiexec)\b([^\"'\n;|&]*)")
_HANDS_ON = re.compile(r"\b(?:ba|z|da|k)?sh\s+(?:-\w+\s+)*-\w*c\s*$")  # a shell that is given the words behind
_USED = re.compile(r"\$\{?(\w+)\}?")
_NEGATIVE = re.compile(r"-\d+(\.\d+)?")  # of the words with a dash the only ones that are a value
_PROGRAM = re.compile(r"(.*/)?(python[\d.]*|torchrun|torch\.distributed\.\w+|srun|mpirun|mpiexec)|.*\.(py|sh)")
_SCRIPT = re.compile(r"<<-?\s*[\"']?[A-Za-z_]")  # a script within another one begins
_GPUS = re.compile(r"(?:[\w.-]+:)*(\d+)")  # gpu:8, gpu:h100:8, h100:8, 8
STEPS = ("srun", "mpirun", "mpiexec")
ELASTIC = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
QUANTITIES = {  # option -> what it states
    "srun": {
        **dict.fromkeys(("nodes", "N"), "nodes"),
        **dict.fromkeys(("ntasks", "n"), "tasks"),
        **dict.fromkeys(("ntasks-per-node", "tasks-per-node"), "tasks_per_node"),
        "gpus-per-node": "gpus_per_node",
        "gres": "gpus_per_node",
        **dict.fromkeys(("gpus", "G"), "gpus"),
        "gpus-per-task": "gpus_per_task",
    },
    "mpirun": {
        **dict.fromkeys(("np", "n", "c"), "tasks"),
        **dict.fromkeys(("npernode", "N", "ppn", "perhost"), "tasks_per_node"),
    },
    "torchrun": {"nnodes": "nodes", "nproc-per-node": "tasks_per_node"},
}
QUANTITIES["mpiexec"] = QUANTITIES["mpirun"]
ALONE = {  # options without a value
    "srun": (
        *("l", "u", "v", "Q", "k", "O", "s", "label", "unbuffered", "verbose", "quiet", "no-kill", "overcommit", "pty"),
        *("exclusive", "overlap", "multi-prog", "kill-on-bad-exit", "immediate", "propagate", "container-writable"),
        *("container-mount-home", "no-container-mount-home", "container-remap-root", "no-container-remap-root"),
        *("no-container-entrypoint", "container-entrypoint", "spread-job", "contiguous", "use-min-nodes", "E", "Z"),
        *("requeue", "no-requeue", "hold", "H", "parsable", "reboot", "get-user-env", "exact", "oversubscribe", "nice"),
        *(
            "no-allocate",
            "preserve-env",
            "disable-status",
            "X",
            "K",
            "test-only",
            "resv-ports",
            "send-libs",
            "external",
        ),
    ),
    "mpirun": (
        *("allow-run-as-root", "oversubscribe", "report-bindings", "tag-output", "v", "q", "bind-to-none", "l"),
        *("nooversubscribe", "use-hwthread-cpus", "verbose", "quiet", "display-map", "display-allocation"),
        *("display-devel-map", "display-devel-allocation", "display-topo", "timestamp-output", "xml", "nolocal"),
        *("do-not-launch", "do-not-resolve", "debug-daemons", "debug-devel", "leave-session-attached", "d", "pernode"),
        *("enable-recovery", "disable-recovery", "continuous", "report-child-jobs-separately", "get-stack-traces"),
        *("bynode", "byslot", "bycore", "bysocket", "bind-to-core", "bind-to-socket", "merge-stderr-to-stdout"),
        *("genvall", "genvnone", "envall", "envnone", "prepend-rank", "print-rank-map", "print-all-exitcodes"),
    ),
    "torchrun": ("standalone", "no-python", "run-path", "m", "module", "use-env"),
}
ALONE["mpiexec"] = ALONE["mpirun"]
TWO = ("mca", "gmca", "genv", "env", "omca", "prtemca")  # options of mpirun with two values
SLURM = {  # quantity -> the variables that Slurm makes of it
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"),
    "tasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "tasks_per_node": ("SLURM_NTASKS_PER_NODE",),
    "gpus_per_node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gpus": ("SLURM_GPUS",),
    "gpus_per_task": ("SLURM_GPUS_PER_TASK",),
}
LOCAL = ("GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS_PER_NODE", "N_GPUS_PER_NODE", "GPU_PER_NODE")
NODES = ("NNODES", "NUM_NODES", "N_NODES")


@dataclass(frozen=True)
class Layer:
    """What one launcher states: quantities with the words that state them, and options whose value is not a number."""

    stated: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    def within(self, outer: Layer) -> Layer:
        """A step within an allocation: what it leaves open is that of the allocation."""
        stated, words = {**outer.stated, **self.stated}, {**outer.words, **self.words}
        if {"nodes", "tasks_per_node"} & self.stated.keys() and "tasks" not in self.stated:
            stated.pop("tasks", None)
        if "tasks" in self.stated and "tasks_per_node" not in self.stated:
            stated.pop("tasks_per_node", None)
        return Layer(stated, words, (*self.unread, *outer.unread))

    def said(self, *names: str) -> str:
        """The words that state some quantities."""
        return " and ".join(dict.fromkeys(self.words[name] for name in names if name in self.words))


@dataclass(frozen=True)
class Launched:
    """Devices as launchers state them: ``values`` of nodes, devices_per_node and devices, and the words behind each.

    ``other``: another number of devices that further words state, which contradicts the first. ``unread``: options
    whose value is no number, such as an elastic range.
    """

    values: Mapping[str, int] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    other: tuple[int, str] | None = None
    unread: tuple[str, ...] = ()
    level: int = 0  # 0: an allocation or variables; 1: a step; 2: a launcher of a node


@lru_cache(maxsize=8)
def allocation_of(texts: tuple[str, ...]) -> Layer:
    """The allocation that ``#SBATCH`` lines of some texts, or a manifest, ask for; later ones replace earlier ones."""
    words, before = list[str](), "#SBATCH "
    for text in texts:
        for name, line in (row[:2] for row in _directives(text) if row[2]):
            before = "#SBATCH " if name == "SBATCH" else f"{name} "
            try:
                words += shlex.split(line, comments=True)
            except ValueError:
                words += line.split()
            words.append("-")  # a value stands on the line of its option
    found = _read(words, "srun", before, alone=False)[0]
    stated = dict(found.stated)
    if words and "nodes" not in stated and not any("-N" in word or "--nodes" in word for word in found.unread):
        tasks, per_node = stated.get("tasks"), stated.get("tasks_per_node")
        stated["nodes"] = -(-tasks // per_node) if tasks and per_node else 1
    if "tasks" not in stated and "tasks_per_node" in stated:
        stated |= {"tasks": stated["nodes"] * stated["tasks_per_node"]} if "nodes" in stated else {}
    return Layer(stated, found.words, found.unread)


def _directives(text: str) -> Iterator[tuple[str, str, bool]]:
    """The directives of a text: whose, the options, and whether they count: Slurm reads none behind a command."""
    counts = True
    for line in text.splitlines():
        if found := _DIRECTIVE.match(line):
            yield found[1], found[2], counts or found[1] != "SBATCH"
        elif line.strip() and not line.lstrip().startswith("#"):
            counts = _SCRIPT.search(line) is not None


def late_directives(text: str) -> list[str]:
    """The ``#SBATCH`` lines behind the first command, which Slurm does not read."""
    return [f"#{name} {line.strip()}" for name, line, counts in _directives(text) if not counts]


def variables_of(allocation: Layer) -> dict[str, str]:
    """The variables that Slurm sets in the scripts of an allocation."""
    found = {name: str(n) for key, n in allocation.stated.items() for name in SLURM[key] if name}
    if "gpus" in allocation.stated and "SLURM_GPUS_ON_NODE" not in found:
        found["SLURM_GPUS_ON_NODE"] = str(allocation.stated["gpus"] // allocation.stated.get("nodes", 1))
    return found


def launched_by(
    words: list[str], allocation: Layer, variables: Mapping[str, str], around: Layer | None = None
) -> tuple[Launched, list[str]]:
    """The devices of a command, and its words from the program on that launchers start.

    ``around``: the step of the script that starts command strings, of which the command may be one.
    """
    step, elastic, rest = Layer(), None, words
    begin = _first(rest, STEPS)
    if begin is not None:
        step, behind = _read(rest[begin + 1 :], _name(rest[begin]), f"{_name(rest[begin])} ")
        rest = [*rest[:begin], *behind]
    elif around is not None:
        step = around
    place = _first(rest, ELASTIC)
    if place is not None:
        elastic, behind = _read(rest[place + 1 :], "torchrun", "")
        rest = behind
    level = 2 if elastic is not None else 1 if begin is not None or step.stated else 0
    return replace(_devices(allocation, step, elastic, variables), level=level), rest


def chosen(launched: Launched, devices: int | None, where: str) -> Mapping[str, int]:
    """What launchers state; PerfgridError where two contradict each other and the user does not choose one of them."""
    if launched.other is None or not launched.values:
        return launched.values
    number, words = launched.other
    first = launched.values.get("devices")
    if devices is None or devices not in (number, first):
        raise PerfgridError(
            f"{where}{launched.origins.get('devices') or launched.origins['nodes']} contradicts {words}: "
            f"{first or 'no'} or {number or 'other'} devices: choose with --devices"
        )
    return {} if devices == number else launched.values


def _first(words: list[str], names: Iterable[str]) -> int | None:
    return next((i for i, word in enumerate(words) if _name(word) in names), None)


def _name(word: str) -> str:
    return word.rpartition("/")[2]


def _read(words: list[str], program: str, before: str, alone: bool = True) -> tuple[Layer, list[str]]:
    """What the options of a launcher state, and the words behind them; not ``alone``: all words are of options."""
    stated, said, by, unread = dict[str, int](), dict[str, str](), dict[str, str](), []
    i = 0
    while i < len(words):
        word = words[i]
        if not word.startswith("-") or word == "-":
            if alone:
                break
            i += 1
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if program == "srun" and not word.startswith("--") and len(name) > 1 and not equals:
            name, equals, value = name[0], "=", name[1:]  # -N4, -K1
        name = name.replace("_", "-")
        i += 1
        if not equals and name not in ALONE[program]:
            taken = _values(words[i : i + (2 if name in TWO else 1)])
            value, i = (taken[0] if taken else ""), i + len(taken)
        if (quantity := QUANTITIES[program].get(name)) is None or (name == "gres" and "gpu" not in value):
            continue
        shown = f"{before}{word if equals or not value else f'{word} {value}'}"
        number = _GPUS.fullmatch(value) if quantity.startswith("gpus") else re.fullmatch(r"(\d+)", value)
        if number and stated.get(quantity, int(number[1])) != int(number[1]) and by[quantity] != name:
            unread.append(f"{said.pop(quantity)} and {shown}")  # two options that contradict each other
            del stated[quantity]
        elif number and int(number[1]) > 0 and len(number[1]) < 8:
            by[quantity] = name
            stated[quantity], said[quantity] = int(number[1]), shown
        else:
            stated.pop(quantity, None)
            unread.append(shown if not is_unread(shown) else f"{before}{word.partition('=')[0]}")
    return Layer(stated, said, tuple(unread)), words[i:]


def _values(behind: list[str]) -> list[str]:
    """Of the words behind an option those that could be its values: no option, and no program that is started."""
    no_value = (
        i
        for i, word in enumerate(behind)
        if (word.startswith("-") and not _NEGATIVE.fullmatch(word)) or _PROGRAM.fullmatch(word)
    )
    return behind[: next(no_value, len(behind))]


def step_around(text: str, variables: Mapping[str, str]) -> Layer | None:
    """The one step of a script that states something, by the words before a quote: ``srun -N 2 bash -c "..."``."""
    joined = re.sub(r"\\\r?\n", " ", re.sub(r"(?m)^\s*#.*$", "", text))
    found = []
    steps = [(name, words) for name, words in _BEHIND_STEP.findall(joined) if _HANDS_ON.search(words)]
    for name, words in steps:
        put_in = _USED.sub(lambda used: variables.get(used[1], used[0]), words)
        found.append(_read(put_in.split(), name, f"{name} ")[0])
    stating = [layer for layer in found if layer.stated or layer.unread]
    return stating[0] if len(stating) == 1 else None


def _devices(allocation: Layer, step: Layer, elastic: Layer | None, variables: Mapping[str, str]) -> Launched:
    """The devices that layers state together."""
    outer = step.within(allocation)
    around = _of_tasks(outer, elastic is None)
    if elastic is None:
        if not around.values:
            around = replace(_of_environment(variables), unread=around.unread)
        return around
    values, origins = dict[str, int](), dict[str, str]()
    nodes = elastic.stated.get("nodes", None if any("nnodes" in word for word in elastic.unread) else 1)
    per_node = elastic.stated.get("tasks_per_node")
    if nodes is not None:
        values["nodes"], origins["nodes"] = nodes, elastic.words.get("nodes", "torchrun without --nnodes")
    if per_node is not None:
        values["devices_per_node"], origins["devices_per_node"] = per_node, elastic.words["tasks_per_node"]
    elif any("nproc" in word for word in elastic.unread) and "devices_per_node" in around.values:
        values["devices_per_node"] = around.values["devices_per_node"]
        origins["devices_per_node"] = around.origins["devices_per_node"]
    elif not any("nproc" in word for word in elastic.unread):
        values["devices_per_node"], origins["devices_per_node"] = 1, "torchrun without --nproc-per-node"
    open_ = tuple(word for word in elastic.unread if ("nnodes" in word) or "devices_per_node" not in values)
    if {"nodes", "devices_per_node"} <= values.keys():
        values["devices"] = values["nodes"] * values["devices_per_node"]
        origins["devices"] = " and ".join(dict.fromkeys((origins["nodes"], origins["devices_per_node"])))
    other = None
    for name in ("devices", "nodes"):
        if other is None and name in values and around.values.get(name, values[name]) != values[name]:
            other = (around.values.get("devices", 0), around.origins[name])
    return Launched(values, origins, other, open_)


def _of_tasks(layer: Layer, alone: bool) -> Launched:
    """The devices of an allocation or a step; ``alone``: its processes are the program's, one for each device."""
    of, values, origins = layer.stated, dict[str, int](), dict[str, str]()
    nodes, tasks = of.get("nodes"), of.get("tasks")
    if tasks is None and nodes and "tasks_per_node" in of:
        tasks = nodes * of["tasks_per_node"]
    if nodes is None and tasks and "tasks_per_node" in of and tasks % of["tasks_per_node"] == 0:
        nodes = tasks // of["tasks_per_node"]
    by_tasks = layer.said("nodes", "tasks", "tasks_per_node")
    if tasks and "gpus_per_task" in of:
        values["devices"], origins["devices"] = (
            tasks * of["gpus_per_task"],
            layer.said("nodes", "tasks", "tasks_per_node", "gpus_per_task"),
        )
    elif "gpus" in of:
        values["devices"], origins["devices"] = of["gpus"], layer.said("gpus")
    elif "gpus_per_node" in of and nodes:
        values["devices"], origins["devices"] = nodes * of["gpus_per_node"], layer.said("nodes", "gpus_per_node")
    several = tasks is not None and tasks > (nodes or 0) and (nodes is not None or tasks > 1)
    other = None
    if alone and several and "gpus_per_task" not in of:
        if "devices" not in values:
            values["devices"], origins["devices"] = tasks or 0, by_tasks
        elif values["devices"] != tasks:
            other = (tasks or 0, by_tasks)
    if nodes:
        values["nodes"], origins["nodes"] = (
            nodes,
            layer.said("nodes", "tasks", "tasks_per_node") or "the one node of an allocation",
        )
        if "devices" in values and values["devices"] % nodes == 0:
            values["devices_per_node"], origins["devices_per_node"] = values["devices"] // nodes, origins["devices"]
    return Launched(values if "devices" in values or nodes else {}, origins, other, layer.unread)


def _of_environment(variables: Mapping[str, str]) -> Launched:
    """The devices that variables of a script state by the names that PyTorch gives them."""

    def numbers(names: Iterable[str]) -> Iterator[tuple[str, int]]:
        for name in names:
            if re.fullmatch(r"[1-9]\d{0,6}", variables.get(name, "")):
                yield f"{name}={variables[name]}", int(variables[name])

    for word, world in numbers(("WORLD_SIZE",)):
        return Launched({"devices": world}, {"devices": word})
    for word, nodes in numbers(NODES):
        for local, per_node in numbers(LOCAL):
            origins = {"nodes": word, "devices_per_node": local, "devices": f"{word} and {local}"}
            return Launched({"nodes": nodes, "devices_per_node": per_node, "devices": nodes * per_node}, origins)
    return Launched()
