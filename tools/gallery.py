"""Draw the pictures of docs/gallery.md by their commands and write the page: ``python -m tools.gallery [NAME ...]``.

Names such as quickstart-layouts draw these pictures only.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from perfgrid.pictures.views.make import subject_of, views_of

ROOT = Path(__file__).parents[1]
PAGE, FOLDER = ROOT / "docs" / "gallery.md", ROOT / "docs" / "gallery"
PICTURES = {  # study: views, as they stand on the page
    "quickstart": ("layouts", "grid", "bandwidth"),
    "serving": ("frontier", "cost"),
    "chat_service": ("devices",),
    "chat_p99": ("scale",),
    "chat_pools": ("cost",),
    "deepseek": ("breakdown", "timeline"),
    "deepseek_serving": ("batch",),
    "design_accelerator": ("nodes",),
    "bill_of_materials": ("parts", "tornado"),
    "sequence_mixers": ("decode",),
    "collectives": ("all_reduce",),
}
HEAD = """# Gallery

A picture of each example study and the command that draws it. `perfgrid plot STUDY` lists all views of a study; how to
state your own: [study.md](study.md#pictures). `python -m tools.gallery` draws the pictures and writes this page.
"""
ENTRY = """
## {title}

{see}

![{title}](gallery/{name}.png)

```sh
{command}
```
"""


def main(names: list[str]) -> None:
    """Draw the named pictures, or all, and write the page."""
    page = HEAD
    for study, wanted in PICTURES.items():
        views = {view.name: view for view in views_of(subject_of(ROOT / "studies" / f"{study}.toml"))}
        for view in wanted:
            name = f"{study}-{view}"
            command = f"perfgrid plot studies/{study}.toml --view {view} -o {name}.png"
            page += ENTRY.format(title=views[view].title, see=views[view].see, name=name, command=command)
            if not names or name in names:
                drawn = command.replace(f"{name}.png", str(FOLDER / f"{name}.png"))
                subprocess.run([*drawn.split(), "--overwrite"], cwd=ROOT, check=True)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
