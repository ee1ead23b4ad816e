"""The device catalog: rates, sizes and bandwidths of every device agree with each other and with what was measured."""

import math
from typing import Any

import pytest

from perfgrid.catalog import load_catalog
from tests.each import each

CATALOG = load_catalog()
DEVICES = list(CATALOG.tables["device"].values())
HOPPER = ("h100", "h800", "h200", "gh200")
BLACKWELL = ("b200", "gb200", "b300", "gb300")


def values_of(name: str) -> Any:
    """The values of a device, of whatever kind they are."""
    return CATALOG.entry("device", name).values


def family(device):
    """The beginning of a device's name that tells its generation."""
    generations = ("v100", "a100", "l40s", "rtx-40", *HOPPER, *BLACKWELL)
    generations += ("mi250", "mi300", "mi325", "mi35", "tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7")
    return next(g for g in (*generations, "gaudi2", "gaudi3") if device.name.startswith(g))


def half_rate(v):
    return max(v["peak_bf16_rate"], v["peak_fp16_rate"])


@each("device", DEVICES)
def test_peak_rate_is_cores_times_clock_times_operations(device):
    v = values_of(device.name)
    rate = v["cores"] * v["clock_frequency"] * v["matrix_operations_per_clock"]
    assert rate == pytest.approx(half_rate(v), rel=0.02)


@each("device", DEVICES)
def test_rates_of_formats_are_simple_multiples(device):
    """Twice the rate for half the bits, or none; the latest generation cut 8-bit integers for 4-bit formats."""
    v, half = values_of(device.name), half_rate(values_of(device.name))
    assert v["peak_bf16_rate"] == (0 if family(device) == "v100" else half)
    multiples = {"fp16": (0, 0.25, 1), "tf32": (0, 0.25, 0.5), "fp8": (0, 1, 2), "fp4": (0, 4, 6)}
    multiples |= {"int8": (0, 0.071, 0.067) if "b300" in device.name else (0, 1, 2)}
    if "rtx" in device.name:  # sums in float32 at half the rate, those of integers at the full one
        multiples["int8"] = (4,)
    for number_format, allowed in multiples.items():
        multiple = v[f"peak_{number_format}_rate"] / half
        assert any(multiple == pytest.approx(a, rel=0.015) for a in allowed), number_format
    assert (v["peak_fp16_rate"] > 0) != device.name.startswith("tpu")
    if device.name.startswith("tpu"):
        assert v["peak_fp32_rate"] == pytest.approx(half / 6, rel=0.01)
    elif device.name.startswith("gaudi"):
        assert v["peak_fp32_rate"] == (0 if family(device) == "gaudi2" else pytest.approx(half / 8, rel=0.01))
    else:
        matrix_units = 2 if family(device) == "mi250" else 1  # over the vector units
        assert v["peak_fp32_rate"] == pytest.approx(matrix_units * v["vector_rate"], rel=0.01)


VECTOR_OPERATIONS = {"v100": 128, "a100": 128, "mi250": 128, "tpu-v3": 2048, "tpu-v4": 2048}  # per core and clock
VECTOR_OPERATIONS |= dict.fromkeys(("l40s", "rtx-40", *HOPPER, *BLACKWELL, "mi300", "mi325", "mi35"), 256)
VECTOR_OPERATIONS |= dict.fromkeys(("tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7"), 4096)
HELD = {"h100-sxm-96gb-500w-hbm2e": 0.81}  # clock under a power cap over the stated one
EXPONENTIALS = dict.fromkeys(VECTOR_OPERATIONS, 16)
EXPONENTIALS |= dict.fromkeys(("b300", "gb300", "mi35"), 32)
EXPONENTIALS |= dict.fromkeys(("tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7"), 1024)


