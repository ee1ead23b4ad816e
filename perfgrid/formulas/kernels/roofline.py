"""The hierarchical roofline, and the part of a kernel's time that each resource accounts for.

The roofline of Williams 2009 bounds the rate of a kernel by min(peak rate, intensity · bandwidth). As a time this is
max(FLOPs / peak rate, bytes / bandwidth): arithmetic and traffic overlap. The hierarchical roofline takes the maximum
over all levels of memory.

The longest time alone says little about a kernel that two resources hold up almost equally long: the slower one would
account for all of it. Here a resource accounts for what a kernel gains if it is free, on average over the orders in
which resources become free one after the other (Shapley 1953): v(S) is the time if only those in S take any,

    share of i = sum over S without i of |S|!·(n - |S| - 1)!/n!·(v(S + i) - v(S)).

Shares add up to the time, change without a jump, and are equal for equal times. Of times 10 and 5 they are 7.5 and 2.5:
the interval that both take is divided among them (Littlechild and Owen 1973).
"""

from functools import reduce
from itertools import combinations
from math import comb

from perfgrid.engine import xp
from perfgrid.formulas.axes import INNER, at, only, table, total

RESOURCES = INNER.labels["resource"]


def roofline_time(*times):
    """Time of a kernel whose arithmetic and traffic at every level overlap: the longest."""
    return reduce(lambda a, b: xp.maximum(a, b), times)


def shared(times, value=roofline_time):
    """What each of several resources accounts for of the time that ``value`` makes of those of some of them."""
    n, shares = len(times), [0.0] * len(times)
    for size in range(1, n + 1):
        for some in combinations(range(n), size):
            time = value(*(times[i] for i in some))
            for i in range(n):
                weight = 1 / comb(n - 1, size - 1) if i in some else -1 / comb(n - 1, size)
                shares[i] = shares[i] + weight / n * time
    return shares


def by_resource(*shares):
    """Times along the axis ``resource``: of levels on chip, and of memory and launches where they are given."""
    rest = (0.0,) * (len(RESOURCES) - len(shares))
    return table("resource", **dict(zip(RESOURCES, (*shares, *rest), strict=True)))


def beside(chip, *, launch=0.0, **times):
    """Time of kernels by resource whose work on chip runs beside the traffic of other resources: the longest of all.

    ``chip`` lies along the axis ``resource`` and adds up to the time on chip, one resource beside the others: its own
    resources divide its part as they divide it alone (Owen 1977). Launches are added.
    """
    whole = total(chip, "resource")
    on_chip, *others = shared((whole, *times.values()))
    works = whole > 0
    idle = along({"arithmetic": xp.where(works, 0.0, on_chip)}, 0.0)  # 0, with its slope
    part = xp.where(works, on_chip, 0.0) / xp.where(works, whole, 1e10)
    return part * chip + idle + along(dict(zip(times, others, strict=True)), launch)


def held_by_memory(time):
    """Time without launches of kernels whose memory traffic takes longer than the work on chip `beside` it, else 0."""
    kernel = total(time * (1 - only("resource", "launch")), "resource")
    return xp.where(2 * at(time, resource="hbm") > kernel, kernel, 0.0)


def roofline_shares(*, launch=0.0, **times):
    """Time of kernels split among the resources that are given, along the axis ``resource``; launches are added."""
    return along(dict(zip(times, shared(tuple(times.values())), strict=True)), launch)


def along(shares, launch):
    """Times of named resources, and of launches, along the axis ``resource``."""
    return table("resource", **(dict.fromkeys(RESOURCES, 0.0) | shares | {"launch": launch}))
