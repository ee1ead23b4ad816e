# pyright: reportMissingImports=false
"""The command: `python -m tools.probe FILE.jsonl [PART ...]`."""

from __future__ import annotations

import argparse
import json
import time

try:
    import torch
except ModuleNotFoundError:
    raise SystemExit("tools.probe measures with PyTorch: pip install torch nvidia-ml-py") from None

from . import kernels, steps
from .measure import DEVICE, NoSensors, Sensors

KERNELS = (kernels.products, kernels.gradients, kernels.streams, kernels.overlap, kernels.attention, kernels.grouped)
PARTS = {f.__name__: f for f in (kernels.launches, steps.layers, steps.steps, *KERNELS, steps.anatomy)}


def main() -> None:
    """Measure, one JSON object per line."""
    parser = argparse.ArgumentParser(prog="python -m tools.probe", description="Measure an NVIDIA device with PyTorch.")
    parser.add_argument("file")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    given = parser.parse_args()
    sensors = Sensors() if DEVICE == "cuda" else NoSensors()
    with open(given.file, "w", encoding="utf-8") as file:

        def write(row: dict) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        if DEVICE == "cuda":
            about = torch.cuda.get_device_properties(0)
            write({"part": "device", "name": about.name, "torch": torch.__version__, "power_limit": sensors.limit()})
        for name in given.parts or PARTS:
            start = time.perf_counter()
            try:
                for row in PARTS[name](sensors):
                    write({"part": name, **row})
            except Exception as mistake:
                write({"part": name, "error": f"{type(mistake).__name__}: {mistake}"[:300]})
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
