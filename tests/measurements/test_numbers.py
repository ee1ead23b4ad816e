"""A number of a log, a result or a trace is read whole, or refused with file and line: none is dropped or cut."""

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgrid import PerfgridError
from perfgrid.catalog.numerals import amount, count, number
from perfgrid.validation.measurements.measured import Measured
from perfgrid.validation.schema import read_records
from tests.each import each

from . import logs
from .given import BASE, read, table

WHOLE = {"5,444": 5444.0, "5444.9": 5444.9, "5.4449e3": 5444.9, "+5444": 5444.0, "1,234,567.5": 1234567.5, ".5": 0.5}
NONE = ["5,44", "5,4444", "5_444", "5.444,9", "1.2.3", "--5", "5 444", "0x10", "", "x", "ms", "\u0665", "1e", ",5", "."]
NOT_FINITE = ["nan", "inf", "-inf", "Infinity", "1e400", "1e308", "9" * 400]
NOT_POSITIVE = ["0", "-1", "-5,444", "0.0"]
MODEL = {"model": "llama-3.1-8b"}


@each("of", [number, amount, count])
def test_numbers_are_whole_or_refused(of):
    for text, value in WHOLE.items():
        if of is not count or value == int(value):
            assert of(text, "x") == value
    for text in (*NONE, *NOT_FINITE, None, True, {}, [], math.nan, math.inf, 10**400, 1e31):
        with pytest.raises(PerfgridError, match=r"^here needs a "):
            of(text, "here")
    for text in NOT_POSITIVE if of is not number else ():
        with pytest.raises(PerfgridError, match=r"^here must be above zero, found "):
            of(text, "here")
    if of is count:
        for text in ("5.5", "1e-3", "1e16"):
            with pytest.raises(PerfgridError, match=r"^here needs a whole number"):
                of(text, "here")


@given(st.floats(-1e29, 1e29), st.integers(-(10**14), 10**14))
def test_what_python_writes_is_read(real, whole):
    for value in (real, whole):
        for text in (repr(value), f"{value:,}", f"{value:e}", f" {value} "):
            assert number(text, "x") == pytest.approx(float(value), rel=1e-6, abs=1e-300)


# -- one number of a file is another word ----------------------------------------------------------------------------


def changed(text, pattern, word, which=5):
    """A text of which one number, the group of a pattern, is another word; and its line."""
    found = list(re.finditer(pattern, text))[which]
    return text[: found.start(1)] + word + text[found.end(1) :], text[: found.start(1)].count("\n") + 1


NUMBERS = {  # kind -> what is damaged, as the message calls it, and where it stands in the file
    "megatron": [
        ("elapsed time per iteration (ms)", r"\(ms\): ([\d.]+)"),
        ("iteration", r"iteration +(\d+)/"),
        ("global batch size", r"global batch size: +(\d+)"),
    ],
    "torchtitan": [("tps", r"tps: ([\d,]+)"), ("step", r"step: +(\d+)"), ("memory", r"memory: +([\d.]+)GiB")],
}


FIRST = "iteration"  # which may be 0, as a step


@each("kind, what, pattern", [(k, w, p) for k, held in NUMBERS.items() for w, p in held])
def test_a_number_of_a_step_is_never_dropped(tmp_path, kind, what, pattern):
    path, text = tmp_path / "run.log", logs.sound_files()[kind]
    options = {"on": "h100-sxm-80gb"} if kind == "megatron" else {}
    sound = read(path_of(path, text), **options)[0].value
    words = [w for w in (*NONE, *NOT_FINITE, *NOT_POSITIVE) if w and (kind == "megatron" or " " not in w)]
    words = [w for w in words if (what, w) not in ((FIRST, "0"), (FIRST, "0.0"), ("step", "0"), ("step", "0.0"))]
    for word in words:
        damaged, line = changed(text, pattern, word, which=3)
        with pytest.raises(PerfgridError) as error:
            read(path_of(path, damaged), **options)
        assert f"run.log:{line}: " in str(error.value)
        assert what in str(error.value), word
    if what in ("elapsed time per iteration (ms)", "tps"):
        for word in ("0", ""):
            with pytest.raises(PerfgridError, match=r"run.log:\d+: "):
                read(path_of(path, changed(text, pattern, word, which=3)[0]), **options)
        same = f"{float(re.findall(pattern, text)[3].replace(',', '')):,}"  # with commas between thousands
        assert read(path_of(path, changed(text, pattern, same, which=3)[0]), **options)[0].value == sound


