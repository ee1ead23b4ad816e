# pyright: reportMissingImports=false
"""Kernels: products, weight gradients, streams, attention, products of experts, and what starts them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from .measure import DEVICE, REST, Sensors, alone_and_sustained, normal, synchronize, timed

SQUARES = [(n, n, n) for n in (1024, 2048, 4096, 8192, 16384)]
DEPTHS = [(8192, 8192, k) for k in (64, 128, 256, 512, 1024, 2048)]  # from few to many operations per byte
LAYERS = [  # rows, columns, depth: Llama 3 8B and 70B, one rank of 1 to 8
    (4096, 6144, 4096), (4096, 4096, 4096), (4096, 28672, 4096), (4096, 4096, 14336), (4096, 128256, 4096),
    (8192, 10240, 8192), (8192, 57344, 8192), (8192, 8192, 28672), (4096, 7168, 8192), (4096, 8192, 3584),
    (8192, 1280, 8192), (8192, 8192, 1024), (2048, 2560, 8192), (2048, 8192, 2048),
]  # fmt: skip
ROWS = [(m, n, 8192) for n in (10240, 57344) for m in (1, 8, 16, 32, 64, 128, 256, 512)]


def product(m: int, n: int, k: int, form: str) -> Callable[[], object]:
    """A product of random operands as a call."""
    a, b = normal(m, k), normal(n, k)
    if form == "fp8":
        one = torch.ones((), device=DEVICE)
        a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        return lambda: torch._scaled_mm(a8, b8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    if form == "bf16 batch":  # several weight matrices in turn, so that small ones do not stay in the cache
        several = [b, *(normal(n, k) for _ in range(3))]
        state = [0]

        def work() -> None:
            state[0] += 1
            F.linear(a, several[state[0] % 4])

        return work
    return lambda: F.linear(a, b)


def products(sensors: Sensors) -> Iterator[dict]:
    """Products of many shapes, alone and sustained."""
    for form in ("bf16", "fp8"):
        for m, n, k in SQUARES + DEPTHS + LAYERS:
            yield {"format": form, "m": m, "n": n, "k": k, **alone_and_sustained(product(m, n, k, form), sensors)}
    for m, n, k in ROWS:
        work = product(m, n, k, "bf16 batch")
        yield {"format": "bf16", "rows": True, "m": m, "n": n, "k": k, **alone_and_sustained(work, sensors, 0.0)}
    zeros = torch.zeros(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    found = alone_and_sustained(lambda: F.linear(zeros, zeros), sensors)
    yield {"format": "bf16", "operands": "zeros", "m": 8192, "n": 8192, "k": 8192, **found}


def gradients(sensors: Sensors) -> Iterator[dict]:
    """dW[n, k] = dY[m, n]^T X[m, k] as frameworks make it; with accumulation as Megatron-LM's fused kernel does."""
    for m, n, k in (
        (4096, 4096, 4096),
        (4096, 28672, 4096),
        (4096, 4096, 14336),
        (8192, 10240, 8192),
        (8192, 8192, 8192),
    ):
        y, x = normal(m, n), normal(m, k)
        single = torch.zeros(n, k, device=DEVICE, dtype=torch.float32)
        half = torch.zeros(n, k, device=DEVICE, dtype=torch.bfloat16)

        def cublas(beta: float, y: torch.Tensor = y, x: torch.Tensor = x, c: torch.Tensor = single, shape=(m, n, k)):
            import cupy
            import numpy
            from cupy_backends.cuda.libs import cublas as library

            rows, n, k = shape
            handle = cupy.cuda.device.get_cublas_handle()
            library.setStream(handle, torch.cuda.current_stream().cuda_stream)
            alpha, scale = numpy.ones((), numpy.float32), numpy.full((), beta, numpy.float32)

            def work() -> None:  # column-major: C^T[k, n] = X^T[k, m] Y[m, n]
                library.gemmEx(
                    handle, 0, 1, k, n, rows, alpha.ctypes.data, x.data_ptr(), 14, k, y.data_ptr(), 14, n,
                    scale.ctypes.data, c.data_ptr(), 0, k, 68, -1,
                )  # fmt: skip

            return work

        forms: dict[str, Callable[[], Callable[[], object]]] = {
            "result in 16 bits": lambda y=y, x=x, c=half: lambda: torch.mm(y.t(), x, out=c),
            "result in float32": lambda: cublas(0.0),
            "added to float32": lambda: cublas(1.0),
            "torch: result in float32": lambda y=y, x=x: lambda: torch.mm(y.t(), x, out_dtype=torch.float32),
        }
        for form, make in forms.items():
            try:
                yield {"form": form, "m": m, "n": n, "k": k, **alone_and_sustained(make(), sensors)}
            except Exception as mistake:
                yield {"form": form, "m": m, "n": n, "k": k, "error": f"{type(mistake).__name__}: {mistake}"[:200]}


