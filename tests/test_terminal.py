"""What reaches a terminal: text of files with its control characters escaped, mistakes in one line."""

import json
import shlex
import subprocess
import sys

import pytest

from perfgrid.engine.errors import printable
from tests.fuzz.program import controls, run

EVIL = "\x1b]0;owned\x07\x1b[31mred\nforged: line\u202e"
STUDY = {
    "title": EVIL,
    "workload": "manufacturing",
    "outputs": ["die_cost"],
    "catalog": ["own.toml"],
    "axes": {"device": ["own", "b200"]},
    "best": {"over": "device", "minimize": "die_cost"},
}


@pytest.fixture
def folder(tmp_path):
    """A study and a catalog of a stranger."""
    quoted = json.dumps(EVIL)
    (tmp_path / "own.toml").write_text(f'kind = "device"\n[own]\nextends = "h100-sxm-80gb"\ntitle = {quoted}\n')
    lines = [f"{key} = {json.dumps(value)}" for key, value in STUDY.items() if isinstance(value, str | list)]
    lines += ["[axes]", 'device = ["own", "b200"]', "[best]", 'over = "device"', 'minimize = "die_cost"']
    (tmp_path / "s.toml").write_text("\n".join(lines))
    return tmp_path


COMMANDS = [
    ["run", "s.toml"],
    ["plan", "s.toml"],
    ["best", "s.toml"],
    ["explain", "s.toml", "die_cost", "--at", "device=own"],
    ["catalog", "show", "device.own", "--catalog", "own.toml"],
    ["catalog", "list", "device", "--catalog", "own.toml"],
    ["run", "s.toml", "--set", f"axes.{'x'}={json.dumps([EVIL])}"],
    ["run", "s.toml", "--set", f'axes.pick={{zip={{wafer_price=[1, 2]}}, labels=[{json.dumps(EVIL)}, "b"]}}'],
    ["run", EVIL],
    ["explain", "s.toml", EVIL, "--at", "device=own"],
    ["explain", "s.toml", "die_cost", "--at", f"device={EVIL}"],
    [EVIL],
    ["run", "s.toml", EVIL],
    ["run", "s.toml", "--tile-points", EVIL],
    ["diff", EVIL, "b.nc"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments)[:40].encode("unicode_escape"))
def test_no_control_character_is_printed(arguments, folder):
    found = run(folder, arguments)
    assert not controls(found.out + found.err)
    assert "\nforged" not in found.out + found.err
    if found.status:
        assert found.status == 2
        assert found.out == ""
        assert len(found.err.splitlines()) == 1
    else:
        assert found.out


def test_escapes_are_shown(folder):
    assert run(folder, ["run", "s.toml"]).out.startswith("\\x1b]0;owned\\x07\\x1b[31mred\\nforged: line\\u202e: best")


def test_only_controls_are_escaped():
    escaped = [c for c in map(chr, range(sys.maxunicode + 1)) if printable(c) != c]
    assert [c for c in escaped if c != "\n"] == controls("".join(map(chr, range(sys.maxunicode + 1))))
    assert "\n" in escaped
    for text in ("東京\u3000大阪", "10\u00a0GB", "👩\u200d💻", "naïve", "\u0627\u200c\u0628"):
        assert printable(text) == text


def test_titles_in_any_script(folder):
    text = (folder / "s.toml").read_text().replace(json.dumps(EVIL), '"東京\u3000👩\u200d💻"')
    (folder / "s.toml").write_text(text)
    assert run(folder, ["run", "s.toml"]).out.startswith("東京\u3000👩\u200d💻: best")


# -- how a command ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closing", [">&-", "1</dev/null", "2>&-"])
def test_streams_as_a_shell_closes_them(closing, folder):
    """Never a traceback; a result is written whatever becomes of messages."""
    command = f"exec {shlex.quote(sys.executable)} -m perfgrid plan s.toml {closing}"
    done = subprocess.run(["/bin/sh", "-c", command], cwd=folder, capture_output=True, text=True)
    refused = closing != "2>&-"
    assert done.returncode == (2 if refused else 0)
    assert bool(done.stdout) != refused
    assert len(done.stderr.splitlines()) == refused
