"""Rates and bandwidths that a device reaches, by number format, and the byte sizes of the formats.

A data sheet states peak rates. Large matrix products reach a measured fraction of them (``matrix_efficiency``),
streaming kernels a measured fraction of the memory bandwidth (``hbm_efficiency``).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, formula
from perfgrid.engine.graph.tables import by_label, constants, positive
from perfgrid.formulas.axes import INNER, largest, table

UNQUANTISED = ("fp32", "tf32", "fp16", "bf16")
QUANTISED = ("fp8", "fp4")  # operands are scaled: the label ``scaling`` says how


FORMATS = (*UNQUANTISED, *QUANTISED)  # of the operands of matrix products
BY_FORMAT = by_label(
    "precision",
    {
        "operand_size": ("byte", "micikevicius2022fp8", "Bytes of one operand element of a product."),
        "activation_size": ("byte", "korthikanti2022", "Bytes of one stored activation element."),
        "peak_matrix_rate": ("FLOP/s", "stas2025ml", "Peak rate of matrix products; 0 where there is none."),
        "reached_fraction": ("1", "stas2025ml", "Fraction of the peak rate that large matrix products reach."),
        "unquantised_matrix_rate": (
            *("FLOP/s", "stas2025ml"),
            "Rate of the products that are never quantised (attention, output head).",
        ),
    },
    {
        "fp32": (4, "fp32_operand_size", "peak_fp32_rate", "matrix_efficiency", "matrix_rate"),
        "tf32": (4, "tf32_operand_size", "peak_tf32_rate", "matrix_efficiency", "matrix_rate"),
        "fp16": (2, "fp16_operand_size", "peak_fp16_rate", "matrix_efficiency", "matrix_rate"),
        "bf16": (2, "bf16_operand_size", "peak_bf16_rate", "matrix_efficiency", "matrix_rate"),
        "fp8": (None, "bf16_operand_size", "peak_fp8_rate", None, None),
        "fp4": (None, "bf16_operand_size", "peak_fp4_rate", None, None),
    },
)
FORMULAS = (
    *BY_FORMAT,
    *positive(
        *("device_supports_precision", "peak_matrix_rate", "stas2025ml"),
        "The device computes matrix products in the format of the study.",
        "the device has no matrix units for this number format",
    ),
    *constants(
        {
            "fp8_element_size": (1.0, "byte", "micikevicius2022fp8", "Bytes of one 8-bit number."),
            "fp4_element_size": (0.5, "byte", "rouhani2023mx", "Bytes of one 4-bit number."),
            "mask_size": (1.0, "byte", "korthikanti2022", "Bytes of one element of a dropout mask."),
            "unlimited_bandwidth": (
                *(1e18, "byte/s", "ardalani2022deepflow"),
                "Bandwidth of a level of which none is known: it never limits.",
            ),
            "float32_size": (
                *(4.0, "byte", "korthikanti2022"),
                "Bytes of one element in single precision (logits, softmax statistics, attention gradients).",
            ),
        }
    ),
)
# ---- rates ----------------------------------------------------------------------------------------------------------


@formula(unit="1", source="vllm2026platforms")
def vendor_support(device_vendor, supported_vendors):
    """1 where the software runs on devices of this vendor, and on any whose vendor is not stated."""
    numbers = {vendor: float(number) for number, vendor in enumerate(INNER.labels["vendor"], 1)}  # 0: unstated
    own = xp.where(table("vendor", **numbers) == device_vendor, supported_vendors, 0.0)
    return xp.where(device_vendor > 0, largest(own, "vendor"), 1.0)


@formula(unit="FLOP/s", source="stas2025ml")
def half_precision_rate(peak_bf16_rate, peak_fp16_rate):
    """Peak rate of matrix products in the faster 16-bit format: every device has one."""
    return xp.maximum(peak_bf16_rate, peak_fp16_rate)


@formula(unit="FLOP/s", source="stas2025ml")
def usable_peak_rate(peak_matrix_rate, half_precision_rate):
    """Peak rate of matrix products; the 16-bit rate stands in where a format is not supported (a flagged point)."""
    return xp.where(peak_matrix_rate > 0, peak_matrix_rate, half_precision_rate)


@alternative(of="reached_fraction", by="precision", label="fp8", unit="1", source="stas2025ml")
def fp8_reached_fraction(fp8_matrix_efficiency, matrix_efficiency, peak_fp8_rate):
    """Fraction of the peak rate that large matrix products reach in 8 bits; as in 16 bits where none is stated."""
    return xp.where((fp8_matrix_efficiency > 0) & (peak_fp8_rate > 0), fp8_matrix_efficiency, matrix_efficiency)


@alternative(of="reached_fraction", by="precision", label="fp4", unit="1", source="stas2025ml")
def fp4_reached_fraction(fp4_matrix_efficiency, fp8_reached_fraction):
    """Fraction of the peak rate that large matrix products reach in 4 bits; as in 8 bits where none is stated."""
    return xp.where(fp4_matrix_efficiency > 0, fp4_matrix_efficiency, fp8_reached_fraction)


@alternative(of="unquantised_matrix_rate", by="precision", label=QUANTISED, unit="FLOP/s", source="stas2025ml")
def LABEL_unquantised_matrix_rate_in_16_bits(half_precision_rate, matrix_efficiency):
    """Rate of the products that LABEL training leaves in 16-bit formats: attention and the output head."""
    return half_precision_rate * matrix_efficiency


@formula(unit="byte/s", source="williams2009roofline")
def achieved_hbm_bandwidth(hbm_bandwidth, hbm_efficiency):
    """Memory bandwidth that streaming kernels reach: the peak times a measured fraction; valid for long streams."""
    return hbm_bandwidth * hbm_efficiency


@formula(unit="byte/s", source="ardalani2022deepflow", family={"LEVEL": ("register", "shared_memory")})
def usable_LEVEL_bandwidth(LEVEL_bandwidth, unlimited_bandwidth):
    """Bandwidth of the LEVEL level of all cores together; unlimited where it is not known."""
    return xp.where(LEVEL_bandwidth > 0, LEVEL_bandwidth, unlimited_bandwidth)


# ---- sizes ----------------------------------------------------------------------------------------------------------


def _operand(label):
    return alternative(of="operand_size", by="precision", label=label, unit="byte", source="micikevicius2022fp8")


@_operand("fp8")
def fp8_operand_size(fp8_element_size, scale_size):
    """Bytes of one operand element of an 8-bit product, its part of a scale included."""
    return fp8_element_size + scale_size


@_operand("fp4")
def fp4_operand_size(fp4_element_size, scale_size):
    """Bytes of one operand element of a 4-bit product, its part of a scale included."""
    return fp4_element_size + scale_size
