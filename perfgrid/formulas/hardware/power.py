"""Power of one device: what it draws whatever it does, and how its clock follows the power limit.

Energies of events (`event_energy`) hold at the clock that large products sustain at the power limit. Where a workload
leaves power, the device raises its clock, and with it the voltage: on-chip events then take up to `boost_energy` times
as much (E ~ V^2). Memory and links have voltages of their own.
"""

from math import log

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import constraint, formula

PROBED_HEADROOM = 1.414  # 1.98 GHz over the 1.4 GHz that large products sustain on H100
ROUNDING = 1e-4  # of a power that reaches the limit


def boost(power_limit, other_power, on_chip_power, highest):
    """Energy of on-chip events over that at the sustained clock: as far as the power limit allows, at most the highest.

    Where even the sustained clock takes more than is left it is 1, and the design exceeds its power.
    """
    left = power_limit - other_power
    return xp.clip(left / xp.maximum(on_chip_power, 1e-9 * power_limit), 1.0, highest)


@formula(unit="W", source="kandiah2021accelwattch")
def static_power(thermal_design_power, static_fraction):
    """Power of one working device beside its events, a part of its limit: leakage, clocks, refresh, links kept up."""
    return thermal_design_power * static_fraction


@formula(unit="W", source="stas2025ml")
def idle_power(thermal_design_power, idle_fraction, static_fraction):
    """Power of one device that waits for its host, most clocks standing still: at most the static part of its limit."""
    return thermal_design_power * xp.minimum(idle_fraction, static_fraction)


@formula(unit="1", source="perfgrid2026probe")
def reachable_boost(boost_energy, clock_headroom):
    """Energy of on-chip events at the highest clock over that at the sustained one: a power of the ratio of the clocks.

    `boost_energy` was measured on H100, whose clock rises by `PROBED_HEADROOM`.
    """
    return xp.exp(xp.log(boost_energy) * xp.log(clock_headroom) / log(PROBED_HEADROOM))


@formula(unit="1", source="hong2010power")
def power_fraction(average_power, thermal_design_power):
    """Mean power of a device over its thermal design power."""
    return average_power / thermal_design_power


@constraint(
    kind="exceeds",
    reason="the kernels draw more than the thermal design power on average, even at the clock that products sustain",
    source="hong2010power",
    about="average_power",
)
def stays_within_power(average_power, thermal_design_power):
    """The mean power of a device stays within its thermal design power; a raised clock may reach it."""
    return average_power <= thermal_design_power * (1 + ROUNDING)
