"""A device re-implemented: at another node, with another generation of memory or of links.

Where the study states a node, memory or link, the quantities of the device itself are called ``native_<name>``, and the
formulas here derive ``<name>``. A node changes the number of units, clock and energy (`technology`: same area, same
design or same power). A memory replaces every stack, a link every link of its tier. Ratios are relative to the device's
own entries, so the label ``native`` reproduces the device.
"""

from math import prod

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint
from perfgrid.engine.graph.tables import bind, by_label, positive
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


def times(native, *ratios):
    """A property of the device times ratios of the stated node, memory or link to its own."""
    return prod(ratios, start=native)


def over(native, stated, own):
    """A property of the device with as many stacks of the stated memory: times its value over that of its own."""
    return native * stated / own


NODE = {  # of the device at the stated node: ratio to its own, unit, meaning
    "RATE": ("throughput_ratio", "FLOP/s", "RATE of the device at the stated node: its own · units · clock."),
    "LEVEL": ("throughput_ratio", "byte/s", "LEVEL of the device at the stated node: its own · units · clock."),
    "cores": ("unit_ratio", "1", "Cores at the stated node; fractions stand for the mean of neighbouring designs."),
    "fabricated_cores": ("unit_ratio", "1", "Cores on the dies at the stated node, disabled ones among them."),
    "l2_size": ("unit_ratio", "byte", "Last-level cache at the stated node: as much for each unit."),
    "clock_frequency": ("clock_ratio", "Hz", "Clock at the stated node."),
    "thermal_design_power": (
        *("compute_power_ratio", "W"),
        "Thermal design power at the stated node, in proportion to the power of its compute dies.",
    ),
    "die_area": ("die_area_ratio", "m^2", "Area of one compute die at the stated node."),
}
MEMORY = {  # of the device with as many stacks of the stated memory, derated as its own
    "hbm_bandwidth": ("memory_bandwidth native_memory_bandwidth", "byte/s", "Memory bandwidth with the stated memory."),
    "hbm_capacity": ("memory_capacity native_memory_capacity", "byte", "Memory with stacks of the stated kind."),
}
AGAIN = {name: (function, *row) for function, rows in ((times, NODE), (over, MEMORY)) for name, row in rows.items()}
FORMULAS = (
    *by_label(
        "circuit_basis",
        {"circuit_energy": ("1", "shilov2024n2sram", "Energy of an operation of the device relative to 7 nm.")},
        {"own_node": ("operation_energy",)},  # that of its node at equal speed
    ),
    *(
        entry
        for name, (function, ratios, unit, meaning) in AGAIN.items()
        for entry in bind(
            *(function, f"{name}_made_again", f"native_{name} {ratios}", unit, "kundu2024", meaning),
            of=(name, "device_basis", "device"),
            family={"RATE": RATES, "LEVEL": LEVELS}.get(name),
        )
    ),
    *bind(  # its own times the ratio of the stated node to its own
        *(times, "circuit_energy_made_again", "native_operation_energy operation_energy_ratio", "1"),
        *("shilov2024n2sram", "Energy of an operation of the device at the stated node relative to 7 nm."),
        of=("circuit_energy", "circuit_basis", "stated_node"),
    ),
    *positive(
        *("node_has_energy", "operation_energy", "shilov2024n2sram"),
        "The energy of an operation is known of the stated node.",
        "the energy of an operation at this node is not known",
        about="circuit_energy_made_again",
    ),
)


def _made_again(name, unit):
    """An alternative of a device quantity: its value where the device is re-implemented (not made from a budget)."""
    return alternative(of=name, by="device_basis", label="device", unit=unit, source="kundu2024")


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
