"""From a Hugging Face ``config.json`` to a catalog entry of a model.

What is particular to an architecture stands in its row of ``architectures.toml``: the keys that hold a quantity,
what it fixes, and what it takes where a configuration leaves a key out. Reading a row is the same for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from perfgrid.engine.errors import PerfgridError

from .architectures import ANY, Architecture, Understood, architecture, not_expressed, understood
from .checkpoints import published, with_formats
from .layer_kinds import DENSE, FULL, RECURRENT, SPARSE, WINDOW, listed_kinds
from .layer_places import own_indexers, sparse_layers
from .reading import from_json, read_text
from .schema import Value, Variable, convert, is_finite
from .writing import table_text, value_text

_DROPOUT = (
    "attention_dropout", "hidden_dropout", "dropout", "resid_pdrop", "attn_pdrop", "attn_config.attn_pdrop",
    "residual_dropout", "resid_dropout", "output_dropout",
)  # fmt: skip
_NESTED = ("text_config", "llm_config", "language_config")  # the language model of a model of several modalities
_FALCONS = ("falcon", "RefinedWeb", "RefinedWebModel")
CONFIG = "config.json"
_MARKS = {
    "moe": "experts",
    "mla": "kv_lora_rank",
    "mixer": "mixer_layers",
    "indexer": "index_layers",
}  # what says that a model has a block
_STATES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}  # bytes of an element of a recurrent state


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object of a configuration file, with the number formats that a file beside it states.

    PerfgridError where there is none, and where the two contradict each other.
    """
    config = from_json(read_text(path), f"{path}: ", finite=False)  # Infinity is the usual limit of Mamba's steps
    if not isinstance(config, dict):
        raise PerfgridError(f"{path}: must hold one JSON object, found {type(config).__name__}")
    return with_formats(config, path) if path.name == CONFIG else config


@dataclass(frozen=True)
class Imported:
    """A model that a configuration describes."""

    kind: str  # its model_type
    values: Mapping[str, Value]
    keys: Understood
    towers: tuple[str, ...] = ()  # keys beside those of the language model, which are not read


def imported(config: Mapping[str, Any], variables: Mapping[str, Variable], where: str) -> Imported:
    """The model that a configuration describes, and what became of its keys; ``where`` names the file in errors.

    Raises PerfgridError for what is not supported, a missing key, a value of wrong type and contradictions.
    """
    if (outer := next((k for k in _NESTED if isinstance(config.get(k), Mapping)), None)) is not None:
        inherited = {k: config[k] for k in ("tie_word_embeddings", "quantization_config") if k in config}
        inner = imported({**inherited, **config[outer]}, variables, f"{where}, {outer}")
        towers = tuple(sorted(k for k in config if k.endswith("_config") and k not in (outer, *inherited)))
        return replace(inner, values={**inner.values, **_encoder(config, variables, where)}, towers=towers)
    kind = config.get("model_type")
    if kind is None:
        raise PerfgridError(f"{where} lacks model_type, the architecture")
    if not isinstance(kind, str):
        raise PerfgridError(f"{where}: model_type {kind!r} must be a name")
    return _Reading(config, architecture(kind), variables, where).imported()


def _encoder(config: Mapping[str, Any], variables: Mapping[str, Variable], where: str) -> dict[str, Value]:
    """Width and layers of the encoder of images, which an engine's rule of memory asks for; nothing without one."""
    encoder = config.get("vision_config")
    stated = encoder if isinstance(encoder, Mapping) else {}
    keys = {"vision_hidden_size": "hidden_size", "vision_layers": "num_hidden_layers"}
    rows = ((name, key) for name, key in keys.items() if stated.get(key) is not None and "hidden_size" in stated)
    return {name: convert(variables[name], stated[key], f"{where}, vision_config, {key}") for name, key in rows}


