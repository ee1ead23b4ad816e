"""The hierarchical roofline: what a kernel waits for, and the time that each resource accounts for."""

from functools import reduce

from perfgrid.engine import xp
from perfgrid.formulas.axes import INNER, table

RESOURCES = INNER.labels["resource"]
EQUAL = 1e-5  # times that differ by less count as equal, so that rounding does not decide who waits for what


def roofline_time(*times):
    """Time of a kernel whose arithmetic and traffic at every level overlap: the slowest (Williams 2009)."""
    return reduce(lambda a, b: xp.maximum(a, b), times)


def roofline_shares(*, arithmetic=0.0, registers=0.0, shared_memory=0.0, l2=0.0, epilogue=0.0, hbm=0.0, launch=0.0):
    """Time of kernels split by the resource that they wait for, along the axis ``resource``.

    On chip a kernel takes as long as its slowest level, and then an ``epilogue`` in which results go to the cache; its
    memory traffic runs beside all of that. The time goes to the slowest resource (on chip the first of equals), the
    epilogue to the cache; launches are added.
    """
    levels = (arithmetic, registers, shared_memory, l2)
    time = roofline_time(*levels)
    whole = xp.maximum(time + epilogue, hbm)  # what the shares add up to
    streams = hbm > (time + epilogue) * (1 + EQUAL)
    unclaimed, shares = xp.where(streams, 0.0, 1.0), []
    for number, level in enumerate(levels, 1):  # the last one takes what is left: rounded off, time exceeds all levels
        claimed = xp.where(level >= time * (1 - EQUAL), unclaimed, 0.0) if number < len(levels) else unclaimed
        shares.append(claimed * (whole - epilogue))
        unclaimed = unclaimed - claimed
    shares[-1] = shares[-1] + xp.where(streams, 0.0, epilogue)
    shares += [xp.where(streams, whole, 0.0), launch]
    return table("resource", **dict(zip(RESOURCES, shares, strict=True)))
