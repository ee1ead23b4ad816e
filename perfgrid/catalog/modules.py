"""The modules that hold a model's weights: their names in published checkpoints, their sizes, and patterns of names.

Checkpoints say by name which modules are quantised, and name the same module differently. A module here has all of its
usual names, and a pattern that matches one of them means it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from typing import Any

from perfgrid.engine.errors import PerfgridError

PARTS = {  # part of a model -> the quantity that says how its weights are published
    "attention": "published_attention_size",
    "mixer": "published_mixer_size",
    "indexer": "published_indexer_size",
    "ffn": "published_ffn_size",
    "shared": "published_shared_size",
    "experts": "published_expert_size",
    "embedding": "published_embedding_size",
    "head": "published_head_size",
}
_ROOTS = ("model", "model.language_model", "language_model.model", "backbone", "")  # of the layers of a language model
_ATTENTION = ("self_attn", "attention", "mixer")
_MIXER = ("linear_attn", "mixer", "mamba", "self_attn")
_FEED_FORWARD = ("mlp", "mixer", "feed_forward")
_SHARED = ("mlp.shared_experts", "mlp.shared_expert", "mixer.shared_experts", "block_sparse_moe.shared_experts")
_EXPERTS = ("mlp.experts.0", "mixer.experts.0", "block_sparse_moe.experts.0", "mlp.experts", "feed_forward.experts")
_OUTSIDE = {  # modules that belong to no layer
    "embedding": ("model.embed_tokens", "model.language_model.embed_tokens", "backbone.embeddings", "embed_tokens"),
    "head": ("lm_head", "model.lm_head", "language_model.lm_head"),
}
_LAYER = re.compile(r"(?:(?:model|language_model|backbone)\.)*layers\.(\d{1,5})(?:\.(.*))?", re.ASCII)
MOST_WORK = 10_000_000  # comparisons of names with patterns, weighed by what an expression may go back over
MOST_REPEATS = 3  # in one regular expression
LONGEST_PATTERN = 300


@dataclass(frozen=True)
class Module:
    """A module of one layer, or of none: its part of the model, its possible names, the weights that it holds."""

    part: str
    paths: tuple[str, ...]  # within a layer
    elements: float

    @property
    def outside(self) -> bool:
        """Whether it belongs to no layer."""
        return self.part in _OUTSIDE


def outside_modules(found: Mapping[str, Any]) -> list[Module]:
    """Embedding and output head."""
    elements = found["vocab_size"] * found["hidden_size"]
    return [Module(part, paths, elements) for part, paths in _OUTSIDE.items()]


def modules_of(part: str, found: Mapping[str, Any]) -> list[Module]:
    """The modules of a part of one layer, from the quantities of the model."""
    return list(_PARTS[part](found))


def _module(part: str, containers: Iterable[str], names: str, elements: float) -> Module:
    return Module(part, tuple(f"{outer}.{name}" for outer in containers for name in names.split()), elements)


def _attention(found: Mapping[str, Any]) -> Iterable[Module]:
    hidden, heads = found["hidden_size"], found["heads"]
    if rank := found.get("kv_lora_rank"):
        rotary, value = found["qk_rope_head_dim"], found["v_head_dim"]
        queries, own = heads * (found["qk_nope_head_dim"] + rotary), found.get("q_lora_rank")
        shapes = {"q_a_proj": hidden * own, "q_b_proj": own * queries} if own else {"q_proj": hidden * queries}
        shapes |= {"kv_a_proj_with_mqa": hidden * (rank + rotary)}
        shapes |= {"kv_b_proj": rank * heads * (found["qk_nope_head_dim"] + value), "o_proj": heads * value * hidden}
    else:
        queries, keys = hidden * heads * found["head_dim"], hidden * found["kv_heads"] * found["head_dim"]
        shapes = {"q_proj qkv_proj": queries * (2 if found.get("attention_gate") else 1)}
        shapes |= {"k_proj qkv_proj": keys, "v_proj qkv_proj": keys, "o_proj": queries}
    return (_module("attention", _ATTENTION, names, elements) for names, elements in shapes.items())


def _indexer(found: Mapping[str, Any]) -> Iterable[Module]:
    hidden, heads, width = found["hidden_size"], found["index_heads"], found["index_head_dim"]
    shapes = {"wq_b": (found.get("q_lora_rank") or hidden) * heads * width, "wk": hidden * width}
    shapes["weights_proj"] = hidden * heads
    return (_module("indexer", ("self_attn.indexer",), names, elements) for names, elements in shapes.items())


def _mixer(found: Mapping[str, Any]) -> Iterable[Module]:
    hidden, values = found["hidden_size"], found["mixer_heads"] * found["mixer_value_dim"]
    keys = found["mixer_key_heads"] * found["mixer_key_dim"]
    shapes = {"in_proj in_proj_qkvz in_proj_qkv q_proj": hidden * (2 * keys + values)}
    shapes |= {"in_proj in_proj_qkvz in_proj_z g_proj": hidden * values, "out_proj o_proj": values * hidden}
    return (_module("mixer", _MIXER, names, elements) for names, elements in shapes.items())


def _block(part: str, containers: Iterable[str], width: float, inner: float, gated: bool) -> Iterable[Module]:
    shapes = {"gate_proj gate_up_proj w1": width * inner} if gated else {}
    shapes |= {"up_proj gate_up_proj w3 fc1": width * inner, "down_proj w2 fc2": width * inner}
    return (_module(part, containers, names, elements) for names, elements in shapes.items())


def _ffn(found: Mapping[str, Any]) -> Iterable[Module]:
    return _block("ffn", _FEED_FORWARD, found["hidden_size"], found["ffn_size"], found["gated_ffn"])


def _shared(found: Mapping[str, Any]) -> Iterable[Module]:
    inner = found.get("shared_experts", 0.0) * found["expert_ffn_size"]
    return _block("shared", _SHARED, found["hidden_size"], inner, found["gated_ffn"]) if inner else ()


def _experts(found: Mapping[str, Any]) -> Iterable[Module]:
    width, inner = found.get("expert_latent_size") or found["hidden_size"], found["expert_ffn_size"]
    return _block("experts", _EXPERTS, width, found["experts"] * inner, found["gated_ffn"])


_PARTS = {
    "attention": _attention,
    "indexer": _indexer,
    "mixer": _mixer,
    "ffn": _ffn,
    "shared": _shared,
    "experts": _experts,
}


class Patterns:
    """Names of modules as checkpoints list them: plain ones, with ``*``, and regular expressions after ``re:``.

    ``where`` begins errors: PerfgridError for an expression that is not legal, or too involved to be tried on names.
    """

    def __init__(self, texts: Any, where: str):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise PerfgridError(f"{where} must list names of modules, found {str(texts)!r:.60}")
        self.where, self.work = where, 0
        self.of_layer: dict[int, list[str]] = {}
        self.alike: list[str] = []  # that mean the same in every layer
        self.others: list[str] = []
        self.known: dict[Module, bool] = {}
        for text in dict.fromkeys(texts):
            if not text.startswith("re:") and (found := _LAYER.fullmatch(text)):
                self.of_layer.setdefault(int(found[1]), []).append(found[2] or "*")
            else:
                (self.others if re.search(r"\d|\\d", text) else self.alike).append(text)

    def name(self, module: Module, layer: int) -> bool:
        """Whether a pattern matches one of the names of a module."""
        if module not in self.known:
            self.known[module] = any(self._matches(text, module, layer) for text in self.alike)
        if self.known[module] or any(self._matches(text, module, layer) for text in self.others):
            return True
        within = () if module.outside else self.of_layer.get(layer, ())
        return any(self._tries(text, 1, module.paths) for text in within)

    def _matches(self, text: str, module: Module, layer: int) -> bool:
        roots = ("model",) if text.startswith(("re:.*", "*")) else _ROOTS  # whatever stands before
        names = module.paths if module.outside else _in_layer(module.paths, layer, roots)
        return self._tries(text, _weight(text, self.where), names)

    def _tries(self, text: str, weight: int, names: tuple[str, ...]) -> bool:
        self.work += weight * len(names)
        if self.work > MOST_WORK:
            raise PerfgridError(f"{self.where} lists more patterns than are tried on the modules of a model")
        matches = _matcher(text)
        return any(matches(name) for name in names)


def _in_layer(paths: tuple[str, ...], layer: int, roots: tuple[str, ...]) -> tuple[str, ...]:
    """The full names of a module of a layer."""
    return tuple(f"{root}{'.' if root else ''}layers.{layer}.{path}" for root in roots for path in paths)


@cache
def _weight(text: str, where: str) -> int:
    """How much work a pattern may be for a name. PerfgridError for one that is not legal, or could take forever."""
    if len(text) > LONGEST_PATTERN:
        raise PerfgridError(f"{where} has a pattern of {len(text)} characters; {LONGEST_PATTERN} at most are read")
    if not text.startswith("re:"):
        return 1
    repeats = len(re.findall(r"(?<!\\)[*+{]", text))
    if repeats > MOST_REPEATS or re.search(r"\)[*+{]", text):
        raise PerfgridError(f"{where}: the expression {text!r} repeats more than is tried on names of modules")
    try:
        re.compile(text[3:])
    except re.error as error:
        raise PerfgridError(f"{where}: {text!r} is no regular expression: {error}") from error
    return 20 ** max(repeats - 1, 0)


@cache
def _matcher(text: str) -> Any:
    """Whether a name is one that a pattern means, or lies within one: a function of the name."""
    if text.startswith("re:"):
        return re.compile(text[3:]).match
    if "*" in text:
        return re.compile(f"{translate(text)}|{translate(text + '.*')}").match
    return lambda name: f".{text}." in f".{name}."
