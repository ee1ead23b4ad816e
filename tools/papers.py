"""Run the notebooks of studies/papers and write docs/papers.md from what they show: ``python -m tools.papers [NAME]``.

Names such as node_scaling run these notebooks only; of the others the page takes what they kept.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER, PAGE, PICTURES = ROOT / "studies" / "papers", ROOT / "docs" / "papers.md", ROOT / "docs" / "papers"
NOTEBOOKS = (  # in the order of the page
    "validation",
    "recompute_memory",
    "gpu_generations",
    "speedup_35",
    "node_scaling",
    "node_allocation",
    "compute_or_memory",
    "dram_technology",
    "flash_attention",
    "mixtures",
    "topologies",
    "chiplet_tradeoff",
    "performance_cost",
    "bottlenecks",
    "published_figures",
    "codesign",
)
HEAD = """# The two papers, claim by claim

What Guo et al. 2025 (arXiv 2507.02456, key `guo2025`) and Kundu et al. 2024 (arXiv 2407.14645, `kundu2024`) state,
or public text about the same subjects, beside what perfgrid computes. Their full text was not available: claims are
those of abstracts, reviews, public code and data of the same authors. "Agrees in kind" stands where a direction is
stated and no number was found. `python -m tools.papers` runs the notebooks and writes this page. Each command takes
less than 20 seconds once formulas are compiled, except the co-design, which takes minutes a node.
"""


class Cells(HTMLParser):
    """The texts of the cells of a table, row by row, without its index."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """Begins a row or a cell."""
        self.inside = tag == "td"
        if tag == "tr":
            self.rows.append([])
        elif self.inside:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        """Ends a cell."""
        self.inside = self.inside and tag != "td"

    def handle_data(self, data: str) -> None:
        """Text of a cell."""
        if self.inside:
            self.rows[-1][-1] += data


def claims_of(notebook: dict[str, Any]) -> list[list[str]]:
    """What is stated, what perfgrid computes and how they agree: the rows of the last table of a notebook."""
    shown = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    tables = ["".join(output["data"]["text/html"]) for output in shown if "text/html" in output.get("data", {})]
    return [[re.sub(r"(\d)%", r"\1 %", cell) for cell in row] for row in Cells(tables[-1]).rows if row]


def pictures_of(notebook: dict[str, Any]) -> list[bytes]:
    """The pictures that a notebook shows (PNG)."""
    shown = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return [base64.b64decode("".join(data["image/png"])) for data in shown if "image/png" in data]


def section(name: str) -> str:
    """The part of the page about one notebook."""
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    script = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    title = next(line for line in script.splitlines() if line.startswith("# # ")).removeprefix("# # ")
    text = f"\n## {title}\n\n![{title}](papers/{name}.png)\n\n"
    text += "| stated | perfgrid | agreement |\n|---|---|---|\n"
    text += "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in claims_of(notebook))
    lines = re.findall(r"`(perfgrid [^`]+)`", script.partition("## Claims")[0].replace("\n# ", " "))
    commands = "\n".join(dict.fromkeys(lines))
    return f"{text}\n```sh\n{commands}\n```\n\n[{name}.ipynb](../studies/papers/{name}.ipynb)\n"


def page() -> str:
    """The text of the page."""
    return HEAD + "".join(map(section, NOTEBOOKS))


def main(names: list[str]) -> None:
    """Run the named notebooks, or all, and write the page."""
    from .keep_outputs import main as keep_outputs  # whose packages the tests of the page do without

    for name in names or NOTEBOOKS:
        keep_outputs(FOLDER / f"{name}.py")
    PICTURES.mkdir(exist_ok=True)
    for name in NOTEBOOKS:
        notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
        (PICTURES / f"{name}.png").write_bytes(pictures_of(notebook)[0])
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
