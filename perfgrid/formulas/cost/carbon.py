"""Carbon dioxide equivalent: of making the devices (embodied) and of running them (operational).

ACT (Gupta 2022): the emissions of a fab grow with the area of silicon that it processes. They have three parts: the
electricity of the fab times the carbon of its grid, process gases, and materials. Memory emits in proportion to its
capacity, every package a constant. Heat sinks grow with the power, the board of a device is a constant: both, and the
share of assembly, are those of one product whose maker states its parts. Operation emits in proportion to the energy
drawn from the grid.
"""

from perfgrid.engine.graph.registry import constant, constraint, formula

from .die import DIES


@constant(unit="kg", source="gupta2022act")
def package_carbon():
    """Carbon of one package."""
    return 0.15


@constant(unit="kg/m^2", source="gupta2022act")
def fab_material_carbon():
    """Carbon of the materials that fabs use, by area: 0.5 kg/cm^2."""
    return 5000.0


@formula(unit="kg/m^2", source="gupta2022act", family=DIES)
def IO_area_carbon(fab_carbon, IO_fab_energy, IO_fab_gas_carbon, fab_material_carbon):
    """Carbon of processed silicon, by area: CPA = CI_fab·EPA + GPA + MPA, before yield."""
    return fab_carbon * IO_fab_energy + IO_fab_gas_carbon + fab_material_carbon


@formula(unit="kg", source="gupta2022act", family=DIES)
def IO_die_carbon(IO_area_carbon, IO_fabricated_area, IO_dies, IO_die_yield):
    """Carbon of the dies of one device, dies that do not work included: area·CPA / yield."""
    return IO_area_carbon * IO_fabricated_area * IO_dies / IO_die_yield


@formula(unit="kg", source="gupta2022act")
def memory_carbon(hbm_capacity, memory_carbon_per_byte):
    """Carbon of the memory of one device."""
    return hbm_capacity * memory_carbon_per_byte


@constant(unit="kg/W", source="nvidia2025pcf")
def cooling_carbon():
    """Carbon of heat sinks by the power that they are made for: 230 kg for eight H100 of 700 W."""
    return 230 / (8 * 700)


@constant(unit="kg", source="nvidia2025pcf")
def board_carbon():
    """Carbon of the rest of a device: power converters, connectors, board and frame, 83.8 kg of eight H100."""
    return 83.8 / 8


@constant(unit="1", source="nvidia2025pcf")
def assembly_carbon_ratio():
    """Carbon of assembly and transport over that of all parts: 1312 kg of eight H100, 1191.8 kg of them parts."""
    return 1312 / 1191.8 - 1


@formula(unit="kg", source="gupta2022act, nvidia2025pcf")
def embodied_carbon(
    die_carbon,
    io_die_carbon,
    memory_carbon,
    package_carbon,
    dies,
    io_dies,
    hbm_stacks,
    cooling_carbon,
    thermal_design_power,
    board_carbon,
    assembly_carbon_ratio,
):
    """Carbon of making one device: dies, memory, the packages of all its parts, cooling, board and assembly."""
    silicon = die_carbon + io_die_carbon + memory_carbon + package_carbon * (1 + dies + io_dies + hbm_stacks)
    return (silicon + cooling_carbon * thermal_design_power + board_carbon) * (1 + assembly_carbon_ratio)


@formula(unit="kg/s", source="gupta2022act")
def operational_carbon_rate(facility_power, grid_carbon):
    """Carbon per time of running the cluster, by the energy drawn from the grid."""
    return facility_power * grid_carbon


@formula(unit="kg/s", source="gupta2022act")
def embodied_carbon_rate(embodied_carbon, devices, equipment_life):
    """Carbon per time of having made the devices, in equal parts over their life; servers and network apart."""
    return embodied_carbon * devices / equipment_life


@formula(unit="kg", source="patterson2021carbon")
def carbon_per_training_run(operational_carbon_rate, embodied_carbon_rate, training_time, utilization):
    """Carbon of the whole training run: operation and its share of the devices' life, idle hours included."""
    return (operational_carbon_rate + embodied_carbon_rate) * training_time / utilization


@constraint(reason="the fab emissions of the device's node are not known", source="gupta2022act", about="die_carbon")
def node_has_carbon(fab_energy, io_fab_energy, io_dies):
    """The energy that fabs take per area is known of the nodes of all dies."""
    return (fab_energy > 0) & ((io_dies < 1) | (io_fab_energy > 0))


@constraint(reason="the area of the compute dies is not known", source="gupta2022act", about="die_carbon")
def dies_have_area(dies, fabricated_area):
    """The device has compute dies of known area."""
    return (dies >= 1) & (fabricated_area > 0)
