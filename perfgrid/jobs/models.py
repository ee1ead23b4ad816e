"""The model of a job: an entry of the catalog with its shape, or one of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from perfgrid.catalog import Catalog, Entry
from perfgrid.catalog.checkpoints import PUBLISHED, formats_text, kept_cache, stored_weights
from perfgrid.engine.errors import PerfgridError, nearest, printable

from .formats import Format, glossary

PUBLISHED_FORMATS = ("published_weights", "published_products", "published_cache")  # of a model, in jobs
OWN_NAME = "job-model"
OWN_SOURCE = "huggingface2026models"
CORE = ("layers", "hidden_size", "heads", "kv_heads", "ffn_size", "experts")  # equal in all models called the same
SHAPE = (*CORE, "head_dim", "vocab_size", "expert_ffn_size", "experts_per_token")  # stated beside a name, they hold
REQUIRED = ("layers", "hidden_size", "heads", "ffn_size", "vocab_size")
PADDING = 2**14  # entries by which a framework's vocabulary may exceed the published one
_EXPERT_LAYERS = re.compile(r"[\[(]*0\]\*(\d+)\s*\+\s*\[1\]\*(\d+)[\])]*")
_VARIANT = re.compile(r"[-_](instruct|chat|it|base|hf|preview|0528|0324|terminus|v0\.\d|2507)(?=[-_]|$)")
_RECIPE = re.compile(r"_(pretrain|sft|peft|finetune|lora)_.*(config|recipe).*")
_LLAMA_3 = re.compile(r"(?:meta-)?llama-?3(?:\.3)?-(8b|70b)")  # 3 and 3.3 have the shape of 3.1
_SAME_SHAPE = {  # other names of what the catalog has, of the same shape and published in the same formats
    **dict.fromkeys(("deepseek-r1", "deepseek-v3.1"), "deepseek-v3"),
    **{"deepseek-v3.2-exp": "deepseek-v3.2", "llama-4-scout-17b-16e": "llama-4-scout"},
    **{"llama-4-maverick-17b-128e": "llama-4-maverick", "kimi-k2-0905": "kimi-k2"},
    **dict.fromkeys(("minimax-m2.1", "minimax-m2.5"), "minimax-m2"),
    "ernie-4.5-21b-a3b-thinking": "ernie-4.5-21b-a3b",
    **{f"deepseek-r1-distill-qwen-{size}": f"qwen-2.5-{size}" for size in ("7b", "14b", "32b")},
    **{f"deepseek-r1-distill-llama-{size}": f"llama-3.1-{size}" for size in ("8b", "70b")},
}
_PUBLISHERS = {
    "llama-3.1-405b-fp8": "meta-llama"
}  # of entries that others publish under the same name in other formats
_THINKING = re.compile(r"(qwen3-.*)-thinking")  # beside a model of the same shape that answers at once
_STORED = {  # end of a name on a hub -> format of weights, and of products
    **{"fp8": ("fp8", "fp8"), "nvfp4": ("fp4", "fp4"), "fp4": ("fp4", "fp4"), "bf16": ("bf16", "bf16")},
    **dict.fromkeys(("int8", "w8a8"), ("int8", "int8")),
    **dict.fromkeys(("awq", "gptq", "int4", "w4a16", "autoround", "bnb-4bit", "4bit"), ("int4", "bf16")),
    "mxfp4": ("mxfp4", "bf16"),
}
_ENDING = re.compile(rf"(?:[-_](?:quantized\.|unsloth-)?(?:{'|'.join(_STORED)})(?:-dynamic|-block)?)+(?=$|[-_])")


def shape_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The model quantities that a job states, from those of its format.

    Heads, widths and experts that a framework derives when they are absent are derived as it does.
    """
    known = {n: v for n, v in values.items() if n in glossary() and glossary()[n].of == "model"}
    if "hidden_size" not in known or "heads" not in known:
        return known
    experts = known.get("experts", 0)
    known["kv_heads"] = known["kv_heads"] if values.get("grouped", "kv_heads" in known) else known["heads"]
    known.setdefault("head_dim", known["hidden_size"] // known["heads"])
    gated = known.get("gated_ffn", False)
    wide = int(8 * known["hidden_size"] / 3) // 64 * 64 if gated else 4 * known["hidden_size"]
    known.setdefault("ffn_size", wide)
    if "rotary" in values:
        known["learned_positions"] = 0 if values["rotary"] else values.get("positions", 0)
    if {"hidden_dropout", "attention_dropout"} & values.keys():
        known["dropout"] = max(values.get("hidden_dropout", 0), values.get("attention_dropout", 0)) > 0
    if experts:
        known.setdefault("expert_ffn_size", known["ffn_size"])
        known.setdefault("experts_per_token", 2)
        known["shared_experts"] = values.get("shared_expert_size", 0) // known["expert_ffn_size"]
        if found := _EXPERT_LAYERS.search(str(values.get("expert_layers", ""))):
            known["dense_layers"] = int(found[1])
    if values.get("latent"):
        known.setdefault("kv_lora_rank", 512)
        known |= {n: known.get(n, 128) for n in ("qk_nope_head_dim", "v_head_dim")}
        known.setdefault("qk_rope_head_dim", 64)
        known["head_dim"], known["kv_heads"] = known["qk_nope_head_dim"], known["heads"]
    elif "latent" in values:
        known |= dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 0)
    return known


