# pyright: reportMissingImports=false
"""Measure an NVIDIA device with PyTorch: what kernels, launches, streams and training steps take under its power limit.

``python benchmarks/probe.py FILE.jsonl [--seconds S] [PART ...]`` writes one JSON object per measurement. It needs
PyTorch and pynvml, changes no setting of the device, and takes about four minutes. Parts:

products     matrix products in 16 and 8 bits, alone after a rest and sustained, with clock and power
gradients    weight gradients with a result in 16 bits, in float32, and added to float32
streams      copies and element-wise kernels, with clock and power
overlap      a product and a copy at the same time, against each alone
launches     kernels one after the other: launched by the host, and replayed as a graph
layers       one transformer layer with few tokens: host time of each launch, forward and backward
attention    flash attention forward and backward
grouped      products of many experts with few rows each
steps        training steps of a small model that differ only in the number of microbatches
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

REST = 0.25  # seconds without work before a measurement: clock and power recover
SUSTAINED = 0.8  # seconds of work, of which the second half counts
BURST = 0.01
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Sensors:
    """Clock [Hz] and power [W] of the device while something runs, sampled every 10 ms."""

    def __init__(self):
        import pynvml

        pynvml.nvmlInit()
        self.nvml, self.handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        self.samples: list[tuple[float, float, float]] = []

    def limit(self) -> float:
        return self.nvml.nvmlDeviceGetPowerManagementLimit(self.handle) / 1e3

    def sample(self) -> None:
        clock = self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM) * 1e6
        field = getattr(self.nvml, "NVML_FI_DEV_POWER_INSTANT", 186)
        try:
            value = self.nvml.nvmlDeviceGetFieldValues(self.handle, [field])[0]
            power = value.value.uiVal / 1e3
        except Exception:
            power = self.nvml.nvmlDeviceGetPowerUsage(self.handle) / 1e3
        self.samples.append((time.perf_counter(), clock, power))

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.samples, done = [], threading.Event()

        def watch() -> None:
            while not done.wait(0.01):
                self.sample()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def means(self, since: float, until: float) -> dict[str, float]:
        kept = [s for s in self.samples if since <= s[0] <= until]
        if not kept:
            return {}
        return {"clock": statistics.mean(s[1] for s in kept), "power": statistics.mean(s[2] for s in kept)}


class NoSensors(Sensors):
    """For a machine without NVML: nothing is read."""

    def __init__(self):
        self.samples = []

    def limit(self) -> float:
        return 0.0

    def sample(self) -> None:
        pass


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], object], count: int) -> float:
    """Seconds of one call, of ``count`` calls in a row, by the device's clock."""
    if DEVICE != "cuda":
        start = time.perf_counter()
        for _ in range(count):
            work()
        return (time.perf_counter() - start) / count
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(count):
        work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3 / count


def alone_and_sustained(work: Callable[[], object], sensors: Sensors, sustained: float = SUSTAINED) -> dict[str, float]:
    """Time of one call in a short burst after a rest, and under load for a while, with clock and power then."""
    for _ in range(3):
        work()
    synchronize()
    once = max(timed(work, 5), 1e-6)
    time.sleep(REST)
    burst = timed(work, max(5, int(BURST / once)))
    found = {"alone": burst}
    if sustained:
        part = max(5, int(sustained / 8 / burst))
        with sensors.watching():
            for _ in range(4):
                timed(work, part)
            start = time.perf_counter()
            times = [timed(work, part) for _ in range(4)]
            end = time.perf_counter()
        found |= {"sustained": statistics.median(times), **sensors.means(start, end)}
    return found


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Random operands: constant ones draw less power."""
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(dtype)


SQUARES = [(n, n, n) for n in (1024, 2048, 4096, 8192, 16384)]
DEPTHS = [(8192, 8192, k) for k in (64, 128, 256, 512, 1024, 2048)]  # from few to many operations per byte
LAYERS = [  # rows, columns, depth: Llama 3 8B and 70B, one rank of 1 to 8
    (4096, 6144, 4096), (4096, 4096, 4096), (4096, 28672, 4096), (4096, 4096, 14336), (4096, 128256, 4096),
    (8192, 10240, 8192), (8192, 57344, 8192), (8192, 8192, 28672), (4096, 7168, 8192), (4096, 8192, 3584),
    (8192, 1280, 8192), (8192, 8192, 1024), (2048, 2560, 8192), (2048, 8192, 2048),
]  # fmt: skip
ROWS = [(m, n, 8192) for n in (10240, 57344) for m in (1, 8, 16, 32, 64, 128, 256, 512)]


def product(m: int, n: int, k: int, form: str) -> Callable[[], object]:
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
            from cupy_backends.cuda.libs import cublas as library

            import numpy

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


class Norm(nn.RMSNorm):
    """One fused kernel also where weights are kept in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.weight is not None
        return F.rms_norm(x, tuple(self.normalized_shape), self.weight.to(x.dtype))


