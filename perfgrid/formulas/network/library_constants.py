"""Constants of the library model, one set per fabric, with where each comes from; ready to become catalog entries.

What is NCCL's is read from its tuning model (nccl2026tuning). Three numbers are not: ``launch`` (from the smallest
messages of the tables below, 7 to 25 us over harnesses), ``chunk_share`` (one number for all fabrics, 0.3 to 0.7 fit
alike) and ``message_step`` (from the smallest all-to-all); they are estimates and say so in `ESTIMATES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .library import Library

US, GB = 1e-6, 1e9


def _by_protocol(ll: float, ll128: float, simple: float) -> Mapping[str, float]:
    return MappingProxyType({"ll": ll * US, "ll128": ll128 * US, "simple": simple * US})


# src/graph/tuning.cc: baseLatencies, hwLatencies for NVLink and the network, LL128 efficiency (nccl2026tuning)
NCCL: dict[str, Any] = {
    "ring_base": _by_protocol(6.6, 14.0, 8.4),
    "tree_base": _by_protocol(6.8, 14.0, 8.4),
    "ring_step": _by_protocol(0.6, 1.9, 3.4),
    "tree_step": _by_protocol(0.6, 1.25, 4.0),
    "network_ring_step": _by_protocol(2.7, 4.0, 14.0),
    "network_tree_step": _by_protocol(5.0, 8.5, 14.0),
    "ll128_share": 0.92,
    "chunk_share": 0.4,
    "message_step": 9 * US,
}
HOPPER: dict[str, Any] = {
    **NCCL,
    "ring_bandwidth": 360 * GB,  # 12 channels of 30 GB/s (src/graph/search.cc)
    "ll_ceiling": (141 * GB, 45 * GB, 35 * GB),
    "tree_ceiling": (16 * 38.7 * GB, 16 * 41.4 * GB, 16 * 36.0 * GB),
    "nvls_bandwidth": 476 * GB,  # 8 channels of 40 GB/s · 0.85 · 7/8 · 2
    "adapter_bandwidth": 50 * GB,  # 400 Gbit/s per rank
    "launch": 10 * US,
}
LIBRARIES: dict[str, Library] = {
    "nccl-a100-nvlink": Library(
        **NCCL,
        ring_bandwidth=240 * GB,  # 12 channels of 20 GB/s
        ll_ceiling=(87.7 * GB, 22.5 * GB, 19 * GB),
        tree_ceiling=(24 * 24.0 * GB, 24 * 23.6 * GB, 24 * 17.8 * GB),
        adapter_bandwidth=24 * GB,  # 192 GB/s over 8 adapters of 200 Gbit/s, measured (nccl2023issue812)
        network_latency=0.0,
        launch=20 * US,
    ),
    "nccl-hopper-infiniband": Library(**HOPPER, network_latency=0.0),
    "nccl-hopper-efa": Library(**HOPPER, network_latency=20 * US),
    "nccl-b200-infiniband": Library(
        **{
            **HOPPER,
            "ring_bandwidth": 720 * GB,  # 18 links of 40.1 GB/s
            "ll_ceiling": (282 * GB, 90 * GB, 70 * GB),
            "tree_ceiling": (16 * 70 * GB, 16 * 42.8 * GB, 16 * 24.0 * GB),
            "nvls_bandwidth": 0.74 * 7 / 8 * 2 * 8 * 80 * GB,  # channels of twice Hopper's rate, efficiency 0.74
        },
        network_latency=0.0,
    ),
}
# constant -> (low, high, where it comes from)
ESTIMATES: dict[str, tuple[float, float, str]] = {
    "launch": (7 * US, 25 * US, "floor of nccl-tests and all_reduce_bench tables (superbench2023nccl, stas2025ml)"),
    "chunk_share": (0.3, 0.7, "large messages of the same tables; one number for all"),
    "message_step": (5 * US, 12 * US, "floor of all-to-all among 8 A100 (superbench2023nccl)"),
    "network_latency": (
        15 * US,
        75 * US,
        "EFA: the plugin tells NCCL 75 us (aws2025ofinccl); small messages need 20 us",
    ),
}
