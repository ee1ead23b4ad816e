"""What `perfgrid.serve` recommends, simulated: ``python -m tests.inference.oracle.winners``.

Thirty drawn questions (dense models, experts, latent attention, hybrids; an endless queue, a rate or clients; one pool
or two), `DEEPSEEK`'s, and all of further ones that pipelines win. The recommended design becomes a system of the oracle
with perfgrid's own times of iterations; throughput, first token and time per token are set beside the answer. A
pipeline that is recommended is compared with the best design without one. Stored in ``winners.json``, a line for each
question.
"""

from __future__ import annotations

import json
import math
import re
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import perfgrid as pg
from perfgrid.answers.search import BUDGET
from perfgrid.answers.serve_pools import serve_pools
from perfgrid.catalog import load_catalog
from perfgrid.study.study import build_study
from tests.inference.designs import evaluate, point, value

from .designs import server_of
from .measures import measures
from .policies import Policy
from .surface import lockstep_ranks
from .system import System, simulate
from .traffic import Lengths, arriving, endless, of_clients

WINNERS = Path(__file__).with_name("winners.json")
QUESTIONS = 30
FURTHER = range(100, 190)  # seeds of questions of which those count that a pipeline wins
MODELS = (
    *("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "qwen3-32b", "gemma-3-27b"),
    *("mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "gpt-oss-120b", "glm-4.5-air"),
    *("deepseek-v3", "deepseek-v2-lite", "kimi-k2", "qwen3-next-80b-a3b", "nemotron-h-8b", "kimi-linear-48b-a3b"),
)
DEVICES = ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200", "gb200", "mi300x")
MEASURES = ("throughput", "first_token", "per_token")
QUANTITIES = {"first_token": "time_to_first_token", "per_token": "time_per_output_token"}
BOUND = 0.15  # of a prediction against the simulation
SPREAD = 0.3  # coefficient of variation of lengths; of answers where requests never end, so that these end apart
FEWEST, MOST = 3000, 40_000  # requests
WIDE = 0.02  # half of the 90 % interval of the means, over these, that is aimed at
SECONDS = 12.0  # of one run at most
LONGEST = 32768
Record = dict[str, Any]
Design = dict[str, Any]


# ---- questions ------------------------------------------------------------------------------------------------------


def question(seed: int) -> Record:
    """A drawn question: arguments of `perfgrid.serve`, and whether it is asked of two pools."""
    g = np.random.default_rng(seed)

    def log(low: float, high: float) -> float:
        return float(np.exp(g.uniform(np.log(low), np.log(high))))

    asked: Record = {"model": str(g.choice(MODELS)), "on": str(g.choice(DEVICES))}
    asked |= {"prompt": round(log(200, 8000)), "output": round(log(50, 1500))}
    limits = {"ttft": g.choice([0, 0.5, 1, 2, 5]), "tpot": g.choice([0, 0.015, 0.03, 0.05, 0.1])}
    asked |= {name: float(limit) for name, limit in limits.items() if limit}
    kind, pools = g.choice(["endless", "rate", "clients"]), bool(g.random() < 0.25)
    asked["devices"] = int(g.choice([4, 8, 16, 32, 64]))
    rate, clients = log(1000, 30_000) / asked["output"], round(log(4, 600))
    if kind == "rate":
        asked["rate"] = float(f"{rate:.2g}")
        if g.random() < 0.5 and not pools:
            del asked["devices"]  # any number of them
    elif kind == "clients" or pools:
        asked["clients"] = clients
    if g.random() < 0.6 and kind != "endless" and not pools:
        asked["variation"] = SPREAD
    return asked | {"pools": pools}


DEEPSEEK = [
    {"model": "deepseek-v3", "on": device, "prompt": 4000, "output": 1000, "ttft": 2.0, "tpot": 0.03}
    | ({"variation": SPREAD} if ("rate" in load or "clients" in load) and not pools else {})
    | load
    | {"pools": pools}
    for device in ("b200", "h200-sxm-141gb", "gb200")
    for load, pools in (
        ({"devices": 64}, False),
        ({"rate": 20.0}, False),
        ({"clients": 600, "devices": 128 if "h200" in device else 64, "requests": 12_000}, False),
        ({"rate": 20.0, "devices": 64}, True),
        ({"clients": 600, "devices": 64}, True),
    )
]


# ---- answers --------------------------------------------------------------------------------------------------------


def recommended(asked: Record) -> Record | None:
    """What is recommended, and what is said of it; None where nothing keeps the limits."""
    arguments = {name: given for name, given in asked.items() if name != "pools"}
    if asked["pools"]:
        return pair(arguments)
    answer = pg.serve(**arguments).squeeze()
    if not bool(answer["found"]):
        return None
    content = tomllib.loads(answer.attrs["study"])
    batch = float(str(answer["batch"].values)) if "batch" in answer else None
    return shared(content, str(answer["parallelism"].values), batch, answer)


def without_pipeline(asked: Record) -> Record | None:
    """The same of the best design of one stage."""
    answer = pg.serve(**{name: given for name, given in asked.items() if name != "pools"})
    content = tomllib.loads(answer.attrs["study"])
    content["axes"]["parallelism"]["pp"] = [1]
    over = [*dict.fromkeys([*content["best"]["over"], "devices"])]  # of sizes, too, as one system is asked for
    objective = {side: content["best"][side] for side in ("minimize", "maximize") if side in content["best"]}
    found = pg.best(build_study(content, "the question", load_catalog()), over=over, **objective).squeeze()
    if not bool(found["found"]):
        return None
    batch = float(found["batch"]) if "batch" in found.coords else None
    return shared(content, str(found["parallelism"].values), batch, found)


def shared(content: Record, label: str, batch: float | None, said: Any) -> Record:
    """The design that a study of one pool calls so."""
    zipped = {name: cells[0] for name, cells in content["axes"]["system"]["zip"].items()}
    design = {"model": content["axes"]["model"][0]} | zipped | numbers(content["workload_parameters"]) | degrees(label)
    design |= {} if batch is None else {"batch": batch}
    if budgets := content["axes"].get(BUDGET):
        row = budgets["labels"].index(int(str(np.asarray(said[BUDGET]))))
        design |= {name: float(column[row]) for name, column in budgets["zip"].items()}
    if design["batch_rule"] == "clients":
        design["batch"] = float(content["axes"]["batch"][0])
    design = usual(design)
    predicted = {name: float(said[quantity]) for name, quantity in QUANTITIES.items()}
    predicted["throughput"] = float(said["output_tokens_per_second"]) / design["output_tokens"]
    return {"label": label, "design": design, "devices": devices_of(design), "predicted": predicted}


def pair(arguments: Record) -> Record | None:
    """The best two pools."""
    try:
        found = serve_pools(**arguments)
    except pg.PerfgridError:
        return None
    said = found.winner
    if not bool(said["found"]):
        return None
    content = found.study.file.workload_parameters | {"model": arguments["model"]}
    base = {"model": arguments["model"], "device": arguments["on"]}
    stated = {"loop_requests": 0.0} | {name: given for name, given in numbers(content).items() if name != "model"}
    label = {pool: str(said[pool].values) for pool in ("prefill", "decode")}
    own = {pool: one for pool, one in found.study.pools.items()} if found.study.pools else {}
    products = str(own["decode"].file.axes["system"]["zip"]["precision"][0])
    kept = numbers(own["decode"].file.workload_parameters)
    formats = {name: kept[name] for name in ("weight_precision", "kv_precision", "quantised_attention") if name in kept}
    designs = {pool: usual(base | {"precision": products} | stated | formats | degrees(label[pool])) for pool in label}
    predicted = {name: float(said[quantity]) for name, quantity in QUANTITIES.items()}
    predicted["throughput"] = float(said["served_rate"])
    servers = float(said["front_end_time"]) + float(said["decode_front_end_time"])
    return {
        "label": f"{label['prefill']} + {label['decode']}",
        "design": designs["decode"],
        "prefill": designs["prefill"],
        "transfer": float(said["cache_transfer_time"]),
        "servers_time": servers,
        "devices": devices_of(designs["prefill"]) + devices_of(designs["decode"]),
        "predicted": predicted,
    }


def numbers(parameters: Record) -> Record:
    """Parameters of a study as quantities of a point."""
    return {
        name: float(given) if isinstance(given, int | float) and not isinstance(given, bool) else given
        for name, given in parameters.items()
    }


def degrees(label: str) -> Record:
    """The layout that a label such as tp8.pp1.dp4.ep2 stands for."""
    found = {name: float(count) for name, count in re.findall(r"([a-z]+)(\d+)", label.split(" ")[0])}
    tp, ep = found["tp"], found.setdefault("ep", 1.0)
    found.setdefault("etp", tp / ep if tp % ep == 0 else 1.0 if ep % tp == 0 else tp)
    return found


def usual(design: Design) -> Design:
    """The design in the cluster and with the software in which its device is mostly used."""
    own = load_catalog().entry("device", design["device"]).values
    return {"topology": own["usual_topology"], "software": own["serving_software"]} | design


def devices_of(design: Design) -> int:
    return int(design["tp"] * design["pp"] * design["dp"] * design.get("cp", 1.0))


# ---- simulation -----------------------------------------------------------------------------------------------------


def policy_of(design: Design) -> Policy:
    """How perfgrid takes the engine to put iterations together, with places of one replica."""
    facts = ("prefill_first", "prefill_chunk_tokens", "rounds_ahead", "most_sequences")
    found = evaluate(*facts, **design | {"batch_rule": "memory"})
    places = found["most_sequences"] / design["dp"]
    if design["batch_rule"] == "concurrency":  # as many as iterations have room for the prompts of
        places = value("running_batch", **design) / design["dp"]
    return Policy(
        tokens=int(min(found["prefill_chunk_tokens"], LONGEST)),
        places=max(round(places), int(design["pp"])),
        mixed=not found["prefill_first"],
        ahead=found["rounds_ahead"] > 0,
    )


def system_of_winner(winner: Record) -> tuple[System, int]:
    """The oracle's engines, and how many servers share the requests of a queue or of a rate alike."""
    design, row = winner["design"], policy_of(winner["design"])
    server, servers = server_of(design, row, LONGEST), int(design["dp"]) // lockstep_ranks(design)
    if "prefill" not in winner:
        return System(server, replicas=servers, front_end=float(point(**design)["front_end_time"])), servers
    prefill = winner["prefill"]
    first = server_of(prefill, replace(row, tokens=policy_of(prefill).tokens, ahead=False), LONGEST)
    workers = int(prefill["dp"]) // lockstep_ranks(prefill)
    return System(
        first,
        replicas=workers,
        decode=server,
        decode_replicas=servers,
        transfer=winner["transfer"],
        front_end=winner["servers_time"],
        even=True,
    ), 1


def simulated(winner: Record) -> Record:
    """What the requests of a recommended design see: value and half of its 90 % interval."""
    system, servers = system_of_winner(winner)
    count, design = FEWEST, winner["design"]
    while True:
        begun = time.process_time()
        runs, scale = runs_of(design, system, servers, count)
        table = measures(runs)
        took = time.process_time() - begun
        wide = max(table[name]["mean"].wide() for name in QUANTITIES)
        needed = min(math.ceil(1.3 * (wide / WIDE) ** 2 * count), MOST, math.ceil(SECONDS / took * count))
        if wide <= WIDE or needed < 1.2 * count:
            break
        count = needed
    found = {name: [table[name]["mean"].value, table[name]["mean"].half] for name in QUANTITIES}
    rate = table["throughput"]
    found["throughput"] = [rate.value * scale, rate.half * scale]
    return {name: [float(f"{one:.5g}") for one in pairs] for name, pairs in found.items()}


def runs_of(design: Design, system: System, servers: int, count: int) -> tuple[list, float]:
    """Runs of the load of a design with so many requests, and by what its requests per second are multiplied.

    Servers that requests are shared out to alike, or at random, are simulated by one of them.
    """
    lengths = lengths_of(design)
    rule = design["batch_rule"]
    if rule == "rate":
        one = replace(system, replicas=1) if system.decode is None else system
        run = arriving(design["request_rate"] / servers, lengths, count, seed=1)
        return [(run, simulate(one, run))], float(servers)
    if rule == "concurrency":
        one = replace(system, replicas=1)
        held = system.server.policy.places * system.server.ranks * system.server.groups
        run = endless(lengths, max(count, 20 * held), seed=1)
        return [(run, simulate(one, run))], value("running_batch", **design) / held
    clients, requests = int(design["batch"]), int(design["loop_requests"])
    if requests == 0:  # a loop that goes on: without its beginning and end
        run = of_clients(clients, lengths, max(count, 20 * clients), seed=1)
        return [(replace(run, kind="open"), simulate(system, run))], 1.0
    several = max(math.ceil(count / requests), 1 if requests > MOST / 4 else 4)
    runs = [of_clients(clients, lengths, requests, seed=k) for k in range(several)]
    return [(run, simulate(system, run)) for run in runs], 1.0


def lengths_of(design: Design) -> Lengths:
    """Lengths of requests as stated; answers vary in an endless queue, and in a loop that goes on."""
    loop = design["batch_rule"] == "clients" and design["loop_requests"] == 0.0
    ever = design["batch_rule"] == "concurrency" or loop
    return Lengths(
        design["prompt_tokens"],
        design["output_tokens"],
        design.get("prompt_variation", 0.0),
        design.get("output_variation", SPREAD if ever else 0.0),
        longest=LONGEST,
    )


# ---- both -----------------------------------------------------------------------------------------------------------


def judged(winner: Record) -> Record:
    """A recommended design with what is simulated, and what is said over that minus 1."""
    found = simulated(winner)
    errors = {name: float(f"{winner['predicted'][name] / found[name][0] - 1:.4g}") for name in MEASURES}
    predicted = {name: float(f"{winner['predicted'][name]:.5g}") for name in MEASURES}
    design = {name: winner["design"][name] for name in ("software", "batch_rule")}
    named = ("batch", "request_rate", "prefill_chunk_tokens")
    kept = {name: winner["design"][name] for name in named if name in winner["design"]}
    about = {"label": winner["label"], "devices": winner["devices"]} | design | kept
    return about | {"predicted": predicted, "simulated": found, "errors": errors}


def better(asked: Record, one: Record, other: Record) -> bool:
    """Whether the simulation prefers the first of two designs: limits kept, tokens per second of a device, latency."""

    def rank(judged: Record) -> tuple:
        found = {name: pairs[0] for name, pairs in judged["simulated"].items()}
        limits = (("first_token", "ttft"), ("per_token", "tpot"))
        late = max([found[name] / asked[limit] - 1 for name, limit in limits if limit in asked] + [0.0])
        rate = asked.get("rate", found["throughput"])
        each = -rate / judged["devices"]
        return (late > 0.02, each, found["first_token"] + asked["output"] * found["per_token"])

    return rank(one) < rank(other)


def answered(asked: Record, pipelines: bool = False) -> Record | None:
    """A question with its recommended design, simulated; None where there is none, or it is to be a pipeline."""
    winner = recommended(asked)
    if winner is None or (pipelines and winner["design"]["pp"] == 1):
        return None
    record = {"asked": asked} | judged(winner)
    if winner["design"]["pp"] > 1:
        single = without_pipeline(asked)
        other = None if single is None else judged(single)
        record |= {"without_pipeline": other, "confirmed": other is None or better(asked, record, other)}
    return record


def line(record: Record) -> str:
    """A record in a line of text."""
    asked = record["asked"]
    load = next((f"{name} {asked[name]:g}" for name in ("rate", "clients") if name in asked), "endless")
    errors = "  ".join(f"{record['errors'][name]:+6.1%}" for name in MEASURES)
    head = f"{asked['model']:20} {asked['on']:15} {asked['prompt']:5}/{asked['output']:<5} {load:12}"
    tail = "" if "confirmed" not in record else f"  pipeline {'' if record['confirmed'] else 'NOT '}confirmed"
    return f"{head} {record['devices']:4} devices {record['label']:38} {errors}{tail}"


def stored() -> list[Record]:
    """The questions of the file."""
    return json.loads(WINNERS.read_text()) if WINNERS.exists() else []


def within(records: list[Record]) -> dict[str, float]:
    """Parts of the questions whose answers agree with the simulation."""
    return {name: float(np.mean([abs(r["errors"][name]) <= BOUND for r in records])) for name in MEASURES}


def summary(records: list[Record]) -> str:
    """What agrees, and the pipelines that are confirmed."""
    pipelines = [r["confirmed"] for r in records if "confirmed" in r]
    shares = ", ".join(f"{name} {share:.0%}" for name, share in within(records).items())
    confirmed = f"{sum(pipelines)} of {len(pipelines)} pipelines confirmed"
    return f"{len(records)} questions within {BOUND:.0%}: {shares}; {confirmed}"


def main() -> None:
    """Ask anew, simulate, print and store."""
    found: list[Record] = []
    for asked in DEEPSEEK:
        found += ask("deepseek", asked)
    seed = 0
    while sum(r["set"] == "drawn" for r in found) < QUESTIONS:
        found += ask("drawn", question(seed), seed)
        seed += 1
    for seed in FURTHER:
        asked = {"devices": 8} | question(seed) | {"pools": False}  # fleets of any size take long
        found += ask("pipelines", asked, seed)
    WINNERS.write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n")
    for name in dict.fromkeys(r["set"] for r in found):
        print(f"{name}: {summary([r for r in found if r['set'] == name])}")


def ask(name: str, asked: Record, seed: int | None = None) -> list[Record]:
    """One question of a set: printed, and its record if there is an answer."""
    record = answered(asked, pipelines=name == "pipelines")
    if record is None:
        print("" if name == "pipelines" else f"no design: {asked}\n", end="")
        return []
    print(line(record), flush=True)
    return [{"set": name} | ({} if seed is None else {"seed": seed}) | record]


if __name__ == "__main__":
    main()
