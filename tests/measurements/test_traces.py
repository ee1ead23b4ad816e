"""Traces of PyTorch's profiler: seconds by category, worked by hand, and the command that compares them."""

import gzip
import json

import pytest

from perfgrid import PerfgridError
from perfgrid.cli.main import imported
from perfgrid.validation.measurements.kineto import COPIES, IDLE, OTHER, category_of, trace_of
from perfgrid.validation.measurements.measured import Measured, device_called
from perfgrid.validation.schema import read_records
from tests.each import each

from .logs import kernel, step

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4>"
ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>"
STUDY = """
outputs = ["step_time"]
dtype = "float64"
[axes]
model = ["llama-3.1-8b"]
device = ["h100-sxm-80gb"]
software = ["torchtitan"]
parallelism = { devices = [8], tp = [1], pp = [1] }
[workload_parameters]
sequence_length = 8192
global_batch = 8
zero = 3
recompute = "selective"
"""


def events(begin, number):
    """One step of 1,000 us: 400 of products, of which 100 beside an all-gather, and so on."""
    matrix = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": begin, "dur": 5}
    shapes = {"Input Dims": [[8192, 4096], [4096, 1024]], "Input type": ["c10::BFloat16"] * 2, "External id": number}
    gather = {"Collective name": "_allgather_base", "Process Group Description": "mesh_dp_shard"}
    return [
        step(number, begin, 1000),
        matrix | {"args": shapes},
        kernel(GEMM, begin, 400, **{"External id": number}),
        kernel("ncclDevKernel_AllGather_RING_LL", begin + 300, 150, 20, **gather),  # 50 exposed
        kernel(FLASH, begin + 450, 200),
        kernel(POINTWISE, begin + 650, 100),
        kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", begin + 700, 100, 20),  # 50 hidden, 50 exposed
        {**kernel("Memcpy HtoD (Pinned -> Device)", begin + 800, 20), "cat": "gpu_memcpy"},
        kernel(ADAM, begin + 850, 50),
    ]


@pytest.fixture(scope="module")
def trace():
    found = [e for n in range(3) for e in events(5000 + 1000 * n, n)]
    about = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}]
    return json.dumps({"schemaVersion": 1, "deviceProperties": about, "traceEvents": found})


def test_categories_add_up_to_the_step(trace):
    found = trace_of(trace, "trace.json")
    us = {name: seconds * 1e6 for name, seconds in found.seconds.items()}
    expected = {"matrix products": 400, "attention": 200, OTHER: 100, "optimizer": 50, COPIES: 20, IDLE: 130}
    assert us == {name: pytest.approx(value) for name, value in expected.items()}
    exposed = {key: seconds * 1e6 for key, seconds in found.exposed.items()}
    assert exposed == {("all-gather", "dp"): pytest.approx(50), ("reduce-scatter", ""): pytest.approx(50)}
    hidden = {key: seconds * 1e6 for key, seconds in found.hidden.items()}
    assert hidden == {("all-gather", "dp"): pytest.approx(100), ("reduce-scatter", ""): pytest.approx(50)}
    total = sum(found.seconds.values()) + sum(found.exposed.values())
    assert total == pytest.approx(found.step_time) == pytest.approx(1e-3)
    assert (found.steps, found.device) == (3, "h100-sxm-80gb")


@each(
    "name, category",
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send and receive"),
        ("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT", "matrix products"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256>", "matrix products"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x224x64", "matrix products"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128", "attention"),
        ("void fmha_cutlassB_bf16_aligned_64x64_k128_sm80", "attention"),
        ("triton_red_fused__to_copy_mul_rsqrt_3", OTHER),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig", OTHER),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster>", "optimizer"),
    ],
)
def test_kernels_of_libraries_are_known_by_their_names(name, category):
    assert category_of(name) == category


def test_products_with_shapes_become_kernels(trace, tmp_path):
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(trace.encode()))
    (found,), problems = read_records([Measured(path)])
    assert not problems
    assert found.kernel
    assert found.workload
    shape = found.kernel
    assert (shape.m, shape.n, shape.k, found.workload.precision) == (8192, 1024, 4096, "bf16")
    assert found.value == pytest.approx(400e-6)


def test_kernels_that_are_numbered_on_their_own_name_no_operator(trace):
    """As in traces of ROCm: an id that happens to be that of a product says nothing."""
    content = json.loads(trace)
    content["traceEvents"] += [kernel(GEMM, 5000 + n, 1, **{"External id": 900 + n}) for n in range(9)]
    assert trace_of(json.dumps(content), "trace.json").products == {}