class Layer(nn.Module):
    """A layer as in Llama: grouped-query attention, gated feed-forward part, pre-norms, rotary positions."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, ffn: int):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        self.norm1, self.norm2 = Norm(hidden), Norm(hidden)
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.k = nn.Linear(hidden, kv_heads * self.size, bias=False)
        self.v = nn.Linear(hidden, kv_heads * self.size, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def rotated(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return x * turn[0] + torch.cat((-right, left), -1) * turn[1]

    def forward(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        batch, length, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k(y).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        v = self.v(y).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        q, k = self.rotated(q, turn), self.rotated(k, turn)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """A decoder of such layers with its loss."""

    def __init__(self, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocabulary: int):
        super().__init__()
        self.size = hidden // heads
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, kv_heads, ffn) for _ in range(layers))
        self.norm, self.head = Norm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def turn(self, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        frequency = 1e4 ** (-torch.arange(0, self.size, 2, device=DEVICE) / self.size)
        angle = torch.outer(torch.arange(length, device=DEVICE), frequency).repeat(1, 2)
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens).to(torch.bfloat16)
        turn = self.turn(tokens.shape[1], x.dtype)
        for layer in self.layers:
            x = layer(x, turn)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())


def kernels_of(work: Callable[[], object]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        synchronize()
    return sum(1 for event in found.events() if event.device_type.name == "CUDA")


def layers(sensors: Sensors) -> Iterator[dict]:
    for hidden, heads, kv_heads, ffn in ((2048, 16, 16, 5632), (4096, 32, 8, 14336)):
        layer = Layer(hidden, heads, kv_heads, ffn).to(DEVICE, torch.bfloat16)
        turn = Model.turn(Model(0, hidden, heads, kv_heads, ffn, 8).to(DEVICE), 16, torch.bfloat16)
        x = normal(1, 16, hidden).requires_grad_()

        def forward(layer=layer, x=x, turn=turn) -> torch.Tensor:
            return layer(x, turn)

        def both(forward=forward) -> None:
            forward().sum().backward()

        for name, work in (("forward", forward), ("forward and backward", both)):
            for _ in range(5):
                work()
            synchronize()
            start = time.perf_counter()
            for _ in range(50):
                work()
            synchronize()
            seconds = (time.perf_counter() - start) / 50
            yield {"what": name, "hidden": hidden, "tokens": 16, "time": seconds, "kernels": kernels_of(work)}


def attention(sensors: Sensors) -> Iterator[dict]:
    for batch, length, heads, kv_heads, size in (
        (16, 1024, 16, 16, 128), (8, 2048, 16, 16, 128), (4, 4096, 32, 8, 128), (2, 8192, 32, 8, 128), (1, 16384, 32, 8, 128),
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


STEPS = (  # layers, hidden, heads, kv heads, ffn, vocabulary, length, sequences, compiled
    (16, 2048, 16, 16, 5632, 32000, 2048, 4, False),
    (16, 2048, 16, 16, 5632, 32000, 2048, 1, False),
    (24, 1024, 16, 16, 4096, 32000, 1024, 1, False),
    (24, 1024, 16, 16, 4096, 32000, 1024, 16, False),
    (8, 4096, 32, 8, 14336, 128256, 4096, 1, False),
    (16, 2048, 16, 16, 5632, 32000, 2048, 4, True),
)


def steps(sensors: Sensors) -> Iterator[dict]:
    for *shape, length, sequences, compiled in STEPS:
        torch.manual_seed(0)
        model = Model(*shape).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=DEVICE == "cuda")
        tokens = torch.randint(shape[-1], (sequences, length), device=DEVICE)
        if compiled:
            for layer in model.layers:
                layer.compile()

        def step(microbatches: int, model=model, optimizer=optimizer, tokens=tokens) -> float:
            for _ in range(microbatches):
                with torch.autocast(DEVICE, torch.bfloat16):
                    loss = model(tokens)
                (loss / microbatches).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            return loss.item() + norm.item()  # as training loops log it: the host waits for the device

        names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary")
        try:
            if DEVICE == "cuda":
                torch.cuda.reset_peak_memory_stats()
            for microbatches in (1, 2, 4, 8):
                step(microbatches)
                step(microbatches)
                synchronize()
                count = max(3, min(10, 16 // microbatches))
                with sensors.watching():
                    start = time.perf_counter()
                    each = []
                    for _ in range(count):
                        begin = time.perf_counter()
                        step(microbatches)
                        each.append(time.perf_counter() - begin)
                    end = time.perf_counter()
                peak = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0
                yield {
                    **dict(zip(names, shape, strict=True)),
                    "length": length,
                    "sequences": sequences,
                    "compiled": compiled,
                    "microbatches": microbatches,
                    "time": statistics.median(each),
                    "shortest": min(each),
                    "peak_memory": peak,
                    **sensors.means((start + end) / 2, end),
                }
        except Exception as mistake:
            yield {"hidden": shape[1], "compiled": compiled, "error": f"{type(mistake).__name__}: {mistake}"[:300]}
        del model, optimizer
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


PARTS = {f.__name__: f for f in (launches, layers, steps, products, gradients, streams, overlap, attention, grouped)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure an NVIDIA device with PyTorch.")
    parser.add_argument("file")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    given = parser.parse_args()
    sensors = Sensors() if DEVICE == "cuda" else NoSensors()
    with open(given.file, "w", encoding="utf-8") as file:

        def write(row: dict) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        if DEVICE == "cuda":
            about = torch.cuda.get_device_properties(0)
            write({"part": "device", "name": about.name, "torch": torch.__version__, "power_limit": sensors.limit()})
        for name in given.parts or PARTS:
            start = time.perf_counter()
            try:
                for row in PARTS[name](sensors):
                    write({"part": name, **row})
            except Exception as mistake:
                write({"part": name, "error": f"{type(mistake).__name__}: {mistake}"[:300]})
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
