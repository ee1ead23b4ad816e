"""What is wrong with a configuration is one line with its file and key, and nothing is guessed or executed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError, one_line
from perfgrid.jobs.design import written
from perfgrid.jobs.formats import conditions_in, format_of, formats, glossary
from perfgrid.jobs.read import read_job
from perfgrid.jobs.recipes import recipes_of
from perfgrid.jobs.shell import UNREAD, script_of

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
        (
            "--tensor-model-parallel-size 3",
            r"devices 16 \(--nnodes 2 and --nproc-per-node 8\) is not a multiple of tp 3 \(--tensor-.*\) x cp 1 x pp 1",
        ),
        ("--micro-batch-size 3 --global-batch-size 64", "global_batch 64 .*--global-batch-size.*microbatch 3"),
        (f"{BATCH} --micro-batch-size two", "run.sh: --micro-batch-size needs a number, found 'two'"),
        (f"{BATCH} --micro-batch-size -2", "--micro-batch-size"),
        (f"{BATCH} --seq-length 1.5", "--seq-length"),
        (
            f"{BATCH} --num-layers-per-virtual-pipeline-stage 5 --pipeline-model-parallel-size 2",
            "layers 32 .*is not a multiple of pp 2 .*= 10$",
        ),
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
    text = f"{BATCH} --frobnicate 3 --sequence-paralel --use-custom-fsdp --recompute-granularity full --lr 1e-4"
    with pytest.raises(PerfgridError, match="could change the sequence; did you mean 'sequence-parallel'") as error:
        megatron(text)
    assert str(error.value).endswith("--ignore sequence-paralel --ignore recompute-granularity")
    job = megatron(text, ignore=["--sequence-paralel", "recompute_granularity"])
    told = {word for text, *_ in (*job.understood, *job.ignored, *job.assumed) for word in text.split()}
    assert {"--frobnicate", "--sequence-paralel", "--use-custom-fsdp", "--recompute-granularity", "--lr"} <= told
    why = {text: reason for text, _, reason in job.ignored}
    assert (
        "did you mean 'sequence-parallel'" in why["--sequence-paralel"]
        or "sequence-parallel" in why["--sequence-paralel"]
    )
    assert job.values["sequence_parallel"] is False
    assert "not supported; recompute = none is taken" in why["--recompute-granularity full"]
    renamed = next(reason for text, _, reason in job.assumed if text == "--use-custom-fsdp")
    assert "--use-megatron-fsdp in 0.14" in renamed
    assumed = {name: value for name, value, _ in job.assumed}
    assert assumed["tp"] == "1"
    assert job.values["zero"] == 3  # Megatron-FSDP's default strategy


def test_a_key_of_another_version_is_refused_by_its_version():
    text = RUN + LLAMA + BATCH
    for keys, version, since in (
        ("--mtp-num-layers 1", "0.10", "0.12"),
        ("--expert-tensor-parallel-size 1", "0.9", "0.10"),
        ("--cp-comm-type a2a", "0.8", "0.10"),
        ("--recompute-granularity selective --recompute-modules core_attn", "0.11", "0.12"),
    ):
        name = keys.split()[-2]
        with pytest.raises(PerfgridError, match=rf"Megatron-LM {version} has no {name} \(since {since}\): state the"):
            read_job(text + keys, format=f"megatron-lm@{version}")
        assert read_job(text + keys, format=f"megatron-lm@{since}").version == since
    form, model = format_of("megatron-lm")[0], load_catalog().entry("model", "deepseek-v3")
    values = {"devices": 8, "tp": 8, "pp": 1, "cp": 1, "dp": 1, "sequence_length": 4096, "global_batch": 8}
    noted = {version: written(values, model, form, version).notes for version in ("0.9", "0.12")}
    assert any("0.9 has no keys for" in note and "kv_lora_rank" in note for note in noted["0.9"])
    assert not any("has no keys for" in note for note in noted["0.12"])
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
    job = read_job({"run.sh": text}, format="megatron-lm", stated={"tp": 1, "pp": 1})
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
        ("if [ -z $A ]; then\nA=9\nfi\nB=1", {"A": "9", "B": "1"}),
        ('A=x\nif [[ "$A" == "x" ]]; then\nB=1\nelse\nB=2\nfi\nC=3', {"A": "x", "B": "1", "C": "3"}),
        ("A=x\nif [ $A != x ]; then B=1; else B=2; fi", {"A": "x", "B": "2"}),
        ("A=x\nif [ $A = y ]; then\nB=1\nelif [ $A = x ]; then\nB=2\nfi", {"A": "x", "B": "2"}),
        ("A=x\nif [ $A = x ]; then\nB=1\nelif [ $A = y ]; then\nB=2\nelse\nB=3\nfi", {"A": "x", "B": "1"}),
        ("A=x\nif [ $A = x ] || [ $Q = 1 ]; then\nB=1\nfi", {"A": "x", "B": "1"}),
        ("A=x\nif [ $Q = x ]; then\nif [ $A = x ]; then\nB=1\nfi\nfi\nC=1", {"A": "x", "B": UNREAD, "C": "1"}),
        ("f() {\nA=1\n}\nB=2", {"B": "2"}),
        ("A=$((1/0)); A=2\nB=1", {"B": "1"}),
        ("A=$((Q/2))", {"A": UNREAD}),
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
    own |= {"shared_expert_size", "module", "running_limit", form.named}
    own |= {"published_quantization", "published_kv_cache", "half_precision"}
    own |= {"wrapped", "overlapped", "hybrid", "fully_sharded", "resumed"}  # read, and as every design has them
    own |= {row.quantity for row in form.fallbacks} | {row.of for row in form.fallbacks}
    own |= {name for row in (*form.fallbacks, *form.needed) for name, _, _ in conditions_in(row.when)}
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
        ("[ -d /data ] || TP=8", UNREAD, True),
        ("test -d /data && export TP=8", UNREAD, True),
        ("if [ -d /data ]; then TP=8; fi", UNREAD, True),
        ("if [ -d /data ]; then TP=2; fi", "2", False),
    ],
)
def test_assignments_behind_conditions(line, tp, noted):
    """Taken where the condition is known to hold, left where it is known not to, unread and named where it is not."""
    script = script_of(f"TP=2\n{line}\n", "run.sh")
    assert script.variables["TP"] == tp
    assert [name for name, _ in script.notes] == ["TP"] * noted
    assert script.commands == []


def test_a_launch_under_a_condition_is_named():
    script = script_of("if [ -d /data ]; then torchrun a.py --tensor-model-parallel-size 2; fi\n", "run.sh")
    assert script.commands == []
    assert script.notes[0][0].startswith("torchrun a.py --tensor-model-parallel-size")


TWO = f"{RUN} {LLAMA} {BATCH} --tensor-model-parallel-size 2\n{RUN} {LLAMA} {BATCH} --tensor-model-parallel-size 4\n"


def test_several_launches_in_one_script_are_chosen_by_number():
    with pytest.raises(
        PerfgridError, match=r"run.sh: holds 2 launches: choose one with --which: 1 \(torchrun.*2 \("
    ) as error:
        read_job({"run.sh": TWO}, format="megatron-lm")
    assert one_line(str(error.value)) == str(error.value)
    assert [read_job({"r": TWO}, format="megatron-lm", which=n).values["tp"] for n in ("1", "2")] == [2, 4]
    with pytest.raises(PerfgridError, match="has no launch '3'"):
        read_job({"run.sh": TWO}, format="megatron-lm", which="3")
    with pytest.raises(PerfgridError, match="one launch to read"):
        megatron(BATCH, which="1")


def test_what_stands_beside_a_launch_is_no_part_of_it():
    text = (
        f"python prepare.py --seq-length 512 --workers 3\n{RUN} {LLAMA} {BATCH}\nbash -c 'tool --seq-length 256 --x'\n"
    )
    job = read_job({"run.sh": text}, format="megatron-lm")
    assert job.values["sequence_length"] == 4096
    others = [key for key, _, why in job.ignored if why == "another command or recipe of this file"]
    assert others[0].startswith("python prepare.py")
    assert others[1].startswith("tool --seq-length")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("megatron-lm", f"{RUN} --tensor-model-parallel-size 2 \\\n", "job: ends within a command"),
        ("deepspeed", '{"train_batch_size": 64, "zero_optim', "job: .*JSON"),
        ("megatron-lm", f"{RUN} --data-path 'a b", "no closing quotation"),
        ("megatron-bridge", "def a():\n    cfg.model.x = (", "job: not valid Python: .*line 2"),
        ("megatron-bridge", "import os\nprint(1)\n", "job: assigns no settings"),
        ("dynamo", "kind: DynamoGraphDeployment\nspec: {services: {}}", "job: starts no worker"),
        ("tensorrt-llm", "tensor_parallel_size: [", "not valid YAML"),
    ],
)
def test_half_a_file_is_one_line(name, text, message):
    with pytest.raises(PerfgridError, match=message) as error:
        read_job(text, format=name)
    assert "\n" not in str(error.value)


RECIPES = """
from megatron.bridge import base
SIZE = 4
def small_config(nodes: int = 2, gpus_per_node=8):
    cfg = llama3_8b_pretrain_config()
    cfg.mixed_precision = _perf_precision("fp8_cs")
    cfg.model.tensor_model_parallel_size = SIZE * 2 // 4
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.train.global_batch_size, x = 1, 2
    cfg.train.micro_batch_size = 2
    if os.path.exists("/data"):
        cfg.model.context_parallel_size = 4
    return cfg
