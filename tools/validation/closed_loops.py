"""``python -m tools.validation.closed_loops``: first tokens and times per token of closed loops of clients.

Errors are ln(predicted / measured): the median and 90th percentile of magnitudes, and the median with sign; in all, for
rows that no version or no warm-up makes hard to trust, and by cell, with those of aiconfigurator on the same rows
beside. One constant of each engine was read off these rows, its time outside the passes (``front_end_time``): it is
estimated anew without each model and each device, which are then predicted.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfgrid.catalog import Catalog, load_catalog
from perfgrid.printing.console import out
from perfgrid.printing.tables import print_table
from perfgrid.validation.groups import Prediction
from perfgrid.validation.validate import validate

from . import FOLDER, SERVING

Rows = Any  # a table of pandas, with columns as attributes
PEER = FOLDER / "serving_peer.csv"
FIRST, LATER = "time_to_first_token", "time_per_output_token"
CELL = ["model", "device", "software", "weights"]
TWIN = [*CELL, "devices", "tp", "dp", "ep", "prompt", "output", "clients"]
TIMES = np.arange(0.0, 0.0605, 0.0025)  # seconds outside the passes among which the best one is chosen


def frame(predictions: Iterable[Prediction]) -> Rows:
    """One row for each predicted record, with what distinguishes cells."""
    rows = []
    for p in predictions:
        record, plan, work = p.record, p.record.plan, p.record.workload
        if p.predicted is None or plan is None or work is None or record.model is None:
            continue
        rows.append(
            {
                "quantity": record.quantity,
                "model": record.model.name,
                "moe": record.model.moe is not None,
                "device": record.device,
                "software": p.software,
                "source": record.group.partition("_")[0],
                "weights": work.weight_precision,
                "devices": record.devices,
                **{name: getattr(plan, name) or 1 for name in ("tp", "dp", "ep")},
                "prompt": work.prompt_tokens,
                "output": work.output_tokens,
                "clients": work.batch,
                "unstated": re.search("version not stated", record.note) is not None,
                "cold": "no warm-up requests" in record.note,
                "measured": record.value,
                "predicted": p.predicted,
            }
        )
    found: Rows = pd.DataFrame(rows)
    found["error"] = np.log(found.predicted / found.measured)
    spread = found.groupby([*TWIN, "quantity"]).measured.transform(lambda values: values.max() / values.min())
    found["twins_differ"] = spread > 2
    return found


def errors(rows: Rows) -> list[str]:
    """Median and 90th percentile of magnitudes and the median with sign, of first tokens and of later ones."""
    found = []
    for quantity in (FIRST, LATER):
        of = rows.error[rows.quantity == quantity]
        size = of.abs()
        found.append(f"{size.median():.3f} / {size.quantile(0.9):.2f} / {of.median():+.2f}" if len(of) else "")
    return found


def by_cell(rows: Rows) -> list[list[str]]:
    """A line for each model, device, engine and weights, aiconfigurator's errors beside."""
    peer: Rows = pd.read_csv(PEER, comment="#").set_index(["model", "device", "engine", "weights"])
    lines = []
    for cell, own in rows.groupby(CELL, sort=True):
        beside = ["", ""]
        if cell in peer.index:
            at = peer.loc[cell]
            beside = [
                f"{at[f'{q}_median']:.2f} / {at[f'{q}_p90']:.2f} / {at[f'{q}_bias']:+.2f}" for q in ("ttft", "tpot")
            ]
        first, later = errors(own)
        lines.append([*(str(c) for c in cell), str(len(own) // 2), first, beside[0], later, beside[1]])
    return lines


def parts(rows: Rows) -> list[tuple[str, Rows]]:
    """All rows, dense models and mixtures, and rows that are shown apart."""
    apart: Rows = rows.unstated | rows.twins_differ | rows.cold
    return [
        ("all", rows),
        ("dense models", rows[~rows.moe]),
        ("mixtures of experts", rows[rows.moe]),
        *((f"runs of {name}", rows[rows.source == name]) for name in sorted(set(rows.source))),
        ("version unstated", rows[rows.unstated]),
        ("no warm-up requests", rows[rows.cold]),
        ("a twin differs by more than 2", rows[rows.twins_differ]),
        ("none of these three", rows[~apart]),
    ]


def left_out(rows: Rows, catalog: Catalog) -> list[list[str]]:
    """Each model and each device predicted with the time outside the passes that the other rows of its engine give."""
    first = rows[rows.quantity == FIRST].copy()
    own = {name: catalog.entry("software", name).values["front_end_time"] for name in set(first.software)}
    first["inside"] = first.predicted - first.software.map(own)
    lines = []
    for kind in ("model", "device"):
        every = []
        for name in sorted(set(first[kind])):
            again = []
            for software, engine in first.groupby("software"):
                others, out_ = engine[engine[kind] != name], engine[engine[kind] == name]
                if len(others) and len(out_):
                    size = [np.abs(np.log((others.inside + t) / others.measured)).median() for t in TIMES]
                    best = float(TIMES[int(np.argmin(size))])
                    again.append((software, best, np.log((out_.inside + best) / out_.measured)))
            if again:
                left: Rows = pd.concat([error for _, _, error in again])
                times = ", ".join(f"{software} {1e3 * best:.3g} ms" for software, best, _ in again)
                lines.append([name, str(len(left)), _size(left), _size(first[first[kind] == name].error), times])
                every.append(left)
        if every:
            left = pd.concat(every)
            lines.append([f"each {kind}", str(len(left)), _size(left), _size(first.loc[left.index].error), ""])
    return lines


def _size(error: Rows) -> str:
    """Median and 90th percentile of the magnitudes of errors."""
    return f"{error.abs().median():.3f} / {error.abs().quantile(0.9):.2f}"


def main() -> None:
    """Print all tables, of record files or of those that are shipped."""
    parser = ArgumentParser(prog="python -m tools.validation.closed_loops", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    given, catalog = parser.parse_args(), load_catalog()
    rows = frame(validate(given.files or SERVING, catalog=catalog).predictions)
    beside = "first token, time per token: median / 90th percentile / bias of ln(predicted / measured)"
    print_table(["rows", "configurations", "first token", "time per token"],
                [[name, str(len(part) // 2), *errors(part)] for name, part in parts(rows)])  # fmt: skip
    out.print(beside)
    out.print("")
    heads = [*CELL, "rows", "first token", "aiconfigurator", "time per token", "aiconfigurator"]
    print_table(heads, by_cell(rows))
    out.print("")
    out.print("first tokens with front_end_time estimated without the model or device")
    print_table(["left out", "rows", "left out", "with it", "estimated"], left_out(rows, catalog))


if __name__ == "__main__":
    main()
