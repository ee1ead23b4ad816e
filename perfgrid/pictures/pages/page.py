"""One HTML page of data, styles and scripts, which loads nothing and runs nothing but its own scripts."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from perfgrid.engine.errors import printable

VENDORED = ("vendor/d3.min.js", "vendor/plot.min.js")
OWN = tuple(
    f"static/{name}.js" for name in ("numbers", "elements", "sources", "tables", "derivation", "chart", "view", "page")
)
PLOT_STYLE = """:where(.picture) {
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}
:where(.picture text),
:where(.picture tspan) {
  white-space: pre;
}"""  # what the plotting library puts into each SVG of the class `picture`


def page(content: Mapping[str, Any], arrays: Mapping[str, str] | None = None, live: bool = False) -> str:
    """The page of some content, with arrays embedded as text; ``live``: one that asks the server it came from."""
    scripts = ["".join(_text(f) for f in VENDORED), '"use strict";\n{\n' + "\n".join(map(_text, OWN)) + "\n}\n"]
    style = _text("static/page.css")
    title = html.escape(printable(str(content["title"])))
    data = [f'<script type="application/json" id="content">{_json(content)}</script>']
    data += [f'<script type="text/plain" id="{html.escape(n)}">{t}</script>' for n, t in (arrays or {}).items()]
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy(live)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f'<title>{title}</title>\n<link rel="icon" href="data:,">',
            f"<style>{style}</style>\n</head>\n<body>",
            f'<main id="page"><h1>{title}</h1><p>This page shows its numbers by JavaScript.</p></main>',
            *data,
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        )
    )


@cache
def policy(live: bool) -> str:
    """The content security policy: the scripts and styles of this package by their hashes, nothing else."""
    scripts = ["".join(_text(f) for f in VENDORED), '"use strict";\n{\n' + "\n".join(map(_text, OWN)) + "\n}\n"]
    connect = "'self'" if live else "'none'"
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            f"style-src {_hash(_text('static/page.css'))} {_hash(PLOT_STYLE)}",
            "img-src blob: data:",
            f"connect-src {connect}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


@cache
def _text(name: str) -> str:
    return files("perfgrid.pictures.pages").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(content: Any) -> str:
    """JSON within a script element: no character of it ends the element."""
    text = json.dumps(plain_data(content), separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plain_data(value: Any) -> Any:
    """What a page gets: numbers that JSON cannot hold as null, texts with escapes for control characters.

    Labels come from files of strangers, and pictures of a page can be saved. Line breaks stay: studies have them.
    """
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, str):
        return "\n".join(map(printable, value.split("\n")))
    if isinstance(value, Mapping):
        return {plain_data(str(k)): plain_data(v) for k, v in value.items()}
    return [plain_data(v) for v in value] if isinstance(value, list | tuple) else value
