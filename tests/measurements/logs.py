"""Logs written from numbers, with the fields of the tools' formats that the readers look for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from .given import BASE, STEPS

SHAPE = {  # of Mixtral 8x7B, as Megatron-LM lists it among several hundred arguments
    "add_bias_linear": False,
    "add_position_embedding": False,
    "attention_dropout": 0.0,
    "bf16": True,
    "ffn_hidden_size": 14336,
    "fp8": None,
    "group_query_attention": True,
    "hidden_dropout": 0.0,
    "hidden_size": 4096,
    "kv_channels": 128,
    "kv_lora_rank": 32,
    "moe_router_topk": 2,
    "normalization": "RMSNorm",
    "num_attention_heads": 32,
    "num_experts": 8,
    "num_layers": 32,
    "num_query_groups": 8,
    "padded_vocab_size": 32000,
    "position_embedding_type": "rope",
    "recompute_granularity": None,
    "sequence_parallel": True,
    "swiglu": True,
    "untie_embeddings_and_output_weights": True,
    "use_distributed_optimizer": True,
    "virtual_pipeline_model_parallel_size": None,
}


def megatron(steps: Iterable[tuple[int, float]], batch: int, world: int = 0, **arguments: Any) -> str:
    """A log of Megatron-LM: number and milliseconds of each step; with arguments where some are given."""
    lines = [f"using world size: {world}, data-parallel size: 4"] if world else []
    if arguments:
        stated = SHAPE | {"global_batch_size": batch, "world_size": world} | arguments
        lines += ["------------------------ arguments ------------------------"]
        lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(stated.items())]
        lines += ["-------------------- end of arguments ---------------------"]
    lines += [
        f" [2024-04-06 02:59:36] iteration {n:8d}/     100 | consumed samples: {n * batch:12d} | elapsed time per "
        f"iteration (ms): {ms:.1f} | learning rate: 8.600000E-06 | global batch size: {batch:5d} | lm loss: 1.8E+00 |"
        for n, ms in steps
    ]
    return "\n".join(lines) + "\n"


def torchtitan(
    steps: Sequence[int], tps: Sequence[float], memory: float, mesh: str = "['dp_shard'], [8]", ranks: int = 1
) -> str:
    """A log of torchtitan's Llama 3 8B with colours, all ranks in it."""
    root = "\x1b[32m[titan] 2025-06-16 22:30:50,322 - root - INFO -"
    lines = [
        f"[rank0]:{root} Building 1-D device mesh with {mesh}",
        f"[rank0]:{root} Building llama3 8B with TransformerModelArgs(dim=4096, n_layers=32)",
        f"[rank0]:{root} CUDA capacity: NVIDIA H100 with 94.99GiB memory",
        f"[rank0]:{root} Trainer is initialized with local batch size 1, global batch size 8, "
        "gradient accumulation steps 1, sequence length 8192, total steps 1000 (warmup 200)",
    ]
    lines += [
        f"[rank{rank}]:{root} \x1b[31mstep: {n:2d}  \x1b[32mloss:  6.1384  \x1b[33mmemory: {memory:5.2f}GiB(52.28%)  "
        f"\x1b[34mtps: {rate:,}  \x1b[36mtflops: 339.16  \x1b[35mmfu: 34.29%\x1b[39m"
        for n, rate in zip(steps, tps, strict=True)
        for rank in range(ranks)
    ]
    return "\n".join(lines) + "\n"


def nccl(about: dict[str, Any], program: str, header: bool = True) -> str:
    """Output of nccl-tests; without a header only the line of the last rank."""
    ranks = about["ranks"]
    lines = [f"# Collective test starting: {program}"] if header else []
    lines += [
        f"#  Rank {r:2d} Group  0 Pid {9 + r} on node{r // 8} device {r % 8:2d} [0x01] {about['device']}"
        for r in range(0 if header else ranks - 1, ranks)
    ]
    redop = "sum" if "reduce" in program else "none"
    lines += [
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw"
    ]
    for size, time, algbw, busbw in zip(*(about[n] for n in ("sizes", "microseconds", "algbw", "busbw")), strict=True):
        numbers = f"{time} {algbw} {busbw}"
        lines.append(f"{size:12d} {size // 4:12d} float {redop} -1 {numbers} 0 {numbers} 0")
    return "\n".join(lines) + "\n"


def mllog(events: Iterable[tuple[int, str, Any, dict[str, Any]]]) -> str:
    """Lines of MLPerf's logging library: milliseconds, key, value and metadata."""
    return "".join(
        f":::MLLOG {json.dumps({'namespace': '', 'time_ms': ms, 'key': key, 'value': value, 'metadata': about})}\n"
        for ms, key, value, about in events
    )


def kernel(name: str, begin: float, length: float, stream: int = 7, **arguments: Any) -> dict[str, Any]:
    """An event of a kernel, in microseconds."""
    args = {"device": 0, "stream": stream} | arguments
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": begin, "dur": length, "args": args}


def step(number: int, begin: float, length: float) -> dict[str, Any]:
    """The mark of a profiled step."""
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "ts": begin, "dur": length}


def sound_files() -> dict[str, str]:
    """A text of each kind that is read."""
    about = {"ranks": 8, "device": "NVIDIA H100 80GB HBM3", "sizes": [2**30], "microseconds": [4200.0]}
    about |= {"algbw": [255.7], "busbw": [447.5]}
    events: list[Any] = [(0, "global_batch_size", 128, {}), (0, "max_sequence_length", 8192, {})]
    events += [(100 * n, "tracked_stats", {"throughput": 13.0}, {"step": n}) for n in range(5)]
    saved = {"model_id": "llama-3.1-8b", "max_concurrency": 8, "completed": 80, "total_input_tokens": 81920}
    saved |= {"total_output_tokens": 40960, "request_throughput": 1.25, "mean_ttft_ms": 50.0}
    export = {"output_token_throughput": {"avg": 640.0}, "request_latency": {"unit": "ms", "avg": 6000.0}}
    export |= {"input_sequence_length": {"avg": 1024.0}, "output_sequence_length": {"avg": 512.0}}
    export["input_config"] = {"model": "llama-3.1-8b", "concurrency": 8}
    trace = {"traceEvents": [step(1, 0, 100), kernel("gemm", 10, 20), kernel("ncclAllReduce", 40, 9)]}
    header = ",".join([*BASE, "step_time", "mfu"])
    return {
        "megatron": megatron(STEPS, 128, 16, seq_length=8192, tensor_model_parallel_size=2),
        "torchtitan": torchtitan([1, 10, 20, 30, 40], [87, 5600, 5610, 5620, 5630], 44.84),
        "mllog": mllog(events),
        "nccl-tests": nccl(about, "all_reduce_perf"),
        "vllm": json.dumps(saved),
        "genai-perf": json.dumps(export),
        "kineto": json.dumps(trace),
        "csv": f"{header}\n{','.join(map(str, BASE.values()))},4.0,\n",
    }
