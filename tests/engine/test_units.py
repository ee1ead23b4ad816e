"""The unit check finds what it is there to find."""

import numpy as np

from perfgrid.engine import Registry, formula, xp
from perfgrid.engine.grid.plan import Plan
from perfgrid.engine.grid.space import Axis, Space
from tests.units import check, dimension

UNITS = {"work": "byte", "rate": "byte/s", "delay": "s", "count": "1"}
SPACE = Space(
    (Axis("work", np.array([1.0, 2.0]), {"work": np.array([1.0, 2.0])}),), {"rate": 2.0, "delay": 1.0, "count": 3.0}
)


@formula(unit="s", source="toy")
def right(work, rate, delay):
    """Right."""
    return xp.where(work > 0, xp.maximum(work / rate, delay), 1e30) + 0.0


@formula(unit="s", source="toy")
def wrong_sum(work, delay):
    """Adds bytes to seconds."""
    return work + delay


@formula(unit="byte", source="toy")
def wrong_declaration(work, rate):
    """Says bytes, is seconds."""
    return work / rate


@formula(unit="1", source="toy")
def wrong_ceiling(work):
    """Rounds bytes."""
    return xp.ceil(work)


@formula(unit="s", source="toy")
def wrong_constant(delay):
    """A bare number of seconds."""
    return delay + 3.0


@formula(unit="byte", source="toy")
def constant():
    """A constant carries its own unit."""
    return 2.0


@formula(unit="byte**0.5", source="toy")
def root(work):
    """Roots halve powers."""
    return xp.sqrt(work)


def test_unit_check():
    parts = [right, wrong_sum, wrong_declaration, wrong_ceiling, wrong_constant, constant, root]
    plan = Plan(Registry.collect(parts), SPACE, [p.__name__ for p in parts])
    found = {p.split(":")[0] for p in check(plan, UNITS)}
    assert found == {"wrong_sum", "wrong_declaration", "wrong_ceiling", "wrong_constant"}


def test_dimensions():
    assert dimension("byte/s") == dimension("GB/s".replace("GB", "byte"))
    assert dimension("FLOP/s") == dimension("1/s")
    assert dimension("J") == dimension("W*s")
    assert dimension("1") == {}
