"""Cost of buying and running a cluster: per device-hour, per training run, per million tokens.

Total cost of ownership: devices, servers, the scale-out network (`cluster_network`) and the facility are paid back over
their lives; maintenance and energy are added. This gives the cost of a device per hour, busy or idle. Utilization
enters once, where hours become work: in the cost of a run, of tokens and of operations.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.engine.graph.tables import by_label, constants, positive

FORMULAS = (
    *constants(
        {
            "year": (31_557_600.0, "s", "epoch2024costs", "A year of 365.25 days."),
            # a price per hour is the one unit that is not SI, as everybody quotes it
            "hour": (3600.0, "s/h", "epoch2024costs", "Seconds of an hour."),
        }
    ),
    *by_label(
        "price_view",
        {"device_price": ("USD", "epoch2024costs", "Price of a device for its buyer.")},
        {"market": ("purchase_price",)},
    ),
    *by_label(
        "power_view",
        {"mean_device_power": ("W", "hong2010power", "Mean power of a device.")},
        {"kernels": ("average_power",)},
    ),
    *positive(
        *("device_has_a_price", "purchase_price", "epoch2024costs"),
        "The catalog knows a market price of the device.",
        "no market price of the device is known; state purchase_price or price_view = manufacturing",
        about="market_device_price",
    ),
)


# ---- equations ------------------------------------------------------------------------------------------------------


def capital_recovery(interest, periods):
    r"""Part of a loan to pay per period so that it is repaid after n periods (capital recovery factor).

    .. math:: \frac{r}{1 - (1 + r)^{-n}}

    with the interest r per period; 1/n for r = 0.
    """
    rate = xp.maximum(interest, 1e-6)  # the limit 1/n is reached long before
    return rate / -xp.expm1(-periods * xp.log1p(rate))


# ---- purchase -------------------------------------------------------------------------------------------------------


@alternative(of="device_price", by="price_view", label="manufacturing", unit="USD", source="siliconanalysts2026")
def manufacturing_device_price(device_cost, device_margin):
    """Price of a device for its buyer: its manufacturing cost times the margin of designer and vendor."""
    return device_cost * device_margin


@formula(unit="USD", source="epoch2024costs")
def device_capital(devices, device_price):
    """Price of all devices."""
    return devices * device_price


@alternative(of="server_capital", by="price_view", label="market", unit="USD", source="epoch2024costs")
def market_server_capital(device_capital, server_price_factor):
    """Price of everything else in the servers: processors, memory, scale-up switches, adapters, chassis, margin."""
    return device_capital * (server_price_factor - 1)


@alternative(of="server_capital", by="price_view", label="manufacturing", unit="USD", source="epoch2024costs")
def manufacturing_server_capital(devices, server_parts_price, device_margin):
    """Price of everything else in the servers: what its parts cost, times what the vendor adds."""
    return devices * server_parts_price * device_margin


@formula(unit="W", source="epoch2024costs")
def server_power(devices, thermal_design_power, server_power_factor):
    """Largest power of all servers, their devices included."""
    return devices * thermal_design_power * server_power_factor


@formula(unit="USD", source="cbre2025")
def facility_capital(server_power, network_power, facility_price):
    """Price of the building with power delivery and cooling, by the power of what stands in it."""
    return (server_power + network_power) * facility_price


@formula(unit="USD", source="barroso2018datacenter")
def equipment_capital(device_capital, server_capital, network_capital):
    """Price of devices, servers and network."""
    return device_capital + server_capital + network_capital


@formula(unit="USD", source="barroso2018datacenter")
def cluster_cost(equipment_capital, facility_capital):
    """Price of the whole cluster, its facility included."""
    return equipment_capital + facility_capital


# ---- ownership ------------------------------------------------------------------------------------------------------


@alternative(of="capital_charge", by="amortisation", label="annuity", unit="USD/s", source="barroso2018datacenter")
def annuity_capital_charge(equipment_capital, facility_capital, interest_rate, equipment_life, facility_life, year):
    """Capital cost per time: equipment and facility repaid with interest over their lives."""
    equipment = equipment_capital * capital_recovery(interest_rate, equipment_life / year)
    facility = facility_capital * capital_recovery(interest_rate, facility_life / year)
    return (equipment + facility) / year


@alternative(of="capital_charge", by="amortisation", label="depreciation", unit="USD/s", source="epoch2024costs")
def depreciation_capital_charge(equipment_capital, facility_capital, price_decline, facility_life, year):
    """Capital cost per time: what equipment loses in value as better one appears, and the facility in equal parts."""
    return equipment_capital * price_decline / year + facility_capital / facility_life


@formula(unit="USD/s", source="barroso2018datacenter")
def maintenance_charge(equipment_capital, maintenance_rate, year):
    """Operation and maintenance per time, as a part of the equipment's price."""
    return equipment_capital * maintenance_rate / year


