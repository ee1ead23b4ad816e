"""Records of published measurements: the schema, and reading files with the position of every error.

A file holds one JSON object per line (docs/records.md describes the fields). An invalid line is reported with its file,
line number and the reason; the other lines are still read.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from perfgrid.catalog import Catalog, load_catalog
from perfgrid.catalog.reading import from_json, read_text
from perfgrid.catalog.units import in_unit
from perfgrid.engine.errors import PerfgridError, mistake_text, nearest, shown
from perfgrid.engine.release import release

from .csv_rows import rows, shares
from .measurements.kinds import kind_in, measured_records, text_of
from .measurements.measured import Measured

SHIPPED = Path(__file__).with_name("records")
UNSEEN = Path(__file__).with_name("unseen")  # collected after the model was calibrated; used in no fit
LOGS = (".log", ".out", ".txt", ".json", ".json.gz")  # endings of files that may hold measurements
SHARES = {  # how independent of the model a record is
    "fitted": "constants were fitted to it",
    "looked at": "nothing was fitted to it, but comparing it with predictions led to a change of the model",
    "blind": "nothing was fitted to it and nothing was changed because of it",
}
UNITS = {  # by quantity
    **dict.fromkeys(("step_time", "time_to_first_token", "time_per_output_token", "request_latency"), "s"),
    **dict.fromkeys(("kernel_time", "collective_time", "training_time", "device_time"), "s"),
    **dict.fromkeys(("model_flops", "hardware_flops", "kernel_flops"), "FLOP/s"),
    **dict.fromkeys(("kernel_bandwidth", "collective_bandwidth"), "byte/s"),
    **dict.fromkeys(("activation_memory", "state_memory", "peak_memory", "allocator_memory"), "byte"),
    **dict.fromkeys(("training_tokens_per_second", "output_tokens_per_second", "input_tokens_per_second"), "1/s"),
    **{"power": "W", "energy": "J", "cost": "USD", "cost_rate": "USD/s", "revenue_rate": "USD/s"},
    **{"device_price": "USD/s", "token_price": "USD"},
}
PLAIN = ("s", "FLOP/s", "byte/s", "byte", "W")  # units in which printed values are checked; tokens are dimensionless
ROUNDING = 0.01  # relative difference allowed between a value and the printed one


@cache
def data(name: str) -> dict[str, Any]:
    """A data file of this folder (TOML)."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


Count = Annotated[int, Field(gt=0)]
Number = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]
MixerOperator = Literal["mixer", "mixer_decode", "mixer_layer"]  # the core, of a decoding step, with all around it
Operator = Literal["gemm", "attention", "decode_attention", "moe_layer", "transformer_layer", "memcpy", MixerOperator]
Direction = Literal["forward", "input_gradient", "weight_gradient", "backward", "forward_backward"]
CollectiveOperation = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv", "moe_dispatch", "moe_combine"
]
Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4"]
StoredPrecision = Literal[Precision, "mxfp4", "published"]


