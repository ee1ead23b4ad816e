"""Collectives on ideal fabrics: the fastest schedule that the links of two tiers allow a group, of every kind of tier.

A table lists what every schedule of a group asks of each tier (`fabric_tables`); latencies and bandwidths make it
coefficients, by algorithm and by span: one schedule for the whole group, or every tier with its own. The message comes
last, and the fastest algorithm is taken unless the study names one.
"""

from typing import Any

import numpy as np

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.formulas.axes import INNER, at, join, largest, smallest, table, total
from perfgrid.formulas.collectives.schedules.schedule import Coefficients, Schedule
from perfgrid.formulas.collectives.schedules.tables import ALGORITHMS, MEMBERS, table_coefficients, tier_coefficients

from .collectives import GATHERING
from .fabric_tables import demand, exists, links, shape_of

TABLE: Any = {"unit": "1", "source": "cho2019blueconnect", "host": True, "inner": ("demand", "algorithm", "tier")}
EVERY_CALL = {**GATHERING, "CALL": ("gather", "all_reduce")}
CALLS = {
    "CALL": (
        *(f"{g}_{call}" for g in GATHERING["GROUP"] for call in EVERY_CALL["CALL"]),
        "pp_transfer",
        "ring_transfer",
    )
}
STEPS = ("steps", "hops", "chunk_steps", "chunk_hops", "messages")
TWO_HALVES = np.array([2.0 if d.removeprefix("tier_") in STEPS else 1.0 for d in INNER.labels["demand"]])
BEHIND = -INNER.position("tier") - 1  # inner axes after the tiers: nothing here lies on them
NAMES = ("best", *ALGORITHMS, "tier_by_tier")  # what a study may name
CHOSEN = ("none", *NAMES[1:])  # what may run

# ---- equations ------------------------------------------------------------------------------------------------------


def coefficients(demand, step_latency, hop_latency, bandwidth, message_latency):
    """Coefficients by algorithm and span, of a table of demands and the speeds of the tiers (a number: of all)."""
    demand = xp.asarray(demand)
    rows = xp.reshape(demand, demand.shape[: demand.ndim - BEHIND])[..., 0, :]  # [..., demand, algorithm, tier]
    speeds = []
    for speed in (step_latency, hop_latency, bandwidth, message_latency):
        if np.ndim(speed) == 0:
            speeds.append(speed)
            continue
        flat = xp.reshape(xp.asarray(speed), np.shape(speed)[: np.ndim(speed) - BEHIND])
        speeds.append(flat[..., 0, 0, 0, :] if flat.ndim > 3 else flat)
    row = INNER.labels["demand"].index
    whole = Schedule(*(rows[..., row(m), :, :] for m in MEMBERS))
    alone = Schedule(*(rows[..., row(f"tier_{m}"), :, :] for m in MEMBERS))
    how, offered = (rows[..., row(what), :, 0] for what in ("how", "offered"))
    group = table_coefficients(whole, how, offered > 0, *speeds)
    tiers = tier_coefficients(alone, rows[..., row("tier_offered"), :, :] > 0, *speeds)

    def by_span(of_group, of_tiers):
        found = xp.concatenate((of_group[..., None], of_tiers), axis=-1)  # [..., algorithm, span]
        return xp.reshape(found, (*found.shape[:-2], 1, *found.shape[-2:], *(1,) * (BEHIND + 1)))

    members = ("latency", "inverse_bandwidth", "chunk_latency", "chunk_inverse_bandwidth")
    return Coefficients(*(by_span(getattr(group, m), getattr(tiers, m)) for m in members))


def schedule_time(message, latency, inverse_bandwidth, chunk_latency, chunk_inverse_bandwidth):
    """Time of a message in its best number of chunks, at least one (see `network.schedule.Coefficients`)."""
    filling = chunk_inverse_bandwidth * message
    product = chunk_latency * filling
    cut = 2 * xp.sqrt(xp.where(product > 0, product, 1e30))  # the root of 0 has no gradient
    chunks = xp.where((filling > chunk_latency) & (product > 0), cut, chunk_latency + filling)
    return latency + inverse_bandwidth * message + chunks


def numbers():
    """Numbers of the algorithms, by algorithm (0 stands for the best). A new array each time: JAX may keep one."""
    return INNER.vector("algorithm", np.arange(1.0, len(ALGORITHMS) + 1))


