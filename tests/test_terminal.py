"""What reaches a terminal: text of files with its control characters escaped, mistakes in one line."""

import errno
import json
import os
import subprocess
import sys

import pytest

import perfgrid as pg
from perfgrid.cli import main as cli
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


@pytest.mark.parametrize("arguments", [["formulas"], ["formulas", "--json"], ["--help"], ["best", "s.toml"]])
def test_a_closed_pipe_ends_quietly(arguments, folder):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "perfgrid", *arguments]
    found = subprocess.run(command, cwd=folder, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (found.returncode, found.stderr) == (141, "")


def test_a_file_is_whole_where_the_pipe_is_closed(folder):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "perfgrid", "run", "s.toml", "-o", "a.nc"]
    found = subprocess.run(command, cwd=folder, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (found.returncode, found.stderr) == (141, "")
    assert "die_cost" in pg.open_result(folder / "a.nc").load()
    assert not list(folder.glob(".perfgrid-*"))


def test_a_full_disk_is_reported(folder):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "perfgrid", "formulas", "--json"]
        found = subprocess.run(command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (found.returncode, found.stderr) == (2, "perfgrid: No space left on device\n")


def raising(error):
    def imported(name):
        raise error

    return imported


@pytest.mark.parametrize(
    "bug", [FileNotFoundError(errno.ENOENT, "no such file", "inside.json"), OSError("odd"), OSError(errno.EBADF, "bad")]
)
def test_a_bug_is_no_mistake_of_the_user(bug, folder, monkeypatch):
    monkeypatch.setattr(cli, "imported", raising(bug))
    with pytest.raises(OSError, match=r".") as found:
        run(folder, ["run", "s.toml"])
    assert found.value is bug


def test_a_bug_ends_with_a_traceback(folder):
    code = "import os; from perfgrid.cli import main as m; m.imported = lambda name: os.close(-1); m.main()"
    found = subprocess.run([sys.executable, "-c", code, "run", "s.toml"], cwd=folder, capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr.startswith("Traceback")


def test_what_a_path_or_the_machine_raises_is_one_line(folder, monkeypatch):
    monkeypatch.setattr(cli, "imported", raising(PermissionError(errno.EACCES, "Permission denied", "x.toml")))
    found = run(folder, ["run", "s.toml"])
    assert (found.status, found.err) == (2, "perfgrid: 'x.toml': Permission denied\n")


@pytest.mark.parametrize(
    "arguments",
    [["validate", "x" * 300], ["run", "s.toml", "-o", f"{'x' * 300}/a.nc"], ["catalog", "check", "x" * 300]],
)
def test_names_that_are_too_long(arguments, folder, monkeypatch):
    monkeypatch.setattr(cli, "SURROUNDINGS", set())
    found = run(folder, arguments)
    assert (found.status, len(found.err.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "no command 'rnu'; did you mean 'run' or 'train'?"),
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
