"""What a newcomer relies on: the two install files agree, the README's commands and example run, names are public."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONDA = {"netcdf4": "netCDF4", "matplotlib-base": "matplotlib"}  # conda's name -> the index' name


def conda(name: str) -> set[str]:
    """What an environment file of conda states, by the names of the index."""
    lines = re.findall(r"^ +- ([a-z0-9-]+)(>=[0-9.]+)$", (ROOT / name).read_text(), re.M | re.I)
    return {str(CONDA.get(name, name)).lower() + bound for name, bound in lines}


def test_environment_files_state_what_pyproject_states():
    """What runs in one, what the tests need beside it in the other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: {r.lower() for r in stated if not r.startswith("perfgrid[")}
        for name, stated in project["optional-dependencies"].items()
    }
    used = {requirement.lower() for requirement in project["dependencies"]}
    used |= extras["plot"] | extras["stream"] | extras["distributed"] | extras["sensitivity"]
    assert conda("environment.yml") == used | {"python" + project["requires-python"]}
    assert conda("environment-test.yml") == extras["test"]


def test_the_conda_recipe_states_what_pyproject_states():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / "conda" / "recipe.yaml").read_text()
    run = re.findall(r"^    - ([a-z0-9-]+) (>=[0-9.]+)$", recipe.partition("  run:\n")[2], re.M)
    stated = [requirement.lower() for requirement in project["dependencies"]]
    assert {name + bound for name, bound in run} == {*stated, "python" + project["requires-python"]}
    assert f'version: "{project["version"]}"' in recipe
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {project['version']}\n" in citation


def test_readme_commands_exist_and_its_example_runs(monkeypatch):
    text = (ROOT / "README.md").read_text()
    assert "pip install . && perfgrid run studies/quickstart.toml -o quickstart.nc" in text
    assert "pip install '.[test]' && pytest" in text
    example = re.search(r"```python\n(.*?)```", text, re.S)
    assert example
    assert len(example[1].strip().splitlines()) <= 12
    exec(compile(example[1], "README.md", "exec"), {})


def test_links_of_the_documentation_lead_somewhere():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http") and "reference/" not in target:  # pages that mkdocs makes and checks
                assert (page.parent / target).exists(), (page.name, target)


@pytest.mark.slow
def test_the_quickstart_as_the_readme_says(tmp_path):
    """At least a million points; the file opens without perfgrid."""
    target = tmp_path / "quickstart.nc"
    done = subprocess.run(
        [sys.executable, "-m", "perfgrid", "run", "studies/quickstart.toml", "-o", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "device (rows) and model (columns)" in done.stdout
    assert "infeasible" in done.stdout
    check = (
        "import sys, math, xarray as xr; ds = xr.open_dataset(sys.argv[1]); "
        "n = math.prod(ds.sizes[a] for a in ds.attrs['study_axes'].split()); "
        "assert 'perfgrid.engine' not in sys.modules; print(n)"
    )
    found = subprocess.run([sys.executable, "-c", check, str(target)], capture_output=True, text=True, check=True)
    assert int(found.stdout) >= 1_000_000


@pytest.mark.parametrize("script", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda path: path.stem)
def test_a_notebook_is_its_script(script):
    """A committed notebook holds the cells of its percent script, without outputs that no test compares."""
    import json

    compared = script.stem == "04_one_design"  # by test_notebook.py
    notebook, script = json.loads(script.with_suffix(".ipynb").read_text()), script.read_text()
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert compared or cell["outputs"] == []
            assert source in script
        else:
            assert all(line in script for line in source.splitlines())
