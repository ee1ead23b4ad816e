"""From records to designs: some mapped by hand, some against the same design entered from the catalog."""

import json

import pytest

from perfgrid.catalog import load_catalog
from perfgrid.formulas import registry_of
from perfgrid.validation.design import designs
from perfgrid.validation.inference import InferenceMapper, serves
from perfgrid.validation.schema import SHIPPED, UNSEEN, read_records
from perfgrid.validation.validate import validate
from tests.inference.designs import registry
from tests.physics.cases import design


@pytest.fixture(scope="module")
def mapped():
    return designs(read_records()[0], load_catalog(), registry_of("training"))


def rows_of(mapped, identity):
    return [row for row in mapped.rows if row.record.id == identity]


@pytest.mark.parametrize(("size", "slices", "sequences"), [("16b", 1, 6), ("128b", 1, 16), ("128b", 8, 16)])
def test_maxtext_takes_the_batch_of_a_replica_in_one_pass(mapped, size, slices, sequences):
    """per_device_batch_size is 6 and 1; a replica of the largest model is sixteen devices; nothing accumulates."""
    (row,) = rows_of(mapped, f"maxtext-v5e-{size}-{slices}x256")
    assert row.columns["microbatch"] == sequences
    assert row.columns["global_batch"] == sequences * row.columns["dp"]


def test_a_training_step_as_its_source_states_it(mapped):
    (row,) = rows_of(mapped, "bloom-preq-l775-181b-tp8pp6dp8mbs4-a64")
    stated = {
        "device": "a100-sxm-80gb",
        "topology": "rail-optimized",
        "devices": 384,
        "tp": 8,
        "pp": 6,
        "dp": 8,
        "chunks": 1,
        "microbatch": 4,
        "global_batch": 1568,
        "sequence_length": 2048,
        "zero": 1,
        "recompute": "full",
        "sequence_parallel": False,
        "flash_attention": False,
        "scale_up_size": 8,
        "scale_out_bandwidth": 6.25e9,
        "tp_overlap": 0.0,
    }
    assert {name: row.columns[name] for name in stated} == stated
    assert row.quantity == "step_time"
    model = mapped.catalog.entry("model", row.columns["model"]).values
    architecture = {
        "layers": 72,
        "hidden_size": 14336,
        "heads": 64,
        "kv_heads": 64,
        "head_dim": 224,
        "ffn_size": 57344,
        "vocab_size": 250880,
        "learned_positions": 0,
        "gated_ffn": False,
        "tied_embeddings": True,
        "dropout": False,
        "biases": True,
        "experts": 0,
        "window": 0,
    }
    assert {name: model[name] for name in architecture} == architecture


def test_what_a_source_leaves_open_is_left_to_the_system(mapped):
    (row,) = rows_of(mapped, "nemo-25.02-b200-gpt3-175b-512")
    assert (row.columns["recompute"], row.columns["precision"]) == ("least", "fp8")
    model = mapped.catalog.entry("model", row.columns["model"]).values
    assert (model["learned_positions"], model["dropout"], model["biases"]) == (2048, False, True)


def test_sharding_adapters_and_offloading_are_kept(mapped):
    (row,) = rows_of(mapped, "maxtext-v5e-128b-2x256")
    stated = {"zero": 3, "zero_size": 16, "offload": "activations", "recompute": "full", "software": "maxtext"}
    assert {name: row.columns[name] for name in stated} == stated
    (row,) = rows_of(mapped, "mbridge-26.06-llama3_70b-lora-gb200-8-mxfp8-gbs32")
    stated = {"lora_rank": 16, "lora_targets": "qkv", "scaling": "mx", "zero": 1, "recompute": "least"}
    assert {name: row.columns[name] for name in stated} == stated
    (row,) = rows_of(mapped, "sc21-t2-zero-3-175b-384")
    assert (row.columns["software"], row.columns["dp_overlap"], row.columns["lora_rank"]) == ("deepspeed", 0, 0)


@pytest.mark.parametrize(
    ("identity", "software"),
    [
        ("bloom-176b-final", "megatron-deepspeed"),
        ("bloom-preq-l775-181b-tp8pp6dp8mbs4-a64", "megatron-deepspeed-fp16"),
        ("llmfoundry-a100_80gb-7b-s8192-8gpu-mb8", "llm-foundry-2023"),
        ("llmfoundry-h100_80gb-7b-s8192-8gpu-mb8", "llm-foundry-2023"),
        ("llmfoundry-h100_80gb-70b-s2048-128gpu-mb8", "llm-foundry"),
        ("sc21-t2-ptd-175b-384", "megatron-lm-2022"),
    ],
)
def test_precision_and_table_of_a_source_choose_its_software(mapped, identity, software):
    (row,) = rows_of(mapped, identity)
    assert row.columns["software"] == software


