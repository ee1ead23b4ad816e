"""The label ``native``: what a study states of a node, package or memory, or else what the device's own entry says.

In a study of devices with an axis of such a table, every quantity of the table is given twice: ``stated_<name>`` along
that axis and ``native_<name>`` along the devices. One equation joins them for all quantities, which are listed here by
table and unit; a test compares the list with the catalog.
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import Formula

QUANTITIES = {
    "node": {
        "1": (
            "defect_clustering",
            "early_defect_ratio",
            "lithography_share",
            "analog_density",
            "operation_energy",
            "switching_speed",
            "scaling_generation",
        ),
        "1/m^2": ("defect_density", "logic_density"),
        "J/m^2": ("fab_energy",),
        "USD": ("wafer_price", "probe_cost", "design_cost", "mask_cost"),
        "V": ("supply_voltage",),
        "byte/m^2": ("sram_density",),
        "kg/m^2": ("fab_gas_carbon",),
    },
    "package": {
        "1": (
            "interposer_area_ratio",
            "interposer_defect_clustering",
            "substrate_area_ratio",
            "substrate_layers_grow",
            "bumps_per_design",
            "attach_yield",
            "interposer_attach_yield",
            "stitch_yield",
            "chip_first",
            "bridge_yield",
            "stacks_dies",
            "bond_yield",
        ),
        "1/m^2": ("interposer_defect_density",),
        "USD": ("interposer_wafer_price", "bridge_price", "assembly_cost", "package_design_cost"),
        "USD/m^2": ("interposer_price", "substrate_price", "bump_price", "bond_price", "package_design_price"),
        "m": ("bridge_edge",),
        "m^2": ("interposer_area_limit",),
    },
    "memory": {
        "J/byte": ("memory_byte_energy",),
        "USD/byte": ("memory_price",),
        "byte": ("memory_capacity",),
        "byte/s": ("memory_bandwidth",),
        "kg/byte": ("memory_carbon_per_byte",),
        "m": ("memory_interface_edge",),
        "m^2": ("memory_interface_area",),
    },
}


def stated_or_native(stated, native, is_native):
    """The stated value, or the device's own where the study states ``native``."""
    return xp.where(is_native > 0, native, stated)


FORMULAS = tuple(
    Formula(
        name,
        stated_or_native,
        (f"stated_{name}", f"native_{name}", f"{table}_is_native"),
        unit,
        "ardalani2022deepflow",
        f"What the {table} says of {name}: the stated value, or the device's own where the study states native.",
    )
    for table, units in QUANTITIES.items()
    for unit, names in units.items()
    for name in names
)