class _Reading:
    """One configuration, read by the row of its architecture."""

    def __init__(self, config: Mapping[str, Any], row: Architecture, variables: Mapping[str, Variable], where: str):
        self.config, self.row, self.variables, self.where = config, row, variables, where
        self.kind = config["model_type"]
        self.read = {"model_type"}
        self.kinds: tuple[str, list[str]] | None = None  # of each layer, by the key that says them
        self.sparse: list[int] = []  # layers with experts, the first layer being 0

    def imported(self) -> Imported:
        """The model; PerfgridError where it has what is not supported, before anything that it lacks."""
        if (what := not_expressed(self.kind, self.config, self.row.stated)) is not None:
            raise self._error(f": {what}")
        values = self.values()
        return Imported(self.kind, values, understood(self.kind, self.config, self.read, self.row.unused))

    def values(self) -> dict[str, Value]:
        self._limits()
        found: dict[str, Value] = dict(self.row.fixed)
        for quantity in (*self.row.keys, *self.row.absent):
            if (value := self._stated(quantity)) is not None:
                found[quantity] = value
        found["dropout"] = max(self._size(key, 0.0) for key in _DROPOUT) > 0
        self._layers(found)
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
            if variable.of == "model" and not variable.optional and self._asked(quantity, variable, found):
                self._need(found, quantity)
        found = {q: convert(self.variables[q], value, f"{self.where}, {q}") for q, value in found.items()}
        self._contradictions(found)
        quantised, place = self._at("quantization_config"), f"{self.where}, quantization_config"
        return found | published(quantised, found, self._parts(found), self.variables, place)

    def _parts(self, found: Mapping[str, Value]) -> list[tuple[str, ...]]:
        """The parts of the model that each layer has, in order; of blocks that are counted apart, each is a part."""
        of_kind: dict[str, tuple[str, ...]] = {FULL: ("attention",), WINDOW: ("attention",), RECURRENT: ("mixer",)}
        of_kind |= {DENSE: ("ffn",), SPARSE: ("experts", "shared")}
        if self.row.blocks and self.kinds is not None:
            return [of_kind[kind] for kind in self.kinds[1]]
        layers, sparse = range(int(self._need(found, "layers"))), {*self.sparse}
        first = [("attention",)] * len(layers) if self.kinds is None else [of_kind[kind] for kind in self.kinds[1]]
        first = [("attention", "mixer")] * len(layers) if self.row.parallel else first
        indexed = ("indexer",) if found.get("index_layers") else ()
        second = [of_kind[SPARSE if found.get("experts") and i in sparse else DENSE] for i in layers]
        return [(*mixing, *indexed, *feeding) for mixing, feeding in zip(first, second, strict=True)]

    def _asked(self, quantity: str, variable: Variable, found: dict[str, Value]) -> bool:
        """Whether an entry needs a quantity: all of a block that the model has; a 0 there is none at all."""
        if variable.block in (None, "published"):
            return True
        if variable.block == "mixer":
            return "mixer_layers" in found and variable.kind != "label"
        mark = _MARKS[variable.block]
        if quantity not in self.row.keys or (self.row.absent.get(mark) == 0.0 and mark not in found):
            return False
        if found.get(quantity) == 0.0 and self.row.absent.get(quantity) == 0.0 and quantity != "q_lora_rank":
            del found[quantity]
        return True

    def _limits(self) -> None:
        """PerfgridError where a key says what is not supported."""
        for key, value in self.row.only.items():
            if value != ANY and (found := self._even(key)) not in (None, value):
                raise self._error(f": {key} = {found!r} is not supported, only {value!r}")
        for key, other in self.row.same.items():
            if (found := self._even(key)) is not None and found != (wanted := self._even(other)):
                raise self._error(f": {key} = {found!r} is not supported, only {other} = {wanted!r}")
        layers = self._stated("layers")
        for key in self.row.last:
            end = layers - 1 if isinstance(layers, float) else None
            if (found := self._at(key)) is not None and found not in (-1, end):
                raise self._error(f": {key} = {found!r} is not supported, only the last layer")

    def _error(self, text: str) -> PerfgridError:
        return PerfgridError(f"{self.where}{text}")

    def _contradiction(self, text: str) -> PerfgridError:
        return self._error(f" contradicts itself: {text}")

    def _at(self, key: str) -> Any:
        self.read.add(key)
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def _even(self, key: str) -> Any:
        """The value of a key, or what a list of it holds for every layer alike."""
        value = self._at(key)
        if isinstance(value, list) and value and isinstance(value[0], (int, float)):
            if any(held != value[0] for held in value):
                raise self._error(f": {key} differs between layers, which is not supported")
            return value[0]
        return value

    def _stated(self, quantity: str) -> Value | None:
        """The value of a quantity by its keys or, where they are missing or null, what the architecture takes."""
        held = {key: self._even(key) for key in self.row.keys_of(quantity)}
        stated = {key: value for key, value in held.items() if value is not None and value != "auto"}
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
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not is_finite(value):
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
                "embeddings of another width are not supported"
            )
        if self.row.share_factor and self._flag("use_cla", False):
            layers, factor = self._need(found, "layers"), self._size(self.row.share_factor, 1.0)
            if factor < 1 or factor % 1:
                raise self._error(f", {self.row.share_factor} must be a whole number of layers, found {factor:g}")
            found["shared_key_layers"] = layers - ceil(layers / factor)
        self._experts(found)

    def _layers(self, found: dict[str, Value]) -> None:
        """How many layers have attention, a recurrent mixer and a feed-forward part, and the widths of the mixer."""
        stated = None if self.row.blocks and "layers" not in found else self._need(found, "layers")
        self.kinds = listed_kinds(self.row, self._at, stated, self.where)
        if "mixer" not in self.row.fixed:
            return
        if self.row.parallel:
            found["mixer_layers"], found["attention_free_layers"] = self._need(found, "layers"), 0.0
        elif self.kinds is None:
            keys = " or ".join((*self.row.layer_lists, *self.row.layer_numbers))
            raise self._error(f" lacks {keys} (the kinds of the layers), which {self.kind} needs")
        else:
            self._kinds(found, self.kinds[0], Counter(self.kinds[1]))
        if self.row.state_format and (held := self._at(self.row.state_format)) is not None:
            if not isinstance(held, str) or held not in _STATES:
                expressed = ", ".join(_STATES)
                raise self._error(f": {self.row.state_format} = {held!r} is not supported, only {expressed}")
            found["state_element_size"] = _STATES[held]
        if not found["mixer_layers"]:
            if found.get("attention_gate"):
                raise self._error(": an output gate of attention without recurrent layers is not supported")
            return
        if not (heads := self._need(found, "mixer_heads")):
            raise self._contradiction(f"{self.row.keys_of('mixer_heads')[0]} = 0, but layers are recurrent")
        inner = self._size(self.row.inner_width, 0.0) if self.row.inner_width else 0.0
        if self.row.inner_multiple:
            multiple = self._size(self.row.inner_multiple, 0.0)
            inner = inner or multiple * self._need(found, "hidden_size")
        if inner and found.setdefault("mixer_value_dim", inner / heads) != inner / heads:
            width = f"{found['mixer_value_dim']:g}"
            raise self._contradiction(f"{heads:g} mixer heads of {width} are not {inner:g} wide")

    def _kinds(self, found: dict[str, Value], key: str, kinds: Counter[str]) -> None:
        """Layers by the numbers of their kinds; of two blocks that are one layer, each may be a part."""
        attending, recurrent, dense, sparse = kinds[FULL] + kinds[WINDOW], kinds[RECURRENT], kinds[DENSE], kinds[SPARSE]
        layers = attending + recurrent
        if self.row.blocks:
            layers = (layers + dense + sparse + 1) // 2
            if max(attending, recurrent, dense + sparse) > layers:
                raise self._error(f": {key} is not supported, only half of the blocks or fewer may be of one kind")
            found["layers"], found["ffn_free_layers"] = float(layers), float(layers - dense - sparse)
            found["dense_layers"] = float(dense)
            if not sparse:
                found["experts"] = 0.0
            elif not found.get("experts"):
                raise self._contradiction(f"{key} has experts, {self.row.keys_of('experts')[0]} has none")
        found["mixer_layers"], found["attention_free_layers"] = float(recurrent), float(layers - attending)

    def _experts(self, found: dict[str, Value]) -> None:
        """Dense layers by their list, shared experts by their joint width, groups that limit nothing."""
        greedy = any(self._at(key) == value for key, value in self.row.ungrouped.items())
        if found.get("groups") == 1.0 or greedy:  # one group of all experts limits nothing
            found["groups"] = found["groups_per_token"] = 0.0
        self._placed(found)
        if self.row.shared_width and found.get("experts") != 0.0:
            width, expert = self._size(self.row.shared_width, 0.0), self._need(found, "expert_ffn_size")
            if expert <= 0 or width % expert:
                wanted = f"multiples of an expert's width, {expert:g}"
                raise self._error(f": {self.row.shared_width} = {width:g} is not supported, only {wanted}")
            found["shared_experts"] = width / expert
        for block, count in _MARKS.items():
            if found.get(count) == 0.0:  # of a model that has none, by a row that allows both
                for quantity in [q for q in found if self.variables[q].block == block]:
                    del found[quantity]

    def _placed(self, found: dict[str, Value]) -> None:
        """Which layers have experts, and which an indexer of their own."""
        layers = int(self._need(found, "layers"))
        leading, step = (self._size_of(found, q) for q in ("dense_layers", "expert_layer_step"))
        self.sparse, found_step = sparse_layers(self.row, self._at, layers, (int(leading), int(step)), self.where)
        if found_step:
            found["dense_layers"], found["expert_layer_step"] = float(layers - len(self.sparse)), float(found_step)
        if (own := own_indexers(self.row, self._at, layers, self.where)) is not None:
            found["index_layers"] = float(own)

    @staticmethod
    def _size_of(found: Mapping[str, Value], quantity: str) -> float:
        held = found.get(quantity, 0.0)
        return held if isinstance(held, float) else 0.0

    def _window(self, found: dict[str, Value]) -> None:
        """How many layers attend in a sliding window: by their list, or by the pattern of the architecture."""
        layers = self._need(found, "layers") - self._size_of(found, "attention_free_layers")
        windowed = layers - layers // self.row.full_every if self.row.full_every else layers
        pattern = self._at("sliding_window_pattern")  # such as LLLG, L in the window, or the length of a period
        if isinstance(pattern, str) and pattern and not set(pattern) - {"L", "G"}:
            periods, rest = divmod(int(layers), len(pattern))
            windowed = periods * pattern.count("L") + pattern[:rest].count("L")
        elif self.row.full_every and (every := self._size("sliding_window_pattern", 0.0)) >= 1:
            windowed = layers - layers // every
        for key, missing in self.row.window_from.items():  # the layers before that one attend to everything
            windowed = max(layers - self._size(key, missing), 0.0)
        for quantity, (key, missing) in self.row.switches.items():
            if not self._flag(key, missing):
                found[quantity], windowed = 0.0, 0.0 if quantity == "window" else windowed
        if self.kinds is not None:
            windowed = float(self.kinds[1].count(WINDOW))
            if windowed and not found.get("window"):
                raise self._contradiction(f"{self.kinds[0]} has windows, {self.row.keys_of('window')[0]} has none")
            if found.get("window") and not windowed and "mixer_layers" in found:
                raise self._error(f": sliding_window = {found['window']:g} beside recurrent layers is not supported")
        if not found.get("window") or not windowed:
            found["window"] = windowed = 0.0
            found.pop("chunked_window", None)
        found["window_layers"] = windowed

    def _contradictions(self, found: Mapping[str, Value]) -> None:
        size = {q: v for q, v in found.items() if isinstance(v, float)}
        if size["heads"] % size["kv_heads"]:
            raise self._contradiction(f"{size['kv_heads']:g} key-value heads do not divide {size['heads']:g} heads")
        if size.get("mixer_heads", 0.0) % size.get("mixer_key_heads", 1.0):
            heads, keys = size["mixer_heads"], size["mixer_key_heads"]
            raise self._contradiction(f"{keys:g} key heads or groups do not divide {heads:g} mixer heads")
        for less, more in (
            ("experts_per_token", "experts"),
            ("dense_layers", "layers"),
            ("shared_key_layers", "layers"),
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
