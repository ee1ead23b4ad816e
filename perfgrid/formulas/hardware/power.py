"""Power of one device: what it draws at rest, and its mean power against its limit."""

from perfgrid.engine.graph.registry import constraint, formula


@formula(unit="W", source="kandiah2021accelwattch")
def static_power(thermal_design_power, static_fraction):
    """Power of one device that does nothing: leakage, clocks, memory refresh, links kept up."""
    return thermal_design_power * static_fraction


@formula(unit="1", source="hong2010power")
def power_fraction(average_power, thermal_design_power):
    """Mean power of a device over its thermal design power."""
    return average_power / thermal_design_power


@constraint(
    kind="exceeds",
    reason="the kernels draw more than the thermal design power on average: the clock would be lowered",
    source="hong2010power",
    about="average_power",
)
def stays_within_power(average_power, thermal_design_power):
    """The mean power of a device stays within its thermal design power."""
    return average_power <= thermal_design_power
