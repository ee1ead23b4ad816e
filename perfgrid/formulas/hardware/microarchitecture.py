"""From budgets to a device: area, power and chip edge, split by fractions over its components, give rates and sizes.

The system module of the papers (Ardalani 2022, Kundu 2024). Area holds matrix and vector units, memories and interfaces
at the density of the node; the power of the matrix units sets one clock for all cores (units times energy at the
nominal voltage, and how energy and clock follow the voltage); area and edge of the dies limit how many memory stacks
and links there are, their generation says how fast, and their share of the power whether they may be.

Efficiencies, tiles and the composition of a core are those of the study's device.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.engine.graph.tables import bind
from perfgrid.formulas.axes import INNER, at, table, total

from .implementation import LEVELS, MATRIX_RATES, RATES, SCALE_OUT, SCALE_UP, VECTOR_RATES, over, replaced

COUNTED = 1e-9  # a count that misses a whole number by rounding is that number
INTERFACES = ("memory", "scale_up", "scale_out")
LEAST_KEPT = 0.01  # of area and edge that is left for all else; interfaces that take more are flagged
LOWEST_OVERDRIVE = 0.15  # of the nominal voltage: lower ones do not work, slower clocks do (Ardalani 2022)
OF_BUDGET = (  # device quantities that follow from a budget
    *RATES["RATE"],
    *LEVELS["LEVEL"],
    *("clock_frequency", "cores", "fabricated_cores", "register_file_size", "shared_memory_size", "l2_size"),
    *("hbm_stacks", "hbm_bandwidth", "hbm_capacity", "scale_up_ports", "scale_up_bandwidth", "scale_out_bandwidth"),
    *("thermal_design_power", "die_area", "dies"),
)

# ---- equations ------------------------------------------------------------------------------------------------------


def overdrive_at_power(power, threshold):
    r"""Voltage above the threshold at which circuits draw ``power`` times their power at the nominal voltage.

    Voltages are relative to the nominal voltage. Energy is proportional to V^2 and the clock to (V - Vt)^2/V, so
    y = V - Vt solves

    .. math:: y^3 + V_t y^2 = \mathrm{power} (1 - V_t)^2

    (Ardalani 2022). Newton's method from above converges monotonically, since the left side is convex.
    """
    right = power * (1 - threshold) ** 2
    y = xp.minimum(xp.exp(xp.log(right) / 3), xp.sqrt(right / threshold))
    for _ in range(6):
        y = y - (y**3 + threshold * y**2 - right) / (3 * y**2 + 2 * threshold * y)
    return y


def relative_clock(overdrive, threshold):
    """Clock at a voltage over that at the nominal one: (V - Vt)^2 / V."""
    return overdrive**2 / (overdrive + threshold) / (1 - threshold) ** 2


def relative_power(overdrive, threshold):
    """Power at a voltage over that at the nominal one: V·(V - Vt)^2."""
    return overdrive**2 * (overdrive + threshold) / (1 - threshold) ** 2


def overdrive_at_clock(clock, threshold):
    """Voltage above the threshold for ``clock`` times the nominal one: y^2 = k·(y + Vt) with k = clock·(1 - Vt)^2."""
    k = clock * (1 - threshold) ** 2
    return (k + xp.sqrt(k**2 + 4 * k * threshold)) / 2


def clock_at_power(power, threshold):
    """Clock at a power, both relative to nominal; below the lowest voltage only the clock is lowered."""
    overdrive = xp.maximum(overdrive_at_power(power, threshold), LOWEST_OVERDRIVE)
    lowered = xp.minimum(power / relative_power(LOWEST_OVERDRIVE, threshold), 1.0)
    return relative_clock(overdrive, threshold) * lowered


def whole_number(count):
    """The whole number of things that fit."""
    return xp.floor(count * (1 + COUNTED))


def limited_rate(count, rate, power, energy):
    """Rate of so many links, limited by their power; that of one link where there is none (a flagged design)."""
    return xp.minimum(xp.maximum(count, 1.0) * rate, power / energy)


def _from_budget(name, unit, family=None):
    """An alternative of a device quantity: its value where the device is made from a budget."""
    return alternative(
        of=name, by="device_basis", label="budget", unit=unit, source="ardalani2022deepflow", family=family
    )


# ---- units and their clock ------------------------------------------------------------------------------------------


def with_room(own, stack, link):
    """What each component has of an area or an edge, given its fraction of it and what one stack and one link take.

    Memory and links have room for one interface at least. What they lack for it, the others give in proportion.
    """
    one = {"memory": stack, "scale_up": at(link, tier="scale_up"), "scale_out": at(link, tier="scale_out")}
    parts = {name: at(own, component=name) for name in INNER.labels["component"]}
    held = {name: xp.maximum(parts[name], one[name]) for name in INTERFACES}
    lacking = sum(held[name] - parts[name] for name in INTERFACES)
    spare = sum(part for name, part in parts.items() if name not in held)
    kept = 1 - lacking / xp.where(spare > 0, spare, 1e30)
    return table(
        "component", **{name: held.get(name, part * xp.maximum(kept, LEAST_KEPT)) for name, part in parts.items()}
    )


@formula(unit="m^2", source="ardalani2022deepflow")
def component_area(budget_area, area_split, memory_interface_area, budget_link_area, analog_density):
    """Area of the compute dies that each component has, by component."""
    return with_room(
        budget_area * area_split, memory_interface_area / analog_density, budget_link_area / analog_density
    )


@formula(unit="m", source="ardalani2022deepflow")
def component_edge(budget_edge, edge_split, memory_interface_edge, budget_link_edge):
    """Edge of the compute dies that each component has, by component."""
    return with_room(budget_edge * edge_split, memory_interface_edge, budget_link_edge)


@formula(unit="m", source="ardalani2022deepflow")
def budget_edge(budget_area, budget_dies):
    """Edge of the compute dies, square ones."""
    return 4 * xp.sqrt(budget_area * budget_dies)


@formula(unit="W", source="ardalani2022deepflow")
def component_power(budget_power, power_split):
    """Power that each component has, by component."""
    return budget_power * power_split


@formula(unit="FLOP", source="ardalani2022deepflow")
def fabricated_matrix_operations(component_area, matrix_unit_transistors, logic_density):
    """16-bit operations a clock of all matrix units on the dies: area · density / transistors of one operation."""
    return at(component_area, component="matrix") * logic_density / matrix_unit_transistors


@formula(unit="FLOP", source="ardalani2022deepflow")
def budget_vector_operations(component_area, vector_unit_transistors, logic_density, enabled_share):
    """Float32 operations a clock of the enabled vector units."""
    return at(component_area, component="vector") * logic_density / vector_unit_transistors * enabled_share


@formula(unit="FLOP", source="ardalani2022deepflow")
def budget_matrix_operations(fabricated_matrix_operations, enabled_share):
    """16-bit operations a clock of the enabled matrix units."""
    return fabricated_matrix_operations * enabled_share


@formula(unit="W", source="ardalani2022deepflow")
def nominal_compute_power(
    budget_matrix_operations, nominal_clock, matrix_energy, matrix_energy_ratio, operation_energy, matrix_efficiency
):
    """Power of the enabled matrix units at the nominal clock and voltage and the rate that products reach."""
    energy = matrix_energy * matrix_energy_ratio * operation_energy
    return budget_matrix_operations * nominal_clock * energy * matrix_efficiency


@formula(unit="1", source="irds2022moore")
def relative_threshold(threshold_voltage, supply_voltage):
    """Threshold voltage over the nominal supply voltage."""
    return threshold_voltage / supply_voltage


@formula(unit="Hz", source="ardalani2022deepflow")
def powered_clock(component_power, nominal_compute_power, nominal_clock, relative_threshold):
    """Clock at which the matrix units draw their share of the power, by `clock_at_power`."""
    power = at(component_power, component="matrix") / nominal_compute_power
    return nominal_clock * clock_at_power(power, relative_threshold)


@formula(unit="Hz", source="ardalani2022deepflow")
def fastest_clock(nominal_clock, switching_speed):
    """Highest clock of the node: the nominal clock times its gain in speed."""
    return nominal_clock * switching_speed


@_from_budget("clock_frequency", "Hz")
def clock_frequency_from_budget(powered_clock, fastest_clock):
    """Clock of all cores: what the power allows, at most what the node reaches."""
    return xp.minimum(powered_clock, fastest_clock)


@alternative(of="circuit_energy", by="circuit_basis", label="budget", unit="1", source="ardalani2022deepflow")
def circuit_energy_of_budget(operation_energy, clock_frequency, nominal_clock, relative_threshold):
    """Energy of an operation relative to 7 nm: proportional to the square of the voltage that the clock needs."""
    overdrive = xp.maximum(overdrive_at_clock(clock_frequency / nominal_clock, relative_threshold), LOWEST_OVERDRIVE)
    return operation_energy * (overdrive + relative_threshold) ** 2


@formula(unit="FLOP/s", source="ardalani2022deepflow")
def budget_matrix_rate(budget_matrix_operations, clock_frequency):
    """Rate of 16-bit matrix products."""
    return budget_matrix_operations * clock_frequency


@formula(unit="FLOP/s", source="kundu2024")
def native_half_precision_rate(native_peak_bf16_rate, native_peak_fp16_rate):
    """Rate of 16-bit matrix products of the study's device."""
    return xp.maximum(native_peak_bf16_rate, native_peak_fp16_rate)


