"""The identities of serving for two pools: pairs of layouts of a prefill and a decode pool, joined.

Dense models, of experts, with latent attention, a hybrid; pools of one to 32 devices, groups in lockstep of up to 16
ranks; vLLM, SGLang, TensorRT-LLM.
"""

import re

import numpy as np
import pytest

import perfgrid as pg

OUTPUTS = ("time_to_first_token", "time_per_output_token", "request_latency", "served_rate", "running_batch")
PARTS = ("prompt_time", "servers_time", "cache_transfer_time", "largest_request_rate")
SYSTEMS = (  # model, device, software, tp and ep of both pools
    ("llama-3.1-8b", "h100-sxm-80gb", "vllm", [1, 2], None),
    ("qwen3-30b-a3b", "h100-sxm-80gb", "tensorrt-llm", [1], [2, 4]),
    ("deepseek-v3", "b200", "sglang", [1], [8, 16]),
    ("nemotron-h-8b", "h100-sxm-80gb", "vllm", [1], None),
)
SIZES = {"prompt_tokens": 2000, "output_tokens": 200}
FORMATS = {"precision": "fp8", "weight_precision": "fp8", "kv_precision": "fp8"}
RATES = [1e-4, 0.3, 1.0, 3.0, 10.0, 30.0]  # requests per second
CLIENTS = [1, 8, 64, 512]


def joined(model, device, software, tp, ep, **more):
    """What requests see of every pair of layouts that can be."""
    layout = {"devices": [8, 16, 32] if ep else [1, 2, 4, 8], "tp": tp, "pp": [1]} | ({"ep": ep} if ep else {})
    pool = {"axes": {"parallelism": layout}}
    names = {"model": model, "device": device, "software": software, "topology": "rail-optimized"}
    axes = {name: [value] for name, value in names.items()}
    axes |= {name: more.pop(name) for name in ("request_rate", "batch") if name in more}
    stated = SIZES | (FORMATS if model == "deepseek-v3" else {}) | more
    content = {"outputs": [*OUTPUTS, *PARTS], "dtype": "float64", "axes": axes, "workload_parameters": stated}
    return pg.evaluate(pg.join_pools(content | {"prefill": pool, "decode": pool}))


@pytest.fixture(scope="module", params=SYSTEMS, ids=lambda system: system[0])
def rates(request):
    """Random arrivals at several rates."""
    return joined(*request.param, batch_rule="rate", request_rate=RATES)


@pytest.fixture(scope="module", params=SYSTEMS, ids=lambda system: system[0])
def loops(request):
    """Closed loops of clients that go on."""
    return joined(*request.param, batch_rule="clients", batch=CLIENTS)


def legal(found):
    return (found.prefill_pool_is_legal * found.decode_pool_is_legal * found.links_carry_the_caches) > 0


def below(found, load):
    """Where so much of what is served at most arrives."""
    return legal(found) & (found.request_rate < load * found.largest_request_rate)


def test_clients_are_rate_times_latency(loops):
    """Little's law, to 1 %; 3.3 % where many more clients ask than one pool keeps up with."""
    ratio = loops.served_rate * loops.request_latency / loops.batch
    miss = abs(ratio.where(legal(loops)) - 1)
    assert float(miss.sel(batch=slice(None, 64)).max()) < 0.01
    assert float(miss.max()) < 0.034


def test_sequences_that_run_are_rate_times_their_steps(rates):
    decoding = rates.served_rate * (SIZES["output_tokens"] - 1) * rates.time_per_output_token
    assert float(abs(decoding / rates.running_batch - 1).where(below(rates, 1.0)).max()) < 1e-6


def test_times_do_not_fall_as_the_rate_rises(rates):
    found = rates.where(below(rates, 0.98))
    for name in OUTPUTS[:3]:
        values = found[name].transpose("request_rate", ...).values
        assert np.nanmax(values[:-1] / values[1:]) < 1.01, name


@pytest.mark.parametrize("pool", ["prefill", "decode"])
def test_latency_does_not_rise_with_a_second_worker_of_the_same_layout(rates, pool):
    """At rates below what is served at most."""
    labels = [str(label).split(" ")[0] for label in rates[pool].values]
    pairs = 0
    for i, label in enumerate(labels):
        twice = re.sub(r"dp(\d+)", lambda found: f"dp{2 * int(found[1])}", label)
        if twice in labels:
            few, many = rates.isel({pool: i}), rates.isel({pool: labels.index(twice)})
            ratio = (many.request_latency / few.request_latency).where(below(few, 0.9) & legal(many))
            assert not ratio.notnull().any() or float(ratio.max()) < 1.01
            pairs += int(ratio.notnull().any())
    assert pairs


def test_without_load_a_first_token_is_both_servers_its_own_pass_and_the_way_of_its_cache(rates):
    alone = rates.isel(request_rate=0)
    parts = alone.servers_time + alone.prompt_time + alone.cache_transfer_time
    assert float(abs(alone.time_to_first_token / parts - 1).where(legal(alone)).max()) < 0.01


def test_with_an_endless_prefill_pool_tokens_are_those_of_decode_alone(rates):
    """Whatever the prefill pool, the time per token is that of the decode pool at this rate."""
    served = below(rates, 1.0)
    each = rates.time_per_output_token.where(served)
    assert float((each.max("prefill") / each.min("prefill")).max()) < 1 + 1e-9


def test_a_loop_and_arrivals_at_its_rate_take_a_token_as_long():
    """As many clients as 60 % of what is served leave under way: throughput and time per token within 5 %."""
    model = SYSTEMS[0]
    few = joined(*model, batch_rule="rate", request_rate=[1.0]).isel(prefill=0, decode=0)
    rate = 0.6 * float(few.largest_request_rate.squeeze())
    arrivals = joined(*model, batch_rule="rate", request_rate=[rate]).isel(prefill=0, decode=0).squeeze()
    loop = joined(*model, batch_rule="clients", batch=[max(round(rate * float(arrivals.request_latency)), 1)])
    loop = loop.isel(prefill=0, decode=0).squeeze()
    assert float(loop.served_rate) == pytest.approx(rate, rel=0.05)
    assert float(loop.time_per_output_token) == pytest.approx(float(arrivals.time_per_output_token), rel=0.05)