class Block(BaseModel):
    """Part of a record: all fields required (null where not stated), unknown fields rejected, types strict."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class LatentAttention(Block):
    """Multi-head latent attention of a model."""

    q_lora_rank: Count | None
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count


class Experts(Block):
    """Mixture of experts of a model."""

    experts: Count
    experts_per_token: Count
    expert_ffn_size: Count
    shared_experts: Annotated[int, Field(ge=0)] | None
    dense_layers: Annotated[int, Field(ge=0)] | None
    groups: Count | None
    groups_per_token: Count | None


class Mixer(Block):
    """Sequence mixer of a model or of a kernel, by the names of the catalog; fields that do not apply are omitted."""

    mixer: Name
    mixer_layers: Count | None = None
    attention_free_layers: Count | None = None
    ffn_free_layers: Count | None = None
    attention_gate: bool | None = None
    mixer_heads: Count
    mixer_key_heads: Count
    mixer_key_dim: Count
    mixer_value_dim: Count
    mixer_chunk: Count | None = None
    mixer_span: Count | None = None
    mixer_fused: bool | None = None
    convolution_length: Count | None = None
    gate_rank: Count | None = None
    state_element_size: Count | None = None
    cache_element_size: Count | None = None


class Model(Block):
    """Architecture of the model."""

    name: Name
    layers: Count | None
    hidden_size: Count | None
    heads: Count | None
    kv_heads: Count | None
    head_dim: Count | None
    ffn_size: Count | None
    vocab_size: Count | None
    gated_ffn: bool | None
    tied_embeddings: bool | None
    causal: bool
    attention: Literal["mha", "gqa", "mqa", "mla"] | None
    mla: LatentAttention | None
    window: Count | None
    window_layers: Count | None
    parallel_block: bool | None
    mtp_layers: Annotated[int, Field(ge=0)] | None
    moe: Experts | None
    mixer: Mixer | None = None  # of layers beside, or in place of, softmax attention


class Interconnect(Block):
    """The network beyond the scale-up domain."""

    scale_out_bandwidth: Number | None
    note: str | None


class PoolLayout(Block):
    """One of two pools: so many workers, each of the stated layout, and the most concurrent requests on a replica."""

    workers: Count
    tp: Count
    dp: Count  # replicas of a worker
    pp: Count = 1
    cp: Count = 1
    ep: Count | None = None
    etp: Count | None = None
    batch: Count | None = None


class Layout(Block):
    """Parallelism and execution (the field ``plan`` of a record)."""

    tp: Count | None
    pp: Count | None
    dp: Count | None
    cp: Count | None
    ep: Count | None
    etp: Count | None
    chunks: Count | None
    zero: Annotated[int, Field(ge=0, le=3)] | None
    zero_size: Count | None
    sequence_parallel: bool | None
    recompute: Literal["none", "selective", "layers", "full"] | None
    recompute_layers: Count | None = None  # of each stage, recomputed whole
    flash_attention: bool | None
    schedule: Literal["gpipe", "1f1b", "interleaved", "dualpipe", "zb"] | None
    offload: Literal["none", "optimizer", "parameters", "activations", "named"] | None
    tp_overlap: bool | None
    dp_overlap: bool | None
    ep_overlap: bool | None = None  # the exchange with experts runs beside the kernels of another microbatch
    graphs: Literal["none", "attention", "layer", "step"] | None = None  # what CUDA graphs start at once
    prefill: PoolLayout | None = None  # of two pools with layouts of their own; both are stated
    decode: PoolLayout | None = None


class Workload(Block):
    """Batch, lengths and number formats."""

    sequence_length: Count | None
    global_batch: Count | None
    microbatch: Count | None
    precision: Precision | None
    scaling: Literal["tensor", "row", "block", "mx", "nvfp4"] | None
    weight_precision: StoredPrecision | None
    kv_precision: Precision | None
    prompt_tokens: Count | None
    output_tokens: Annotated[int, Field(ge=0)] | None
    context_tokens: Count | None
    batch: Count | None
    batch_rule: Literal["given", "concurrency", "memory", "rate"] | None
    requests: Count | None
    request_rate: Number | None
    load_balanced: bool | None
    lora: bool
    packed_sft: bool
    equal_lengths: bool | None = None  # of all answers
    quantised_attention: bool | None = None  # false: its projections stay in 16 bits


class Engine(Block):
    """Options with which the serving engine was launched, where they are stated (names of the catalog)."""

    prefill_chunk_tokens: Count | None = None
    batch_limit: Count | None = None
    polling_steps: Count | None = None
    gathering_steps: Count | None = None
    gathering_prompts: Number | None = None
    routing_launches: Count | None = None
    prefill_graphs: bool | None = None  # graphs hold passes with prompts too


class Kernel(Block):
    """An operator timed on its own."""

    op: Operator
    m: Count | None
    n: Count | None
    k: Count | None
    groups: Count | None
    batch: Count | None
    heads: Count | None
    kv_heads: Count | None
    head_dim: Count | None
    sequence_length: Count | None
    causal: bool | None
    direction: Direction | None
    version: Name | None
    mixer: Mixer | None = None


class Collective(Block):
    """A collective timed on its own, by the conventions of nccl-tests."""

    op: CollectiveOperation
    size: Number | None  # bytes: buffer of a rank, gathered output, scattered input, sent message
    ranks: Annotated[int, Field(gt=1)] | None
    algorithm: Name | None
    tokens: Count | None  # of a rank, and the model of an exchange with experts
    hidden_size: Count | None
    experts: Count | None
    experts_per_token: Count | None


class Reported(Block):
    """The value as printed in the source."""

    quantity: Name
    value: Annotated[float, Field(allow_inf_nan=False)]
    unit: Name


class Source(Block):
    """Where the value is published."""

    title: Name
    where: str | None
    url: str | None


class Record(Block):
    """One measurement of a real system: configuration, value and source."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9._-]+$")]
    group: Name
    kind: Literal["training", "inference", "kernel", "collective", "memory", "cost"]
    tier: Literal["core", "bulk"]
    predictable: bool
    missing: list[str]
    assumed: list[str]
    model: Model | None
    device: Name
    devices: Count | None
    devices_per_node: Count
    scale_up_size: Count
    interconnect: Interconnect | None
    plan: Layout | None
    workload: Workload | None
    kernel: Kernel | None
    collective: Collective | None
    cost: dict[str, Any] | None
    quantity: Name
    value: Number
    reported: Reported
    derivation: str | None
    source: Source
    certainty: Literal["seen", "recalled"]
    note: str
    software: Name | None = None
    engine: Engine | None = None
    topology: Name | None = None
    share: Literal["fitted", "looked at", "blind"] = "blind"  # see SHARES
    others: dict[str, Any] | None = None  # further quantities of model, design and software, by names of the catalog
    quartiles: Annotated[list[Number], Field(min_length=2, max_length=2)] | None = None  # of the steps behind a median

    @model_validator(mode="after")
    def _consistent(self) -> Record:
        if self.quantity not in UNITS:
            raise ValueError(f"unknown quantity {self.quantity!r}{nearest(self.quantity, UNITS)}")
        if self.predictable == bool(self.missing):
            raise ValueError("predictable must be true exactly where missing is empty")
        blocks = {"training": ("model", "plan", "workload"), "memory": ("model", "plan", "workload")}
        if self.plan is not None and (self.plan.prefill is None) != (self.plan.decode is None):
            raise ValueError("a plan states both pools, prefill and decode, or neither")
        own = [self.kind] if self.kind in ("kernel", "collective") else []
        for block in (*blocks.get(self.kind, ()), *own):
            if getattr(self, block) is None:
                raise ValueError(f"a record of kind {self.kind} needs the block {block!r}")
        if self.reported.quantity == self.quantity and UNITS[self.quantity] in PLAIN:
            self._same_as_printed(UNITS[self.quantity])
        return self

    def _same_as_printed(self, unit: str) -> None:
        """Check a value that is printed directly against its SI value: finds wrong units."""
        printed = f"{self.reported.value!r} {self.reported.unit.removesuffix('/GPU').removesuffix('/chip')}"
        try:
            stated = in_unit(printed, unit)
        except ValueError as error:
            raise ValueError(f"reported.unit: {error}") from None
        if abs(stated - self.value) > ROUNDING * abs(stated):
            raise ValueError(f"value {self.value:g} {unit} is not the reported {printed}")


