"""The explorer: live numbers are those of the program, and nobody else is answered."""

import http.client
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as xml
from unittest import mock

import numpy as np
import pandas as pd
import pytest

import perfgrid as pg
from perfgrid.cli import explore
from perfgrid.cli.explore import newest_result
from perfgrid.engine.cache import recall
from perfgrid.engine.errors import PerfgridError
from perfgrid.pictures.pages import grid
from perfgrid.pictures.pages.explorer import AskedMarks, Explorer, first_question
from perfgrid.pictures.pages.server import Server
from perfgrid.pictures.views.make import picture_of
from perfgrid.results.factored import save_factored

from .conftest import STUDY, until
from .test_report import HOSTILE, OSC, violations


def answer(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, body, {"Content-Type": "application/json", **headers})
    got = connection.getresponse()
    found = got.status, got.read().decode()
    connection.close()
    return found


def asked(page, **changes):
    return page.evaluate("changes => ({...perfgridView.request(), ...changes})", changes)


def test_only_loopback_and_only_its_page(explorer):
    assert explorer.server_address[0] == "127.0.0.1"
    path = f"/{explorer.token}/"
    assert answer(explorer, "GET", path)[0] == 200
    for method, where, headers in (
        ("GET", "/", {}),
        ("GET", "/wrong-token/", {}),
        ("GET", f"/{explorer.token[:-1]}/", {}),
        ("GET", path, {"Host": f"attacker.example:{explorer.server_port}"}),
        ("POST", f"{path}rest", {"Origin": "http://attacker.example"}),
        ("POST", "/wrong-token/marks", {}),
    ):
        status, text = answer(explorer, method, where, "{}", **headers)
        assert status == 403
        assert explorer.token not in text
    assert answer(explorer, "GET", f"{path}../../etc/passwd")[0] == 404
    assert answer(explorer, "POST", f"{path}marks", "{}", **{"Content-Type": "text/plain"})[0] == 400


def test_malformed_questions_get_one_line(explorer):
    good = {"quantity": "step_time", "axes": ["device"], "rows": {}, "by": "step_time"}
    for body in (
        "[]",
        "{",
        json.dumps(good | {"axes": ["device", "device"]}),
        json.dumps(good | {"quantity": "step_tine"}),
        json.dumps(good | {"rows": {"device": [2]}}),
        json.dumps(good | {"rows": {"device": [-1]}}),
        json.dumps(good | {"rows": {"device": []}}),
        json.dumps(good | {"file": "/etc/passwd"}),
        json.dumps(good | {"changed": {"sequence_length": -1.0}}),
        json.dumps(good | {"changed": {"devices": 2.0}}),
    ):
        status, text = answer(explorer, "POST", f"/{explorer.token}/marks", body)
        assert status == 400, body
        assert "\n" not in json.loads(text)["error"]


def test_page_asks_only_its_server_and_has_the_csv_of_the_result(opened, explorer, result):
    page = opened(explorer.address)
    assert all(url.startswith(explorer.address) for url in page.requested)
    page.get_by_label("Along").select_option("microbatch")
    page.get_by_label("Quantity", exact=True).select_option("tokens_per_second")
    until(page, "perfgridView.picture.name === 'tokens_per_second-microbatch-device'")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").first.click()
    rows = pd.read_csv(io.StringIO(download.value.path().read_text())).to_dict("records")
    assert len(rows) == 6
    for row in rows:
        at = {a: row[a] for a in ("model", "device", "microbatch", "parallelism", "hbm_bandwidth")}
        assert row["tokens_per_second [1/s]"] == pytest.approx(result.tokens_per_second.sel(at).item(), rel=1e-8)
    assert page.complaints == []


@pytest.mark.parametrize(
    ("size", "scheme"), [("phone", "light"), pytest.param("desktop", "dark", marks=pytest.mark.slow)]
)
def test_no_overflow_and_no_barriers(opened, explorer, size, scheme):
    page = opened(explorer.address, size, scheme)
    page.get_by_label("Change a quantity").select_option("sequence_length")
    page.locator("figure.moving > details > summary").click()
    page.locator("figure.moving tbody tr").first.get_by_role("button", name="derive").click()
    page.locator(".derived .derivation").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert violations(page) == []
    assert page.complaints == []