def of_group_and_by_tier(times, named, unavailable):
    """Times of the whole group by algorithm, and of the tiers each with its fastest; all but a named one put off."""
    group = xp.where((named == 0) | (named == numbers()), at(times, span="group"), unavailable)
    tiers = smallest(at(times, span="scale_up"), "algorithm") + smallest(at(times, span="scale_out"), "algorithm")
    return group, xp.where((named == 0) | (named == len(NAMES) - 1), tiers, unavailable)


def fastest(times, named, unavailable):
    """The least time; ``unavailable`` where the named algorithm does not exist."""
    group, tiers = of_group_and_by_tier(times, named, unavailable)
    return xp.minimum(smallest(group, "algorithm"), tiers)


def which_fastest(times, named, unavailable):
    """The number of the algorithm of least time; the first of equals."""
    group, tiers = of_group_and_by_tier(times, named, unavailable)
    least = smallest(group, "algorithm")
    first = smallest(xp.where(group <= least, numbers(), 1e10), "algorithm")
    return xp.where(tiers < least * (1 - 1e-6), 1.0 * (len(NAMES) - 1), first)


# ---- the fabric -----------------------------------------------------------------------------------------------------


def _or_one_side(sides, length):
    """The stated sides, or a single one where none is stated."""
    return xp.where(total(sides, "side") > 0, sides, join("side", length, 0.0, 0.0, 0.0))


def _product(sides):
    lengths = xp.maximum(sides, 1.0)
    return (
        at(lengths, side="first") * at(lengths, side="second") * at(lengths, side="third") * at(lengths, side="fourth")
    )


@formula(unit="1", source="cho2019blueconnect")
def tier_sides(scale_up_sides, scale_out_sides, tier_size, devices):
    """Shape of each tier, by side and tier: as stated, or the scale-up domain and as many as the cluster fills."""
    inside = _or_one_side(scale_up_sides, at(tier_size, tier="scale_up"))
    between = _or_one_side(scale_out_sides, xp.ceil(devices / _product(inside)))
    return table("tier", scale_up=inside, scale_out=between)


@alternative(of="fabric_size", by="library", label="ideal", unit="1", source="narayanan2021")
def shape_size(tier_sides):
    """Devices that the shape of the fabric holds."""
    inside, between = (_product(at(tier_sides, tier=tier)) for tier in ("scale_up", "scale_out"))
    return inside * between


@formula(unit="1", source="dally2004")
def tier_traits(
    tier_kind,
    tier_sides,
    scale_up_wraps,
    tier_oversubscription,
    upper_oversubscription,
    tier_in_network,
    tier_global_links,
):
    """All that the schedules on a fabric depend on, speeds apart, by trait and tier."""
    sides = {side: at(tier_sides, side=side) for side in INNER.labels["side"]}
    wraps = {f"{side}_wraps": at(scale_up_wraps, side=side) for side in INNER.labels["side"]}
    return table(
        "trait",
        kind=tier_kind,
        **sides,
        **wraps,
        oversubscription=tier_oversubscription,
        upper_oversubscription=upper_oversubscription,
        in_network=tier_in_network,
        global_links=tier_global_links,
    )


@formula(unit="1", source="dally2004", host=True, inner=("tier",))
def tier_links(tier_traits):
    """Links of one device that share its bandwidth, by tier: two for every side of a torus, one through a switch."""
    shape = shape_of(tier_traits)
    return [links(kind, sides) for kind, sides in zip(shape.kinds, shape.sides, strict=True)]


@formula(unit="1", source="dally2004", host=True)
def shape_exists(tier_traits):
    """1 where a fabric of these kinds and sides can be built."""
    return float(exists(shape_of(tier_traits)))


@alternative(of="fabric_exists", by="library", label="ideal", unit="1", source="dally2004")
def ideal_exists(shape_exists):
    """1 where a fabric of these kinds and sides can be built."""
    return shape_exists