@dataclass(frozen=True)
class Problem:
    """An invalid line of a record file."""

    place: str  # file:line
    reason: str


def records_release() -> str:
    """Version of the shipped records, with a hash of their files, such as 2026.11+1f0c9a2b."""
    folders = [SHIPPED.parent / name for name in ("records", "unseen")]
    return release(
        SHIPPED.parent, [f for folder in folders for f in folder.iterdir() if f.suffix in (".jsonl", ".csv", ".toml")]
    )


@overload
def record_files(paths: Iterable[str | Path] = ()) -> list[Path]: ...


@overload
def record_files(paths: Iterable[str | Path | Measured]) -> list[Path] | list[Path | Measured]: ...


def record_files(paths: Iterable[str | Path | Measured] = ()) -> list[Path] | list[Path | Measured]:
    """The given files, or of given folders those that hold measurements; without paths, the shipped records.

    Raises PerfgridError for a missing path and a folder without measurements.
    """
    found: list[Path | Measured] = []
    for given in list(paths) or [SHIPPED]:
        path = given.path if isinstance(given, Measured) else Path(given)
        inside = _measurements(path) if os.path.isdir(path) else [path]
        if not inside or not os.path.exists(path):
            legal = "give a .jsonl or .csv file, a log or a trace, or a folder of them"
            raise PerfgridError(f"there are no records at {str(path)!r}: {legal}")
        found += [replace(given, path=one) if isinstance(given, Measured) else one for one in inside]
    return found


