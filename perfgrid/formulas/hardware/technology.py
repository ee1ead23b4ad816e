"""Technology scaling: area, energy and speed of the same circuit at another node, and a device re-implemented there.

A node offers less energy per operation at equal speed *or* more speed at equal power: two points of one curve, never
both (``node_gain``). There are two scalings (``node_scaling``): the figures of the foundry (``foundry``), and
idealised full steps (``ideal``) of 0.67 in area and 0.54 in power at equal frequency. Ratios are relative to the
device's own node (``native_``) and 1 there.

A device may keep its design and shrink, fill the same area with more units, or take the same power
(``implementation``).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constraint, formula
from perfgrid.engine.graph.tables import by_label

AREA_STEP, POWER_STEP = 0.67, 0.54  # area and power of a circuit at equal frequency after one idealised step

FORMULAS = (
    *by_label(
        "node_gain",
        {
            "clock_ratio": ("1", "shilov2024n2sram", "Clock over that at the own node."),
            "operation_energy_ratio": ("1", "shilov2024n2sram", "Energy of an operation over that at the own node."),
        },
        {"power": (1, "energy_ratio_at_speed"), "speed": ("speed_ratio_at_power", None)},
    ),
    *by_label(  # the design is kept and the die shrinks
        "implementation",
        {"unit_ratio": ("1", "ardalani2022deepflow", "Units of computation over those of the device.")},
        {"same_design": (1,)},
    ),
)


# ---- one circuit ----------------------------------------------------------------------------------------------------


@alternative(of="circuit_area_ratio", by="node_scaling", label="foundry", unit="1", source="shilov2024n2sram")
def foundry_circuit_area_ratio(
    logic_share,
    sram_share,
    native_logic_density,
    logic_density,
    native_sram_density,
    sram_density,
    native_analog_density,
    analog_density,
):
    """Area of the same circuit over that at its own node, by the densities of logic, memory and analog circuits.

    sum of s·(native density / density), with the shares s of the area at the own node: they shrink differently. The
    source's mixed density has 50, 30 and 20 %.
    """
    shares = (logic_share, sram_share, 1 - logic_share - sram_share)
    native = (native_logic_density, native_sram_density, native_analog_density)
    densities = (logic_density, sram_density, analog_density)
    return sum(s * n / xp.where(d > 0, d, 1e30) for s, n, d in zip(shares, native, densities, strict=True))


@alternative(of="circuit_area_ratio", by="node_scaling", label="ideal", unit="1", source="ardalani2022deepflow")
def ideal_circuit_area_ratio(scaling_generation, native_scaling_generation):
    """Area of the same circuit over that at its own node, by idealised full steps: 0.67^generations."""
    return xp.exp((scaling_generation - native_scaling_generation) * xp.log(AREA_STEP))


@alternative(of="energy_ratio_at_speed", by="node_scaling", label="foundry", unit="1", source="shilov2024n2sram")
def foundry_energy_ratio_at_speed(operation_energy, native_operation_energy):
    """Energy of an operation at equal speed over that at the own node, as the foundry states."""
    return operation_energy / xp.where(native_operation_energy > 0, native_operation_energy, 1e30)


@alternative(of="energy_ratio_at_speed", by="node_scaling", label="ideal", unit="1", source="ardalani2022deepflow")
def ideal_energy_ratio_at_speed(scaling_generation, native_scaling_generation):
    """Energy of an operation at equal speed over that at the own node, by idealised full steps: 0.54^generations."""
    return xp.exp((scaling_generation - native_scaling_generation) * xp.log(POWER_STEP))


@alternative(of="speed_ratio_at_power", by="node_scaling", label="foundry", unit="1", source="shilov2024n2sram")
def foundry_speed_ratio_at_power(switching_speed, native_switching_speed):
    """Speed at equal power over that at the own node, as the foundry states."""
    return switching_speed / xp.where(native_switching_speed > 0, native_switching_speed, 1e30)


@alternative(of="speed_ratio_at_power", by="node_scaling", label="ideal", unit="1", source="ardalani2022deepflow")
def ideal_speed_ratio_at_power(ideal_energy_ratio_at_speed):
    """Speed at equal power over that at the own node: energy ratio^(-1/3).

    Power grows with the cube of speed, since the voltage follows the speed.
    """
    return xp.exp(-xp.log(ideal_energy_ratio_at_speed) / 3)


@alternative(of="operation_energy_ratio", by="node_gain", label="speed", unit="1", source="shilov2024n2sram")
def operation_energy_ratio_of_speed(speed_ratio_at_power):
    """Energy of an operation over that at the own node where the gain is taken as speed: 1 / speed, at equal power."""
    return 1 / xp.where(speed_ratio_at_power > 0, speed_ratio_at_power, 1e30)


# ---- a device re-implemented ----------------------------------------------------------------------------------------


@alternative(of="unit_ratio", by="implementation", label="same_area", unit="1", source="ardalani2022deepflow")
def unit_ratio_of_area(circuit_area_ratio):
    """Units of computation over those of the device, where they fill the same area."""
    return 1 / circuit_area_ratio


@alternative(of="unit_ratio", by="implementation", label="same_power", unit="1", source="ardalani2022deepflow")
def unit_ratio_of_power(clock_ratio, operation_energy_ratio):
    """Units of computation over those of the device, where they take the same power."""
    return 1 / (clock_ratio * operation_energy_ratio)


@formula(unit="1", source="ardalani2022deepflow")
def die_area_ratio(unit_ratio, circuit_area_ratio):
    """Area of the compute dies over that at the own node: units · area of a circuit."""
    return unit_ratio * circuit_area_ratio


@formula(unit="1", source="ardalani2022deepflow")
def throughput_ratio(unit_ratio, clock_ratio):
    """Rate of operations over that at the own node: units · clock."""
    return unit_ratio * clock_ratio


@formula(unit="1", source="ardalani2022deepflow")
def compute_power_ratio(throughput_ratio, operation_energy_ratio):
    """Power of the compute dies at full rate over that at the own node: operations per second · energy of one."""
    return throughput_ratio * operation_energy_ratio


@constraint(
    reason="density, energy or speed of this node, or of the device's own node, is not known",
    source="shilov2024n2sram",
    about="circuit_area_ratio",
)
def node_scales(logic_density, sram_density, analog_density, operation_energy, switching_speed, native_logic_density):
    """Densities, energy and speed of the node are known."""
    known = xp.minimum(xp.minimum(analog_density, operation_energy), switching_speed) > 0
    return known & (logic_density > 0) & (sram_density > 0) & (native_logic_density > 0)


@constraint(
    reason="logic and memory take more than the whole area of a die",
    source="shilov2024n2sram",
    about="circuit_area_ratio",
)
def shares_fit(logic_share, sram_share):
    """Shares of logic, memory and analog circuits add up to one."""
    return logic_share + sram_share <= 1