@each("device", [d for d in DEVICES if family(d) in VECTOR_OPERATIONS])
def test_vector_units_and_exponentials_per_core_and_clock(device):
    """Vendors state the vector rate of Hopper and Blackwell at a clock that the matrix units do not hold."""
    v = values_of(device.name)
    per_clock = v["cores"] * v["clock_frequency"] * HELD.get(device.name, 1.0)
    vector = v["vector_rate"] / per_clock / VECTOR_OPERATIONS[family(device)]
    assert 0.97 <= vector <= (1.09 if family(device) in (*HOPPER, *BLACKWELL) else 1.01)
    assert v["special_function_rate"] / per_clock == pytest.approx(EXPONENTIALS[family(device)], rel=0.09)


def test_vectors_of_gaudi_run_on_their_own_cores():
    for name, vector_cores, clock in (("gaudi2", 24, 1.8e9), ("gaudi3", 64, 1.75e9)):
        v = values_of(name)
        assert v["vector_rate"] == pytest.approx(vector_cores * 64 * 2 * clock, rel=0.01)
        assert v["vector_rate"] / 16 <= v["special_function_rate"] <= v["vector_rate"] / 4


@each("device", DEVICES)
def test_bytes_per_core_and_clock(device):
    v = values_of(device.name)
    per_clock = v["cores"] * v["clock_frequency"] * HELD.get(device.name, 1.0)
    loads = {"tpu-v3": 1, "tpu-v4": 2}  # vector registers of 4 KiB that a core fills in a clock; three since v5
    scratchpad = 4096 * loads.get(family(device), 3) if device.name.startswith("tpu") else 128
    scratchpad *= 2 if family(device) in (*BLACKWELL, "mi35") else 1
    if not device.name.startswith("gaudi"):
        assert v["shared_memory_bandwidth"] / per_clock == pytest.approx(scratchpad, rel=0.01)
    if v["register_bandwidth"]:
        assert v["register_bandwidth"] / per_clock == pytest.approx(2048, rel=0.01)
    assert (v["register_bandwidth"] > 0) == (family(device) in ("v100", "a100", "l40s", "rtx-40", *HOPPER))


PIN_RATES = {"hbm2": (1.7, 2.5), "hbm2e": (3.0, 3.65), "hbm3": (5.0, 6.45), "hbm3e": (5.8, 9.8)}  # Gbit/s, 1024 pins


@each("device", DEVICES)
def test_memory_is_that_of_its_stacks(device):
    v = values_of(device.name)
    stacks, generation = v["hbm_stacks"], v["hbm_generation"]
    if generation == "gddr6":
        rate = {"l40s": 18e9, "rtx-4090": 21e9}[device.name]  # a pin; GDDR6 and GDDR6X
        assert (stacks, v["hbm_bandwidth"]) == (0, 384 * rate / 8)
        return
    low, high = PIN_RATES[generation]
    assert low <= v["hbm_bandwidth"] / stacks / 1024 * 8 / 1e9 <= high
    whole = min(size for size in (8, 16, 24, 32, 36) if size * 2**30 * stacks >= v["hbm_capacity"])
    assert v["hbm_capacity"] >= 0.93 * whole * 2**30 * stacks  # the rest are spares


@each("device", DEVICES)
def test_levels_are_ordered(device):
    v = values_of(device.name)
    levels = [v["scale_out_bandwidth"], v["scale_up_bandwidth"], v["hbm_bandwidth"], v["l2_bandwidth"]]
    levels += [v[f"{level}_bandwidth"] or math.inf for level in ("shared_memory", "register")]
    assert levels == sorted(levels)
    assert v["host_bandwidth"] < v["hbm_bandwidth"]
    assert v["shared_memory_size"] <= v["l2_size"] < v["hbm_capacity"]
    assert 80 < half_rate(v) / v["hbm_bandwidth"] < 600  # operations per byte at the ridge
    assert 14e9 < v["hbm_capacity"] < 400e9
    assert 100 < v["thermal_design_power"] < 1500


