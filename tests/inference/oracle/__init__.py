"""The oracle of serving: engines simulated iteration by iteration in plain Python.

Times of iterations come from perfgrid's own passes (`surface.of_design`) or are made up (`surface.synthetic`), so that
the simulation checks queues, not kernels. What is in the way:

* `surface`: T(b, c, contexts) as tables; `policies`: how vLLM, SGLang and TensorRT-LLM put iterations together;
* `server`: what an engine is given; `engine`: one in plain steps, to be read; `skipping`: the same to the bit, many
  iterations at a time (the default; with `ranks`, and `circulating` for pipelines);
* `system`: replicas, two pools, clients, front end; `traffic`: loads; `measures`: statistics with 90 % intervals;
* `designs`: a design of perfgrid as a system; `systems`: drawn ones; ``python -m tests.inference.oracle`` stores what
  their requests see in ``simulated.json``; ``python -m tests.inference.oracle.compared`` sets the formulas beside it.

An example::

    from tests.inference.oracle import Lengths, arriving, endless, measures, policy, simulate, system_of

    design = {"model": "llama-3.1-70b", "device": "h100-sxm-80gb", "software": "vllm", "tp": 4.0, "pp": 2.0,
              "prompt_tokens": 1000.0, "output_tokens": 500.0}
    system = system_of(design, policy("vllm", tokens=2048, places=256))  # places of one replica, all stages together
    lengths = Lengths(1000, 500, prompt_variation=0.3, output_variation=0.3)
    run = endless(lengths, 10_000)
    capacity = measures([(run, simulate(system, run))])["throughput"].value  # requests/s
    run = arriving(0.7 * capacity, lengths, 5_000, seed=1)
    found = measures([(run, simulate(system, run))])
    found["first_token"]["p99"].value, found["first_token"]["p99"].half  # s, half of the 90 % interval

Such a run of 5,000 requests takes 0.1 to 0.5 CPU-seconds, up to 3 where hardly anything runs in a pipeline.

Structures: ``Server(surface, policy, ranks=32)`` is a lockstep group, ``groups=4`` a pipeline of four stages (with
``shares`` of the surface), ``System(server, replicas=2)`` replicas, ``System(prefill, decode=server)`` two pools.
Loads: `arriving` (open, ``variation`` of gaps 1 for Poisson), `of_clients` (N clients, M requests), `endless`.
"""

from .designs import most_places, pools_of, server_of, system_of
from .engine import Engine
from .measures import Measure, little, measures, times
from .policies import POLICIES, Policy, policy
from .server import Server
from .skipping import SkippingEngine
from .surface import Surface, of_design, synthetic
from .system import Result, System, simulate
from .traffic import Lengths, Traffic, arriving, endless, of_clients

__all__ = [
    "POLICIES",
    "Engine",
    "Lengths",
    "Measure",
    "Policy",
    "Result",
    "Server",
    "SkippingEngine",
    "Surface",
    "System",
    "Traffic",
    "arriving",
    "endless",
    "little",
    "measures",
    "most_places",
    "of_clients",
    "of_design",
    "policy",
    "pools_of",
    "server_of",
    "simulate",
    "synthetic",
    "system_of",
    "times",
]
