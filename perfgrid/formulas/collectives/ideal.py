"""Collectives on ideal fabrics: the fastest schedule that the links of two tiers allow a group, of every kind of tier.

A table lists what every schedule of a group asks of the links of each tier (`ideal_tables`). Latencies and bandwidths
turn it into coefficients by algorithm and span: one schedule for the whole group, or every tier with its own. The
message comes last. The fastest algorithm is taken unless the study names one.
"""

from typing import Any

import numpy as np

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import bind
from perfgrid.formulas.axes import INNER, at, largest, only, smallest, table, total
from perfgrid.formulas.collectives.schedules.schedule import UNAVAILABLE

from .ideal_tables import ALGORITHMS, VOLUME, fabric_of, schedules
from .placement import CALLS, GATHERING, RANKS

TABLE: Any = {
    "unit": "1",
    "source": "cho2019blueconnect",
    "host": True,
    "inner": ("link_use", "algorithm", "span", "tier"),
}
EVERY_CALL = {**GATHERING, "CALL": CALLS}
TRANSFERS = {transfer: transfer for transfer in ("pp_transfer", "ring_transfer")}
OF_RANKS = {
    "CALL": {f"{group}_{call}": f"{of}_{call}" for group, of in RANKS["GROUP"].items() for call in CALLS} | TRANSFERS
}
# twice the steps, half of the message each
TWO_HALVES = np.array([1.0 if "volume" in use else 2.0 for use in INNER.labels["link_use"]])
NAMES = ("best", *ALGORITHMS, "tier_by_tier")  # what a study may name
CHOSEN = ("none", *NAMES[1:])  # what may run

# ---- equations: schedules on links of given speed ------------------------------------------------------------------


def offered(schedules):
    """Whether a group has each schedule, by algorithm and span."""
    return smallest(at(schedules, link_use="volume"), "tier") >= 0


def any_offered(schedules):
    """1 where the whole group has a schedule: it fills whole domains of a fabric that exists."""
    volume = at(schedules, link_use="volume", span="group", tier="scale_up")
    return xp.where(largest(volume, "algorithm") >= 0, 1.0, 0.0)


def pipelined():
    """Algorithms whose chunks follow each other through the tiers. A new array each time: JAX may keep one."""
    return only("algorithm", "hierarchical_pipelined") > 0


def together(schedules):
    """Schedules that send over the links of both tiers at once, by algorithm and span."""
    at_once = only("algorithm", "direct", "one_shot", "multi_ring", "rail_forward", "dimension_order")
    return (at_once > 0) & (smallest(at(schedules, link_use="volume"), "tier") > 0)


def latency(schedules, step_latency, hop_latency, message_latency):
    """Latency of schedules, by algorithm and span: steps, links passed and messages posted, each at its own price.

    In sequence the tiers add up; in chunks all but the longest pay once; at once the longest software latency counts.
    Source: cho2019blueconnect; rashidi2022themis.
    """
    software = at(schedules, link_use="steps") * step_latency
    hops, messages = at(schedules, link_use="hops") * hop_latency, at(schedules, link_use="messages") * message_latency
    each = software + hops + messages
    in_sequence = total(each, "tier")
    at_once = largest(software, "tier") + total(hops + messages, "tier")
    found = xp.where(pipelined(), in_sequence - largest(each, "tier"), in_sequence)
    return xp.where(offered(schedules), xp.where(together(schedules), at_once, found), UNAVAILABLE)


def inverse_bandwidth(schedules, bandwidth):
    """Time of schedules per byte of the message, by algorithm and span: the load of the busiest link over its rate.

    In sequence the tiers add up, in chunks or at once the slowest decides. Source: rashidi2022themis.
    """
    each = xp.maximum(at(schedules, link_use="volume"), 0.0) / bandwidth
    overlaps = pipelined() | together(schedules)
    return xp.where(overlaps, largest(each, "tier"), total(each, "tier"))


def chunk_latency(schedules, step_latency, hop_latency, message_latency):
    """Latency that every chunk of the message adds, by algorithm and span.

    In a pipeline of tiers that of the longest; else what the schedule itself asks. Source: rashidi2022themis.
    """
    each = at(schedules, link_use="steps") * step_latency
    each = each + at(schedules, link_use="hops") * hop_latency + at(schedules, link_use="messages") * message_latency
    own = at(schedules, link_use="chunk_steps") * step_latency + at(schedules, link_use="chunk_hops") * hop_latency
    return xp.where(pipelined(), largest(each, "tier"), total(own, "tier"))


