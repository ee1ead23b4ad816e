"""Sharded state against the proportions of ZeRO, and its communication against queues of gathers and reductions."""

import pytest

from perfgrid.formulas.hardware import scaling

from .cases import design, rows

BASE = {"model": "llama-3.1-8b", "device": "h100-sxm-80gb", "tp": 1.0, "dp": 8.0, "global_batch": 64.0}
PARAMETERS = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096) + 2 * 128256 * 4096
LAYER = (PARAMETERS - 2 * 128256 * 4096) / 32


# ---- memory ---------------------------------------------------------------------------------------------------------

# bytes per parameter on d ranks by ZeRO stage 0, 1, 2, 3 (Rajbhandari 2020, figure 1; float32 gradients: Megatron-LM)
PROPORTIONS = {
    "deepspeed": (lambda d: 16, lambda d: 4 + 12 / d, lambda d: 2 + 14 / d, lambda d: 16 / d),
    "megatron-core": (lambda d: 18, lambda d: 6 + 12 / d, lambda d: 2 + 16 / d, lambda d: 18 / d),
    "nemo": (lambda d: 20, lambda d: 4 + 16 / d, lambda d: 2 + 18 / d, lambda d: 20 / d),
}


@pytest.mark.parametrize("software", PROPORTIONS)
@pytest.mark.parametrize("d", [2, 8, 64])
def test_stages_keep_the_proven_proportions(software, d):
    for zero, size in enumerate(PROPORTIONS[software]):
        q = design(**{**BASE, "dp": float(d)}, software=software, zero=float(zero))
        assert q["state_memory"] == pytest.approx(PARAMETERS * size(d), rel=1e-12), zero


def test_one_rank_shards_nothing():
    states = {design(**{**BASE, "dp": 1.0}, software="megatron-core", zero=float(z))["state_memory"] for z in range(4)}
    assert len(states) == 1


