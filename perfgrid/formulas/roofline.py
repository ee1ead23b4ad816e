"""The roofline: what a kernel waits for, and the time that each resource accounts for."""

from perfgrid.engine import xp

from .axes import table


def roofline_time(arithmetic, hbm, l2):
    """Time of a kernel that overlaps its arithmetic with its memory traffic: the slowest of them (Williams 2009)."""
    return xp.maximum(arithmetic, xp.maximum(hbm, l2))


def roofline_shares(arithmetic, hbm, l2, launch):
    """Time of kernels split by the resource that they wait for, along the axis ``resource``.

    Each kernel's roofline time goes to its slowest resource (ties to the first); launches are added. The sum over the
    axis is ``roofline_time + launch``.
    """
    time = roofline_time(arithmetic, hbm, l2)
    computes = arithmetic >= time
    streams = ~computes & (hbm >= time)
    return table(
        "resource",
        arithmetic=xp.where(computes, time, 0.0),
        hbm=xp.where(streams, time, 0.0),
        l2=xp.where(computes | streams, 0.0, time),
        launch=launch,
    )
