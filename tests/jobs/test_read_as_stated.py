"""What a job states, through the command line: counted, named as not counted, or refused; and what is taken instead."""

from __future__ import annotations

import json
import re

import pytest

from perfgrid.jobs.read import read_job
from tests.each import each
from tests.fuzz.program import run


def told(folder, text, *options, name="job.sh", on="h100-sxm-80gb"):
    """What ``perfgrid read-job`` does with a file."""
    (folder / name).write_text(text)
    return run(folder, ["read-job", name, "--on", on, *options])


def data(folder, text, *options, name="job.sh", on="h100-sxm-80gb"):
    """The same as data."""
    return json.loads(told(folder, text, *options, "--json", name=name, on=on).out)


def test_the_default_of_the_engine_for_memory_is_taken_and_listed(tmp_path):
    silent, stated = "vllm serve Qwen/Qwen3-8B", "vllm serve Qwen/Qwen3-8B --gpu-memory-utilization "
    cache = {text: data(tmp_path, text)["verdict"]["held"][0]["cache"] for text in (silent, f"{stated}0.92")}
    assert cache[silent] == cache[f"{stated}0.92"] > data(tmp_path, f"{stated}0.8")["verdict"]["held"][0]["cache"]
    assert "0.92 of the memory may be used in all, default of vllm" in " ".join(told(tmp_path, silent).out.split())
    assert read_job("vllm serve Qwen/Qwen3-8B --kv-cache-memory-bytes 8G").values["memory_fraction"] == 1


def test_the_share_that_sglang_takes_depends_on_device_and_layout(tmp_path):
    launch = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp {}"
    shares = {}
    for ranks, device in ((1, "h100-sxm-80gb"), (8, "h100-sxm-80gb"), (8, "h200")):
        rule = data(tmp_path, launch.format(ranks), on=device)["verdict"]["held"][0]["rule"]
        assert rule.endswith("default of sglang")
        shares[ranks, device] = float(re.findall(r"take (0\.\d+) of", rule)[0])
    assert shares[8, "h100-sxm-80gb"] < shares[1, "h100-sxm-80gb"] < shares[8, "h200"]
    # of a device with 80 GiB: 512 + 1.5 x 8,192 + 2 x 512 + 8 x 128 MiB are not for weights and cache
    assert shares[8, "h100-sxm-80gb"] == pytest.approx(1 - 14848 / 81920, abs=1e-4)


@each(
    "name, text",
    [
        ("tt.toml", '[model]\nname = "llama3"\nflavor = "70B"\n[training]\nlocal_batch_size = 1\nseq_len = 4096\n'),
        ("sg.sh", "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2\n"),
        (
            "axo.yaml",
            "base_model: Qwen/Qwen3-32B\nsequence_len: 4096\nmicro_batch_size: 1\nadapter: lora\nlora_r: 16\n",
        ),
    ],
)
def test_another_model_than_that_of_the_file_is_refused(tmp_path, name, text):
    found = told(tmp_path, text, "--model", "llama-3.1-8b", name=name)
    assert found.status == 2
    assert "not llama-3.1-8b: leave --model out" in found.err


def test_a_name_that_no_catalog_has_may_be_told():
    job = read_job("vllm serve /models/of-ours -tp 2", model="qwen3-8b")
    assert job.model is not None
    assert job.model.name == "qwen3-8b"


@pytest.mark.parametrize(
    ("launch", "quantity", "value"),
    [
        ("python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 4", "tp", 4),
        ("vllm serve $BEFORE Qwen/Qwen3-8B -tp 4", "tp", 4),
        ("python pre.py --num-layers 36 --seq-length 64 --tensor-model-parallel-size 2 --bf16", "precision", "bf16"),
        ("python pre.py --num-layers 36 --tensor-model-parallel-size 2 --bf16 --micro-batch-size 2", "microbatch", 2),
    ],
)
@pytest.mark.parametrize("more", ['"$@"', "$EXTRA", '"${ARGS[@]}"'])
def test_words_that_are_not_read_take_nothing_away(launch, quantity, value, more):
    unread = "EXTRA=$(cat extra.txt)\nARGS=($(cat args.txt))\n"
    job = read_job(f"{unread}{launch} {more} ", model="qwen3-8b", devices=8 if "pre.py" in launch else None)
    assert job.values[quantity] == value
    assert job.model is not None


