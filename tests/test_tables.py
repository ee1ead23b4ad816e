"""Tables fit a terminal and a pipe: no line is longer, what is left out is named, and no number has an exponent."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

import perfgrid as pg
import perfgrid.cli.run as run_module
from perfgrid.catalog import load_catalog
from perfgrid.catalog.units import in_unit
from perfgrid.cli import main as cli
from perfgrid.formulas import WORKLOADS, registry_of
from perfgrid.printing import console, tables
from perfgrid.text.numbers import READ_BACK, bare_unit, column, count_text, label_text, number, units_of, whole_number
from perfgrid.validation.schema import SHIPPED
from tests.paths import EXAMPLES, study_path

FEWER = {  # points of studies that take long
    "quickstart": ["axes.hbm_bandwidth={scale=[1.0]}"],
    "serving": [
        "axes.requests_of={labels=['chat'], zip={prompt_tokens=[512], output_tokens=[256]}}",
        "axes.parallelism={devices=[8], tp=[1, 8], ep=[1, 8], pp=[1]}",
        "axes.batch=[64, 1024]",
    ],
}
KORTHIKANTI = str(study_path("korthikanti"))
NODES = str(study_path("node_scaling"))
EXPONENT = re.compile(r"\d[eE][-+]?\d")


@contextlib.contextmanager
def terminal(width):
    """A stream to a pseudo-terminal, and what arrives there."""
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    found = []

    def collect():
        with contextlib.suppress(OSError):  # raised where the other end is closed
            while data := os.read(reading, 65536):
                found.append(data)

    reader = threading.Thread(target=collect)
    reader.start()
    with open(writing, "w", encoding="utf-8") as stream:
        yield stream, found
    reader.join()
    os.close(reading)


def printed(arguments, width, in_terminal=False):
    """The lines that a command prints in a pipe with COLUMNS or in a terminal."""
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | (
        {} if in_terminal else {"COLUMNS": str(width)}
    )
    pipe = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment, clear=True))
        stack.enter_context(mock.patch.object(sys, "argv", ["perfgrid", *map(str, arguments)]))
        errors = stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stream, found = stack.enter_context(terminal(width)) if in_terminal else (pipe, [])
        stack.enter_context(contextlib.redirect_stdout(stream))
        stop = stack.enter_context(pytest.raises(SystemExit))
        cli.main()
    assert stop.value.code in (0, None), errors.getvalue()
    text = b"".join(found).decode() if in_terminal else pipe.getvalue()
    return text.replace("\r\n", "\n").splitlines()


def assert_fits(lines, width):
    """No line is longer than the width, none is cut, and no number has an exponent."""
    assert max(map(cell_len, lines)) <= width, max(lines, key=cell_len)
    assert "…" not in "".join(lines)
    assert [line for line in lines if EXPONENT.search(line)] == []


def columns_printed():
    """The names of the columns of tables, as they are printed."""
    names, original = [], tables._print

    def remembered(columns, *rows, **how):
        names.extend(c.name.partition(" [")[0] for c in columns)
        original(columns, *rows, **how)

    return names, mock.patch.object(tables, "_print", remembered)


SUMMARY, ROWS = [], ["--rows"]
OTHER = [(80, ROWS), (120, SUMMARY)]  # of the long run; each width and each form are in every run


@pytest.mark.parametrize(
    "forms", [[(80, SUMMARY), (120, ROWS)], pytest.param(OTHER, marks=pytest.mark.slow)], ids=["", "other"]
)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_tables_of_every_study_fit(path, forms):
    """At 80 and 120 columns, as a summary and as rows; one of them in a terminal too."""
    settings = [text for setting in FEWER.get(path.stem, ()) for text in ("--set", setting)]
    two_pools = "\n[prefill" in path.read_text(encoding="utf-8")
    study = (pg.join_pools if two_pools else pg.load_study)(path, FEWER.get(path.stem, ()))
    result = pg.evaluate(study)
    best = study.file.best
    over = [] if best is None else [best.over] if isinstance(best.over, str) else best.over
    fixed = {axis.name for axis in study.space.axes if len(axis) == 1} | {*over, *(best.at if best else ())}
    labels = {axis.name: axis.labels for axis in study.space.axes if axis.name not in fixed}
    with mock.patch.object(run_module, "evaluate", return_value=result):
        for width, form in forms:
            names, spying = columns_printed()
            with spying:
                piped = printed(["run", path, *settings, *form], width)
            assert_fits(piped, width)
            text = " ".join(" ".join(piped).split())
            assert study.file.title in text
            for name in labels:
                unit = "byte" if name == "message_size" else "1"
                assert all(label_text(label, unit) in text for label in labels[name].tolist())
            if form or "--rows prints a row" not in text:
                named = text.partition("not shown: ")[2].partition(" (--wide")[0].split(", ")
                constant = re.findall(r"(\w+) = ", text.partition("in every row: ")[2])
                vectors = text.partition("several values for each design: ")[2].partition(" (-o")[0].split(", ")
                assert set(study.outputs) <= {*names, *named, *constant, *vectors}
                assert study.file.pareto or not set(names) & set(named)  # a front prints some of them again
            if best is not None:
                assert (best.minimize or best.maximize or "") in text
            if width == 80 and not form:
                shown = printed(["run", path, *settings], width, in_terminal=True)
                timeless = [[re.sub(r"in [\d.]+ s;", "", line) for line in lines] for lines in (piped, shown)]
                assert timeless[0] == timeless[1]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "arguments",
    [
        ["catalog", "list"],
        ["formulas"],
        ["formulas", "--workload", "inference"],
        ["plan", NODES, "--all"],
        ["kernels", KORTHIKANTI, "--at", "row=22b full"],
        ["compare", KORTHIKANTI, "--a", "row=22b full", "--b", "row=175b full"],
        ["sensitivity", KORTHIKANTI, "--of", "step_time", "--cross", "--at", "row=22b full"],
        ["uncertainty", KORTHIKANTI, "--of", "step_time,memory_per_device", "--samples", "8"],
        ["uncertainty", KORTHIKANTI, "--of", "step_time", "--method", "tornado", "--at", "row=22b full"],
        ["distribution", KORTHIKANTI, "--of", "step_time", "--bins", "5"],
        ["best", KORTHIKANTI, "--pareto", "step_time,memory_per_device", "--over", "row"],
        ["explain", KORTHIKANTI, "step_time", "--at", "row=22b full"],
        ["validate", str(SHIPPED / "korthikanti.jsonl")],
    ],
    ids=" ".join,
)
def test_tables_of_other_commands_fit(arguments, width):
    lines = printed(arguments, width)
    assert_fits(lines, width)


def test_a_sweep_of_technologies_is_a_pivot():
    """216 groups: nine nodes down, eight memories across, for each of three links; one row each with --rows."""
    lines = printed(["run", NODES], 80)
    assert sum(line.startswith("link = ") for line in lines) == 3
    heads = [line for line in lines if line.startswith("node")]
    assert [head.split()[1:] for head in heads] == [
        ["hbm2", "hbm2e", "hbm3", "hbm3e", "hbm4", "hbm5", "hbm6", "hbm7"]
    ] * 3
    assert sum(bool(re.match(r"n\d+ |a\d\d ", line)) for line in lines) == 27
    assert len(lines) < 50
    rows = printed(["run", NODES, "--rows"], 80)
    layouts = [layout for line in rows if (layout := re.search(r"tp\d+\.pp\d+\.dp\d+", line))]
    assert len(layouts) == 216
    study = pg.load_study(NODES)
    values = pg.best(study).step_time.sel(link="infiniband-ndr", node="n12").values.ravel()
    first = next(line for line in lines if line.startswith("n12"))
    assert [float(text) for text in first.split()[1:]] == pytest.approx(values.tolist(), rel=5e-4)


def test_a_pivot_names_the_labels_that_win():
    path = study_path("collectives")
    lines = printed(["run", path], 80)
    letters = {line[0]: line.partition(" = ")[2] for line in lines if re.match(r"[A-Z]  system = ", line)}
    best = pg.best(pg.load_study(path))
    assert set(letters.values()) == set(best.system.values.ravel().tolist())
    start = lines.index("group_size = 64") + 2
    systems = best.system.sel(group_size=64, collective="all_reduce").values.tolist()
    assert [letters[line.split()[3]] for line in lines[start : start + 7]] == systems


def test_groups_without_a_design_are_letters_with_a_legend():
    dram = study_path("dram_technology")
    lines = printed(["run", dram], 80)
    found = pg.best(pg.load_study(dram)).found
    assert sum(line.split().count("a") for line in lines if line.startswith(("gddr", "hbm", "stacked"))) == int(
        (~found).sum()
    )
    assert any(line.startswith("a  no feasible design; fits_memory forbids most: ") for line in lines)


def test_wide_prints_everything_and_json_is_no_table(capsys):
    names, spying = columns_printed()
    with spying:
        lines = printed(["run", NODES, "--wide"], 80)
    assert set(pg.load_study(NODES).outputs) <= set(names)
    assert max(map(len, lines)) > 200
    assert not any("not shown" in line for line in lines)
    assert max(map(len, printed(["run", KORTHIKANTI], 80))) <= 80  # one command alone is wide
    for options in (["--json", "--wide"], ["--rows", "--json"]):
        with mock.patch.object(sys, "argv", ["perfgrid", "run", NODES, *options]), pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 2
        assert "--json prints no table" in capsys.readouterr().err


def test_a_terminal_gets_its_width_from_a_process():
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    with terminal(80) as (stream, found):
        command = [sys.executable, "-m", "perfgrid", "run", KORTHIKANTI]
        subprocess.run(command, stdout=stream, stderr=subprocess.DEVNULL, env=environment, check=True)
    lines = re.sub(r"\x1b\[[\d;]*m", "", b"".join(found).decode()).replace("\r\n", "\n").splitlines()
    assert_fits(lines, 80)
    assert max(map(len, lines)) > 70


@pytest.mark.parametrize(
    ("stated", "width"),
    [
        ("100", 100),
        ("5", console.LEAST),
        ("0", 120),
        ("-3", 120),
        ("wide", 120),
        ("9" * 50, 120),
        ("٣٣", 120),
        ("", 120),
    ],
)
def test_columns_of_the_environment(monkeypatch, capsys, stated, width):
    with monkeypatch.context() as here:  # pytest itself fails on some of them
        here.setenv("COLUMNS", stated)
        assert console.columns() == width


def test_the_environment_is_stronger_than_the_terminal(monkeypatch):
    with terminal(90) as (stream, _), contextlib.redirect_stdout(stream):
        monkeypatch.delenv("COLUMNS", raising=False)
        own = console.columns()
        monkeypatch.setenv("COLUMNS", "70")
        stated = console.columns()
    assert (own, stated) == (90, 70)


# ---- too narrow -----------------------------------------------------------------------------------------------------

HEADERS = ["device", "layout", "time [s]", "memory [GiB]", "bound by"]
ROWS = [["a", "tp8.cp1.pp16.dp32", "1.5", "40", "arithmetic"], ["b", "tp4.cp1.pp16.dp64", "2.5", "50", "arithmetic"]]


@pytest.mark.parametrize(
    ("width", "dropped"), [(60, []), (50, ["bound by"]), (38, ["bound by", "memory"]), (34, ["bound by", "memory"])]
)
def test_columns_are_left_out_in_order(monkeypatch, capsys, width, dropped):
    monkeypatch.setenv("COLUMNS", str(width))
    tables.print_table(HEADERS, ROWS, HEADERS[2:4], drop=["bound by", "memory [GiB]"], groups=1)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert all(row[1] in text and row[2] in text for row in ROWS)
    words = " ".join(text.split())
    assert (f"not shown: {', '.join(dropped)} (--wide" in words) == bool(dropped)


def test_labels_move_above_their_rows_and_then_rows_become_records(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "28")
    tables.print_table(HEADERS[:3], [row[:3] for row in ROWS], ["time [s]"], groups=1)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("device = ")] == ["device = a", "device = b"]
    monkeypatch.setenv("COLUMNS", "22")
    tables.print_table(HEADERS[:3], [row[:3] for row in ROWS], ["time [s]"], groups=1)
    assert "layout:\n tp8" not in (text := capsys.readouterr().out)
    assert "time [s]: 1.5" in text
    assert all(row[1] in text for row in ROWS)


def test_text_of_files_is_escaped_before_it_is_measured(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    tables.print_table(["a\x1b [s]", "b"], [["\x1b[31m" * 3, "1"]], names=False)
    red = "\\x1b[31m" * 3
    assert capsys.readouterr().out.splitlines() == ["a\\x1b [s]".ljust(len(red) + 2) + "b", f"{red}  1"]


def test_empty_tables_print_nothing(capsys):
    tables.print_table(["a", "b"], [])
    tables.print_table([], [])
    assert capsys.readouterr().out == ""


# ---- numbers --------------------------------------------------------------------------------------------------------

FORMULAS = [f.unit for workload in WORKLOADS for f in registry_of(workload).formulas.values()]
EVERY_UNIT = sorted({*FORMULAS, *(v.unit for v in load_catalog().variables.values()), "points/s"} - {"1"})
SIZES = st.floats(-12, 15, exclude_min=True, exclude_max=True).map(lambda power: 10.0**power)
NUMBERS = st.builds(lambda size, sign: sign * size, SIZES, st.sampled_from([1.0, -1.0]))


def read(text, unit):
    """The number of a text in the unit of a quantity."""
    digits, _, name = text.partition(" ")
    return float(digits.replace(",", "")) * units_of(unit)[name]


@given(value=NUMBERS, unit=st.sampled_from(EVERY_UNIT))
@example(value=8.07404e7, unit="m^2")
@example(value=0.99999, unit="s")
@example(value=1023.97, unit="byte")
@example(value=1e-11, unit="USD/byte")
def test_numbers_have_four_digits_and_no_exponent_and_read_back(value, unit):
    text = number(value, unit)
    digits = text.split(" ")[0]
    assert re.fullmatch(r"-?\d{1,3}(,\d{3})*(\.\d+)?", digits), text
    significant = digits.lstrip("-").replace(",", "").replace(".", "").lstrip("0")
    assert len(significant.rstrip("0") if "." not in digits else significant) <= 4
    assert read(text, unit) == pytest.approx(value, rel=5.001e-4)


@given(st.floats(1e-4, 9e14), st.sampled_from(["1", ""]))
def test_pure_numbers_read_back(value, unit):
    text = number(value, unit)
    assert not EXPONENT.search(text)
    assert read(text, unit) == pytest.approx(value, rel=5.001e-4)
    assert number(round(value), unit).replace(",", "") == str(round(value))


@given(st.lists(NUMBERS, min_size=1, max_size=8), st.sampled_from(EVERY_UNIT))
def test_a_column_has_one_unit_and_aligned_points(values, unit):
    name, texts = column([*values, None, "none"], unit)
    assert texts[-2:] == ["-", "none"]
    if not name and units_of(unit).get(name) is None:
        assert texts[:-2] == [number(v, unit) for v in values]
        return
    for value, text in zip(values, texts, strict=False):
        assert read(f"{text.strip()} {name}".strip(), unit) == pytest.approx(value, rel=5.001e-4)
    behind = {len(text) - len(text.partition(".")[0].rstrip()) for text in texts[:-2]}
    assert len(behind) == 1


@given(st.integers(1, 10**9), st.sampled_from([1e-6, 1e-3, 1.0, 1024.0, 1e6, 1e9]), st.sampled_from(READ_BACK))
def test_labels_read_back(whole, scale, unit):
    label = float(f"{whole * scale:.9g}")
    assert in_unit(label_text(label, unit), unit) == pytest.approx(label, rel=1e-8)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.000814, "m^2", "814 mm2"),
        (1.5e-8, "USD/byte", "15 $/GB"),
        (84_825_604_915, "byte", "79 GiB"),
        (3.35e12, "byte/s", "3.35 TB/s"),
        (989.4e12, "FLOP/s", "989.4 TFLOP/s"),
        (1762.4, "USD", "1,762 $"),
        (7.42e6, "USD", "7.42 M$"),
        (0.2593, "USD", "0.2593 $"),
        (120.0, "kg", "120 kg"),
        (1000.0, "1/m^2", "0.1 /cm2"),
        (80_740_400.0, "1", "80,740,400"),
        (8.07404e7 + 0.5, "1", "80,740,000"),
        (174.6e9, "1", "174,600,000,000"),
        (1.746e15, "1", "1,746 trillion"),
        (0.0, "m^2", "0 mm2"),
        (0.0, "USD/s", "0 $/h"),
    ],
)
def test_units_of_the_field(value, unit, text):
    assert number(value, unit) == text


def test_units_without_a_prefix_and_whole_numbers_of_them():
    names = {"m^2": "mm2", "USD/byte": "$/GB", "byte": "B", "s": "s", "1": "", "USD/s": "$/h"}
    assert {unit: bare_unit(unit) for unit in names} == names
    assert all(bare_unit(unit) in units_of(unit) for unit in EVERY_UNIT)
    assert [count_text(n, "point") for n in (0, 1, 12_672)] == ["0 points", "1 point", "12,672 points"]
    assert [whole_number(v, u) for v, u in ((3600.0, "s"), (16.0, "byte"), (0.55, "s"))] == ["1 h", "16 B", "550 ms"]
