"""A device re-implemented: at another node, with another generation of memory or of links.

Where the study states a node, memory or link, the quantities of the device itself are called ``native_<name>``, and the
formulas here derive ``<name>``. A node changes the number of units, clock and energy (`technology`: same area, same
design or same power). A memory replaces every stack, a link every link of its tier. Ratios are relative to the device's
own entries, so the label ``native`` reproduces the device.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint
from perfgrid.formulas.axes import at

SCALE_UP, SCALE_OUT = 0.0, 1.0  # of link_tier
MATRIX_RATES = {
    "RATE": ("peak_bf16_rate", "peak_fp16_rate", "peak_fp8_rate", "peak_fp4_rate", "peak_int8_rate", "peak_tf32_rate"),
}
VECTOR_RATES = {"RATE": ("peak_fp32_rate", "special_function_rate")}
RATES = {"RATE": (*MATRIX_RATES["RATE"], "vector_rate", *VECTOR_RATES["RATE"])}
LEVELS = {"LEVEL": ("register_bandwidth", "shared_memory_bandwidth", "l2_bandwidth")}
IMPLEMENTED = {  # device quantities that follow from a table
    "node": (
        *RATES["RATE"],
        *LEVELS["LEVEL"],
        *("cores", "fabricated_cores", "l2_size", "clock_frequency", "thermal_design_power", "die_area"),
    ),
    "memory": ("hbm_bandwidth", "hbm_capacity"),
    "link": ("scale_up_bandwidth", "scale_out_bandwidth"),
}


def _made_again(name, unit, family=None):
    """An alternative of a device quantity: its value where the device is re-implemented (not made from a budget)."""
    return alternative(of=name, by="device_basis", label="device", unit=unit, source="kundu2024", family=family)


# ---- node -----------------------------------------------------------------------------------------------------------


@_made_again("RATE", "FLOP/s", RATES)
@_made_again("RATE", "byte/s", {"RATE": LEVELS["LEVEL"]})
def RATE_made_again(native_RATE, throughput_ratio):
    """RATE of the device at the stated node: native rate · units · clock, both relative to its own node."""
    return native_RATE * throughput_ratio


@_made_again("cores", "1")
def cores_made_again(native_cores, unit_ratio):
    """Cores of the device at the stated node; fractions stand for the mean of neighbouring designs."""
    return native_cores * unit_ratio


@_made_again("fabricated_cores", "1")
def fabricated_cores_made_again(native_fabricated_cores, unit_ratio):
    """Cores on the dies of the device at the stated node, disabled ones among them."""
    return native_fabricated_cores * unit_ratio


@_made_again("l2_size", "byte")
def l2_size_made_again(native_l2_size, unit_ratio):
    """Last-level cache of the device at the stated node: as much for each unit."""
    return native_l2_size * unit_ratio


@_made_again("clock_frequency", "Hz")
def clock_frequency_made_again(native_clock_frequency, clock_ratio):
    """Clock of the device at the stated node."""
    return native_clock_frequency * clock_ratio


@_made_again("thermal_design_power", "W")
def thermal_design_power_made_again(native_thermal_design_power, compute_power_ratio):
    """Thermal design power of the device at the stated node, in proportion to the power of its compute dies."""
    return native_thermal_design_power * compute_power_ratio


@_made_again("die_area", "m^2")
def die_area_made_again(native_die_area, die_area_ratio):
    """Area of one compute die of the device at the stated node."""
    return native_die_area * die_area_ratio


@alternative(of="circuit_energy", by="circuit_basis", label="own_node", unit="1", source="shilov2024n2sram")
def circuit_energy_of_node(operation_energy):
    """Energy of an operation of the device relative to 7 nm: that of its node at equal speed."""
    return operation_energy


@alternative(of="circuit_energy", by="circuit_basis", label="stated_node", unit="1", source="shilov2024n2sram")
def circuit_energy_made_again(native_operation_energy, operation_energy_ratio):
    """Energy of an operation of the device relative to 7 nm: its own times the ratio of the stated node to its own."""
    return native_operation_energy * operation_energy_ratio


@constraint(
    reason="the energy of an operation at this node is not known",
    source="shilov2024n2sram",
    about="circuit_energy_made_again",
)
def node_has_energy(operation_energy):
    """The energy of an operation is known of the stated node."""
    return operation_energy > 0


# ---- memory ---------------------------------------------------------------------------------------------------------


@_made_again("hbm_bandwidth", "byte/s")
def hbm_bandwidth_made_again(native_hbm_bandwidth, memory_bandwidth, native_memory_bandwidth):
    """Memory bandwidth of the device with as many stacks of the stated memory, derated as its own."""
    return native_hbm_bandwidth * memory_bandwidth / native_memory_bandwidth


@_made_again("hbm_capacity", "byte")
def hbm_capacity_made_again(native_hbm_capacity, memory_capacity, native_memory_capacity):
    """Memory of the device with as many stacks of the stated memory."""
    return native_hbm_capacity * memory_capacity / native_memory_capacity


# ---- links ----------------------------------------------------------------------------------------------------------


def replaced(tier, link_is_native, link_tier):
    """Whether the stated link takes the place of the device's own on a tier."""
    return (link_is_native < 1) & (link_tier == tier)


@_made_again("scale_up_bandwidth", "byte/s")
def scale_up_bandwidth_made_again(
    native_scale_up_bandwidth, scale_up_ports, stated_link_bandwidth, stated_link_tier, link_is_native
):
    """Scale-up bandwidth of the device with as many of the stated links."""
    other = replaced(SCALE_UP, link_is_native, stated_link_tier)
    return xp.where(other, scale_up_ports * stated_link_bandwidth, native_scale_up_bandwidth)


@_made_again("scale_out_bandwidth", "byte/s")
def scale_out_bandwidth_made_again(native_scale_out_bandwidth, stated_link_bandwidth, stated_link_tier, link_is_native):
    """Network bandwidth of the device with one port of the stated kind."""
    other = replaced(SCALE_OUT, link_is_native, stated_link_tier)
    return xp.where(other, stated_link_bandwidth, native_scale_out_bandwidth)


@constraint(
    reason="the device's number of scale-up links is not known, or the stated link connects dies only",
    source="kundu2024",
    about="stated_link_bandwidth",
)
def link_fits_device(scale_up_ports, stated_link_tier, link_is_native):
    """The stated link takes the place of links that the device has."""
    known = (stated_link_tier == SCALE_OUT) | ((stated_link_tier == SCALE_UP) & (scale_up_ports > 0))
    return (link_is_native > 0) | known


@constraint(
    reason="the fabric states the bandwidth of this tier itself: the stated link has no effect",
    source="kundu2024",
    about="stated_link_bandwidth",
)
def link_is_used(tier_stated_bandwidth, stated_link_tier, link_is_native):
    """The fabric takes the bandwidth of the stated link's tier from the device."""
    inside, outside = at(tier_stated_bandwidth, tier="scale_up"), at(tier_stated_bandwidth, tier="scale_out")
    return (link_is_native > 0) | (xp.where(stated_link_tier == SCALE_OUT, outside, inside) <= 0)
