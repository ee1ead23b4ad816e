"""Packages: interposer, substrate, assembly and what is lost in it; design paid over a volume.

Cost of a device = good dies + memory + package, where the package bears its own parts, its assembly and everything that
a failed assembly scraps. Equations of Chiplet Actuary (feng2022actuary), its four packages being rows of parameters.
Areas in m^2, prices in USD.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula, synonyms
from perfgrid.engine.graph.tables import bind, by_label, constants

from .die import DIES, ROUNDING, negative_binomial

SMALL_PACKAGE, LARGE_PACKAGE = 289e-6, 900e-6  # m^2
DESIGN_REFERENCE_AREA, INTERFACE_DESIGN_AREA = 300e-6, 20e-6  # m^2
TABLES = (
    *constants(
        {
            "small_package": (
                *(SMALL_PACKAGE, "m^2", "feng2022actuary"),
                "Package area up to which a substrate under several dies costs one and a half times that under one.",
            ),
            "large_package": (
                *(LARGE_PACKAGE, "m^2", "feng2022actuary"),
                "Package area from which a substrate under several dies costs twice that under one.",
            ),
            "design_reference_area": (
                *(DESIGN_REFERENCE_AREA, "m^2", "feng2022actuary"),
                "Area of the chip for which the design cost of a node is stated.",
            ),
            "interface_design_area": (
                *(INTERFACE_DESIGN_AREA, "m^2", "feng2022actuary"),
                "Area of modules whose design costs as much as that of the interface between dies.",
            ),
        }
    ),
    *synonyms({"io_fabricated_area": ("io_die_area", "m^2", "feng2022actuary", "Area of one I/O die.")}),
    *by_label(
        "memory_in_package",
        {"memory_cost": ("USD", "feng2022actuary", "Cost of the memory of a package.")},
        {"none": (0,)},
    ),
)


# ---- equations ------------------------------------------------------------------------------------------------------


def attach_yields(interposer, attached, attach_yield, interposer_attach_yield):
    """Yields of attaching n dies and memory stacks to the interposer, and the interposer to the substrate.

    The first is y^n for the yield y of one attachment. Without an interposer the dies are attached to the substrate:
    the first yield is 1 and the second y^n. Source: feng2022actuary.
    """
    dies = xp.exp(attached * xp.log(attach_yield))
    return xp.where(interposer, dies, 1.0), xp.where(interposer, interposer_attach_yield, dies)


def lost_package(interposer_cost, substrate_cost, interposer_yield, on_interposer, on_substrate, chip_first):
    """Cost of the interposers and substrates scrapped for each good package.

    C_i·(1/(y_i·y_d·y_s) - 1) + C_s·(1/y_s - 1): an interposer is lost by its own defects (y_i), under dies that were
    attached badly (y_d; not where it is grown around the dies, chip first), and with the substrate (y_s). Source:
    feng2022actuary.
    """
    module = interposer_yield * xp.where(chip_first, 1.0, on_interposer) * on_substrate
    return interposer_cost * (1 / module - 1) + substrate_cost * (1 / on_substrate - 1)


def lost_dies(good_dies, interposer_yield, on_interposer, on_substrate, chip_first):
    """Cost of the good dies and memories scrapped for each good package: C·(1/(y·y_s) - 1).

    Chip last, y is the yield of attaching the dies; chip first, defects of the interposer destroy them, so y is its
    yield. Source: feng2022actuary.
    """
    kept = xp.where(chip_first, interposer_yield, on_interposer) * on_substrate
    return good_dies * (1 / kept - 1)


def layer_factor(area, parts, grows, small, large):
    """Price of a substrate over that of one with the layers that a single part needs. Source: feng2022actuary."""
    over = 1 + ROUNDING
    several = xp.where(area > large * over, 2.0, xp.where(area > small * over, 1.75, 1.5))
    return xp.where(grows & (parts > 1), several, 1.0)


MODULE_SHARE, CHIP_SHARE, FIXED_SHARE = 0.5, 0.3, 0.2  # of the design of a chip of the reference area


def module_design(design_cost, area, reference):
    """Design and verification of modules of an area. Source: feng2022actuary."""
    return MODULE_SHARE * design_cost * area / reference


def chip_design(design_cost, area, reference):
    """Physical design of one die of an area, and what each tape-out needs. Source: feng2022actuary."""
    return design_cost * (CHIP_SHARE * area / reference + FIXED_SHARE)


def stitches(area, field):
    """Seams between the exposure fields of a piece of an area. Source: graening2025catch."""
    return xp.maximum(xp.ceil(area / field - ROUNDING) - 1, 0.0)


def bridges_between(neighbours, area, bridge_edge):
    """Bridges to parts of an area, as many for each as its edge needs. Source: sudarshan2024ecochip."""
    edge = xp.sqrt(xp.where(area > 0, area, bridge_edge**2))
    return neighbours * xp.ceil(edge / bridge_edge - ROUNDING)


# ---- areas ----------------------------------------------------------------------------------------------------------


@formula(unit="m^2", source="feng2022actuary")
def fabricated_area(module_area, dies, d2d_overhead, die_area):
    """Area of one compute die: its share of the modules and the interfaces to other dies, or as stated."""
    interfaces = xp.where(dies > 1, d2d_overhead, 0.0)
    return xp.where(module_area > 0, module_area / xp.maximum(dies, 1.0) * (1 + interfaces), die_area)


@formula(unit="m^2", source="feng2022actuary")
def carried_area(fabricated_area, dies, io_fabricated_area, io_dies, hbm_stacks, memory_stack_area, stacks_dies):
    """Area that dies and memory stacks take on what carries them: stacked dies take none."""
    beside = xp.where(stacks_dies, 0.0, fabricated_area * dies)
    return beside + io_fabricated_area * io_dies + hbm_stacks * memory_stack_area


@formula(unit="m^2", source="feng2022actuary")
def interposer_fabricated_area(carried_area, interposer_area_ratio):
    """Area of the interposer: a ratio times the area that it carries; 0 where there is none."""
    return carried_area * interposer_area_ratio


@formula(unit="m^2", source="feng2022actuary")
def package_area(carried_area, interposer_fabricated_area, interposer_area_ratio, substrate_area_ratio):
    """Area of the substrate, which is that of the package: a ratio times the interposer, or what it carries itself."""
    return substrate_area_ratio * xp.where(interposer_area_ratio > 0, interposer_fabricated_area, carried_area)


@formula(unit="1", source="feng2022actuary")
def attached_parts(dies, io_dies, hbm_stacks, stacks_dies):
    """Dies and memory stacks that are attached to the interposer or substrate."""
    return xp.where(stacks_dies, 0.0, dies) + io_dies + hbm_stacks


# ---- parts ----------------------------------------------------------------------------------------------------------


@formula(unit="1", source="graening2025catch")
def interposer_yield(
    interposer_fabricated_area,
    interposer_defect_density,
    interposer_defect_clustering,
    field_area,
    stitch_yield,
):
    """Share of interposers without a defect whose seams hold: Y·y^s, of s seams between exposure fields."""
    defects = interposer_fabricated_area * interposer_defect_density
    seams = xp.exp(stitches(interposer_fabricated_area, field_area) * xp.log(stitch_yield))
    return negative_binomial(defects, interposer_defect_clustering) * seams


@formula(unit="1", source="sudarshan2024ecochip")
def bridges(dies, io_dies, fabricated_area, hbm_stacks, memory_stack_area, bridge_edge, bridge_price):
    """Silicon bridges of a package: from die to die, and to each memory stack."""
    between = bridges_between(xp.maximum(dies + io_dies - 1, 0.0), fabricated_area, bridge_edge)
    to_memory = bridges_between(hbm_stacks, memory_stack_area, bridge_edge)
    return xp.where(bridge_price > 0, between + to_memory, 0.0)


@formula(unit="USD", source="feng2022actuary")
def interposer_cost(interposer_wafer_price, interposer_dies_per_wafer, interposer_fabricated_area, interposer_price):
    """Cost of one interposer, good or bad: wafer price / interposers of a wafer + price per area · area."""
    return interposer_wafer_price / interposer_dies_per_wafer + interposer_price * interposer_fabricated_area


@formula(unit="USD", source="feng2022actuary")
def substrate_cost(package_area, substrate_price, substrate_layer_factor, bridges, bridge_price):
    """Cost of one substrate with its bridges: area · price per area · layer factor + bridges · price of one."""
    return package_area * substrate_price * substrate_layer_factor + bridges * bridge_price


@formula(unit="USD", source="feng2022actuary")
def bump_cost(bump_price, fabricated_area, dies, die_designs, io_fabricated_area, io_dies, bumps_per_design):
    """Cost of the bumps under all dies, paid for each die or, by convention, for each design."""
    bumped = xp.where(bumps_per_design, die_designs, dies) * fabricated_area
    return bump_price * (bumped + xp.where(bumps_per_design, xp.minimum(io_dies, 1.0), io_dies) * io_fabricated_area)


@formula(unit="USD", source="feng2022actuary")
def silicon_cost(die_cost, dies, io_die_cost, io_dies, bump_cost):
    """Cost of all dies of a device that passed their tests, with their bumps: n·C + m·C_io + bumps."""
    return die_cost * dies + io_die_cost * io_dies + bump_cost


@alternative(of="memory_cost", by="memory_in_package", label="stacks", unit="USD", source="siliconanalysts2026")
def memory_cost_of_stacks(hbm_capacity, hbm_stacks, memory_price):
    """Cost of the memory stacks in the package; memory of a device without stacks lies beside it."""
    return xp.where(hbm_stacks > 0, hbm_capacity * memory_price, 0.0)


@formula(unit="USD", source="graening2025catch")
def bonding_cost(stacks_dies, bond_price, fabricated_area, dies):
    """Cost of bonding dies on dies: price per area · area of all compute dies; 0 where they lie side by side."""
    return xp.where(stacks_dies, bond_price * fabricated_area * dies, 0.0)


# ---- losses of assembly ---------------------------------------------------------------------------------------------


@formula(unit="1", source="feng2022actuary")
def interposer_module_yield(attached_parts, attach_yield, interposer_attach_yield, interposer_area_ratio):
    """Share of interposers whose dies and memories are all attached well: y^n. Valid for independent failures."""
    return attach_yields(interposer_area_ratio > 0, attached_parts, attach_yield, interposer_attach_yield)[0]


@formula(unit="1", source="sudarshan2024ecochip")
def substrate_module_yield(
    attached_parts, attach_yield, interposer_attach_yield, interposer_area_ratio, bridges, bridge_yield
):
    """Share of packages whose parts on the substrate are all attached well and whose bridges work: y·y_b^bridges."""
    yields = attach_yields(interposer_area_ratio > 0, attached_parts, attach_yield, interposer_attach_yield)
    return yields[1] * xp.exp(bridges * xp.log(bridge_yield))


@formula(unit="1", source="graening2025catch", family=DIES)
def IO_die_quality(IO_die_yield, IO_die_tested_yield):
    """Share of the IO_dies that passed their test which really work: yield / tested yield."""
    return IO_die_yield / IO_die_tested_yield


@formula(unit="1", source="graening2025catch")
def bonded_yield(stacks_dies, bond_yield, die_quality, dies, io_die_quality, io_dies):
    """Share of sets of dies that work after bonding: y_b^n·q^n·q_io^m, as no bad die slipped in and all bonds hold."""
    bonds = xp.where(stacks_dies, xp.exp(dies * xp.log(bond_yield)), 1.0)
    return bonds * xp.exp(dies * xp.log(die_quality) + io_dies * xp.log(io_die_quality))


@formula(unit="USD", source="feng2022actuary")
def scrapped_die_cost(
    silicon_cost,
    memory_cost,
    bonding_cost,
    interposer_yield,
    interposer_module_yield,
    substrate_module_yield,
    chip_first,
):
    """Good dies and memory scrapped in assembly for each good package (`lost_dies`)."""
    yields = (interposer_yield, interposer_module_yield, substrate_module_yield)
    return lost_dies(silicon_cost + memory_cost + bonding_cost, *yields, chip_first)


@formula(unit="USD", source="feng2022actuary")
def package_cost(
    interposer_cost, substrate_cost, bonding_cost, scrapped_package_cost, scrapped_die_cost, assembly_cost
):
    """Cost of packaging a device: interposer + substrate + bonding + what assembly scraps + assembly and test."""
    parts = interposer_cost + substrate_cost + bonding_cost
    return parts + scrapped_package_cost + scrapped_die_cost + assembly_cost


@formula(unit="USD", source="feng2022actuary")
def manufacturing_cost(silicon_cost, memory_cost, package_cost, bonded_yield):
    """Cost of making one more device (bill of materials): (dies + memory + package) / yield of the final test."""
    return (silicon_cost + memory_cost + package_cost) / bonded_yield


# ---- design ---------------------------------------------------------------------------------------------------------


@formula(unit="1", source="feng2022actuary")
def die_designs(dies, distinct_dies):
    """Different designs among the compute dies of a device."""
    return xp.where(distinct_dies, dies, xp.minimum(dies, 1.0))


@formula(unit="m^2", source="feng2022actuary")
def designed_area(fabricated_area, module_area, dies, die_designs, d2d_overhead, interface_design_area):
    """Area of all modules that are designed for the compute dies; the interface between dies is one of them."""
    split = (dies > 1) & (module_area > 0)
    modules = fabricated_area / (1 + xp.where(split, d2d_overhead, 0.0)) * die_designs
    return modules + xp.where(split & (d2d_overhead > 0), interface_design_area, 0.0)


@formula(unit="USD", source="feng2022actuary")
def module_design_cost(design_cost, designed_area, io_design_cost, io_fabricated_area, io_dies, design_reference_area):
    """Design and verification of the modules of all different dies."""
    io = xp.where(io_dies > 0, module_design(io_design_cost, io_fabricated_area, design_reference_area), 0.0)
    return module_design(design_cost, designed_area, design_reference_area) + io


@formula(unit="USD", source="feng2022actuary", family=DIES)
def IO_tape_out_cost(IO_design_cost, IO_mask_cost, IO_fabricated_area, design_reference_area):
    """Physical design and masks of one IO_die."""
    return chip_design(IO_design_cost, IO_fabricated_area, design_reference_area) + IO_mask_cost


@formula(unit="USD", source="feng2022actuary")
def chip_design_cost(tape_out_cost, die_designs, io_tape_out_cost, io_dies):
    """Physical design and masks of all different dies."""
    return tape_out_cost * die_designs + io_tape_out_cost * xp.minimum(io_dies, 1.0)


@formula(unit="USD", source="feng2022actuary")
def package_engineering_cost(
    package_area,
    interposer_fabricated_area,
    interposer_area_ratio,
    substrate_layer_factor,
    package_design_price,
    package_design_cost,
):
    """Design of the package."""
    area = xp.where(interposer_area_ratio > 0, interposer_fabricated_area, package_area * substrate_layer_factor)
    return package_design_price * area + package_design_cost


@formula(unit="USD", source="feng2022actuary")
def development_cost(module_design_cost, chip_design_cost, package_engineering_cost, design_reuse):
    """Design of a device and its masks; what products with the same dies share is divided among them."""
    return (module_design_cost + chip_design_cost) / design_reuse + package_engineering_cost


@formula(unit="USD", source="feng2022actuary")
def development_cost_per_device(development_cost, production_volume):
    """Share of the design that one device bears; 0 where the study states no volume."""
    paid = production_volume > 0
    return xp.where(paid, development_cost / xp.where(paid, production_volume, 1.0), 0.0)


@formula(unit="USD", source="feng2022actuary")
def device_cost(manufacturing_cost, development_cost_per_device):
    """Cost of one device: making it, and its share of the design."""
    return manufacturing_cost + development_cost_per_device


FORMULAS = (
    *TABLES,
    *bind(
        *(layer_factor, "substrate_layer_factor"),
        *("package_area attached_parts substrate_layers_grow small_package large_package", "1", "feng2022actuary"),
    ),
    *bind(
        *(lost_package, "scrapped_package_cost"),
        "interposer_cost substrate_cost interposer_yield interposer_module_yield substrate_module_yield chip_first",
        *("USD", "feng2022actuary"),
    ),
)
