"""A report in a browser: no request, no overflow, accessible, its numbers those of the result."""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

import perfgrid as pg
import perfgrid.pictures.pages as pages
from perfgrid.pictures.pages.embedded import ERROR, FIRST, packed_numbers
from perfgrid.pictures.pages.grid import Grid, Slice
from perfgrid.pictures.pages.report import report

from .conftest import until

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
HOSTILE = "<script>alert(1)</script>"
OSC = "\x1b]8;;http://example.com\x07a link\x1b]8;;\x07"


def violations(page):
    found = Axe().run(page, options=RULES).response["violations"]
    return [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found]


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        ("desktop", "light"),
        ("phone", "dark"),
        pytest.param("desktop", "dark", marks=pytest.mark.slow),  # each size and each scheme is opened in every run
        pytest.param("phone", "light", marks=pytest.mark.slow),
    ],
)
def test_offline_without_requests_overflow_or_barriers(opened, report_file, size, scheme):
    page = opened(report_file.as_uri(), size, scheme, offline=True)
    for details in page.locator("details").all():
        details.evaluate("element => { element.open = true; }")
    assert page.requested == [report_file.as_uri()]
    assert page.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert violations(page) == []


def test_says_what_the_result_holds(opened, report_file, result):
    page = opened(report_file.as_uri())
    best = pg.best(result, ["parallelism", "microbatch"], minimize="step_time", at={"hbm_bandwidth": 1.0})
    headings = page.locator("h2").all_text_contents()
    assert headings[:2] == ["Best designs", "Look around"]
    assert {"Near misses", "What excludes designs", "Derivations", "Assumptions", "Sources", "Study", "Versions"} <= {
        *headings
    }
    assert page.locator("section:has(h2:text-is('Best designs')) tbody tr").count() == best["found"].size
    assert f"{best.step_time.min().item():.4g} s" in page.locator(".summary").inner_text()
    assert "fits_memory" in page.locator("section:has(h2:text-is('What excludes designs'))").inner_text()
    assert page.locator(".derivation").count() >= 2
    assert 'title = "Two models on two devices"' in page.locator("pre").text_content()


def test_tables_sort_and_filter(opened, report_file):
    page = opened(report_file.as_uri())
    listing = page.locator("section:has(h2:text-is('Best designs')) .listing")
    place = [c.strip() for c in listing.locator("thead th").all_text_contents()].index("step_time [s]")

    def times():
        return [float(row.locator("th, td").nth(place).text_content()) for row in listing.locator("tbody tr").all()]

    listing.get_by_role("button", name="step_time").press("Enter")
    assert times() == sorted(times())
    listing.get_by_role("button", name="step_time").press("Enter")
    assert times() == sorted(times(), reverse=True)
    listing.get_by_role("searchbox").fill("h100 32")
    kept = listing.locator("tbody tr").all_text_contents()
    assert kept
    assert all("h100" in text for text in kept)


def test_embedded_numbers_and_best_designs_are_those_of_the_result(opened, report_file, result):
    page, grid = opened(report_file.as_uri()), Grid(result)
    for name in grid.quantities:
        found = page.evaluate("async n => Array.from((await perfgridView.source.array(n)).numbers, v => v)", name)
        found = np.array([np.nan if v is None else v for v in found])
        legal = pg.feasible(result, "illegal", of=name)
        masked = {*legal.dims} <= {*result[name].dims}
        known = (result[name].where(legal) if masked else result[name]).transpose(*result[name].dims).values
        np.testing.assert_allclose(found, known.reshape(found.shape), rtol=ERROR)
    sizes = {a: range(result.sizes[a]) for a in grid.axes}
    for asked in (
        Slice("step_time", ("device", "hbm_bandwidth"), {**sizes, "model": [1]}, "step_time"),
        Slice(
            "memory_per_device", ("model", "microbatch"), {**sizes, "device": [0], "hbm_bandwidth": [2]}, "step_time"
        ),
        Slice(
            "tokens_per_second",
            ("parallelism",),
            {**sizes, "model": [0], "microbatch": [1]},
            "tokens_per_second",
            False,
        ),
    ):
        body = {"quantity": asked.quantity, "axes": asked.axes, "by": asked.by, "least": asked.least}
        body["rows"] = {a: list(rows) for a, rows in asked.rows.items()}
        found = page.evaluate("body => perfgridView.source.marks(body)", body)
        known = grid.marks(asked)
        np.testing.assert_allclose(np.array(found["numbers"], float), known.numbers, rtol=ERROR)
        assert found["reasons"] == known.reasons.tolist()
        feasible = known.reasons == 0
        assert feasible.any()
        picked = [np.array(found["rows"][a])[feasible].tolist() == known.rows[a][feasible].tolist() for a in grid.axes]
        assert all(picked)


def test_keyboard_alone_moves_the_view(opened, report_file):
    page = opened(report_file.as_uri())
    quantity = page.get_by_label("Quantity", exact=True)
    quantity.focus()
    page.keyboard.press("ArrowDown")
    until(page, "perfgridView.picture.panels[0].y.label === 'memory_per_device'")
    page.get_by_label("Along").select_option("microbatch")
    slider = page.get_by_role("slider", name="hbm_bandwidth")
    slider.focus()
    before = page.evaluate("perfgridView.asked")
    page.keyboard.press("ArrowRight")
    until(page, "n => perfgridView.stage.dataset.drawn > n", str(before))
    assert slider.get_attribute("aria-valuetext") == "\N{MULTIPLICATION SIGN} 1.5"
    page.locator("figure.moving > details > summary").press("Enter")
    page.locator("figure.moving tbody tr").first.get_by_role("button", name="derive").press("Enter")
    assert page.locator(".pinned tbody tr").first.wait_for() is None
    page.get_by_role("button", name="Keep as A").press("Enter")
    page.locator("figure.moving tbody tr").nth(1).get_by_role("button", name="derive").press("Enter")
    page.get_by_role("columnheader", name="B / A").wait_for()


