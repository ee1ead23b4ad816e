"""The bandwidths that benchmarks print."""

from __future__ import annotations

from typing import Any

from perfgrid.engine import xp
from perfgrid.engine.errors import PerfgridError

from .algorithms import COLLECTIVES


def algorithm_bandwidth(size: Any, time: Any) -> Any:
    """Message over time, in byte/s. Source: nccltests2024."""
    return size / time


def bus_bandwidth(collective: str, size: Any, n: Any, time: Any) -> Any:
    """Algorithm bandwidth times what a ring sends per byte of message, in byte/s: comparable to a link's.

    Reductions in the switch may exceed the link. PerfgridError for an unknown collective. Source: nccltests2024.
    """
    if collective not in COLLECTIVES:
        raise PerfgridError(f"collective: {collective!r} is unknown; legal: {', '.join(COLLECTIVES)}")
    share = (n - 1) / n
    factor = {"all_reduce": 2 * share, "broadcast": 1.0, "send_recv": 1.0}.get(collective, share)
    return algorithm_bandwidth(size, time) * xp.asarray(factor)
