"""Map records to a study: one row for each record, one column for each stated field, models created in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from perfgrid.catalog import Catalog, Entry, Variable, convert
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.engine.graph.registry import Registry
from perfgrid.formulas.parallelism.groups import etp

from .limits import DEFAULTS, label_of, readable, reasons
from .quantities import answering
from .schema import Kernel, Model, Record, data
from .stacks import guessed, named
from .variants import variants

LEAST_RECOMPUTE = "least"  # that fits the memory, if the source does not state it
FUSED_VERSIONS = {"fa2": 2, "fa3": 3}
OVERLAPS = {  # flag of a plan -> overlaps of the software that it disables; the first can also be enabled
    "tp_overlap": ("tp_overlap", "tp_ring_overlap"),
    "dp_overlap": ("dp_overlap", "parameter_overlap"),
}
OVERLAPPING = "megatron-lm"  # whose overlap stands for one that a record states and its software lacks
UNFUSED_VERSIONS = ("torch",)
ONE_LAYER = ("gemm", "attention", "moe_layer")  # operators that stand in a layer of their own, whatever their model
MASK_ADDED = {"forward": 6.0}  # bytes per score read and written by a separate kernel that adds a mask


@dataclass(frozen=True)
class Row:
    """One row of the study: a record, with the columns that describe its design."""

    label: str
    record: Record
    quantity: str
    columns: Mapping[str, Any]
    tuned: Mapping[str, int] = field(default_factory=dict)  # fields that the record leaves open and its authors tuned


@dataclass
class Designs:
    """The rows of a set of records, their catalog, and the records that cannot be expressed."""

    catalog: Catalog  # with the models of the records
    rows: list[Row] = field(default_factory=list)
    unpredicted: dict[str, tuple[str, ...]] = field(default_factory=dict)  # record -> reasons

    def axis(self) -> dict[str, Any]:
        """The rows as the ``[axes.row]`` table of a study."""
        names = self.rows[0].columns
        return {
            "labels": [row.label for row in self.rows],
            "zip": {name: [row.columns[name] for row in self.rows] for name in names},
        }


def convention(record: Record, key: str) -> Any:
    """Conventions of the source of a record: tables are merged with the defaults, other values replace them.

    A source is a group of records, or an address that records of any group name.
    """
    default = data("conventions")["default"].get(key)
    group = data("conventions")["group"].get(record.group, {})
    page = data("conventions")["page"].get(record.source.url, {})
    stated = {**page, **group}.get(key, default)
    return {**default, **stated} if isinstance(default, dict) else stated


def of_family(model: str) -> dict[str, Any]:
    """Conventions for a model's name: the entry with the longest matching prefix."""
    families = data("conventions")["model"]
    return families[max((f for f in families if model.startswith(f)), key=len)]


def designs(
    records: Iterable[Record], catalog: Catalog, registry: Registry, mapper: type[Mapper] | None = None
) -> Designs:
    """Rows for all records that the formulas can express; all reasons for the others."""
    mapping = (mapper or Mapper)(catalog, registry)
    found = Designs(catalog)
    for record in records:
        why = list(reasons(record, catalog, registry))
        if not why:
            try:
                found.rows += mapping.rows(record)
            except PerfgridError as error:
                why = [str(error)]
        if why:
            found.unpredicted[record.id] = tuple(why)
    found.catalog = replace(catalog, tables={**catalog.tables, "model": {**catalog.tables["model"], **mapping.models}})
    return found


