"""Every key is known with effect, known without, or unknown; what could matter and is not known stops the reader."""

import json
from contextlib import suppress

import pytest
from typer.testing import CliRunner

from perfgrid.cli.main import app
from perfgrid.engine.errors import PerfgridError, one_line
from perfgrid.jobs.formats import USUAL, format_of, formats, glossary
from perfgrid.jobs.kinds import (
    KEYS,
    KINDS,
    NO_EFFECT,
    NOT_MODELLED,
    UNKNOWN,
    counted,
    keys_of,
    kind_of,
)
from perfgrid.jobs.read import read_job
from perfgrid.jobs.reader import Reader
from perfgrid.jobs.recognise import recognised
from perfgrid.jobs.settings import Settings
from perfgrid.jobs.subjects import could_change, covers
from perfgrid.jobs.words import in_list
from tests.each import each

from .test_bad_input import BATCH, LLAMA, RUN, megatron

STRICT = sorted(name for name, form in formats().items() if form.strict)


@each(
    "key, subject",
    [
        ("--moe-frob-parallel-size", "the layout"),
        ("model.foo_degree", "the layout"),
        ("GLOBAL_BATCH", "the batch"),
        ("training.frob_dtype", "the number formats"),
        ("remat_frob", "recomputation"),
        ("trainer.loraTargets", "which weights are trained"),
        ("kv_offload_frob", "what is kept in host memory"),
        ("frob-memory", "the memory"),
        ("frob.sequence_frob", "the sequence"),
        ("optimizer.frob", "the optimizer"),
        ("num_frob_layers", "the model"),
        ("frobnicate", ""),
        ("tensorboard_dir", ""),
        ("log.frequency", ""),
    ],
)
def test_what_a_key_could_change_is_in_its_name(key, subject):
    assert could_change(key) == subject
    assert not any(could_change(key, off) for off in ("false", "null", "None", "0", ""))


@each("name", STRICT)
def test_an_unknown_key_that_could_matter_stops_every_strict_format(name):
    """One that could not is listed; one that the user leaves out, too."""
    form, version = format_of(name)
    for key, stops in (("frob_parallel_size", True), ("frobnicate_it", False)):
        for left_out in ((), (key,)):
            settings = Settings(values={key: "4"}, files={key: "job.x"})
            reader = Reader(form, version, settings, left_out)
            if stops and not left_out:
                with pytest.raises(
                    PerfgridError, match=r"^job.x: \S*frob.parallel.size 4 is unknown .* the layout"
                ) as error:
                    reader.state({}, "")
                assert one_line(str(error.value)) == str(error.value)
                assert "--ignore " in str(error.value)
            else:
                reader.state({}, "")
                assert any(why.startswith(UNKNOWN) for _, _, why in reader.ignored)


@each("name", STRICT)
def test_a_value_that_no_case_has_stops_every_strict_format(name):
    """Words of keys that a table knows; a quantity that the user states takes the place of the word."""
    form, _ = format_of(name)
    own = {key for case in form.cases for key in case.contains} | {*form.keys}
    rows = {key for case in form.cases for key, word in case.keys.items() if not isinstance(word, bool)}
    checked = 0
    for key in sorted(rows):
        words = [word for case in form.cases if key in case.keys for word in in_list(case.keys[key])]
        if key in own or any(isinstance(word, bool) or "*" in str(word) for word in words):
            continue
        rows_of = [case for case in form.cases if key in case.keys]
        version = next(v for v in reversed(form.versions) if any(form.has(row, v) for row in rows_of))
        reader = Reader(form, version, Settings(values={key: "frob"}, files={key: "job.x"}))
        with pytest.raises(PerfgridError, match="frob is not understood"):
            reader.state({}, "")
        first = next(c.quantity for c in form.cases if key in c.keys)
        if first in glossary():
            word = next(c.value for c in form.cases if c.quantity == first and c.value != USUAL)
            again = Reader(form, version, Settings(values={key: "frob"}, files={key: "job.x"}))
            again.state({first: word}, "")
            assert again.found[first] == word
        checked += 1
    assert checked