@each("device", DEVICES)
def test_tiles_feed_what_the_matrix_units_were_measured_to_do(device):
    """Traffic of 16-bit products at the measured rate, counted at each level: none is exceeded."""
    v = values_of(device.name)
    volume = half_rate(v) * v["matrix_efficiency"] / 2  # multiply-adds per second
    m, n = v["gemm_tile_m"], v["gemm_tile_n"]
    rows, columns = min(m, v["register_tile_m"]), min(n, v["register_tile_n"])
    assert 2 * volume * (1 / (m * v["gemm_cluster"]) + 1 / n) <= v["l2_bandwidth"]
    assert 2 * volume * (1 / rows + 1 / columns + 1 / m + 1 / n) <= (v["shared_memory_bandwidth"] or math.inf)
    assert 8 * volume / v["matrix_instruction_depth"] <= (v["register_bandwidth"] or math.inf)
    assert 4 * m * n <= v["accumulator_memory_size"]
    stage = 2 * (m + n) * v["gemm_tile_k"]
    assert 2 * stage <= v["shared_memory_size"] or family(device) in (
        "mi300",
        "mi325",
    )  # one stage, the next in registers
    assert stage <= v["shared_memory_size"]


LINK_RATES = {"nvlink": (25e9, 50e9), "infinity_fabric": (50e9, 64e9, 76.8e9), "ethernet": (12.5e9, 25e9)}
LINK_RATES |= {"ici": (50e9, 70e9, 100e9), "pcie": (31.5e9, 63e9)}  # per port and direction


@each("device", DEVICES)
def test_scale_up_bandwidth_is_that_of_its_ports(device):
    v = values_of(device.name)
    (link,) = [label for label, is_its in v["device_link"].items() if is_its]
    ports = 6 if device.name == "mi250x" else v["scale_up_ports"]  # two of its eight lead to the host
    assert v["scale_up_bandwidth"] / ports in [pytest.approx(rate) for rate in LINK_RATES[link]]
    assert v["scale_up_links"] in (0, v["scale_up_size"] - 1)
    assert v["host_bandwidth"] in (0, 15.75e9, 16e9, 31.5e9, 32e9, 63e9, 72e9, 121e9, 225e9, 450e9)


@each("device", DEVICES)
def test_dies_fit_the_exposure_field(device):
    v = values_of(device.name)
    assert v["dies"] in (1, 2, 8)
    assert v["die_area"] == 0 or 100e-6 < v["die_area"] <= 858e-6
    assert v["process_node"] in ("n16", "n12", "n7", "n6", "n5", "n4", "n3", "unknown")
    assert v["process_node"] != "unknown" or device.name.startswith("tpu")


MEASURED = {  # TFLOP/s of the largest 16-bit product found (Stas Bekman's scan of shapes; TPU: Google, 32768 cubed)
    "a100-sxm-80gb": 271.2,
    "a100-pcie-80gb": 252.9,
    "h100-sxm-80gb": 794.5,
    "gh200": 828.6,
    "b200": 1745,
    "b300": 1769,
    "gb200": 1822,
    "mi250x": 2 * 147,
    "mi300x": 668.4,
    "mi325x": 784.9,
    "mi355x": 1565,
    "gaudi2": 418.7,
    "gaudi3": 1243,
    "tpu-v7": 2 * 956.4,
}


SUSTAINED = ("b200", "b300", "gb200")
SHAPES_OF_MODELS = {"mi250x": "estimate", "mi300x": "measured", "mi325x": "measured"}  # and how sure their entries are


@each("name", sorted(MEASURED.keys() - SHAPES_OF_MODELS.keys()))
def test_matrix_efficiency_is_the_measured_rate_over_the_peak(name):
    """Of Blackwell the scan is the upper end: runs of some length are held by the power limit (Azure's guide)."""
    v, detail = values_of(name), CATALOG.entry("device", name).details["matrix_efficiency"]
    reached = detail.high if name in SUSTAINED else v["matrix_efficiency"]
    assert reached * half_rate(v) == pytest.approx(MEASURED[name] * 1e12, rel=2e-3)
    assert detail.confidence == ("estimate" if name in SUSTAINED else "measured")
    assert 0.85 < v["matrix_efficiency"] / reached <= 1