def streams(sensors: Sensors) -> Iterator[dict]:
    """Kernels that wait for memory."""
    for megabytes in (4, 16, 64, 256, 1024):
        a = normal(megabytes * 2**19)
        b = torch.empty_like(a)
        found = alone_and_sustained(lambda a=a, b=b: b.copy_(a), sensors)
        yield {"what": "copy", "bytes": 2 * a.nbytes, **found}
    x, y = normal(8192, 8192), normal(8192, 8192)
    weight = normal(8192)
    kernels: dict[str, tuple[Callable[[], object], int]] = {
        "add": (lambda: x + y, 3),
        "rms_norm": (lambda: F.rms_norm(x, (8192,), weight), 2),
        "silu": (lambda: F.silu(x), 2),
        "softmax": (lambda: F.softmax(x, -1), 2),
        "to float32": (lambda: x.float(), 3),
    }
    for name, (work, passes) in kernels.items():
        yield {"what": name, "bytes": passes * x.nbytes, **alone_and_sustained(work, sensors, 0.4)}


def overlap(sensors: Sensors) -> Iterator[dict]:
    """A product and a copy at the same time, and each alone."""
    a, b = normal(8192, 8192), normal(8192, 8192)
    source = normal(512 * 2**20)
    target = torch.empty_like(source)
    side = torch.cuda.Stream()

    def both(products: int, copies: int) -> float:
        torch.cuda.synchronize()
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(copies):
                target.copy_(source)
        for _ in range(products):
            F.linear(a, b)
        torch.cuda.current_stream().wait_stream(side)
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3

    both(50, 50)
    for products, copies in ((300, 0), (0, 300), (300, 100), (300, 200), (300, 300), (150, 300)):
        time.sleep(REST)
        with sensors.watching():
            start = time.perf_counter()
            seconds = both(products, copies)
            end = time.perf_counter()
        yield {
            "products": products,
            "copies": copies,
            "copied_bytes": 2 * source.nbytes,
            "time": seconds,
            **sensors.means((start + end) / 2, end),
        }


def replayed(work: Callable[[], object]) -> Callable[[], object]:
    """The work as a captured graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def launches(sensors: Sensors) -> Iterator[dict]:
    """Kernels one after the other, launched by the host and replayed."""
    x, w = normal(8, 512), normal(512, 512)
    tiny = normal(1024)

    def adds() -> None:
        for _ in range(1000):
            tiny.add_(1.0)

    def linears() -> None:
        for _ in range(1000):
            F.linear(x, w)

    for name, work in (("element-wise", adds), ("product", linears)):
        for _ in range(2):
            work()
        synchronize()
        start = time.perf_counter()
        work()
        issued = time.perf_counter() - start
        synchronize()
        whole = time.perf_counter() - start
        found = {"kernels": 1000, "issued": issued / 1000, "launched": whole / 1000}
        replay = replayed(work)
        replay()
        found["replayed"] = timed(replay, 5) / 1000
        yield {"what": name, **found}
    large = normal(4096, 4096)
    many = lambda: [large.mul_(1.0) for _ in range(200)]  # noqa: E731
    many()
    yield {"what": "element-wise, 33 MB", "launched": timed(many, 3) / 200, "replayed": timed(replayed(many), 3) / 200}


def attention(sensors: Sensors) -> Iterator[dict]:
    """Fused attention, forward and backward."""
    for batch, length, heads, kv_heads, size in (
        (16, 1024, 16, 16, 128), (8, 2048, 16, 16, 128), (4, 4096, 32, 8, 128), (2, 8192, 32, 8, 128),
        (1, 16384, 32, 8, 128),
        (8, 2048, 32, 32, 64), (2, 8192, 32, 32, 64),
    ):  # fmt: skip
        q = normal(batch, heads, length, size).requires_grad_()
        k, v = (normal(batch, kv_heads, length, size).requires_grad_() for _ in range(2))
        gradient = normal(batch, heads, length, size)

        def forward(q=q, k=k, v=v) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])

        def both(forward=forward, gradient=gradient) -> None:
            forward().backward(gradient)

        shape = {"batch": batch, "length": length, "heads": heads, "kv_heads": kv_heads, "head_dim": size}
        for direction, work in (("forward", forward), ("forward_backward", both)):
            yield {**shape, "direction": direction, **alone_and_sustained(work, sensors, 0.4)}


def grouped(sensors: Sensors) -> Iterator[dict]:
    """Products of many experts with few rows each."""
    for experts, n, k in ((8, 14336, 4096), (64, 2816, 2048), (128, 1536, 2048), (32, 4096, 7168)):
        weights = normal(experts, n, k)
        for rows in (1, 4, 16, 64, 256):
            x = normal(experts * rows, k)
            ends = (torch.arange(1, experts + 1, device=DEVICE, dtype=torch.int32) * rows).to(torch.int32)
            work = lambda x=x, weights=weights, ends=ends: torch._grouped_mm(x, weights.transpose(-2, -1), offs=ends)  # noqa: E731
            try:
                yield {"experts": experts, "m": rows, "n": n, "k": k, **alone_and_sustained(work, sensors, 0.0)}
            except Exception as mistake:
                yield {"experts": experts, "m": rows, "error": f"{type(mistake).__name__}: {mistake}"[:200]}
        del weights
