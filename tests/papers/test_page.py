"""docs/papers.md says what the notebooks show, and the notebooks show what the program gives now."""

import json
import re
import runpy

import pytest

from perfgrid.catalog import load_catalog
from tests.paths import PAPERS, ROOT
from tools import papers

NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def kept(name):
    """What a notebook keeps."""
    return json.loads((papers.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def test_the_page_is_that_of_the_notebooks():
    """Otherwise: python -m tools.papers recompute_memory (any name)"""
    assert papers.PAGE.read_text(encoding="utf-8") == papers.page()
    assert sorted(papers.NOTEBOOKS) == sorted(path.stem for path in papers.FOLDER.glob("*.py"))
    for name in papers.NOTEBOOKS:
        picture = (papers.PICTURES / f"{name}.png").read_bytes()
        assert picture == papers.pictures_of(kept(name))[0]
        assert 5000 < len(picture) < 120_000


def test_every_study_has_a_command_on_the_page():
    page = papers.PAGE.read_text(encoding="utf-8")
    assert [path.stem for path in PAPERS if f"studies/papers/{path.name}" not in page] == []


def test_every_claim_names_a_source():
    known = load_catalog().references
    for name in papers.NOTEBOOKS:
        for stated, computed, agreement in papers.claims_of(kept(name)):
            keys = [key for text in re.findall(r"\[([^\]]*)\]", stated) for key in re.findall(r"[a-z]+\d{4}\w*", text)]
            assert keys, stated
            assert all(key in known for key in keys), stated
            assert NUMBER.search(computed) or agreement == "not modelled"
            assert agreement


@pytest.mark.parametrize("name", papers.NOTEBOOKS)
def test_a_notebook_is_its_script(name):
    script = (papers.FOLDER / f"{name}.py").read_text(encoding="utf-8")
    for cell in kept(name)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert source in script
        else:
            assert all(line in script for line in source.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("name", papers.NOTEBOOKS)
def test_a_notebook_shows_what_the_program_gives(name, monkeypatch):
    """The same words, and numbers within 3 % or one unit of their last digit."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(ROOT)
    found = runpy.run_path(str(papers.FOLDER / f"{name}.py"))["claims"]
    for now, then in zip(found, papers.claims_of(kept(name)), strict=True):
        for text, shown in zip(now, then, strict=True):
            text = re.sub(r"(\d)%", r"\1 %", text)
            assert NUMBER.sub("#", text) == NUMBER.sub("#", shown)
            for a, b in zip(NUMBER.findall(text), NUMBER.findall(shown), strict=True):
                digits = len(b.partition(".")[2])
                assert float(a.replace(",", "")) == pytest.approx(
                    float(b.replace(",", "")), rel=0.03, abs=1.01 * 10.0**-digits
                )
