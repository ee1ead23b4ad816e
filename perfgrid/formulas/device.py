"""What a device achieves, per number format, and the byte sizes of the formats."""

from perfgrid.engine import xp
from perfgrid.engine.registry import alternative, constraint, formula


@alternative(of="peak_matrix_rate", by="precision", label="bf16", unit="FLOP/s", source="stas2025ml")
def bf16_peak_matrix_rate(peak_bf16_rate):
    """Peak rate of matrix products in 16-bit formats."""
    return peak_bf16_rate


@alternative(of="peak_matrix_rate", by="precision", label="fp8", unit="FLOP/s", source="stas2025ml")
def fp8_peak_matrix_rate(peak_fp8_rate):
    """Peak rate of matrix products in 8-bit floating point; 0 where there is none."""
    return peak_fp8_rate


@constraint(kind="illegal", reason="the device has no matrix units for this number format", source="stas2025ml")
def device_supports_precision(peak_matrix_rate):
    """The device computes matrix products in the format of the study."""
    return peak_matrix_rate > 0


@formula(unit="FLOP/s", source="stas2025ml")
def usable_peak_rate(peak_matrix_rate, peak_bf16_rate):
    """Peak rate of matrix products; the 16-bit rate stands in where a format is not supported (a flagged point)."""
    return xp.where(peak_matrix_rate > 0, peak_matrix_rate, peak_bf16_rate)


@alternative(of="reached_fraction", by="precision", label="bf16", unit="1", source="stas2025ml")
def bf16_reached_fraction(matrix_efficiency):
    """Fraction of the peak rate that large matrix products reach in 16-bit formats."""
    return matrix_efficiency


@alternative(of="reached_fraction", by="precision", label="fp8", unit="1", source="stas2025ml")
def fp8_reached_fraction(fp8_matrix_efficiency, matrix_efficiency, peak_fp8_rate):
    """Fraction of the peak rate that large matrix products reach in 8 bits; as in 16 bits where none is stated."""
    return xp.where((fp8_matrix_efficiency > 0) & (peak_fp8_rate > 0), fp8_matrix_efficiency, matrix_efficiency)


@formula(unit="FLOP/s", source="stas2025ml")
def matrix_rate(usable_peak_rate, reached_fraction):
    """Rate that large matrix products reach in the format of the study."""
    return usable_peak_rate * reached_fraction


@formula(unit="FLOP/s", source="stas2025ml")
def attention_matrix_rate(peak_bf16_rate, matrix_efficiency):
    """Rate that the matrix products of attention reach: they stay in 16-bit formats."""
    return peak_bf16_rate * matrix_efficiency


@formula(unit="byte/s", source="williams2009roofline")
def achieved_hbm_bandwidth(hbm_bandwidth, hbm_efficiency):
    """Memory bandwidth that streaming kernels reach."""
    return hbm_bandwidth * hbm_efficiency


@alternative(of="operand_size", by="precision", label="bf16", unit="byte", source="korthikanti2022")
def bf16_operand_size():
    """Bytes of one operand element of a 16-bit matrix product."""
    return 2.0


@alternative(of="operand_size", by="precision", label="fp8", unit="byte", source="micikevicius2022fp8")
def fp8_operand_size():
    """Bytes of one operand element of an 8-bit matrix product."""
    return 1.0


@formula(unit="byte", source="korthikanti2022")
def activation_size():
    """Bytes of one stored activation element (16-bit formats)."""
    return 2.0


@formula(unit="byte", source="korthikanti2022")
def mask_size():
    """Bytes of one element of a dropout mask."""
    return 1.0


@formula(unit="byte", source="korthikanti2022")
def float32_size():
    """Bytes of one element in single precision (logits, softmax statistics, accumulated attention gradients)."""
    return 4.0
