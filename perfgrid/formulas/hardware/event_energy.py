"""Energy of one event: an operation in each number format, a byte of each memory level and link (Hong 2010).

The energy of a kernel is the sum over events of their number times the energy of one. Energies of circuits are stated
at 7 nm and scaled by the energy per operation of the node (``circuit_energy``).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import formula
from perfgrid.engine.graph.tables import by_label

from .implementation import SCALE_OUT, SCALE_UP, replaced

FORMULAS = by_label(
    "precision",
    {
        "format_energy": ("1", "jouppi2021lessons, stas2025ml", "Energy of a multiply-add over that in 16 bits."),
        "unquantised_format_energy": (
            *("1", "jouppi2021lessons"),
            "Energy of the multiply-adds that are never quantised over that in 16 bits.",
        ),
    },
    {
        "fp32": (3.4, "format_energy"),  # 1.31 + 0.38 over 0.34 + 0.16 pJ at 7 nm
        "tf32": (2, "format_energy"),  # twice the bytes are moved
        "fp16": (1, "format_energy"),
        "bf16": (1, "format_energy"),
        "fp8": (0.57, "bf16_format_energy"),  # 795 over 1403 TFLOP/s, both at the power limit of H100
        "fp4": (0.57**2, "bf16_format_energy"),  # as from 16 to 8 bits once more
    },
)

# ---- energy of one operation and of one byte ------------------------------------------------------------------------


@formula(unit="J/FLOP", source="knowles2021colossus")
def half_precision_operation_energy(matrix_energy, matrix_energy_ratio, circuit_energy):
    """Energy of one 16-bit operation of the matrix units, operand delivery included, at the node."""
    return matrix_energy * matrix_energy_ratio * circuit_energy


@formula(unit="J/FLOP", source="jouppi2021lessons")
def vector_operation_energy(vector_energy, circuit_energy):
    """Energy of one operation of the vector units, at the node."""
    return vector_energy * circuit_energy


# ---- bytes ----------------------------------------------------------------------------------------------------------


@formula(unit="J/byte", source="jouppi2021lessons")
def shared_memory_byte_energy(sram_energy, circuit_energy):
    """Energy of one byte from or to the scratchpad, at the node."""
    return sram_energy * circuit_energy


@formula(unit="J/byte", source="jouppi2021lessons")
def l2_byte_energy(cache_energy, circuit_energy):
    """Energy of one byte from the last-level cache to where matrix units share it, at the node."""
    return cache_energy * circuit_energy


@formula(unit="J/byte", source="perfgrid2026probe")
def crossing_byte_energy(cache_energy, crossing_energy, crossbar, circuit_energy):
    """Energy of one byte between memory and the registers of a core, on the chip, at the node.

    Where many cores share a cache, a byte passes a crossbar, a first cache and the instructions that load or store it.
    """
    return xp.where(crossbar, crossing_energy, cache_energy) * circuit_energy


@formula(unit="J/byte", source="oconnor2017finegrained, perfgrid2026probe")
def memory_access_energy(memory_byte_energy, memory_port_energy):
    """Energy of one byte from or to memory: in its dies, and in interface and controller of the device."""
    return memory_byte_energy + memory_port_energy


@formula(unit="J/byte", source="zhang2024llmcompass")
def scale_up_byte_energy(scale_up_link_energy, stated_link_energy, stated_link_tier, link_is_native):
    """Energy of one byte at the interfaces of the scale-up links: of the device, or those that the study states."""
    return xp.where(replaced(SCALE_UP, link_is_native, stated_link_tier), stated_link_energy, scale_up_link_energy)


@formula(unit="J/byte", source="zhang2024llmcompass")
def scale_out_byte_energy(scale_out_link_energy, stated_link_energy, stated_link_tier, link_is_native):
    """Energy of one byte between a device and the network, by its own links or those that the study states."""
    return xp.where(replaced(SCALE_OUT, link_is_native, stated_link_tier), stated_link_energy, scale_out_link_energy)