def own_quantities(model: Entry) -> dict[str, Any]:
    """What formats state of a model, under the names that they use for it: `shape_of` reads these again."""
    of = {name: _plain(value) for name, value in model.values.items()}
    latent, experts = of["kv_lora_rank"] > 0, of["experts"] > 0
    hidden = {n: None for n in ("kv_heads", "head_dim") if latent}
    found = {n: of[n] for n in of if glossary()[n].of == "model"} | hidden
    found |= {
        "grouped": not latent and of["kv_heads"] != of["heads"],
        "latent": latent,
        "rotary": of["learned_positions"] == 0,
        "positions": of["learned_positions"] or of["context_length"] or None,
        "norms": "layer" if of["biases"] else "rms",
        "hidden_dropout": 0.1 if of["dropout"] else 0.0,
        "attention_dropout": 0.1 if of["dropout"] else 0.0,
        "shared_expert_size": of["shared_experts"] * of["expert_ffn_size"],
        "catalog_model": model.name,
    }
    if not found["grouped"]:
        found["kv_heads"] = None
    if experts and of["dense_layers"]:
        found["expert_layers"] = f"([0]*{of['dense_layers']}+[1]*{of['layers'] - of['dense_layers']})"
    return found


def of_model(model: Entry) -> dict[str, Any]:
    """What a job that only names its model states with it: layers, and formats of weights, products and cache."""
    published = glossary()["published_precision"].word(model.values["published_precision"])
    products = published if published in ("fp32", "bf16", "fp16", "fp8") else "bf16"
    found = {"layers": _plain(model.values["layers"]), "published_weights": stored_weights(model, glossary())}
    return found | {"published_products": products, "published_cache": kept_cache(model, glossary())}


def of_named(model: Entry, name: str) -> dict[str, Any]:
    """The same for a model by its name on a hub, whose end may state another format of its weights."""
    stored = _ending(model, name)
    return of_model(model) | ({"published_weights": stored[0], "published_products": stored[1]} if stored else {})


def _ending(model: Entry, name: str) -> tuple[str, str] | None:
    """Formats of weights and products by the end of a name on a hub; None where they are those of the entry."""
    text = _bare(name)
    found = None if _plain_name(text).endswith(_plain_name(model.name)) else _ENDING.search(text)
    word = None if found is None else next((word for word in _STORED if word in found[0]), None)
    return None if word is None or word == of_model(model)["published_weights"] else _STORED[word]


def _bare(name: str) -> str:
    """A name on a hub, or a path, without publisher, recipe and variants that change neither shape nor format."""
    text = _RECIPE.sub("", name.rstrip("/").rpartition("/")[2].lower().removesuffix(".yaml"))
    while (shorter := _VARIANT.sub("", text)) != text:
        text = shorter
    return text.replace("_", "-")


def _plain_name(name: str) -> str:
    return re.sub(r"[-.]", "", name)