@each("name", STRICT)
def test_what_is_known_and_not_modelled_stops_by_name_unless_it_is_off(name):
    form, version = format_of(name)
    for row in form.unpriced:
        key = row.keys[0].replace("*", "x")
        stopped = [(word, False) for word in row.values] or [("frob", "*" in row.harmless), ("false", True)]
        for value, off in (*stopped, *((word, True) for word in row.harmless)):
            reader = Reader(form, version, Settings(values={key: value}, files={key: "job.x"}))
            if off:
                reader.state({}, "")
                assert any("not in effect" in why for _, _, why in reader.ignored)
                continue
            with pytest.raises(PerfgridError, match="is not modelled"):
                reader.state({}, "")
            if row.quantity:
                variable = glossary()[row.quantity]
                default = 8 if variable.default_value is None else variable.word(variable.default_value)
                again = Reader(form, version, Settings(values={key: value}, files={key: "job.x"}))
                again.state({row.quantity: default}, "")


@each("name", sorted(formats()))
def test_what_the_user_states_never_replaces_what_a_file_states(name):
    """One rule for keys and for cases: another value is one line with both, the same value is taken."""
    form, _ = format_of(name)
    tried = 0
    for case in form.cases:
        others = [c.value for c in form.cases if c.quantity == case.quantity and c.value not in (case.value, USUAL)]
        plain = {k: w[0] if isinstance(w, list) else w for k, w in case.keys.items() if w is not False}
        plain |= case.contains
        if (
            case.quantity not in glossary()
            or case.value == USUAL
            or not others
            or not plain
            or "*" in str(plain)
            or not case.read
        ):
            continue
        versions = [v for v in form.versions if form.has(case, v)]
        counted = {key for key, of in form.keys.items() if of.quantity in glossary() and of.kind in (None, "integer")}
        settings = {key: None if word == "null" else word for key, word in plain.items()}
        settings |= {key: "2" for key, word in settings.items() if word is True and key in counted}
        reader = Reader(
            form, versions[-1], Settings(values=dict(settings), files=dict.fromkeys(settings, "job.x")), settings
        )
        reader.state({}, "")
        if reader.found.get(case.quantity) != case.value:
            continue  # another case takes these keys first
        again = Reader(
            form, versions[-1], Settings(values=dict(settings), files=dict.fromkeys(settings, "job.x")), settings
        )
        with pytest.raises(PerfgridError, match=f"^job: {case.quantity} is .* by .*, not "):
            again.state({case.quantity: others[0]}, "job: ")
        same = Reader(
            form, versions[-1], Settings(values=dict(settings), files=dict.fromkeys(settings, "job.x")), settings
        )
        same.state({case.quantity: case.value}, "job: ")
        tried += 1
    assert tried or not form.cases


def test_set_over_a_flag_is_refused_and_over_a_default_is_taken():
    with pytest.raises(PerfgridError, match=r"run.sh: precision is bf16 by --bf16, not fp8: change the file, or leave"):
        megatron(BATCH, stated={"precision": "fp8"})
    with pytest.raises(PerfgridError, match=r"run.sh: microbatch is 2 by --micro-batch-size, not 1"):
        megatron(BATCH, stated={"microbatch": 1})
    assert megatron(BATCH, stated={"recompute": "full"}).values["recompute"] == "full"
    assert megatron(BATCH, stated={"schedule": "zb_h1"}).values["schedule"] == "zb_h1"
    assert megatron(f"{BATCH} --overlap-grad-reduce", stated={"dp_overlap": 0.5}).values["dp_overlap"] == 0.5