BRANCHES = """TP=$(cat tp.txt)
if [ "$TP" -gt 4 ]; then
  MORE="--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
else
  MORE="--recompute-activations"
fi
"""
COMMAND = "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 4 --seq-length 64 $MORE"


@each("command", [COMMAND, f'srun bash -c "{COMMAND} --bf16"'])
def test_recomputation_of_an_undecided_branch_is_asked_for(tmp_path, command):
    text = f"{BRANCHES}{command}\n"
    found = told(tmp_path, text, "--model", "llama-3.1-8b")
    assert found.status == 2
    assert "give --set recompute=..." in found.err
    job = data(tmp_path, text, "--model", "llama-3.1-8b", "--set", "recompute=full")
    assert job["values"]["recompute"] == "full"


def test_a_flag_that_only_begins_like_known_ones_is_unknown(tmp_path):
    known = f"{COMMAND} --bf16 --log-interval 5".replace("$MORE", "")
    found = told(tmp_path, f"{known} --overlap-param-gatther --log-foo 1", "--model", "llama-3.1-8b")
    assert "warning: --overlap-param-gatther is ignored: unknown" in found.err
    assert "did you mean 'overlap-param-gather'" in found.err
    assert "--log-foo" in found.err
    assert "--log-interval" not in found.err
    assert "100% of" not in found.out


MESH = "model_name: llama3.1-8b\nremat_policy: full\nper_device_batch_size: 1\nmax_target_length: 2048\nhardware: gpu\n"


def test_a_mesh_of_several_domains_is_placed_on_them(tmp_path):
    def of(mesh, on="h100-sxm-80gb"):
        return data(tmp_path, MESH + "".join(f"{key}: {size}\n" for key, size in mesh.items()), name="m.yml", on=on)

    one = of({"ici_fsdp_parallelism": 32})
    four = of({"ici_fsdp_parallelism": 2, "ici_tensor_parallelism": 2, "dcn_fsdp_parallelism": 8})
    same = of({"ici_fsdp_parallelism": 16, "ici_tensor_parallelism": 2})
    assert four["values"]["scale_up_size"] == 4
    assert four["verdict"]["reached"]["step_time"]["value"] > same["verdict"]["reached"]["step_time"]["value"]
    assert "scale_up_size" not in one["values"]
    assert not four["verdict"]["uncounted"]
    crossed = of({"ici_fsdp_parallelism": 4, "dcn_tensor_parallelism": 2})
    assert crossed["verdict"]["uncounted"] == ["dcn_tensor_parallelism 2"]
    larger = of({"ici_fsdp_parallelism": 16, "dcn_fsdp_parallelism": 2})
    assert larger["verdict"]["uncounted"] == ["parts inside a domain 16"]


TITAN = '[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["float8"]\n[training]\nseq_len = 64\n'
AXOLOTL = "base_model: Qwen/Qwen3-8B\nsequence_len: 64\nmicro_batch_size: 1\nadapter: lora\nlora_r: 8\nbf16: true\n"
AXOLOTL += "lora_target_linear: true\n"
FACTORY = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\ndo_train: true\nfinetuning_type: lora\nlora_rank: 8\n"
FACTORY += "cutoff_len: 64\nbf16: true\nper_device_train_batch_size: 1\nlora_target: all\n"


