"""Scripts are read as bash reads them, or not read: bash itself is the oracle, on scripts made by chance."""

import pytest
from typer.testing import CliRunner

from perfgrid.cli.main import app
from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.read import read_job
from perfgrid.jobs.shell import LARGEST_SCRIPT, UNREAD, Script, is_unread, script_of
from tests.each import each

from .bash_scripts import LISTS, UNSET, Scripts, by_bash
from .inference_scripts import ENVIRONMENT, SCRIPTS

MOST_UNREAD = 0.15  # of the values at the end of the scripts: "not read" is no way out


def ours(script, name):
    """The value of a name as bash prints it, and whether it is read."""
    held = script.held.get(name)
    if name in LISTS:
        texts = [held] if isinstance(held, str) else held or []
        return texts, not any(map(is_unread, texts))
    text = (held[0] if held else UNSET) if isinstance(held, list) else UNSET if held is None else held
    return text, not is_unread(text)


def compared(seeds, directory):
    """Values that are read and those that are not; each that is read is bash's, so are the words of launches."""
    read = unread = refused = 0
    for seed in seeds:
        text = Scripts(seed).script()
        if (found := by_bash(text, directory)) is None:
            refused += 1
            continue
        try:
            script = script_of(text, "script.sh")
        except PerfgridError as error:
            assert "too much text" in str(error), (seed, text)  # noqa: PT017
            refused += 1
            continue
        values, launches = found
        for name, value in values.items():
            text_of_ours, is_read = ours(script, name)
            read, unread = read + is_read, unread + (not is_read)
            assert not is_read or text_of_ours == value, (seed, name, text_of_ours, value, text)
        rest = iter(launches)
        for words in script.commands:
            if words[0] == "launch" and not any(map(is_unread, words)):  # in order; among them are unsure ones
                assert any(words[1:] == launch for launch in rest), (seed, words, launches, text)
    return read, unread, refused


def test_a_hundred_scripts_have_the_values_that_bash_prints(tmp_path):
    read, unread, refused = compared(range(100), str(tmp_path))
    assert read > 700
    assert unread < MOST_UNREAD * (read + unread)
    assert refused == 0


@pytest.mark.slow
def test_two_thousand_scripts_have_the_values_that_bash_prints(tmp_path):
    read, unread, refused = compared(range(100, 2_100), str(tmp_path))
    print(f"{read} values are bash's, {unread} are not read, {refused} scripts are refused or without end")
    assert unread < MOST_UNREAD * (read + unread)
    assert refused < 20


SERVE = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size "


