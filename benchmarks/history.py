"""Rates by commit: ``python -m benchmarks.history [--record]`` draws ``docs/benchmarks.png`` from ``history.json``.

``--record`` first measures this tree (one to three minutes) and adds an entry. Rates of one machine and of similar
load can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from datetime import date
from pathlib import Path

import jax
from PIL import Image  # which Matplotlib needs too
from PIL.PngImagePlugin import PngInfo

from perfgrid.pictures.figures.draw import save_figure
from perfgrid.pictures.picture import Axis, Panel, Picture, Series

from . import start
from .grids import GRIDS

ROOT = Path(__file__).parents[1]
FILE, PICTURE = ROOT / "benchmarks" / "history.json", ROOT / "docs" / "benchmarks.png"
KEYS = {"dense": "dense", "5-D": "5d"}  # grid: how keys of an entry begin
PANELS = {  # title: end of the key, what the axis shows, its unit and size
    "Evaluating 20 outputs of 10^7 points": ("values", "values per CPU-second", "10^9", 1e9),
    "Searching the best of 10^9 points": ("best_points", "points per CPU-second", "10^6", 1e6),
}


def picture(history: list[dict]) -> Picture:
    """A panel of each kind of rate, a line of each grid, a mark of each entry that has it; a pair is a range."""
    when = [entry["date"] for entry in history]
    commits = [entry.get("commit", "").split()[-1:] for entry in history]
    names = tuple(f"{day[5:]} {commit[0] if commit else ''}".strip() for day, commit in zip(when, commits, strict=True))
    axis = Axis("date and commit", scale="categories", categories=names)
    panels = []
    for title, (end, label, unit, size) in PANELS.items():
        series = []
        for grid, begin in KEYS.items():
            rates = {i: entry.get(f"{begin}_{end}") for i, entry in enumerate(history)}
            spans = {i: r if isinstance(r, list) else [r, r] for i, r in rates.items() if r is not None}
            low, high = (tuple(span[side] / size for span in spans.values()) for side in (0, -1))
            middle = tuple((a + b) / 2 for a, b in zip(low, high, strict=True))
            series.append(Series(grid, "line", tuple(map(float, spans)), middle, low=low, high=high))
        panels.append(Panel(axis, Axis(label, unit), tuple(series), title=title))
    return Picture(
        "benchmarks",
        "lines",
        "Rates by commit",
        tuple(panels),
        "Each entry of benchmarks/history.json; a bar is the range of several runs.",
        ("Machines and loads differ: see the entries.",),
    )


def measured() -> dict:
    """An entry of this tree."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    load = f"load {os.getloadavg()[0]:.0f}"
    machine = f"{os.cpu_count()} cores, {load}, Python {platform.python_version()}, jax {jax.__version__}"
    entry: dict[str, object] = {"date": date.today().isoformat(), "commit": commit.stdout.strip(), "machine": machine}
    for grid in GRIDS:
        evaluated, search = start.alone("outputs", grid, 7), start.alone("search", grid, 9)
        entry[f"{KEYS[grid]}_values"] = float(f"{evaluated['full_grid_values_per_cpu_second']:.3g}")
        entry[f"{KEYS[grid]}_best_points"] = float(f"{search['points_per_cpu_second']:.3g}")
        entry[f"{KEYS[grid]}_best_peak_mb"] = round(search["peak_memory"] / 1e6)
    return entry


def draw(drawn: Picture) -> None:
    """Write the picture with a text in the file that states its numbers: a test compares them with the entries."""
    save_figure(drawn, PICTURE, overwrite=True)
    text = PngInfo()
    text.add_text("Description", repr(drawn))
    with Image.open(PICTURE) as image:
        image.load()
    image.save(PICTURE, pnginfo=text, optimize=True)


def main() -> None:
    """Draw the history, with a new entry where one is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.history", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="measure this tree and add an entry")
    content = json.loads(FILE.read_text(encoding="utf-8"))
    if parser.parse_args().record:
        content["history"].append(measured())
        FILE.write_text(json.dumps(content, indent=1), encoding="utf-8")
    draw(picture(content["history"]))
    print(f"drawn {PICTURE.relative_to(ROOT)}, {len(content['history'])} entries")


if __name__ == "__main__":
    main()
