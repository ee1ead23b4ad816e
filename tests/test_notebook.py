"""Notebooks show best designs and explanations as tables, and labels of strangers as text."""

import ast
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import xarray as xr

import perfgrid as pg
from perfgrid.text.numbers import number

HOSTILE = ("<script>alert(1)</script>", "'\"> & <b onload=alert(2)>")
NUMBER = r"-?\d[\d,]*\.?\d*"
ESCAPES = "\x1b]0;title\x07"  # which no study may have as a label, but the file of a stranger


class Tables(HTMLParser):
    """The rows of the first table of a page, as texts, and all tags that it opens."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.tags, self.inside = [], [], False
        self.feed(page.partition("<details>")[0])

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.inside = tag in ("td", "th")
        if tag == "tr":
            self.rows.append([])
        elif self.inside:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def study():
    return pg.Study.make(
        title=f"of {HOSTILE[0]}",
        outputs=["step_time", "memory_per_device"],
        axes={
            "case": {"labels": list(HOSTILE), "zip": {"sequence_length": [2048, 4096]}},
            "model": ["llama-2-7b", "llama-3.1-405b"],
            "device": ["h100-sxm-80gb"],
            "topology": ["rail-optimized"],
            "parallelism": {"devices": [8], "tp": [1, 2], "pp": [1, 2]},
        },
        workload_parameters={"global_batch": 64},
    )


@pytest.fixture(scope="module")
def best(study):
    return pg.best(study, over="parallelism", minimize="step_time", intervals=True)


@pytest.fixture(scope="module")
def explained(study):
    at = {"model": "llama-2-7b", "parallelism": "tp1.pp1.dp8"}
    return [pg.explain(study, "step_time", at | {"case": case}) for case in HOSTILE]


def test_best_designs_are_a_table(best):
    """A row for each group, in it the numbers of the Dataset; a group without a design says why."""
    page = Tables(best._repr_html_())
    head, *rows = page.rows
    assert head[:4] == ["case", "model", "parallelism", "step_time [s]"]
    assert "90 of 100 within [s]" in head
    for row, case, model in zip(rows, (0, 0, 1, 1), (0, 1, 0, 1), strict=True):
        one = best.isel(case=case, model=model).squeeze()
        assert row[1] == str(one.model.values)
        if one.found:
            assert row[2] == str(one.parallelism.values)
            assert float(row[3]) == pytest.approx(float(one.step_time), rel=1e-3)
            low, high = map(float, row[4].split(" to "))
            assert low < float(row[3]) < high
        else:
            assert row[2] == ""
            assert row[-1] == f"{one.forbidden_by.item()} forbids {one.forbids.item()} of 4"
    assert [bool(row[2]) for row in rows] == [True, False, True, False]


def test_a_part_is_shown_as_what_it_is(best, tmp_path):
    """A selection keeps its table, a mean has none; a file holds an ordinary Dataset."""
    one = best.isel(case=0, model=0).squeeze()
    assert HOSTILE[0] in Tables(one._repr_html_()).rows[1]
    assert "<details>" not in best[["step_time"]].mean()._repr_html_()
    pg.save(best, tmp_path / "best.nc")
    xr.testing.assert_equal(xr.Dataset(best.data_vars, best.coords), pg.open_result(tmp_path / "best.nc").load())


def test_an_explanation_is_a_table(explained):
    """The number in the first row; the rows one level below add up to it."""
    found = explained[0]
    page = Tables(found._repr_html_())
    assert page.rows[0] == ["quantity", "value", "share", "what it is"]
    assert page.rows[1][:2] == ["step_time", number(float(found.derivation.value), "s")]
    below = [row for row in page.rows[2:] if row[0].startswith("  ") and not row[0].startswith("   ")]
    shares = [float(row[2].rstrip("%")) for row in below if row[2]]
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(shares))


def test_products_name_every_factor(study):
    """In a terminal the first ones are left out of long names."""
    found = pg.explain(study, "step_time", {"model": "llama-2-7b", "parallelism": "tp1.pp1.dp8", "case": HOSTILE[0]})
    rows = Tables(found._repr_html_()).rows
    products = [row for row in rows if " x " in row[0]]
    assert products
    for row in products:
        assert "..." not in row[0]
        assert row[0].count(" x ") == row[3].partition(";")[0].count(" x ")


def test_a_comparison_is_a_table(study):
    sides = {"parallelism": "tp1.pp1.dp8"}, {"parallelism": "tp2.pp1.dp4"}
    found = pg.compare(study, *sides, {"model": "llama-2-7b", "case": HOSTILE[0]})
    page = Tables(found._repr_html_())
    head, whole, within, *parts = page.rows
    assert head[1:3] == ["A [s]", "B [s]"]
    assert [float(text) for text in whole[1:3]] == pytest.approx(found.times, rel=1e-3)
    assert within[0] == "90 of 100 within"
    changes = sorted(abs(y - x) for _, x, y in found.parts)
    assert abs(float(parts[0][2]) - float(parts[0][1])) == pytest.approx(changes[-1], rel=2e-2)
    assert "<script>" not in found._repr_html_()


def test_labels_are_text(best, explained):
    pages = [shown._repr_html_() for shown in (best, *explained)]
    for page in pages:
        assert set(Tables(page).tags) <= {"p", "table", "thead", "tbody", "tr", "th", "td"}
        assert "<script" not in page, "nor in what xarray shows"
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in pages[0]
    assert "&#x27;&quot;&gt; &amp; &lt;b onload=alert(2)&gt;" in pages[2]
    strange = best.assign_coords(case=[ESCAPES, "other"]).assign_attrs(title=ESCAPES)
    own = strange._repr_html_().partition("<details>")[0]
    assert own.count(r"\x1b]0;title\x07") == 3  # the title, and two rows
    assert not {"\x1b", "\x07"} & set(own)


def test_the_notebook_shows_what_its_cells_give():
    """What is kept is what the program shows now; otherwise: python -m tools.keep_outputs notebooks/04_one_design.py"""
    cells = json.loads(Path("notebooks/04_one_design.ipynb").read_text())["cells"]
    names, tables = {}, 0
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        *code, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(code, []), "cell", "exec"), names)
        if not isinstance(last, ast.Expr):
            exec(compile(ast.Module([last], []), "cell", "exec"), names)
            assert cell["outputs"] == []
            continue
        shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        words, numbers = parts("".join(cell["outputs"][0]["data"]["text/html"]))
        now = parts(shown._repr_html_())
        assert words == now[0]
        assert numbers == pytest.approx(now[1], rel=2e-3)
        tables += 1
    assert tables == 3


def parts(page):
    """The words between the numbers of a table, and the numbers."""
    text = str(Tables(page).rows)
    return re.split(NUMBER, text), [float(number.replace(",", "")) for number in re.findall(NUMBER, text)]
