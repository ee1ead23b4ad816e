"""From a Hugging Face ``config.json`` to a catalog entry of a model.

What is particular to an architecture stands in its row of ``architectures.toml``: the keys that hold a quantity,
what it fixes, and what it takes where a configuration leaves a key out. Reading a row is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfgrid.engine.errors import PerfgridError, nearest

from .architectures import ARCHITECTURES, Architecture
from .reading import from_json, read_text
from .schema import Value, Variable, convert
from .writing import table_text, value_text

_DROPOUT = ("attention_dropout", "hidden_dropout", "dropout", "resid_pdrop", "attn_pdrop", "attn_config.attn_pdrop")
_FALCONS = ("falcon", "RefinedWeb", "RefinedWebModel")
_FORMATS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "fp4"}  # of quantised weights, by method
_LAYER_TYPES = ("sliding_attention", "full_attention")


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object of a configuration file; PerfgridError where there is none."""
    config = from_json(read_text(path), f"{path}: ")
    if not isinstance(config, dict):
        raise PerfgridError(f"{path}: must hold one JSON object, found {type(config).__name__}")
    return config


def model_values(config: Mapping[str, Any], variables: Mapping[str, Variable], where: str) -> dict[str, Value]:
    """The quantities of the model that a configuration describes, checked; ``where`` names the file in errors.

    Raises PerfgridError for an unknown architecture, a missing key, a value of wrong type and contradictions.
    """
    if isinstance(text := config.get("text_config"), Mapping):  # a model of several modalities: its language model
        inherited = {k: config[k] for k in ("tie_word_embeddings", "quantization_config") if k in config}
        return model_values({**inherited, **text}, variables, f"{where}, text_config")
    kind = config.get("model_type")
    if kind is None:
        raise PerfgridError(f"{where} lacks model_type, the architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise PerfgridError(
            f"{where}: model_type {kind!r} is unknown{nearest(str(kind), ARCHITECTURES)}; known are {known}"
        )
    return _Reading(config, ARCHITECTURES[kind], variables, where).values()


