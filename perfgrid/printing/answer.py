"""An answer on one screen: the best designs side by side, what is near them, and what was assumed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import zip_longest
from typing import Any

import numpy as np
import xarray as xr
from rich.text import Text

from perfgrid.engine.graph.entries import EXCEEDS
from perfgrid.engine.reductions.pareto import unbeaten
from perfgrid.printing.console import out
from perfgrid.printing.tables import print_table
from perfgrid.study.file import LAYOUT
from perfgrid.text.numbers import column, number
from perfgrid.text.terms import COUNTS, MFU, TERMS, UTILIZATIONS, counted

UNSURE = "might_not_fit"  # the design that fits only without what is kept free
MEMORY = "fits_memory"
NEAR = "near_miss_"  # variables about the designs that one limit excludes
FRONT = "frontier_"  # variables about the designs between the objective and a second quantity
LABEL = "label of"  # long name of a variable that holds labels
HEADINGS = {  # quantity of an answer -> the first column of its row
    "step_time": "time per step",
    "training_time": "the whole run",
    "cost_per_training_run": "cost of the run",
    "tokens_per_second": "tokens per second",
    MFU: TERMS[MFU],
    "cost_per_device_hour": "device-hour",
    "step_energy": "energy per step",
    "cost_per_million_output_tokens": "1 M output tokens",
    "time_to_first_token": "first token",
    "time_per_output_token": "time per token",
    "output_tokens_per_second": "tokens per second",
    "output_tokens_per_second_per_device": "tokens/s per device",
    "output_tokens_per_second_per_user": "tokens/s per user",
    "running_batch": "concurrent requests",
    "energy_per_output_token": "energy per token",
}
DECIDE = {  # as what decides, where the first column alone does not say it
    "training_time": "time of the whole run",
    "cost_per_device_hour": "cost of a device-hour",
    "cost_per_million_output_tokens": "cost of 1 M output tokens",
    "time_to_first_token": "time to the first token",
}
FEWER = {"pp": "fewer pipeline stages"}  # what decides between ties, of counts
FEWEST = {"pp": "fewest pipeline stages"}
OTHERS = {"request_latency": "time per request", "memory_per_device": "memory per device"}  # a row if they decide
PERCENTILES = ("p50", "p90", "p99")
GAPS = {"time_per_output_token": "inter_token_latency"}  # whose percentiles follow those of a quantity
HEADING, COLUMN = 19, 30  # characters of the first column, and of one design
MOST_MISSES, MOST_REASONS, MOST_ON_FRONT = 3, 4, 6
TIED = " (within the error)"
LEAST_SHARE = 0.01  # of what is worth a line
GROUPS = ("system", "devices")


class Answer(xr.Dataset):
    """The Dataset of an answer, which a notebook and `print` show as the command does; a part of it as any Dataset."""

    __slots__ = ()

    def marked(self) -> Answer:
        """The same, which knows what it holds: whatever lacks some of it is no whole answer."""
        return self.assign_attrs(holds=self._held())

    def _held(self) -> list[str]:
        return sorted({*map(str, self.data_vars), *map(str, self.dims)} - {*GROUPS})

    def __repr__(self) -> str:
        return self._screen() or super().__repr__()

    def _repr_html_(self) -> str:
        whole = super()._repr_html_()
        if not (text := self._screen()):
            return whole
        return f"<pre>{escape(text)}</pre><details><summary>Dataset</summary>{whole}</details>"

    def _screen(self) -> str:
        """What the command prints; empty where parts of the answer are missing or its values were changed."""
        if self.attrs.get("holds") != self._held() or 0 in map(self.sizes.get, GROUPS):
            return ""
        try:
            return screen(self)
        except Exception:  # whatever xarray made of it: a repr never raises
            return ""


def screen(found: xr.Dataset) -> str:
    """What `print_answer` prints, as plain text."""
    with out.capture() as caught:
        print_answer(found)
    return Text.from_ansi(caught.get()).plain.rstrip()


def print_answer(found: xr.Dataset) -> None:
    """The designs of an answer side by side, as many as the terminal is wide enough for, and its notes."""
    dims = [dim for dim in GROUPS if dim in found.dims]
    every = [found.isel(dict(zip(dims, place, strict=True))) for place in np.ndindex(*(found.sizes[d] for d in dims))]
    out.print(found.attrs["title"])
    out.print(_decisive(found.attrs))
    for line in found.attrs["warnings"]:
        out.print(f"Warning: {line}")
    most = max(1, (out.width - HEADING) // COLUMN)
    for first in range(0, len(every), most):
        out.print()
        some = every[first : first + most]
        print_table(["", *map(_name, some)], list(_lines(some, found.attrs["objective"])))
    out.print()
    if any(group["found"].item() for group in every) and (line := counted(n for n in UTILIZATIONS if n in found)):
        out.print(line)
    _print_frontier(every)
    near = (*_unsure(every, found.attrs["objective"]), *_misses(every), *_fitting(every))
    for line in (*_ranking(every, found.attrs), *_excluded(found), *near):
        out.print(line)
    print_assumed(found.attrs["assumptions"])
    for line in found.attrs.get("notes", []):
        out.print(f"Note: {line}")


def _decisive(about: Mapping[str, Any]) -> str:
    """Which design is called the best."""
    objective = about["objective"]
    decisive = DECIDE.get(objective) or words(objective)
    equal = ""
    if "ties" in about:
        near = f"within {about['within']:.0%}" if "within" in about else "of equal ones"
        each = [f"the {FEWEST.get(name, f'lowest {words(name)}')}" for name in np.atleast_1d(about["ties"]).tolist()]
        equal = f"; {near} {', then '.join(each)}"
    return f"Best: {'lowest' if about['sense'] == 'minimize' else 'highest'} {decisive}{equal}"


def words(quantity: str) -> str:
    """A quantity as a screen calls it."""
    return (HEADINGS | OTHERS).get(quantity, quantity)


def _print_frontier(groups: Sequence[xr.Dataset]) -> None:
    """The table of designs between two quantities, if the answer has some."""
    names = [str(name).removeprefix(FRONT) for name in groups[0] if str(name).startswith(FRONT)]
    quantities = [name for name in names if name in HEADINGS]
    labels = [name for name in names if name not in HEADINGS]
    if not names:
        return
    rows = []
    for system in dict.fromkeys(group["system"].item() for group in groups):
        own = [group for group in groups if group["system"].item() == system]
        rows += [[system * (i == 0), *line] for i, line in enumerate(_frontier(own, quantities, labels))]
    print_table(["frontier", *(HEADINGS[q] for q in quantities), "devices", *labels], rows, names=False)
    out.print()


def _frontier(groups: Sequence[xr.Dataset], quantities: Sequence[str], labels: Sequence[str]) -> Iterator[list[str]]:
    """Some designs of groups that none of them beats in both quantities, evenly from one end to the other."""
    names = (*quantities, *labels)
    columns = {name: [value for group in groups for value in group[FRONT + name].values.tolist()] for name in names}
    sizes = [_size(group) for group in groups for _ in range(group.sizes["frontier"])]
    scores = -np.stack([columns[name] for name in quantities], axis=1)
    real = np.flatnonzero(np.isfinite(scores).all(axis=1))
    kept = real[unbeaten(np.zeros(len(real), int), scores[real])]
    kept = kept[np.argsort(scores[kept, 0])]
    along = np.log(scores[kept, 1] / scores[kept, 0])  # rises: the second quantity grows where the first falls
    places = np.linspace(along[0], along[-1], MOST_ON_FRONT) if len(kept) else ()
    for i in dict.fromkeys(int(kept[np.abs(along - place).argmin()]) for place in places):
        values = [number(columns[q][i], groups[0][FRONT + q].attrs["units"]) for q in quantities]
        texts = [layout_text(columns[name][i]) if name == LAYOUT else columns[name][i] for name in labels]
        yield [*values, f"{sizes[i]:,}", *texts]


def layout_text(label: str) -> str:
    """A layout without the degrees that are one: tp4 pp4 dp32 for tp4.cp1.pp4.dp32.v1."""
    parts = (part for part in label.split(".") if part.lstrip("abcdefghijklmnopqrstuvwxyz") != "1")
    return " ".join(parts) or "one device"


def _size(group: xr.Dataset) -> int:
    return int(group.get("devices", group.get("size", 0)))


def _name(group: xr.Dataset) -> str:
    size = _size(group)
    return f"{size:,} x {group['system'].item()}" if size else str(group["system"].item())


def _lines(groups: Sequence[xr.Dataset], objective: str) -> Iterator[list[str]]:
    """The rows of the table: quantities, then what takes several lines of a cell."""
    texts: dict[str, Callable[[xr.Dataset], list[str]]] = {}
    headings = {objective: words(objective)} | HEADINGS
    for quantity, heading in headings.items():
        if quantity in groups[0] or quantity == objective:
            texts[heading] = lambda group, quantity=quantity: [
                _value(group, quantity, objective) + _peak(group, quantity),
                *_percentiles(group, quantity),
                *_other_counts(group, quantity),
            ]
    tied = "within the error" if f"{objective}_interval" in groups[0] else "about as good"
    texts |= {"memory": _memory, "cache holds": _cache, "layout": _layout, "limited by": _parts, tied: _others}
    for heading, text in texts.items():
        cells = [text(group) if group["found"].item() else [] for group in groups]
        if heading == headings[objective]:
            cells = [cell or ["no design"] for cell in cells]
        for i, line in enumerate(zip_longest(*cells, fillvalue="")):
            yield [heading if i == 0 else "", *line]


def _value(group: xr.Dataset, quantity: str, objective: str) -> str:
    unit, value = group[quantity].attrs.get("units", "1"), group[quantity].item()
    known = quantity == objective and f"{objective}_interval" in group
    ends = group[f"{objective}_interval"].values if known else np.array([np.nan])
    if not np.isfinite(ends).all():
        return number(value, unit)
    name, texts = column([value, *ends], unit)
    value, low, high = map(str.strip, texts)
    return f"{value} ({low} to {high}) {name}".rstrip()


def _percentiles(group: xr.Dataset, quantity: str) -> Iterator[str]:
    """The percentiles of a quantity in a common unit, and of the gaps between tokens, if the answer has them."""
    for own, word in ((quantity, ""), (GAPS.get(quantity, ""), "gaps ")):
        names = [name for name in (f"{own}_{percentile}" for percentile in PERCENTILES) if name in group]
        if names:
            unit, texts = column([group[name].item() for name in names], group[names[0]].attrs["units"])
            yield f"{word}{', '.join(f'{p} {t.strip()}' for p, t in zip(PERCENTILES, texts, strict=True))} {unit}"


def _peak(group: xr.Dataset, quantity: str) -> str:
    """The peak rate of which the MFU is a share."""
    if quantity != MFU or "usable_peak_rate" not in group:
        return ""
    return f" of {number(group['usable_peak_rate'].item(), 'FLOP/s')} {group.attrs.get('precision', '')}".rstrip()


def _other_counts(group: xr.Dataset, quantity: str) -> Iterator[str]:
    """The shares of the same peak with FLOPs counted in other ways."""
    if quantity == MFU and (names := [name for name in COUNTS if name in group]):
        yield ", ".join(f"{TERMS[name]} {number(group[name].item(), '1')}" for name in names)


def _memory(group: xr.Dataset) -> list[str]:
    used, whole = (group[name].item() for name in ("memory_per_device", "hbm_capacity"))
    parts = {
        str(name).removesuffix("_memory").replace("_", " "): group[name].item()
        for name in group
        if "_memory" in str(name)
    }
    largest = sorted(parts.items(), key=lambda part: -part[1])
    of = [f"{name} {number(value, 'byte')}" for name, value in largest if value > LEAST_SHARE * used]
    limit = group["memory_limit" if "memory_limit" in group else "hbm_capacity"].item()
    lines = [f"{number(used, 'byte')} of {number(whole, 'byte')}"]
    lines += [f"limit {number(limit, 'byte')} (engine)"] if "memory_limit" in group else []
    return [*lines, f"left {number(max(limit - used, 0.0), 'byte')}", *of]


def _cache(group: xr.Dataset) -> list[str]:
    """What the cache of one replica holds, of a server."""
    if "fitting_context" not in group:
        return []
    tokens, sequences, context = (
        int(group[name].item()) for name in ("cache_capacity_tokens", "fitting_sequences", "fitting_context")
    )
    return [f"{tokens:,} tokens a replica", f"{sequences:,} whole requests", f"longest {context:,} tokens"]


def _layout(group: xr.Dataset) -> list[str]:
    found = {str(name): values for name, values in group.data_vars.items() if not values.dims}
    labels = [name for name, values in found.items() if str(values.attrs.get("long_name")).startswith(LABEL)]
    return [layout_text(group[LAYOUT].item()), *(f"{name} {group[name].item()}" for name in labels if name != LAYOUT)]


def _parts(group: xr.Dataset) -> list[str]:
    pairs = zip(group["part"].values, group["part_share"].values, strict=True)
    return [f"{word} {share:.0%}" for word, share in pairs if share >= LEAST_SHARE]


def _others(group: xr.Dataset) -> list[str]:
    rows = zip(*(group[f"alternative_{name}"].values for name in ("layout", "ratio", "tied")), strict=True)
    return [f"{layout_text(label)} ({ratio - 1:+.1%})" for label, ratio, tied in rows if tied]


def _ranking(groups: Sequence[xr.Dataset], about: Mapping[str, Any]) -> Iterator[str]:
    """The order of several designs by the objective."""
    objective, sign = about["objective"], 1 if about["sense"] == "minimize" else -1
    ranked = sorted((g for g in groups if g["found"].item()), key=lambda group: sign * group[objective].item())
    if len(ranked) > 1:
        first = ranked[0][objective].item()
        others = (f"{_name(g)}{_more(g[objective].item(), first)}{TIED * g['tied'].item()}" for g in ranked[1:])
        yield f"Best by {objective}: {', '.join((_name(ranked[0]), *others))}"


def _more(value: float, than: float) -> str:
    """By how much a value is above another; empty above zero."""
    return f" {value / than - 1:+.0%}" if than else ""


def _excluded(found: xr.Dataset) -> Iterator[str]:
    """How many designs are feasible, and what excludes the others: limits with their reasons, rules by name.

    Where no limit excludes any, rules have their reasons as well.
    """
    designs, counts = int(found["designs"].sum()), found["excluded"].sum(found["found"].dims).values
    if counts.sum() < LEAST_SHARE * designs:
        return
    limit = found["kind"].values == EXCEEDS
    limit |= not counts[limit].any()
    feasible = designs - int(counts.sum())
    share = f"{feasible / designs:.0%}" if feasible >= LEAST_SHARE * designs else f"{feasible or 'None'}"
    of = f"{share} of {designs:,} designs {'is' if feasible < 2 else 'are'} feasible"
    yield f"{of}. Excluded, by first violated constraint:"
    order = [i for i in np.argsort(-counts) if counts[i] >= LEAST_SHARE * designs]
    for i in [i for i in order if limit[i]][:MOST_REASONS]:
        yield f"{counts[i] / designs:>5.0%}  {found['reason'].values[i]} [{found['constraint'].values[i]}]"
    if rules := [i for i in order if not limit[i]]:
        named = ", ".join(f"{found['constraint'].values[i]} {counts[i] / designs:.0%}" for i in rules[:MOST_REASONS])
        yield f"{counts[~limit].sum() / designs:>5.0%}  not buildable: {named}"


def _unsure(groups: Sequence[xr.Dataset], objective: str) -> Iterator[str]:
    """The better designs that fit only if nothing is kept free of the memory."""
    for group in (group for group in groups if UNSURE in group and group[UNSURE].item()):
        reached = group[f"{UNSURE}_objective"]
        value, used, whole = (group[f"{UNSURE}_{name}"].item() for name in ("objective", "use", "limit"))
        gain = f" ({value / group[objective].item() - 1:+.0%})" if group["found"].item() else ""
        text = f"{number(value, reached.attrs['units'])}{gain}, {number(used, 'byte')} of {number(whole, 'byte')}"
        yield f"Might not fit: {_place(group)}, {_design(group[UNSURE].item())}: {text} (--headroom 0)"


def _place(group: xr.Dataset) -> str:
    """A system with its devices, unless designs of any size were weighed."""
    return _name(group) if "devices" in group.coords else group["system"].item()


def _design(labels: str) -> str:
    """The labels of a design, its layout without the degrees that are one."""
    return re.sub(f"{LAYOUT} (\\S+)", lambda found: layout_text(found[1]), labels)


def _misses(groups: Sequence[xr.Dataset]) -> Iterator[str]:
    """The designs nearest to a limit that it alone excludes, first of groups without a design."""
    near = sorted((group for group in groups if _nearest(group)), key=lambda group: bool(group["found"].item()))
    for group in near[:MOST_MISSES]:
        for limit, miss in _nearest(group).items():
            yield f"Near: {_place(group)}, {_design(miss['labels'])}: {_near(group, limit, miss)}"
    if others := [_name(group) for group in near[MOST_MISSES:]]:
        yield f"Near misses of {', '.join(others)}: --json"


def _nearest(group: xr.Dataset) -> dict[str, dict[str, Any]]:
    """What is known of the design nearest to each limit; of memory not where one might fit, which is named apart."""
    names = {str(name): str(name).removeprefix(NEAR) for name in group if str(name).startswith(NEAR)}
    limits = map(str, group["limit"].values)
    misses = {limit: {word: group[name].sel(limit=limit).item() for name, word in names.items()} for limit in limits}
    apart = MEMORY if UNSURE in group and group[UNSURE].item() else ""
    return {limit: miss for limit, miss in misses.items() if miss["labels"] and limit != apart}


def _near(group: xr.Dataset, limit: str, near: Mapping[str, Any]) -> str:
    unit = group["limit_units"].sel(limit=limit).item()
    text = f"{number(near['value'], unit)}, limit {number(near['limit'], unit)} [{limit}]"
    if near["remedy"]:
        text += f"; {near['remedy']} fits{_more(near['remedied'], near['objective'])}"
    return text


def _fitting(groups: Sequence[xr.Dataset]) -> Iterator[str]:
    """With how many devices it would fit, where it fits with none of the numbers that were asked for."""
    if "fits_with" not in groups[0]:
        return
    size = {group["system"].item(): group["fits_with"].item() for group in groups}
    if fits := [f"{size[system]:,} x {system}" for system in size if size[system] > 0]:
        yield f"It fits with {', '.join(fits)}"
    if none := [system for system in size if size[system] == 0]:
        tried = ", ".join(f"{count:,}" for count in np.atleast_1d(groups[0]["fits_with"].attrs["tried"]))
        yield f"It fits with none of {tried} x {', '.join(none)}, with the same batch"


def print_assumed(lines: Sequence[str]) -> None:
    """What a question left open, and by which option it is stated."""
    for line in lines:
        option, _, value = line.partition(": ")
        named = "--" if option.replace("-", "").isalpha() else ""
        out.print(f"Assumed: {value} ({named}{option})")
