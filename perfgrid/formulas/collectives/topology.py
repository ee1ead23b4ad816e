"""The fabric: sizes, bandwidths and latencies of its tiers, by `tier` (innermost first)."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.axes import at, largest, table

from .collectives import GATHERING


@formula(unit="1", source="narayanan2021")
def unlimited_domain():
    """Devices of a domain without a limit."""
    return 1e9


@formula(unit="1", source="narayanan2021")
def tier_size(tier_size_limit, scale_up_size, unlimited_domain):
    """Devices in one domain of a tier, by tier: as the fabric states, or the device's scale-up domain and no limit."""
    unstated = table("tier", scale_up=scale_up_size, scale_out=unlimited_domain)
    return xp.where(tier_size_limit > 0, tier_size_limit, unstated)


@formula(unit="byte/s", source="narayanan2021")
def tier_bandwidth(
    tier_stated_bandwidth,
    scale_up_bandwidth,
    scale_out_bandwidth,
    scale_up_efficiency,
    scale_out_efficiency,
    tier_oversubscription,
):
    """Payload bandwidth of one device and direction, by tier."""
    own = table("tier", scale_up=scale_up_bandwidth, scale_out=scale_out_bandwidth)
    efficiency = table("tier", scale_up=scale_up_efficiency, scale_out=scale_out_efficiency)
    return xp.where(tier_stated_bandwidth > 0, tier_stated_bandwidth, own) * efficiency / tier_oversubscription


@formula(unit="byte/s", source="amd2023cdna3")
def tier_peer_bandwidth(tier_bandwidth, scale_up_links, tier_stated_bandwidth):
    """Payload bandwidth from one device to one other, by tier: all through a switch, one link of a full mesh."""
    links = table("tier", scale_up=xp.maximum(scale_up_links, 1.0), scale_out=1.0)
    return tier_bandwidth / xp.where(tier_stated_bandwidth > 0, 1.0, links)


@formula(unit="byte/s", source="amd2023cdna3", family={"GROUP": (*GATHERING["GROUP"], "ep", "head_split")})
def GROUP_tier_bandwidth(tier_bandwidth, tier_peer_bandwidth, GROUP_tier_ranks, congestion):
    """Payload bandwidth of one device inside the GROUP group, by tier: only the links to its n - 1 peers carry it.

    In a shared network it falls by a power of the number of domains that the group spans.
    """
    peers = xp.where(GROUP_tier_ranks > 1, tier_peer_bandwidth * (GROUP_tier_ranks - 1), tier_bandwidth)
    domains = xp.maximum(at(GROUP_tier_ranks, tier="scale_out"), 1.0)
    return xp.minimum(tier_bandwidth, peers) * table("tier", scale_up=1.0, scale_out=domains**-congestion)


@formula(unit="s", source="thakur2005")
def tier_path_latency(tier_hops, tier_hop_latency):
    """Latency of the links between two members, by tier."""
    return tier_hops * tier_hop_latency


@constraint(
    kind="illegal",
    reason="the fabric does not fit the device's scale-up links",
    source="narayanan2021",
    workload=("training", "inference", "collectives"),
)
def topology_fits_device(device_link, topology_link):
    """Device and fabric share a family of scale-up links."""
    return largest(device_link * topology_link, "link_family") > 0


@alternative(of="fabric_size", by="library", label="nccl", unit="1", source="narayanan2021")
def outermost_size(tier_size):
    """Devices that the outermost tier joins."""
    return at(tier_size, tier="scale_out")


@alternative(of="fabric_exists", by="library", label="nccl", unit="1", source="narayanan2021")
def tiers_exist():
    """1 where the fabric can be built: tiers of switches always can."""
    return 1.0


@constraint(
    kind="illegal",
    reason="no fabric has tiers of these kinds and sides",
    source="dally2004",
    workload=("training", "collectives"),
)
def topology_exists(fabric_exists):
    """A fabric of the stated kinds and sides can be built."""
    return fabric_exists > 0


@constraint(
    kind="illegal",
    reason="the cluster is larger than the fabric",
    source="narayanan2021",
    workload=("training", "collectives"),
)
def cluster_fits_topology(devices, fabric_size):
    """The fabric joins all devices of the cluster."""
    return devices <= fabric_size
