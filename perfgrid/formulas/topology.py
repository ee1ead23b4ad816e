"""The fabric: sizes, bandwidths and latencies of its tiers, by `tier` (innermost first)."""

from perfgrid.engine import xp
from perfgrid.engine.registry import constraint, formula

from .axes import at, largest, table


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


@formula(unit="s", source="thakur2005")
def tier_latency(tier_step_latency, tier_hops, tier_hop_latency):
    """Latency of one step between two members, by tier: software and protocol plus the links passed."""
    return tier_step_latency + tier_hops * tier_hop_latency


@constraint(kind="illegal", reason="the fabric does not fit the device's scale-up links", source="narayanan2021")
def topology_fits_device(device_link, topology_link):
    """Device and fabric share a family of scale-up links."""
    return largest(device_link * topology_link, "link") > 0


@constraint(kind="illegal", reason="the cluster is larger than the fabric's outermost tier", source="narayanan2021")
def cluster_fits_topology(devices, tier_size):
    """The outermost tier joins all devices of the cluster."""
    return devices <= at(tier_size, tier="scale_out")