@each(
    "flags, found",
    [
        ("", (None, None, None)),
        ("--grad-reduce-in-bf16", (2, 16, 48)),
        ("--accumulate-allreduce-grads-in-fp32", (4, 12, 42)),
        ("--main-grads-dtype bf16 --use-precision-aware-optimizer", (2, 12, 34)),
        ("--grad-reduce-in-bf16 --use-precision-aware-optimizer --main-grads-dtype fp32", (2, 16, 48)),
        (
            "--use-precision-aware-optimizer --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            (2, 8, 26),
        ),
        (
            "--use-precision-aware-optimizer --main-params-dtype fp16 --exp-avg-dtype fp8 --exp-avg-sq-dtype fp16",
            (None, 5, None),
        ),
    ],
)
def test_formats_of_gradients_and_optimizer_have_effect(flags, found):
    """Bytes a parameter of gradients, of the optimizer's state, and of traffic of its step."""
    values = megatron(f"{BATCH} --use-distributed-optimizer {flags}").values
    names = ("gradient_size", "optimizer_state_size", "optimizer_traffic")
    assert all(want is None or values.get(name) == want for name, want in zip(names, found, strict=True))
    assert bool(values.get("optimizer_state_size")) == bool(flags)
    if "exp-avg-dtype" in flags:
        with pytest.raises(
            PerfgridError, match=r"(exp-avg|main-params)-dtype .* without a known value of --use-precision-aware"
        ):
            megatron(f"{BATCH} {flags.replace('--use-precision-aware-optimizer', '')}")


@each(
    "policy, found",
    [
        ("full", ("full", None)),
        ("minimal", ("selective", True)),
        ("minimal_with_context", ("none", True)),
        ("minimal_flash", ("none", True)),
        ("save_everything", None),
    ],
)
def test_policies_of_rematerialisation_are_what_perfgrid_can_say_or_stop_by_name(policy, found):
    text = f"train model_name=llama3.1-8b ici_fsdp_parallelism=8 per_device_batch_size=1 remat_policy={policy}"
    if found is None:
        with pytest.raises(PerfgridError, match=f"remat_policy {policy} is not understood .known: full, minimal"):
            read_job(text, format="maxtext")
        assert read_job(text, format="maxtext", stated={"recompute": "full"}).values["recompute"] == "full"
        return
    values = read_job(text, format="maxtext").values
    assert (values["recompute"], values.get("recompute_norms")) == found
    assert values.get("recompute_activation_function") == found[1]


@each(
    "policy, kept",
    [
        ("save_dot_with_context_except_mlp", {"qkv", "context", "attention_output"}),
        ("save_dot_except_mlpwi", {"qkv", "attention_output", "ffn_output"}),
        ("save_dot_except_mlp", {"qkv", "attention_output"}),
        ("save_qkv_proj", {"qkv"}),
        ("save_out_proj", {"attention_output"}),
    ],
)
def test_policies_that_name_what_stays(policy, kept):
    text = f"train model_name=llama3.1-8b ici_fsdp_parallelism=8 per_device_batch_size=1 remat_policy={policy}"
    values = read_job(text, format="maxtext").values
    assert values["recompute"] == "named"
    assert {name.removeprefix("kept_") for name, value in values.items() if name.startswith("kept_") and value} == kept


@each(
    "settings, kept, offloaded",
    [
        ("remat_policy=qkv_proj_offloaded", set(), {"qkv"}),
        ("remat_policy=minimal_offloaded", set(), {"qkv", "attention_output", "ffn_inputs", "ffn_output"}),
        ("remat_policy=custom query_proj=offload context=device mlpwo=remat", {"context"}, {"qkv"}),
        ("remat_policy=custom out_proj=device mlpwi_0=device", {"attention_output", "ffn_inputs"}, set()),
        ("remat_policy=custom decoder_layer_input=offload", set(), {"input"}),
        ("remat_policy=full query_proj=device", set(), set()),
    ],
)
def test_policies_that_state_where_each_result_is(settings, kept, offloaded):
    text = f"train model_name=llama3.1-8b ici_fsdp_parallelism=8 per_device_batch_size=1 {settings}"
    values = read_job(text, format="maxtext").values
    assert values["recompute"] == ("full" if "policy=full" in settings else "named")
    assert values.get("offload", "none") == ("named" if offloaded else "none")
    for begin, names in (("kept_", kept), ("offloaded_", offloaded)):
        assert {n.removeprefix(begin) for n, value in values.items() if n.startswith(begin) and value} == names