def path_of(path, text):
    path.write_text(text)
    return path


def test_thousands_of_milliseconds_are_thousands(tmp_path):
    text = logs.sound_files()["megatron"]
    grouped = re.sub(r"\(ms\): ([\d.]+)", lambda found: f"(ms): {float(found[1]):,}", text)
    assert "(ms): 9,0" in grouped
    values = [read(path_of(tmp_path / "run.log", t), on="h100-sxm-80gb")[0].value for t in (text, grouped)]
    assert values[0] == values[1] > 9


@pytest.mark.parametrize("word", ["-128", "NaN", "1e308", "[]", '"many"', "9" * 400])
@pytest.mark.parametrize(
    ("what", "pattern"),
    [("global_batch_size", r'"global_batch_size", "value": (\d+)'), ("throughput", r'"throughput": ([\d.]+)')],
)
def test_batches_and_statistics_of_mllog(tmp_path, job, word, what, pattern):
    damaged, line = changed(logs.sound_files()["mllog"], pattern, word, which=0)
    told = "value" if len(word) == 400 else what  # a number that no reader of JSON may hold
    with pytest.raises(PerfgridError, match=rf"run.log:{line}: {told}"):
        read(path_of(tmp_path / "run.log", damaged), job=(job,), on="h100-sxm-80gb")


def test_blocks_that_run_backwards(tmp_path, job):
    events = [(0, "global_batch_size", 128, {}), (0, "max_sequence_length", 8192, {})]
    for n in range(5):
        events += [
            (1000 * n, "block_start", None, {"step": 10 * n}),
            (900 + 1000 * n, "block_stop", None, {"step": 10 * n + 10}),
        ]
    options = {"job": (job,), "on": "h100-sxm-80gb"}
    assert read(path_of(tmp_path / "r.txt", logs.mllog(events)), **options)[0].value == pytest.approx(0.09)
    late: list[Any] = [*events]
    back: list[Any] = [*events]
    late[5] = (500, *events[5][1:])
    with pytest.raises(PerfgridError, match=r"r.txt:6: the time of the block that begins in line 5 must be above zero"):
        read(path_of(tmp_path / "r.txt", logs.mllog(late)), **options)
    back[5] = (*events[5][:3], {"step": 5})
    with pytest.raises(PerfgridError, match=r"r.txt:6: the growth of step in a block must not be negative"):
        read(path_of(tmp_path / "r.txt", logs.mllog(back)), **options)
    empty = [*events, (9000, "block_start", None, {"step": 50}), (9100, "block_stop", None, {"step": 50})]
    found = read(path_of(tmp_path / "r.txt", logs.mllog(empty)), **options)[0]
    assert "1 without a number of steps are left out" in found.note


@each("place", [0, 3, 4, 5])
def test_a_line_of_collectives_is_never_dropped(tmp_path, place):
    text = logs.sound_files()["nccl-tests"]
    row = text.splitlines()[-1].split()
    columns = [0, 1, 2, 5, 6, 7]  # size, count, type, time, algbw, busbw
    for word in ("-1", "nan", "x1", "1e308", "1,07", "0x10", "9" * 400):
        damaged = [*row]
        damaged[columns[place]] = word
        (tmp_path / "all_reduce.txt").write_text(text.replace(text.splitlines()[-1], " ".join(damaged)))
        with pytest.raises(PerfgridError, match=r"all_reduce.txt:\d+: (size|time|algbw|busbw) "):
            read(tmp_path / "all_reduce.txt")


