"""Dies: how many a wafer holds, how many of them work, and what a good one costs.

Areas in m^2, defect densities in 1/m^2, prices in USD. The equations are plain functions; the quantities bind them for
the compute dies (no prefix), the I/O dies (``io_``) and the interposer (``interposer_``) of a device.
"""

import math

import numpy as np

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import bind, constants

WAFER_PARTS = {"IO_": ("", "io_", "interposer_")}  # what wafers are cut into
DIES = {"IO_": ("", "io_")}
FEWEST = 1e-3  # dies per wafer, where a formula gives none: the cost stays finite, the design is flagged
ROUNDING = 1e-6  # of a ratio that is compared with a whole number
NO_DIE = 1e30  # stands for the area of a die that does not exist

CONSTANTS = constants(
    {
        "learning_time": (
            *(0.75 * 31_557_600.0, "s", "cutress2020n5"),
            "Time in which the excess of defects falls to 1/e; learning starts as long before volume production.",
        ),
        "stated_age": (
            *(0.75 * 31_557_600.0, "s", "cutress2020n5"),
            "Time after the start of volume production for which the defect densities of new nodes are stated.",
        ),
    }
)


# ---- dies per wafer -------------------------------------------------------------------------------------------------


def _existing(area):
    """The area, finite in value and derivative where there is no die."""
    return xp.where(area > 0, area, NO_DIE)


def _cell(area, street):
    """Area of a square die with its share of the streets between dies."""
    return (xp.sqrt(_existing(area)) + street) ** 2


def de_vries(area, diameter, edge, street):
    r"""Whole square dies of an area on a wafer: area over area, less an exponential share lost at the rim.

    .. math:: N = \frac{\pi d^2}{4 A} \exp(-2 \sqrt{A} / d)

    with the usable diameter d (without the edge) and the area A of a die with its share of the streets between dies.

    Source: devries2005dies, its best formula. Valid for dies of 25 to 858 mm^2: within 1.6 % of exact counts.
    """
    usable, cell = diameter - 2 * edge, _cell(area, street)
    return math.pi * usable**2 / (4 * cell) * xp.exp(-2 * xp.sqrt(cell) / usable)


def ferris_prabhu(area, diameter, edge, street):
    r"""Whole square dies on a wafer whose radius is shorter by a side of the die.

    .. math:: N = \frac{\pi d^2}{4 A} \left(1 - 2 \sqrt{A} / d\right)^2

    Source: devries2005dies (after Ferris-Prabhu).
    """
    usable, cell = diameter - 2 * edge, _cell(area, street)
    return math.pi * usable**2 / (4 * cell) * xp.maximum(1 - 2 * xp.sqrt(cell) / usable, 0.0) ** 2


def perimeter(area, diameter, edge, street):
    r"""Whole square dies on a wafer: area over area, less the dies that the rim cuts.

    .. math:: N = \frac{\pi d^2}{4 A} - \frac{\pi d}{\sqrt{2 A}}

    Source: feng2022actuary; the classic formula where edge and streets are zero. Not valid for very large dies, where
    it is negative.
    """
    usable, cell = diameter - 2 * edge, _cell(area, street)
    return math.pi * usable**2 / (4 * cell) - math.pi * usable / xp.sqrt(2 * cell)


# ---- yield ----------------------------------------------------------------------------------------------------------


def negative_binomial(defects, clustering):
    r"""Share of dies without a defect where the density of defects has a gamma distribution.

    .. math:: Y = (1 + D A / \alpha)^{-\alpha}

    with D·A = ``defects``, the mean number of defects on a die, and the clustering alpha. Tends to Poisson's for
    large alpha; is Seeds' for alpha = 1. Source: cunningham1990yield.
    """
    return xp.exp(-clustering * xp.log1p(defects / clustering))


MOST_SPARE = 64  # cores of one die that may be dead; dies with more spares are counted as if they had these


