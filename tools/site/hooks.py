"""Hooks of mkdocs: pages made from the program and from files beside docs/, and links to them."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from mkdocs.structure.files import File, Files  # noqa: E402

from tools.site.api import api_pages  # noqa: E402
from tools.site.catalog import catalog_pages  # noqa: E402
from tools.site.commands import EXAMPLES, command_pages, examples_page  # noqa: E402
from tools.site.constraints import constraint_page  # noqa: E402
from tools.site.formulas import formula_pages, glossary, lists  # noqa: E402
from tools.site.links import rewritten  # noqa: E402
from tools.site.studies import notebook_pages, schema_page, schemas, study_pages  # noqa: E402
from tools.site.words import PAGE, with_quantities, with_words  # noqa: E402

BESIDE = {  # files beside docs/ that are pages of the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/results.md": "benchmarks.md",
    "studies": "studies/index.md",
    "notebooks": "tutorials/01_quickstart.md",
}
BOOST = {
    "": 20.0,
    "papers/": 1.0,
    "studies/": 1.0,
    "reference/": 1.0,
    "reference/catalog/model/": 0.1,
    "reference/catalog/software/": 0.1,
}  # in searches
WIDE = (
    "reference/catalog/",
    "reference/glossary.md",
    "reference/quantities.md",
    "answers.md",
    "examples.md",
    "accuracy.md",
)
_sources: dict[str, str] = {}  # page -> file in the repository that holds its text


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""

    def add(page: str, content: str | bytes, source: str = "") -> None:
        files.append(File.generated(config, page, content=content))
        if source:
            _sources[page] = source

    for source, page in BESIDE.items():
        if (ROOT / source).is_file():
            add(page, (ROOT / source).read_text(encoding="utf-8"), source)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    add("citation.md", f"# How to cite\n\nThe file `CITATION.cff`:\n\n```yaml\n{citation}```\n", "CITATION.cff")
    studies = list(study_pages())
    listed = "".join(f"* [{source}]({page.removeprefix('studies/')})\n" for source, page, _ in studies)
    add("studies/index.md", f"# Example studies\n\n{listed}")
    for source, page, text in studies:
        add(page, text, source)
    for source, page, text, pictures in notebook_pages():
        add(page, text, source)
        for name, content in pictures.items():
            add(name, content)
    made = (
        *formula_pages(),
        constraint_page(),
        *lists(),
        *glossary(),
        *catalog_pages(),
        *command_pages(),
        *api_pages(),
        schema_page(),
    )
    for page, text in (*made, *schemas()):
        add(page, text)
    config["nav"] = with_children(config["nav"], sorted(file.src_uri for file in files.documentation_pages()))
    return files


def with_children(nav: Any, pages: Sequence[str]) -> Any:
    """A navigation in which the pages of a folder, by subfolder, stand below its index, or in the place of its name."""
    if isinstance(nav, list):
        return [with_children(one, pages) for one in nav]
    if isinstance(nav, dict):
        return {title: with_children(below, pages) for title, below in nav.items()}
    folder, _, name = nav.rpartition("/")
    if not folder or name not in ("index.md", ""):
        return nav

    def part_of(page: str) -> str:
        return page.removeprefix(f"{folder}/").rpartition("/")[0]

    below = [page for page in pages if page.startswith(f"{folder}/") and page != nav]
    found: list[Any] = [nav] if name else []
    for part, members in groupby(sorted(below, key=part_of), key=part_of):
        own = list(members)
        found += (
            [{part.replace("/", ": ").replace("_", " "): sorted(own, key=lambda p: not p.endswith("/index.md"))}]
            if part
            else own
        )
    return found


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to files of the repository as links to their pages; what a search finds first; room for wide pages."""
    place = page.file.src_uri
    if heading := re.search(r"^# (.+?)(?: \{.*\})?$", markdown, re.MULTILINE):
        page.meta.setdefault("title", heading[1].replace("`", ""))
    page.meta["search"] = {"boost": BOOST[max((b for b in BOOST if place.startswith(b)), key=len)]}
    if place.startswith(WIDE):
        page.meta["hide"] = ["toc"]
    if place == PAGE:
        markdown = with_quantities(markdown, place)
    if f"docs/{place}" == EXAMPLES:
        markdown = examples_page()
    source = _sources.get(place, f"docs/{place}")
    if place in _sources or Path(config.docs_dir, place).exists():
        known = {file: shown for shown, file in _sources.items()} | {f: p for f, p in BESIDE.items() if "." not in f}
        return rewritten(markdown, source, place, known)
    return markdown


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Words that commands printed as links to the nomenclature."""
    return with_words(html, page.file.src_uri)
