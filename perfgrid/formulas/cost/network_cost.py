"""What the scale-out network costs and draws; the rate that a budget buys.

Networks are compared at equal bandwidth (`network_sizing = "rate"`: a device's rate is stated, whole ports are bought)
or at equal cost (`"budget"`: `network_budget` per device is stated, and the rate is what it buys). In the latter ports
run at the rate of the device, and switches and transceivers cost in proportion to the rate of their ports.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label, positive
from perfgrid.formulas.axes import table, total

FORMULAS = (
    *by_label(
        "network_sizing",
        {"network_price_scale": ("1", "gpucluster2024sheet", "Prices over those of the list, of whole ports.")},
        {"rate": (1,)},
    ),
    *positive(
        *("network_budget_is_stated", "network_budget", "kim2008dragonfly"),
        "A budget is stated where the rate follows from it.",
        "the budget of the network is not stated",
        about="affordable_network_rate",
    ),
)
# ---- equations ------------------------------------------------------------------------------------------------------


def cable_price(ends, links, copper, copper_price, transceiver_price, fibre_price):
    """Price of links: a cable for any two ends where they are copper; else a transceiver at every end, and fibres.

    A port that is split into several links has one transceiver and as many fibres.
    """
    optical = ends * transceiver_price + xp.maximum(links, ends / 2) * fibre_price
    return xp.where(copper > 0, ends / 2 * copper_price, optical)


# ---- at the rate of a port of the price list ------------------------------------------------------------------------


@formula(unit="1", source="kim2008dragonfly")
def reach_is_copper(copper_reach):
    """1 where links are copper cables, by reach: to the devices, and inside a group."""
    return table(
        "reach", device=xp.where(copper_reach > 0, 1.0, 0.0), group=xp.where(copper_reach > 1, 1.0, 0.0), network=0.0
    )


@formula(unit="USD", source="gpucluster2024sheet, besta2014slimfly")
def network_switch_price(network_switches, network_router_ports, network_radix, switch_price):
    """Price of all switches whose ports run at the listed rate; a router with fewer ports costs in proportion."""
    return network_switches * switch_price * xp.minimum(network_router_ports / network_radix, 1.0)


@formula(unit="USD", source="gpucluster2024sheet")
def network_cable_price(
    network_link_ends, network_reach_links, reach_is_copper, copper_price, transceiver_price, fibre_price
):
    """Price of all links whose ports run at the listed rate."""
    prices = (copper_price, transceiver_price, fibre_price)
    return total(cable_price(network_link_ends, network_reach_links, reach_is_copper, *prices), "reach")


@formula(unit="1", source="besta2014slimfly")
def network_routing_switches(
    devices_route, devices, network_ports, switch_ports, network_endpoints, router_price_ratio
):
    """Switches that cost as much as the routers of devices that route, each port of which leads to the device as well.

    `router_price_ratio` is the price of their ports over that of a switch's.
    """
    ports = 2 * network_ports * devices * devices_route * router_price_ratio
    return xp.where(network_endpoints > 0, ports / switch_ports, 0.0)


@formula(unit="USD", source="gpucluster2024sheet")
def network_port_rate_capital(network_switch_price, network_routing_switches, switch_price, network_cable_price):
    """Price of the network whose ports run at the listed rate, without adapters."""
    return network_switch_price + network_routing_switches * switch_price + network_cable_price


# ---- at equal bandwidth, or at equal cost ---------------------------------------------------------------------------


@alternative(of="network_price_scale", by="network_sizing", label="budget", unit="1", source="kim2008dragonfly")
def proportional_network_price_scale(network_rate, switch_port_rate):
    """Prices over those of the list: in proportion to the rate of a port."""
    return network_rate / switch_port_rate


@alternative(of="network_rate", by="network_sizing", label="budget", unit="byte/s", source="kim2008dragonfly")
def affordable_network_rate(
    network_budget,
    devices,
    network_port_rate_capital,
    switch_port_rate,
    switch_price,
    adapter_price,
    scale_out_bandwidth,
):
    """Rate of a device's links into the network that its budget buys; the listed rate where there is no network.

    Above the device's own rate, adapters beyond those of its server are paid from the budget too.
    """
    listed = network_port_rate_capital / devices
    whole = xp.where(listed > 0, listed, switch_price)
    own = scale_out_bandwidth / switch_port_rate
    bought = xp.minimum(network_budget / whole, (network_budget + own * adapter_price) / (whole + adapter_price))
    return switch_port_rate * xp.where((listed > 0) & (network_budget > 0), bought, 1.0)


# ---- money and power ------------------------------------------------------------------------------------------------


@formula(unit="USD", source="gpucluster2024sheet")
def switch_cost(network_switch_price, network_price_scale):
    """Price of all switches of the scale-out network."""
    return network_switch_price * network_price_scale


@formula(unit="USD", source="gpucluster2024sheet")
def cable_cost(network_cable_price, network_price_scale):
    """Price of all links of the scale-out network: a transceiver at both ends and a fibre, or a copper cable."""
    return network_cable_price * network_price_scale


@formula(unit="USD", source="naddod2026adapters")
def adapter_cost(devices, network_rate, scale_out_bandwidth, switch_port_rate, network_endpoints, adapter_price):
    """Price of adapters beyond those for the devices' own rate, which the servers hold: in proportion to the rate."""
    more = xp.maximum(network_rate - scale_out_bandwidth, 0.0) / switch_port_rate
    return xp.where(network_endpoints > 0, devices * more * adapter_price, 0.0)


@formula(unit="USD", source="gpucluster2024sheet")
def network_capital(network_port_rate_capital, network_price_scale, adapter_cost):
    """Price of the scale-out network: switches, routers in devices, links, and adapters beyond those of the servers."""
    return network_port_rate_capital * network_price_scale + adapter_cost


@formula(unit="USD", source="gpucluster2024sheet")
def network_cost_per_device(network_capital, devices):
    """Price of the scale-out network per device."""
    return network_capital / devices


@formula(unit="W", source="jouppi2023tpuv4")
def network_power(
    network_switches,
    network_routing_switches,
    network_router_ports,
    network_radix,
    network_link_ends,
    reach_is_copper,
    network_price_scale,
    switch_power,
    transceiver_power,
):
    """Power of the scale-out network, which hardly depends on its traffic: switches and transceivers.

    As prices, in proportion to the ports of a router and, at equal cost, to their rate.
    """
    whole = network_switches * xp.minimum(network_router_ports / network_radix, 1.0) + network_routing_switches
    switches = whole * switch_power
    transceivers = total(xp.where(reach_is_copper > 0, 0.0, network_link_ends), "reach") * transceiver_power
    return (switches + transceivers) * network_price_scale