def test_infeasible_cells_show_their_reason(opened, report_file, result):
    page = opened(report_file.as_uri())
    page.get_by_label("model", exact=True).select_option("llama-2-70b")
    page.get_by_label("Along").select_option("microbatch")
    page.get_by_label("Colour").select_option("parallelism")
    page.get_by_label("Shown as").select_option("cells")
    until(page, "perfgridView.picture.panels[0].cells")
    cells = page.evaluate("perfgridView.picture.panels[0].cells")
    reason = result.fits_memory.attrs["reason"]
    row, column = next(
        (r, c) for r, line in enumerate(cells["reasons"]) for c, text in enumerate(line) if text == reason
    )
    assert cells["numbers"][row][column] is None
    picture = page.locator("figure.moving svg.picture")
    x, y = picture.evaluate("(svg, [r, c]) => [svg.scale('x').apply(c), svg.scale('y').apply(r)]", [row, column])
    picture.hover(position={"x": x, "y": y})
    words = picture.locator("g", has_text="infeasible").last.text_content().replace("\n", " ")
    assert f"infeasible: {reason}"[:30] in words
    page.locator("figure.moving > details > summary").click()
    assert reason in page.locator("figure.moving details table").inner_text()


def test_labels_of_strangers_are_text(opened, tmp_path, result):
    evil = (
        result.copy(deep=True)
        .assign_coords(device=[HOSTILE, OSC])
        .assign_attrs(title=HOSTILE, study=f"</script>{HOSTILE}")
    )
    evil["fits_memory"].attrs["reason"] = f"<img src=x onerror=alert(1)>{OSC}"
    path = tmp_path / "evil.html"
    path.write_text(report(evil, f"{HOSTILE}.nc"))
    page = opened(path.as_uri())
    page.on("dialog", lambda dialog: page.complaints.append("alert"))
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator(".moving .legend li:not(.of)").all_inner_texts() == [
        HOSTILE,
        OSC.replace("\x1b", "\\x1b").replace("\x07", "\\x07"),
    ]
    assert page.locator("img").count() == 0
    assert page.complaints == []
    assert page.requested == [path.as_uri()]


def test_scripts_beside_those_of_the_package_are_refused(opened, report_file):
    page = opened(report_file.as_uri())
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    )
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p onclick=\"window.ran = 1\" id=\"evil\">x</p>')")
    page.locator("#evil").click()
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in text for text in page.complaints)


def test_a_result_without_its_study_has_a_report(tmp_path, result):
    bare = result.drop_attrs(deep=False).assign_attrs(study_axes=result.attrs["study_axes"])
    text = report(bare, "bare.nc")
    assert "step_time" in text


@pytest.mark.parametrize("devices", [[64], [32, 64]])
def test_first_view_narrows_what_it_has_menus_for(opened, tmp_path, devices):
    layouts = {"devices": devices, "tp": [1, 2, 4, 8], "pp": [1, 2]}
    axes = {"model": ["llama-2-13b"], "device": ["b200"], "topology": ["rail-optimized"], "parallelism": layouts}
    study = pg.Study.make(
        outputs=["step_time"], axes=axes, workload_parameters={"sequence_length": 4096, "global_batch": 64}
    )
    path = tmp_path / "one.html"
    path.write_text(report(pg.evaluate(study), "one.nc"))
    page = opened(path.as_uri())
    assert page.complaints == []
    assert page.get_by_label("devices", exact=True).count() == len(devices) - 1


def unpacked_numbers(how: Mapping[str, Any], packed: bytes) -> np.ndarray:
    """What `packed_numbers` packed, as the page unpacks it."""
    planes = np.frombuffer(packed, np.uint8).reshape(-1, how["size"])
    if how["stored"] == "float32":
        return np.ascontiguousarray(planes.T).view("<f4").ravel().astype(np.float64)
    codes = np.cumsum(np.ascontiguousarray(planes.T).view("<u2").ravel(), dtype=np.uint16)
    found = np.exp(how["low"] + how["step"] * (codes.astype(np.float64) - FIRST))
    return np.where(codes == 0, np.nan, np.where(codes == 1, 0.0, found))


def test_numbers_are_packed_within_the_error():
    rng = np.random.default_rng(0)
    for values in (
        np.exp(rng.normal(0, 1, 1000)),
        np.array([np.nan, 0.0, 3.0]),
        np.array([1e-9, 1e9]),
        -np.ones(3),
        np.ones(1),
    ):
        how, packed = packed_numbers(values)
        np.testing.assert_allclose(unpacked_numbers(how, packed), values, rtol=ERROR)


def test_vendored_files_are_small_and_have_their_licences():
    folder = Path(pages.__file__).parent
    scripts = sorted((folder / "vendor").glob("*.js"))
    assert scripts
    assert all((folder / "vendor" / f"{s.name.partition('.')[0]}.LICENSE").exists() for s in scripts)
    whole = sum(len(zlib.compress(f.read_bytes())) for f in folder.rglob("*") if f.suffix in (".js", ".css", ".py"))
    assert whole < 1e6