@pytest.mark.parametrize("pp", [1.0, 2.0])
@pytest.mark.parametrize("zero", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("software", ["torchtitan", "megatron-core", "maxtext", "nemo"])
def test_one_rank_is_the_plain_case(software, zero, pp):
    """Nothing is gathered, kept whole beside a shard, copied or sent."""
    given = {**BASE, "dp": 1.0, "pp": pp, "software": software}
    plain, alone = design(**given, zero=0.0), design(**given, zero=zero)
    for name in ("state_memory", "gathering_memory", "memory_per_device", "weight_gatherings", "dp_bytes", "step_time"):
        assert alone[name] == pytest.approx(plain[name], rel=1e-12), name


def test_experts_with_replicas_are_gathered_where_dense_weights_are_not():
    """Mixtral on 8 ranks of one tensor-parallel group, experts in whole copies on each: 8 ranks share their state."""
    given = {"model": "mixtral-8x7b", "device": "h100-sxm-80gb", "software": "torchtitan", "tp": 8.0}
    plain, q = (design(**given, zero=z) for z in (0.0, 3.0))
    dense, experts = (q[f"stage_{part}"] for part in ("parameters", "expert_parameters"))
    assert plain["state_memory"] == pytest.approx(16 * (dense + experts))
    assert q["state_memory"] == pytest.approx(16 * (dense + experts / 8))
    layer = 8 * 3 * 4096 * 14336
    assert q["gathering_memory"] == pytest.approx(layer * (2 * 2 + 2 + 4))
    assert q["weight_gatherings"] == 2 * q["microbatches"]


@pytest.mark.parametrize("d", [8, 16, 32, 64])
def test_buffers_of_nanotron(d):
    """8 + 12/d bytes of ZeRO-1 and 2 + 2/d of buffers; without sharding 20."""
    q = design(**{**BASE, "dp": float(d)}, software="nanotron", zero=1.0)
    assert q["state_memory"] == pytest.approx(PARAMETERS * (10 + 14 / d), rel=1e-12)
    assert design(**BASE, software="nanotron", zero=0.0)["state_memory"] == pytest.approx(20 * PARAMETERS)


def test_shards_are_gathered_for_a_while():
    """FSDP: float32 shards of weight, gradient and moments; two gathered units in 16 bits, gradients of the largest."""
    q = design(**BASE, software="torchtitan", zero=3.0)
    assert q["state_memory"] == pytest.approx(16 * PARAMETERS / 8, rel=1e-12)
    head = 128256 * 4096
    assert q["gathering_memory"] == pytest.approx((LAYER + head) * 2 + head * (2 + 4), rel=1e-12)
    kept = design(**BASE, software="torchtitan", zero=2.0)
    assert kept["state_memory"] == pytest.approx((16 / 8 + 2) * PARAMETERS, rel=1e-12)


def test_a_pipeline_keeps_gathered_weights_and_whole_gradients():
    given = {**BASE, "pp": 2.0}
    q = design(**given, software="torchtitan", zero=3.0)
    stage = 16 * LAYER + 128256 * 4096
    assert q["state_memory"] == pytest.approx(stage * ((4 + 4 + 8) / 8 + 2 + 4), rel=1e-12)  # with reduced shards
    assert q["weight_gatherings"] == q["reduction_passes"] == 1
    halves = {**given, "software": "torchtitan", "zero": 3.0, "chunks": 2.0}
    few, many = (design(**halves | {"global_batch": 8.0 * m})["shard_held_gradient_size"] for m in (2, 4))
    assert (few, many) == (4 / 2 + 4 / 8, 4 + 4 / 8)  # of one chunk at a time with as many microbatches as stages
    assert q["pipelines_shard"]
    assert not design(**given, software="megatron-core", zero=3.0)["pipelines_shard"]
    assert design(**given, software="megatron-core", zero=1.0)["pipelines_shard"]
    every = design(**given, software="maxtext", zero=3.0)
    assert every["weight_gatherings"] == 2 * every["microbatches"] == 2 * every["reduction_passes"]


@pytest.mark.parametrize(
    ("size", "legal"), [(0, True), (2, True), (8, True), (16, True), (64, True), (100, False), (3, False), (24, False)]
)
def test_hybrid_sharding_divides_by_its_own_group(size, legal):
    q = design(**{**BASE, "dp": 64.0}, software="megatron-core", zero=3.0, zero_size=float(size))
    assert (q["shards_fill_replicas"] and q["replicas_fill_shards"]) == legal
    if legal:
        group = min(size, 64) or 64
        assert (q["shard"], q["shard_replica"]) == (group, 64 / group)
        assert q["state_memory"] == pytest.approx(18 * PARAMETERS / group)


def test_all_replicas_as_a_sharding_group_are_the_plain_case():
    for zero in (1.0, 2.0, 3.0):
        plain, whole = (design(**BASE, software="megatron-core", zero=zero, zero_size=s) for s in (0.0, 8.0))
        assert {k: v for k, v in plain.items() if isinstance(v, float) and k != "zero_size"} == {
            k: v for k, v in whole.items() if isinstance(v, float) and k != "zero_size"
        }
    none, alone = (
        design(**BASE, software="megatron-core", **z) for z in ({"zero": 0.0}, {"zero": 1.0, "zero_size": 1.0})
    )
    for name in ("state_memory", "exposed_dp_time", "dp_bytes", "dp_calls", "optimizer_time", "step_time"):
        assert none[name] == pytest.approx(alone[name], rel=1e-12), name


# ---- communication --------------------------------------------------------------------------------------------------


def exposed_passes(layers, gather, reduce, forward, backward, *, regathers):
    """(forward, backward) waiting time of one microbatch: layers executed in order beside one queue of collectives."""
    sent = clock = starts = 0.0
    for _ in range(layers):  # a layer is gathered while the one before it computes
        sent = max(sent, starts) + gather
        starts = max(clock, sent)
        clock = starts + forward
    waited_forward = clock - layers * forward
    sent = clock = starts = ready = 0.0
    for layer in range(layers):
        if regathers:
            sent = max(sent, starts) + gather
        starts = max(clock, sent if regathers else clock)
        if layer > 0:  # gradients of the layer before leave while this one computes
            sent = max(sent, ready) + reduce
        clock = ready = starts + backward
    sent = max(sent, ready) + reduce
    return waited_forward, max(sent, clock) - layers * backward


@pytest.mark.parametrize("bandwidth", [0.02, 0.2, 1.0, 5.0])
@pytest.mark.parametrize("zero", [2.0, 3.0])
def test_exposure_against_a_queue_of_collectives(bandwidth, zero):
    """Equal where communication or computation limits throughout; between, the queue is no shorter."""
    q = design(
        **BASE,
        software="llm-foundry",
        zero=zero,
        scale_up_bandwidth=450e9 * bandwidth,
        dp_overlap=1.0,
        parameter_overlap=1.0,
        communication_cores=0.0,
    )
    m, passes = q["microbatches"], (q["layer_forward_time"], q["layer_backward_time"])
    calls = (q["shard_gather_time"], q["scatter_gather_time"])
    forward, backward = exposed_passes(32, *calls, *passes, regathers=zero == 3)
    assert m == 8
    assert q["gradient_buckets"] == 32
    assert q["exposed_gathering_time"] == pytest.approx(m * forward, rel=1e-9)
    found, least = q["exposed_reduction_time"], m * (calls[0] * (zero == 3) + calls[1])
    assert found >= least * (1 - 1e-12)
    assert found == pytest.approx(m * backward, rel=0.07)


def test_passes_that_gather_and_reduce():
    m = 8
    for software, zero, gathers, reductions in (
        ("megatron-core", 0, 0, 1),
        ("megatron-core", 1, 1, 1),
        ("megatron-core", 2, 1, m),
        ("megatron-core", 3, 2 * m, m),
        ("torchtitan", 2, m, m),
        ("torchtitan", 3, 2 * m, m),
    ):
        q = design(**BASE, software=software, zero=float(zero))
        assert (q["weight_gatherings"], q["reduction_passes"]) == (gathers, reductions), (software, zero)
        sizes = (q["gathered_weight_size"], q["reduced_gradient_size"])
        sent = 7 / 8 * PARAMETERS * (gathers * sizes[0] + reductions * sizes[1] * (2 if zero == 0 else 1))
        assert q["dp_bytes"] == pytest.approx(sent)


def test_full_sharding_of_one_microbatch_sends_half_as_much_again():
    """ZeRO-3 moves 3 instead of 2 times the parameters (Rajbhandari 2020, section 7.2), in 16 bits both ways."""
    given = {**BASE, "global_batch": 8.0, "software": "deepspeed"}
    plain, sharded = design(**given, zero=0.0), design(**given, zero=3.0)
    assert sharded["dp_bytes"] == pytest.approx(1.5 * plain["dp_bytes"])


@pytest.mark.parametrize("deferred", [True, False])
def test_replicas_of_a_sharding_group_add_up_their_shards(deferred):
    given = {**BASE, "dp": 64.0, "global_batch": 512.0, "zero_size": 8.0}
    q = design(**given, software="torchtitan", zero=3.0, deferred_replicas=deferred)
    across = 1 if deferred else 8
    shares = (7 / 8 * PARAMETERS * (16 * 2 + 8 * 4), 2 * 7 / 8 * across * PARAMETERS * 4 / 8)
    assert q["dp_bytes"] == pytest.approx(sum(shares))
    assert q["shard_replica_message"] == pytest.approx(q["scatter_message"] / 8)
    assert rows(q["shard_tier_ranks"], "tier") == {"scale_up": 8.0, "scale_out": 1.0}
    assert rows(q["shard_replica_tier_ranks"], "tier") == {"scale_up": 1.0, "scale_out": 8.0}
    assert q["dp_calls"] == q["gradient_buckets"] * (16 + 8 + across)


@pytest.mark.parametrize("zero", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("name", ["dp_overlap", "parameter_overlap"])
@pytest.mark.parametrize("size", [0.0, 8.0])
def test_more_overlap_never_slows_sharded_state(zero, name, size):
    given = {**BASE, "dp": 64.0, "global_batch": 256.0, "software": "maxtext", "zero_size": size}
    times = [design(**given, zero=zero, **{name: value})["step_time"] for value in (0.0, 0.3, 0.7, 1.0)]
    assert times == sorted(times, reverse=True)


def test_copies_between_parameters_and_buffers():
    q = design(**BASE, software="torchtitan", zero=3.0)
    moved = PARAMETERS * (16 * 4 + 8 * 6)
    assert q["dp_copy_time"] == pytest.approx(moved / q["achieved_hbm_bandwidth"])
    assert design(**BASE, software="maxtext", zero=3.0)["dp_copy_time"] == 0


def test_what_a_software_has():
    assert not design(**BASE, software="megatron-lm", zero=3.0)["software_shards"]
    assert design(**BASE, software="megatron-lm", zero=1.0)["software_shards"]
    assert not design(**BASE, software="torchtitan", zero=1.0)["shards_are_gathered"]
    assert design(**BASE, software="torchtitan", zero=3.0)["shards_are_gathered"]


def test_serving_software_trains_nothing():
    assert design(**BASE, software="nemo")["software_trains"]
    assert not design(**BASE, software="vllm-2024-rocm")["software_trains"]


@pytest.mark.parametrize(
    ("software", "device", "legal"),
    [
        ("nemo", "h100-sxm-80gb", True),
        ("nemo", "mi300x", False),
        ("megatron-lm", "mi300x", True),
        ("megatron-lm", "gaudi2", True),
        ("megatron-lm", "tpu-v5p", False),
        ("maxtext", "tpu-v5p", True),
        ("maxtext-gpu", "tpu-v5p", False),
        ("torchtitan", "mi355x", True),
        ("torchtitan", "gaudi3", False),
    ],
)
def test_software_runs_on_devices_of_the_vendors_that_it_supports(software, device, legal):
    assert design(**BASE | {"software": software, "device": device})["software_runs_on_device"] == legal


def test_any_software_runs_on_a_device_without_a_vendor():
    assert design(**BASE | {"software": "nemo", "device": "tpu-v5p", "device_vendor": 0.0})["software_runs_on_device"]


@pytest.mark.parametrize(("ep", "legal"), [(1.0, False), (8.0, True)])
@pytest.mark.parametrize(
    ("constraint", "software", "zero"),
    [
        ("software_shards", "megatron-lm", 3.0),
        ("shards_are_gathered", "torchtitan", 1.0),
        ("pipelines_shard", "megatron-core", 3.0),
    ],
)
def test_replicas_of_experts_alone_ask_for_a_software_that_shards(constraint, software, zero, ep, legal):
    """With ep = 1 eight ranks hold the same experts though no rank holds the same dense weights."""
    given = {"tp": 8.0, "pp": 2.0, "global_batch": 16.0, "ep": ep, "software": software, "zero": zero}
    assert design("mixtral-8x7b", "h100-sxm-80gb", **given)[constraint] == legal
    assert design("llama-3.1-8b", "h100-sxm-80gb", **{**given, "ep": 1.0})[constraint]


def test_experts_are_not_sharded_in_part():
    for model, size, legal in (("llama-3.1-8b", 2.0, True), ("mixtral-8x7b", 0.0, True), ("mixtral-8x7b", 2.0, False)):
        assert design(**{**BASE, "model": model}, zero_size=size, zero=1.0)["experts_shard_fully"] == legal


# ---- number formats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "recipe", "size", "legal"),
    [
        ("fp8", "usual", 1.0, True),
        ("fp8", "tensor", 1.0, True),
        ("fp8", "row", 1.0, True),
        ("fp8", "block", 1 + 4 / 128, True),
        ("fp8", "mx", 1 + 1 / 32, True),
        ("fp8", "nvfp4", 1 + 1 / 16, False),
        ("fp4", "usual", 0.5 + 1 / 16, True),
        ("fp4", "nvfp4", 0.5 + 1 / 16, True),
        ("fp4", "mx", 0.5 + 1 / 32, True),
        ("fp4", "tensor", 0.5, False),
        ("bf16", "mx", 2.0, True),
        ("bf16", "usual", 2.0, True),
    ],
)
def test_scaled_formats(precision, recipe, size, legal):
    q = design(**{**BASE, "device": "gb200"}, precision=precision, scaling=float(scaling.NAMES.index(recipe)))
    assert q["operand_size"] == pytest.approx(size)
    assert q["scaling_serves_format"] == legal
    assert q["device_supports_precision"]
    peak = {"bf16": 2500e12, "fp8": 5000e12, "fp4": 10000e12}[precision]
    assert q["peak_matrix_rate"] == pytest.approx(peak, rel=0.01)
    assert q["activation_size"] == 2


def test_conversions_read_what_their_scaling_asks():
    def cast(**changes):
        return design(**{**BASE, "device": "gb200"}, **changes)["cast_size"]

    assert cast(precision="bf16") == 0
    assert cast(precision="fp8") == 2 + 2 * 1
    assert cast(precision="fp8", scaling=float(scaling.NAMES.index("tensor"))) == 2 * 2 + 2 * 1
    assert cast(precision="fp8", scaling=float(scaling.NAMES.index("mx"))) == pytest.approx(2 + 2 * (1 + 1 / 32))
    assert cast(precision="fp4") == pytest.approx(2 * 2 + 2 * (0.5 + 1 / 16))


def test_narrow_formats_are_faster_and_gathered_in_fewer_bytes():
    """Blocks of four bits are scaled along rows and along columns, in two copies: 16 bits are gathered."""
    given = {**BASE, "device": "gb200", "software": "torchtitan", "zero": 3.0}
    found = [design(**given, precision=p) for p in ("bf16", "fp8", "fp4")]
    times = [q["arithmetic_time"] for q in found]
    assert times == sorted(times, reverse=True)
    assert [q["gathered_weight_size"] for q in found] == [2, 1, 2]
    assert len({q["state_memory"] for q in found}) == 1
    assert not design(**{**BASE, "device": "h100-sxm-80gb"}, precision="fp4")["device_supports_precision"]
