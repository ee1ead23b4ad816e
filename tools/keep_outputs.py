"""Execute a notebook's script and keep what its cells show: python -m tools.keep_outputs notebooks/04_one_design.py

Of datasets shown as tables only the table is kept, of pictures their 64 most frequent colours.
"""

import base64
import io
import re
import sys
from pathlib import Path

import jupytext  # pyright: ignore[reportMissingImports]
import nbformat
from nbclient import NotebookClient
from PIL import Image


def smaller(picture: str) -> str:
    """A PNG in base64 with a palette: a third of the bytes."""
    kept = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        image.convert("RGB").quantize(64, Image.Quantize.MAXCOVERAGE).save(kept, "PNG", optimize=True)
    return base64.b64encode(kept.getvalue()).decode()


def main(script: Path) -> None:
    """Write the notebook of a percent script, with its outputs."""
    notebook = jupytext.read(script)
    NotebookClient(notebook, record_timing=False).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        for output in cell.get("outputs", ()):
            if (data := output.get("data", {})).get("text/html"):
                html = re.sub("<details>.*</details>", "", data["text/html"], flags=re.S)
                output["data"] = nbformat.from_dict({"text/html": html})
            elif "image/png" in data:
                output["data"] = nbformat.from_dict({**data, "image/png": smaller(data["image/png"])})
    kernel = notebook.metadata["kernelspec"]
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel})
    nbformat.write(notebook, script.with_suffix(".ipynb"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