def test_view_is_saved_as_svg_png_and_toml(opened, explorer):
    page = opened(explorer.address)

    def saved(kind):
        with page.expect_download() as download:
            page.locator("figure.moving").get_by_role("button", name=kind).click()
        return download.value.path().read_bytes()

    texts = {one.text for one in xml.fromstring(saved("SVG")).iter() if one.text}
    assert {"a100-sxm-80gb", "h100-sxm-80gb", "\N{UPWARDS ARROW} step_time [s]"} <= texts
    assert saved("PNG").startswith(b"\x89PNG\r\n")
    assert tomllib.loads(saved("TOML").decode())["best"]["minimize"] == "step_time"


def test_labels_of_strangers_are_text(opened, result):
    evil = result.copy(deep=True).assign_coords(device=[HOSTILE, OSC]).assign_attrs(title=HOSTILE)
    with Server() as server:
        server.explorer.set_result(Explorer(evil, HOSTILE))
        page = opened(server.address)
        page.on("dialog", lambda dialog: page.complaints.append("alert"))
        assert page.locator("h1").inner_text() == HOSTILE
        assert page.locator(".moving .legend li:not(.of)").first.inner_text() == HOSTILE
        assert "\x1b" not in page.content()
        assert page.complaints == []


def test_the_command_keeps_what_its_page_opens_with(study_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PERFGRID_CACHE", str(tmp_path))
    interrupted = mock.Mock(**{"wait.side_effect": KeyboardInterrupt})  # the user's Ctrl-C
    monkeypatch.setattr(explore, "threading", mock.Mock(Event=lambda: interrupted))
    monkeypatch.setattr(explore, "sys", mock.Mock())
    explore.explore_command(study_file, browser=False)
    assert re.match(r"http://127\.0\.0\.1:\d+/\S+/  \(Ctrl-C ends it\)\n$", capsys.readouterr().out)
    (kept,) = tmp_path.glob("explored-*.kept")
    assert recall(kept.stem, explore._key(study_file, ["None"], None))["title"] == "Two models on two devices"


@pytest.mark.slow  # two processes and two browsers
def test_the_command_serves_what_it_knows_until_the_study_is_evaluated(opened, study_file, tmp_path):
    """A page of an earlier run is there at once; where its study names a file that changed it is loaded again."""
    environment = os.environ | {"PERFGRID_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "perfgrid", "explore", str(study_file), "--no-browser"]
    seen = []
    for _ in range(2):
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                page = opened(process.stdout.readline().split()[0])
                seen.append((page.locator("h1").inner_text(), page.evaluate("perfgridView.found.numbers")))
            finally:
                process.kill()
        (kept,) = tmp_path.glob("explored-*.kept")
        with kept.open("rb") as file:
            key, content = pickle.load(file), pickle.load(file)
        with kept.open("wb") as file:  # as if it had been another study
            pickle.dump(key, file)
            pickle.dump(content | {"title": "an earlier one", "version": "another"}, file)
    assert seen[0][0] == "Two models on two devices"
    assert seen[1] == seen[0]


def test_study_of_the_view_gives_its_numbers(opened, explorer, tmp_path):
    page = opened(explorer.address)
    assert asked(page) == {**first_question(explorer.explorer.result().grid.about()), "changed": {}}
    changed = {"sequence_length": 2.0, "scale_up_bandwidth": 0.5}
    for rows, factors in (
        ({}, {}),
        ({}, {"hbm_bandwidth": 0.8, "global_batch": 2.0}),
        ({"parallelism": [3], "microbatch": [1]}, {}),
        ({"parallelism": [3], "microbatch": [0]}, changed),
    ):
        body = asked(page, changed=factors)
        body["rows"] |= rows
        found = page.evaluate("body => perfgridView.source.marks(body)", body)
        text = page.evaluate("body => perfgridView.source.ask('study', body)", body)["text"]
        path = tmp_path / "view.toml"
        path.write_text(text)
        study = pg.load_study(path)
        known = pg.evaluate(study, "float64")
        if "best" in tomllib.loads(text):
            known = pg.best(known, **tomllib.loads(text)["best"])
        known = known.step_time.squeeze()
        assert known.dims == tuple(body["axes"])
        np.testing.assert_allclose(np.array(found["numbers"], float), known.values.ravel(), rtol=1e-5)
        drawn = [s.y for s in picture_of(study).panels[0].series]
        np.testing.assert_allclose(np.array(found["numbers"], float), np.ravel(drawn), rtol=1e-5)


def test_changed_quantities_are_evaluated_anew(opened, explorer):
    page = opened(explorer.address)
    before = page.evaluate("perfgridView.found.numbers")
    page.get_by_label("Change a quantity").select_option("sequence_length")
    slider = page.get_by_role("slider", name="sequence_length")
    slider.focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    until(page, "before => perfgridView.found.numbers[0] > 1.5 * before", before[0])
    until(page, "perfgridView.asked == perfgridView.stage.dataset.drawn")
    assert slider.get_attribute("aria-valuetext") == "\N{MULTIPLICATION SIGN} 2 = 8,192"
    rows = page.evaluate("perfgridView.rowsAt(0)")
    content = tomllib.loads(STUDY)
    content["workload_parameters"]["sequence_length"] = 8192
    longer = pg.evaluate(pg.Study.make(**content), "float64").isel(rows)
    assert page.evaluate("perfgridView.found.numbers[0]") == pytest.approx(longer.step_time.item(), rel=1e-9)


def test_a_click_derives_and_two_designs_compare(opened, explorer, result):
    page = opened(explorer.address)
    picture = page.locator("figure.moving svg.picture")
    picture.scroll_into_view_if_needed()
    x, y = picture.evaluate(
        """(svg) => {
            const second = perfgridView.picture.panels[0].series[1];
            return [svg.scale('x').apply(second.x[2]), svg.scale('y').apply(second.y[2])];
        }"""
    )
    picture.hover(position={"x": x, "y": y})
    picture.click(position={"x": x, "y": y})
    story = page.locator(".derived .derivation")
    story.wait_for()
    rows = page.evaluate("perfgridView.rowsAt(10)")
    known = pg.explain(result, "step_time", {a: result[a].values[r] for a, r in rows.items()})
    assert known.derivation.value == pytest.approx(result.step_time.isel(rows).item(), rel=1e-5)
    assert f"{known.derivation.value:.4g}" in story.inner_text()
    page.get_by_role("button", name="Keep as A").click()
    page.locator("figure.moving > details > summary").click()
    page.locator("figure.moving tbody tr").first.get_by_role("button", name="derive").click()
    page.get_by_role("button", name="Compare part by part").click()
    page.get_by_text("times as fast").wait_for()
    assert "arithmetic_time" in page.locator(".pinned").inner_text()


def test_stale_replies_are_dropped(opened, explorer):
    page = opened(explorer.address)
    page.evaluate(
        """async () => {
            const view = perfgridView, marks = view.source.marks.bind(view.source);
            let first = true;
            view.source.marks = async (asked) => {
                const found = await marks(asked), late = first;
                first = false;
                if (late) await new Promise((done) => setTimeout(done, 700));
                return found;
            };
            view.state.quantity = 'memory_per_device';
            const slow = view.refresh();
            view.state.quantity = 'tokens_per_second';
            await view.refresh();
            await slow;
        }"""
    )
    assert page.evaluate("perfgridView.picture.title") == "tokens_per_second"


@pytest.mark.parametrize("suffix", ["pgf", "zarr"])
def test_results_on_disk_are_read_in_parts(tmp_path, study_file, result, suffix, monkeypatch):
    study, path = pg.load_study(study_file), tmp_path / f"small.{suffix}"
    if suffix == "pgf":
        save_factored(study, path)
    else:
        pg.stream(study, path)
        for limit in ("KEPT_BYTES", "KEPT_FLAGS"):  # as of a large one
            monkeypatch.setattr(grid, limit, 0)
    lazy = Explorer(pg.open_result(path), path.name)
    found = lazy.opening()["first"]
    assert not isinstance(lazy.result.variables["step_time"]._data, np.ndarray)  # nothing but the part was read
    monkeypatch.undo()
    whole = Explorer(result.copy(), "small.nc")
    known = whole.marks(AskedMarks(**first_question(lazy.grid.about())))
    np.testing.assert_allclose(found["numbers"], known["numbers"], rtol=1e-5)
    assert found["rows"] == known["rows"]
    design = {"rows": {axis: rows[3] for axis, rows in known["rows"].items()}}
    one, other = (
        dict(zip(e.grid.quantities, e.answer("design", json.dumps(design).encode())["numbers"], strict=True))
        for e in (lazy, whole)
    )
    np.testing.assert_allclose([one[name] for name in other], list(other.values()), rtol=1e-5)


def test_the_newest_result_is_explored_by_default(tmp_path):
    with pytest.raises(PerfgridError, match="no result"):
        newest_result(tmp_path)
    for age, name in enumerate(("old.nc", "new.pgf", "later.toml")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    assert newest_result(tmp_path).name == "new.pgf"
