"""Validation: predict all records in one evaluation, or list the reason why a record is not predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from perfgrid.analysis.explanation.derivation import Explanation
from perfgrid.analysis.explanation.explain import explain
from perfgrid.analysis.prediction_intervals import intervals
from perfgrid.catalog import Catalog, load_catalog
from perfgrid.engine.errors import PerfgridError, nearest
from perfgrid.formulas import BREAKDOWN, INNER, registry_of
from perfgrid.formulas.serving.shares import request_parts
from perfgrid.results.evaluate import evaluated
from perfgrid.study.study import Study

from . import collectives, inference, mixers, two_pools
from .baseline import done_by_a_device, kind_of, work_of
from .design import Designs, Mapper, Row, designs
from .fastest import WHOLE, column, fastest, violated
from .groups import Group, Prediction, by_kind, by_source, by_version, group_of
from .measurements.measured import Measured
from .metrics import constant_rate
from .quantities import FORMULAS, OUTPUTS
from .schema import SHARES, UNITS, Problem, Record, read_records, record_files
from .stacks import guessed, with_guess

FITS = ("fits_memory", "prefill_pool_fits_memory", "decode_pool_fits_memory")
CALIBRATED = "calibrated"  # confidence of catalog values from a calibration


@dataclass
class Validation:
    """Predictions of all records with their errors, and invalid lines."""

    predictions: list[Prediction]
    problems: list[Problem] = field(default_factory=list)
    studies: list[tuple[Study, list[Row]]] = field(default_factory=list)  # of all predicted rows, to explain them

    def groups(self) -> list[Group]:
        """The error of each source; a source with several kinds of records has a group for each."""
        return [group_of(name, rows) for name, rows in by_source(self.predictions).items()]

    def parts(self) -> list[Group]:
        """The error of kernels by version, for sources with several versions."""
        return [group_of(name, rows) for name, rows in by_version(self.predictions).items()]

    def totals(self) -> list[Group]:
        """The error of all rows of a kind."""
        return [group_of(name, rows) for name, rows in by_kind(self.predictions).items()]

    def shares(self) -> list[Group]:
        """The error of all predicted rows by share and kind, and by dense models and mixtures of experts."""
        members = {}
        for share in SHARES:
            kinds = by_kind([p for p in self.predictions if p.record.share == share and p.predicted is not None])
            for name, rows in kinds.items():
                kind, _, part = name.removeprefix("all ").partition(": ")
                members[f"{share}: {kind}: {part or 'all'}"] = rows
        return [group_of(name, rows) for name, rows in members.items()]

    def whole(self) -> set[str]:
        """Names of the groups, parts and totals that contain exactly the shipped records."""
        mine, shipped = (
            {
                name: {p.record.id for p in rows}
                for members in (by_source, by_version, by_kind)
                for name, rows in members(predictions).items()
            }
            for predictions in (self.predictions, [Prediction(record) for record in read_records()[0]])
        )
        return {name for name, held in mine.items() if held == shipped.get(name)}

    def worst(self, count: int = 10) -> list[Prediction]:
        """The predictions farthest from the measurement."""
        predicted = [p for p in self.predictions if p.ratio is not None]
        return sorted(predicted, key=lambda p: -abs(np.log(p.ratio or 1.0)))[:count]

    def explain(self, identity: str) -> Explanation:
        """Derive the prediction of one record. PerfgridError for an unknown or unpredicted one."""
        known = {p.record.id: p for p in self.predictions}
        if identity not in known:
            raise PerfgridError(f"no record {identity!r}{nearest(identity, known)}")
        found = known[identity]
        for study, rows in self.studies:
            for row in rows:
                if row.label == found.label and not found.reasons:
                    return explain(study, row.quantity, {"row": found.label})
        raise PerfgridError(f"record {identity!r} is not predicted: {'; '.join(found.reasons)}")

    def summary(self) -> dict[str, Any]:
        """The errors by group, the worst rows and the reasons, as plain data."""
        return {
            "groups": {g.name: g.stated() for g in self.groups()},
            "parts": {g.name: g.stated() for g in self.parts()},
            "totals": {g.name: g.stated() for g in self.totals()},
            "worst": [p.stated() for p in self.worst()],
            "reasons": dict(Counter(p.reasons[0] for p in self.predictions if p.reasons).most_common()),  # the first
        }

    def assumed(self) -> dict[str, list[str]]:
        """The default software used for records without one, by group, for sources without conventions."""
        found: dict[str, set[str]] = {}
        for p in self.predictions:
            if p.software and guessed(p.record):
                found.setdefault(p.record.group, set()).add(p.software)
        return {group: sorted(names) for group, names in found.items()}

    def as_json(self) -> dict[str, Any]:
        """The summary, and every record with its prediction or the reason why there is none, for programs."""
        records = [
            {
                "id": p.record.id,
                "predicted": p.predicted,
                "measured": p.record.value,
                "reason": "; ".join(p.reasons) or None,
                "software": p.software or None,
            }
            for p in self.predictions
        ]
        return {**self.summary(), "records": records, "problems": [asdict(p) for p in self.problems]}

    def dataset(self) -> xr.Dataset:
        """Every record on one axis: measured, predicted (NaN where it is not), baseline, reason, its largest part."""
        rows = self.predictions

        def text(values: Iterable[str]) -> tuple[str, np.ndarray]:
            return "record", np.array(list(values), dtype=object)

        def numbers(values: Iterable[float | None], name: str) -> tuple[str, np.ndarray, dict[str, str]]:
            array = np.array([np.nan if v is None else v for v in values], dtype=float)
            return "record", array, {"long_name": name}

        return xr.Dataset(
            {
                "measured": numbers((p.record.value for p in rows), "Measured value in SI"),
                "predicted": numbers((p.predicted for p in rows), "Predicted value in SI"),
                "low": numbers((p.ends and p.ends[0] for p in rows), "Low end of the 90 % prediction interval"),
                "high": numbers((p.ends and p.ends[1] for p in rows), "High end of the 90 % prediction interval"),
                "baseline": numbers((p.baseline for p in rows), "Prediction of one constant per device and precision"),
                "reason": text("; ".join(p.reasons) for p in rows),
                "largest_part": text(p.largest_part for p in rows),
                "largest_part_share": numbers((p.largest_part_share for p in rows), "Share of the largest part"),
            },
            {
                "record": text(p.record.id for p in rows),
                "group": text(p.record.group for p in rows),
                "kind": text(p.record.kind for p in rows),
                "share": text(p.record.share for p in rows),
                "quantity": text(p.record.quantity for p in rows),
                "unit": text(UNITS[p.record.quantity] for p in rows),
                "device": text(p.record.device for p in rows),
                "source": text(p.record.source.title for p in rows),
            },
            {"title": "perfgrid: predictions beside published measurements"},
        )


def validate(
    paths: Iterable[str | Path | Measured] | str | Path = (),
    group: str | None = None,
    catalog: Catalog | None = None,
    bulk: bool = False,
) -> Validation:
    """Compare predictions with measurements, in one evaluation.

    Parameters
    ----------
    paths
        Records (.jsonl), tables, logs, benchmark results and traces, or folders of them; where one is a
        `perfgrid.validation.measurements.measured.Measured`, it states what the file leaves open. Default: the records
        of perfgrid.
    group
        Keep one source; the baseline is that of all.
    catalog
        A loaded catalog. Default: the built-in one.
    bulk
        Predict records of tier bulk, too.

    Returns
    -------
    Validation
        ``predictions`` with their prediction intervals, ``problems`` (malformed lines), `summary` of errors by source,
        `dataset` with a row per record, and `explain`.

    Raises
    ------
    PerfgridError
        For files that cannot be read or contain no valid record, and for an unknown group.
    """
    catalog = catalog or load_catalog()
    files = record_files([paths] if isinstance(paths, str | Path) else paths)
    records, problems = read_records(files, catalog)
    if not records:
        first = f"{problems[0].place}: {problems[0].reason}" if problems else "the file is empty"
        raise PerfgridError(f"no valid record in {', '.join(map(str, files))}: {first}")
    if group is not None:
        known = {r.group for r in records}
        if group not in known:
            raise PerfgridError(f"no record belongs to group {group!r}{nearest(group, known)}")
    unscored = {r.id: ("tier bulk: not scored unless asked for",) for r in records if r.tier == "bulk" and not bulk}
    scored = [r for r in records if r.id not in unscored]
    found, studies = {}, []
    for workload, (mapper, _, _) in WORKLOAD_ROWS.items():
        mine = [r for r in scored if workload_of(r) == workload]
        whole = workload == "pools"
        mapped = two_pools.mapped(mine, catalog) if whole else designs(mine, catalog, registry_of(workload), mapper)
        unscored |= mapped.unpredicted
        predicted, study = _evaluated(mapped, workload, group)
        found |= predicted
        studies += [(study, mapped.rows)] if study is not None else []
    predictions = [found.get(r.id) or Prediction(r, unscored[r.id]) for r in records]
    compared = [p for p in _with_baseline(predictions) if group in (None, p.record.group)]
    return Validation(compared, problems, studies)


WORKLOAD_ROWS: dict[str, tuple[type[Mapper], tuple[Callable[..., Any], ...], tuple[str, ...]]] = {
    "training": (Mapper, FORMULAS, OUTPUTS),
    "inference": (inference.InferenceMapper, inference.FORMULAS, inference.OUTPUTS),
    "sequence_mixer": (mixers.MixerMapper, mixers.FORMULAS, mixers.OUTPUTS),
    "collectives": (collectives.CollectiveMapper, (), collectives.OUTPUTS),
    "pools": (two_pools.PoolMapper, (), two_pools.OUTPUTS),
}


def workload_of(record: Record) -> str:
    """The workload that predicts a record."""
    if record.kind == "collective":
        return "collectives"
    if two_pools.two_pools(record):
        return "pools"
    return "inference" if inference.serves(record) else "sequence_mixer" if mixers.mixes(record) else "training"


def _evaluated(mapped: Designs, workload: str, group: str | None = None) -> tuple[dict[str, Prediction], Study | None]:
    """Predictions of all rows by record; intervals of the steps of one group, or of all."""
    if not mapped.rows:
        return {}, None
    _, formulas, outputs = WORKLOAD_ROWS[workload]
    study = Study.make(
        mapped.catalog,
        formulas,
        title="published measurements",
        workload=workload,
        outputs=list(outputs),
        dtype="float64",
        axes={"row": mapped.axis()},
    )
    result = evaluated(study, study.plan(WHOLE))  # without its origin, which nobody keeps
    broken = violated(result, mapped.rows)
    chosen = fastest(mapped.rows, result, broken)
    shown = [i for i in chosen if group in (None, mapped.rows[i].record.group)]
    steps = [i for i in shown if mapped.rows[i].quantity == "step_time"]
    ends = dict(zip(steps, intervals(study, [(i,) for i in steps]), strict=True))
    for i in (i for i in steps if guessed(mapped.rows[i].record)):
        ends[i] = with_guess(ends[i], mapped.catalog, mapped.rows[i].columns["software"])
    columns = {str(name): column(array, len(mapped.rows)) for name, array in result.data_vars.items()}
    found: dict[str, Prediction] = {}
    for i in chosen:
        row, at = mapped.rows[i], {name: values[i] for name, values in columns.items()}
        found[row.record.id] = replace(
            _prediction(row, at, broken[i]),
            fitted=_fitted(mapped.catalog, row),
            software=row.columns.get("software", ""),
            interval=ends.get(i),
            tuned=row.tuned,
        )
    return found, study


def _fitted(catalog: Catalog, row: Row) -> tuple[str, ...]:
    """The constants of a row's software that were fitted to step times, by name and the entries that share them."""
    if "software" not in row.columns:
        return ()
    entry = catalog.entry("software", row.columns["software"])
    shared = {name: d.calibration or entry.name for name, d in entry.details.items() if d.confidence == CALIBRATED}
    return tuple(f"{entries}.{name}" for name, entries in shared.items() if row.quantity == "step_time")


