"""Rates and bandwidths that a device reaches, by number format, and the byte sizes of the formats.

A data sheet states peak rates. Large matrix products reach a measured fraction of them (``matrix_efficiency``),
streaming kernels a measured fraction of the memory bandwidth (``hbm_efficiency``).
"""

from perfgrid.engine import xp
from perfgrid.engine.graph.registry import alternative, constant, constraint, formula
from perfgrid.formulas.axes import INNER, largest, table

FORMATS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")  # of the operands of matrix products
UNQUANTISED = ("fp32", "tf32", "fp16", "bf16")
QUANTISED = ("fp8", "fp4")  # operands are scaled: the label ``scaling`` says how


@constant(unit="byte", source="micikevicius2022fp8")
def fp8_element_size():
    """Bytes of one 8-bit number."""
    return 1.0


@constant(unit="byte", source="rouhani2023mx")
def fp4_element_size():
    """Bytes of one 4-bit number."""
    return 0.5


@constant(unit="byte", source="korthikanti2022")
def mask_size():
    """Bytes of one element of a dropout mask."""
    return 1.0


@constant(unit="byte/s", source="ardalani2022deepflow")
def unlimited_bandwidth():
    """Bandwidth of a level of which none is known: it never limits."""
    return 1e18


@constant(unit="byte", source="korthikanti2022")
def float32_size():
    """Bytes of one element in single precision (logits, softmax statistics, accumulated attention gradients)."""
    return 4.0


# ---- rates ----------------------------------------------------------------------------------------------------------


@alternative(of="peak_matrix_rate", by="precision", label=FORMATS, unit="FLOP/s", source="stas2025ml")
def LABEL_peak_matrix_rate(peak_LABEL_rate):
    """Peak rate of matrix products in LABEL; 0 where there is none."""
    return peak_LABEL_rate


@constraint(reason="the device has no matrix units for this number format", source="stas2025ml")
def device_supports_precision(peak_matrix_rate):
    """The device computes matrix products in the format of the study."""
    return peak_matrix_rate > 0


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


@alternative(of="reached_fraction", by="precision", label=UNQUANTISED, unit="1", source="stas2025ml")
def LABEL_reached_fraction(matrix_efficiency):
    """Fraction of the peak rate that large matrix products reach in LABEL: as measured in 16 bits."""
    return matrix_efficiency


@alternative(of="reached_fraction", by="precision", label="fp8", unit="1", source="stas2025ml")
def fp8_reached_fraction(fp8_matrix_efficiency, matrix_efficiency, peak_fp8_rate):
    """Fraction of the peak rate that large matrix products reach in 8 bits; as in 16 bits where none is stated."""
    return xp.where((fp8_matrix_efficiency > 0) & (peak_fp8_rate > 0), fp8_matrix_efficiency, matrix_efficiency)


@alternative(of="reached_fraction", by="precision", label="fp4", unit="1", source="stas2025ml")
def fp4_reached_fraction(fp4_matrix_efficiency, fp8_reached_fraction):
    """Fraction of the peak rate that large matrix products reach in 4 bits; as in 8 bits where none is stated."""
    return xp.where(fp4_matrix_efficiency > 0, fp4_matrix_efficiency, fp8_reached_fraction)


@formula(unit="FLOP/s", source="stas2025ml")
def matrix_rate(usable_peak_rate, reached_fraction, promoted_rate):
    """Rate that large matrix products reach in the format of the study: peak rate · reached fraction, or less where
    vector units add up what blocks give.
    """
    return xp.minimum(usable_peak_rate * reached_fraction, promoted_rate)


@alternative(of="unquantised_matrix_rate", by="precision", label=UNQUANTISED, unit="FLOP/s", source="stas2025ml")
def LABEL_unquantised_matrix_rate(matrix_rate):
    """Rate of the products that are never quantised (attention, output head) in LABEL: that of all products."""
    return matrix_rate


@alternative(of="unquantised_matrix_rate", by="precision", label=QUANTISED, unit="FLOP/s", source="stas2025ml")
def LABEL_unquantised_matrix_rate_in_16_bits(half_precision_rate, matrix_efficiency):
    """Rate of the products that LABEL training leaves in 16-bit formats: attention and the output head."""
    return half_precision_rate * matrix_efficiency


@formula(unit="byte/s", source="williams2009roofline")
def achieved_hbm_bandwidth(hbm_bandwidth, hbm_efficiency):
    """Memory bandwidth that streaming kernels reach."""
    return hbm_bandwidth * hbm_efficiency


@formula(unit="byte/s", source="ardalani2022deepflow", family={"LEVEL": ("register", "shared_memory")})
def usable_LEVEL_bandwidth(LEVEL_bandwidth, unlimited_bandwidth):
    """Bandwidth of the LEVEL level of all cores together; unlimited where it is not known."""
    return xp.where(LEVEL_bandwidth > 0, LEVEL_bandwidth, unlimited_bandwidth)


# ---- sizes ----------------------------------------------------------------------------------------------------------


def _operand(label):
    return alternative(of="operand_size", by="precision", label=label, unit="byte", source="micikevicius2022fp8")


@_operand("fp32")
def fp32_operand_size():
    """Bytes of one operand element of a product in single precision."""
    return 4.0


@_operand("tf32")
def tf32_operand_size():
    """Bytes of one operand element of a product in TF32: stored in single precision."""
    return 4.0


@_operand("fp16")
def fp16_operand_size():
    """Bytes of one operand element of a product in float16."""
    return 2.0


@_operand("bf16")
def bf16_operand_size():
    """Bytes of one operand element of a product in bfloat16."""
    return 2.0


@_operand("fp8")
def fp8_operand_size(fp8_element_size, scale_size):
    """Bytes of one operand element of an 8-bit product, its part of a scale included."""
    return fp8_element_size + scale_size


@_operand("fp4")
def fp4_operand_size(fp4_element_size, scale_size):
    """Bytes of one operand element of a 4-bit product, its part of a scale included."""
    return fp4_element_size + scale_size


@alternative(of="activation_size", by="precision", label=UNQUANTISED, unit="byte", source="korthikanti2022")
def LABEL_activation_size(LABEL_operand_size):
    """Bytes of one stored activation element in LABEL training."""
    return LABEL_operand_size


@alternative(of="activation_size", by="precision", label=QUANTISED, unit="byte", source="korthikanti2022")
def LABEL_activation_size_in_16_bits(bf16_operand_size):
    """Bytes of one stored activation element in LABEL training: they stay in 16-bit formats."""
    return bf16_operand_size
