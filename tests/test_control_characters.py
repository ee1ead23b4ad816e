"""Titles, labels, reasons and names of files that hold control characters: none is printed or written raw.

Data keep them: attributes of results are what the study states. What people look at is text: screens and text files.
"""

import json
import re
import xml.etree.ElementTree as xml

import pytest
import xarray as xr

import perfgrid as pg
from perfgrid.engine.errors import CONTROLS, printable, printable_lines
from perfgrid.pictures.pages.report import report
from tests.fuzz.program import controls, run

ESCAPE = "\x1b[31mred\x1b]0;t\x07\x9b\u202e\u2028"  # of terminals; another direction
WRITTEN = "".join(f"\\u{ord(c):04x}" if CONTROLS.match(c) else c for c in ESCAPE)  # in TOML and JSON
TEXTS = (".html", ".svg", ".csv", ".json", ".jsonl", ".toml", ".yaml", ".sh", ".txt", ".md")
CATALOG = f"""kind = "device"
[own]
extends = "h100-sxm-80gb"
title = "{WRITTEN}"
source = "own2026"
"""
REFERENCES = f"@misc{{own2026, title = {{{ESCAPE}}}, author = {{{ESCAPE}}}, year = {{2026}}}}\n"
STUDY = f"""title = "{WRITTEN}"
outputs = ["step_time", "memory_per_device", "own_price"]
catalog = ["own.toml", "own.bib"]
[axes]
model = ["llama-2-7b"]
device = ["own", "a100-sxm-80gb"]
topology = ["rail-optimized"]
[axes.parallelism]
devices = [8]
tp = [1, 2, 8]
pp = [1, 2]
[workload_parameters]
sequence_length = 2048
global_batch = 64
[best]
over = "parallelism"
minimize = "step_time"
"""
FORMULAS = f'''import perfgrid as pg
@pg.formula(unit="USD", source="{WRITTEN}")
def own_price(step_time):
    """Price {WRITTEN}."""
    return 2.0 * step_time
@pg.constraint(kind="exceeds", reason="{WRITTEN}", source="{WRITTEN}", about="own_price")
def own_limit(own_price):
    """Whether {WRITTEN}."""
    return own_price < 1.0
'''
JOB = """torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4 \\
  --seq-length 512 --micro-batch-size 1 --global-batch-size 8 --bf16 --load '\x1b[31mx' --\x1b[31m 3 --vocab-size 1000
"""
NAMED = "a\x1b[31mb"  # of files
OWN = ("--formulas", "own.py")
PLAIN = ("--set", 'outputs=["step_time", "memory_per_device"]')
FILES = ("--catalog", "own.toml", "--catalog", "own.bib")
COMMANDS = [
    ("plan", "s.toml", *OWN),
    ("run", "s.toml", *OWN, "-o", "r.nc"),
    ("expand", f"{NAMED}.pgf"),
    ("best", "s.toml", *OWN, "--wide"),
    ("explain", "s.toml", "own_price", *OWN, "--at", "best", "--sources"),
    ("explain", "r.nc", "own_price", *OWN, "--at", "device=own", "--json"),
    ("kernels", "s.toml", *OWN, "--at", "best"),
    ("compare", "s.toml", *OWN, "--a", "device=own", "--b", "device=a100-sxm-80gb"),
    ("diff", "r.nc", "r.nc", "--json"),
    ("plot", "s.toml", *PLAIN, "-o", f"{NAMED}.svg"),
    ("report", "s.toml", *OWN, "-o", f"{NAMED}.html"),
    ("formulas", *OWN, "--json"),
    ("catalog", "show", "own", *FILES),
    ("catalog", "list", "device", *FILES),
    ("catalog", "check", "own.toml", "own.bib"),
    ("train", "llama-2-7b", "--on", "own", *FILES, "--devices", "8", "--csv", f"{NAMED}.csv"),
    ("read-job", "job.sh", "--on", "h100-sxm-80gb", "-o", f"{NAMED}.toml"),
    ("read-job", f"{NAMED}.sh"),
    ("validate", f"{NAMED}.jsonl"),
    ("validate", "odd.csv"),
    ("verify", f"{NAMED}.zarr"),
    ("plan", f"{NAMED}.toml"),
    ("best", "s.toml", f"--{NAMED}"),
    (NAMED,),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("controls")
    for name, text in {
        "own.toml": CATALOG,
        "s.toml": STUDY,
        "own.py": FORMULAS,
        "job.sh": JOB,
        "own.bib": REFERENCES,
    }.items():
        (found / name).write_text(text)
    (found / f"{NAMED}.jsonl").write_text(json.dumps({"id": ESCAPE, ESCAPE: 1}))
    (found / "odd.csv").write_text(f"device,model,step_time,{ESCAPE[:5]}\nx,y,{ESCAPE[:5]},1\n")
    return found


def test_every_command(folder):
    """Nothing raw on the screen or in a text that a command writes, whatever its status."""
    before = set(folder.iterdir())
    done = 0
    for command in COMMANDS:
        found = run(folder, command)
        for text in (found.out, found.err):
            assert not controls(text), (command, text[:500])
        done += found.status == 0
    assert done >= 14, "most commands do what they are asked"
    texts = [path for path in set(folder.iterdir()) - before if path.suffix in TEXTS]
    assert {path.suffix for path in texts} >= {".html", ".svg", ".csv", ".toml"}
    for path in texts:
        assert not controls(path.read_text(encoding="utf-8").replace("\t", "")), path


def test_a_result_of_a_stranger(folder, tmp_path):
    """Labels, units, reasons and titles of a result that perfgrid would not have written."""
    study = {"workload": "manufacturing", "outputs": ["die_cost", "die_yield"], "axes": {"device": ["b200", "mi300x"]}}
    found = pg.evaluate(pg.Study.make(**study), "float64").assign_coords(device=[ESCAPE, "mi300x"])
    found = found.assign_attrs(title=ESCAPE, study=ESCAPE, source=ESCAPE)
    for variable in found.data_vars.values():
        variable.attrs |= {name: ESCAPE for name in ("reason", "meaning", "long_name") if name in variable.attrs}
    found["die_cost"].attrs["units"] = ESCAPE
    found.to_netcdf(tmp_path / "odd.nc")
    commands = [
        ("best", "odd.nc", "--over", "device", "--minimize", "die_cost"),
        ("explain", "odd.nc", "die_cost"),
        ("plot", "odd.nc", "-o", "odd.svg"),
        ("report", "odd.nc", "-o", "odd.html"),
        ("diff", "odd.nc", "odd.nc"),
        ("distribution", "odd.nc", "--of", "die_cost"),
        ("plan", "odd.nc"),
    ]
    for command in commands:
        shown = run(tmp_path, command)
        assert not controls(shown.out), command
        assert not controls(shown.err), command
    for path in (path for path in tmp_path.iterdir() if path.suffix in TEXTS):
        assert not controls(path.read_text(encoding="utf-8").replace("\t", "")), path


def test_pages_and_pictures(folder):
    """A title in a page is text that shows the escape, in HTML and in the data; a picture is well-formed XML."""
    if not (folder / "r.nc").exists():
        run(folder, ("run", "s.toml", *OWN, "-o", "r.nc"))
    with xr.open_dataset(folder / "r.nc") as result:
        page = report(result.load(), NAMED)
    assert f"<title>{printable(ESCAPE)}</title>" in page
    assert not controls(page.replace("\t", ""))
    held = re.search(r'id="content">(.*?)</script>', page)
    assert held is not None
    content = json.loads(held[1])
    assert printable(content["title"]) == printable(ESCAPE)
    run(folder, ("plot", "s.toml", *PLAIN, "-o", "p.svg", "--overwrite"))
    assert xml.fromstring((folder / "p.svg").read_text()) is not None


def test_texts_of_files_keep_their_lines_and_their_syntax():
    text = json.dumps({"a\n\t": ESCAPE}, ensure_ascii=False, indent=1)
    shown = printable_lines(text)
    assert not controls(shown)
    assert json.loads(shown) == {"a\n\t": ESCAPE}
    assert printable_lines("one\n\ttwo\r\n") == "one\n\ttwo\r\n"
