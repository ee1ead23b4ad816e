"""What is written for a framework and read again is the same design, but for what the text says it cannot express."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgrid.catalog import load_catalog
from perfgrid.engine.errors import PerfgridError
from perfgrid.jobs.design import written
from perfgrid.jobs.formats import formats, glossary
from perfgrid.jobs.models import of_model
from perfgrid.jobs.read import read_job
from perfgrid.jobs.write import moot_in
from tests.each import each

EXAMPLES = int(os.environ.get("PERFGRID_ROUND_TRIPS", "15"))  # of each format
MODELS = (
    "llama-3.1-8b",
    "llama-3.1-405b",
    "gpt3-175b",
    "mixtral-8x7b",
    "qwen3-235b-a22b",
    "deepseek-v3",
    "gemma-2-27b",
)
EXPRESSED = {  # what each format can state of what is drawn; beyond it a design is noted
    "megatron-lm": {
        "scaling": {"usual", "delayed", "tensor", "block", "mx", "nvfp4"},
        "schedule": {"1f1b"},
        "cp_method": {"ring", "all_gather", "ulysses"},
    },
    "megatron-bridge": {
        "model": {"llama-3.1-8b", "llama-3.1-405b", "gpt3-175b", "qwen3-235b-a22b", "deepseek-v3", "gemma-2-27b"},
        "precision": {"bf16", "fp16", "fp8", "fp4"},
        "scaling": {"usual", "delayed", "tensor", "block", "mx", "nvfp4"},
        "schedule": {"1f1b"},
        "cp_method": {"ring", "all_gather", "ulysses"},
    },
    "torchtitan": {
        "recompute_norms": {False},
        "recompute_activation_function": {False},
        "recompute_latents": {False},
        "recompute_layers": {0},
        "model": {"llama-3.1-8b", "llama-3.1-405b"},
        "precision": {"bf16", "fp32"},
        "scaling": {"usual"},
        "recompute": {"none", "selective", "full"},
        "zero": {0, 2, 3},
        "schedule": {"1f1b", "gpipe", "zb_v"},
        "offload": {"none", "optimizer"},
        "rank_order": {"tp-cp-dp-pp"},
        "cp_method": {"ring"},
        "capacity_factor": {0},
        "etp": {1},
    },
    "accelerate": {
        "model": set(),
        "recompute_norms": {False},
        "recompute_activation_function": {False},
        "recompute_latents": {False},
        "recompute_layers": {0},
        "recompute": {"none", "full"},
        "precision": {"bf16", "fp16", "fp32", "fp8"},
        "scaling": {"usual", "delayed", "tensor"},
        "zero": {0, 2, 3},
        "offload": {"none", "optimizer"},
        "rank_order": {"tp-cp-dp-pp"},
        "cp_method": {"ring", "all_gather"},
        "schedule": {"1f1b"},
        "ep": {1},
        "etp": {1},
        "capacity_factor": {0},
    },
    "deepspeed": {
        "recompute_norms": {False},
        "recompute_activation_function": {False},
        "recompute_latents": {False},
        "recompute_layers": {0},
        "model": set(),
        "precision": {"bf16", "fp16", "fp32"},
        "scaling": {"usual"},
        "zero_size": {0},
        "offload": {"none", "optimizer"},
        "rank_order": {"tp-cp-dp-pp"},
        "cp_method": {"ulysses"},
        "schedule": {"1f1b"},
        "ep": {1},
        "etp": {1},
        "capacity_factor": {0},
    },
    "maxtext": {
        "recompute_norms": {False},
        "recompute_activation_function": {False},
        "recompute_latents": {False},
        "recompute_layers": {0},
        "zero": {0, 3},
        "scaling": {"usual", "delayed", "tensor", "mx", "nvfp4"},
        "precision": {"bf16", "fp32", "fp8", "fp4"},
        "recompute": {"full"},
        "schedule": {"1f1b"},
        "offload": {"none"},
        "rank_order": {"tp-cp-dp-pp"},
        "cp_method": {"ring", "all_gather", "ulysses"},
        "sequence_parallel": {True},
        "etp": {1},
    },
}
WRITERS = {name: form for name, form in formats().items() if form.writes and not form.engines}
DEPLOYMENTS = {
    f"dynamo-{word}": formats()["dynamo"].model_copy(update={"engines": {word: name}})
    for word, name in formats()["dynamo"].engines.items()
}


def powers(most):
    return st.sampled_from([2**i for i in range(most + 1)])


@st.composite
def training_designs(draw):
    """A model and a design whose layout is legal, whatever a framework can express of it."""
    model = load_catalog().entry("model", draw(st.sampled_from(MODELS)))
    tp, cp, dp = draw(powers(3)), draw(powers(2)), draw(powers(5))
    layers = of_model(model)["layers"]
    stages = [(p, c) for p in range(1, 17) for c in (1, 2, 4) if layers % (p * c) == 0 and (p > 1 or c == 1)]
    pp, chunks = draw(st.sampled_from(stages))
    values = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "chunks": chunks, "devices": tp * cp * pp * dp}
    if model.values["experts"]:
        split = [(e, s) for e in (1, 2, 4, 8) for s in (1, 2) if tp * cp * dp % (e * s) == 0]
        values["ep"], values["etp"] = draw(st.sampled_from(split))
        values["capacity_factor"] = draw(st.sampled_from([0, 1.0, 1.25]))
    values["microbatch"] = draw(powers(3))
    values["global_batch"] = values["microbatch"] * dp * draw(st.sampled_from([1, 2, pp, 2 * pp, 12]))
    lengths = [2048] if model.values["learned_positions"] else [2048, 4096, 8192, 131072]
    values["sequence_length"] = draw(st.sampled_from(lengths))
    values["precision"] = draw(st.sampled_from(["bf16", "fp16", "fp32", "fp8", "fp4"]))
    scalings = {"fp8": ["delayed", "tensor", "row", "block", "mx"], "fp4": ["nvfp4"]}
    values["scaling"] = draw(st.sampled_from(scalings.get(values["precision"], ["usual"])))
    values["zero"] = draw(st.integers(0, 3))
    values["zero_size"] = draw(st.sampled_from([0, 0, cp * dp // 2])) if values["zero"] > 1 and cp * dp > 2 else 0
    choices = {
        "schedule": ["1f1b", "gpipe", "zb_v", "dualpipe"],
        "offload": ["none", "optimizer", "activations"],
        "rank_order": ["tp-cp-dp-pp", "tp-cp-pp-dp"],
        "cp_method": ["ring", "all_gather", "ulysses", "hybrid"],
    }
    values |= {name: draw(st.sampled_from(words)) for name, words in choices.items()}
    values["recompute"] = draw(st.sampled_from(["none", "selective", "full", "layers"]))
    if values["recompute"] == "layers":
        values["recompute_layers"] = chunks * draw(st.integers(1, 4))
    if values["recompute"] in ("none", "selective"):
        names = ("norms", "activation_function", *(["latents"] if model.values["kv_lora_rank"] else []))
        values |= {f"recompute_{name}": True for name in names if draw(st.booleans())}
    return model.name, values | {"sequence_parallel": draw(st.booleans())}


def unlike(values, job):
    """Quantities of a design that are others in the job that was read."""
    default = {n: glossary()[n].word(glossary()[n].default_value) for n in values if n not in job.values}
    moot = moot_in(values)
    found = {n: job.values.get(n, default.get(n)) for n in values if n not in moot}
    return {n: (values[n], got) for n, got in found.items() if values[n] != got}


def legal(name, values):
    """Whether a framework has what was drawn."""
    parts = values.get("recompute_norms") or values.get("recompute_activation_function")
    if name.startswith("megatron") and parts and values["scaling"] == "delayed":
        return False
    if name == "accelerate":  # no pipelines; beside tensor and context parallelism no replicas without shards
        size = values["zero_size"] // values["cp"] if values["zero_size"] % values["cp"] == 0 else 0
        shards = 1 if values["zero"] == 0 else size if size > 1 else values["dp"]  # a group of one is noted
        return values["pp"] == 1 and (values["tp"] * values["cp"] == 1 or shards > 1 or values["dp"] == 1)
    if name == "maxtext":  # its expert axis is a part of the data axis; a pipeline has whole rounds of microbatches
        rounds = values["global_batch"] // (values["microbatch"] * values["dp"]) % values["pp"] == 0
        return values["dp"] % values.get("ep", 1) == 0 and (values["pp"] == 1 or rounds)
    return True


@each("name", [name for name, form in WRITERS.items() if form.workload == "training"])
def test_a_written_design_is_read_back(name):
    form = WRITERS[name]

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(training_designs())
    def check(design):
        model, values = load_catalog().entry("model", design[0]), design[1]
        if not legal(name, values):
            with pytest.raises(PerfgridError, match="cannot express the layout"):
                written(values, model, form, form.versions[-1])
            return
        launch = written(values, model, form, form.versions[-1])
        noted = {note.partition(" = ")[0] for note in launch.notes} - {*form.open}
        job = read_job(
            launch.text,
            format=name,
            stated={n: v for n, v in values.items() if n in form.open},
            model=None if "num-layers" in form.keys else model.name,
        )
        assert set(unlike(values, job)) <= noted, launch.text
        assert job.model is not None
        assert job.model.name == model.name
        mesh = (
            {"zero", "zero_size"}
            if values["zero_size"] or (values["zero"] == 0 and values["cp"] * values.get("ep", 1) > 1)
            else set()
        )
        mesh |= set() if model.values["experts"] else {"recompute_activation_function"}  # of experts alone
        beyond = mesh | {n for n, has in EXPRESSED[name].items() if n != "model" and values.get(n, 0) not in has}
        assert {n for n in noted if not n.startswith("the model")} <= beyond, (launch.notes, launch.text)

    check()


@st.composite
def serving_designs(draw):
    """A model and a layout of serving with what engines are started with."""
    model = load_catalog().entry("model", draw(st.sampled_from(MODELS)))
    tp, pp, dp = draw(powers(3)), draw(powers(1)), draw(powers(3))
    values = {"tp": tp, "cp": 1, "pp": pp, "dp": dp, "devices": tp * pp * dp}
    if model.values["experts"]:
        spread = draw(st.booleans()) and tp * dp > 1
        values |= {"ep": tp * dp, "etp": 1} if spread else {"ep": 1, "etp": tp * dp}
    values["batch_limit"] = draw(st.sampled_from([64, 256, 1024]))
    values["prefill_chunk_tokens"] = draw(st.sampled_from([2048, 8192]))
    values["page_tokens"] = draw(st.sampled_from([16, 64]))
    values["kv_precision"] = draw(st.sampled_from(["bf16", "fp8", "fp4"]))
    published = of_model(model)
    values |= draw(
        st.sampled_from(
            [
                {"weight_precision": published["published_weights"], "precision": published["published_products"]},
                {"weight_precision": "fp8", "precision": "fp8"},
            ]
        )
    )
    return model.name, values


@each("name", [*(n for n, form in WRITERS.items() if form.workload == "inference"), *DEPLOYMENTS])
def test_a_written_deployment_is_read_back(name):
    form = (WRITERS | DEPLOYMENTS)[name]
    engine = next(iter(form.engines.values()), name)

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(serving_designs())
    def check(design):
        model, values = load_catalog().entry("model", design[0]), design[1]
        launch = written(values, model, form, form.versions[-1])
        noted = {note.partition(" = ")[0] for note in launch.notes if " = " in note}
        job = read_job(launch.text, format=form.name, model=model.name)
        assert set(unlike(values, job)) <= noted, launch.text
        replicas = (
            {"devices", "dp", "tp", "ep", "etp"}
            if values["dp"] > 1 and ((values["tp"] > 1 and "ep" in values) or not ("ep" in values or form.engines))
            else set()
        )  # one server is one replica
        beyond = {"tensorrt-llm": {"weight_precision", "precision"} | replicas}
        assert noted <= beyond.get(engine, set()), (launch.notes, launch.text)

    check()


def test_a_deployment_has_the_batch_limit_of_its_design():
    """A closed loop of 256 clients on 4 replicas runs 64 on each."""
    model, form = load_catalog().entry("model", "llama-3.1-8b"), DEPLOYMENTS["dynamo-vllm"]
    values = {"tp": 1, "cp": 1, "pp": 1, "dp": 4, "devices": 4, "batch": 256}
    launch = written(values, model, form, form.versions[-1])
    job = read_job(launch.text, model=model.name)
    assert (job.values["batch_limit"], job.values["dp"], dict(job.pools)) == (64, 4, {})
    assert not [note for note in launch.notes if " = " in note]
    drafting = written(values | {"draft_tokens": 2}, model, form, form.versions[-1])
    assert sum(note.startswith("draft_tokens = 2") for note in drafting.notes) == 1
    with pytest.raises(PerfgridError, match="a replica has 8 GPUs, its flags take 1"):
        written(values | {"devices": 32}, model, form, form.versions[-1])
