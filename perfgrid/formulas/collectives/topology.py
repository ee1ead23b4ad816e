"""The fabric: sizes, bandwidths and latencies of its tiers, by `tier` (innermost first); shapes of ideal fabrics."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.engine.graph.tables import bind, by_label, positive
from perfgrid.formulas.axes import at, join, largest, row_of, rows, table, total
from perfgrid.formulas.collectives.schedules.fabric import TIER_KINDS

from .ideal_tables import FABRIC, fabric_of, links
from .placement import RANKS

UNLIMITED = 1e9  # devices of a domain without a limit
ROUNDING = 1e-6  # rates that miss a whole number by this are whole


def payload_rate(stated, scale_up, network, scale_up_efficiency, scale_out_efficiency):
    """Payload that all links of a device carry per direction, by tier, on a fabric that states its rate or does not."""
    own = at(stated, tier="scale_up")
    rate = table("tier", scale_up=xp.where(own > 0, own, scale_up), scale_out=network)
    return rate * table("tier", scale_up=scale_up_efficiency, scale_out=scale_out_efficiency)


def group_bandwidth(tier_bandwidth, tier_peer_bandwidth, tier_ranks, congestion):
    """Payload bandwidth of one device inside a group, by tier: only the links to its n - 1 peers carry it.

    In a shared network it falls by a power of the number of domains that the group spans. Source: amd2023cdna3.
    """
    peers = xp.where(tier_ranks > 1, tier_peer_bandwidth * (tier_ranks - 1), tier_bandwidth)
    domains = xp.maximum(at(tier_ranks, tier="scale_out"), 1.0)
    return xp.minimum(tier_bandwidth, peers) * table("tier", scale_up=1.0, scale_out=domains**-congestion)


@formula(unit="1", source="narayanan2021")
def tier_size(tier_size_limit, scale_up_size):
    """Devices in one domain of a tier, by tier: as the fabric states, or the device's scale-up domain and no limit."""
    unstated = table("tier", scale_up=scale_up_size, scale_out=UNLIMITED)
    return xp.where(tier_size_limit > 0, tier_size_limit, unstated)


@alternative(of="network_rate", by="network_sizing", label="rate", unit="byte/s", source="narayanan2021")
def stated_network_rate(tier_stated_bandwidth, scale_out_bandwidth):
    """Rate of a device's links into the network, per direction: as the fabric states, or the device's own."""
    stated = at(tier_stated_bandwidth, tier="scale_out")
    return xp.where(stated > 0, stated, scale_out_bandwidth)


@formula(unit="byte/s", source="narayanan2021")
def tier_bandwidth(
    tier_stated_bandwidth,
    scale_up_bandwidth,
    network_rate,
    scale_up_efficiency,
    scale_out_efficiency,
    tier_oversubscription,
):
    """Payload bandwidth of one device and direction, by tier: rate · efficiency / oversubscription.

    Valid where all devices of a tier send at once, each its share of what is oversubscribed.
    """
    rates = (tier_stated_bandwidth, scale_up_bandwidth, network_rate)
    return payload_rate(*rates, scale_up_efficiency, scale_out_efficiency) / tier_oversubscription


@formula(unit="byte/s", source="amd2023cdna3")
def tier_peer_bandwidth(tier_bandwidth, scale_up_links, tier_stated_bandwidth):
    """Payload bandwidth from one device to one other, by tier: all through a switch, one of l links of a full mesh."""
    links = table("tier", scale_up=xp.maximum(scale_up_links, 1.0), scale_out=1.0)
    return tier_bandwidth / xp.where(tier_stated_bandwidth > 0, 1.0, links)


@constraint(
    reason="the fabric does not fit the device's scale-up links",
    source="narayanan2021",
    workload=("training", "inference", "collectives"),
)
def topology_fits_device(device_link, topology_link):
    """Device and fabric share a family of scale-up links."""
    return largest(device_link * topology_link, "link_family") > 0


@constraint(
    reason="the cluster is larger than the fabric", source="narayanan2021", workload=("training", "collectives")
)
def cluster_fits_topology(devices, fabric_size):
    """The fabric joins all devices of the cluster."""
    return devices <= fabric_size


# ---- shapes of ideal fabrics ----------------------------------------------------------------------------------------


def or_one_side(sides, length):
    """The stated sides, or a single one where none is stated."""
    return xp.where(total(sides, "side") > 0, sides, join("side", length, 0.0, 0.0, 0.0))


def product_of(sides):
    """Devices of a shape: the product of its sides."""
    lengths = xp.maximum(sides, 1.0)
    return (
        at(lengths, side="first") * at(lengths, side="second") * at(lengths, side="third") * at(lengths, side="fourth")
    )


@formula(unit="1", source="cho2019blueconnect")
def tier_sides(scale_up_sides, scale_out_sides, tier_size, devices):
    """Shape of each tier, by side and tier: as stated, or the scale-up domain and as many as the cluster fills."""
    inside = or_one_side(scale_up_sides, at(tier_size, tier="scale_up"))
    between = or_one_side(scale_out_sides, xp.ceil(devices / product_of(inside)))
    return table("tier", scale_up=inside, scale_out=between)