def harvested(core_defects, other_defects, cores, needed, clustering):
    """Share of dies of which ``needed`` of ``cores`` equal cores work, and all that is not a core.

    ``core_defects`` are the mean of one core, ``other_defects`` those of the rest that no spare repairs. Given the
    density of defects, cores die independently (a binomial sum over dead cores); the density has a gamma distribution,
    integrated over its logarithm by the trapezoidal rule (within 1e-5 for a clustering of 0.5 and more). A die that
    needs all its cores has the yield of `negative_binomial`. Source: koren1998defect.
    """

    def wide(value):
        return xp.asarray(value)[..., None, None]

    core_defects, other_defects, cores, needed, clustering = map(
        wide, (core_defects, other_defects, cores, needed, clustering)
    )
    dead = np.arange(MOST_SPARE + 1.0)
    step = np.arange(-18.0, 5.5, 0.6)[:, None] / xp.sqrt(clustering)  # logarithms of the density of defects
    weight = xp.exp(clustering * (step - xp.expm1(step)))
    density = xp.exp(step)
    lives, dies = -density * core_defects, xp.maximum(-xp.expm1(-density * core_defects), 1e-30)  # a core: log, share
    ways = xp.where((dead > 0) & (cores >= dead), (cores - dead + 1) / xp.maximum(dead, 1.0), 1.0)
    chosen = xp.cumsum(xp.log(xp.maximum(ways, 1e-30)), axis=-1)
    likely = xp.exp(chosen + dead * xp.log(dies) + xp.maximum(cores - dead, 0.0) * lives - density * other_defects)
    enough = xp.sum(xp.where(cores - needed >= dead, likely, 0.0), axis=-1, keepdims=True)
    return (xp.sum(weight * enough, axis=-2) / xp.sum(weight, axis=-2))[..., 0]


# ---- cost -----------------------------------------------------------------------------------------------------------


def field_use(area, field):
    """Share of its exposure fields that a die covers, or as many dies as fit one field. Source: graening2025catch."""
    area = _existing(area)
    together = xp.floor(field / area + ROUNDING) * area / field
    return xp.where(area <= field * (1 + ROUNDING), together, area / (xp.ceil(area / field - ROUNDING) * field))


def raw_cost(wafer_price, dies_per_wafer, lithography_share, use):
    """Cost of one die, good or bad: its part of the wafer, whose lithography is paid by exposure fields.

    price / dies · (1 - l + l / use), with the share l of lithography in the price. Source: graening2025catch.
    """
    return wafer_price / dies_per_wafer * (1 - lithography_share + lithography_share / use)


# ---- quantities -----------------------------------------------------------------------------------------------------


def counted(equation):
    """A count of dies by an equation, never below `FEWEST`."""

    def count(area, diameter, edge, street):
        return xp.maximum(equation(area, diameter, edge, street), FEWEST)

    return count


@formula(unit="1", source="cunningham1990yield, cutress2020n5", family=DIES)
def IO_die_defects(
    IO_fabricated_area, IO_defect_density, IO_early_defect_ratio, process_age, stated_age, learning_time
):
    """Mean number of killing defects on one IO_die: A·D, with the density D at the age of the process.

    D falls exponentially to that of the mature process, 1 + (early ratio - 1)·exp(-(age + T)/T) with the time T of
    learning, which starts before volume production; it is stated for the age ``stated_age``.
    """
    now, then = (
        1 + (IO_early_defect_ratio - 1) * xp.exp(-(age + learning_time) / learning_time)
        for age in (process_age, stated_age)
    )
    return IO_fabricated_area * IO_defect_density * now / then


def _yield(label, source="cunningham1990yield"):
    return alternative(of="IO_die_yield", by="yield_model", label=label, unit="1", source=source, family=DIES)


@_yield("poisson")
def IO_die_yield_poisson(IO_die_defects):
    """Share of IO_dies that work: Y = exp(-D·A). Valid for independent defects; real ones cluster."""
    return xp.exp(-IO_die_defects)


@_yield("murphy")
def IO_die_yield_murphy(IO_die_defects):
    """Share of IO_dies that work, by Murphy's triangular distribution.

    Y = ((1 - exp(-D·A)) / (D·A))^2; below 1e-6 defects its limit 1 - D·A.
    """
    some = IO_die_defects > 1e-6
    safe = xp.where(some, IO_die_defects, 1.0)
    return xp.where(some, (-xp.expm1(-safe) / safe) ** 2, 1 - IO_die_defects)


