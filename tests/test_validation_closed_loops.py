"""Closed loops of clients: the table of records, errors on it, and what was read off it left out."""

import math
import shutil
import subprocess
import sys
from typing import cast

import numpy as np
import pandas as pd
import pytest

from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.validation.schema import read_records
from perfgrid.validation.validate import validate
from tools.validation import SERVING
from tools.validation.closed_loops import CELL, FIRST, LATER, PEER, errors, frame, left_out

TABLE = SERVING / "closed_loops.csv"


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    """Every twelfth configuration."""
    folder = tmp_path_factory.mktemp("some")
    head, *lines = TABLE.read_text().splitlines()
    (folder / TABLE.name).write_text("\n".join([head, *lines[::12]]) + "\n")
    shutil.copy(TABLE.with_suffix(".toml"), folder)
    return folder / TABLE.name


def test_a_row_of_the_table_is_a_record_for_each_measured_value(some):
    records, problems = read_records([some])
    assert not problems
    assert len({record.id for record in records}) == len(records) == 2 * len(some.read_text().splitlines()[1:])
    first, later = records[:2]
    assert first.plan
    assert first.workload
    assert first.engine
    assert first.model
    assert (first.quantity, later.quantity) == (FIRST, LATER)
    assert first.id == "llama-3.1-70b-b200_sxm-trtllm-fp4-tp2dp1etp0ep0-1024x1024-c8-ttft"
    assert (first.value, later.value) == pytest.approx((0.23237, 0.0089114))
    assert (first.plan.tp, first.plan.pp, first.plan.zero) == (2, 1, None)
    assert (first.workload.batch, first.workload.requests, first.workload.kv_precision) == (8, 80, "fp8")
    assert (first.engine.gathering_steps, first.engine.polling_steps) == (20, None)
    assert first.model.layers == 80


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("device,devices", "devise,devices", 1), "column 'devise' is no field of a record"),
        (lambda text: text.replace("Llama3.1-70B", "Llama3.1-71B", 1), "'Llama3.1-71B' is none of [models]"),
    ],
)
def test_mistakes_of_a_table_are_one_line(change, message, some, tmp_path):
    table = tmp_path / some.name
    table.write_text(change(some.read_text()))
    with pytest.raises(PerfgridError, match=r"needs closed_loops\.toml beside it"):
        read_records([table])
    shutil.copy(some.with_suffix(".toml"), tmp_path)
    with pytest.raises(PerfgridError) as mistake:
        read_records([table])
    assert message in str(mistake.value)
    assert "\n" not in str(mistake.value)


def bounded(rows):
    """First tokens and times per token keep the bounds that were asked for."""
    for quantity, median, far in ((FIRST, 0.30, 1.0), (LATER, 0.10, 0.30)):
        size = rows.error[rows.quantity == quantity].abs()
        assert size.median() < median, quantity
        assert size.quantile(0.9) < far, quantity


def test_some_closed_loops_are_met(some):
    bounded(frame(validate([some]).predictions))


@pytest.mark.slow
def test_all_closed_loops_are_met_and_a_cell_left_out_is_not_far_worse():
    found = validate(SERVING)
    assert all(p.predicted for p in found.predictions)
    rows = frame(found.predictions)
    bounded(rows)
    peer = pd.read_csv(PEER, comment="#")
    assert set(map(tuple, peer[["model", "device", "engine", "weights"]].values)) == set(rows.groupby(CELL).groups)
    for name, _, left, kept, _ in left_out(rows, load_catalog()):
        assert float(left.split(" / ")[0]) < float(kept.split(" / ")[0]) + 0.1, name


def test_the_time_outside_the_passes_is_estimated_from_other_rows():
    """Two models whose first tokens take 20 and 40 ms beside their passes: each is predicted with the other's."""
    own = float(cast(float, load_catalog().entry("software", "vllm").values["front_end_time"]))
    rows = pd.DataFrame({"model": ["a", "b"], "device": "x", "software": "vllm", "quantity": FIRST})
    rows["predicted"], rows["measured"] = own + 0.1, [0.12, 0.14]
    rows["error"] = np.log(rows.predicted / rows.measured)
    lines = {line[0]: line for line in left_out(rows, load_catalog())}
    assert lines["a"][4] == "vllm 40 ms"
    assert lines["a"][2].startswith(f"{math.log(0.14 / 0.12):.3f}")
    assert lines["b"][4] == "vllm 20 ms"
    assert errors(rows)[1] == ""


def test_the_command_prints_cells_with_a_peer_beside(some):
    command = [sys.executable, "-m", "tools.validation.closed_loops", str(some)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "mixtures of experts" in printed
    assert "aiconfigurator" in printed
    assert "left out" in printed
