"""What is wrong with a configuration is one line with its file and key, and nothing is guessed or executed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgrid.engine.errors import PerfgridError, one_line
from perfgrid.jobs.formats import format_of, formats, glossary
from perfgrid.jobs.read import read_job
from perfgrid.jobs.shell import script_of

SHAPE = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 --group-query-attention "
LLAMA = (
    f"{SHAPE} --num-query-groups 8 --swiglu --untie-embeddings-and-output-weights --disable-bias-linear "
    "--position-embedding-type rope --hidden-dropout 0 --attention-dropout 0 --seq-length 4096 --bf16 "
)
RUN = "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py "
BATCH = "--micro-batch-size 2 --global-batch-size 64 "


def megatron(text, **options):
    return read_job({"run.sh": RUN + LLAMA + text}, format="megatron-lm", **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--tensor-model-parallel-size 3", "devices 16 is not tp 3 .*--tensor-model-parallel-size.*no whole number"),
        ("--micro-batch-size 3 --global-batch-size 64", "global_batch 64 .*--global-batch-size.*microbatch 3"),
        (f"{BATCH} --micro-batch-size two", "run.sh: --micro-batch-size needs a number, found 'two'"),
        (f"{BATCH} --micro-batch-size -2", "--micro-batch-size"),
        (f"{BATCH} --seq-length 1.5", "--seq-length"),
        (f"{BATCH} --num-layers-per-virtual-pipeline-stage 5 --pipeline-model-parallel-size 2", "layers 32 .*no whole"),
        (f"{BATCH} --world-size 32", "devices"),
        (f"{BATCH} --num-experts 8 --expert-model-parallel-size 32", "ep 32 x etp 1 does not divide the 16 ranks"),
    ],
)
def test_contradictions_are_one_line_with_file_and_key(text, message):
    with pytest.raises(PerfgridError, match=message) as error:
        megatron(text)
    assert str(error.value).startswith("run.sh: ")
    assert one_line(str(error.value)) == str(error.value)


def test_the_user_and_the_file_must_agree():
    with pytest.raises(PerfgridError, match="devices"):
        megatron(BATCH, devices=64)
    with pytest.raises(PerfgridError, match=r"states another model than llama-3.1-70b: layers 32"):
        megatron(BATCH, model="llama-3.1-70b")
    with pytest.raises(PerfgridError, match=r"no quantity 'microbach'.*microbatch"):
        megatron(BATCH, stated={"microbach": 1})


def test_nothing_is_understood_silently():
    """Every stated key is in one of the lists; a key that matters and is not stated is listed with its default."""
    job = megatron(
        f"{BATCH} --frobnicate 3 --sequence-paralel --use-custom-fsdp --recompute-granularity full --lr 1e-4"
    )
    told = {word for text, *_ in (*job.understood, *job.ignored, *job.assumed) for word in text.split()}
    assert {"--frobnicate", "--sequence-paralel", "--use-custom-fsdp", "--recompute-granularity", "--lr"} <= told
    why = {text: reason for text, _, reason in job.ignored}
    assert (
        "did you mean 'sequence-parallel'" in why["--sequence-paralel"]
        or "sequence-parallel" in why["--sequence-paralel"]
    )
    assert job.values["sequence_parallel"] is False
    assert "not expressed; recompute = none is taken" in why["--recompute-granularity full"]
    renamed = next(reason for text, _, reason in job.assumed if text == "--use-custom-fsdp")
    assert "--use-megatron-fsdp in 0.14" in renamed
    assumed = {name: value for name, value, _ in job.assumed}
    assert assumed["tp"] == "1"
    assert assumed["zero"] == "0"


def test_a_key_of_another_version_is_refused_by_its_version():
    text = RUN + LLAMA + BATCH + "--expert-tensor-parallel-size 1"
    with pytest.raises(
        PerfgridError, match=r"--expert-tensor-parallel-size is no key of Megatron-LM 0.10 \(since 0.11\)"
    ):
        read_job(text, format="megatron-lm@0.10")
    with pytest.raises(PerfgridError, match=r"version '9.9' is not known"):
        read_job(text, format="megatron-lm@9.9")
    with pytest.raises(PerfgridError, match=r"no format 'megatron'.*megatron-lm"):
        read_job(text, format="megatron")


def test_scripts_are_read_and_never_executed(tmp_path):
    witness = tmp_path / "ran"
    text = (
        f"touch {witness}\nX=$(touch {witness}; echo 2)\nY=`touch {witness}`\n"
        f"{RUN} {LLAMA} {BATCH} --tensor-model-parallel-size $X --pipeline-model-parallel-size $UNSET\n"
    )
    job = read_job({"run.sh": text}, format="megatron-lm")
    assert not witness.exists()
    unread = {key: why for key, _, why in job.ignored if "comes from a command" in why}
    assert set(unread) == {"--tensor-model-parallel-size", "--pipeline-model-parallel-size"}


@pytest.mark.parametrize(
    ("script", "variables"),
    [
        ("A=2\nB=$((A*8+1))", {"A": "2", "B": "17"}),
        ("export A=${B:-4} # a comment\nC=${A}x", {"A": "4", "C": "4x"}),
        (': "${A:=5}"\nB="$A"', {"A": "5", "B": "5"}),
        ("A=1; B=2 && C=3", {"A": "1", "B": "2", "C": "3"}),
        ("A=7\nunset A\nB=${A:-8}", {"B": "8"}),
        ("if [ -z $A ]; then\nA=9\nfi\nB=1", {"B": "1"}),
        ('A=x\nif [[ "$A" == "x" ]]; then\nB=1\nelse\nB=2\nfi\nC=3', {"A": "x", "B": "1", "C": "3"}),
        ("A=x\nif [ $A != x ]; then B=1; else B=2; fi", {"A": "x", "B": "2"}),
        ("A=x\nif [ $A = y ]; then\nB=1\nelif [ $A = x ]; then\nB=2\nfi", {"A": "x"}),
        ("A=x\nif [ $A = x ]; then\nB=1\nelif [ $A = y ]; then\nB=2\nelse\nB=3\nfi", {"A": "x", "B": "1"}),
        ("A=x\nif [ $A = x ] || [ $Q = 1 ]; then\nB=1\nfi", {"A": "x"}),
        ("A=x\nif [ $Q = x ]; then\nif [ $A = x ]; then\nB=1\nfi\nfi\nC=1", {"A": "x", "C": "1"}),
        ("f() {\nA=1\n}\nB=2", {"B": "2"}),
        ("A=$((1/0))", {"A": "\0"}),
    ],
)
def test_assignments_of_a_script(script, variables):
    assert script_of(script, "s").variables == variables


def test_texts_without_end_are_refused():
    bomb = "A=aaaaaaaaaa\n" + "".join(f"A=$A$A$A$A$A$A$A$A$A$A{i}\n" for i in range(12))
    with pytest.raises(PerfgridError, match="too much text"):
        script_of(bomb, "s")
    with pytest.raises(PerfgridError, match="characters"):
        script_of("#" * 2**19, "s")
    with pytest.raises(PerfgridError, match="no closing quotation"):
        script_of('A="1', "s")
    with pytest.raises(PerfgridError, match="aliases"):
        read_job("a: &x [1, 2]\nb: *x\nc: 1\n", format="tensorrt-llm")


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(formats())),
    st.text(max_size=200)
    | st.lists(
        st.sampled_from(
            [
                "--tp",
                "1",
                "tp=2",
                "{",
                "}",
                '"zero_optimization"',
                ":",
                "$A",
                "${",
                "$((",
                "(",
                ")",
                "\n",
                "A=",
                "if",
                "fi",
                "[a]",
                "-1",
                "1e999",
                "true",
            ]
        ),
        max_size=40,
    ).map(" ".join),
)
def test_any_text_is_read_or_refused_in_one_line(name, text):
    try:
        read_job(text, format=name)
    except PerfgridError as error:
        told = str(error)
    else:
        told = ""
    assert "\n" not in told


@pytest.mark.parametrize("name", sorted(formats()))
def test_a_format_names_quantities_that_exist(name):
    """Its cases and keys state quantities of the glossary, its own ones, or what products join."""
    form, version = format_of(name)
    assert version == form.versions[-1]
    own = {n for product in form.equations(writing=True) for n in (product.left, *product.right) if not n.isdigit()}
    own |= {"grouped", "latent", "rotary", "norms", "positions", "hidden_dropout", "attention_dropout", "expert_layers"}
    own |= {name for product in form.equations(writing=True) for name, _, _ in product.when}
    own |= {"shared_expert_size", "module", "running_limit", "role", form.named}
    for row in (*form.keys.values(), *form.cases):
        assert row.quantity in glossary() or row.quantity in own, row
        assert row.since is None or row.since in form.versions
        assert row.until is None or row.until in form.versions
    for quantity in (*form.defaults, *form.implied):
        assert quantity in glossary() or quantity in own, quantity


@pytest.mark.parametrize(
    ("line", "tp", "noted"),
    [
        ('[ "a" = "b" ] && TP=8', "2", False),
        ('[ "a" = "a" ] && TP=8', "8", False),
        ('[[ "a" = "b" ]] || TP=8', "8", False),
        ("[ -d /data ] || TP=8", "2", True),
        ("test -d /data && export TP=8", "2", True),
        ("if [ -d /data ]; then TP=8; fi", "2", True),
    ],
)
def test_assignments_behind_conditions(line, tp, noted):
    """Taken where the condition is known to hold, left where it is known not to, named where it is not known."""
    script = script_of(f"TP=2\n{line}\n", "run.sh")
    assert script.variables["TP"] == tp
    assert [name for name, _ in script.notes] == ["TP"] * noted
    assert script.commands == []


def test_a_launch_under_a_condition_is_named():
    script = script_of("if [ -d /data ]; then torchrun a.py --tensor-model-parallel-size 2; fi\n", "run.sh")
    assert script.commands == []
    assert script.notes[0][0].startswith("torchrun a.py --tensor-model-parallel-size")