@each("name", SHAPES_OF_MODELS)
def test_products_of_models_reach_less_than_the_best_of_a_scan(name):
    """On these AMD devices 0.785 of it (its blog: 616 of 785 TFLOP/s on MI325X), 0.93 of what the catalog has."""
    v, detail = values_of(name), CATALOG.entry("device", name).details["matrix_efficiency"]
    assert 0.93 * v["matrix_efficiency"] * half_rate(v) == pytest.approx(0.785 * MEASURED[name] * 1e12, rel=5e-3)
    assert v["matrix_efficiency"] * half_rate(v) < MEASURED[name] * 1e12
    assert detail.confidence == SHAPES_OF_MODELS[name]


SYSTEMS = {  # devices in a scale-up domain, watts, Gbit/s of network per device
    "v100-sxm-32gb": (16, 350, 50),
    "a100-sxm-40gb": (8, 400, 200),
    "a100-sxm-80gb": (8, 400, 200),
    "a100-pcie-80gb": (8, 300, 100),
    "l40s": (8, 350, 100),
    "rtx-4090": (4, 450, 100),
    "h100-sxm-80gb": (8, 700, 400),
    "h100-pcie-80gb": (8, 350, 200),
    "h100-sxm-96gb-500w-hbm2e": (8, 500, 400),
    "h800-sxm-80gb": (8, 700, 400),
    "h200-sxm-141gb": (8, 700, 400),
    "gh200": (32, 900, 400),
    "b200": (8, 1000, 400),
    "gb200": (72, 1200, 400),
    "b300": (8, 1100, 800),
    "gb300": (72, 1400, 800),
    "mi250x": (4, 560, 200),
    "mi300x": (8, 750, 400),
    "mi325x": (8, 1000, 400),
    "mi350x": (8, 1000, 400),
    "mi355x": (8, 1400, 400),
    "tpu-v3": (1024, 450, 50),
    "tpu-v4": (4096, 192, 50),
    "tpu-v5e": (256, 200, 25),
    "tpu-v5p": (8960, 500, 50),
    "tpu-v6e": (256, 300, 100),
    "tpu-v7": (9216, 850, 100),
    "gaudi2": (8, 600, 300),
    "gaudi3": (8, 900, 600),
}


@each("device", DEVICES)
def test_systems_of_devices(device):
    v = values_of(device.name)
    found = (v["scale_up_size"], v["thermal_design_power"], v["scale_out_bandwidth"] * 8 / 1e9)
    assert found == pytest.approx(SYSTEMS[device.name])


def test_devices_that_differ_in_one_thing_differ_in_nothing_else():
    """The 500 W part is an H100 with other memory, a lower clock under load and no known price."""
    whole, capped = values_of("h100-sxm-80gb"), values_of("h100-sxm-96gb-500w-hbm2e")
    memory = {"hbm_capacity", "hbm_bandwidth", "hbm_generation", "hbm_stacks", "hbm_efficiency"}
    clocked = {"peak_fp32_rate", "vector_rate", "special_function_rate", "shared_memory_bandwidth", "l2_bandwidth"}
    clocked |= {"register_bandwidth"}
    power = {"thermal_design_power", "matrix_efficiency", "fp8_matrix_efficiency"} | clocked
    assert {q for q in whole if whole[q] != capped[q]} - {"purchase_price"} == memory | power
    for quantity in ("matrix_efficiency", "fp8_matrix_efficiency", *clocked):
        assert 0.6 < capped[quantity] / whole[quantity] < 0.9


def test_every_measured_efficiency_says_where_it_was_measured():
    for device in DEVICES:
        for quantity in ("matrix_efficiency", "hbm_efficiency", "scale_up_efficiency", "scale_out_efficiency"):
            detail = device.details[quantity]
            assert detail.confidence in ("measured", "estimate"), (device.name, quantity)
            assert detail.note, (device.name, quantity)
            assert detail.low is not None, (device.name, quantity)
