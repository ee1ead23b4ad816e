"""Fields of the blocks of a record: which a value fits, and those of a model of the catalog."""

from __future__ import annotations

import typing
from typing import Any

from pydantic import BaseModel

from perfgrid.catalog import Catalog, Entry
from perfgrid.validation.csv_rows import block_of, completed

NOT_OF_MODEL = ("parameters", "active_parameters", "context_length", "published_context", "published_precision")
OF_FAMILY = ("learned_positions", "dropout", "biases", "tied_embeddings")  # else taken from the name of a model


def block(record: type[BaseModel], name: str) -> type[BaseModel]:
    """The block that a field of a record, or of another block, holds."""
    found = block_of(record.model_fields[name].annotation)
    assert found is not None
    return found


def fits(record: type[BaseModel], place: str, name: str, value: Any) -> bool:
    """Whether a block of a record has a field for a value."""
    about = block(record, place).model_fields.get(name)
    if about is None:
        return False
    if isinstance(value, bool) != (bool in (about.annotation, *typing.get_args(about.annotation))):
        return False  # such as a share of communication that is hidden, which a plan states as a flag
    words = [w for part in (about.annotation, *typing.get_args(about.annotation)) for w in typing.get_args(part)]
    legal = [w for w in words if isinstance(w, str)]
    return not legal or value in legal


def model_fields(entry: Entry, catalog: Catalog, record: type[BaseModel]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The block of a model, and its quantities that the block has no field for."""
    of_model = block(record, "model")
    own = {v.name: v for v in catalog.variables.values() if v.of == "model"}
    plain = {
        n: int(x) if isinstance(x, float) and own[n].kind == "integer" else x
        for n, x in entry.values.items()
        if n in own
    }
    moe = block(of_model, "moe").model_fields if plain["experts"] else {}
    mla = block(of_model, "mla").model_fields if plain["kv_lora_rank"] else {}
    found: dict[str, Any] = {
        n: plain[n] or None for n in of_model.model_fields if n in plain and own[n].kind == "integer"
    }
    found |= {n: plain[n] for n in ("gated_ffn", "tied_embeddings", "parallel_block", "mtp_layers")}
    found |= {"name": entry.title, "causal": True}
    found["attention"] = (
        "mla" if mla else "mha" if plain["kv_heads"] == plain["heads"] else "gqa" if found["kv_heads"] != 1 else "mqa"
    )
    zero = ("shared_experts", "dense_layers")
    found["moe"] = {n: plain[n] if n in zero else plain[n] or None for n in moe} or None
    found["mla"] = {n: plain[n] or None for n in mla} or None
    held = {*found, *moe, *mla, *NOT_OF_MODEL} - set(OF_FAMILY)
    others = {
        n: v.word(plain[n]) for n, v in own.items() if n not in held and (n in OF_FAMILY or plain[n] != v.default_value)
    }
    return completed(found, of_model), others
