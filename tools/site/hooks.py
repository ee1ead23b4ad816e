"""Hooks of mkdocs: pages made from the program and from files beside docs/, and links to them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from mkdocs.structure.files import File, Files  # noqa: E402

from tools.site.api import api_pages  # noqa: E402
from tools.site.catalog import catalog_pages  # noqa: E402
from tools.site.commands import command_pages  # noqa: E402
from tools.site.constraints import constraint_page  # noqa: E402
from tools.site.formulas import formula_pages, glossary, lists  # noqa: E402
from tools.site.links import rewritten  # noqa: E402
from tools.site.studies import notebook_pages, schema_page, schemas, study_pages  # noqa: E402

BESIDE = {  # files beside docs/ that are pages of the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/results.md": "benchmarks.md",
    "studies": "studies/index.md",
    "notebooks": "tutorials/01_quickstart.md",
}
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
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to files of the repository as links to their pages."""
    place = page.file.src_uri
    source = _sources.get(place, f"docs/{place}")
    if place in _sources or Path(config.docs_dir, place).exists():
        known = {file: shown for shown, file in _sources.items()} | {f: p for f, p in BESIDE.items() if "." not in f}
        return rewritten(markdown, source, place, known)
    return markdown
