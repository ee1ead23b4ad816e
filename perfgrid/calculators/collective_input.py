"""Reading the arguments of `collective_time`; an error is one line: the place, what was found, what is legal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.formulas.collectives.schedules.algorithms import COLLECTIVES
from perfgrid.formulas.collectives.schedules.fabric import KINDS, OUTER, Fabric, Place, Tier, place, shape_problem

from .nccl import nccl_fabrics

OPTIONS = ("approximate", "chunks", "imbalance")
TOPOLOGY = ("device", "hop_latency", "library", "message_latency", "step_latency", "tiers")
TIER = ("bandwidth", "hop_latency", "kind", "message_latency", "shape", "step_latency")
LATENCIES = ("step_latency", "hop_latency", "message_latency")
OF_KIND = {
    "ring": ("bidirectional",),
    "switch": ("in_network",),
    "rail": ("in_network", "oversubscription"),
    "rail_only": ("in_network",),
    "fat_tree": ("in_network", "oversubscription", "own_ports"),
    "dragonfly": ("global_links_per_router",),
    "twisted_torus": ("twist",),
    "torus": ("wraps",),
}
REQUIRED_OF_KIND = ("global_links_per_router", "twist")


def placed(
    collective: Any, topology: Any, group: Mapping[str, Any] | None, devices: Any = None
) -> tuple[Fabric, tuple[Place, ...]]:
    """The fabric and where the group lies on it; PerfgridError for anything illegal. Source: narayanan2021."""
    if collective not in COLLECTIVES:
        raise PerfgridError(
            f"collective: {collective!r} is unknown{nearest(str(collective), COLLECTIVES)}; "
            f"legal: {', '.join(COLLECTIVES)}"
        )
    fabric = read_fabric(topology)
    if devices is not None and whole(devices, "devices") != fabric.size:
        raise PerfgridError(
            f"topology: the shapes of {fabric.name} make {fabric.size} devices, but devices is {devices!r}"
        )
    if group is None:
        return fabric, place(fabric, fabric.size, 1)
    known(group, ("size", "stride"), "group", required=("size",))
    size, stride = whole(group["size"], "group.size"), whole(group.get("stride", 1), "group.stride")
    return fabric, place(fabric, size, stride)


def read_options(options: Mapping[str, Any] | None) -> dict[str, float]:
    """Numbers of the options that change a time; PerfgridError for an unknown one. Source: thakur2005."""
    known(options or {}, OPTIONS, "options")
    found = {}
    for name, value in (options or {}).items():
        if name == "chunks":
            found[name] = float(whole(value, "options.chunks"))
        if name == "imbalance":
            found[name] = number(value, "options.imbalance", minimum=1)
    return found


def read_fabric(topology: Mapping[str, Any]) -> Fabric:
    """A fabric from the ``topology`` of `collective_time`; PerfgridError for anything unknown or impossible."""
    known(topology, TOPOLOGY, "topology", required=("tiers",))
    tiers = topology["tiers"]
    if not isinstance(tiers, (list, tuple)) or not tiers:
        raise PerfgridError(f"topology.tiers must be a list of tiers, innermost first, found {tiers!r}")
    latencies = {k: number(topology.get(k, 0.0), f"topology.{k}", minimum=0) for k in LATENCIES}
    found = [_tier(tier, f"topology.tiers[{i}]", latencies) for i, tier in enumerate(tiers)]
    if found[0].kind in OUTER:
        raise PerfgridError(
            f"topology.tiers[0].kind: {found[0].kind!r} joins domains of an inner tier and cannot be the innermost; "
            "put a switch, fully_connected or another kind before it"
        )
    return Fabric(tuple(found), _nccl_entries(topology))


def _nccl_entries(topology: Mapping[str, Any]) -> tuple[str, str] | None:
    """The catalog's fabric and device whose constants of NCCL hold; None where no library is named."""
    library, device = topology.get("library"), topology.get("device")
    if library is None:
        return None
    if library not in nccl_fabrics():
        raise PerfgridError(
            f"topology.library: {library!r} is unknown; legal, entries of the catalog: {', '.join(nccl_fabrics())}"
        )
    devices = load_catalog().tables["device"]
    if device not in devices:
        raise PerfgridError(
            f"topology.device: a library needs a device of the catalog, found {device!r}{nearest(str(device), devices)}"
        )
    return str(library), str(device)


