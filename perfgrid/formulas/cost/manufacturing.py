"""What cannot be made, or not as stated; and what a design costs for what it holds."""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import constraint, formula
from perfgrid.engine.graph.tables import positive

from .die import DIES, MOST_SPARE

FORMULAS = (
    *positive(
        *("node_is_priced", "wafer_price", "khan2020aichips"),
        "The price of a wafer is known of the node of the compute dies.",
        "the wafer price of this node is not known",
        about="die_cost",
    ),
    *positive(
        *("package_is_known", "substrate_area_ratio", "feng2022actuary"),
        "The package has a substrate.",
        "the parameters of this package are not known",
        about="package_cost",
    ),
)

# ---- dies -----------------------------------------------------------------------------------------------------------


@constraint(
    reason="there is no compute die: state the number of dies, and the area of each or of all modules",
    source="feng2022actuary",
    about="die_cost",
)
def dies_exist(dies, fabricated_area):
    """The device has compute dies of known area."""
    return (dies >= 1) & (fabricated_area > 0)


@constraint(
    reason="the wafer price of the I/O dies' node is not known: state io_node",
    source="khan2020aichips",
    about="io_die_cost",
)
def io_node_is_priced(io_wafer_price, io_dies, io_fabricated_area):
    """The price of a wafer is known of the node of the I/O dies, and so is their area."""
    return (io_dies < 1) | ((io_wafer_price > 0) & (io_fabricated_area > 0))


@constraint(
    reason="a wafer does not hold one IO_die of this area", source="devries2005dies", family=DIES, about="IO_die_cost"
)
def IO_die_fits_wafer(IO_dies_per_wafer, IO_dies):
    """A wafer holds at least one of the IO_dies."""
    return (IO_dies < 1) | (IO_dies_per_wafer >= 1)


@constraint(
    kind="exceeds",
    reason="the exposure field (reticle limit) does not hold one IO_die",
    source="graening2025catch",
    family=DIES,
    about="IO_die_cost",
)
def IO_die_fits_field(IO_fabricated_area, field_area):
    """One exposure covers one of the IO_dies."""
    return IO_fabricated_area <= field_area


@constraint(
    reason="the device enables more cores than its dies hold, or has more spare cores than are counted",
    source="koren1998defect",
    about="die_yield_harvested",
)
def cores_fit_dies(fabricated_cores, cores, dies):
    """The dies hold the enabled cores and not more than `die.MOST_SPARE` others each."""
    spare = fabricated_cores - cores
    return (fabricated_cores < 1) | ((spare >= 0) & (spare <= MOST_SPARE * xp.maximum(dies, 1.0)))


# ---- packages -------------------------------------------------------------------------------------------------------


@constraint(
    kind="exceeds",
    reason="the interposer is larger than its technology allows",
    source="siliconanalysts2026",
    about="package_cost",
)
def interposer_is_made(interposer_fabricated_area, interposer_area_limit):
    """The interposer is not larger than its technology makes."""
    return (interposer_area_limit <= 0) | (interposer_fabricated_area <= interposer_area_limit)


@constraint(reason="a wafer does not hold one interposer of this area", source="devries2005dies", about="package_cost")
def interposer_fits_wafer(interposer_dies_per_wafer, interposer_area_ratio):
    """A wafer holds at least one interposer."""
    return (interposer_area_ratio <= 0) | (interposer_dies_per_wafer >= 1)


@constraint(
    reason="memory stacks need an interposer or bridges, which this package does not have",
    source="siliconanalysts2026",
    about="package_cost",
)
def memory_is_reached(hbm_stacks, interposer_area_ratio, bridge_price):
    """Wires fine enough for memory stacks lead to them."""
    return (hbm_stacks < 1) | (interposer_area_ratio > 0) | (bridge_price > 0)


@constraint(
    reason="stacked compute dies need I/O dies of at least the same area below them",
    source="siliconanalysts2026",
    about="package_cost",
)
def stack_has_base(stacks_dies, fabricated_area, dies, io_fabricated_area, io_dies):
    """I/O dies lie under all compute dies that are stacked."""
    return xp.logical_not(stacks_dies) | (fabricated_area * dies <= io_fabricated_area * io_dies)


# ---- cost per transistor --------------------------------------------------------------------------------------------


@formula(unit="1", source="wikipedia2025transistors")
def logic_transistors(module_area, fabricated_area, dies, logic_share, logic_density):
    """Transistors of logic on all compute dies, interfaces between dies not counted."""
    return xp.where(module_area > 0, module_area, fabricated_area * dies) * logic_share * logic_density


@formula(unit="USD", source="wikipedia2025transistors")
def cost_per_transistor(device_cost, logic_transistors):
    """Cost of a device over its transistors of logic."""
    known = logic_transistors > 0
    return xp.where(known, device_cost / xp.where(known, logic_transistors, 1.0), 0.0)
