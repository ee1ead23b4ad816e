"""The hierarchical roofline, and the part of a kernel's time that each resource accounts for.

The roofline of Williams 2009 bounds the rate of a kernel by min(peak rate, intensity · bandwidth). As a time this is
max(FLOPs / peak rate, bytes / bandwidth): arithmetic and traffic overlap. The hierarchical roofline takes the maximum
over all levels of memory.

The longest time alone says little about a kernel that two resources hold up almost equally long: one of them would
account for all of it. Rates are known within a sixth or so, and each resource accounts for the chance that it is the
slowest. Where the logarithms of times t err independently by the Gumbel distribution of scale 1/p, that is (Luce 1977)

    t_i^p / sum over j of t_j^p.

Shares add up to the time, change without a jump, and are equal for equal times; of times 10 and 8 they are 8.6 and 1.4.
They are the elasticities of a smooth maximum: what a percent more of a resource gains, as far as its rate is known.
"""

from functools import reduce

from perfgrid.engine import xp
from perfgrid.formulas.axes import INNER, at, only, table, total

RESOURCES = INNER.labels["resource"]
SHARPNESS = 8  # p: a standard deviation of 16 % of each time
NEGLIGIBLE = 1e-3  # of a time below 0.42 of the longest


def roofline_time(*times):
    """Time of a kernel whose arithmetic and traffic at every level overlap: the longest."""
    return reduce(lambda a, b: xp.maximum(a, b), times)


def chance(ratio):
    """Weight of a time by its ratio to the longest, or of that to it: its power p, 0 where that is next to nothing."""
    power = ratio**SHARPNESS
    return xp.where(power > NEGLIGIBLE, power, 0.0)


def shared(*times):
    """What each of several resources accounts for of the longest of their times: by its chance to be that."""
    if len(times) == 1:
        return list(times)
    longest = roofline_time(*times)
    taken = xp.where(longest > 0, longest, 1e10)
    powers = [chance(time / taken) for time in times]
    whole = longest / xp.maximum(sum(powers), 1.0)  # one of them is 1, unless no resource takes any time
    return [whole * power for power in powers]


def by_resource(*shares):
    """Times along the axis ``resource``: of levels on chip, and of memory and launches where they are given."""
    rest = (0.0,) * (len(RESOURCES) - len(shares))
    return table("resource", **dict(zip(RESOURCES, (*shares, *rest), strict=True)))


def beside(chip, *, launch=0.0, **times):
    """Time of kernels by resource whose work on chip runs beside the traffic of other resources: the longest of all.

    ``chip`` lies along the axis ``resource`` and adds up to the time on chip, one resource beside the others: its own
    resources divide its part as they divide it alone. Launches are added.
    """
    whole = total(chip, "resource")
    on_chip, *others = shared(whole, *times.values())
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
    return along(dict(zip(times, shared(*times.values()), strict=True)), launch)


def along(shares, launch):
    """Times of named resources, and of launches, along the axis ``resource``."""
    return table("resource", **(dict.fromkeys(RESOURCES, 0.0) | shares | {"launch": launch}))