@each(
    "script, tp",
    [
        (f"false && TP=8\n{SERVE}${{TP:-2}}", 2),
        (f"TP=2\ntrue || TP=8\n{SERVE}$TP", 2),
        (f"M=x\ncase $M in\n x) TP=4 ;;\n *) TP=8 ;;\nesac\n{SERVE}$TP", 4),
        (f"TP=2\ncat > note <<END\nTP=8 # it's a note\nEND\n{SERVE}$TP", 2),
        (f"TP=2\n((TP=4))\n{SERVE}$TP", 4),
        (f"TP=2\nlet TP=TP*4\n{SERVE}$TP", 8),
        (f"TP=2\nread TP rest <<< '4 8'\n{SERVE}$TP", 4),
        (f"SIZES=(8 4)\nunset SIZES\n{SERVE}${{SIZES[0]:-2}}", 2),
        (f"SIZES=(8 4)\n{SERVE}$SIZES", 8),
        (f"TP=4\nTP=2 {SERVE}$TP", 4),
        (f'TP=4\n{SERVE}$TP --served-model-name "ckpt #1"', 4),
        (f"(TP=8; export TP)\n{SERVE}${{TP:-2}}", 2),
        (f"TP=2\necho 8 | read TP\n{SERVE}$TP", 2),
        (f"set -- --size 4\nwhile [[ $# -gt 0 ]]; do case $1 in --size) TP=$2; shift 2 ;; esac; done\n{SERVE}$TP", 4),
        (f"start() {{ local TP=8; {SERVE}$1; }}\nTP=2\nstart $TP", 2),
        (f"export TP=4\nsrun bash -c '{SERVE}$TP'", 4),
    ],
)
def test_a_command_has_the_value_that_bash_gives_it(script, tp, tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(script + "\n")
    job = read_job({"run.sh": script})
    assert job.values["tp"] == tp
    shown = CliRunner().invoke(app, ["read-job", str(file)])
    assert f"tp = {tp}" in shown.output


@each(
    "script",
    [
        f"TP=4\n{SERVE}'$TP'",
        f"TP=4\n[ -d /data ] && TP=8\n{SERVE}$TP",
        f"TP=4\nfor file in *.json; do TP=8; done\n{SERVE}$TP",
        f"TP=4\nwhile read TP; do :; done < sizes\n{SERVE}$TP",
        f"{SERVE}$(nproc)",
        f"TP=$((1<{'0' * 400}/3))\n{SERVE}$TP",
        f"TP=4\nread TP < size\n{SERVE}$TP",
        f"TP=4\nsrun bash -c '{SERVE}$TP'",  # not exported
        f"TP=$SLURM_NTASKS\n{SERVE}$TP",
        f"TP=${{SLURM_NTASKS:-2}}\n{SERVE}$TP",
    ],
)
def test_what_only_an_execution_knows_is_asked_for(script, tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(script + "\n")
    shown = CliRunner().invoke(app, ["read-job", str(file)])
    assert isinstance(shown.exception, PerfgridError)
    assert "is not read" in str(shown.exception)
    assert "\0" not in str(shown.exception)


def test_variables_may_be_given():
    """As exported by a script before, such as what Slurm sets."""
    known = Script(variables={"SLURM_NNODES": "4", "TP": "8"})
    script = script_of(
        "N=${SLURM_NNODES:-1}\nTP=${TP:-2}\nsrun bash -c 'train --nodes $SLURM_NNODES --n $N'", "s", known
    )
    assert (script.variables["N"], script.variables["TP"]) == ("4", "8")
    assert script.commands == [["train", "--nodes", "4", "--n", UNREAD]]


def test_options_that_a_branch_may_add_are_not_read():
    script = script_of("A=(--x 1)\n[ -f y ] && A+=(--tp 4 --z)\nrun ${A[@]}", "s")
    assert script.commands == [["run", "--x", "1", f"--tp={UNREAD}", f"--z={UNREAD}"]]
    assert script_of("A='--x 1'\n[ -f y ] && A=\"$A --tp 4\"\nrun $A", "s").commands[0][-1] == f"--tp={UNREAD}"
    assert script_of("if [ -f y ]; then A=4; else A=4; fi\nrun $A", "s").commands == [["run", "4"]]


@each(
    "text, places",
    [
        ('L=($(words))\nL=("${L[@]/#/-}")\nM=("${!L[@]}")', None),
        ("L=([3]=x [1]=y)\nM=${L[1]}", None),
        ('L=("$(words)" b)\nM=${L[1]}', "b"),
        ("M=${#?}", None),
        ("L=(a b)\n[ -f x ] && unset 'L[0]'\nM=${L[1]}", None),
    ],
)
def test_elements_behind_an_unknown_number_of_words_are_not_read(text, places):
    held = script_of(text, "s").held["M"]
    assert held == places if places else any(map(is_unread, held))


def test_names_that_no_text_sets_are_presumed_to_be_unset():
    """Where a script asks for that; what then ends the script is not presumed."""
    script = script_of('[ -z "$A" ] && exit 1\nif [ $# -lt 1 ]; then exit; fi\nB=${C:-4}\nrun --a $A --b $B', "s")
    assert script.commands == [["run", "--a", UNREAD, "--b", "4"]]
    assert list(script.presumed) == ["C"]


@each("name", SCRIPTS)
def test_scripts_of_serving_benchmarks_are_read_behind_their_environment(name, tmp_path):
    text, values = SCRIPTS[name]
    environment, file = tmp_path / "env.sh", tmp_path / f"{name}.sh"
    environment.write_text(ENVIRONMENT)
    file.write_text(text)
    shown = CliRunner().invoke(app, ["read-job", str(environment), str(file)])
    assert shown.exit_code == 0, shown.output
    job = read_job({"env.sh": ENVIRONMENT, f"{name}.sh": text})
    assert {key: job.values[key] for key in values} == values
    assert job.model is not None
    assert job.model.name == "qwen3-32b"
    with pytest.raises(PerfgridError, match=r"is not read|format is not recognised"):
        read_job({f"{name}.sh": text})


DEEP = 20_000
HOSTILE = [
    "x <" + " " * DEEP,
    "(" * 100_000,
    "[[ " + "( " * DEEP,
    "$(" * DEEP,
    "${A:-" * DEEP,
    "A=$((" + "(" * DEEP + "1))",
    "A=$((1" + "+1" * DEEP + "))",
    "if true; then " * DEEP,
    '"' * DEEP + '"',
    "`" * DEEP + "`",
    "{a,b}" * 40,
    "{1..999999999}",
    "A[" * DEEP,
    "cat <<E\n" * DEEP,
    "f() { f; f; }; f",
    "f() { f & f; }; f | f",
    "while true; do A=$A$A; A=x$A; done",
    "for ((;;)); do A+=(x); done",
    "A=A; echo $((A))",
    'eval \'eval "$0"\'; A=\'eval "$A"\'; eval "$A"',
    "A=x\n" + "A=$A$A\n" * 40,
    "A=(x)\n" + 'A+=("${A[@]}")\n' * 40,
    "A=" + "ab" * 400 + "\nB=${A//*a*b/x}${A%%*a*b*a*c}\n[[ $A == *a*a*a*a*a*a*c ]] || [[ $A =~ a*a*a*a*a*c ]]",
    "A[99999999999]=1; A[-5]=2; ${A[99999999999]}",
    "if [ -z $A ]; then exit; " + "elif [ -z $A ]; then exit; " * 2_000 + "fi",
    ";)" * 10_000,
    "\0\x1b[31m$'\\x41'\udcff",
]


@each("text", HOSTILE)
def test_hostile_scripts_are_read_or_refused_in_one_line(text):
    """In time that grows with their size (``python -m benchmarks.scripts``); without limits they would have no end."""
    try:
        script_of(text[:LARGEST_SCRIPT], "run.sh")
        told = "run.sh: "
    except PerfgridError as error:
        told = str(error)
    assert told.startswith("run.sh: ")
    assert "\n" not in told