def named_model(catalog: Catalog, text: str) -> Entry | None:
    """The model of the catalog that a name on a hub or a path stands for, as far as they are called alike."""
    models = catalog.tables["model"]
    if text in models:
        return models[text]
    plain = {_plain_name(known): entry for known, entry in models.items()}
    whole, publisher = _bare(text), text.rstrip("/").lower().rpartition("/")[0]
    exact = text.rstrip("/").rpartition("/")[2].lower()
    for name in dict.fromkeys((exact, whole, _bare(_ENDING.sub("", whole)))):  # with its format first
        same = _SAME_SHAPE.get(name, _THINKING.sub(r"\1", name))
        for tried in (
            name,
            same,
            name.removeprefix("meta-"),
            _LLAMA_3.sub(r"llama-3.1-\1", name),
            re.sub(r"-a\d+(\.\d+)?b", "", name),
        ):
            found = plain.get(_plain_name(tried))
            if found and publisher in ("", _PUBLISHERS.get(found.name, publisher)):
                return found
    return None


def _told(model: Entry, name: str) -> list[tuple[str, str, str]]:
    """What was assumed of a model by its name on a hub: another model's entry, a format that the name ends with."""
    rows, text = [], _bare(name)
    if not _plain_name(text).removeprefix("meta").startswith(_plain_name(model.name)):
        rows.append(("model", model.name, f"of the same shape and number formats as {printable(name)}"))
    if stored := _ending(model, name):
        group = ", in groups of 128" if stored[0] == "int4" else ""
        rows.append(("weight_precision", stored[0], f"by the end of the name: all but embedding, head, router{group}"))
    elif stored_weights(model, glossary()) == PUBLISHED:
        rows.append(("weights", formats_text(model, glossary()), f"as {model.name} is published"))
    return rows


def model_in(
    catalog: Catalog, form: Format, values: Mapping[str, Any], wanted: str | None, where: str
) -> tuple[Entry | None, bool, list[tuple[str, str, str]]]:
    """The model of a job, whether it is one of its own, and what was assumed of it.

    ``wanted``: the name that the user gives. None where the job states neither a shape nor a name. PerfgridError for an
    unknown name, one whose model has another shape, and a shape that is not complete.
    """
    shape, name = shape_of(values), values.get(form.named or "")
    if wanted is not None:
        known = catalog.tables["model"].get(catalog.name_of("model", wanted))
        if (found := known or named_model(catalog, wanted)) is None:
            raise PerfgridError(f"no model {wanted!r} in the catalog{nearest(wanted, catalog.tables['model'])}")
        differing = [n for n in CORE if n in shape and shape[n] != found.values[n]]
        if differing:
            shapes = ", ".join(f"{n} {shape[n]:g} (of {found.name}: {found.values[n]:g})" for n in differing)
            raise PerfgridError(f"{where}states another model than {found.name}: {shapes}")
        return found, False, _also_named(catalog, found, name, where)
    if name and (found := named_model(catalog, str(name))) is not None:
        stated = {n: values[n] for n in SHAPE if values.get(n) is not None}
        if differing := _differences(found, stated):
            return _changed(found, {n: stated[n] for n in differing})
        return found, False, _told(found, str(name))
    if name:
        near = nearest(_bare(str(name)), catalog.tables["model"])
        raise PerfgridError(
            f"{where}no model of the catalog is called {printable(str(name))!r}{near}: name one with --model"
        )
    if "hidden_size" not in shape or "layers" not in shape:
        return None, False, []
    return _of_shape(catalog, shape, values.get("sequence_length") or 0, where)


def _also_named(catalog: Catalog, wanted: Entry, name: Any, where: str) -> list[tuple[str, str, str]]:
    """What is reported of the model that the user names beside that of the job. PerfgridError for another shape."""
    stated = named_model(catalog, str(name)) if name else None
    if stated is None or stated.name == wanted.name:
        return []
    told = printable(str(name))
    if any(stated.values[n] != wanted.values[n] for n in SHAPE):
        raise PerfgridError(f"{where}states the model {told}, not {wanted.name}: leave --model out, or change the file")
    return [("model", wanted.name, f"of --model, of the same shape as {told}")]


