"""``python -m tools.validation.server_memory``: memory of servers as predicted, beside what their logs say.

The records are those of tests/memory/public_logs.toml, each read as ``perfgrid read-job`` reads it. Of blind records
only errors of all together are printed.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from perfgrid.answers.entries import model_with_remarks
from perfgrid.answers.stacks import engine_named
from perfgrid.catalog import Catalog, load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.models import of_model, of_named
from perfgrid.jobs.placed import on_device_of
from perfgrid.jobs.read import read_job
from perfgrid.jobs.verdict import Held, held_by

LOGS = Path(__file__).parents[2] / "tests" / "memory" / "public_logs.toml"
GIB = 2**30
CARDS = {  # of cards that no catalog has: one of the same kind, and memory in GiB
    "L40": ("l40s", 45),
    "H20 of 141 GB": ("h200-sxm-141gb", 141),
    "RTX 5090": ("rtx-4090", 32),
    "RTX 3090": ("rtx-4090", 24),
    "T4": ("rtx-4090", 15),
    "a card of 24 GB, not named": ("rtx-4090", 24),
}
SOURCES = (  # the engine's version where a record states none: by its source, and by the number of an issue of vLLM
    ("llm-d-benchmark/blob", "0.11"),
)
ISSUES = ((15000, "0.7"), (32700, "0.11"), (38000, "0.15"))  # up to which, the version
MEASURES = {"weights_gib": "weights", "cache_gib": "cache", "cache_tokens": "cache_tokens", "starts": "starts"}
CLOSE = 0.7  # GiB: nearer than this a cache counts as met


@dataclass(frozen=True)
class Scored:
    """A record and what is predicted for it; ``held`` is None where it cannot be read, and ``why`` says why."""

    record: Mapping[str, Any]
    held: Held | None = None
    why: str = ""

    @property
    def blind(self) -> bool:
        """Whether it may only be scored."""
        return bool(self.record["blind"]) and not self.record.get("seen")

    @property
    def predicted(self) -> dict[str, Any]:
        """What is predicted of what the log says, in its units."""
        held = self.held
        if held is None:
            return {}
        room = held.cache if held.room > 0 else held.room
        values = {"weights_gib": held.weights / GIB, "cache_gib": room / GIB, "cache_tokens": held.cache_tokens}
        values |= {"starts": held.starts}
        return {name: value for name, value in values.items() if name in self.record}

    def error(self, name: str) -> float:
        """Logarithm of predicted over logged."""
        told, found = float(self.record[name]), float(self.predicted[name])
        return float(np.log(max(found, 1e-3) / max(told, 1e-3)))

    def met(self, name: str) -> bool:
        """Whether a cache is within a tenth or 0.7 GiB, tokens within a tenth, weights within 3 %, a verdict right."""
        if name == "starts":
            return self.predicted[name] == self.record[name]
        near = name == "cache_gib" and abs(self.record[name] - self.predicted[name]) <= CLOSE
        return near or abs(self.error(name)) <= (0.03 if name == "weights_gib" else 0.1)


def version_of(record: Mapping[str, Any]) -> str:
    """The engine's version: stated, or that of the time at which the source was written."""
    if "version" in record:
        return str(record["version"])
    number = re.search(r"vllm-project/vllm/(?:issues|pull)/(\d+)", record["source"])
    if number and record["engine"] == "vllm":
        return next((version for last, version in ISSUES if int(number[1]) <= last), "")
    return next((version for part, version in SOURCES if part in record["source"]), "")


def model_of(record: Mapping[str, Any], configs: Mapping[str, Any], catalog: Catalog) -> tuple[Catalog, str | None]:
    """A catalog with the model of a record, and its name there."""
    if record.get("model") or record["checkpoint"] not in configs:
        return catalog, record.get("model")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "logged.json"
        path.write_text(json.dumps(configs[record["checkpoint"]]))
        own, _ = model_with_remarks(catalog, path)
    return catalog.with_entry(own), own.name


def score(record: Mapping[str, Any], configs: Mapping[str, Any], catalog: Catalog) -> Scored:
    """A record with what is predicted for it."""
    catalog, model = model_of(record, configs, catalog)
    device = record.get("device")
    memory, counted = record.get("device_gib"), "device_gib" in record
    if device is None:
        device, usual = CARDS[record["card"]]
        memory = memory or usual
    if memory:
        catalog, device = catalog.named(
            "device", f"{device}[hbm_capacity={memory} GiB{', driver_share=0' * counted}]", ""
        )
    try:
        form = record["engine"] if record["engine"] in ("tensorrt-llm", "lmdeploy") else None
        job = read_job(record["launch"], form, record["devices"], model, record.get("settings"), catalog)
        if job.model is not None:  # the launch may name a folder
            stored = of_named(job.model, re.sub(r"[ ,]+", "-", record["checkpoint"]))["published_weights"]
            if stored != of_model(job.model)["published_weights"]:
                job = replace(job, values=job.values | {"weight_precision": stored})
        version = version_of(record)
        engine = engine_named(f"{record['engine']} {version}" if version else record["engine"], None)
        job = on_device_of(job, device, catalog, engine)
        return Scored(record, held_by("", job, str(device), catalog, engine))
    except PerfgridError as error:
        return Scored(record, why=str(error))


def scored() -> list[Scored]:
    """All records of servers with what is predicted for them."""
    catalog, logs = load_catalog(), tomllib.loads(LOGS.read_text(encoding="utf-8"))
    return [score(record, logs["config"], catalog) for record in logs["server"]]


def summary(rows: Iterable[Scored]) -> dict[str, str]:
    """How many values are met, and the median and largest error, by measure."""
    found = {}
    for name in MEASURES:
        of = [row for row in rows if name in row.predicted]
        text = f"{sum(row.met(name) for row in of)} of {len(of)} met"
        errors = [abs(row.error(name)) for row in of] if name != "starts" else []
        if errors:
            text += f", error {median(errors):.3f} in the median, {max(errors):.3f} at most"
        found[name] = text
    return found


def main() -> None:
    """Print the records."""
    rows = scored()
    for row in rows:
        if row.blind:
            continue
        told = [f"{name} {row.record[name]:g}" for name in MEASURES if name in row.record]
        print(f"{row.record['id']} ({version_of(row.record) or 'newest'})")
        print(f"    logged     {', '.join(told)}")
        mark = {name: "" if row.met(name) else " <--" for name in row.predicted}
        print(f"    predicted  {', '.join(f'{n} {v:.5g}{mark[n]}' for n, v in row.predicted.items()) or row.why}")
        if row.held:
            parts = {"counted": row.held.counted, "working": row.held.working, "margin": row.held.margin}
            logged = {n: row.record[n] for n in ("activations_gib", "non_torch_gib", "graphs_gib") if n in row.record}
            print(f"    parts      {', '.join(f'{n} {v / GIB:.4g}' for n, v in parts.items())}; logged {logged}")
    for title, of in (("open", [r for r in rows if not r.blind]), ("blind", [r for r in rows if r.blind])):
        print(f"{title}: {len(of)} records, {sum(row.held is None for row in of)} not predicted")
        for name, text in summary(of).items():
            print(f"    {name}: {text}")


if __name__ == "__main__":
    main()
