"""Writing a launch: a design as the configuration of a framework; reading it again gives the same design."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, gcd
from typing import Any

import tomli_w

from perfgrid.catalog import Entry
from perfgrid.engine.errors import PerfgridError, printable

from .formats import BETWEEN, USUAL, Case, Format, Key, glossary, solved
from .models import PUBLISHED_FORMATS, of_model, own_quantities
from .read import stated_values
from .syntaxes import COMMENTED

NODE = 8  # devices of a node, where they are whole nodes
SCALED = {"fp8": "delayed", "fp4": "nvfp4"}  # what the usual scaling is (perfgrid.formulas.hardware.scaling)
MOE_ONLY = ("etp", "capacity_factor", "expert_imbalance")
OVERLAPS = ("dp_overlap", "parameter_overlap")
MOOT = {"cp_method": "cp", "ulysses_ranks": "cp", "schedule": "pp", "sequence_parallel": "tp"}  # without such ranks
ENV = "env:"
SILENT = ("devices", "pp", "chunks")
COMPARED = {
    "training": (
        *("devices", "tp", "cp", "pp", "dp", "ep", "etp", "chunks", "microbatch", "global_batch", "sequence_length"),
        *("precision", "scaling", "schedule", "rank_order", "recompute", "recompute_norms", "recompute_latents"),
        *("recompute_activation_function", "recompute_layers", "offload", "cp_method", "ulysses_ranks"),
        *("sequence_parallel", "flash_attention", "causal", "zero", "zero_size", "lora_rank", "capacity_factor"),
        *("document_length", "optimizer", "layer_kernels", "cross_entropy", *OVERLAPS),
    ),
    "inference": (
        *("devices", "tp", "cp", "pp", "dp", "ep", "etp", "batch_limit", "prefill_chunk_tokens", "page_tokens"),
        *("kv_precision", "weight_precision", "precision", "draft_tokens", "interleaved_batches"),
        *("cache_fraction", "memory_fraction", "static_memory_fraction", "cache_memory_limit", "context_limit"),
        *("prefill_first", "chunked_prompts", "asynchronous_scheduling", "polling_steps"),
    ),
}


@dataclass(frozen=True)
class Launch:
    """The text of a configuration, and what of the design it cannot express."""

    text: str
    notes: tuple[str, ...]
    settings: Mapping[str, Any]  # its keys and their values


def write_launch(values: Mapping[str, Any], model: Entry, form: Format, version: str, title: str = "") -> Launch:
    """A design as a configuration of a framework.

    ``values``: quantities of the design by their names; what it leaves out has the glossary's default. PerfgridError
    for a layout that the framework does not have.
    """
    first = form.written_since or form.versions[0]
    if form.versions.index(version) < form.versions.index(first):
        raise PerfgridError(f"{form.title} {version} is read, not written; written are versions from {first}")
    stated = {n: int(v) for n, v in values.items() if n.startswith(BETWEEN)}
    wanted = _complete({n: v for n, v in values.items() if n not in stated}, model, form)
    conflicts, notes = set[str](), []
    for name, rows in form.replaced.items():
        if str(wanted.get(name)) in rows:
            notes.append(f"{name} = {wanted[name]}: {rows[str(wanted[name])]} is written")
            wanted[name] = rows[str(wanted[name])]
    found = solved(form, wanted, conflicts=conflicts)
    if conflicts and wanted.get("zero_size"):  # a group that the meshes of the framework do not have: all ranks
        notes.append(f"zero_size = {wanted['zero_size']}: no such group of ranks; all are written")
        found = solved(form, wanted | {"zero_size": 0}, conflicts=conflicts)
    for row in form.refused:
        if all(found.get(name) == value for name, value in row.values.items()):
            raise PerfgridError(f"{form.title} cannot express the layout of this design: {row.why}")
    wanted = _tiered(form, found, stated)
    settings = _settings(wanted, form, version)
    text = _text(form, wanted, settings)
    notes = [*notes, *_lost(text, wanted, notes, form, version)]
    heading = [f"{form.title} {version}: {title or model.title}", f"perfgrid format: {form.name}@{version}"]
    nodes = ceil(int(wanted.get("devices", 1)) / int(wanted.get("devices_per_node", NODE)))
    if form.workload == "inference" and nodes > 1 and int(wanted.get("dp", 1)) > 1:
        heading.append(
            f"{wanted['dp']} replicas on {nodes} nodes: start a server for each replica behind a router, or give this "
            "command the address of the first node and the replicas of each"
        )
    lines = [*heading, *(f"not supported: {note}" for note in notes)]
    if form.writes in COMMENTED:
        text = "".join(f"# {printable(line)}\n" for line in lines) + text
    return Launch(text, tuple(notes), settings)


def _complete(values: Mapping[str, Any], model: Entry, form: Format) -> dict[str, Any]:
    """All quantities of a design: those of its model, those that follow, those of the format."""
    known = own_quantities(model) | of_model(model) | dict(values)
    for name, value in form.implied.items():
        known.setdefault(name, value)  # a design that states another value is noted
    if known.get("scaling", USUAL) == USUAL and known.get("precision") in SCALED:
        known["scaling"] = SCALED[str(known["precision"])]
    for name in OVERLAPS:
        known.setdefault(name, USUAL)
    devices = int(known.get("devices", 1))
    known.setdefault("devices_per_node", NODE if devices % NODE == 0 else devices if devices < NODE else 1)
    if known["rotary"]:
        known["positions"] = known.get("sequence_length")
    if form.workload == "inference":
        published = {"weight_precision": "published_weights", "precision": "published_products"}
        published["kv_precision"] = "published_cache"
        as_published = {n for n, own in published.items() if known.get(n) == known[own]}
        known = {n: v for n, v in known.items() if n not in OVERLAPS and n not in as_published}
        known = limited(known, known.get("dp", 1))
        if not known["experts"]:
            known.pop("ep", None)
    known.setdefault("domain", known["devices_per_node"])
    known |= {form.keys[key].quantity: value for key, value in form.fixed.items() if key in form.keys}
    known.setdefault("ep", 1)
    if known.get("interleaved_batches") == 1:
        known.pop("interleaved_batches")
    if not known["experts"]:
        known = {n: v for n, v in known.items() if n not in MOE_ONLY}
    moot = moot_in(known) - {"zero", "zero_size"}
    return {n: v for n, v in known.items() if v is not None and n not in moot}


def limited(values: Mapping[str, Any], replicas: int) -> dict[str, Any]:
    """A serving design with its limit of sequences on a replica: of a stated batch no more than its share runs."""
    stated = values.get("batch") and values.get("batch_rule") in (None, "given", "concurrency", "clients")
    if not stated:
        return dict(values)
    share = ceil(values["batch"] / replicas)
    return dict(values) | {"batch_limit": min(share, int(values.get("batch_limit", share)))}


def _tiered(form: Format, values: dict[str, Any], stated: Mapping[str, int]) -> dict[str, Any]:
    """Axes of a mesh in two parts: what fits a scale-up domain, innermost axis first, and what lies between.

    ``stated``: second parts that stay, as far as their axes allow.
    """
    room = int(values["domain"])
    for tier in form.tiers:
        axis, _, quantity = tier.partition("=")
        size = int(values.get(quantity) or 1)
        between = stated.get(f"{BETWEEN}{axis}")
        inside = size // gcd(size, between) if between else gcd(size, room)
        room = room // inside if room % inside == 0 else 1
        values |= {f"ici_{axis}": inside, f"{BETWEEN}{axis}": size // inside}
    return values


def _settings(values: Mapping[str, Any], form: Format, version: str) -> dict[str, Any]:
    """The keys that state a design, with their values."""
    settings: dict[str, Any] = {}
    for key, row in form.keys.items():
        value = values.get(row.quantity)
        if not row.write or value is None or not form.has(row, version) or (row.only and not values.get(row.only)):
            continue
        if row.words:
            value = next((word for word, own in row.words.items() if own == value), None)
            if value is None:
                continue
        elif row.kind in ("switch", "flag"):
            value = value != row.inverted
            if row.kind == "switch" and not value:
                continue
        elif row.empty is not None and value == row.empty:
            value = row.unset[0]
        elif not isinstance(value, str) and row.kind != "number" and _needless(form, row, value):
            continue
        settings[key] = value
    cases = [_case(form, version, name, values) for name in dict.fromkeys(c.quantity for c in form.cases)]
    wanted = [(key, value) for case in cases if case for key, value in case.keys.items() if value is not False]
    for key, value in sorted(wanted, key=lambda one: isinstance(one[1], list)):  # what leaves a choice comes last
        settings.setdefault(key, value[0] if isinstance(value, list) else value)
    for key, word in (item for case in cases if case for item in case.contains.items()):
        joined = f"{str(settings.get(key, '')).strip('[]')} {word}".split()
        settings[key] = f"[{','.join(joined)}]" if form.writes == "pairs" else " ".join(joined)
    for case in filter(None, cases):
        settings = {key: value for key, value in case.also.items() if key not in settings} | settings
    return settings | {key: value for key, value in form.fixed.items() if key not in settings}


def _needless(form: Format, row: Key, value: float) -> bool:
    """Whether a number is not written: a part that is not whole, or a degree that is the default."""
    return (value != int(value) and row.quantity in form.parts) or (value <= row.above and not row.write_zero)


def _lost(text: str, wanted: Mapping[str, Any], noted: Sequence[str], form: Format, version: str) -> Iterator[str]:
    """What a written text does not say of a design: quantities that are others when it is read again."""
    given = {n: wanted[n] for n in form.open if n in wanted}
    try:
        names = ("layers", *PUBLISHED_FORMATS)
        found = stated_values(text, form, version, given, {name: wanted[name] for name in names})
    except PerfgridError as error:
        raise PerfgridError(f"{form.title} cannot express the layout of {error}") from None
    moot = moot_in(wanted)
    for name in form.open:
        if name in wanted and name not in SILENT and wanted[name] != default_word(name):
            yield f"{name} = {wanted[name]}: no key of this file"
    for name in COMPARED[form.workload]:
        value = wanted.get(name)
        if value is None or name in form.open or name in moot:
            continue
        got = found.get(name, USUAL if name in OVERLAPS else default_word(name))
        if value != got and not any(note.startswith(f"{name} = ") for note in noted):
            yield f"{name} = {word_of(value)}: {form.title} takes {word_of(got)}"
    model, keys = wanted["catalog_model"], form.keys.values()
    later = [row.quantity for row in keys if row.write and not form.has(row, version) and wanted.get(row.quantity)]
    if later := [name for name in later if name in glossary() and glossary()[name].of == "model"]:
        yield f"the model {model}: {form.title} {version} has no keys for {', '.join(later)}"
    writable = any(row.write and row.quantity in (form.named, "layers") for row in keys)
    writable |= any(case.quantity == form.named for case in form.cases) or "{catalog_model}" in form.command
    if not writable:
        yield f"the model {model}: no key of this file"
    elif form.workload == "inference":
        yield f"the model {model}: put the path of its checkpoint"
    elif form.named and form.named not in found:
        yield f"the model {model}: no configuration of this name is known"


def moot_in(values: Mapping[str, Any]) -> set[str]:
    """The quantities that are without effect in a design, because it has no such ranks."""
    found = {name for name, ranks in MOOT.items() if values.get(ranks, 1) == 1}
    found |= {"parameter_overlap"} if values.get("zero") == 0 else set()  # no shards, nothing to gather
    alone = values.get("dp", 1) * values.get("cp", 1) == 1
    return found | ({"zero", "zero_size"} if alone else set())


def default_word(name: str) -> Any:
    """The default of a quantity, as a study states it."""
    value = glossary()[name].default_value
    return None if value is None else glossary()[name].word(value)


def _case(form: Format, version: str, quantity: str, values: Mapping[str, Any]) -> Case | None:
    cases = (case for case in form.cases if case.quantity == quantity and case.write and form.has(case, version))
    cases = (case for case in cases if case.only is None or values.get(case.only))
    value = values.get(quantity)
    return next(
        (case for case in cases if case.value == value and isinstance(case.value, bool) == isinstance(value, bool)),
        None,
    )


def _text(form: Format, values: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Settings in the syntax of a format."""
    known = {name: word_of(value) for name, value in values.items()}
    command = form.command.format_map(known) if form.command else ""
    if form.writes == "flags":
        variables = [f"{key[len(ENV) :]}={word_of(value)}" for key, value in settings.items() if key.startswith(ENV)]
        settings = {key: value for key, value in settings.items() if not key.startswith(ENV)}
        command = " ".join([*variables, command])
        ordered = sorted(settings.items(), key=lambda item: item[0].endswith(":"))  # sub-commands end the line
        return " \\\n    ".join([command, *(_flag(form, key, value) for key, value in ordered)]) + "\n"
    if form.writes == "pairs":
        named = {f"--{key}" if key in form.options else key: value for key, value in settings.items()}
        return " \\\n    ".join([command, *(f"{k}={shlex.quote(word_of(v))}" for k, v in named.items())]) + "\n"
    if form.writes == "variables":
        return "".join(f"export {key}={shlex.quote(word_of(value))}\n" for key, value in settings.items())
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *tables, last = key.split(".")
        holder = nested
        for table in tables:
            holder = holder.setdefault(table, {})
        holder[last] = value
    if form.writes == "json":
        return json.dumps(nested, indent=2) + "\n"
    if form.writes == "toml":
        return tomli_w.dumps(nested)
    import yaml

    return yaml.safe_dump(nested, sort_keys=False)


def _flag(form: Format, key: str, value: Any) -> str:
    """A flag of a command line."""
    if key.endswith(":"):
        return f"{key}{word_of(value)}"
    return " ".join([f"{form.prefix}{key}", *([] if value is True else map(shlex.quote, word_of(value).split()))])


def word_of(value: Any) -> str:
    """A value as files state it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) else str(value)