def _of_shape(
    catalog: Catalog, shape: dict[str, Any], sequence: int, where: str
) -> tuple[Entry, bool, list[tuple[str, str, str]]]:
    """The entry of a shape: that of the catalog which has it, or has its core, or one of its own."""
    stated = {n: v for n, v in shape.items() if n not in ("context_length", "parameters", "active_parameters")}
    near = []
    for entry in catalog.tables["model"].values():
        if all(entry.values[n] == stated.get(n, 0) for n in CORE if n in stated or n == "experts"):
            short = 0 < _plain(entry.values["context_length"]) < sequence  # made for shorter sequences
            near.append((len(_differences(entry, stated)), short, entry))
    if near:
        least = min(one[:2] for one in near)
        best, *others = (entry for *rank, entry in near if tuple(rank) == least)
        also = f"; so have {', '.join(entry.name for entry in others)}: choose with --model" if others else ""
        differing = _differences(best, stated)
        if not differing:
            return best, False, [("model", best.name, f"the model of the catalog with this shape{also}")]
        return _changed(best, {n: stated[n] for n in differing})
    if lacking := [n for n in REQUIRED if not shape.get(n)]:
        raise PerfgridError(
            f"{where}states no {lacking[0]} of the model: give it with --set {lacking[0]}=..., or --model"
        )
    of = {v.name: v for v in glossary().values() if v.of == "model"}
    filled = {"gated_ffn": False, "tied_embeddings": False, "dropout": False, "learned_positions": 0} | shape
    known = {n: filled.get(n, v.default_value) for n, v in of.items()}
    known = {
        n: float(v) if isinstance(v, int) and not isinstance(v, bool) else v for n, v in known.items() if v is not None
    }
    entry = Entry(OWN_NAME, "model", "Model of the job", known, dict.fromkeys(known, OWN_SOURCE))
    return entry, True, [("model", OWN_NAME, "no model of the catalog has this shape: an entry of its own")]


def _changed(base: Entry, changes: Mapping[str, Any]) -> tuple[Entry, bool, list[tuple[str, str, str]]]:
    own = {n: float(v) if isinstance(v, int) and not isinstance(v, bool) else v for n, v in changes.items()}
    dropped = ("parameters", "active_parameters")
    values = {**base.values, **own, **dict.fromkeys(dropped, 0.0)}
    sources = {**base.sources, **dict.fromkeys((*own, *dropped), OWN_SOURCE)}
    details = {n: d for n, d in base.details.items() if n not in (*own, *dropped)}
    entry = replace(base, name=f"{base.name}-job", title=f"{base.title}, as the job states it", values=values)
    shapes = ", ".join(f"{n} {v:g}" if not isinstance(v, bool) else f"{n} {str(v).lower()}" for n, v in changes.items())
    entry = replace(entry, sources=sources, details=details)
    return entry, True, [("model", entry.name, f"as {base.name} of the catalog, but {shapes}")]


def _differences(entry: Entry, stated: Mapping[str, Any]) -> list[str]:
    """The quantities in which an entry differs from a stated shape; padding of the vocabulary is none."""
    found = [n for n, v in stated.items() if entry.values.get(n) != v]
    if "vocab_size" in found and 0 <= stated["vocab_size"] - entry.values["vocab_size"] < PADDING:
        found.remove("vocab_size")
    return found


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value == int(value) else value


_SAME_SHAPE |= {  # what fine-tuning starts from, of the same shape as a later model
    **dict.fromkeys(("llama-7b", "vicuna-7b-v1.3", "vicuna-7b-v1.5"), "llama-2-7b"),
    **dict.fromkeys(("llama-13b", "vicuna-13b-v1.3", "vicuna-13b-v1.5"), "llama-2-13b"),
    **{f"qwen2-{size}": f"qwen-2.5-{size}" for size in ("7b", "72b")},
    **{f"qwen2.5-coder-{size}": f"qwen-2.5-{size}" for size in ("7b", "14b", "32b")},
    **{f"qwen2.5-math-{size}": f"qwen-2.5-{size}" for size in ("7b", "72b")},
}