@_from_budget("vector_rate", "FLOP/s")
def vector_rate_from_budget(budget_vector_operations, clock_frequency):
    """Rate of the vector units."""
    return budget_vector_operations * clock_frequency


@_from_budget("cores", "1")
def cores_from_budget(budget_matrix_operations, matrix_operations_per_clock):
    """Enabled cores, each with the matrix units of a core of the study's device."""
    return budget_matrix_operations / matrix_operations_per_clock


@_from_budget("fabricated_cores", "1")
def fabricated_cores_from_budget(fabricated_matrix_operations, matrix_operations_per_clock):
    """Cores on the dies, each with the matrix units of a core of the study's device."""
    return fabricated_matrix_operations / matrix_operations_per_clock


# ---- memories on chip -----------------------------------------------------------------------------------------------


@formula(unit="byte", source="ardalani2022deepflow")
def component_memory(component_area, sram_density, sram_efficiency):
    """Static memory that the area of each component holds, by component."""
    return component_area * sram_density * sram_efficiency


@_from_budget("register_file_size", "byte")
def register_file_size_from_budget(component_memory, fabricated_cores):
    """Registers of one core."""
    return at(component_memory, component="registers") / fabricated_cores


@_from_budget("shared_memory_size", "byte")
def shared_memory_size_from_budget(component_memory, fabricated_cores):
    """Scratchpad of one core."""
    return at(component_memory, component="shared_memory") / fabricated_cores


