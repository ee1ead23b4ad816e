"""What a measurement is of: model, device, layout and workload, from a job file, the user and the file itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from perfgrid.catalog import Catalog, Entry, convert
from perfgrid.catalog.checkpoints import PUBLISHED
from perfgrid.catalog.reading import from_toml, read_text
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.jobs.design import design_at
from perfgrid.jobs.job import Job
from perfgrid.jobs.models import CORE, named_model
from perfgrid.jobs.read import read_files
from perfgrid.study.entries import usual_entries
from perfgrid.study.study import load_study
from perfgrid.text.numbers import count_text
from perfgrid.validation.csv_rows import completed

from .blocks import block, fits, model_fields
from .measured import Measured, slug

ENTRIES = ("model", "software", "topology")  # named among the stated quantities
OPTIONS = ("device", *ENTRIES)
USUAL = {"tp": 1, "pp": 1, "cp": 1, "microbatch": 1, "precision": "bf16"}
CONFIGURATIONS = (".sh", ".toml", ".yaml", ".yml")  # endings of files that may state a job
ROUNDED = 0.05  # of a stated length: how far the mean over requests may lie from it
SHARDED = "torchtitan"  # software that shards more than that with which a device is mostly used


@dataclass
class Setup:
    """Quantities of a design with who states each; entries of the catalog; what was assumed."""

    catalog: Catalog
    record: type[BaseModel]
    where: str
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    model: Entry | None = None
    names: dict[str, str] = field(default_factory=dict)  # device, software, topology
    assumed: list[str] = field(default_factory=list)

    def of_row(self, where: str) -> Setup:
        """The same for a row of its own."""
        own = {n: getattr(self, n).copy() for n in ("values", "origins", "names", "assumed")}
        return replace(self, where=where, **own)

    def state(self, stated: Mapping[str, Any], origin: str) -> None:
        """Take in quantities and names. PerfgridError for unknown ones, and where another origin says otherwise."""
        for name, value in stated.items():
            if value is None:
                continue
            if name in OPTIONS:
                self._name(name, str(value), origin)
                continue
            value = self._value(name, value, origin)
            known = self.values.setdefault(name, value)
            if known != value:
                raise PerfgridError(f"{self.where}: {name} is {value} by {origin}, but {known} by {self.origins[name]}")
            self.origins.setdefault(name, origin)

    def take_model(self, found: Entry, origin: str) -> None:
        """Take in a model. PerfgridError where another origin names one of another shape, and not a variant of it."""
        if (known := self.model) is None:
            self.model = found
            self.origins["model"] = origin
        elif any(known.values[n] != found.values[n] for n in CORE) and not known.name.startswith(found.name):
            other = f"{known.name} by {self.origins['model']}"
            raise PerfgridError(f"{self.where}: the model is {found.name} by {origin}, but {other}")

    def served(self, name: object, origin: str) -> None:
        """Take in the name of a served model, which only matters beside another one if the catalog knows it."""
        text = str(name).lower().rpartition("/")[2]
        if name and (self.model is None or named_model(self.catalog, text)):
            self.state({"model": text}, origin)

    def measured(self, found: Mapping[str, float], origin: str) -> None:
        """Take in means of lengths: what others state stands beside one within ``ROUNDED`` of it."""
        for name, value in found.items():
            known = self.values.get(name)
            if known is None or abs(value - known) > max(ROUNDED * known, 1):
                self.state({name: round(value)}, origin)

    def assume_as(self, job: Job) -> None:
        """Tell what a job assumes of the design where that differs from the default of perfgrid."""
        known = self.catalog.variables
        self.assumed += [
            f"{what} = {value}"
            for what, value, _ in job.assumed
            if what in self.values and known[what].word(known[what].default_value) != self.values[what]
        ]

    def usual(self, name: str, value: Any) -> None:
        """Assume a value that nothing states, and list it as assumed."""
        if name not in self.values:
            self.values[name] = value
            self.origins[name] = "a usual default"
            if name != "batch_rule":
                self.assumed.append(f"{name} = {value}")

    def usual_name(self, table: str, name: str) -> None:
        """Assume an entry of the catalog that nothing states, and list it as assumed."""
        if table not in self.names:
            self.names[table], self.origins[table] = name, "a usual default"
            self.assumed.append(f"{table} = {name}")

    def needed(self, name: str, how: str = "") -> Any:
        """A value that has no usual default. PerfgridError where nothing states it."""
        if name not in self.values:
            hint = how or f"give --job {self._beside()} or --set {name}=..."
            raise PerfgridError(f"{self.where}: {name} is not stated: {hint}")
        return self.values[name]

    def _name(self, table: str, text: str, origin: str) -> None:
        if table == "model":
            known = self.catalog.tables["model"]
            if (found := named_model(self.catalog, text) or known.get(self.catalog.name_of("model", text))) is None:
                raise PerfgridError(f"{self.where}: no model {text!r} in the catalog{nearest(text, known)}")
            self.take_model(found, origin)
        else:
            text = self.catalog.name_of(table, text, f"{self.where}: ")
            if text not in self.catalog.tables[table]:
                raise PerfgridError(f"{self.where}: no {table} {text!r}{nearest(text, self.catalog.tables[table])}")
            known = self.names.setdefault(table, text)
            if known != text and not known.startswith(f"{text}-"):  # an entry of the user's own, named after it
                raise PerfgridError(
                    f"{self.where}: {table} is {text} by {origin}, but {known} by {self.origins[table]}"
                )
        self.origins.setdefault(table, origin)

    def _value(self, name: str, value: Any, origin: str) -> Any:
        variable = self.catalog.variables.get(name)
        if variable is None:
            raise PerfgridError(f"{self.where}: no quantity {name!r} ({origin}){nearest(name, self.catalog.variables)}")
        if variable.kind == "flag" and value in (0, 1):
            value = bool(value)
        found = variable.word(convert(variable, value, f"{self.where}: {name} ({origin})"))
        return int(found) if variable.kind == "integer" and isinstance(found, float) else found

    @property
    def device(self) -> str:
        """The device. PerfgridError where nothing states it."""
        if "device" not in self.names:
            raise PerfgridError(f"{self.where}: the device is not stated: name it with --on, or in a column device")
        return self.names["device"]

    @property
    def entry(self) -> Entry:
        """The model. PerfgridError where nothing states it."""
        if self.model is None:
            raise PerfgridError(
                f"{self.where}: the model is not stated: give --job {self._beside()} or --set model=NAME"
            )
        return self.model

    def _beside(self) -> str:
        """The only file beside the measurement that may be its job; FILE where there is none, or several."""
        folder = Path(self.where).parent
        found = [path.name for path in folder.glob("*") if path.suffix in CONFIGURATIONS] if folder.is_dir() else []
        return str(folder / found[0]) if len(found) == 1 else "FILE"

    # -- as fields of a record -------------------------------------------------------------------------------------

    def design(self, workload: str) -> dict[str, Any]:
        """The blocks of a record that describe the design. PerfgridError for what is not stated and contradictions."""
        self._layout(workload)
        usual = usual_entries(self.catalog, [self.device], workload)
        limit = self.catalog.entry("software", usual["software"][0]).values["largest_zero"]
        if workload == "training" and self.values.get("zero", 0) > cast(float, limit):
            usual["software"] = [SHARDED]
        for table, (name,) in usual.items():
            self.usual_name(table, name)
        model, others = model_fields(self.entry, self.catalog, self.record)
        if self.values.get("weight_precision") != PUBLISHED:  # formats of the checkpoint matter to nothing
            others = {n: v for n, v in others.items() if self.catalog.variables[n].block != "published"}
        blocks: dict[str, Any] = {
            "plan": {},
            "workload": {"lora": bool(self.values.get("lora_rank")), "packed_sft": False},
        }
        engine = {}
        for name, value in self.values.items():
            if name in ("devices", "devices_per_node"):
                continue
            value = int(value) if isinstance(value, float) and value.is_integer() else value
            default = self.catalog.variables[name].default_value
            unused = not isinstance(value, bool) and value == default == 0  # such as no layers recomputed whole
            if unused or (name, value) == ("recompute", "least"):
                continue
            place = next((b for b in blocks if fits(self.record, b, name, value)), None)
            if place:
                blocks[place][name] = value
            elif workload == "inference" and fits(self.record, "engine", name, value):
                engine[name] = value
            else:
                others[name] = value
        blocks = {name: completed(stated, block(self.record, name)) for name, stated in blocks.items()}
        own = {"engine": engine} if engine else {}
        named = {"software": self.names["software"], "topology": self.names["topology"]}
        return self.machine(self.values["devices"]) | blocks | own | named | {"model": model, "others": others or None}

    def machine(self, devices: int) -> dict[str, Any]:
        """The fields of a record that describe the machine."""
        stated = self.catalog.entry("device", self.device).values["scale_up_size"]
        domain = int(stated) if isinstance(stated, float) and stated else 8
        node = self.values.pop("devices_per_node", None)
        interconnect = {"scale_out_bandwidth": None, "note": None}
        size = {"devices": devices, "devices_per_node": node or min(domain, 8), "scale_up_size": domain}
        return {"device": self.device, "interconnect": interconnect, **size}

    def _layout(self, workload: str) -> None:
        values = self.values
        if "nodes" in values:
            raise PerfgridError(f"{self.where}: nodes need devices_per_node")
        training = workload == "training"
        if not training:
            self._load()
        degrees = [n for n in ("tp", "pp", "cp") if n in values]
        if "devices" not in values and "dp" in values:
            self.usual("devices", values["dp"] * values.get("tp", 1) * values.get("pp", 1) * values.get("cp", 1))
        if "devices" not in values and not training:
            self.usual("devices", values.get("tp", 1) * values.get("pp", 1) * values.get("cp", 1))
        devices = self.needed("devices")
        if training and not degrees:
            self.usual("zero", 3)  # the state of the model in shares, where no layout is stated
        if not training and not degrees:
            self.usual("tp", devices)
        for name in USUAL if training else ("pp", "cp"):
            self.usual(name, USUAL[name])
        ranks = values.setdefault("tp", 1) * values["pp"] * values["cp"]
        if devices % ranks:
            told = f"tp {values['tp']} x pp {values['pp']} x cp {values['cp']}"
            raise PerfgridError(f"{self.where}: {told} does not divide {devices} devices")
        dp = values.setdefault("dp", devices // ranks)
        if dp * ranks != devices:
            raise PerfgridError(
                f"{self.where}: tp {values['tp']} x pp {values['pp']} x cp {values['cp']} x dp {dp} is {dp * ranks}, "
                f"but the job has {count_text(devices, 'device')}"
            )
        if training:
            self.usual("zero", 1)
            self.needed("global_batch")
            self.needed("sequence_length")
            if values["global_batch"] % (dp * values["microbatch"]):
                raise PerfgridError(
                    f"{self.where}: global batch {values['global_batch']} is no multiple of dp {dp} x microbatch "
                    f"{values['microbatch']}"
                )
            if "recompute" not in values:
                self.assumed.append("recompute = the least that fits")

    def _load(self) -> None:
        """What a server is loaded with. PerfgridError where neither clients nor a rate are stated."""
        for name in ("prompt_tokens", "output_tokens"):
            self.needed(name)
        if "batch_rule" not in self.values and not {"batch", "request_rate"} & self.values.keys():
            how = "give --set batch=... (concurrent requests) or --set request_rate=..."
            raise PerfgridError(f"{self.where}: the load is not stated: {how}")
        self.usual("batch_rule", "concurrency" if "batch" in self.values else "rate")
        self.usual("precision", "bf16")
        self.usual("weight_precision", self.values["precision"])
        self.usual("kv_precision", "bf16")


def setup_of(measured: Measured, catalog: Catalog, record: type[BaseModel]) -> Setup:
    """What a job file and the user state of a file of measurements."""
    found = Setup(catalog, record, str(measured.path))
    stated = dict(measured.stated)
    named = {n: stated.pop(n) for n in ENTRIES if n in stated}
    if measured.job:
        _read_job(found, measured.job, stated, named)
    else:
        found.state(stated, "--set")
    found.state({n: v for n, v in named.items() if n != "model" or not measured.job}, "an option")
    found.state({"device": measured.on}, "--on")
    return found


def _read_job(found: Setup, files: tuple[Path, ...], stated: dict[str, Any], named: dict[str, Any]) -> None:
    """Take in a configuration of a framework, or the design of a study."""
    origin = ", ".join(file.name for file in files)
    text = read_text(files[0])
    if len(files) == 1 and files[0].suffix == ".toml" and "axes" in from_toml(text, f"{files[0]}: "):
        study = load_study(files[0])
        design = design_at(study, {})
        found.state(design.values, origin)
        found.model, names = design.model, {"device": design.device, "software": design.software}
        found.state({table: name for table, name in names.items() if name}, origin)
        found.origins["model"] = origin
        found.state(stated, "--set")
        found.state({n: v for n, v in named.items() if n == "model"}, "an option")
        return
    job = read_files(list(files), model=named.get("model"), stated=stated, catalog=found.catalog)
    found.state(job.values, origin)
    found.model = job.model
    found.origins["model"] = origin
    if "software" not in named:
        found.state({"software": job.format.software}, origin)
    found.assume_as(job)


def fields(
    setup: Setup, kind: str, quantity: str, value: float, printed: tuple[str, float, str], **more: Any
) -> dict[str, Any]:
    """The fields of a record of a design: ``printed`` is quantity, value and unit as they stand in the file."""
    return more | {
        "kind": kind,
        "tier": "core",
        "predictable": True,
        "missing": [],
        "assumed": list(dict.fromkeys(setup.assumed)),
        "quantity": quantity,
        "value": value,
        "reported": dict(zip(("quantity", "value", "unit"), printed, strict=True)),
        "certainty": "seen",
    }


def identity(path: Path, *parts: str) -> dict[str, str]:
    """Id and group of what a file measured: it is called by its folder and its name."""
    folder = path.absolute().parent.name
    return {"id": "-".join(map(slug, (folder, path.name.split(".")[0], *parts))), "group": folder or "measurements"}
