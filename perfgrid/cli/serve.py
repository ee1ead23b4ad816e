"""``perfgrid serve``: the best way to serve a model on given devices."""

from __future__ import annotations

import time
from typing import Annotated, Any

from typer import Option

from perfgrid.analysis.published_errors import serving_note
from perfgrid.answers.saved import best_labels
from perfgrid.answers.serve import serve
from perfgrid.answers.serve_pools import serve_pools
from perfgrid.engine.errors import PerfgridError
from perfgrid.printing.answer import print_assumed
from perfgrid.printing.best_table import print_winners, winner_rows
from perfgrid.printing.console import out, print_json
from perfgrid.printing.feasibility import print_impossible, print_violations
from perfgrid.results.feasibility import violations

from .answering import Answering
from .arguments import duration, names_in, sizes_in
from .launching import Launcher
from .options import (
    AsJson,
    Assumptions,
    CatalogFiles,
    Engine,
    Launch,
    Maximize,
    Minimize,
    Model,
    On,
    Overwrite,
    Price,
    RowsFile,
    SaveStudy,
    Topology,
    Wide,
)


def serve_command(
    model: Model,
    on: On,
    devices: Annotated[
        str | None, Option(help="Such as 8, 1,8 or 8-64 (powers of two). Default: up to 8; with --rate up to 512.")
    ] = None,
    prompt: Annotated[str | None, Option(help="Tokens of a prompt, such as 8k, which is 8,192. Default: 1000.")] = None,
    output: Annotated[str | None, Option(help="Tokens of an answer. Default: 500.")] = None,
    ttft: Annotated[str | None, Option(help="Limit on the time to the first token, such as 500ms.")] = None,
    tpot: Annotated[str | None, Option(help="Limit on the time per further token, such as 25ms.")] = None,
    rate: Annotated[str | None, Option(help="Requests per second that arrive at random, such as 50/s.")] = None,
    largest_load: Annotated[
        str | None, Option(help="Largest part of its capacity to which a design is loaded. Default: 0.9.")
    ] = None,
    headroom: Annotated[
        str | None, Option(help="Part of the device memory that stays free of what the engine may use. Default: 0.02.")
    ] = None,
    clients: Annotated[str | None, Option(help="Clients that ask again when they have their answer.")] = None,
    requests: Annotated[str | None, Option(help="Requests of all clients. Default: ten of each.")] = None,
    variation: Annotated[
        str | None,
        Option(help="Coefficient of variation of lognormal lengths, such as 0.8, or 0.9,1.2 for prompts and answers."),
    ] = None,
    statistic: Annotated[
        str, Option(help="What keeps the limits: mean, or p50, p90, p99 of the requests of a rate or of clients.")
    ] = "mean",
    prefill: Annotated[
        str | None, Option(help="Pool of its own for prompts, such as tp=4,workers=2,device=b200; or auto.")
    ] = None,
    decode: Annotated[str | None, Option(help="Pool of its own for answers, such as tp=1,dp=8,ep=8; or auto.")] = None,
    precision: Annotated[
        str | None, Option(help="Of weights, cache and products: bf16, fp8, ... Default: weights as published.")
    ] = None,
    topology: Topology = None,
    engine: Engine = None,
    minimize: Minimize = None,
    maximize: Maximize = None,
    price: Price = None,
    files: CatalogFiles = None,
    save: SaveStudy = None,
    csv: RowsFile = None,
    launch: Launch = None,
    assumptions: Assumptions = False,
    overwrite: Overwrite = False,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Find the best way to serve a model on given devices."""
    answering = Answering.of(launch, csv, save, assumptions, overwrite, as_json)
    first, each = duration(ttft, "--ttft", "500ms"), duration(tpot, "--tpot", "25ms")
    if prefill is not None or decode is not None:
        stated = {"prefill": prefill, "decode": decode, "price": price, "csv": csv, "save": save, "requests": requests}
        return _pools(
            {name: text for name, text in stated.items() if text is not None},
            {"model": model, "on": names_in(on), "devices": None if devices is None else sizes_in(devices)}
            | {"prompt": prompt, "output": output, "ttft": first, "tpot": each, "rate": rate}
            | {
                "statistic": statistic,
                "variation": variation,
                "largest_load": largest_load,
                "headroom": headroom,
                "clients": clients,
                "precision": precision,
                "topology": topology,
                "engine": engine,
            }
            | {"minimize": minimize, "maximize": maximize, "catalog": files},
            as_json,
            answering.launcher,
        )
    found = serve(
        model,
        names_in(on),
        None if devices is None else sizes_in(devices),
        prompt=prompt,
        output=output,
        ttft=first,
        tpot=each,
        rate=rate,
        clients=clients,
        requests=requests,
        variation=variation,
        statistic=statistic,
        precision=precision,
        topology=topology,
        engine=engine,
        minimize=minimize,
        maximize=maximize,
        price=None if price is None else names_in(price),
        catalog=files,
        largest_load=largest_load,
        headroom=headroom,
    )
    answering.show(found, files or (), serving_note())


def _pools(stated: dict[str, Any], asked: dict[str, Any], as_json: bool, launcher: Launcher | None) -> None:
    """Find and print the best pair of pools."""
    if refused := [name for name in ("price", "csv", "save", "requests") if name in stated]:
        raise PerfgridError(f"--{refused[0]} is not for two pools: leave it out")
    for name, many, how in (
        ("on", asked["on"], "; --prefill device=... states another"),
        ("devices", asked["devices"] or [], ""),
    ):
        if len(many) != 1:
            found = len(many) or "none"
            raise PerfgridError(f"--{name}: two pools together need one, found {found}{how}")
    start = time.perf_counter()
    asked |= {"on": asked["on"][0], "devices": asked["devices"][0]}
    pools: dict[str, Any] = {"prefill": "auto", "decode": "auto"} | stated
    pair = serve_pools(**asked, **pools)
    seconds = time.perf_counter() - start
    if as_json:
        rows = winner_rows(pair.study, pair.winner, pair.choice)
        print_json({**pair.about, "seconds": seconds, "best": rows, "note": serving_note()})
        return
    print_winners(pair.study, pair.winner, pair.choice)
    print_violations(violations(pair.result), seconds)
    print_impossible(pair.study)
    print_assumed(pair.about["assumptions"])
    out.print(serving_note())
    if launcher:
        objective = pair.choice.minimize or pair.choice.maximize or ""
        sense = "minimize" if pair.choice.minimize else "maximize"
        launcher.write(pair.study, best_labels(pair.study, pair.winner, objective, sense))