def chunk_inverse_bandwidth(schedules, bandwidth):
    """Time per byte of a chunk that the message waits for its first chunk, by algorithm and span.

    In a pipeline of tiers that of all but the slowest; else what the schedule itself asks. Source: rashidi2022themis.
    """
    each = xp.maximum(at(schedules, link_use="volume"), 0.0) / bandwidth
    own = at(schedules, link_use="chunk_volume") / bandwidth
    return xp.where(pipelined(), total(each, "tier") - largest(each, "tier"), total(own, "tier"))


def schedule_time(message, latency, inverse_bandwidth):
    """Time of a message B in its best number of chunks C, at least one (see `schedules.schedule.Coefficients`).

    .. math:: t = \\alpha + \\beta B + \\min_{C \\ge 1} (C \\alpha_c + \\beta_c B / C)

    Both coefficients of the message and of a chunk: those along `per`.

    With the best C the last term is twice the root of chunk latency · chunk inverse bandwidth · B.
    Source: thakur2005; sanders2009twotree.
    """
    filling, each = at(inverse_bandwidth, per="chunk") * message, at(latency, per="chunk")
    product = each * filling
    chunks = xp.where((filling > each) & (product > 0), 2 * xp.root(product), each + filling)
    return at(latency, per="message") + at(inverse_bandwidth, per="message") * message + chunks


def numbers():
    """Numbers of the algorithms, by algorithm (0 stands for the best). A new array each time: JAX may keep one."""
    return INNER.vector("algorithm", np.arange(1.0, len(ALGORITHMS) + 1))


def of_group_and_by_tier(times, named):
    """Times of the whole group by algorithm, and of each tier with its fastest; all but a named one are unavailable."""
    group = xp.where((named == 0) | (named == numbers()), at(times, span="group"), UNAVAILABLE)
    tiers = smallest(at(times, span="scale_up"), "algorithm") + smallest(at(times, span="scale_out"), "algorithm")
    return group, xp.where((named == 0) | (named == len(NAMES) - 1), tiers, UNAVAILABLE)


def fastest(times, named):
    """The least time; `UNAVAILABLE` where the named algorithm does not exist."""
    group, tiers = of_group_and_by_tier(times, named)
    return xp.minimum(smallest(group, "algorithm"), tiers)


def which_fastest(times, named):
    """The number of the algorithm of least time; the first of equals."""
    group, tiers = of_group_and_by_tier(times, named)
    least = smallest(group, "algorithm")
    first = smallest(xp.where(group <= least, numbers(), 1e10), "algorithm")
    return xp.where(tiers < least * (1 - 1e-6), 1.0 * (len(NAMES) - 1), first)


# ---- what schedules ask, and what that costs ------------------------------------------------------------------------


@formula(family=RANKS, **TABLE)
def GROUP_gather_schedules(
    tier_kind, tier_sides, scale_up_wraps, tier_tapers, tier_in_network, tier_global_links, GROUP, GROUP_stride
):
    """What all-gathers (reduce-scatters) of the GROUP group ask of the tiers, by link_use, algorithm, span and tier."""
    fabric = fabric_of(tier_kind, tier_sides, scale_up_wraps, tier_tapers, tier_in_network, tier_global_links)
    return schedules(fabric, "all_gather", int(GROUP), int(GROUP_stride))


@formula(family={"GROUP": {g: of for g, of in RANKS["GROUP"].items() if g != "tied"}}, **TABLE)
def GROUP_all_reduce_schedules(
    tier_kind, tier_sides, scale_up_wraps, tier_tapers, tier_in_network, tier_global_links, GROUP, GROUP_stride
):
    """What all-reduces of the GROUP group ask of the tiers, by link_use, algorithm, span and tier."""
    fabric = fabric_of(tier_kind, tier_sides, scale_up_wraps, tier_tapers, tier_in_network, tier_global_links)
    return schedules(fabric, "all_reduce", int(GROUP), int(GROUP_stride))