BASE = Workload(num_gpus=64, global_batch_size=128)
LARGE = replace(BASE, tensor_model_parallel_size=4, pipeline_model_parallel_size=open("/witness", "w"))
def nested():
    return Partial(pretrain, trainer=Config(Trainer, num_nodes=4, strategy=Config(S, tensor_model_parallel_size=8)))
"""


def test_recipes_in_python_are_read_and_never_run(tmp_path):
    text = RECIPES.replace("/witness", str(tmp_path / "witness"))
    with pytest.raises(
        PerfgridError, match=r"holds 4 launches.*1 \(small_config\), 2 \(BASE\), 3 \(LARGE\), 4 \(nested\)"
    ):
        read_job(text, format="megatron-bridge")
    given = {"sequence_length": 8192, "global_batch": 64, "devices": 16, "cp": 1}
    with pytest.raises(PerfgridError, match="recipe llama3_8b_pretrain_config states pp itself, which is not read"):
        read_job(text, format="megatron-bridge", which="small_config", stated=given)
    given = {"sequence_length": 8192, "global_batch": 64, "devices": 16, "pp": 1}
    with pytest.raises(PerfgridError, match=r"context_parallel_size 4 is not read: set under a condition.*--set cp="):
        read_job(text, format="megatron-bridge", which="small_config", stated=given)
    job = read_job(text, format="megatron-bridge", which="small_config", stated=given | {"cp": 1})
    assert {n: job.values[n] for n in ("tp", "chunks", "microbatch", "precision", "scaling")} == {
        "tp": 2,
        "chunks": 1,
        "microbatch": 2,
        "precision": "fp8",
        "scaling": "tensor",
    }
    assert job.model is not None
    assert job.model.name == "llama-3.1-8b"
    assert ("model.context_parallel_size", "", "set under a condition, which is not executed") in job.ignored
    large = read_job(text, format="megatron-bridge", which="LARGE", model="llama-3.1-70b", stated={"pp": 2})
    assert (large.values["tp"], large.values["global_batch"], large.values["devices"]) == (4, 128, 64)
    assert any(key == "pipeline_model_parallel_size" and "comes from a command" in why for key, _, why in large.ignored)
    nested = read_job(text, format="megatron-bridge", which="4", model="llama-3.1-70b", stated={"devices": 32})
    assert nested.values["tp"] == 8
    assert not (tmp_path / "witness").exists()


@pytest.mark.parametrize(
    ("line", "setting", "note"),
    [
        ("size = 2\n    size *= 4", 8, ()),
        ("if big:\n        size = 4", UNREAD, ()),
        ("for size in (2, 4):\n        pass", UNREAD, ()),
        ("with a() as size:\n        pass", UNREAD, ()),
        ("try:\n        size += 1\n    finally:\n        pass", UNREAD, ()),
        ("size, other = sizes()", UNREAD, ()),
        ('size = os.getenv("SIZE")', UNREAD, ()),
        ('size = get_precision("fp8")', "fp8", ()),
        ("size = bf16_mixed()", "bf16_mixed", ()),
        ("size = os.getpid()", UNREAD, ()),
        ("tune(cfg)", 1, ("tune()", "a call, which is not executed")),
        ("cfg.model.double()", 1, ("cfg.model.double()", "a call, which is not executed")),
        ("if big:\n        tune(cfg)", 1, ("tune()", "a call, which is not executed")),
        ("while big:\n        cfg.model.size = 3", 1, ("model.size", "set under a condition, which is not executed")),
        ('print("x", cfg)', 1, ()),
    ],
)
def test_what_only_an_execution_of_a_recipe_knows(line, setting, note):
    """Unread, or named beside what is read; never the value from before."""
    text = f"def a_recipe(big=False):\n    cfg = base()\n    size = 1\n    {line}\n    cfg.model.size = size\n"
    (recipe,) = recipes_of(text, "a.py")
    assert dict(recipe.stated)["model.size"] == setting
    assert recipe.notes == ([note] if note else [])


def test_a_setting_that_is_replaced_by_what_is_not_known_is_not_read():
    text = "def a():\n    cfg.train.global_batch_size = 64\n    cfg.model.seq_length = 2048\n"
    text += "    cfg.model.seq_length *= 4\n    cfg.model.tensor_model_parallel_size = size()\n"
    with pytest.raises(PerfgridError, match=r"model.tensor_model_parallel_size size\(\) is not read"):
        read_job(text, format="megatron-bridge", model="llama-3.1-8b")
    job = read_job(text, format="megatron-bridge", model="llama-3.1-8b", stated={"tp": 1})
    assert "sequence_length" not in job.values
    assert [key for key, _, why in job.ignored if "comes from a command" in why] == [
        "model.seq_length",
        "model.tensor_model_parallel_size",
    ]


WORKER = "python3 -m dynamo.vllm --model Qwen/Qwen3-8B --tensor-parallel-size"


def graph(first, second, gpus=4):
    return f"""kind: DynamoGraphDeployment