def _tier(tier: Mapping[str, Any], where: str, latencies: Mapping[str, float]) -> Tier:
    if not isinstance(tier, Mapping) or "kind" not in tier:
        raise PerfgridError(f"{where} must be a table with kind, shape and bandwidth, found {tier!r}")
    kind = tier["kind"]
    if kind not in KINDS:
        raise PerfgridError(f"{where}.kind: {kind!r} is unknown{nearest(str(kind), KINDS)}; legal: {', '.join(KINDS)}")
    own = OF_KIND.get(kind, ())
    needed = tuple(name for name in own if name in REQUIRED_OF_KIND)
    known(tier, (*TIER, *own), f"{where} ({kind})", required=("kind", "shape", "bandwidth", *needed))
    shape, (least, most, _) = tier["shape"], KINDS[kind]
    if isinstance(shape, (list, tuple)) and least <= len(shape) <= most:  # the number of sides is checked first
        shape = [whole(side, f"{where}.shape") for side in shape]
    links = whole(tier["global_links_per_router"], f"{where}.global_links_per_router") if kind == "dragonfly" else 0
    if problem := shape_problem(kind, shape, links):
        raise PerfgridError(f"{where}.shape: {problem}")
    return Tier(
        kind=kind,
        shape=tuple(shape),
        bandwidth=number(tier["bandwidth"], f"{where}.bandwidth", above=0),
        **{k: number(tier.get(k, latencies[k]), f"{where}.{k}", minimum=0) for k in LATENCIES},
        bidirectional=_flag(tier.get("bidirectional", True), f"{where}.bidirectional"),
        oversubscription=_ratios(tier.get("oversubscription", 1.0), f"{where}.oversubscription"),
        global_links=links,
        in_network=_flag(tier.get("in_network", kind == "switch"), f"{where}.in_network"),
        wraps=_wraps(tier["wraps"], shape, f"{where}.wraps") if "wraps" in tier else (),
        twist=_twist(tier["twist"], shape, f"{where}.twist") if kind == "twisted_torus" else (),
        own_ports=_flag(tier.get("own_ports", False), f"{where}.own_ports"),
    )


def _twist(twist: Any, shape: Sequence[int], where: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Side -> shifts of the other coordinates where it wraps."""
    given = dict(twist) if isinstance(twist, Mapping) else {"": None}
    found = {}
    for key, shift in given.items():
        side = int(key) if str(key).isdigit() and int(key) < len(shape) else None
        shifts = tuple(shift) if isinstance(shift, (list, tuple)) and len(shift) == len(shape) else ()
        if side is None or not shifts or any(not isinstance(s, int) for s in shifts) or shifts[side]:
            example = [0] + [shape[-1] // 2] * (len(shape) - 1)
            raise PerfgridError(
                f"{where} maps the number of a side to {len(shape)} whole shifts, its own 0, as in "
                f'{{"0": {example}}}, found {twist!r}'
            )
        found[side] = shifts
    return tuple(sorted(found.items()))


def _wraps(value: Any, shape: Sequence[int], where: str) -> tuple[bool, ...]:
    """Which sides wrap around."""
    if not isinstance(value, (list, tuple)) or len(value) != len(shape):
        raise PerfgridError(f"{where} must have true or false for each of the {len(shape)} sides, found {value!r}")
    return tuple(_flag(v, where) for v in value)


def _ratios(value: Any, where: str) -> tuple[float, ...]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return tuple(number(v, where, minimum=1) for v in values)


def number(value: Any, where: str, *, minimum: float | None = None, above: float | None = None) -> float:
    """A finite number within its bound; PerfgridError else."""
    bound = f"at least {minimum:g}" if minimum is not None else f"greater than {above:g}"
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(float(value)):
        raise PerfgridError(f"{where} must be a finite number {bound}, found {value!r}")
    found = float(value)
    if (minimum is not None and found < minimum) or (above is not None and found <= above):
        raise PerfgridError(f"{where} must be {bound}, found {value!r}")
    return found


def whole(value: Any, where: str) -> int:
    """A whole number from 1; PerfgridError else."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value).is_integer():
        raise PerfgridError(f"{where} must be a whole number, found {value!r}")
    if float(value) < 1:
        raise PerfgridError(f"{where} must be at least 1, found {value!r}")
    return int(float(value))


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise PerfgridError(f"{where} must be true or false, found {value!r}")
    return value


def known(given: Any, legal: tuple[str, ...], where: str, required: tuple[str, ...] = ()) -> None:
    """PerfgridError unless a table has the required keys and no other than the legal ones."""
    if not isinstance(given, Mapping):
        raise PerfgridError(f"{where} must be a table of names and values, found {given!r}")
    for name in given:
        if name not in legal:
            raise PerfgridError(f"{where}: unknown key {name!r}{nearest(str(name), legal)}")
    for name in required:
        if name not in given:
            raise PerfgridError(f"{where} lacks {name!r}; it takes {', '.join(sorted(legal))}")