@alternative(of="fabric_size", by="library", label="ideal", unit="1", source="narayanan2021")
def shape_size(tier_sides):
    """Devices that the shape of the fabric holds."""
    inside, between = (product_of(at(tier_sides, tier=tier)) for tier in ("scale_up", "scale_out"))
    return inside * between


@formula(unit="1", source="alfares2008fattree")
def tier_tapers(tier_oversubscription, upper_oversubscription):
    """Oversubscription of every level of switches, by side and tier: of the leaves, and of all levels above."""
    return join("side", tier_oversubscription, *(3 * (upper_oversubscription,)))


@formula(unit="1", source="dally2004", host=True, inner=("tier",))
def tier_links(tier_kind, tier_sides):
    """Links of one device that share its bandwidth, by tier: two for every side of a torus, one through a switch."""
    return [links(TIER_KINDS[int(kind)], sides[sides > 0]) for kind, sides in zip(tier_kind, tier_sides.T, strict=True)]


def shape_exists(*fabric):
    """1 where a fabric of these kinds and sides can be built."""
    return float(fabric_of(*fabric) is not None)


@alternative(of="network_lanes", by="network_sizing", label="rate", unit="1", source="ieee2017bs")
def stated_network_lanes(stated_network_rate, lane_rate):
    """Lanes of a device's ports into the network: as many as its rate fills."""
    return xp.ceil(stated_network_rate / lane_rate * (1 - ROUNDING))


@formula(unit="1", source="ieee2017bs")
def tier_lanes(scale_up_ports, tier_stated_bandwidth, network_lanes):
    """What a link takes whole of a device, by tier: scale-up ports, lanes of its network ports; 0: unknown."""
    stated = at(tier_stated_bandwidth, tier="scale_up")
    return table("tier", scale_up=xp.where(stated > 0, 0.0, scale_up_ports), scale_out=network_lanes)


@formula(unit="byte/s", source="scalingbook2025")
def tier_link_bandwidth(
    tier_stated_bandwidth,
    scale_up_bandwidth,
    network_rate,
    scale_up_efficiency,
    scale_out_efficiency,
    tier_lanes,
    tier_links,
):
    """Payload bandwidth of one link and direction, by tier.

    A device's lanes are shared out evenly to its links and those left over stay idle: a torus of two sides uses four of
    six scale-up ports, one of three sides six of the eight lanes of a network port. Where their number is unknown the
    bandwidth itself is shared out.
    """
    rates = (tier_stated_bandwidth, scale_up_bandwidth, network_rate)
    payload = payload_rate(*rates, scale_up_efficiency, scale_out_efficiency)
    whole = xp.floor(tier_lanes / tier_links) / xp.maximum(tier_lanes, 1.0)
    return payload * xp.where(tier_lanes >= tier_links, whole, 1 / tier_links)


@constraint(
    reason="a link of the fabric has no lane of the device's ports",
    source="ieee2017bs",
    about="tier_link_bandwidth",
    workload=("training", "inference", "collectives"),
)
def links_have_lanes(tier_links, tier_lanes):
    """Each link has at least one lane, or a scale-up port, of its own."""
    without = (tier_links > tier_lanes) & (tier_lanes > 0)
    return total(xp.where(without, 1.0, 0.0), "tier") < 1


FORMULAS = (
    *bind(
        *(row_of({"tier": "scale_out"}), "nccl_fabric_size", "tier_size", "1", "narayanan2021"),
        "Devices that the fabric joins: those of the outermost tier, of switches.",
        of=("fabric_size", "library", "nccl"),
    ),
    *by_label(
        "library",
        {"fabric_exists": ("1", "dally2004", "1 where the fabric can be built: tiers of switches always can.")},
        {"nccl": (1,)},
    ),
    *bind(
        *(shape_exists, "shape_exists", FABRIC, "1", "dally2004"),
        of=("fabric_exists", "library", "ideal"),
        host=(),
    ),
    # the lanes of the one port whose rate a budget buys, as of the switches' ports of 400 Gbit/s, follow no price: so
    # the times of designs that are not sized by a budget have no columns of prices
    *by_label("network_sizing", {"network_lanes": ("1", "ieee2017bs", "Lanes of a device's ports.")}, {"budget": (8,)}),
    *positive(
        *("topology_exists", "fabric_exists", "dally2004"),
        "A fabric of the stated kinds and sides can be built.",
        "a fabric with tiers of these kinds and sides cannot be built",
        workloads=("training", "collectives"),
    ),
    *bind(
        *(group_bandwidth, "GROUP_tier_bandwidth"),
        *("tier_bandwidth tier_peer_bandwidth GROUP_tier_ranks congestion", "byte/s", "amd2023cdna3"),
        family=RANKS,
    ),
    *rows(
        *("tier_transfer_latency", "nccl_step_latency", "s", "nccl2026tuning"),
        "Latency of one message between two members, by tier: a step in the protocol for large messages (simple).",
        nccl_algorithm="ring",
        protocol="simple",
    ),
)