spec:
  services:
    a: {{replicas: 2, resources: {{limits: {{gpu: {gpus}}}}}, extraPodSpec: {{mainContainer: {{args: [{first}]}}}}}}
    b: {{replicas: 1, extraPodSpec: {{mainContainer: {{args: [{second}]}}}}}}
"""


def test_deployments_are_read_by_their_pools():
    of = {role: f"{WORKER} 4 --disaggregation-mode {role}" for role in ("prefill", "decode")}
    job = read_job(graph(of["prefill"], of["decode"]))
    for pool, dp in (("prefill", 2), ("decode", 1)):
        assert {n: job.pools[pool].values[n] for n in ("tp", "dp", "devices")} == {"tp": 4, "dp": dp, "devices": 4 * dp}
    unlike = read_job(graph(of["prefill"], f"{WORKER} 8 --disaggregation-mode decode"))
    assert [unlike.pools[pool].values["tp"] for pool in ("prefill", "decode")] == [4, 8]
    old = read_job(graph(f"{WORKER} 4 --is-prefill-worker", f"{WORKER} 4"))
    assert {pool: one.values for pool, one in old.pools.items()} == {p: one.values for p, one in job.pools.items()}
    assert any("renamed to --disaggregation-mode prefill in 1.0" in why for _, _, why in old.assumed)
    with pytest.raises(PerfgridError, match="a replica has 8 GPUs, its flags take 4"):
        read_job(graph(of["prefill"], of["decode"], gpus=8))
    with pytest.raises(
        PerfgridError, match=r"several kinds of prefill: choose one with --which: 1 \(job, a\), 2 \(job, b\)$"
    ):
        read_job(graph(of["prefill"], of["prefill"]))
    with pytest.raises(PerfgridError, match="two pools need workers for prefill and decode, found prefill"):
        read_job(graph(of["prefill"], "python3 -m dynamo.frontend"))


MESH = "model_name: llama3.1-8b\nici_fsdp_parallelism: 16\ndcn_data_parallelism: 4\nper_device_batch_size: {}\n"


@pytest.mark.parametrize("value", ["1e308", "inf", "-inf", "nan", "-1", "0", "1e-300"])
def test_a_value_that_follows_is_finite_and_within_its_bounds(value):
    with pytest.raises(PerfgridError, match=r"per_device_batch_size\).* must be (finite|> 0)$") as error:
        read_job(MESH.format(value))
    assert one_line(str(error.value)) == str(error.value)
    assert read_job(MESH.format(2)).values["global_batch"] == 128


@pytest.mark.parametrize("value", ["0", "-1"])
def test_accumulation_is_one_at_least(value):
    text = "torchrun --nproc_per_node 4 t.py --model_name_or_path meta-llama/Llama-3.1-8B --block_size 2048 "
    with pytest.raises(PerfgridError, match=r"\(--gradient_accumulation_steps\).*: global_batch must be > 0$"):
        read_job(f"{text} --per_device_train_batch_size 1 --gradient_accumulation_steps {value}")
