"""Groups of a pipeline under random arrivals: uneven, and as slow as the largest.

Stages take groups in the order in which they come, so all wait for the slowest. Requests join the group that begins
next. Of p groups of which one takes t and the others u, the first stage is free u/p after each of those, but for the
slow one to come back it waits t·(1 - 1/p) - u·(p - 2)/p: the longer a group takes, the more requests join it. With the
slope g of the logarithm of a step's time by that of its group, even groups are stable as long as g·(p - 1) < 1. Beyond
that the largest has p - 1/g times the mean.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import bind
from perfgrid.formulas.axes import at, table

from .batching import NODES, ONE_BATCH
from .lockstep import random_excess
from .tabulated import at_batch, slopes

MOST_AMPLIFIED = 0.9  # of g·(p - 1): at 1 differences of even groups grow without bound, and p - 1/g takes over


def log_slopes(values, places):
    """Slopes of the logarithm of tabulated values by that of their places, by load."""
    value, place = ([xp.log(at(v / at(v, load=NODES[0]), load=node)) for node in NODES] for v in (values, places))
    ends = [(max(i - 1, 0), min(i + 1, len(NODES) - 1)) for i in range(len(NODES))]
    slopes = ((value[high] - value[low]) / xp.maximum(place[high] - place[low], 1e-3) for low, high in ends)
    return table("load", **dict(zip(NODES, slopes, strict=True)))


FORMULAS = bind(
    log_slopes,
    "even_step_growth",
    "even_step_time rate_tabulated_batch",
    "1",
    "kleinrock1975queueing",
    "Slope of the logarithm of the time of a step of even groups by that of the batch, by load.",
)


@formula(unit="1", source="kleinrock1975queueing, raab1998balls")
def largest_group(even_step_growth, replica_batch, batch_groups, most_sequences, dp):
    """Sequences of the largest group over those of the mean one, as far as it has places."""
    group, slope = replica_batch / batch_groups, xp.minimum(xp.maximum(even_step_growth, 1e-3), 1.0)
    amplified = xp.minimum(slope * (batch_groups - 1), MOST_AMPLIFIED)
    random = random_excess(xp.maximum(group, 1e-9), batch_groups) / group / xp.sqrt(1 - amplified**2)
    found = xp.maximum(batch_groups - 1 / slope, 1 + random)
    return xp.where(batch_groups > 1, xp.maximum(xp.minimum(found, most_sequences / dp / replica_batch), 1.0), 1.0)


@alternative(of="decode_step_time", by="batch_rule", label="rate", unit="s", source="kleinrock1975queueing",
             others={ONE_BATCH: "even_step_time"})  # fmt: skip
def rate_decode_step_time(even_step_time, largest_group, node_batch):
    """Time of one decoding step of a batch: that of the largest group of a pipeline, as of so many in all of them."""
    return at_batch(node_batch * largest_group, even_step_time, slopes(even_step_time, node_batch), node_batch)
