"""Measure the explorer in a browser; ``python -m benchmarks.pages [--browser FILE]``.

Of the quickstart, of a serving study and of a factored result of 10^9 points, with caches filled by an earlier start:

* first paint: seconds from starting `perfgrid explore` to the first picture on the screen
* slider to paint: milliseconds from the event of a slider or a menu of labels to the picture on the screen, median,
  95th percentile and most, for the axes that the result has and for quantities with which designs are evaluated anew;
  the tables below the view are complete

The browser runs on the same machine. `PERFGRID_BROWSER` names one as `--browser` does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright

from .grids import QUICKSTART

ROOT = Path(__file__).parents[1]
MOVES = 60  # of every kind of slider
WATCH = """
addEventListener('DOMContentLoaded', () => {
    const look = () => {
        if (!document.querySelector('.moving [data-drawn]')) return;
        watch.disconnect();
        requestAnimationFrame(() => setTimeout(() => { window.painted = Date.now(); }));
    };
    const watch = new MutationObserver(look);
    watch.observe(document.body, {childList: true, subtree: true, attributes: true});
    look();
});
"""
MOVE = """
async ([moves, changed]) => {
    const paint = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const place = changed ? 'Evaluated anew' : 'Held or chosen', times = [];
    const group = () => [...document.querySelectorAll('.controls fieldset')]
        .find((one) => one.querySelector('legend').textContent === place);
    const menu = () => group() && group().querySelector('select');
    if (changed) {
        const names = [...menu().options].map((o) => o.value).filter(Boolean);
        const step = Math.max(1, Math.floor(names.length / 4));
        for (let k = 0; k < names.length && k < 4 * step; k += step) {
            menu().value = names[k];
            menu().dispatchEvent(new Event('change'));
            await new Promise((done) => setTimeout(done, 1500));
        }
    }
    const which = changed ? 'input[type=range]' : 'input[type=range], select';
    const all = group() ? [...group().querySelectorAll(which)] : [];
    const usable = all.filter((one) => !one.disabled && (one.tagName !== 'SELECT' || one.options.length > 1));
    for (let n = 0; usable.length && n < moves; n += 1) {
        const one = usable[n % usable.length], before = Number(perfgridView.stage.dataset.drawn);
        const start = performance.now();
        if (one.tagName === 'SELECT') {
            one.selectedIndex = Math.max(1, (one.selectedIndex + 1) % one.options.length);
            one.dispatchEvent(new Event('change'));
        } else {
            one.value = (Number(one.value) + 1) % (Number(one.max) + 1);
            one.dispatchEvent(new Event('input'));
        }
        while (Number(perfgridView.stage.dataset.drawn) === before) {
            await new Promise((done) => setTimeout(done));
            if (performance.now() - start > 20000) throw new Error(perfgridView.note.textContent);
        }
        await paint();
        times.push(performance.now() - start);
        await new Promise((done) => setTimeout(done, 40));
    }
    return {controls: usable.map((one) => one.labels[0].firstChild.textContent), times};
}
"""


@contextmanager
def explored(path: Path) -> Iterator[tuple[str, float]]:
    """`perfgrid explore` of a file: its address, and when it was started."""
    start = time.time()
    command = [sys.executable, "-m", "perfgrid", "explore", str(path), "--no-browser"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[0], start
        finally:
            process.kill()


def timed(page: Page, changed: bool) -> dict[str, Any]:
    """Milliseconds from moving a slider to its paint."""
    found = page.evaluate(MOVE, [MOVES, changed])
    times = np.array(found["times"])
    if not len(times):
        return {"controls": found["controls"]}
    median, high = np.quantile(times, [0.5, 0.95])
    return {"controls": found["controls"], "moves": len(times), "median": median, "p95": high, "most": times.max()}


def measure(path: Path, browser: Any) -> dict[str, Any]:
    """The figures of one study or result: the second start, after the first one has filled the caches."""
    found: dict[str, Any] = {}
    for again in (False, True):
        with explored(path) as (address, start):
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            page.add_init_script(WATCH)
            served = time.time() - start
            page.goto(address)
            while not (painted := page.evaluate("window.painted")):
                page.wait_for_timeout(10)
            found = {"served_seconds": served, "first_paint_seconds": painted / 1000 - start}
            if again:
                page.wait_for_selector("main[data-whole]", timeout=300_000)
                found["whole_seconds"] = time.time() - start
                found["axes_ms"] = timed(page, changed=False)
                found["changed_ms"] = timed(page, changed=True)
            page.close()
    return found


def billion(folder: str) -> Path:
    """A factored result of 10^9 points."""
    from perfgrid.results.factored import save_factored

    from .search import sized

    path = Path(folder) / "billion.pgf"
    save_factored(sized("dense", 9), path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="studies and results (default: those named above)")
    installed = os.environ.get("PERFGRID_BROWSER") or shutil.which("chromium-headless-shell")
    parser.add_argument("--browser", default=installed, help="its file (default: Chromium's headless shell)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.browser)
        files = options.files or [QUICKSTART, ROOT / "studies" / "serving.toml", billion(folder)]
        for path in files:
            print(json.dumps({path.name: measure(path, browser)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
