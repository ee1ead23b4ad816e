"""The time of one collective on one fabric, as a single number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.formulas.collectives.schedules.algorithms import (
    SYNONYMS,
    Route,
    Routes,
    across_tiers,
    tier_schedules,
)
from perfgrid.formulas.collectives.schedules.fabric import Fabric, Place
from perfgrid.formulas.collectives.schedules.schedule import Coefficients, Schedule

from .collective_input import known, number, placed, read_options
from .nccl import nccl_fabrics, nccl_time

TIER_BY_TIER, LIBRARY = "tier_by_tier", "library"
_KEYWORDS = ("algorithm", "collective", "devices", "group", "options", "size", "topology")


@overload
def collective_time(*, return_algorithm: Literal[False] = False, **case: Any) -> float: ...
@overload
def collective_time(*, return_algorithm: Literal[True], **case: Any) -> tuple[float, str]: ...
def collective_time(*, return_algorithm: bool = False, **case: Any) -> float | tuple[float, str]:
    """Time of one collective on one fabric.

    Source: thakur2005 for the cost model; every schedule names its own.

    Parameters
    ----------
    return_algorithm
        Return the algorithm, too.
    **case
        ``collective``: all_reduce, reduce_scatter, all_gather, all_to_all, broadcast or send_recv.

        ``size`` in bytes: the buffer of a rank (all_reduce), the gathered output (all_gather), the input
        (reduce_scatter), the send buffer with the own part (all_to_all), the message (broadcast, send_recv).

        ``topology``: ``tiers`` from the innermost outwards (``kind``, ``shape``, ``bandwidth`` in byte/s per link and
        direction, and what the kind adds: bidirectional, oversubscription, global_links_per_router, twist, wraps,
        in_network), ``step_latency``, ``hop_latency`` and ``message_latency`` in s (of all tiers or of one; the last,
        0 by default, is the time to post each of several messages to different ranks). Optional: ``library``, a fabric
        of the catalog whose NCCL constants hold, with a ``device`` of the catalog.

        ``algorithm``: "best" (default), one of `algorithms_for`, or with a ``library`` "library", "library_ring",
        "library_tree" or "library_nvls".

        ``group``: ``size`` and ``stride`` of the ranks that communicate, all such groups at the same time. Default: all
        ranks.

        ``options``: ``chunks`` of a pipelined schedule (default: the best), ``imbalance`` (most over mean received
        bytes).

        ``devices``: checked against the shapes.

    Returns
    -------
    float or tuple of float and str
        Seconds; with ``return_algorithm`` also the algorithm.

    Raises
    ------
    PerfgridError
        For anything missing, unknown or impossible, in one line.

    Examples
    --------
    >>> import perfgrid as pg
    >>> tier = {"kind": "switch", "shape": [8], "bandwidth": 450e9, "in_network": False}
    >>> fabric = {"tiers": [tier], "step_latency": 1e-6, "hop_latency": 0.0}
    >>> time = pg.collective_time(collective="all_reduce", topology=fabric, size=1e9)
    >>> round(time * 1e3, 2)
    3.89
    """
    algorithm, time = collective_choice(**case)
    return (time, algorithm) if return_algorithm else time


def collective_choice(**case: Any) -> tuple[str, float]:
    """The algorithm that `collective_time` takes and its time in s; arguments and errors as there."""
    known(case, _KEYWORDS, "collective_time", required=("collective", "topology", "size"))
    collective, algorithm = case["collective"], case.get("algorithm", "best")
    fabric, places = placed(collective, case["topology"], case.get("group"), case.get("devices"))
    size, options = number(case["size"], "size", minimum=0), read_options(case.get("options"))
    routes = across_tiers(places, collective)
    legal = _legal(routes, places)
    if str(algorithm).partition("_")[0] == LIBRARY:
        return str(algorithm), _nccl_time(str(algorithm), fabric, places, collective, size)
    if algorithm == "best":
        times = {name: _time(route, places, collective, size, options) for name, route in legal.items()}
        return min(times.items(), key=lambda item: item[1])
    name = SYNONYMS.get((collective, str(algorithm)), str(algorithm))
    if name not in legal:
        raise _refusal(algorithm, routes.get(name), collective, fabric, sorted(legal))
    return name, _time(legal[name], places, collective, size, options)


def algorithms_for(
    topology: Mapping[str, Any], collective: str, group: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Names of the legal algorithms of a collective for a group, sorted; PerfgridError as `collective_time`."""
    _, places = placed(collective, topology, group)
    return tuple(sorted(_legal(across_tiers(places, collective), places)))


def collective_coefficients(
    topology: Mapping[str, Any], collective: str, group: Mapping[str, int] | None = None
) -> dict[str, Coefficients]:
    """Latency, inverse bandwidth and chunk terms (s, s/byte) of every legal algorithm but ``tier_by_tier``.

    PerfgridError as `collective_time`.
    """
    _, places = placed(collective, topology, group)
    return {n: r.on(places) for n, r in across_tiers(places, collective).items() if isinstance(r, Route)}


# ---- times ----------------------------------------------------------------------------------------------------------


def _legal(routes: Routes, places: Sequence[Place]) -> dict[str, Route | None]:
    """Algorithms that exist; None stands for every tier with its own fastest."""
    found: dict[str, Route | None] = {n: r for n, r in routes.items() if isinstance(r, Route)}
    return found | ({TIER_BY_TIER: None} if sum(p.members > 1 for p in places) > 1 else {})


def _time(
    route: Route | None, places: Sequence[Place], collective: str, size: float, options: Mapping[str, float]
) -> float:
    """Time of a route; where there is none, every tier takes its own fastest schedule."""
    if route is None:
        offers = ([s for s in o.values() if isinstance(s, Schedule)] for o in tier_schedules(places, collective))
        return sum(
            min(_time(Route((s,)), (place,), collective, size, options) for s in offer)
            for offer, place in zip(offers, places, strict=True)
        )
    adapted = Route(tuple(_adapted(s, collective, options) for s in route.parts), route.how)
    return float(adapted.on(places).time(size))


def _adapted(schedule: Schedule, collective: str, options: Mapping[str, float]) -> Schedule:
    if "chunks" in options:
        schedule = schedule.chunked(options["chunks"])
    if "imbalance" in options and collective == "all_to_all":
        schedule = schedule.load(options["imbalance"])  # the rank that receives most decides
    return schedule


def _nccl_time(algorithm: str, fabric: Fabric, places: Sequence[Place], collective: str, size: float) -> float:
    """Time of NCCL; its nodes are the domains of the innermost tier."""
    if fabric.nccl is None:
        raise PerfgridError(
            f"algorithm: {algorithm!r} needs a topology that names its library, the catalog's entry whose constants "
            f"hold; legal: {', '.join(nccl_fabrics())}"
        )
    return nccl_time(*fabric.nccl, places, collective, size, algorithm)


def _refusal(algorithm: Any, reason: Any, collective: str, fabric: Fabric, legal: list[str]) -> PerfgridError:
    """Why an algorithm is not legal, and what is."""
    what = reason if isinstance(reason, str) else "does not exist" + nearest(str(algorithm), ["best", *legal], 1)
    return PerfgridError(
        f"algorithm: {algorithm!r} for {collective} on {fabric.name} {what}; legal: {', '.join(['best', *legal])}"
    )
