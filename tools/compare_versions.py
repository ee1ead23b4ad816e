"""Whether results are what they were: ``python -m tools.compare_versions [COMMIT] [SECTION ...]``.

Checks COMMIT out beside this tree, evaluates studies, validation, calculators, searches, derivatives and single designs
with both, and compares the numbers: float64 within 1e-12 and float32 within 1e-5 of the largest value of the same
unit at a point, labels and flags equal; what was mended since (`INTENDED`) within the difference that it makes. Prints
what differs and ends with status 1 if anything does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
BASE = "f4a8a64"  # the last version before the tree was rearranged
SECTIONS = ("calculators", "designs", "derivatives", "drawn", "searches", "studies", "validation")
TOLERANCE = {4: 1e-5, 8: 1e-12}  # by the bytes of a floating-point number
LOOSE = {"derivatives": 1e-9, "searches": 1e-6, "validation": 1e-5, "designs": 1e-9}  # differences and optima, float32
RENAMED = {  # free quantities of an optimum by their name, not by the alternative that computes them
    "optimum|hbm_stacks_from_budget": "optimum|hbm_stacks",
    "optimum|scale_up_ports_from_budget": "optimum|scale_up_ports",
}
EFFORT = (  # how a result was found, and not what it is
    "seconds",
    "trace[step]",
    "points_evaluated",
    "points_excluded",
    "points_excluded_by_bounds",
    "points_excluded_by_constraints",
)
RATE = 'the batch of batch_rule = "rate" is exact between tabulated batches'
INTENDED = (  # what was mended since: section, pattern of the quantities, the largest difference, why; first match
    ("derivatives", "serving|*_elasticity[[]*", 0.3, RATE),
    ("derivatives", "serving|*", 0.05, RATE),
    ("studies", "chat_service|*", 0.05, RATE),
    ("validation", "seen|groups|trtllm_online|*", 1e-4, RATE),
)
SHOWN = 12  # differences of a section that are printed


def snapshot(tree: Path, section: str, target: Path) -> None:
    """The numbers of one section as the code in a tree gives them."""
    settings = os.environ | {"PYTHONPATH": str(tree), "PERFGRID_CACHE": str(target.parent / f"cache-{tree.name}")}
    command = [sys.executable, str(ROOT / "tools" / "snapshot.py"), section, str(target)]
    subprocess.run(command, cwd=tree, env=settings, check=True)


def deviation(new: np.ndarray, old: np.ndarray, scale: np.ndarray | float) -> float:
    """The largest difference of two arrays, as a part of the larger magnitude or of a scale."""
    same = (new == old) | (np.isnan(new) & np.isnan(old))
    magnitude = np.maximum(np.maximum(np.abs(new), np.abs(old)), scale)
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(new - old) / np.where(magnitude > 0, magnitude, 1.0))
    return float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0))


def differences(section: str, new: dict[str, np.ndarray], old: dict[str, np.ndarray]) -> list[str]:
    """One line for every quantity that differs; text other than labels and names may have been reworded."""
    found = []
    for path in sorted(p for p in old.keys() | new.keys() if p.rpartition("|")[2] not in EFFORT):
        if path not in new or path not in old:
            found.append(f"{path}: only in the {'old' if path in old else 'new'} version")
            continue
        a, b = new[path], old[path]
        if a.shape != b.shape:
            found.append(f"{path}: shape {a.shape}, was {b.shape}")
        elif a.dtype.kind in "SU" or b.dtype.kind in "SU":
            b = np.char.replace(b, b"_from_budget", b"")  # as in RENAMED
            if "[" in path and not np.array_equal(a, b):
                found.append(f"{path}: {int((a != b).sum())} labels differ")
        elif a.dtype.kind != "f":
            if count := int((a != b).sum()):
                found.append(f"{path}: {count} of {a.size} values differ")
        else:
            mended = [most for of, name, most, _ in INTENDED if of == section and fnmatchcase(path, name)]
            tolerance = mended[0] if mended else LOOSE.get(section, TOLERANCE[a.dtype.itemsize])
            apart = deviation(a, b, 0.0)
            if apart > tolerance:  # measured against the largest value of the same dimensions and unit
                tail = path[path.find("[") :]
                peers = [
                    np.abs(v) for p, v in old.items() if p.endswith(tail) and (v.shape, v.dtype) == (b.shape, b.dtype)
                ]
                scale = np.nan_to_num(np.max(peers, axis=0)) if peers else 0.0
                apart = deviation(a, b, scale)
            if apart > tolerance:
                found.append(f"{path}: differs by {apart:.2g}, allowed {tolerance:g}")
    return found


def main(words: list[str]) -> int:
    """Compare the named sections (all without names) with a commit; 1 if anything differs."""
    base = next((word for word in words if word not in SECTIONS), BASE)
    sections = [word for word in words if word in SECTIONS] or list(SECTIONS)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(tree), base], cwd=ROOT, check=True)
        try:
            for section in sections:
                files = {ROOT: Path(folder) / f"{section}-new.npz", tree: Path(folder) / f"{section}-old.npz"}
                for where, target in files.items():
                    snapshot(where, section, target)
                new, old = (dict(np.load(target)) for target in files.values())
                for before, after in RENAMED.items():
                    old = {path.replace(before, after): values for path, values in old.items()}
                lines = differences(section, new, old)
                failed = failed or bool(lines)
                values = sum(a.size for a in old.values())
                print(f"{section}: {len(old):,} quantities, {values:,} values, {len(lines)} differ")
                print(*(f"  {line}" for line in lines[:SHOWN]), sep="\n", end="\n" if lines else "")
                for name, most, why in (row[1:] for row in INTENDED if row[0] == section):
                    print(f"  {name} may differ by {most:g}: {why}")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