@pytest.mark.parametrize("word", ["True", "true", "1", "yes", "on"])
@pytest.mark.parametrize("off", ["False", "false", "0", "no", "off"])
def test_booleans_are_read_in_every_spelling(word, off):
    job = megatron(f"{BATCH} --sequence-parallel={word} --use-distributed-optimizer={off}")
    assert (job.values["sequence_parallel"], job.values["zero"]) == (True, 0)
    bridge = f"train model.sequence_parallel={word} ddp.use_distributed_optimizer={off} train.micro_batch_size=1"
    values = read_job(bridge, format="megatron-bridge").values
    assert (values["sequence_parallel"], values["zero"]) == (True, 0)


AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
adapter: lora
lora_r: 16
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
optimizer: adamw_torch
learning_rate: 0.0002
bf16: auto
gradient_checkpointing: true
"""


def test_a_file_of_another_program_is_not_read_as_megatron_bridge():
    with suppress(PerfgridError):
        assert recognised({"a.yaml": AXOLOTL}) not in ("megatron-bridge", "nemo-2", "nemo-1")
    unknown = "".join(f"model.foo_{letter}: 1\n" for letter in "abcd")
    text = f"{unknown}model.seq_length: 4096\ntrain.micro_batch_size: 2\n"
    with pytest.raises(PerfgridError, match=r"4 of 6 keys are of none, such as model.foo_a.*megatron-bridge .2."):
        read_job({"a.yaml": text})


def test_stars_cover_no_key_that_could_matter():
    assert covers("a.log_*", "a.log_interval", True)
    assert not covers("a.*", "a.batch_size", True)
    assert covers("a.**", "a.batch_size", True)
    assert covers("a.*", "a.batch_size", False)


def test_a_command_counts_the_keys_of_every_format():
    data = json.loads(CliRunner().invoke(app, ["read-job", "--formats", "--json"]).stdout)
    assert data.keys() == formats().keys()
    shown = CliRunner().invoke(app, ["read-job", "--formats"], env={"COLUMNS": "160"}).stdout
    for name, form in formats().items():
        count = counted(form)
        assert {kind: data[name][kind] for kind in KINDS} == count.kinds
        assert name in shown
        if listed := keys_of(form):
            assert sum(number or 0 for number in count.kinds.values()) == len(listed)
            assert count.stopping is not None
    assert data["megatron-lm"][UNKNOWN] == 0
    assert data["torchtitan"][UNKNOWN] == data["primus"][UNKNOWN] == data["nemo-1"][UNKNOWN] == 0
    assert kind_of(formats()["megatron-lm"], "lr") == NO_EFFECT
    assert kind_of(formats()["megatron-lm"], "optimizer") == NOT_MODELLED


def test_a_shape_beside_the_name_of_a_model_holds():
    text = "train model_name=llama3.1-8b ici_fsdp_parallelism=8 per_device_batch_size=1 base_mlp_dim=8192"
    job = read_job(text, format="maxtext")
    assert job.model is not None
    assert (job.own, job.model.values["ffn_size"], job.model.values["layers"]) == (True, 8192, 32)
    assert any("but ffn_size 8192" in why for _, _, why in job.assumed)


@each(
    "flags, quantity",
    [
        ("--recompute-granularity $GRANULARITY", "recompute"),
        ("--fp8-format $(choose)", "precision"),
        ("--cp-comm-type ${COMM}", "cp_method"),
    ],
)
def test_a_word_that_is_not_read_is_no_default(flags, quantity):
    how = (
        "leave it out with --ignore" if quantity == "precision" else f"give --set {quantity}="
    )  # --bf16 states it, too
    with pytest.raises(PerfgridError, match=rf"{flags.split()[0]} .*is not read: .* {how}"):
        megatron(f"{BATCH} {flags}")
    default = glossary()[quantity].word(glossary()[quantity].default_value)
    stated = {quantity: "bf16" if quantity == "precision" else default}
    assert megatron(f"{BATCH} {flags}", stated=stated).values[quantity] == stated[quantity]
    if quantity == "precision":  # what is read of the others does not decide
        assert megatron(f"{BATCH} {flags}", stated={"precision": "fp8"}).values["precision"] == "fp8"
    assert megatron(f"{BATCH} {flags}", ignore=[flags.split()[0]]).values["devices"] == 16


@each("name", ["megatron-lm", "torchtitan", "maxtext"])
def test_the_defaults_of_a_program_stop_nothing(name):
    """Files that state every default, such as a base configuration, are read."""
    form, version = format_of(name)
    for line in (KEYS / f"{name}.txt").read_text().splitlines():
        key, kind, _, default = (*line.split("\t"), "", "", "")[:4]
        if kind == "switch" or not default:
            continue
        key = key if name == "megatron-lm" else key.replace("-", "_")
        value = default.rpartition(".")[2].lower() if default.rpartition(".")[2].isupper() else default
        Reader(form, version, Settings(values={key: value}, files={key: "job.x"})).state({}, "")


STRATEGIES = {"optim_grads_params": 3, "optim_grads": 2, "optim": 1, "no_shard": 0}
BRIDGE = "model.tensor_model_parallel_size=1 train.micro_batch_size=1 train.global_batch_size=64 model.seq_length=4096 "


@each("strategy", STRATEGIES)
def test_megatron_fsdp_shards_by_its_strategy(strategy):
    """With the distributed optimizer or without; without Megatron-FSDP a strategy is without effect."""
    flag, expected = f"--data-parallel-sharding-strategy {strategy}", STRATEGIES[strategy]
    for own in ("--use-megatron-fsdp", "--use-megatron-fsdp --use-distributed-optimizer"):
        assert megatron(f"{BATCH} {own} {flag}").values["zero"] == expected
    assert megatron(f"{BATCH} {flag}").values["zero"] == 0
    for key in ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"):
        text = f"python run.py {BRIDGE} {key}=true ddp.data_parallel_sharding_strategy={strategy}"
        job = read_job({"run.sh": text}, format="megatron-bridge", model="llama-3.1-8b", devices=8)
        assert job.values["zero"] == expected


def test_every_key_of_a_case_can_stop_the_reader():
    own = f"{RUN}{LLAMA}{BATCH} --use-megatron-fsdp"
    assert read_job(own, format="megatron-lm").values["zero"] == 3  # the default since 0.17
    for other in ("", " --use-distributed-optimizer"):
        with pytest.raises(PerfgridError, match=r"is not understood without a known value of .*sharding-strategy"):
            read_job(own + other, format="megatron-lm@0.14")
    for other in ("", " ddp.use_distributed_optimizer=true"):
        text = f"python run.py {BRIDGE} ddp.use_megatron_fsdp=true{other}"
        with pytest.raises(PerfgridError, match=r"is not understood without a known value of .*sharding_strategy"):
            read_job({"run.sh": text}, format="megatron-bridge")


def test_fsdp2_overlaps_by_itself():
    for form, text in (
        ("megatron-lm", f"{RUN}{LLAMA}{BATCH} --use-torch-fsdp2"),
        ("primus", f"{RUN}{LLAMA}{BATCH} --use_torch_fsdp2 true"),
    ):
        values = read_job({"run.sh": text}, format=form).values
        assert values["zero"] == 3
        assert not {"dp_overlap", "parameter_overlap"} & values.keys()  # as usual
    assert megatron(f"{BATCH}").values["dp_overlap"] == 0
