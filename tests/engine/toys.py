"""A toy subject: a factory of machines and orders, so that the engine is tested without any of the real physics."""

import numpy as np
from hypothesis import strategies as st

from perfgrid.engine import InnerAxes, Registry, alternative, constraint, formula, xp
from perfgrid.engine.grid.space import Axis, Space

INNER = InnerAxes({"shift": ("day", "night"), "tool": ("saw", "drill", "press")})
table, total, largest, at, only = INNER.table, INNER.total, INNER.largest, INNER.at, INNER.only


@formula(unit="s", source="toy")
def tool_time(cut_work, machine_rate, lanes):
    """Time at each tool, by shift."""
    day = table(
        "tool", saw=cut_work / machine_rate, drill=cut_work / machine_rate / lanes, press=xp.ceil(lanes / 3) + 0.0
    )
    return day * table("shift", day=1.0, night=1.25)


@formula(unit="s", source="toy")
def piece_time(tool_time):
    """Time of one piece over all tools and shifts."""
    return total(total(tool_time, "tool"), "shift")


@formula(unit="s", source="toy")
def line_time(piece_time, pieces, lines):
    """Time of the fullest line."""
    return piece_time * xp.ceil(pieces / lines)


@formula(unit="s", source="toy")
def order_time(line_time, lines, orders, transport):
    """Time of all orders, the line filling up first."""
    return line_time * (orders + lines - 1) + transport


@formula(unit="1/s", source="toy")
def throughput(order_time, orders, sites):
    """Orders per second."""
    return orders * sites / order_time


@formula(unit="s", source="toy")
def slack(order_time, deadline):
    """Time left before the deadline; zero if late."""
    return xp.maximum(deadline - order_time, 0.0)


@formula(unit="USD", source="toy")
def energy_cost(order_time, machine_rate, lanes):
    """What the machines draw."""
    return order_time * machine_rate * lanes * 1e-3


@alternative(of="transport", label="truck", unit="s", source="toy")
def truck_transport(sites, distance):
    """By road."""
    return distance * sites


@alternative(of="transport", label="rail", unit="s", source="toy")
def rail_transport(distance):
    """By rail."""
    return 20.0 + distance


@alternative(of="cut_work", label="soft", by="material", unit="1", source="toy")
def soft_work(size):
    """Soft material."""
    return size * 2.0


@alternative(of="cut_work", label="hard", by="material", unit="1", source="toy")
def hard_work(size):
    """Hard material."""
    return size * xp.sqrt(size)


@alternative(of="cut_work", label="exotic", by="material", unit="1", source="toy")
def exotic_work(size, unobtainium):
    """Needs a quantity that nobody states: never selected, so never an error."""
    return size * unobtainium


@constraint(kind="illegal", reason="pieces do not divide by lines", source="toy")
def pieces_divide(pieces, lines):
    """Pieces divide by lines."""
    return pieces % lines == 0


@constraint(kind="exceeds", reason="later than the deadline", source="toy")
def in_time(order_time, deadline):
    """The orders are done in time."""
    return order_time <= deadline


@formula(unit="s", source="toy", family={"CREW": ("early", "late")})
def CREW_pay_time(CREW_size, piece_time):
    """Paid time of the CREW crew."""
    return CREW_size * piece_time


PARTS = [
    tool_time,
    piece_time,
    line_time,
    order_time,
    throughput,
    slack,
    energy_cost,
    truck_transport,
    rail_transport,
    soft_work,
    hard_work,
    exotic_work,
    pieces_divide,
    in_time,
    CREW_pay_time,
]
OUTPUTS = ("order_time", "throughput", "slack", "energy_cost", "piece_time", "tool_time", "transport_choice")


def registry() -> Registry:
    return Registry.collect(PARTS, INNER)


def layouts(workers: int = 64) -> list[tuple[int, int, int]]:
    return [(a, b, workers // (a * b)) for a in (1, 2, 4, 8) for b in (1, 2, 4, 8, 16) if a * b <= workers]


def space(product: int = 3, rate: int = 7, distance: int = 5) -> Space:
    rows = np.array(layouts(), dtype=float)
    labels = np.array([f"lanes{a:.0f}.lines{b:.0f}" for a, b, _ in rows])
    sizes = np.linspace(100.0, 900.0, product)
    return Space(
        (
            Axis(
                "product",
                np.array([f"p{i}" for i in range(product)]),
                {"size": sizes, "pieces": 12.0 + 16 * np.arange(product)},
            ),
            Axis(
                "layout",
                labels,
                dict(zip(("lanes", "lines", "sites"), rows.T, strict=True)),
                {},
                ("lanes", "lines", "sites"),
            ),
            Axis("material", np.array(["soft", "hard"]), {"material": np.array(["soft", "hard"])}),
            Axis("machine_rate", np.linspace(0.5, 2, rate), {}, {"machine_rate": np.linspace(0.5, 2, rate)}),
            Axis("distance", np.linspace(1.0, 50.0, distance), {"distance": np.linspace(1.0, 50.0, distance)}),
        ),
        {"machine_rate": 10.0, "orders": 12.0, "deadline": 9e4, "early_size": 3.0, "late_size": 2.0},
    )


def drawn_space(data: st.DataObject, most: int = 5) -> Space:
    """A space of drawn sizes with its axes in a drawn order."""
    drawn = space(*(data.draw(st.integers(1, most)) for _ in range(3)))
    return drawn.permuted(tuple(data.draw(st.permutations(range(len(drawn.axes))))))
