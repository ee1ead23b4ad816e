"""Build a release and try it as a stranger does: ``python -m tools.release [PYTHON ...] [--lowest] [--suite]``.

Needs uv and a commit without other files beside it. Wheel and sdist are built and installed in fresh environments on
every PYTHON (a version or a path; 3.11, 3.12 and 3.13 by default) with the newest dependencies and, with ``--lowest``,
on the first with the oldest that pyproject.toml allows. Each imports every module and runs the README's commands;
``--suite`` runs the tests as well, with the installed wheel. Ends with status 1 at the first that fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORTS = """
import importlib, pathlib, pkgutil, sys
import perfgrid
assert pathlib.Path(perfgrid.__file__).is_relative_to(sys.prefix), perfgrid.__file__
names = [m.name for m in pkgutil.walk_packages(perfgrid.__path__, "perfgrid.") if not m.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
print(f"{len(names)} modules imported")
"""


def run(*command: str | Path, where: Path, **settings: str) -> str:
    """What a command prints; without this tree on its path. Ends the program where it fails."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, command)], cwd=where, env=inherited | settings, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed: {' '.join(map(str, command))}")
    return done.stdout


def built(folder: Path, files: Path | None) -> tuple[Path, Path, Path]:
    """The wheel, the sdist and the tree that it unpacks to: all tracked files and no other. ``files``: built before."""
    if files is None:
        run("uv", "build", "--quiet", "--out-dir", folder, ROOT, where=folder)
    place = (files or folder).resolve()
    (wheel,), (sdist,) = place.glob("*.whl"), place.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    tree = folder / sdist.name.removesuffix(".tar.gz")
    held = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()} - {"PKG-INFO"}
    if apart := held ^ set(run("git", "ls-files", where=ROOT).splitlines()):
        sys.exit(f"in the sdist or in the commit, not in both: {', '.join(sorted(apart))}")
    return wheel, sdist, tree


def installed(python: str, file: Path, tree: Path, lowest: bool, place: Path) -> Path:
    """The folder of programs of a fresh environment with a file and the dependencies of its tests."""
    run("uv", "venv", "--quiet", "--python", python, place, where=place.parent)
    install = ("uv", "pip", "install", "--quiet", "--python", place)
    if lowest:
        stated = ("--resolution", "lowest-direct", "-r", tree / "pyproject.toml", "--extra", "test")
        run(*install, *stated, where=place.parent)
    run(*install, *(["--no-deps", file] if lowest else [f"{file}[test]"]), where=place.parent)
    return place / ("Scripts" if os.name == "nt" else "bin")


def used(programs: Path, tree: Path, folder: Path) -> None:
    """Import all and run the README's commands in an environment, away from the sources."""
    readme = (tree / "README.md").read_text(encoding="utf-8")
    question, study = (re.findall(rf"perfgrid {command} .+", readme)[0] for command in ("train", "run"))
    print(run(programs / "python", "-c", IMPORTS, where=folder), end="", flush=True)
    for command in ("perfgrid --version", question, study.replace("studies/", f"{tree}/studies/")):
        print(f"+ {command}", flush=True)
        program, *words = command.split()
        told = run(programs / program, *words, where=folder, PERFGRID_CACHE=str(folder / "cache"))
        print(told if "--version" in words else told.splitlines()[-1], flush=True)


def tested(programs: Path, tree: Path, folder: Path) -> None:
    """Run the tests in an environment; of the sources only what is not installed is there."""
    (tree / "perfgrid").rename(hidden := folder / "sources")
    try:
        settings = {"PERFGRID_CACHE": str(folder / "cache"), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        told = run(programs / "python", "-m", "pytest", "-q", "-n", "2", where=tree, **settings)
        print(told.splitlines()[-1], flush=True)
    finally:
        hidden.rename(tree / "perfgrid")


def main() -> None:
    """Build, and try every way of installing one after the other."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", default=["3.11", "3.12", "3.13"])
    parser.add_argument("--lowest", action="store_true", help="the oldest dependencies as well")
    parser.add_argument("--suite", action="store_true", help="run the tests (some 14 minutes an environment)")
    parser.add_argument("--dist", type=Path, metavar="FOLDER", help="wheel and sdist that were built before")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheel, sdist, tree = built(folder, options.dist)
        ways = [(python, file, False) for python in options.pythons for file in (wheel, sdist)]
        ways += [(options.pythons[0], wheel, True)] * options.lowest
        for position, (python, file, lowest) in enumerate(ways):
            print(f"\n{file.name} on {python}, {'oldest' if lowest else 'newest'} dependencies", flush=True)
            (place := folder / str(position)).mkdir()
            programs = installed(python, file, tree, lowest, place / "venv")
            used(programs, tree, place)
            if options.suite and file is wheel:
                tested(programs, tree, place)


if __name__ == "__main__":
    main()