@formula(**TABLE)
def tied_all_reduce_schedules(
    tier_kind,
    tier_sides,
    scale_up_wraps,
    tier_tapers,
    tier_in_network,
    tier_global_links,
    tied,
    tied_stride,
    pp_stride,
    pp,
):
    """What all-reduces between the first and the last stage ask of the tiers, by link_use, algorithm, span and tier.

    Where two stages that far apart are no regular group, two exchanges of half the message between the stages.
    """
    fabric = fabric_of(tier_kind, tier_sides, scale_up_wraps, tier_tapers, tier_in_network, tier_global_links)
    for stride in (tied_stride, pp_stride * (pp // 2)):
        found = schedules(fabric, "all_reduce", int(tied), int(stride), False)
        if (found[VOLUME] >= 0).any():
            return found
    return schedules(fabric, "send_recv", int(pp), int(pp_stride)) * TWO_HALVES[:, None, None, None]


@formula(**TABLE)
def pp_transfer_schedules(
    tier_kind, tier_sides, scale_up_wraps, tier_tapers, tier_in_network, tier_global_links, pp, pp_stride
):
    """What sends from every pipeline stage to the next ask of the tiers, by link_use, algorithm, span and tier."""
    fabric = fabric_of(tier_kind, tier_sides, scale_up_wraps, tier_tapers, tier_in_network, tier_global_links)
    return schedules(fabric, "send_recv", int(pp), int(pp_stride))


@formula(**TABLE)
def ring_transfer_schedules(
    tier_kind,
    tier_sides,
    scale_up_wraps,
    tier_tapers,
    tier_in_network,
    tier_global_links,
    sequence_split,
    sequence_split_stride,
):
    """What sends from every rank of a ring to the next ask of the tiers, by link_use, algorithm, span and tier."""
    fabric = fabric_of(tier_kind, tier_sides, scale_up_wraps, tier_tapers, tier_in_network, tier_global_links)
    return schedules(fabric, "send_recv", int(sequence_split), int(sequence_split_stride))


@formula(unit="s", source="sanders2009twotree", family=OF_RANKS)
def CALL_latency(CALL_schedules, tier_step_latency, tier_hop_latency, tier_message_latency):
    """Latency of a CALL, per message and per chunk of it, by algorithm and span."""
    links = (CALL_schedules, tier_step_latency, tier_hop_latency, tier_message_latency)
    return table("per", message=latency(*links), chunk=chunk_latency(*links))


@formula(unit="s/byte", source="sanders2009twotree", family=OF_RANKS)
def CALL_inverse_bandwidth(CALL_schedules, tier_link_bandwidth):
    """Time of a CALL per byte of its message, and of a chunk for which the message waits, by algorithm and span."""
    links = (CALL_schedules, tier_link_bandwidth)
    return table("per", message=inverse_bandwidth(*links), chunk=chunk_inverse_bandwidth(*links))


# ---- the fastest ----------------------------------------------------------------------------------------------------


@alternative(of="GROUP_CALL_time", by="library", label="ideal", unit="s", source="thakur2005", family=EVERY_CALL)
def GROUP_CALL_fastest_time(GROUP_message, GROUP_CALL_latency, GROUP_CALL_inverse_bandwidth, GROUP_named_algorithm):
    """Time of the fastest CALL in the GROUP group that the links allow.

    Valid for ranks that begin together and links that nothing else uses meanwhile.
    """
    return fastest(
        schedule_time(GROUP_message, GROUP_CALL_latency, GROUP_CALL_inverse_bandwidth), GROUP_named_algorithm
    )


@alternative(
    of="GROUP_CALL_algorithm",
    by="library",
    label="ideal",
    unit="1",
    source="thakur2005",
    family=EVERY_CALL,
    flags=CHOSEN,
)
def GROUP_CALL_fastest_algorithm(
    GROUP_message, GROUP_CALL_latency, GROUP_CALL_inverse_bandwidth, GROUP_named_algorithm
):
    """Which algorithm runs the fastest CALL in the GROUP group that the links allow."""
    times = schedule_time(GROUP_message, GROUP_CALL_latency, GROUP_CALL_inverse_bandwidth)
    return which_fastest(times, GROUP_named_algorithm)


@alternative(of="pp_transfer_time", by="library", label="ideal", unit="s", source="thakur2005")
def pp_fastest_transfer_time(pp_message, pp_transfer_latency, pp_transfer_inverse_bandwidth, pp_named_algorithm):
    """Time of one point-to-point transfer between neighbouring stages, all of which send at the same time."""
    return fastest(schedule_time(pp_message, pp_transfer_latency, pp_transfer_inverse_bandwidth), pp_named_algorithm)


@alternative(of="ring_transfer_time", by="library", label="ideal", unit="s", source="liu2023ring")
def ring_fastest_transfer_time(
    ring_message, ring_transfer_latency, ring_transfer_inverse_bandwidth, cp_named_algorithm
):
    """Time of one point-to-point transfer to the next rank of a ring, by phase."""
    times = schedule_time(ring_message, ring_transfer_latency, ring_transfer_inverse_bandwidth)
    return fastest(times, cp_named_algorithm)


@alternative(of="stages_placed", by="library", label="ideal", unit="1", source="narayanan2021")
def shape_holds_stages(pp_transfer_schedules, tied_all_reduce_schedules):
    """1 where the pipeline stages, and the first and the last of them, fill whole domains of every tier."""
    return any_offered(pp_transfer_schedules) * any_offered(tied_all_reduce_schedules)


FORMULAS = bind(
    *(any_offered, "GROUP_fills_shape", "GROUP_gather_schedules", "1", "narayanan2021"),
    of=("GROUP_fills", "library", "ideal"),
    family=GATHERING,
)