@_from_budget("l2_size", "byte")
def l2_size_from_budget(component_memory, enabled_share):
    """Last-level cache, as far as enabled."""
    return at(component_memory, component="l2") * enabled_share


# ---- memory stacks and links ----------------------------------------------------------------------------------------


@_from_budget("hbm_stacks", "1")
def hbm_stacks_from_budget(
    component_area, component_edge, memory_interface_area, memory_interface_edge, analog_density
):
    """Memory stacks whose interfaces fit the area and the edge: floor(min(area / area of one, edge / edge of one))."""
    by_area = at(component_area, component="memory") * analog_density / memory_interface_area
    return whole_number(xp.minimum(by_area, at(component_edge, component="memory") / memory_interface_edge))


@_from_budget("hbm_bandwidth", "byte/s")
def hbm_bandwidth_from_budget(hbm_stacks, memory_bandwidth, component_power, memory_byte_energy):
    """Bandwidth of all memory stacks, limited by their power: min(stacks · bandwidth, power / energy per byte)."""
    return limited_rate(hbm_stacks, memory_bandwidth, at(component_power, component="memory"), memory_byte_energy)


@_from_budget("hbm_capacity", "byte")
def hbm_capacity_from_budget(hbm_stacks, memory_capacity):
    """Capacity of all memory stacks."""
    return xp.maximum(hbm_stacks, 1.0) * memory_capacity


@formula(unit="byte/s", source="ardalani2022deepflow", family={"WHAT": ("bandwidth",)})
@formula(unit="m^2", source="ardalani2022deepflow", family={"WHAT": ("area",)})
@formula(unit="m", source="ardalani2022deepflow", family={"WHAT": ("edge",)})
def budget_link_WHAT(own_link_WHAT, stated_link_WHAT, stated_link_tier, link_is_native):
    """The WHAT of one link, by tier: of the stated generation or of the budget's own.

    The area is that of an interface at 7 nm.
    """
    inside, outside = (replaced(tier, link_is_native, stated_link_tier) for tier in (SCALE_UP, SCALE_OUT))
    return table(
        "tier",
        scale_up=xp.where(inside, stated_link_WHAT, at(own_link_WHAT, tier="scale_up")),
        scale_out=xp.where(outside, stated_link_WHAT, at(own_link_WHAT, tier="scale_out")),
    )


def _links(tier, area, edge, link_area, link_edge, analog_density):
    by_area = at(area, component=tier) * analog_density / at(link_area, tier=tier)
    return whole_number(xp.minimum(by_area, at(edge, component=tier) / at(link_edge, tier=tier)))