@alternative(of="mean_device_power", by="power_view", label="typical", unit="W", source="epoch2024costs")
def typical_mean_device_power(thermal_design_power, mean_power_fraction):
    """Mean power of a device: the typical fraction of its thermal design power."""
    return thermal_design_power * mean_power_fraction


@formula(unit="W", source="epoch2024costs")
def mean_server_power(devices, mean_device_power, thermal_design_power, server_power_factor, mean_power_fraction):
    """Mean power of all servers: devices, and of processors, adapters, fans and conversion the typical fraction."""
    rest_of_server = thermal_design_power * (server_power_factor - 1) * mean_power_fraction
    return devices * (mean_device_power + rest_of_server)


@formula(unit="W", source="epoch2024costs")
def facility_power(mean_server_power, network_power, power_usage_effectiveness):
    """Mean power drawn from the grid: (servers + network) · power usage effectiveness."""
    return (mean_server_power + network_power) * power_usage_effectiveness


@formula(unit="USD/s", source="epoch2024costs")
def energy_charge(facility_power, electricity_price):
    """Cost of energy per time."""
    return facility_power * electricity_price


@formula(unit="USD/s", source="barroso2018datacenter")
def cluster_charge(capital_charge, maintenance_charge, energy_charge):
    """Cost of the cluster per time, busy or idle: capital, maintenance and energy."""
    return capital_charge + maintenance_charge + energy_charge


@formula(unit="USD/h", source="barroso2018datacenter")
def cost_per_device_hour(cluster_charge, devices, hour):
    """Cost of one device per hour, before utilisation; a study that states it has the rent of a device instead."""
    return cluster_charge / devices * hour


@formula(unit="1", source="epoch2024costs", family={"SHARE": ("capital", "maintenance", "energy")})
def SHARE_cost_fraction(SHARE_charge, cluster_charge):
    """SHARE part of the cost of the cluster."""
    return SHARE_charge / cluster_charge


# ---- work -----------------------------------------------------------------------------------------------------------


@formula(unit="USD/s", source="barroso2018datacenter")
def working_charge(cost_per_device_hour, devices, hour, utilization):
    """Cost of the cluster per time of work: cost per time / utilization, so busy hours pay for idle ones."""
    return cost_per_device_hour * devices / hour / utilization


@formula(unit="USD", source="epoch2024costs")
def cost_per_training_run(training_time, working_charge):
    """Cost of the whole training run."""
    return training_time * working_charge


@constraint(
    kind="exceeds",
    reason="the training run costs more than its limit",
    source="epoch2024costs",
    about="training_cost_limit",
    workload="training",
)
def training_within_budget(cost_per_training_run, training_cost_limit):
    """The training run costs no more than its limit; of studies that state one."""
    return cost_per_training_run <= training_cost_limit


@formula(unit="USD", source="epoch2024costs")
def cost_per_million_tokens(working_charge, tokens_per_second):
    """Cost of a million tokens."""
    return 1e6 * working_charge / tokens_per_second


@formula(unit="1/USD", source="guo2025")
def tokens_per_dollar(tokens_per_second, working_charge):
    """Tokens that a dollar buys: performance per dollar."""
    return tokens_per_second / working_charge


@formula(unit="FLOP/USD", source="guo2025")
def model_flops_per_dollar(model_flops_per_second_per_device, devices, working_charge):
    """Model FLOPs that a dollar buys."""
    return model_flops_per_second_per_device * devices / working_charge
