"""The documentation site, built strictly: links, no other host, search, accessibility, the width of a phone."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from axe_playwright_python.sync_playwright import Axe

from perfgrid.catalog import load_catalog
from perfgrid.cli.main import COMMANDS
from perfgrid.formulas import WORKLOADS, registry_of

from .conftest import SIZES

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TEN = (
    *("index.html", "quickstart.html", "accuracy.html", "papers.html", "gallery.html", "reference/glossary.html"),
    *("reference/catalog/device/h100-sxm-80gb.html", "reference/formulas/cost/die.html"),
    *("reference/commands/train.html", "reference/api/optimize.html"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site; PERFGRID_SITE names one that was built before."""
    if built := os.environ.get("PERFGRID_SITE"):
        return Path(built)
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", folder], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def texts(site):
    return {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}


def test_every_model_device_formula_and_command_has_its_place(texts):
    entries = [f"reference/catalog/{kind}/{name}.html" for kind, held in load_catalog().tables.items() for name in held]
    assert [page for page in entries if page not in texts] == []
    assert [name for name in COMMANDS if f"reference/commands/{name}.html" not in texts] == []
    formulas = "".join(text for page, text in texts.items() if page.startswith("reference/formulas/"))
    anchors = set(re.findall(r'id="([^"]+)"', formulas))
    named = {n for w in WORKLOADS for n, f in registry_of(w).formulas.items() if f.same_as is None}
    assert named - anchors == set()


def test_links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site, texts):
    anchors = {page: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for page, text in texts.items()}
    broken = []
    for page, text in texts.items():
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]+src="?([^" >]+)', text)
        loaded += re.findall(r'<link[^>]+rel="?(?:stylesheet|preload|preconnect|icon)[^>]+href="?([^" >]+)', text)
        assert [address for address in loaded if re.match(r"(https?:)?//", address)] == [], page
        if page == "404.html":  # its addresses are those of a server's root
            continue
        for address in {*loaded, *re.findall(r'<a[^>]+href="([^"]+)"', text)}:
            if re.match(r"[a-z]+:", address):
                continue
            path, _, anchor = unquote(address).partition("#")
            there = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            there = there if (site / there).is_file() else os.path.join(there, "index.html")
            if not (site / there).is_file() or (anchor and there in anchors and anchor not in anchors[there]):
                broken.append((page, address))
    assert broken == []


SEARCHES = {  # what a reader types, and a page that is among the first eight answers
    "dies_per_wafer": "formulas/cost/die",
    "time of an all-reduce": "networks",
    "infeasible": "results",
    "H200 bandwidth": "device/h200-sxm-141gb",
    "wafer price": "cost",
    "own accelerator": "own_device",
    "pipeline bubble": "pipelines/pipeline",
    "megatron log": "records",
}


def searched(page, words):
    """The pages that a search answers with, best first. Keys that are pressed before the index is read are lost."""
    shown = "() => [...document.querySelectorAll('.md-search-result__item > a')].map(a => a.href.split('?')[0])"
    for _ in range(30):
        page.fill("input[name=query]", "")
        page.type("input[name=query]", words)
        page.wait_for_timeout(2000)
        if found := page.evaluate(shown):
            return found
    raise AssertionError(f"no answer to {words!r}")


def test_the_search_finds_pages_without_a_server(page, site):
    requests, missed = [], {}
    page.on("request", lambda request: requests.append(request.url))
    page.goto((site / "index.html").as_uri())
    for words, wanted in SEARCHES.items():
        found = list(dict.fromkeys(link.rpartition("#")[0] or link for link in searched(page, words)))[:8]
        if not any(wanted in link for link in found):
            missed[words] = [link.rpartition("/")[2] for link in found]
    assert not missed, missed
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


@pytest.mark.parametrize("name", TEN)
def test_pages_are_accessible_and_as_wide_as_a_phone(page, site, name):
    page.set_viewport_size(SIZES["phone"])
    page.goto((site / name).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES["phone"]["width"]
    found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]})
    serious = [v for v in found.response["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], v["nodes"][0]["html"][:120], len(v["nodes"])) for v in serious] == []


def test_equations_hold_text_in_their_words(texts):
    """A browser reads an element inside an operator as HTML and leaves the equation there."""
    pages = [text for text in texts.values() if "<math" in text]
    assert len(pages) > 80
    assert not [m[0] for text in pages for m in re.finditer(r"<(mo|mi|mn|mtext)\b[^>]*(?<!/)><(?!/)[^>]*>", text)]