def test_a_matrix_product_is_the_first_of_a_feed_forward_block(mapped):
    (row,) = rows_of(mapped, "deepgemm-m64n2112k7168")
    model = mapped.catalog.entry("model", row.columns["model"]).values
    assert row.columns["microbatch"] * row.columns["sequence_length"] == 64
    assert (model["ffn_size"], model["hidden_size"], model["gated_ffn"]) == (2112, 7168, False)
    assert (row.columns["precision"], row.quantity) == ("fp8", "product_busy_time")


def test_attention_kernels_keep_shape_mask_and_version(mapped):
    (row,) = rows_of(mapped, "fa2-f-h100-hd128-full-s8192")
    model = mapped.catalog.entry("model", row.columns["model"]).values
    assert (model["heads"], model["kv_heads"], model["head_dim"]) == (16, 16, 128)
    assert row.columns["microbatch"] * row.columns["sequence_length"] == 16384
    assert (row.columns["causal"], row.columns["flash_limit"], row.columns["flash_attention"]) == (False, 2, True)
    (torch,) = rows_of(mapped, "std-f-h100-hd128-causal-s2048")
    assert (torch.columns["causal"], torch.columns["flash_attention"]) == (True, False)


@pytest.fixture(scope="module")
def served():
    records = [r for files in ((), [UNSEEN]) for r in read_records(files)[0] if r.kernel is not None and serves(r)]
    return designs(records, load_catalog(), registry(), InferenceMapper)


def test_experts_and_decoding_attention_are_one_step_of_one_layer(served):
    (row,) = rows_of(served, "moe-b300-deepseek-v3-ep8-mxfp8-64")
    model = served.catalog.entry("model", row.columns["model"]).values
    assert (model["layers"], model["experts"], model["experts_per_token"], model["expert_ffn_size"]) == (1, 32, 1, 2048)
    stated = {
        "batch": 64,
        "batch_rule": "given",
        "output_tokens": 2,
        "precision": "fp8",
        "weight_precision": "fp8",
        "devices": 1,
        "software": "tensorrt-llm",
    }
    assert {name: row.columns[name] for name in stated} == stated
    assert row.quantity == "expert_layer_busy_time"
    (row,) = rows_of(served, "decode-b200-64x8x64-128x4096")
    model = served.catalog.entry("model", row.columns["model"]).values
    assert (model["heads"], model["kv_heads"], model["head_dim"]) == (64, 8, 64)
    assert (row.columns["batch"], row.columns["prompt_tokens"]) == (128, 4096)
    assert (row.columns["kv_precision"], row.quantity) == ("bf16", "decode_attention_busy_time")
    (row,) = rows_of(served, "decode-h100-flashmla-16-128x4096")
    model = served.catalog.entry("model", row.columns["model"]).values
    assert (model["kv_lora_rank"], model["qk_rope_head_dim"], model["heads"]) == (512, 64, 16)


def test_experts_and_caches_that_are_read_once_take_what_their_bytes_take():
    """All 128 experts of gpt-oss on H100, the cache of 128 sequences on B200: bytes by hand over triad bandwidths."""
    files = (SHIPPED / "moe_triton.jsonl", UNSEEN / "decode_attention.jsonl")
    found = {p.record.id: p.predicted or 0.0 for p in validate(files).predictions}
    weights = 128 * 3 * 2880 * 2880 * 2 / (3.352e12 * 0.887)
    assert weights < found["moe-triton-h100-gpt-oss-120b-512"] < 1.05 * weights
    cache = 128 * 4096 * 2 * 8 * 64 * 2 / (8e12 * 0.92)
    assert cache < found["decode-b200-64x8x64-128x4096"] < 1.05 * cache


def changed(identity, tmp_path, **blocks):
    """The comparison of one shipped record with some fields of some blocks replaced."""
    lines = (f.read_text().splitlines() for folder in (SHIPPED, UNSEEN) for f in folder.glob("*.jsonl"))
    line = next(found for own in lines for x in own if (found := json.loads(x))["id"] == identity)
    for block, fields in blocks.items():
        stated = line.get(block)
        line[block] = stated | fields if isinstance(stated, dict) and isinstance(fields, dict) else fields
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps(line) + "\n")
    (found,) = validate(file).predictions
    return found


EXPERTS, STEP = "moe-b300-deepseek-v3-ep8-mxfp8-64", "decode-b200-64x8x64-128x4096"


