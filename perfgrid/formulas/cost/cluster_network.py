"""The scale-out network as a shopping list: switches and links, counted from the topology.

A plane is one fabric of its own: every rail of a rail-optimised network (one device of each domain) and every port of a
device that needs several. Inside a plane switches form a folded Clos network, or routers a dragonfly or a flattened
butterfly; on tori, meshes and full meshes the devices themselves route and there are none.

Links come by `reach`: to the devices, inside a group of neighbours (a group of a dragonfly, the first side of a
flattened butterfly, the sides of a torus, which folding keeps short), and through the network.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.formulas.axes import INNER, at, join, table, total
from perfgrid.formulas.collectives.schedules.fabric import ROUTED, SWITCHED, TIER_KINDS
from perfgrid.formulas.collectives.topology import ROUNDING

CODES = {kind: float(code) for code, kind in enumerate(TIER_KINDS)}
SIDES = INNER.labels["side"]
NEIGHBOURS = ("ring", "line", "torus", "mesh", "twisted_torus")  # one link each way and side
OPEN = ("line", "mesh")  # their sides do not close
MESHED = ("fully_connected", "hyperx", "hypercube")  # a link to every other position of a side

# ---- equations: folded Clos -----------------------------------------------------------------------------------------


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
    """Links of a folded Clos network, by reach: n to the leaves, n over the oversubscription between any two tiers."""
    tiers = clos_tiers(endpoints, radix, oversubscription)
    joined = xp.where(endpoints > 2, endpoints, endpoints / 2)
    return table("reach", device=joined, group=0.0, network=endpoints * (tiers - 1) / oversubscription)


# ---- equations: shapes ----------------------------------------------------------------------------------------------


def built_sides(sides, endpoints):
    """Sides of the part of a shape that so many endpoints need: the outermost is built as far as they reach."""
    found, inside = [], 1.0
    for side in SIDES:
        length = xp.maximum(at(sides, side=side), 1.0)
        found.append(xp.minimum(length, xp.maximum(xp.ceil(endpoints / inside * (1 - ROUNDING)), 1.0)))
        inside = inside * found[-1]
    return join("side", *found)


def dragonfly_links(endpoints, routers, groups, built, global_links):
    """Links of a dragonfly, by reach: to the endpoints, all to all within the groups, and between groups.

    A design of g groups has a·h/(g - 1) links between any two on average; only the groups ``built`` are joined.
    Source: kim2008dragonfly, section 3; teh2017dragonfly.
    """
    between = routers * global_links / xp.maximum(groups - 1, 1.0)
    return table(
        "reach",
        device=endpoints,
        group=built * routers * (routers - 1) / 2,
        network=built * (built - 1) / 2 * between,
    )


def butterfly_links(endpoints, built):
    """Links of a flattened butterfly, by reach: along its sides every router has one to every other.

    Source: kim2007butterfly, section 2.
    """
    first, *outer = (at(built, side=side) for side in SIDES[1:])
    routers = first
    for side in outer:
        routers = routers * side
    beyond = sum(side - 1 for side in outer)
    return table("reach", device=endpoints, group=routers * (first - 1) / 2, network=routers * beyond / 2)


def router_ports(sides, global_links, kind_is_dragonfly):
    """Ports of one router: p + (a - 1) + h of a dragonfly, p + the sum of k - 1 over the sides of a butterfly.

    Source: kim2008dragonfly, section 3; kim2007butterfly, section 2.
    """
    p, a, groups, _ = (xp.maximum(at(sides, side=side), 1.0) for side in SIDES)
    along = total(xp.maximum(sides - 1, 0.0), "side") - (p - 1)
    return p + xp.where(kind_is_dragonfly > 0, a - 1 + xp.where(groups > 1, global_links, 0.0), along)


def neighbour_links(endpoints, sides, is_open):
    """Links between neighbours: one for every side of a ring or torus, (k - 1)/k where the side is open."""
    missing = xp.where(is_open > 0, 1 / xp.maximum(sides, 1.0), 0.0)
    return table("reach", device=0.0, group=endpoints * total(xp.where(sides > 1, 1 - missing, 0.0), "side"), network=0)


def meshed_links(endpoints, sides):
    """Links of a full mesh or HyperX of the devices, by reach: half of k - 1 along every side of k.

    Source: ahn2009hyperx, section 2.
    """
    along = xp.maximum(sides - 1, 0.0)
    first = at(along, side="first")
    others = total(along, "side") - first
    return table("reach", device=0.0, group=endpoints * first / 2, network=endpoints * others / 2)


def is_one_of(kind, *names):
    """1 where a tier is of one of these kinds, else 0."""
    return sum(xp.where(kind == CODES[name], 1.0, 0.0) for name in names)


# ---- devices and planes ---------------------------------------------------------------------------------------------


@alternative(of="network_ports", by="network_sizing", label="rate", unit="1", source="gpucluster2024sheet")
def whole_network_ports(stated_network_rate, switch_port_rate):
    """Ports of one device into the network: as many as its rate fills."""
    return xp.ceil(stated_network_rate / switch_port_rate * (1 - ROUNDING))


@alternative(of="switch_port_splits", by="network_sizing", label="rate", unit="1", source="gpucluster2024sheet")
def whole_switch_port_splits(stated_network_rate, switch_port_rate):
    """Links into which a port of a switch is split, where a device needs only a part of its rate."""
    return xp.floor(xp.maximum(switch_port_rate / stated_network_rate * (1 + ROUNDING), 1.0))


@alternative(of="network_ports", by="network_sizing", label="budget", unit="1", source="kim2008dragonfly")
def one_network_port():
    """Ports of one device into a network whose links run at the rate that the budget buys: one."""
    return 1.0


@alternative(of="switch_port_splits", by="network_sizing", label="budget", unit="1", source="kim2008dragonfly")
def unsplit_switch_ports():
    """Links of a port whose rate is that of the device: one."""
    return 1.0


@formula(unit="1", source="gpucluster2024sheet")
def network_radix(switch_ports, switch_port_splits):
    """Links that a switch joins."""
    return switch_ports * switch_port_splits


@formula(unit="1", source="wang2023railonly")
def network_kind(tier_kind):
    """How the scale-out tier is wired, as the number of its kind."""
    return at(tier_kind, tier="scale_out")


@formula(unit="1", source="dally2004")
def devices_route(network_kind):
    """1 where the devices pass on what is not theirs and the network has no switches."""
    return is_one_of(network_kind, *NEIGHBOURS, *MESHED)


@formula(unit="1", source="wang2023railonly")
def network_planes(network_kind, network_ports, devices_route, devices, tier_size):
    """Fabrics of their own: one per port, on rails and on shapes of domains one per device of a domain.

    Devices that route spread their ports over the links to their neighbours instead.
    """
    shared = is_one_of(network_kind, "switch", "fat_tree")
    rails = xp.minimum(at(tier_size, tier="scale_up"), devices)
    return xp.where(devices_route > 0, 1.0, network_ports) * xp.where(shared > 0, 1.0, rails)


@formula(unit="1", source="wang2023railonly")
def network_endpoints(network_planes, network_ports, devices_route, devices, tier_size):
    """Endpoints of one plane; 0 where one scale-up domain holds the whole cluster."""
    domains = xp.ceil(devices / at(tier_size, tier="scale_up"))
    plugged = devices * xp.where(devices_route > 0, 1.0, network_ports)
    return xp.where(domains > 1, plugged / network_planes, 0.0)


@formula(unit="1", source="alfares2008fattree")
def network_oversubscription(tier_oversubscription):
    """Ports down over ports up of the leaf switches."""
    return at(tier_oversubscription, tier="scale_out")


@formula(unit="1", source="dally2004")
def network_sides(tier_sides):
    """Shape of the scale-out tier, by side."""
    return at(tier_sides, tier="scale_out")


@formula(unit="1", source="kim2008dragonfly")
def network_built_sides(network_sides, network_endpoints):
    """Shape of the part of the scale-out tier that the cluster fills, by side."""
    return built_sides(network_sides, network_endpoints)


@formula(unit="1", source="dally2004")
def network_neighbours(network_kind, network_sides):
    """Links of a device that routes to its neighbours: two for every side of a torus, k - 1 for a meshed side of k."""
    both = 2 * total(xp.where(network_sides > 1, 1.0, 0.0), "side")
    meshed = total(xp.maximum(network_sides - 1, 0.0), "side")
    return is_one_of(network_kind, *NEIGHBOURS) * both + is_one_of(network_kind, *MESHED) * meshed


# ---- switches and links ---------------------------------------------------------------------------------------------


@formula(unit="1", source="kim2008dragonfly")
def network_router_ports(network_kind, network_sides, tier_global_links, network_radix):
    """Ports that a switch uses: all of a folded Clos network, as many as its shape asks of a router; else none."""
    found = router_ports(network_sides, at(tier_global_links, tier="scale_out"), is_one_of(network_kind, "dragonfly"))
    return is_one_of(network_kind, *ROUTED) * found + is_one_of(network_kind, *SWITCHED) * network_radix


@formula(unit="1", source="alfares2008fattree, kim2008dragonfly")
def network_switches(
    network_kind,
    network_planes,
    network_endpoints,
    network_radix,
    network_oversubscription,
    network_built_sides,
):
    """Switches of the scale-out network: of a Clos network, or the routers of as many groups as the cluster fills."""
    _, second, third, fourth = (at(network_built_sides, side=side) for side in SIDES)
    clos = clos_switches(network_endpoints, network_radix, network_oversubscription)
    routers = xp.where(network_endpoints > 0, second * third * fourth, 0.0)
    return network_planes * (is_one_of(network_kind, *SWITCHED) * clos + is_one_of(network_kind, *ROUTED) * routers)


@formula(unit="1", source="alfares2008fattree, kim2008dragonfly, kim2007butterfly, ahn2009hyperx")
def network_reach_links(
    network_kind,
    network_planes,
    network_endpoints,
    network_radix,
    network_oversubscription,
    network_sides,
    network_built_sides,
    tier_global_links,
):
    """Links of the scale-out network, by reach."""
    (second, third), built = (at(network_sides, side=side) for side in SIDES[1:3]), network_built_sides
    groups, h = at(built, side="third"), at(tier_global_links, tier="scale_out")
    each = (
        is_one_of(network_kind, *SWITCHED) * clos_links(network_endpoints, network_radix, network_oversubscription)
        + is_one_of(network_kind, "dragonfly") * dragonfly_links(network_endpoints, second, third, groups, h)
        + is_one_of(network_kind, "flattened_butterfly") * butterfly_links(network_endpoints, built)
        + is_one_of(network_kind, *NEIGHBOURS)
        * neighbour_links(network_endpoints, built, is_one_of(network_kind, *OPEN))
        + is_one_of(network_kind, *MESHED) * meshed_links(network_endpoints, built)
    )
    return xp.where(network_endpoints > 0, network_planes * each, 0.0)


@formula(unit="1", source="alfares2008fattree, kim2008dragonfly")
def network_links(network_reach_links):
    """Links of the scale-out network, those to the devices among them."""
    return total(network_reach_links, "reach")


@formula(unit="1", source="gpucluster2024sheet")
def network_link_ends(network_reach_links, network_links, devices_route, network_ports, network_endpoints, devices):
    """Ports that links end in, by reach: two a link; a device that routes splits each of its ports into several."""
    ports = xp.where(network_endpoints > 0, devices * network_ports, 0.0)
    share = network_reach_links / xp.maximum(network_links, 1.0)
    return xp.where(devices_route > 0, ports * share, 2 * network_reach_links)


# ---- what cannot be built -------------------------------------------------------------------------------------------


@constraint(
    reason="three tiers of these switches do not connect that many endpoints",
    source="alfares2008fattree",
    about="network_port_rate_capital",
)
def network_is_large_enough(network_kind, network_endpoints, network_radix, network_oversubscription):
    """Three tiers of switches suffice."""
    fits = network_endpoints <= clos_capacity(network_radix, network_oversubscription)
    return fits | (is_one_of(network_kind, *SWITCHED) < 1)


@constraint(
    reason="a router of this shape has more ports than a switch",
    source="kim2008dragonfly",
    about="network_port_rate_capital",
)
def routers_are_switches(network_router_ports, network_radix):
    """A switch has the ports that the shape asks of a router."""
    return network_router_ports <= network_radix


@constraint(
    reason="the ports of a device have fewer lanes than it has neighbours",
    source="ieee2017bs",
    about="network_port_rate_capital",
)
def ports_have_lanes(network_neighbours, network_lanes):
    """Each link to a neighbour has at least one lane of a port."""
    return network_neighbours <= network_lanes