@formula(unit="byte/s", source="scalingbook2025")
def tier_link_bandwidth(
    tier_stated_bandwidth,
    scale_up_bandwidth,
    scale_out_bandwidth,
    scale_up_efficiency,
    scale_out_efficiency,
    scale_up_ports,
    tier_links,
):
    """Payload bandwidth of one link and direction, by tier.

    A device's ports are shared out evenly to its links and those left over stay idle (a torus of two sides uses four of
    six ports); with fewer ports than links, or an unknown number, the bandwidth itself is shared out.
    """
    own = table("tier", scale_up=scale_up_bandwidth, scale_out=scale_out_bandwidth)
    efficiency = table("tier", scale_up=scale_up_efficiency, scale_out=scale_out_efficiency)
    ports = table("tier", scale_up=scale_up_ports, scale_out=0.0)
    whole = (tier_stated_bandwidth <= 0) & (ports >= tier_links)
    share = xp.where(whole, xp.floor(ports / tier_links) / xp.maximum(ports, 1.0), 1 / tier_links)
    return xp.where(tier_stated_bandwidth > 0, tier_stated_bandwidth, own) * efficiency * share


# ---- what schedules ask, and what that costs ------------------------------------------------------------------------


@formula(family=GATHERING, **TABLE)
def GROUP_gather_demand(tier_traits, GROUP, GROUP_stride):
    """What all-gathers (reduce-scatters) of the GROUP group ask of the tiers, by demand, algorithm and tier."""
    return demand(shape_of(tier_traits), "all_gather", int(GROUP), int(GROUP_stride))


@formula(family={"GROUP": tuple(g for g in GATHERING["GROUP"] if g != "tied")}, **TABLE)
def GROUP_all_reduce_demand(tier_traits, GROUP, GROUP_stride):
    """What all-reduces of the GROUP group ask of the tiers, by demand, algorithm and tier."""
    return demand(shape_of(tier_traits), "all_reduce", int(GROUP), int(GROUP_stride))


