"""What reaches a terminal: text of files with its control characters escaped, mistakes in one line."""

import json
import subprocess
import sys

import pytest

from tests.fuzz.program import run

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
    assert all(c.isprintable() or c == "\n" for c in found.out + found.err)
    assert "\nforged" not in found.out + found.err
    if found.status:
        assert found.status == 2
        assert found.out == ""
        assert len(found.err.splitlines()) == 1
    else:
        assert found.out


def test_escapes_are_shown(folder):
    assert run(folder, ["run", "s.toml"]).out.startswith("\\x1b]0;owned\\x07\\x1b[31mred\\nforged: line\\u202e: best")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "no command 'rnu'; did you mean 'run'?"),
        (["run"], "missing argument 'study'"),
        (["run", "s.toml", "--overwrit"], "no such option: --overwrit (Possible options: --overwrite)"),
        (["best", "s.toml", "--top", "a"], "invalid value for '--top'"),
        (["best", "s.toml", "--over", "", "--minimize", "die_cost", "--top", "9" * 9], "more than 1,000,000 in all"),
        (["catalog", "shwo"], "no such command 'shwo'. Did you mean 'show'?"),
    ],
)
def test_a_mistake_in_the_command_line_is_one_line(arguments, message, folder):
    found = run(folder, arguments)
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith("perfgrid: ")
    assert message in found.err
    assert len(found.err.splitlines()) == 1


def test_of_a_long_message_both_ends_are_printed(folder):
    found = run(folder, ["run", "s.toml", "--set", f"outputs=['{'x' * 5000}']"])
    assert found.status == 2
    assert len(found.err) < 2050
    assert found.err.startswith("perfgrid: s.toml, outputs: unknown quantity 'xxx")
    assert found.err.endswith("xxx'\n")


def test_a_terminal_that_shows_few_characters(folder):
    given = {"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin", "PERFGRID_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "perfgrid", "explain", "s.toml", "é", "--at", "device=own"]
    found = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True)
    assert found.returncode == 2
    assert found.stderr.startswith("perfgrid: unknown quantity '\\xe9'")