def _measurements(folder: Path) -> list[Path]:
    """Record files and tables of a folder, and of its logs and JSON files those that are recognised."""
    others = (path for ending in LOGS for path in folder.glob(f"*{ending}"))
    return sorted((*folder.glob("*.jsonl"), *folder.glob("*.csv"), *(p for p in others if kind_in(text_of(p)))))


def read_records(
    paths: Iterable[str | Path | Measured] = (), catalog: Catalog | None = None
) -> tuple[list[Record], list[Problem]]:
    """All valid records of the files, in order, and the problems of the invalid lines.

    Raises PerfgridError for an unreadable file, and for the only file if it holds no measurements.
    """
    catalog = catalog or load_catalog()
    records: list[Record] = []
    problems: list[Problem] = []
    places: dict[str, str] = {}
    files = record_files(paths)
    for file in files:
        try:
            for place, stated in _lines(file, catalog):
                try:
                    found = _record(stated, catalog)
                except PerfgridError as error:
                    problems.append(Problem(place, str(error).removeprefix(f"{place}: ")))
                    continue
                if found.id in places:
                    problems.append(Problem(place, f"record {found.id!r} is already at {places[found.id]}"))
                else:
                    places[found.id] = place
                    records.append(found)
        except PerfgridError as error:
            if len(files) == 1:
                raise
            problems.append(Problem(str(file), str(error).removeprefix(f"{file}: ")))
    return records, problems


def _lines(given: Path | Measured, catalog: Catalog) -> Iterator[tuple[str, Any]]:
    """What a file states of its records by place: JSON, fields, or the error that says why a line is no record."""
    file = given if isinstance(given, Measured) else Measured(given)
    path = file.path
    if path.suffix == ".csv" and file.kind in (None, "records") and shares(path):
        found: Iterable[tuple[int, Any]] | None = rows(path, Record)
    else:
        found = measured_records(file, catalog, Record)
    if found is None:
        found = ((number, line) for number, line in enumerate(read_text(path).split("\n"), 1) if line.strip())
    for number, stated in found:
        yield f"{path}:{number}" if number else str(path), stated


def _record(line: str | dict[str, Any] | PerfgridError, catalog: Catalog) -> Record:
    """The record of a line. Raises PerfgridError with the reason why it is none."""
    if isinstance(line, PerfgridError):
        raise line
    devices = catalog.tables["device"]
    stated = from_json(line) if isinstance(line, str) else line
    if not isinstance(stated, dict):
        raise PerfgridError(f"a record is a JSON object, found {shown(stated)}")
    name = f"record {stated['id']!r}: " if isinstance(stated.get("id"), str) else ""
    try:
        record = Record.model_validate(stated)
    except ValidationError as error:
        raise PerfgridError(name + "; ".join(_reason(problem) for problem in error.errors()[:3])) from None
    if (device := catalog.name_of("device", record.device, name)) != record.device:
        record = record.model_copy(update={"device": device})
    if record.device not in devices:
        raise PerfgridError(f"{name}unknown device {record.device!r}{nearest(record.device, devices)}")
    for other in record.others or {}:
        if other not in catalog.variables:
            raise PerfgridError(f"{name}others: no quantity {other!r}{nearest(other, catalog.variables)}")
    return record


def _reason(problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"field {key!r} is missing"
    if problem["type"] == "extra_forbidden":
        return f"unknown field {key!r}{nearest(key.rpartition('.')[2], Record.model_fields)}"
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    return f"{key}: {mistake_text(problem)}, found {shown(problem['input'])}"
