"""What devices achieve, read off the catalog entry by entry, and sizes of number formats as NumPy has them."""

from typing import Any

import numpy as np
import pytest

from perfgrid.catalog import load_catalog

from .cases import design

DEVICES = load_catalog().tables["device"]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "fp8"])
@pytest.mark.parametrize("device", DEVICES)
def test_rates_of_every_device(device, precision):
    v: Any = DEVICES[device].values
    q = design("llama-3.1-8b", device, precision=precision)
    peak, fraction = v[f"peak_{precision}_rate"], v["matrix_efficiency"]
    half = max(v["peak_bf16_rate"], v["peak_fp16_rate"])
    assert half > 0
    assert q["device_supports_precision"] == (peak > 0)
    if precision == "fp8" and peak > 0:
        fraction = v["fp8_matrix_efficiency"] or fraction
    peak = peak or half
    assert q["matrix_rate"] == pytest.approx(peak * fraction)
    assert q["usable_peak_rate"] == peak
    attention = half if precision == "fp8" else peak
    assert q["unquantised_matrix_rate"] == pytest.approx(attention * v["matrix_efficiency"])
    assert q["achieved_hbm_bandwidth"] == pytest.approx(v["hbm_bandwidth"] * v["hbm_efficiency"])


@pytest.mark.parametrize(
    ("device", "measured"),
    [
        ("h100-sxm-80gb", 1402.6e12),
        ("h200-sxm-141gb", 1453e12),
        ("b200", 3432.5e12),
        ("gb200", 3615.6e12),
        ("b300", 3353e12),
    ],
)
def test_eight_bit_products_reach_what_was_measured(device, measured):
    """Best of a scan of shapes (Stas Bekman's ml-engineering); Blackwell holds less for long."""
    entry = DEVICES[device]
    reached = design("llama-3.1-8b", device, precision="fp8")["matrix_rate"]
    if "short scan" in (entry.details["fp8_matrix_efficiency"].note or ""):
        shortly = float(entry.details["fp8_matrix_efficiency"].high or 0) * float(str(entry.values["peak_fp8_rate"]))
        assert shortly == pytest.approx(measured, rel=2e-3)
        assert 0.75 < reached / measured < 0.95
    else:
        assert reached == pytest.approx(measured, rel=2e-3)


@pytest.mark.parametrize(
    ("device", "precision", "sustained", "share"),
    [
        ("mi300x", "bf16", 708e12, 0.74),
        ("mi300x", "fp8", 1273e12, 0.81),
        ("mi325x", "bf16", 616e12, 1),
        ("mi325x", "fp8", 1143e12, 1),
    ],
)
def test_products_of_amd_reach_what_their_library_does(device, precision, sustained, share):
    """Over the shapes of a model, of what a device sustains (AMD): 0.93 of the large products of the catalog."""
    reached = 0.93 * design("llama-3.1-8b", device, precision=precision)["matrix_rate"]
    assert reached == pytest.approx(share * sustained, rel=3e-3)


def test_four_bits_reach_what_was_measured_or_as_much_as_eight():
    """7536 TFLOP/s at 8192 cubed by the vendor's library on GB200, which reaches 0.94 of what large products can."""
    q = design("llama-3.1-8b", "gb200", precision="fp4")
    assert q["matrix_rate"] * 0.94 == pytest.approx(7536e12, rel=5e-3)
    assert design("llama-3.1-8b", "b300", precision="fp4")["reached_fraction"] == pytest.approx(0.63)


def test_devices_with_eight_bits_state_what_they_reach():
    for entry in DEVICES.values():
        v: Any = entry.values
        assert (v["fp8_matrix_efficiency"] > 0) == (v["peak_fp8_rate"] > 0), entry.name
    unknown = design("llama-3.1-8b", "h100-sxm-80gb", precision="fp8", fp8_matrix_efficiency=0.0)
    assert unknown["matrix_rate"] == pytest.approx(1978.9e12 * 0.803)


def test_sizes_of_formats():
    numpy_types = {"fp32": np.float32, "tf32": np.float32, "fp16": np.float16, "bf16": np.float16, "fp8": np.uint8}
    for precision, stored in numpy_types.items():
        q = design("llama-3.1-8b", precision=precision)
        assert q["operand_size"] == np.dtype(stored).itemsize
        assert q["activation_size"] == (2 if precision == "fp8" else q["operand_size"])
    assert q["mask_size"] == np.dtype(bool).itemsize
    assert q["float32_size"] == np.dtype(np.float32).itemsize
