"""Fabrics as tables: what the algorithms of many groups on a fabric ask of each tier, for evaluation in arrays.

The host lists the schedules of every group once (numbers without units, from shapes alone); latencies and bandwidths of
the tiers, which studies sweep and differentiate, enter through `table_coefficients`, the message through its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from perfgrid.engine import xp
from perfgrid.engine.errors import PerfgridError
from perfgrid.formulas.axes import INNER

from .algorithms import Route, across_tiers, tier_schedules
from .fabric import Fabric, place
from .schedule import UNAVAILABLE, Coefficients, Schedule

ALGORITHMS = INNER.labels["algorithm"]
HOW = ("in_sequence", "pipelined", "together")
MEMBERS = tuple(f.name for f in fields(Schedule))


@dataclass(frozen=True)
class Table:
    """Schedules of groups on one fabric, as arrays that broadcast against ``[group, algorithm, tier]``."""

    schedule: Schedule  # members [group, algorithm, tier]: algorithms of the whole group
    how: np.ndarray  # [group, algorithm]: index into HOW
    offered: np.ndarray  # [group, algorithm]: the algorithm exists for the group
    by_tier: Schedule  # members [group, algorithm, tier]: what each tier offers for its share of the message
    by_tier_offered: np.ndarray  # [group, algorithm, tier]
    placed: np.ndarray  # [group]: the group fills whole domains


def group_table(
    fabric: Fabric,
    collective: str,
    groups: Sequence[tuple[int, int]],
    tiers: int | None = None,
    spare: bool = False,
) -> Table:
    """The table of a collective for groups (size, stride); absent tiers up to ``tiers`` ask for nothing.

    A group that does not fill whole domains (see `place`, also for ``spare``) is marked in ``placed`` and has no
    algorithm. Source: narayanan2021.
    """
    shape = (len(groups), len(ALGORITHMS), tiers or len(fabric.tiers))
    whole, parts = np.zeros((len(MEMBERS), *shape)), np.zeros((len(MEMBERS), *shape))
    how, offered, on_tier = np.zeros(shape[:2], int), np.zeros(shape[:2], bool), np.zeros(shape, bool)
    placed = np.ones(len(groups), bool)
    on_tier[:, 0, len(fabric.tiers) :] = True  # nothing to do there
    for g, (size, stride) in enumerate(groups):
        try:
            places = place(fabric, size, stride, spare)
        except PerfgridError:
            placed[g] = False
            continue
        for name, route in across_tiers(places, collective).items():
            if isinstance(route, Route):
                a = ALGORITHMS.index(name)
                offered[g, a], how[g, a] = True, HOW.index(route.how)
                for t, schedule in enumerate(route.parts):
                    whole[:, g, a, t] = [float(getattr(schedule, m)) for m in MEMBERS]
        for t, offer in enumerate(tier_schedules(places, collective)):
            for name, schedule in offer.items():
                if isinstance(schedule, Schedule):
                    on_tier[g, ALGORITHMS.index(name), t] = True
                    parts[:, g, ALGORITHMS.index(name), t] = [float(getattr(schedule, m)) for m in MEMBERS]
    return Table(Schedule(*whole), how, offered, Schedule(*parts), on_tier, placed)


def table_coefficients(
    schedule: Any,
    how: Any,
    offered: Any,
    step_latency: Any,
    hop_latency: Any,
    bandwidth: Any,
    message_latency: Any = 0.0,
) -> Coefficients:
    """Coefficients ``[..., algorithm]`` from schedules ``[..., algorithm, tier]`` and the tiers' speed ``[..., tier]``.

    An algorithm that is not offered takes `UNAVAILABLE`. Source: cho2019blueconnect; rashidi2022themis.
    """
    speed = _by_algorithm(step_latency, hop_latency, bandwidth, message_latency)
    each = schedule.on(*speed)
    software = schedule.steps * speed[0]
    links = schedule.hops * speed[1] + schedule.messages * speed[3]
    total, most = Coefficients(*(xp.sum(m, axis=-1) for m in _members(each))), _largest(each)
    together_latency = xp.max(software, axis=-1) + xp.sum(links, axis=-1)
    pipelined, together = how == HOW.index("pipelined"), how == HOW.index("together")
    latency = xp.where(pipelined, total.latency - most.latency, xp.where(together, together_latency, total.latency))
    return Coefficients(
        xp.where(offered, latency, UNAVAILABLE),
        xp.where(offered, xp.where(pipelined | together, most.inverse_bandwidth, total.inverse_bandwidth), 0.0),
        xp.where(offered, xp.where(pipelined, most.latency, total.chunk_latency), 0.0),
        xp.where(
            offered,
            xp.where(pipelined, total.inverse_bandwidth - most.inverse_bandwidth, total.chunk_inverse_bandwidth),
            0.0,
        ),
    )


def tier_coefficients(
    by_tier: Any, offered: Any, step_latency: Any, hop_latency: Any, bandwidth: Any, message_latency: Any = 0.0
) -> Coefficients:
    """Coefficients ``[..., algorithm, tier]`` of every tier on its own. Source: cho2019blueconnect."""
    each = by_tier.on(*_by_algorithm(step_latency, hop_latency, bandwidth, message_latency))
    latency, *others = _members(each)
    return Coefficients(xp.where(offered, latency, UNAVAILABLE), *(xp.where(offered, o, 0.0) for o in others))


def tier_by_tier_time(coefficients: Coefficients, size: Any) -> Any:
    """Sum over tiers of the fastest algorithm on each; ``size`` broadcasts against ``[...]``.

    Source: cho2019blueconnect.
    """
    times = coefficients.time(xp.expand_dims(xp.asarray(size), axis=(-2, -1)))
    return xp.sum(xp.min(times, axis=-2), axis=-1)


def best_time(coefficients: Coefficients, size: Any) -> Any:
    """Time of the fastest algorithm of the whole group; ``size`` broadcasts against ``[...]``. Source: thakur2005."""
    return xp.min(coefficients.time(xp.expand_dims(xp.asarray(size), axis=-1)), axis=-1)


def _by_algorithm(*by_tier: Any) -> list[Any]:
    """Values ``[..., tier]`` as ``[..., algorithm, tier]``; a number stays one."""
    return [x if xp.ndim(x) == 0 else xp.expand_dims(xp.asarray(x), axis=-2) for x in by_tier]


def _members(coefficients: Coefficients) -> tuple[Any, ...]:
    return tuple(getattr(coefficients, f.name) for f in fields(Coefficients))


def _largest(coefficients: Coefficients) -> Coefficients:
    return Coefficients(*(xp.max(m, axis=-1) for m in _members(coefficients)))