@each("word", ["nan", "-50", "0", "Infinity", "1e999", '"x"', "[]", "{}", "9" * 400, "9" * 5000])
def test_results_of_serving(tmp_path, word):
    for kind, key, name in (("vllm", "mean_ttft_ms", "mean_ttft_ms"), ("genai-perf", "avg", "avg of request_latency")):
        text = logs.sound_files()[kind]
        start = text.index(f'"{key}"', text.index("request_latency") if kind == "genai-perf" else 0)
        found = re.compile(r": ([\d.]+)").search(text, start)
        assert found is not None
        damaged = text[: found.start(1)] + ("NaN" if word == "nan" else word) + text[found.end(1) :]
        with pytest.raises(PerfgridError, match=f"{name} |integer of more than 308 digits"):
            read(path_of(tmp_path / "r.json", damaged), on="h100-sxm-80gb", stated=MODEL)


def test_cells_of_tables(tmp_path):
    row = list(BASE.values())
    for word in ("5,44", "nan", "-4", "0", "1e400", "4_0", "4s"):
        path = table(tmp_path, [*BASE, "step_time"], [*row, f'"{word}"'], name="sweep.csv")
        _, (problem,) = read_records([Measured(path)])
        assert problem.place.endswith("sweep.csv:2")
        assert problem.reason.startswith("step_time "), word
    for header in ([*BASE, "tp", "step_time"], [*BASE, "tensor_parallel_size", "step_time"]):
        with pytest.raises(PerfgridError, match="two columns state tp: keep one of them"):
            read(table(tmp_path, header, [*row, 4, 4.0], name="sweep.csv"))
    with pytest.raises(PerfgridError, match="two columns state step_time"):
        read(table(tmp_path, [*BASE, "step_time", "step_time"], [*row, 4.0, 4000], name="sweep.csv"))
    path = table(tmp_path, [*BASE, "note", "step_time"], [*row, '"open', 4.0], [*row, "closed", 4.0], name="sweep.csv")
    (record,), (problem,) = read_records([Measured(path)])
    assert (record.value, record.note) == (4.0, "closed")
    assert "not valid CSV" in problem.reason


# -- traces ----------------------------------------------------------------------------------------------------------

BAD = [
    ("null", "traceEvents must be a list of events, found None"),
    ("{}", "traceEvents must be a list of events"),
    ('[{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": {}}]', r"traceEvents\[0\] \('gemm'\): dur needs a"),
    (
        '[{"ph": "X", "cat": "kernel", "name": "gemm", "ts": NaN, "dur": 5}]',
        "ts needs a finite number below 1e.30, found nan",
    ),
    ('[{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": -5}]', "dur must not be negative, found -5"),
    ('[{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1}]', "dur needs a number, found None"),
    ('[{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 1e999}]', "dur needs a finite number"),
    ('[{"ph": "X", "cat": "kernel", "ts": 1, "dur": 2, "args": [1]}]', "args must be a table"),
    (f'[{{"ph": "X", "cat": "kernel", "ts": 1, "dur": {"9" * 400}}}]', "integer of more than 308 digits"),
    (f'[{{"ph": "X", "cat": "kernel", "ts": 1, "dur": {"9" * 5000}}}]', "integer of more than 308 digits"),
    ("[" * 3000 + "]" * 3000, "more than 64 tables or lists"),
    ('[{"ph": "X", "ts": 1, "ts": 2}]', "the key 'traceEvents.ts' stands twice: 1 and 2"),
    ("[]", "no kernels on a device"),
]


@each("events, message", BAD)
def test_traces_that_are_none(tmp_path, events, message):
    path = tmp_path / "trace.json"
    path.write_text(f'{{"deviceProperties": [], "traceEvents": {events}}}')
    with pytest.raises(PerfgridError, match=message):
        read(path, on="h100-sxm-80gb", stated=MODEL)


def test_operators_that_did_not_end_do_not_matter(tmp_path, job):
    """Profilers write a negative duration for an operator that runs when the profile ends."""
    events = [logs.kernel("gemm", 10, 20), {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 5, "dur": -5}]
    (found,) = read(path_of(tmp_path / "t.json", json.dumps({"traceEvents": events})), job=(job,), on="h100-sxm-80gb")
    assert found.value == pytest.approx(20e-6)
