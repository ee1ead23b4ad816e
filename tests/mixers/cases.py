"""One mixer at one point, in plain NumPy and double precision."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from perfgrid.catalog import load_catalog
from perfgrid.engine import replay, resolve
from perfgrid.engine.graph.resolver import Graph
from perfgrid.formulas import registry_of
from perfgrid.formulas.axes import INNER

LATENT = {"q_lora_rank": 1536.0, "kv_lora_rank": 512.0, "qk_rope_head_dim": 64.0}  # DeepSeek-V3.2
PUBLISHED: dict[str, dict[str, Any]] = {  # dimensions of published configurations
    "nemotron-3-super": {
        "mixer": "mamba2",
        "hidden_size": 4096,
        "mixer_heads": 128,
        "mixer_key_heads": 8,
        "mixer_key_dim": 128,
        "mixer_value_dim": 64,
        "mixer_chunk": 128,
        "convolution_length": 4,
    },
    "qwen3.5-35b": {
        "mixer": "gated_delta_net",
        "hidden_size": 2048,
        "mixer_heads": 32,
        "mixer_key_heads": 16,
        "convolution_length": 4,
    },
    "kimi-linear": {
        "mixer": "kimi_delta_attention",
        "hidden_size": 2304,
        "mixer_heads": 32,
        "mixer_key_heads": 32,
        "convolution_length": 4,
        "gate_rank": 128,
    },
    "kimi-k3": {
        "mixer": "kimi_delta_attention",
        "hidden_size": 7168,
        "mixer_heads": 96,
        "mixer_key_heads": 96,
        "convolution_length": 4,
        "gate_rank": 128,
    },
    "minimax-01": {
        "mixer": "lightning",
        "hidden_size": 6144,
        "mixer_heads": 64,
        "mixer_key_heads": 64,
        "mixer_chunk": 256,
        "state_element_size": 2,
    },
    "qwen3.5-35b full": {
        "mixer": "full_attention",
        "hidden_size": 2048,
        "mixer_heads": 16,
        "mixer_key_heads": 2,
        "mixer_key_dim": 256,
        "mixer_value_dim": 256,
    },
    "llama-4-scout": {
        "mixer": "chunked_attention",
        "hidden_size": 5120,
        "mixer_heads": 40,
        "mixer_key_heads": 8,
    },
    "deepseek-v3.2": {
        "mixer": "sparse_attention",
        "hidden_size": 7168,
        "mixer_heads": 128,
        "mixer_key_heads": 128,
        "cache_element_size": 1,
        "precision": "fp8",
    },
}


@cache
def graph(mixer: str, precision: str) -> Graph:
    """All that the workload computes of a kind of mixer."""
    registry = registry_of("sequence_mixer")
    own = [n for n, module in registry.modules.items() if module.startswith("perfgrid.formulas.mixers.")]
    names = [n for n in own if registry.formulas[n].by is None]
    choices = (choice for choice in registry.choices.items() if choice[1].by == "mixer")
    names += [n for n, choice in choices if mixer in [a.label for a in choice.alternatives]]
    labels = {"mixer": (mixer,), "precision": (precision,)}
    given = {v for v in load_catalog().variables if v not in registry.names()}
    return resolve(registry, names, given, {}, labels=labels)


def design(device: str = "h100-sxm-80gb", software: str = "megatron-lm", **given: Any) -> dict[str, Any]:
    """Every quantity of a mixer; arrays on inner axes by label (see `row`)."""
    catalog = load_catalog()
    point: dict[str, Any] = {
        n: v.default_value
        for n, v in catalog.variables.items()
        if v.of == "workload" or v.block in ("mixer", "indexer")
    }
    for kind, name in (("device", device), ("software", software)):
        point |= catalog.entry(kind, name).values
    point |= LATENT | {"tp": 1.0, "microbatch": 1.0, "mixer_key_dim": 128, "mixer_value_dim": 128} | given
    found = graph(point["mixer"], point["precision"])
    leaves = {}
    for name in found.leaves:
        value, variable = point[name], catalog.variables.get(name)
        if variable is not None and variable.axis and isinstance(value, dict):
            value = INNER.vector(variable.axis, [value[label] for label in INNER.labels[variable.axis]])
        leaves[name] = value if isinstance(value, (str, bool, np.ndarray)) else float(value)
    return {**point, **replay(found, leaves)}


def row(value: Any, axis: str) -> dict[str, float]:
    """A quantity by the labels of an inner axis."""
    values = np.broadcast_to(np.ravel(value), (INNER.size(axis),)) if np.size(value) == 1 else np.ravel(value)
    return dict(zip(INNER.labels[axis], values.tolist(), strict=True))
