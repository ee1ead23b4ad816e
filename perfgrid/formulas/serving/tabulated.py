"""Random arrivals: the batch at which capacity meets them, and values at a batch, from those at tabulated batches.

Between two tabulated batches b a step of a + c·b makes the time from request to request a straight line over 1/b, and
the time of a step one over b. Slopes do not depend on the arrivals: at each rate a line of few operations is left.
"""

from itertools import pairwise

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.engine.graph.tables import bind
from perfgrid.formulas.axes import INNER, at, table

NODES = INNER.labels["load"]
TIMES = (  # that are read at other batches than the tabulated ones
    *("decode_step_time", "iteration_time", "filled_prefill_time", "lone_first_time"),
    *("others_added_time", "crowded_added_time", "round_hold_time", "next_prompt_time"),
)
NUMBERS = ("step_growth", "further_share", "other_prompts")
LEVEL = 1e-4  # relative rise of the capacity below which a larger batch counts as none


def by_node(values):
    """The values of all tabulated batches."""
    return [at(values, load=node) for node in NODES]


def along(values):
    """One value for each of the tabulated batches."""
    return table("load", **dict(zip(NODES, values, strict=True)))


@formula(unit="1", source="little1961")
def node_batch(rate_tabulated_batch, dp):
    """Sequences of a replica at which serving is tabulated, by load."""
    return rate_tabulated_batch / dp


@formula(unit="s", source="little1961")
def request_spacing(request_capacity):
    """Time from one request to the next that the tabulated batches keep up with, by load: less for a larger one."""
    capacities = by_node(request_capacity)
    least = [1 / capacities[0]]
    for capacity in capacities[1:]:
        least.append(xp.minimum(least[-1], 1 / capacity))
    apart = [least[-1]]
    for spacing in reversed(least[:-1]):
        apart.append(xp.maximum(spacing, apart[-1] * (1 + LEVEL)))
    return along(apart[::-1])


@formula(unit="1", source="little1961")
def inverse_rise(node_batch):
    """How much more one over a tabulated batch is than one over the next, by load."""
    inverse = [1 / batch for batch in by_node(node_batch)]
    return along([*(low - high for low, high in pairwise(inverse)), 0.0 * inverse[0]])


@formula(unit="1", source="little1961")
def met_batch(offered_rate, request_spacing, inverse_rise, node_batch):
    """Sequences of a replica that is never without any, where capacity meets the arrivals: a tabulated batch at most.

    From batch to batch the part of the way, not a slope: where the capacity is level the way is too short for one.
    """
    inverse, spacing = 1 / at(node_batch, load=NODES[-1]), 1 / offered_rate
    for rise, (high, low) in zip(by_node(inverse_rise), pairwise(by_node(request_spacing)), strict=False):
        inverse = inverse + rise * xp.minimum(xp.maximum((spacing - low) / (high - low), 0.0), 1.0)
    return 1 / inverse


def slopes(values, node_batch):
    """Slopes of a line from each tabulated batch to the next, by load."""
    values, batches = by_node(values), by_node(node_batch)
    steps = zip(pairwise(values), pairwise(batches), strict=True)
    return along([*((b - a) / xp.maximum(q - p, 1e-9 * q) for (a, b), (p, q) in steps), 0.0 * values[0]])


def at_batch(batch, values, slopes, node_batch):
    """The value at a batch of a replica, on straight lines between the tabulated ones."""
    passed = pairwise(xp.minimum(batch, node) for node in by_node(node_batch))
    rises = zip(by_node(slopes)[:-1], passed, strict=True)
    return at(values, load=NODES[0]) + sum(slope * (high - low) for slope, (low, high) in rises)


# ---- what arrivals meet ---------------------------------------------------------------------------------------------


FORMULAS = tuple(
    entry
    for members, unit, what in ((TIMES, "s", "time"), (NUMBERS, "1", "number"))
    for entry in (
        *bind(slopes, "OF_slope", "OF node_batch", unit, "little1961", f"Slope of this {what} by the batch, by load.",
              family={"OF": members}),
        *bind(at_batch, "met_OF", "met_batch OF OF_slope node_batch", unit, "little1961",
              f"This {what} in the batch that arrivals meet.", family={"OF": members}),
    )
)  # fmt: skip
