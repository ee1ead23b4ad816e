"""Collectives on ideal fabrics: the fastest schedule that the links of two tiers allow a group, of every kind of tier.

A table lists what every schedule of a group asks of the links of each tier (`ideal_tables`): one schedule for the whole
group, or every tier alone, with a schedule of its own. Latencies and bandwidths turn it into times. The fastest
algorithm is taken unless the study names one.
"""

import numpy as np

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative
from perfgrid.engine.graph.tables import bind
from perfgrid.formulas.axes import INNER, at, largest, only, smallest, total
from perfgrid.formulas.collectives.schedules.schedule import UNAVAILABLE, Coefficients

from .ideal_tables import ALGORITHMS, FABRIC, VOLUME, fabric_of, schedules
from .placement import CALLS, GATHERING, RANKS

ASKED = ("link_use", "algorithm", "tier")  # inner axes of what schedules ask of a fabric
EVERY_CALL = {**GATHERING, "CALL": CALLS}
LINKS = "tier_step_latency tier_hop_latency tier_message_latency tier_link_bandwidth"
# twice the steps, half of the message each
TWO_HALVES = np.array([1.0 if "volume" in use else 2.0 for use in INNER.labels["link_use"]])
NAMES = ("best", *ALGORITHMS, "tier_by_tier")  # what a study may name
CHOSEN = ("none", *NAMES[1:])  # what may run

# ---- equations: schedules on links of given speed -------------------------------------------------------------------


def any_offered(schedules):
    """1 where the whole group has a schedule: it fills whole domains of a fabric that exists."""
    volume = at(schedules, link_use="volume", tier="scale_up")
    return xp.where(largest(volume, "algorithm") >= 0, 1.0, 0.0)


def among(*names):
    """Whether an algorithm is one of these, by algorithm. A new array each time: JAX may keep one."""
    return only("algorithm", *names) > 0


def by_tier(schedules, step_latency, hop_latency, message_latency, bandwidth, alone=""):
    """What schedules cost on the links of each tier, by algorithm and tier.

    Software latency, the other latencies, time per byte, and both of a chunk. Steps, links passed and messages posted
    have their own latencies; the busiest link has its load over its rate.
    """

    def use(name):
        return at(schedules, link_use=alone + name)

    beside = use("hops") * hop_latency + use("messages") * message_latency
    chunk = use("chunk_steps") * step_latency + use("chunk_hops") * hop_latency
    load = xp.maximum(use("volume"), 0.0) / bandwidth
    return use("steps") * step_latency, beside, load, chunk, use("chunk_volume") / bandwidth


def coefficients(schedules, *links):
    """Coefficients of schedules on the links of two tiers, by algorithm.

    In sequence the tiers add up. In chunks that follow each other through the tiers all but the longest latency are
    paid once, the slowest load decides, and the message waits for the others' load of its first chunk. At once the
    longest software latency and the slowest load count. Source: cho2019blueconnect; rashidi2022themis.
    """
    software, beside, load, chunk, waiting = by_tier(schedules, *links)
    each, volume = software + beside, at(schedules, link_use="volume")
    latency, busy = total(each, "tier"), total(load, "tier")
    longest, slowest = largest(each, "tier"), largest(load, "tier")
    pipelined = among("hierarchical_pipelined")
    at_once = among("direct", "one_shot", "multi_ring", "rail_forward", "dimension_order")
    at_once = at_once & (smallest(volume, "tier") > 0)
    together = largest(software, "tier") + total(beside, "tier")
    found = xp.where(at_once, together, xp.where(pipelined, latency - longest, latency))
    return Coefficients(
        xp.where(smallest(volume, "tier") >= 0, found, UNAVAILABLE),
        xp.where(pipelined | at_once, slowest, busy),
        xp.where(pipelined, longest, total(chunk, "tier")),
        xp.where(pipelined, busy - slowest, total(waiting, "tier")),
    )


def group_times(message, schedules, *links):
    """Time of every schedule of the whole group, by algorithm."""
    return coefficients(schedules, *links).time(message)


def tier_times(message, schedules, *links):
    """Time of every schedule of each tier alone, by algorithm and tier."""
    software, beside, load, chunk, waiting = by_tier(schedules, *links, alone="alone_")
    offered = at(schedules, link_use="alone_volume") >= 0
    return Coefficients(xp.where(offered, software + beside, UNAVAILABLE), load, chunk, waiting).time(message)


def numbers():
    """Numbers of the algorithms, by algorithm (0 stands for the best). A new array each time: JAX may keep one."""
    return INNER.vector("algorithm", np.arange(1.0, len(ALGORITHMS) + 1))


def candidates(message, schedules, step_latency, hop_latency, message_latency, bandwidth, named):
    """Times of the whole group by algorithm, and of each tier with its fastest; all but a named one are unavailable."""
    links = (step_latency, hop_latency, message_latency, bandwidth)
    group, tiers = (times(message, schedules, *links) for times in (group_times, tier_times))
    group = xp.where((named == 0) | (named == numbers()), group, UNAVAILABLE)
    split = total(smallest(tiers, "algorithm"), "tier")
    return group, xp.where((named == 0) | (named == len(NAMES) - 1), split, UNAVAILABLE)