@each(
    "name, text, counted, uncounted",
    [
        ("tt.toml", TITAN, "[compile]\nenable = true\n", "[compile]\nenable = false\n"),
        (
            "tt.toml",
            TITAN + '[activation_checkpoint]\nmode = "selective"\n',
            'selective_ac_option = "op"\n',
            'selective_ac_option = "2"\n',
        ),
        (
            "tt.toml",
            TITAN + "[quantize.linear.float8]\n",
            "enable_fsdp_float8_all_gather = false\n",
            "enable_fsdp_float8_all_gather = true\n",
        ),
        ("a.yaml", AXOLOTL, "lora_mlp_kernel: false\n", "lora_mlp_kernel: true\n"),
        ("a.yaml", AXOLOTL, "", "peft_use_dora: true\n"),
        ("a.yaml", AXOLOTL, "", "tiled_mlp: true\n"),
        ("l.yaml", FACTORY, "", "fp8_enable_fsdp_float8_all_gather: true\n"),
    ],
)
def test_what_the_stack_does_otherwise_is_named_beside_the_verdict(tmp_path, name, text, counted, uncounted):
    more = ("--devices", "8")
    assert not data(tmp_path, text + counted, *more, name=name)["verdict"]["uncounted"]
    (told,) = data(tmp_path, text + uncounted, *more, name=name)["verdict"]["uncounted"]
    assert told.rpartition(".")[2].split()[0] in uncounted


def test_layers_of_another_kind_in_megatron_are_named(tmp_path):
    found = told(tmp_path, f"{COMMAND} --fp8-format hybrid --transformer-impl local".replace("$MORE", "--bf16"))
    assert "Not counted in this verdict: --transformer-impl local" in found.out


def test_variables_of_the_environment_that_matter_are_named(tmp_path):
    job = COMMAND.replace("$MORE", "--global-batch-size 64 --micro-batch-size 1 --bf16")
    text = f"export NVTE_FLASH_ATTN=0; export NVTE_FUSED_ATTN=1\n# export NCCL_P2P_DISABLE=1\nNCCL_DEBUG=INFO {job}\n"
    assert data(tmp_path, text, "--model", "llama-3.1-8b")["verdict"]["uncounted"] == ["NVTE_FLASH_ATTN 0"]
    docker = "docker run -e VLLM_USE_V1=0 --env VLLM_LOGGING_LEVEL=INFO vllm/vllm-openai:v0.8.5 --model Qwen/Qwen3-8B"
    found = data(tmp_path, docker)
    assert found["verdict"]["uncounted"] == ["VLLM_USE_V1 0"]
    assert [row["value"] for row in found["ignored"] if row["key"] == "image"] == ["vllm/vllm-openai:v0.8.5"]


DRAFTS = 'vllm serve Qwen/Qwen3-8B --speculative-config \'{"method": "ngram", "num_speculative_tokens": 4}\''
SPECULATIVE = """workload = "inference"
outputs = ["time_per_output_token"]
axes = { model = ["qwen3-8b"], device = ["h200"], parallelism = { devices = [1] } }
workload_parameters = { prompt_tokens = 100, output_tokens = 100, batch = 8, draft_tokens = 3 }
"""


def test_drafts_without_a_share_that_is_accepted_are_told_beside_the_answer(tmp_path):
    load = ("--set", "batch=8", "--set", "prompt_tokens=100", "--set", "output_tokens=100")
    words = "draft_tokens is stated and draft_acceptance is not"
    assert words in told(tmp_path, DRAFTS, *load).out
    assert words not in told(tmp_path, DRAFTS, *load, "--set", "draft_acceptance=0.7").out
    (tmp_path / "s.toml").write_text(SPECULATIVE)
    assert words in run(tmp_path, ["run", "s.toml"]).err
    assert words not in run(tmp_path, ["run", "s.toml", "--set", "workload_parameters.draft_acceptance=0.5"]).err


def inputs(folder, text, *options, name="job.sh"):
    """The inputs of a job: status and where each comes from."""
    found = data(folder, text, *options, "--assumptions", name=name)["inputs"]
    return {one["quantity"]: (one["status"], one["by"]) for one in found}


def test_the_inputs_of_a_server_without_a_load(tmp_path):
    text = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 4 --max-running-requests 64"
    found = inputs(tmp_path, text)
    assert found["tp"] == ("stated", "--tp-size")
    assert found["batch_limit"] == ("stated", "--max-running-requests")
    assert found["dp"] == ("implied", "dp 1 = attention_dp 1 x replicas 1")
    assert "prompt_tokens" not in found
    shown = told(tmp_path, text, "--assumptions").out
    assert "starts" in shown
    assert "Inputs of the job" in shown


