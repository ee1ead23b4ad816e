"""What the tests of pictures share: a study of layouts, a chain of devices, and what a reader measures in a drawing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from perfgrid.pictures.figures.draw import save_figure

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"
SVG = "{http://www.w3.org/2000/svg}"
LAYOUTS: dict[str, Any] = {
    "outputs": ["step_time", "memory_per_device", "model_flops_utilization"],
    "axes": {
        "model": ["llama-3.1-70b"],
        "device": ["h100-sxm-80gb", "b200"],
        "topology": ["rail-optimized"],
        "hbm_bandwidth": {"scale": [0.5, 1.0, 2.0]},
        "parallelism": {"devices": [64], "tp": [1, 2, 8], "pp": [1, 2, 4]},
    },
    "workload_parameters": {"sequence_length": 4096, "global_batch": 128},
    "best": {"over": "parallelism", "minimize": "step_time"},
}
STEPS: dict[str, Any] = {
    "outputs": ["die_cost", "manufacturing_cost"],
    "workload": "manufacturing",
    "axes": {
        "step": {"labels": ["A100", "H100", "B200"], "zip": {"device": ["a100-sxm-80gb", "h100-sxm-80gb", "b200"]}},
        "node": ["n7", "n5"],
    },
}


class Drawn:
    """What a reader of an SVG file can measure in its first panel."""

    def __init__(self, picture, folder):
        self.root = ElementTree.parse(save_figure(picture, folder / "picture.svg", overwrite=True)).getroot()
        self.texts = [text.text or "" for text in self.root.iter(SVG + "text")]
        self.scale = {axis.scale for axis in (picture.panels[0].x, picture.panels[0].y)}

    def group(self, name):
        return next(one for one in self.root.iter(SVG + "g") if one.get("id") == name)

    def ruler(self, axis, log=False):
        """From a place on the page to a number, by the ticks of an axis."""
        places, numbers = [], []
        for tick in self.root.iter(SVG + "g"):
            if re.fullmatch(rf"{axis}tick_\d+", tick.get("id", "")):
                places.append(float(next(tick.iter(SVG + "use")).get(axis, "nan")))
                numbers.append(float(next(tick.iter(SVG + "text")).text or "nan"))
            if tick.get("id") == "axes_2":
                break
        slope, start = np.polyfit(places, np.log(numbers) if log else numbers, 1)
        return lambda at: np.exp(slope * np.array(at) + start) if log else slope * np.array(at) + start

    def path(self, name):
        """The corners of the first path of a group."""
        found = next(self.group(name).iter(SVG + "path")).get("d", "")
        return np.array([[float(x), float(y)] for x, y in re.findall(r"[ML] (\S+) (\S+)", found)])