class Mapper:
    """Maps records one by one and collects their models."""

    one_layer: tuple[str, ...] = ONE_LAYER

    def __init__(self, catalog: Catalog, registry: Registry):
        self.catalog, self.registry = catalog, registry
        self.read = readable(registry)
        self.models: dict[str, Entry] = {}
        read = self.read - registry.subjects()  # a record has no limits
        self.stated = [
            v
            for v in catalog.variables.values()
            if v.name in read and (v.of == "parallelism" or (v.of == "workload" and v.name not in registry.formulas))
        ]

    def rows(self, record: Record) -> list[Row]:
        """The rows of one record, one per choice of tuned fields. Raises PerfgridError with the reason for none."""
        quantity = answering(record, convention(record, "quantities") or {})
        if quantity is None:
            raise PerfgridError(f"not modelled: {record.quantity} of a record of kind {record.kind}")
        stated = record.plan.recompute if record.plan else "none"
        stated = None if convention(record, "recompute_open") else stated
        recompute = stated or ("none" if record.kind == "kernel" else LEAST_RECOMPUTE)
        found = []
        for tuned, variant in variants(record, convention(record, "fastest") or ()):
            label = " ".join((record.id, *(f"{name}={value}" for name, value in tuned.items())))
            found.append(Row(label, record, quantity, self.columns(variant) | {"recompute": recompute}, tuned))
        return found

    def columns(self, record: Record) -> dict[str, Any]:
        """All columns of a record: stated fields and conventions for entries, study parameters and machine."""
        columns: dict[str, Any] = {
            "model": self._model(record),
            "device": record.device,
            "topology": self._first("topology", record),
            "software": self._software(record),
        }
        columns |= {v.name: self._study_value(v, record) for v in self.stated}
        columns |= self._hardware(record, columns)
        for name, value in columns.items():
            if name in self.catalog.variables:
                convert(
                    self.catalog.variables[name], value, f"field {name}"
                )  # an invalid record does not stop the others
        return columns

    def _software(self, record: Record) -> str:
        """The software of a record; within a source it may depend on sharding, precision or table."""
        if record.software is not None:
            return self._entry("software", record.software)
        sharded = record.plan is not None and (record.plan.zero or 0) >= 2
        traits = (*(["sharded"] if sharded else []), record.workload and record.workload.precision, record.source.where)
        others = convention(record, "other_software") or {}
        names = next((others[trait] for trait in traits if trait in others), None)
        return (named(record, self.catalog) if guessed(record) else None) or self._first("software", record, names)

    def _entry(self, table: str, name: str) -> str:
        """The catalog entry stated by the record."""
        entries, name = self.catalog.tables[table], self.catalog.name_of(table, name)
        if name not in entries:
            raise PerfgridError(f"unknown {table} {name!r}{nearest(name, entries)}")
        return name

    def _first(self, table: str, record: Record, stated: list[str] | None = None) -> str:
        if table == "topology" and record.topology is not None:
            return self._entry(table, record.topology)
        names: list[str] = stated or convention(record, table)
        entries = self.catalog.tables[table.rpartition("_")[2]]
        return next((n for n in names if n in entries), names[-1])

    # -- workload and parallelism ---------------------------------------------------------------------------------

    def _study_value(self, variable: Variable, record: Record) -> Any:
        """A study parameter: as stated, else by the convention of the source, else the glossary's default."""
        name = variable.name
        value = self._stated(name, record)
        if value is None:
            value = self._by_convention(name, record, variable.default)
        if value is None and name == "etp":
            value = int(etp(*(self._study_value(self.catalog.variables[degree], record) for degree in ("tp", "ep"))))
        if value is None:
            raise PerfgridError(f"the record does not state {name}")
        return value

    def _by_convention(self, name: str, record: Record, default: Any) -> Any:
        """A plan's field by the convention of the source, which may be another for records on several nodes."""
        nodes = record.devices is not None and record.devices > record.devices_per_node
        stated = {**(convention(record, "plan") or {}), **((nodes and convention(record, "nodes_plan")) or {})}
        return stated.get(name, default)

    def _stated(self, name: str, record: Record) -> Any:
        plan, workload, kernel = record.plan, record.workload, record.kernel
        if record.others and name in record.others:
            return record.others[name]
        if name in DEFAULTS:
            return label_of(name, record, self.catalog, self.registry)
        if kernel is not None and kernel.op != "transformer_layer":
            return self._of_kernel(name, kernel)
        if name == "devices":
            return record.devices
        if name == "causal":
            return record.model.causal if record.model else None
        if name in ("lora_rank", "lora_targets"):
            return convention(record, name) if workload and workload.lora else None
        if name == "zero" and plan and (plan.dp or 1) * (plan.cp or 1) == 1:
            return 0  # nothing to shard over
        if name == "global_batch" and workload and plan and workload.global_batch is None:
            return (workload.microbatch or 1) * (plan.dp or 1)
        if name == "microbatch" and workload and plan and workload.global_batch and convention(record, "one_pass"):
            return workload.global_batch // (plan.dp or 1)
        found = [getattr(block, name, None) for block in (plan, workload)]
        return next((value for value in found if value is not None), None)

    def _of_kernel(self, name: str, kernel: Kernel) -> Any:
        """A study of one kernel: one device, one layer, one microbatch."""
        if name in ("microbatch", "global_batch"):
            return kernel.batch or 1
        if name == "sequence_length":
            products = kernel.op in ("gemm", "moe_layer")
            return (kernel.m or 0) * (kernel.groups or 1) if products else kernel.sequence_length
        if name == "flash_attention":
            return kernel.version not in UNFUSED_VERSIONS
        if name == "causal":
            return kernel.causal is not False
        return {"devices": 1, "tp": 1, "pp": 1, "dp": 1, "zero": 0, "sequence_parallel": False}.get(name)

    # -- hardware and software ------------------------------------------------------------------------------------

    def _hardware(self, record: Record, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Values of machine and software stated by the record, which replace the catalog's."""
        software = self.catalog.entry("software", columns["software"]).values
        found = self._machine(record, columns["topology"])
        for flag, names in OVERLAPS.items():
            stated = getattr(record.plan, flag, None)
            for name in names:
                if name in software and name in self.read:
                    found[name] = 0.0 if stated is False else software[name]
            if stated and flag in found and not found[flag]:
                found[flag] = self.catalog.entry("software", OVERLAPPING).values[flag]
        if "graph_scope" in self.read:
            own_scope = self.catalog.variables["graph_scope"].word(software["graph_scope"])
            found["graph_scope"] = (record.plan and record.plan.graphs) or own_scope
        if "ep_overlap" in self.read:
            paired = record.plan is not None and record.plan.ep_overlap
            found["ep_overlap"] = software["paired_ep_overlap"] if paired else software["ep_overlap"]
        fused = FUSED_VERSIONS.get((record.kernel.version or "") if record.kernel else "")
        found["flash_limit"] = fused or software["flash_limit"]
        if "score_copy_size" in self.read:
            added = record.kernel is not None and record.kernel.version in UNFUSED_VERSIONS and record.kernel.causal
            found["score_copy_size"] = MASK_ADDED if added else software["score_copy_size"]
        return found | {name: value for name, value in (record.others or {}).items() if name in found}

    def _machine(self, record: Record, topology: str) -> dict[str, Any]:
        """Domain and network stated by the record, which replace those of device and fabric."""
        device = self.catalog.entry("device", record.device).values
        network = record.interconnect.scale_out_bandwidth if record.interconnect else None
        network = network or convention(record, "scale_out_bandwidth")
        own = cast(dict[str, float], self.catalog.entry("topology", topology).values["tier_stated_bandwidth"])
        return {
            "scale_up_size": record.scale_up_size,
            "scale_out_bandwidth": network or device["scale_out_bandwidth"],
            "tier_stated_bandwidth": own | {"scale_out": 0.0} if network else own,
        }

    # -- models ---------------------------------------------------------------------------------------------------

    def _model(self, record: Record) -> str:
        """The catalog name of a record's model; a new model is added."""
        kernel, model = record.kernel, record.model
        alone = kernel is not None and model is None and kernel.op != "transformer_layer"
        if kernel is not None and (alone or kernel.op in self.one_layer):
            name, stated = f"{record.id} (one layer)", _layer_of(kernel, model)
        elif model is not None:
            name, stated = f"{model.name} ({record.group})", self._architecture(model, record)
        else:
            raise PerfgridError("the record describes no model")
        values: dict[str, Any] = {}
        for variable in self.catalog.variables.values():
            if variable.of != "model":
                continue
            value = stated.get(variable.name)
            value = variable.default if value is None else value
            if value is None:
                raise PerfgridError(f"the record does not state model.{variable.name}")
            values[variable.name] = convert(variable, value, f"model.{variable.name}")
        alike = 1
        while name in self.models and self.models[name].values != values:
            alike += 1
            name = f"{name.partition(' #')[0]} #{alike}"
        source = record.source.url or record.source.title
        self.models[name] = Entry(name, "model", name, values, dict.fromkeys(values, source))
        return name

    def _architecture(self, model: Model, record: Record) -> dict[str, Any]:
        """The fields of a model by catalog name; unstated ones from its family or source."""
        stated = {k: v for k, v in model if v is not None}
        blocks = (model.moe, model.mla, model.mixer)
        stated |= {k: v for block in blocks if block is not None for k, v in block if v is not None}
        found = of_family(model.name) | (convention(record, "model") or {}) | stated
        length = record.workload.sequence_length if record.workload else None
        found["learned_positions"] = (length or 0) if found["learned_positions"] else 0
        return found | (record.others or {})


def _layer_of(kernel: Kernel, model: Model | None = None) -> dict[str, Any]:
    """A one-layer model that has the kernel: the heads of an attention, the widths of a product, routed experts."""
    plain = {"layers": 1, "learned_positions": 0, "dropout": False, "gated_ffn": False, "tied_embeddings": True}
    if kernel.op == "moe_layer" and model is not None and model.moe is not None:
        shape = {"hidden_size": model.hidden_size, "gated_ffn": model.gated_ffn, "ffn_size": model.moe.expert_ffn_size}
        routed = {"experts", "experts_per_token", "expert_ffn_size"}
        plain |= {"heads": 1, "kv_heads": 1, "head_dim": 128, "dense_layers": 0, "vocab_size": model.hidden_size}
        return plain | shape | model.moe.model_dump(include=routed)
    if kernel.op == "gemm":
        widths = {"hidden_size": kernel.k, "ffn_size": kernel.n, "heads": 1, "kv_heads": 1, "head_dim": 128}
        if (kernel.groups or 1) > 1:  # every row visits one expert
            plain |= {"experts": kernel.groups, "experts_per_token": 1, "expert_ffn_size": kernel.n, "dense_layers": 0}
    else:
        hidden = (kernel.heads or 1) * (kernel.head_dim or 1)
        widths = {"hidden_size": hidden, "ffn_size": 4 * hidden, "heads": kernel.heads, "head_dim": kernel.head_dim}
        widths["kv_heads"] = kernel.kv_heads or kernel.heads
    return plain | widths | {"vocab_size": widths["hidden_size"]}