def test_what_a_key_states_in_other_words_is_stated_by_it(tmp_path):
    found = inputs(tmp_path, AXOLOTL, "--devices", "8", name="a.yaml")
    assert found["lora_rank"] == ("stated", "lora_r")
    assert found["devices"] == ("stated", "--devices")
    assert found["dp"][0] == "implied"
    found = inputs(tmp_path, TITAN.replace("seq_len", "local_batch_size = 4\nseq_len"), "--devices", "8", name="t.toml")
    assert found["microbatch"] == ("stated", "training.local_batch_size")


def test_the_shape_that_a_job_states_is_among_its_inputs(tmp_path):
    shape = "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --ffn-hidden-size 4096 --vocab-size 32000"
    job = COMMAND.replace("$MORE", f"--global-batch-size 64 --micro-batch-size 1 --bf16 {shape}")
    found = inputs(tmp_path, job)
    assert found["layers"] == ("stated", "--num-layers")
    assert found["ffn_size"] == ("stated", "--ffn-hidden-size")
    verdict = data(tmp_path, job)["verdict"]
    matrices = 8 * (4 * 1024**2 + 2 * 1024 * 4096) + 32000 * 1024
    assert verdict["parameters"] == pytest.approx(matrices, rel=0.01)


def test_reasons_are_about_what_is_stated(tmp_path):
    """No reason denies a key that stands there, and none names what does not."""
    mesh = told(tmp_path, f"{MESH}ici_fsdp_parallelism: 8\n", name="m.yml").out
    assert "no remat_policy" not in mesh
    assert "not by remat_policy full" in mesh
    off = told(tmp_path, f"{AXOLOTL}flash_attention: false\n", "--devices", "8", name="a.yaml").out
    assert "is off: flash_attention = true holds" in off
    assert "DeepSpeed" not in off
    served = data(tmp_path, "vllm serve Qwen/Qwen2.5-72B-Instruct-AWQ -tp 4 --dtype float16")
    assert [row["value"] for row in served["assumed"] if row["what"] == "weight_precision"] == ["int4"]
    assert served["values"]["precision"] == "fp16"
    eight = data(tmp_path, f"{COMMAND} --fp8-format hybrid --bf16".replace("$MORE", ""), "--model", "llama-3.1-8b")
    assert {row["key"]: row["as"] for row in eight["understood"]}["--bf16"] == "with --fp8-format"


def test_a_longer_context_than_that_of_the_model_is_told(tmp_path):
    words = "Note: Qwen3 8B is made for 40,960 tokens, a request may have 262,144"
    assert words in told(tmp_path, "vllm serve Qwen/Qwen3-8B --max-model-len 256K").out
    assert words in told(tmp_path, "vllm serve Qwen/Qwen3-8B --max-model-len 262144").out
    assert "Note: " not in told(tmp_path, "vllm serve Qwen/Qwen3-8B --max-model-len 32768").out


def test_sequences_of_all_replicas_are_told_as_theirs(tmp_path):
    one, three = (f"vllm serve Qwen/Qwen3-8B --max-model-len 8192 -dp {n}" for n in (1, 3))
    assert " on 3 replicas" in told(tmp_path, three).out
    assert "replicas" not in told(tmp_path, one).out


def test_of_a_flag_that_stands_twice_the_first_is_told(tmp_path):
    job = COMMAND.replace("$MORE", "--global-batch-size 64 --micro-batch-size 1 --bf16 --global-batch-size 32")
    found = data(tmp_path, job, "--model", "llama-3.1-8b")
    assert found["values"]["global_batch"] == 32
    assert ["global-batch-size before", "64"] in [[row["key"], row["value"]] for row in found["ignored"]]


def test_a_configuration_of_a_model_may_be_named(tmp_path):
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 512}
    config |= {"intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4}
    config |= {"vocab_size": 1000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps(config))
    job = COMMAND.replace("$MORE", "--global-batch-size 64 --micro-batch-size 1 --bf16")
    found = told(tmp_path, job, "--model", "small/config.json", "-o", "s.toml")
    assert "fits" in found.out
    assert run(tmp_path, ["best", "s.toml"]).status == 0
