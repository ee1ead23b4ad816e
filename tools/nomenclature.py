"""Write docs/nomenclature.md from the words of perfgrid/analysis/nomenclature.toml: `python -m tools.nomenclature`."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from perfgrid.analysis.nomenclature import Word, words

PAGE = Path(__file__).parents[1] / "docs" / "nomenclature.md"
HEADER = """# Nomenclature

What the words on screens mean. `perfgrid formulas MFU` prints the same, with the formula behind it.
Quantities and their units: [glossary](reference/glossary.md), [computed quantities](reference/quantities.md);
sources: [references](reference/references.md).
"""


def page() -> str:
    """The text of the page."""
    text = HEADER
    for section, members in groupby(words().values(), key=lambda word: word.section):
        text += f"\n## {section}\n\n| word | unit | meaning | quantity | source |\n|---|---|---|---|---|\n"
        text += "".join(_row(word) for word in members)
    return text


def _row(word: Word) -> str:
    symbol = f", *{word.symbol}*" if word.symbol and word.symbol != word.name else ""
    others = "".join(f'<br><a id="{name}"></a>{name}' for name in word.also if name.isupper() and name.isalpha())
    unit = "" if word.unit == "1" else word.unit
    quantity = f"`{word.quantity}`" if word.quantity else ""
    name = f'<a id="{word.anchor}"></a>{word.name}{symbol}{others}'
    return f"| {name} | {unit} | {word.text} | {quantity} | {word.source.replace(',', ',<br>')} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