def _prediction(row: Row, at: dict[str, Any], broken: dict[str, str]) -> Prediction:
    record = row.record
    if broken and record.kind != "kernel":
        return Prediction(record, tuple(f"not modelled: {reason}" for reason in broken.values()), label=row.label)
    parts: dict[str, float] = {}
    fits = [bool(at[name]) for name in FITS if name in at]
    if two_pools.two_pools(record):
        parts = two_pools.request_parts(at, record)
    elif record.kind == "inference":
        parts = request_parts(at, 0.0 if record.quantity == "time_to_first_token" else None)
    elif record.quantity == "step_time":
        parts = {name: float(at[name]) for name in BREAKDOWN}
    elif np.ndim(at[row.quantity]):
        parts = dict(zip(INNER.labels["resource"], map(float, at[row.quantity]), strict=True))
    elif record.quantity in ("peak_memory", "allocator_memory"):
        parts = {name: float(at[name]) for name in ("state_memory", "activation_memory")}
    largest = max(parts, key=lambda name: parts[name], default="")
    return Prediction(
        record,
        predicted=float(np.sum(at[row.quantity])),
        work=work_of(row, at),
        done=done_by_a_device(row, at),
        largest_part=largest,
        largest_part_share=parts[largest] / sum(parts.values()) if largest else None,
        fits=all(fits) if record.kind not in ("kernel", "collective") else None,
        label=row.label,
    )


def _with_baseline(predictions: list[Prediction]) -> list[Prediction]:
    """The same with what the trivial baseline says of the predicted rows, fitted on these rows."""
    rows = [p for p in predictions if p.predicted is not None]
    values = constant_rate([p.work for p in rows], [p.record.value for p in rows], [kind_of(p.record) for p in rows])
    fitted = {p.record.id: value for p, value in zip(rows, values, strict=True)}
    return [replace(p, baseline=fitted.get(p.record.id)) for p in predictions]
