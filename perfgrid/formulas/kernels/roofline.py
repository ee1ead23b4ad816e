"""The hierarchical roofline: what a kernel waits for, and the time that each resource accounts for.

The roofline of Williams 2009 bounds the rate of a kernel by min(peak rate, intensity · bandwidth). As a time this is
max(FLOPs / peak rate, bytes / bandwidth): arithmetic and traffic overlap. The hierarchical roofline takes the maximum
over all levels of memory.
"""

from functools import reduce

from perfgrid.engine import xp
from perfgrid.formulas.axes import INNER, table, total

RESOURCES = INNER.labels["resource"]
EQUAL = 1e-5  # times that differ by less count as equal, so that rounding does not decide who waits for what


def roofline_time(*times):
    """Time of a kernel whose arithmetic and traffic at every level overlap: the longest."""
    return reduce(lambda a, b: xp.maximum(a, b), times)


def longest(*levels):
    """The longest of the times of several levels, and for each level 1 where it is the first of the longest, else 0."""
    time, left, claims = roofline_time(*levels), 1.0, []
    for level in levels[:-1]:
        claims.append(xp.where(level >= time * (1 - EQUAL), left, 0.0))
        left = left - claims[-1]
    return time, (*claims, left)  # the last takes what is left: rounded off, the time exceeds all levels


def by_resource(*shares):
    """Times along the axis ``resource``: of levels on chip, and of memory and launches where they are given."""
    rest = (0.0,) * (len(RESOURCES) - len(shares))
    return table("resource", **dict(zip(RESOURCES, (*shares, *rest), strict=True)))


def with_memory(chip, hbm, launch):
    """Time of kernels by resource whose memory traffic runs beside their work on chip: the longer, and launches.

    ``chip`` lies along the axis ``resource`` and adds up to the time on chip, which is not 0.
    """
    time = total(chip, "resource")
    streams = hbm > time * (1 + EQUAL)
    on_chip = xp.where(streams, 0.0, xp.maximum(1.0, hbm / time)) * chip
    in_memory = xp.where(streams, xp.maximum(time, hbm), 0.0)
    return on_chip + by_resource(0.0, 0.0, 0.0, 0.0, in_memory, launch)


def roofline_shares(*, hbm=None, launch=0.0, **on_chip):
    """Time of kernels split by the resource that they wait for, along the axis ``resource``: of those that are given.

    The time goes to the slowest resource (``on_chip``, in the order of the axis: the first of equals); launches are
    added.
    """
    memory, shares = 0.0, ()
    if not on_chip and hbm is not None:
        memory = xp.where(hbm > 0, hbm, 0.0)
    else:
        time, claims = longest(*on_chip.values())
        if hbm is not None:
            streams, whole = hbm > time * (1 + EQUAL), xp.maximum(time, hbm)
            time, memory = xp.where(streams, 0.0, whole), xp.where(streams, whole, 0.0)
        shares = (claim * time for claim in claims)
    return table(
        "resource",
        **(dict.fromkeys(RESOURCES, 0.0) | dict(zip(on_chip, shares, strict=True)) | {"hbm": memory, "launch": launch}),
    )