def fastest_time(*given):
    """Time of the fastest schedule that the links allow; `UNAVAILABLE` where the named algorithm does not exist.

    Valid for ranks that begin together and links that nothing else uses meanwhile.
    """
    group, tiers = candidates(*given)
    return xp.minimum(smallest(group, "algorithm"), tiers)


def fastest_algorithm(*given):
    """The number of the algorithm of least time; the first of equals."""
    group, tiers = candidates(*given)
    least = smallest(group, "algorithm")
    first = smallest(xp.where(group <= least, numbers(), 1e10), "algorithm")
    return xp.where(tiers < least * (1 - 1e-6), 1.0 * (len(NAMES) - 1), first)


# ---- what schedules ask ---------------------------------------------------------------------------------------------


def asked(collective):
    """A host formula: what the schedules of a collective in a group of this size and stride ask of a fabric."""

    def found(*given):
        *fabric, size, stride = given
        return schedules(fabric_of(*fabric), collective, int(size), int(stride))

    return found


def asks(name, collective, group, what, family=None):
    """The quantity ``name``: what a collective among ``group`` (size and stride) asks of the tiers."""
    meaning = f"What {what} ask of the tiers, by link_use, algorithm and tier."
    given = f"{FABRIC} {group}"
    return bind(asked(collective), name, given, "1", "cho2019blueconnect", meaning, family=family, host=ASKED)


def tied_schedules(*given):
    """What all-reduces between the first and the last stage ask of the tiers, by link_use, algorithm and tier.

    Where two stages that far apart are no regular group, two exchanges of half the message between the stages.
    """
    *stated, tied, tied_stride, pp_stride, pp = given
    fabric = fabric_of(*stated)
    for stride in (tied_stride, pp_stride * (pp // 2)):
        found = schedules(fabric, "all_reduce", int(tied), int(stride), False)
        if (found[VOLUME] >= 0).any():
            return found
    return schedules(fabric, "send_recv", int(pp), int(pp_stride)) * TWO_HALVES[:, None, None]


@alternative(of="stages_placed", by="library", label="ideal", unit="1", source="narayanan2021")
def shape_holds_stages(pp_transfer_schedules, tied_all_reduce_schedules):
    """1 where the pipeline stages, and the first and the last of them, fill whole domains of every tier."""
    return any_offered(pp_transfer_schedules) * any_offered(tied_all_reduce_schedules)


GROUP_CALL = f"GROUP_message GROUP_CALL_schedules {LINKS} GROUP_named_algorithm"
UNTIED = {"GROUP": {group: of for group, of in RANKS["GROUP"].items() if group != "tied"}}
FORMULAS = (
    *asks("GROUP_gather_schedules", "all_gather", "GROUP GROUP_stride", "all-gathers of the GROUP group", RANKS),
    *asks("GROUP_all_reduce_schedules", "all_reduce", "GROUP GROUP_stride", "all-reduces of the GROUP group", UNTIED),
    *bind(
        *(tied_schedules, "tied_all_reduce_schedules", f"{FABRIC} tied tied_stride pp_stride pp"),
        *("1", "cho2019blueconnect"),
        host=ASKED,
    ),
    *asks("pp_transfer_schedules", "send_recv", "pp pp_stride", "sends from every pipeline stage to the next"),
    *asks(
        *("ring_transfer_schedules", "send_recv", "sequence_split sequence_split_stride"),
        "sends from every rank of a ring to the next",
    ),
    *bind(
        *(fastest_time, "GROUP_CALL_fastest_time", GROUP_CALL, "s", "thakur2005"),
        "Time of the fastest CALL in the GROUP group that the links allow.",
        of=("GROUP_CALL_time", "library", "ideal"),
        family=EVERY_CALL,
    ),
    *bind(
        *(fastest_algorithm, "GROUP_CALL_fastest_algorithm", GROUP_CALL, "1", "thakur2005"),
        "Which algorithm runs the fastest CALL in the GROUP group that the links allow.",
        of=("GROUP_CALL_algorithm", "library", "ideal"),
        family=EVERY_CALL,
        flags=CHOSEN,
    ),
    *bind(
        *(fastest_time, "pp_fastest_transfer_time", f"pp_message pp_transfer_schedules {LINKS} pp_named_algorithm"),
        *("s", "thakur2005", "Time of a transfer between neighbouring stages, all of which send at the same time."),
        of=("pp_transfer_time", "library", "ideal"),
    ),
    *bind(
        *(fastest_time, "ring_fastest_transfer_time"),
        *(f"ring_message ring_transfer_schedules {LINKS} cp_named_algorithm", "s", "liu2023ring"),
        "Time of one point-to-point transfer to the next rank of a ring, by phase.",
        of=("ring_transfer_time", "library", "ideal"),
    ),
    *bind(
        *(any_offered, "GROUP_fills_shape", "GROUP_gather_schedules", "1", "narayanan2021"),
        of=("GROUP_fills", "library", "ideal"),
        family=GATHERING,
    ),
)