@pytest.mark.parametrize(
    ("identity", "blocks", "reason"),
    [
        (EXPERTS, {"kernel": {"m": None}}, "the source leaves open: kernel.m"),
        (EXPERTS, {"model": None}, "the source leaves open: model.moe"),
        (EXPERTS, {"model": {"moe": None}}, "the source leaves open: model.moe"),
        (STEP, {"kernel": {"direction": "backward"}}, "not modelled: backward of decode_attention"),
        (EXPERTS, {"quantity": "step_time"}, "not modelled: step_time as a target"),
        (STEP, {"kernel": {"kv_heads": None, "batch": None}}, "the source leaves open: kernel.batch, kernel.kv_heads"),
        ("deepgemm-m64n2112k7168", {"kernel": {"m": None}}, "the source leaves open: kernel.m"),
    ],
)
def test_what_a_kernel_leaves_open_is_reported(identity, blocks, reason, tmp_path):
    assert changed(identity, tmp_path, **blocks).reasons == (reason,)


def test_experts_are_those_of_one_layer_of_however_many(tmp_path):
    one = changed(EXPERTS, tmp_path).predicted
    assert changed(EXPERTS, tmp_path, model={"layers": 61}).predicted == pytest.approx(one, rel=1e-12)


def test_a_matrix_product_is_its_own_shape_whatever_model_it_came_from(tmp_path):
    model = json.loads((SHIPPED / "moe_b300.jsonl").read_text().splitlines()[0])["model"]
    plain = changed("deepgemm-m64n2112k7168", tmp_path).predicted
    assert changed("deepgemm-m64n2112k7168", tmp_path, model=model).predicted == plain


def test_a_record_predicts_what_its_catalog_design_does(mapped):
    """The 22B model of Korthikanti et al. stands in the catalog too: the same numbers by two ways."""
    found = {p.record.id: p.predicted for p in validate(SHIPPED / "korthikanti.jsonl").predictions}
    (row,) = rows_of(mapped, "korth-t5-22b-seqsel")
    own = design(
        "megatron-22b",
        tp=8.0,
        pp=1.0,
        dp=1.0,
        microbatch=4.0,
        global_batch=4.0,
        flash_attention=False,
        zero=0.0,
        precision=row.columns["precision"],
    )
    assert found["korth-t5-22b-seqsel"] == pytest.approx(own["step_time"], rel=1e-9)
    assert found["korth-t4-seqsel-forward"] == pytest.approx(own["layer_forward_time"], rel=1e-9)
    assert found["korth-t4-seqsel-backward"] == pytest.approx(own["layer_backward_time"], rel=1e-9)
    assert found["korth-f1-22b-act-seqsel"] == pytest.approx(own["layer_activation_memory"], rel=1e-9)


def test_windows_and_parallel_blocks_are_predicted(tmp_path):
    plain = json.loads((SHIPPED / "korthikanti.jsonl").read_text().splitlines()[0])
    plain["plan"]["flash_attention"] = True  # fused attention skips what lies outside the window
    windowed, parallel = json.loads(json.dumps([plain | {"id": "windowed"}, plain | {"id": "parallel"}]))
    windowed["model"] |= {"window": 256, "window_layers": plain["model"]["layers"]}
    parallel["model"]["parallel_block"] = True
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, (plain, windowed, parallel))))
    found = {p.record.id: p for p in validate(file).predictions}
    assert all(p.reasons == () for p in found.values())
    whole, *less = (found[name].predicted or 0.0 for name in (plain["id"], "windowed", "parallel"))
    assert all(0.5 * whole < step < whole for step in less)


def test_what_cannot_be_predicted_is_listed_with_every_reason(mapped):
    why = mapped.unpredicted
    assert any("ceiling" in r for r in why["mamf-a100-80gb-sxm-bf16"])
    assert why["gb200-fp8-azure"][0] == "the source leaves open: kernel.shape"
    assert why["mcore-h100-strong-96"] == (
        "the source leaves open: plan",
        "not modelled: model_flops as a target",
    )
    assert not {row.record.id for row in mapped.rows} & set(why)


def test_records_of_other_kinds_are_read_and_listed(tmp_path):
    line = json.loads((SHIPPED / "korthikanti.jsonl").read_text().splitlines()[0])
    line |= {"kind": "cost", "quantity": "cost"}
    line["reported"]["quantity"] = "phase_latency"
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(line))
    (prediction,) = validate(file).predictions
    assert prediction.predicted is None
    assert prediction.reasons[0] == "not modelled: cost and power"


def test_one_absurd_record_stops_no_other(tmp_path):
    lines = [json.loads(line) for line in (SHIPPED / "korthikanti.jsonl").read_text().splitlines()[:2]]
    lines[0]["interconnect"]["scale_out_bandwidth"] = 1e30
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    absurd, sound = validate(file).predictions
    assert absurd.reasons == ("field scale_out_bandwidth must lie between 1000 and 1e+18 byte/s, found 1e+30",)
    assert sound.predicted is not None


def test_a_kernel_of_serving_from_a_source_that_is_not_known_ran_on_a_serving_stack(tmp_path):
    found = changed(STEP, tmp_path, group="mine", interconnect=None)
    assert (found.reasons, found.software) == ((), "vllm")
    assert changed(STEP, tmp_path, group="mine", software="sglang").software == "sglang"
