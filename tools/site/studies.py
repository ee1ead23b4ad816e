"""Pages of notebooks with their outputs, of example studies, and of the keys of study files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import MarkdownExporter

from perfgrid.catalog import load_catalog
from perfgrid.study.file import StudyFile
from perfgrid.validation.schema import Record

from .links import escaped, table

ROOT = Path(__file__).parents[2]


def notebook_pages() -> Iterator[tuple[str, str, str, dict[str, bytes]]]:
    """File in the repository, page, text and pictures of every notebook."""
    for file in (*sorted(ROOT.glob("notebooks/*.ipynb")), *sorted(ROOT.glob("studies/papers/*.ipynb"))):
        source = file.relative_to(ROOT).as_posix()
        folder = "tutorials" if source.startswith("notebooks/") else "papers"
        page = f"{folder}/{file.stem}.md"
        notebook = nbformat.read(file, as_version=4)
        for cell in notebook.cells:  # what plotting returns says nothing beside the picture
            if "outputs" in cell:
                cell.outputs = [o for o in cell.outputs if "<Axes" not in o.get("data", {}).get("text/plain", "")]
        text, resources = MarkdownExporter().from_notebook_node(notebook, {"output_files_dir": f"{file.stem}_files"})
        text = text.replace("![png]", f"![Picture of {file.stem.replace('_', ' ')}]")
        pictures = {f"{folder}/{name}": content for name, content in resources["outputs"].items()}
        yield source, page, text, pictures


def study_pages() -> Iterator[tuple[str, str, str]]:
    """File in the repository, page and text of every example study."""
    for file in sorted(ROOT.glob("studies/**/*.toml")):
        source = file.relative_to(ROOT).as_posix()
        page = source.removesuffix(".toml") + ".md"
        text = file.read_text(encoding="utf-8")
        yield source, page, f"# {source}\n\n```sh\nperfgrid run {source}\n```\n\n```toml\n{text}```\n"


def schema_page() -> tuple[str, str]:
    """Path and text of the reference of study files: every table with its keys."""
    schema = StudyFile.model_json_schema()
    text = (
        "# Keys of study files\n\nFrom the schema that checks them. [How to write a study](../study.md). JSON Schemas: "
    )
    text += "[study](schemas/study.json), [catalog](schemas/catalog.json), [record](schemas/record.json).\n"
    for name, definition in ({"(top level)": schema} | schema.get("$defs", {})).items():
        if "properties" not in definition:
            continue
        required = set(definition.get("required", ()))
        rows = [
            [f"`{key}`", _type(of), "yes" if key in required else "", _default(of), escaped(of.get("description", ""))]
            for key, of in definition["properties"].items()
        ]
        text += f"\n## {name}\n\n{escaped(definition.get('description', ''))}\n\n"
        text += table(["key", "type", "required", "default", "meaning"], rows)
    return "reference/study.md", text


def schemas() -> Iterator[tuple[str, str]]:
    """JSON Schemas of study files and records, for editors and other tools."""
    for name, model in (("study", StudyFile), ("record", Record)):
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
        yield f"reference/schemas/{name}.json", json.dumps(schema, indent=1)
    yield "reference/schemas/catalog.json", json.dumps(_catalog_schema(), indent=1)


def _catalog_schema() -> dict[str, Any]:
    """The schema of a catalog file: its kind, and entries with the quantities of that table."""
    kinds: dict[str, dict[str, Any]] = {}
    for variable in load_catalog().variables.values():
        kinds.setdefault(variable.of, {})[variable.name] = {"description": f"{variable.meaning} [{variable.unit}]"}
    about = {name: {"type": "string"} for name in ("extends", "title", "source")}
    entries = [
        {
            "properties": {"kind": {"const": kind}},
            "additionalProperties": {"type": "object", "properties": about | quantities},
        }
        for kind, quantities in kinds.items()
        if kind in load_catalog().tables
    ]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "required": ["kind"], "anyOf": entries}


def _type(of: dict[str, Any]) -> str:
    if "$ref" in of:
        return of["$ref"].rpartition("/")[2]
    if "anyOf" in of:
        return " or ".join(_type(one) for one in of["anyOf"] if one.get("type") != "null")
    if "enum" in of:
        return ", ".join(f"`{word}`" for word in of["enum"])
    if of.get("type") == "array":
        return f"list of {_type(of.get('items', {})) or 'values'}"
    kind = str(of.get("type", ""))
    return {"object": "table", "string": "text"}.get(kind, kind)


def _default(of: dict[str, Any]) -> str:
    return "" if of.get("default") is None else f"`{json.dumps(of['default'])}`"