class _Reading:
    """One configuration, read by the row of its architecture."""

    def __init__(self, config: Mapping[str, Any], row: Architecture, variables: Mapping[str, Variable], where: str):
        self.config, self.row, self.variables, self.where = config, row, variables, where
        self.kind = config["model_type"]

    def values(self) -> dict[str, Value]:
        for key, value in self.row.only.items():
            if (found := self._at(key)) not in (None, value):
                raise self._error(f": {key} = {found!r} is not expressed, only {value!r}")
        found: dict[str, Value] = dict(self.row.fixed)
        for quantity in (*self.row.keys, *self.row.absent):
            if (value := self._stated(quantity)) is not None:
                found[quantity] = value
        found["dropout"] = any(self._size(key, 0.0) > 0 for key in _DROPOUT)
        if (stored := self._published()) in self.variables["published_precision"].codes:
            found["published_precision"] = stored
        self._special(found)
        hidden, heads = self._need(found, "hidden_size"), self._need(found, "heads")
        found.setdefault("kv_heads", heads)
        if "head_dim" not in found:
            if hidden % heads:
                raise self._error(f" states no head_dim, and {heads:g} heads do not divide the hidden size {hidden:g}")
            found["head_dim"] = hidden / heads
        if "ffn_size" not in found and self.row.ffn_multiple:
            found["ffn_size"] = self.row.ffn_multiple * hidden
        self._window(found)
        for quantity, variable in self.variables.items():
            asked = variable.block is None or quantity in self.row.keys
            if variable.of == "model" and not variable.optional and asked:
                self._need(found, quantity)
        found = {q: convert(self.variables[q], value, f"{self.where}, {q}") for q, value in found.items()}
        self._contradictions(found)
        return found

    def _error(self, text: str) -> PerfgridError:
        return PerfgridError(f"{self.where}{text}")

    def _contradiction(self, text: str) -> PerfgridError:
        return self._error(f" contradicts itself: {text}")

    def _at(self, key: str) -> Any:
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def _stated(self, quantity: str) -> Value | None:
        """The value of a quantity by its keys or, where they are missing or null, what the architecture takes."""
        stated = {key: value for key in self.row.keys_of(quantity) if (value := self._at(key)) is not None}
        first = next(iter(stated), None)
        if first is None:
            return self.row.absent.get(quantity)
        for key, value in stated.items():
            if key != first and value != stated[first]:
                raise self._contradiction(f"{first} = {stated[first]!r}, {key} = {value!r}")
        if isinstance(stated[first], str):
            raise self._error(f", {first} must be a number or a flag, found {stated[first]!r}")
        return convert(self.variables[quantity], stated[first], f"{self.where}, {first}")

    def _size(self, key: str, absent: float) -> float:
        value = self._at(key)
        if value is None:
            return absent
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._error(f", {key} must be a number, found {value!r}")
        return float(value)

    def _flag(self, key: str, absent: bool) -> bool:
        value = self._at(key)
        if value is not None and not isinstance(value, bool):
            raise self._error(f", {key} must be true or false, found {value!r}")
        return absent if value is None else value

    def _need(self, found: Mapping[str, Value], quantity: str) -> float:
        if quantity not in found:
            keys = " or ".join(self.row.keys_of(quantity) or [quantity])
            raise self._error(f" lacks {keys} ({self.variables[quantity].meaning}), which {self.kind} needs")
        return float(found[quantity])  # pyright: ignore[reportArgumentType] (sizes and flags)

    def _published(self) -> str:
        """The number format of quantised weights, by their method or by their type and bits; empty if unknown."""
        method = self._at("quantization_config.quant_method")
        if isinstance(method, str) and method in _FORMATS:
            return _FORMATS[method]
        group = self._at("quantization_config.config_groups.group_0.weights")  # of compressed tensors
        about = group or self._at("quantization_config")
        if not isinstance(about, Mapping):
            return ""
        return f"{'fp' if about.get('type') == 'float' else 'int'}{about.get('num_bits', about.get('bits'))}"

    def _special(self, found: dict[str, Value]) -> None:
        """What a few architectures say by other means than one key."""
        if self.kind in _FALCONS and not self._flag("new_decoder_architecture", self.kind == "RefinedWeb"):
            if self._flag("multi_query", True):
                found["kv_heads"] = 1.0
            else:
                found.pop("kv_heads", None)
        if self.kind == "mpt":
            found["biases"] = not self._flag("no_bias", True)
            computed = self._flag("attn_config.alibi", False) or self._flag("attn_config.rope", False)
            if self._flag("learned_pos_emb", True) and not computed:
                found["learned_positions"] = convert(
                    self.variables["learned_positions"], self._size("max_seq_len", 2048.0), f"{self.where}, max_seq_len"
                )
            if self._at("attn_config.attn_type") == "multiquery_attention":
                found["kv_heads"] = 1.0
            found.setdefault("ffn_size", self._size("expansion_ratio", 4.0) * self._need(found, "hidden_size"))
        if self.kind == "opt" and self._size("word_embed_proj_dim", width := self._need(found, "hidden_size")) != width:
            raise self._error(
                f": word_embed_proj_dim = {self._at('word_embed_proj_dim')!r} differs from hidden_size = {width:g}; "
                "embeddings of another width are not expressed"
            )
        if found.get("groups") == 1.0:  # one group of all experts limits nothing
            found["groups"] = found["groups_per_token"] = 0.0
        if self.kind == "qwen3_moe":
            dense = self._at("mlp_only_layers") or []
            if not isinstance(dense, list) or dense != list(range(len(dense))):
                raise self._error(f": mlp_only_layers = {dense!r} is not expressed, only leading layers may be dense")
            found["dense_layers"] = float(len(dense))

    def _window(self, found: dict[str, Value]) -> None:
        """How many layers attend in a sliding window: by their list, or by the pattern of the architecture."""
        layers = self._need(found, "layers")
        windowed = layers - layers // self.row.full_every if self.row.full_every else layers
        if self.row.full_every and (every := self._size("sliding_window_pattern", 0.0)) >= 1:
            windowed = layers - layers // every
        if self.kind.startswith("qwen"):  # the first layers attend to everything; all of them unless told otherwise
            later = max(layers - self._size("max_window_layers", 28.0), 0.0)
            windowed = later if self._flag("use_sliding_window", False) else 0.0
        if (types := self._at("layer_types")) is not None:
            if not isinstance(types, list) or len(types) != layers:
                length = len(types) if isinstance(types, list) else repr(types)
                raise self._contradiction(f"{layers:g} layers, but layer_types lists {length}")
            if other := [t for t in types if t not in _LAYER_TYPES]:
                expressed = " and ".join(_LAYER_TYPES)
                raise self._error(
                    f": layer_types holds {other[0]!r}, which is not expressed; expressed are {expressed}"
                )
            windowed = float(types.count("sliding_attention"))
            if windowed and not found.get("window"):
                raise self._contradiction("layer_types has windows, sliding_window has none")
        if not found.get("window") or not windowed:
            found["window"] = windowed = 0.0
        found["window_layers"] = windowed

    def _contradictions(self, found: Mapping[str, Value]) -> None:
        size = {q: v for q, v in found.items() if isinstance(v, float)}
        if size["heads"] % size["kv_heads"]:
            raise self._contradiction(f"{size['kv_heads']:g} key-value heads do not divide {size['heads']:g} heads")
        for less, more in (
            ("experts_per_token", "experts"),
            ("dense_layers", "layers"),
            ("groups_per_token", "groups"),
            ("groups", "experts"),
        ):
            if size.get(less, 0.0) > size.get(more, 0.0):
                first, second = ((self.row.keys_of(quantity) or [quantity])[0] for quantity in (less, more))
                raise self._contradiction(f"{first} = {size[less]:g} exceeds {second} = {size.get(more, 0.0):g}")


def catalog_text(
    name: str, title: str, source: str, values: Mapping[str, Value], variables: Mapping[str, Variable],
    comments: Iterable[str] = (),
) -> str:  # fmt: skip
    """A catalog file with one model; optional quantities that have their default are left out."""
    lines = {
        q: value_text(v, values[q])
        for q, v in variables.items()
        if v.of == "model" and q in values and not (v.optional and values[q] == v.default)
    }
    return table_text("model", name, {"title": title, "source": source}, lines, variables, comments)