@formula(**TABLE)
def tied_all_reduce_demand(tier_traits, tied, tied_stride, pp_stride, pp):
    """What all-reduces between the first and the last stage ask of the tiers, by demand, algorithm and tier.

    Where two stages that far apart are no regular group, two exchanges of half the message between the stages.
    """
    shape = shape_of(tier_traits)
    for stride in (tied_stride, pp_stride * (pp // 2)):
        found = demand(shape, "all_reduce", int(tied), int(stride), False)
        if found.any():
            return found
    return demand(shape, "send_recv", int(pp), int(pp_stride)) * TWO_HALVES[:, None, None]


@formula(**TABLE)
def pp_transfer_demand(tier_traits, pp, pp_stride):
    """What sending from every pipeline stage to the next asks of the tiers, by demand, algorithm and tier."""
    return demand(shape_of(tier_traits), "send_recv", int(pp), int(pp_stride))


@formula(**TABLE)
def ring_transfer_demand(tier_traits, sequence_split, sequence_split_stride):
    """What handing on from every rank of a ring to the next asks of the tiers, by demand, algorithm and tier."""
    return demand(shape_of(tier_traits), "send_recv", int(sequence_split), int(sequence_split_stride))


@formula(unit="s", source="thakur2005", family=CALLS)
def CALL_latency(CALL_demand, tier_step_latency, tier_hop_latency, tier_message_latency):
    """Latency of a CALL, by algorithm and span."""
    return coefficients(CALL_demand, tier_step_latency, tier_hop_latency, 1.0, tier_message_latency).latency


@formula(unit="s/byte", source="thakur2005", family=CALLS)
def CALL_inverse_bandwidth(CALL_demand, tier_link_bandwidth):
    """Time of a CALL per byte of its message, by algorithm and span."""
    return coefficients(CALL_demand, 0.0, 0.0, tier_link_bandwidth, 0.0).inverse_bandwidth


@formula(unit="s", source="sanders2009twotree", family=CALLS)
def CALL_chunk_latency(CALL_demand, tier_step_latency, tier_hop_latency, tier_message_latency):
    """Latency that every chunk of a CALL's message adds, by algorithm and span."""
    return coefficients(CALL_demand, tier_step_latency, tier_hop_latency, 1.0, tier_message_latency).chunk_latency


@formula(unit="s/byte", source="sanders2009twotree", family=CALLS)
def CALL_chunk_inverse_bandwidth(CALL_demand, tier_link_bandwidth):
    """Time per byte of a chunk that a CALL's message waits for its first chunk, by algorithm and span."""
    return coefficients(CALL_demand, 0.0, 0.0, tier_link_bandwidth, 0.0).chunk_inverse_bandwidth


# ---- the fastest ----------------------------------------------------------------------------------------------------


@alternative(of="GROUP_CALL_time", by="library", label="ideal", unit="s", source="thakur2005", family=EVERY_CALL)
def GROUP_CALL_fastest_time(
    GROUP_message,
    GROUP_CALL_latency,
    GROUP_CALL_inverse_bandwidth,
    GROUP_CALL_chunk_latency,
    GROUP_CALL_chunk_inverse_bandwidth,
    GROUP_named_algorithm,
    unavailable,
):
    """Time of the fastest CALL in the GROUP group that the links allow."""
    parts = (GROUP_CALL_chunk_latency, GROUP_CALL_chunk_inverse_bandwidth)
    times = schedule_time(GROUP_message, GROUP_CALL_latency, GROUP_CALL_inverse_bandwidth, *parts)
    return fastest(times, GROUP_named_algorithm, unavailable)


@alternative(of="GROUP_CALL_number", by="library", label="ideal", unit="1", source="thakur2005", family=EVERY_CALL)
def GROUP_CALL_fastest_number(
    GROUP_message,
    GROUP_CALL_latency,
    GROUP_CALL_inverse_bandwidth,
    GROUP_CALL_chunk_latency,
    GROUP_CALL_chunk_inverse_bandwidth,
    GROUP_named_algorithm,
    unavailable,
):
    """Number of the fastest CALL in the GROUP group that the links allow."""
    parts = (GROUP_CALL_chunk_latency, GROUP_CALL_chunk_inverse_bandwidth)
    times = schedule_time(GROUP_message, GROUP_CALL_latency, GROUP_CALL_inverse_bandwidth, *parts)
    return which_fastest(times, GROUP_named_algorithm, unavailable)


@alternative(of="pp_transfer_time", by="library", label="ideal", unit="s", source="thakur2005")
def pp_fastest_transfer_time(
    pp_message,
    pp_transfer_latency,
    pp_transfer_inverse_bandwidth,
    pp_transfer_chunk_latency,
    pp_transfer_chunk_inverse_bandwidth,
    pp_named_algorithm,
    unavailable,
):
    """Time of one hand-over between neighbouring stages, all of which send at the same time."""
    parts = (pp_transfer_chunk_latency, pp_transfer_chunk_inverse_bandwidth)
    times = schedule_time(pp_message, pp_transfer_latency, pp_transfer_inverse_bandwidth, *parts)
    return fastest(times, pp_named_algorithm, unavailable)


@alternative(of="ring_transfer_time", by="library", label="ideal", unit="s", source="liu2023ring")
def ring_fastest_transfer_time(
    ring_message,
    ring_transfer_latency,
    ring_transfer_inverse_bandwidth,
    ring_transfer_chunk_latency,
    ring_transfer_chunk_inverse_bandwidth,
    cp_named_algorithm,
    unavailable,
):
    """Time of one hand-over to the next rank of a ring, by phase."""
    parts = (ring_transfer_chunk_latency, ring_transfer_chunk_inverse_bandwidth)
    times = schedule_time(ring_message, ring_transfer_latency, ring_transfer_inverse_bandwidth, *parts)
    return fastest(times, cp_named_algorithm, unavailable)


@formula(unit="1", source="thakur2005", family=EVERY_CALL, flags=CHOSEN)
def GROUP_CALL_algorithm(GROUP_CALL_number):
    """Which algorithm runs a CALL in the GROUP group."""
    return GROUP_CALL_number


@alternative(of="GROUP_fills", by="library", label="ideal", unit="1", source="narayanan2021", family=GATHERING)
def GROUP_fills_shape(GROUP_gather_demand):
    """1 where the GROUP ranks fill whole domains of every tier."""
    return largest(at(GROUP_gather_demand, demand="offered", tier="scale_up"), "algorithm")


@alternative(of="stages_placed", by="library", label="ideal", unit="1", source="narayanan2021")
def shape_holds_stages(pp_transfer_demand, tied_all_reduce_demand):
    """1 where the pipeline stages, and the first and the last of them, fill whole domains of every tier."""
    rows = (at(table, demand="offered", tier="scale_up") for table in (pp_transfer_demand, tied_all_reduce_demand))
    stages, ends = (largest(row, "algorithm") for row in rows)
    return xp.minimum(stages, ends)