def test_the_command_compares_and_draws(trace, tmp_path, capsys):
    (tmp_path / "job.toml").write_text(STUDY)
    (tmp_path / "trace.json").write_text(trace)
    picture = tmp_path / "where.svg"
    arguments = [str(tmp_path / "job.toml"), "step_time", "--trace", str(tmp_path / "trace.json"), "--json"]
    imported("explain").main([*arguments, "--plot", str(picture)], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    rows = {row["category"]: row for row in told["categories"]}
    whole = rows.pop("step")
    for side in ("measured", "predicted"):
        parts = sum(row[side] for row in rows.values() if not row["inside"])
        assert parts == pytest.approx(whole[side], rel=1e-6), side
    # the only degree above one is that of replicas, so that a collective without a group is theirs
    assert rows["reduce-scatter"]["measured"] == pytest.approx(50e-6)
    assert rows["data-parallel communication"]["hidden_measured"] == pytest.approx(150e-6)
    assert "data-parallel communication" in picture.read_text()


def content(*found):
    return json.dumps({"traceEvents": found})


@each("mark", ["Memset (Device)", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", POINTWISE])
def test_an_event_that_takes_no_time_changes_nothing(mark):
    found = [step(1, 0, 1000), kernel(GEMM, 100, 100), kernel(GEMM, 600, 100)]
    instant = kernel(mark, 250, 0) | ({"cat": "gpu_memset"} if "Memset" in mark else {})
    seconds = trace_of(content(*found, instant), "trace.json").seconds
    assert seconds == {"matrix products": pytest.approx(200e-6), IDLE: pytest.approx(800e-6)}


def launched(number, at, begin, length):
    """A kernel with the call that launches it."""
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at, "dur": 5}
    return [call | {"args": {"correlation": number}}, kernel(GEMM, begin, length, correlation=number)]


def test_steps_last_as_long_as_their_kernels():
    """Two steps of 1,000 us of launches, whose kernels take 50,000 us behind an earlier one; then a next step's."""
    marks = [step(1, 1000, 1000), step(2, 2000, 1000)]
    before, after = launched(1, 900, 1000, 500), launched(9, 3100, 101_500, 700)
    kernels = [launched(n, 1010 + n, 1500 + 1000 * (n - 2), 1000) for n in range(2, 102)]
    own = [e for both in kernels for e in both]
    ranges = [step(n, 1500 + 50_000 * (n - 1), 50_000) | {"cat": "gpu_user_annotation", "pid": 0} for n in (1, 2)]
    bare = [e for e in own if e["cat"] == "kernel"]
    for found in ([*own, *after], [*bare, *ranges, after[1]], [*own, *ranges]):
        trace = trace_of(content(*marks, *before, *found), "trace.json")
        assert (trace.steps, trace.step_time) == (2, pytest.approx(50e-3))
        assert trace.seconds == {"matrix products": pytest.approx(50e-3), IDLE: 0}
    with pytest.raises(PerfgridError, match="kernels outlast the profiled steps"):
        trace_of(content(*marks, *bare), "trace.json")
    # where the device waits for the host, the mark counts
    slow = trace_of(content(step(1, 0, 1000), *launched(1, 10, 100, 300)), "trace.json")
    assert slow.step_time == pytest.approx(1e-3)


def test_a_stated_device_that_contradicts_the_trace_is_reported(trace, tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text(trace)
    with pytest.raises(PerfgridError, match="device is h100-sxm-80gb by the trace, but a100-sxm-80gb by --on"):
        read_records([Measured(path, on="a100-sxm-80gb")])


@each(
    "text, gigabytes, name",
    [
        ("NVIDIA GH200 480GB", None, None),
        ("NVIDIA GH200 480GB", 102, None),
        ("NVIDIA GH200 144G HBM3e", None, "gh200"),
        ("NVIDIA H200", 150, "h200-sxm-141gb"),
        ("NVIDIA H200 NVL", 150, None),
        ("NVIDIA H100 NVL", 100, None),
        ("NVIDIA H100 80GB HBM3", None, "h100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", None, None),
        ("NVIDIA H100", 102, "h100-sxm-96gb-500w-hbm2e"),
        ("NVIDIA H100", None, None),
        ("NVIDIA H800", None, "h800-sxm-80gb"),
        ("NVIDIA H800 PCIe", 80, None),
        ("NVIDIA A100-SXM4-80GB", None, "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None, None),
        ("NVIDIA A100-SXM-64GB", 68, None),
        ("NVIDIA GB200", None, "gb200"),
        ("NVIDIA L40S-48Q", None, None),
        ("NVIDIA GeForce RTX 4090", 25, "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 D", None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 17, None),
        ("Tesla V100-SXM3-32GB", None, "v100-sxm-32gb"),
        ("Tesla V100-SXM2-32GB", None, None),
        ("AMD Instinct MI300X VF", None, "mi300x"),
        ("AMD Instinct MI300A", None, None),
    ],
)
def test_only_the_whole_name_tells_a_device(text, gigabytes, name):
    assert device_called(text, gigabytes) == name