@_yield("seeds")
def IO_die_yield_seeds(IO_die_defects):
    """Share of IO_dies that work, by Seeds' exponential distribution: Y = 1 / (1 + D·A)."""
    return 1 / (1 + IO_die_defects)


@_yield("bose_einstein")
def IO_die_yield_bose_einstein(IO_die_defects, critical_layers):
    """Share of IO_dies that work, where each critical layer has its share of the defects: Y = (1 + D·A/n)^-n."""
    return xp.exp(-critical_layers * xp.log1p(IO_die_defects / critical_layers))


@alternative(of="die_yield", by="yield_model", label="harvested", unit="1", source="koren1998defect")
def die_yield_harvested(
    die_defects, defect_clustering, fabricated_cores, cores, dies, core_area_share, repairable_share
):
    """Share of compute dies that sell: as many cores work as the device enables, and all else not repaired by spares.

    Replaces the plain yield. Without a number of fabricated cores every defect outside spares kills the die.
    """
    known, dies = fabricated_cores > 0, xp.maximum(dies, 1.0)
    made = xp.where(known, fabricated_cores / dies, 1.0)
    needed = xp.where(known, xp.minimum(cores, fabricated_cores) / dies, 1.0)
    core = die_defects * core_area_share / made
    rest = die_defects * (1 - core_area_share) * (1 - repairable_share)
    return harvested(core, rest, made, xp.ceil(needed * (1 - ROUNDING)), defect_clustering)


@alternative(of="io_die_yield", by="yield_model", label="harvested", unit="1", source="koren1998defect")
def io_die_yield_harvested(io_die_defects, io_defect_clustering, repairable_share):
    """Share of I/O dies that work: they hold no cores, spare parts repair a share of their area."""
    return negative_binomial(io_die_defects * (1 - repairable_share), io_defect_clustering)


@formula(unit="1", source="graening2025catch", family=DIES)
def IO_die_tested_yield(IO_die_yield, probe_coverage):
    """Share of IO_dies that pass the test on the wafer: 1 - (1 - Y)·c, as it finds the part c of the dead ones."""
    return 1 - (1 - IO_die_yield) * probe_coverage


@formula(unit="USD", source="graening2025catch", family=DIES)
def IO_die_cost(
    IO_wafer_price,
    IO_dies_per_wafer,
    IO_lithography_share,
    IO_fabricated_area,
    field_area,
    IO_probe_cost,
    IO_die_tested_yield,
):
    """Cost of one IO_die that passed its test, so it bears the dies that failed.

    (C + test) / tested yield, with the cost C of a die, good or bad, by `raw_cost` and `field_use`.
    """
    use = field_use(IO_fabricated_area, field_area)
    each = raw_cost(IO_wafer_price, IO_dies_per_wafer, IO_lithography_share, use)
    return (each + IO_probe_cost) / IO_die_tested_yield


FILLS = {  # of a wafer: equation, its source and what it is called
    "de_vries": (de_vries, "devries2005dies", "by the formula of de Vries"),
    "ferris_prabhu": (ferris_prabhu, "devries2005dies", "by the formula of Ferris-Prabhu"),
    "perimeter": (perimeter, "feng2022actuary", "less those that the rim cuts"),
}
CUT = "IO_fabricated_area wafer_diameter edge_exclusion saw_street"
FORMULAS = (
    *CONSTANTS,
    *(
        entry
        for label, (equation, source, how) in FILLS.items()
        for entry in bind(
            *(counted(equation), f"IO_dies_per_wafer_{label}", CUT, "1", source),
            f"IO_dies that a wafer holds, {how}.",
            of=("IO_dies_per_wafer", "wafer_fill", label),
            family=WAFER_PARTS,
        )
    ),
    *bind(
        *(negative_binomial, "IO_die_yield_negative_binomial", "IO_die_defects IO_defect_clustering"),
        *("1", "cunningham1990yield", "Share of IO_dies that work, of clustered defects."),
        of=("IO_die_yield", "yield_model", "negative_binomial"),
        family=DIES,
    ),
)