@_from_budget("scale_up_ports", "1")
def scale_up_ports_from_budget(component_area, component_edge, budget_link_area, budget_link_edge, analog_density):
    """Scale-up links that fit: floor(min(area / area of one interface, edge / edge of one))."""
    return _links("scale_up", component_area, component_edge, budget_link_area, budget_link_edge, analog_density)


@formula(unit="1", source="ardalani2022deepflow")
def scale_out_ports(component_area, component_edge, budget_link_area, budget_link_edge, analog_density):
    """Network ports that fit: floor(min(area / area of one interface, edge / edge of one))."""
    return _links("scale_out", component_area, component_edge, budget_link_area, budget_link_edge, analog_density)


@_from_budget("scale_up_bandwidth", "byte/s")
def scale_up_bandwidth_from_budget(scale_up_ports, budget_link_bandwidth, component_power, scale_up_byte_energy):
    """Bandwidth of all scale-up links: min(links · rate, power / energy per byte)."""
    power, rate = at(component_power, component="scale_up"), at(budget_link_bandwidth, tier="scale_up")
    return limited_rate(scale_up_ports, rate, power, scale_up_byte_energy)


@_from_budget("scale_out_bandwidth", "byte/s")
def scale_out_bandwidth_from_budget(scale_out_ports, budget_link_bandwidth, component_power, scale_out_byte_energy):
    """Bandwidth of all network ports: min(ports · rate, power / energy per byte)."""
    power, rate = at(component_power, component="scale_out"), at(budget_link_bandwidth, tier="scale_out")
    return limited_rate(scale_out_ports, rate, power, scale_out_byte_energy)


# ---- the budgets themselves -----------------------------------------------------------------------------------------


@_from_budget("thermal_design_power", "W")
def thermal_design_power_from_budget(budget_power):
    """Thermal design power: the whole power budget."""
    return budget_power


@_from_budget("die_area", "m^2")
def die_area_from_budget(budget_area, budget_dies, budget_d2d_overhead):
    """Area of one compute die: its share of the budget, and of several dies the interfaces to the others."""
    return budget_area / budget_dies * (1 + xp.where(budget_dies > 1, budget_d2d_overhead, 0.0))


@_from_budget("dies", "1")
def dies_from_budget(budget_dies):
    """Compute dies."""
    return budget_dies


@constraint(
    reason="the fractions of area, power or edge of a budget do not add up to one",
    source="ardalani2022deepflow",
    about="component_area",
)
def fractions_add_up(area_split, power_split, edge_split):
    """The fractions of every budget add up to one, those of the component rest included."""
    missing = [xp.abs(total(f, "component") - 1) for f in (area_split, power_split, edge_split)]
    return xp.maximum(missing[0], xp.maximum(missing[1], missing[2])) < 1e-6


@constraint(
    reason="the area or edge of the budget has no room for a memory stack or a link of these generations",
    source="ardalani2022deepflow",
    about="component_edge",
)
def budget_holds_interfaces(component_area, budget_area, component_edge, budget_edge):
    """One memory stack, one scale-up link and one network port fit, and leave something for all else."""
    taken = [sum(at(part, component=name) for name in INTERFACES) for part in (component_area, component_edge)]
    return (taken[0] <= (1 - LEAST_KEPT) * budget_area) & (taken[1] <= (1 - LEAST_KEPT) * budget_edge)


@constraint(
    kind="exceeds",
    reason="a compute die of the budget is larger than the exposure field (reticle limit)",
    source="graening2025catch",
    about="component_area",
)
def budget_fits_field(budget_area, budget_dies, budget_d2d_overhead, field_area):
    """One exposure covers one compute die."""
    interfaces = xp.where(budget_dies > 1, budget_d2d_overhead, 0.0)
    return budget_area / budget_dies * (1 + interfaces) <= field_area


FORMULAS = tuple(  # as many for each 16-bit operation, or each one of the vector units, as in the study's device
    entry
    for name, own, native, unit, family in (
        ("RATE_from_budget", "budget_matrix_rate", "native_half_precision_rate", "FLOP/s", MATRIX_RATES),
        ("RATE_of_vector_units", "vector_rate", "native_vector_rate", "FLOP/s", VECTOR_RATES),
        ("RATE_from_budget", "budget_matrix_rate", "native_half_precision_rate", "byte/s", {"RATE": LEVELS["LEVEL"]}),
    )
    for entry in bind(
        *(over, name, f"native_RATE {own} {native}", unit, "ardalani2022deepflow"),
        "RATE: as many for each operation as in the study's device.",
        of=("RATE", "device_basis", "budget"),
        family=family,
    )
)
