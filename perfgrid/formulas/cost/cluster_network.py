"""The scale-out network as a shopping list: switches, links and their power, counted from the topology.

A plane is one fabric of its own: every rail of a rail-optimised network (one device of each domain) and every port of a
device that needs several. Inside a plane switches form a folded Clos network, a dragonfly, or there are none.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import constraint, formula
from perfgrid.formulas.axes import at, total
from perfgrid.formulas.collectives.schedules.fabric import TIER_KINDS

CODES = {kind: float(code) for code, kind in enumerate(TIER_KINDS)}
FAT_TREES, DRAGONFLY = ("switch", "rail", "rail_only", "fat_tree"), "dragonfly"
ROUNDING = 1e-6  # rates that miss a whole number by this are whole
NEIGHBOURS = ("ring", "line", "torus", "mesh", "twisted_torus")  # one link each way and side

# ---- equations ------------------------------------------------------------------------------------------------------


def leaf_ports(radix, oversubscription):
    """Ports of a leaf switch that lead down, of ``radix``; the others lead up."""
    return xp.floor(radix * oversubscription / (1 + oversubscription))


def clos_tiers(endpoints, radix, oversubscription):
    """Tiers of switches between so many endpoints: k ports reach k, k·d with leaves of d ports down, k·k/2·d."""
    down = leaf_ports(radix, oversubscription)
    return 1.0 + xp.where(endpoints > radix, 1.0, 0.0) + xp.where(endpoints > radix * down, 1.0, 0.0)


def clos_capacity(radix, oversubscription):
    """Endpoints of three tiers: k^3/4 without oversubscription (Al-Fares 2008)."""
    return leaf_ports(radix, oversubscription) * radix / 2 * radix


def clos_switches(endpoints, radix, oversubscription):
    """Switches of a folded Clos network: n/k, 3·n/k or 5·n/k without oversubscription; every layer rounded up."""
    down = leaf_ports(radix, oversubscription)
    leaves = xp.ceil(endpoints / down)
    raised = leaves * (radix - down)  # links that leave the leaves
    middle = xp.ceil(raised / (radix / 2))
    tiers = clos_tiers(endpoints, radix, oversubscription)
    two = leaves + xp.ceil(raised / radix)
    three = leaves + middle + xp.ceil(middle / 2)
    one = xp.where(endpoints > 2, xp.ceil(endpoints / radix), 0.0)  # two endpoints are joined by a cable
    return xp.where(tiers > 2, three, xp.where(tiers > 1, two, one))


def clos_links(endpoints, radix, oversubscription):
    """Links of a folded Clos network: n to the leaves and n over the oversubscription between any two tiers."""
    tiers = clos_tiers(endpoints, radix, oversubscription)
    joined = xp.where(endpoints > 2, endpoints, endpoints / 2)
    return joined + endpoints * (tiers - 1) / oversubscription


def dragonfly_links(endpoints, routers, groups, global_links):
    """Links of a dragonfly: to the endpoints, all to all within the groups, and h from every router (Kim 2008)."""
    return endpoints + groups * routers * (routers - 1) / 2 + groups * routers * global_links / 2


def dragonfly_groups(endpoints, routers, ports):
    """Groups of routers, each router with so many ports to endpoints, that a dragonfly of this size is built of."""
    return xp.ceil(endpoints / xp.maximum(routers * ports, 1.0) * (1 - ROUNDING))


def _is_one_of(kind, *names):
    return sum(xp.where(kind == CODES[name], 1.0, 0.0) for name in names)


# ---- the fabric -----------------------------------------------------------------------------------------------------


@formula(unit="byte/s", source="narayanan2021")
def network_rate(tier_stated_bandwidth, scale_out_bandwidth):
    """Rate of a device's links into the network, per direction: as the fabric states, or the device's own."""
    stated = at(tier_stated_bandwidth, tier="scale_out")
    return xp.where(stated > 0, stated, scale_out_bandwidth)


@formula(unit="1", source="gpucluster2024sheet")
def network_ports(network_rate, switch_port_rate):
    """Ports of one device into the network: as many as its rate fills."""
    return xp.ceil(network_rate / switch_port_rate * (1 - ROUNDING))


@formula(unit="1", source="gpucluster2024sheet")
def switch_port_splits(network_rate, switch_port_rate):
    """Links into which a port of a switch is split, where a device needs only a part of its rate."""
    return xp.floor(xp.maximum(switch_port_rate / network_rate * (1 + ROUNDING), 1.0))


@formula(unit="1", source="gpucluster2024sheet")
def network_radix(switch_ports, switch_port_splits):
    """Links that a switch joins."""
    return switch_ports * switch_port_splits


@formula(unit="1", source="wang2023railonly")
def network_kind(tier_kind):
    """How the scale-out tier is wired, as the number of its kind."""
    return at(tier_kind, tier="scale_out")


@formula(unit="1", source="wang2023railonly")
def network_planes(network_kind, network_ports, devices, tier_size):
    """Fabrics of their own: one per port, on rails and on shapes of domains one per device of a domain."""
    shared = _is_one_of(network_kind, "switch", "fat_tree")
    rails = xp.minimum(at(tier_size, tier="scale_up"), devices)
    return network_ports * xp.where(shared > 0, 1.0, rails)


@formula(unit="1", source="wang2023railonly")
def network_endpoints(network_planes, network_ports, devices, tier_size):
    """Endpoints of one plane; 0 where one scale-up domain holds the whole cluster."""
    domains = xp.ceil(devices / at(tier_size, tier="scale_up"))
    return xp.where(domains > 1, devices * network_ports / network_planes, 0.0)


@formula(unit="1", source="alfares2008fattree")
def network_oversubscription(tier_oversubscription):
    """Ports down over ports up of the leaf switches."""
    return at(tier_oversubscription, tier="scale_out")


@formula(unit="1", source="alfares2008fattree, kim2008dragonfly")
def network_switches(
    network_kind, network_planes, network_endpoints, network_radix, network_oversubscription, scale_out_sides
):
    """Switches of the scale-out network: of a Clos network, or the routers of as many groups as a dragonfly needs."""
    first, second = at(scale_out_sides, side="first"), at(scale_out_sides, side="second")
    routers = second * dragonfly_groups(network_endpoints, second, first)
    clos = clos_switches(network_endpoints, network_radix, network_oversubscription)
    each = _is_one_of(network_kind, *FAT_TREES) * clos + _is_one_of(network_kind, DRAGONFLY) * routers
    return network_planes * each


@formula(unit="1", source="alfares2008fattree, kim2008dragonfly")
def network_links(
    network_kind,
    network_planes,
    network_endpoints,
    network_radix,
    network_oversubscription,
    scale_out_sides,
    tier_global_links,
):
    """Links of the scale-out network, those to the devices among them; without switches one per endpoint and side."""
    sides = total(xp.where(scale_out_sides > 1, 1.0, 0.0), "side")
    first, second = at(scale_out_sides, side="first"), at(scale_out_sides, side="second")
    groups = dragonfly_groups(network_endpoints, second, first)
    dragonfly = dragonfly_links(network_endpoints, second, groups, at(tier_global_links, tier="scale_out"))
    each = (
        _is_one_of(network_kind, *FAT_TREES) * clos_links(network_endpoints, network_radix, network_oversubscription)
        + _is_one_of(network_kind, DRAGONFLY) * dragonfly
        + _is_one_of(network_kind, *NEIGHBOURS) * network_endpoints * xp.maximum(sides, 1.0)
        + _is_one_of(network_kind, "fully_connected") * network_endpoints * (network_endpoints - 1) / 2
    )
    return xp.where(network_endpoints > 0, network_planes * each, 0.0)


@constraint(
    reason="the switches of a network of this kind are not counted", source="dally2004", about="network_capital"
)
def network_is_counted(network_kind):
    """The network is one of those whose switches and links are counted."""
    return _is_one_of(network_kind, *FAT_TREES, DRAGONFLY, *NEIGHBOURS, "fully_connected") > 0


@constraint(
    reason="three tiers of these switches do not join that many endpoints",
    source="alfares2008fattree",
    about="network_capital",
)
def network_is_large_enough(network_kind, network_endpoints, network_radix, network_oversubscription):
    """Three tiers of switches suffice."""
    fits = network_endpoints <= clos_capacity(network_radix, network_oversubscription)
    return fits | (_is_one_of(network_kind, *FAT_TREES) < 1)


# ---- money and power ------------------------------------------------------------------------------------------------


@formula(unit="USD", source="gpucluster2024sheet")
def switch_cost(network_switches, switch_price):
    """Price of all switches of the scale-out network."""
    return network_switches * switch_price


@formula(unit="USD", source="gpucluster2024sheet")
def cable_cost(network_links, transceiver_price, fibre_price):
    """Price of all links of the scale-out network: a transceiver at both ends and a fibre."""
    return network_links * (2 * transceiver_price + fibre_price)


@formula(unit="USD", source="gpucluster2024sheet")
def network_capital(switch_cost, cable_cost):
    """Price of the scale-out network without adapters, which belong to the servers."""
    return switch_cost + cable_cost


@formula(unit="W", source="jouppi2023tpuv4")
def network_power(network_switches, network_links, switch_power, transceiver_power):
    """Power of the scale-out network, which hardly depends on its traffic: switches and transceivers."""
    return network_switches * switch_power + 2 * network_links * transceiver_power
