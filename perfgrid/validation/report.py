"""The validation as tables: rows of text for the command line, and the page docs/accuracy.md."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from perfgrid.analysis.limiting import WORDS
from perfgrid.analysis.text import number

from .design import conventions
from .overlay import CONSTANTS, SOURCES, calibration_rows, source_rows
from .schema import UNITS, Record
from .ties import TIES, tie_rows

ERRORS = ("median", "p90", "MAPE", "bias", "rank")
HEADERS = (
    "group",
    "n",
    "predicted",
    "over memory",
    *ERRORS,
    "constant: median",
    "p90",
    "rank",
    "Calculon",
    "llm-analysis",
)
WORST = ("record", "predicted", "measured", "ratio", "largest part")
UNSEEN = (*HEADERS[:-2], "inside")


@cache
def anchors() -> dict[str, dict[str, float]]:
    """Medians of other tools on the same records, by tool and group."""
    return tomllib.loads(Path(__file__).with_name("anchors.toml").read_text(encoding="utf-8"))


def error_rows(groups: Mapping[str, Mapping[str, Any]], whole: Collection[str]) -> list[list[str]]:
    """One row per group, as HEADERS says; other tools beside the ``whole`` groups, on which their medians are known."""
    rows = []
    for name, g in groups.items():
        own, base = [g[e.lower()] for e in ERRORS], [g["baseline"][e] for e in ("median", "p90", "rank")]
        others = [anchors()[tool].get(name) if name in whole else None for tool in ("calculon", "llm-analysis")]
        signs = [False, False, False, True, *[False] * 6]
        cells = [_cell(v, s) for v, s in zip([*own, *base, *others], signs, strict=True)]
        rows.append([name, str(g["n"]), str(g["predicted"]), str(g["over_memory"]), *cells])
    return rows


def _cell(value: float | None, signed: bool) -> str:
    return "-" if value is None else f"{value:+.3f}" if signed else f"{value:.3f}"


def worst_rows(worst: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """One row per prediction, as WORST says."""
    rows = []
    for w in worst:
        unit = UNITS[w["quantity"]]
        part, share = w["largest_part"], w["largest_part_share"]
        largest = f"{WORDS.get(part, part.replace('_', ' '))} {share:.0%}" if part else ""
        ratio = w["predicted"] / w["measured"]
        rows.append([w["id"], number(w["predicted"], unit), number(w["measured"], unit), f"{ratio:.3f}", largest])
    return rows


def reason_rows(reasons: Mapping[str, int]) -> list[list[str]]:
    """How many records are not predicted, and why."""
    return [[str(count), reason] for reason, count in reasons.items()]


def modelled(records: Iterable[Record]) -> str:
    """Of what a step consists in these records and in the formulas: parallelism, schedules, formats, modules."""
    found: dict[str, None] = {}
    for record in records:
        model, plan, work = record.model, record.plan, record.workload
        of_model = {} if model is None else {
            "experts": model.moe, "latent attention": model.mla, "token prediction": model.mtp_layers,
            "window": model.window, "grouped key heads": model.attention in ("gqa", "mqa"),
        }  # fmt: skip
        of_plan = {} if plan is None else {
            "tp": (plan.tp or 1) > 1, "cp": (plan.cp or 1) > 1, "ep": (plan.ep or 1) > 1, "pp": (plan.pp or 1) > 1,
            f"{plan.schedule} schedule": plan.schedule, "dp": (plan.dp or 1) > 1, "ZeRO-1": plan.zero == 1,
            "ZeRO-2": plan.zero == 2, "ZeRO-3 (FSDP)": plan.zero == 3,
            "hybrid sharding": plan.zero_size, f"{plan.offload} on the host": plan.offload not in (None, "none"),
            f"{plan.recompute} recomputation": plan.recompute not in (None, "none"),
            "least recomputation that fits": plan.recompute is None,
        }  # fmt: skip
        of_work = {} if work is None else {
            work.precision or "": work.precision, f"{work.scaling} scaling": work.scaling, "LoRA": work.lora,
            "packed sequences": work.packed_sft,
        }  # fmt: skip
        found |= {what: None for what, occurs in {**of_model, **of_plan, **of_work}.items() if what and occurs}
    return ", ".join(found)


def accuracy_page(
    summary: Mapping[str, Any],
    records: Sequence[Record],
    unseen: Sequence[Record],
    calibrations: Mapping[str, Mapping[str, Any]],
) -> str:
    """The page that states how far predictions are from measurements.

    From `Validation.summary`, that of the unseen records under its key ``unseen``, both sets of records and the
    calibrations behind the catalog (`overlay.stated`) by software.
    """
    kinds = {"training": "Training steps", "inference": "Inference", "kernel": "Kernels", "memory": "Memory"}
    out = [_HEAD]
    for kind, title in kinds.items():
        groups = {n: g for n, g in summary["groups"].items() if g["kind"] == kind}
        parts = {n: g for n, g in summary["parts"].items() if g["kind"] == kind}
        total = {n: g for n, g in summary["totals"].items() if g["kind"] == kind}
        rows = {**groups, **parts, **total}
        out += [f"## {title}\n", _markdown(HEADERS, error_rows(rows, rows)), ""]
    out += ["## Systems that nothing was fitted to\n", _UNSEEN, _markdown(UNSEEN, unseen_rows(summary["unseen"])), ""]
    out += [_findings("unseen"), _markdown(WORST, worst_rows(summary["unseen"]["worst"])), ""]
    out += [_markdown(("records", "not predicted"), reason_rows(summary["unseen"]["reasons"])), ""]
    out += ["## Calibrated software stacks\n", _CALIBRATED, _markdown(CONSTANTS, calibration_rows(calibrations)), ""]
    out += [_findings("fitted"), _LEFT_OUT, _markdown(SOURCES, source_rows(calibrations, summary["groups"])), ""]
    out += ["## Intervals\n", _INTERVALS, _markdown(SCATTER, scatter_rows(summary["scatter"])), ""]
    out += [_COVERAGE, _markdown(COVERAGE, coverage_rows(summary)), ""]
    out += ["## Ties\n", _TIES, _markdown(TIES, tie_rows(summary["pairs"], summary["unseen"]["pairs"])), ""]
    out += ["## Aims\n", _AIMS, _markdown(AIMS, aim_rows(summary)), ""]
    out += ["## Tried, kept or not\n", _DATED, _findings("tried")]
    out += ["## Farthest from the measurement\n", _markdown(WORST, worst_rows(summary["worst"])), ""]
    out += ["## Not predicted\n", _markdown(("records", "reason"), reason_rows(summary["reasons"])), ""]
    out += ["## What stands behind each source\n", _CONVENTIONS]
    lines = []
    training = [r for r in (*records, *unseen) if r.kind == "training"]
    for name in dict.fromkeys(r.group for r in training):
        group = {**conventions()["default"], **conventions()["group"].get(name, {})}
        own = [r for r in training if r.group == name]
        lines.append([name, group["software"][0], group["reason"], modelled(own), group["left_out"]])
    out += [_markdown(("group", "software", "why", "modelled", "not modelled"), lines), ""]
    return "\n".join(out)


def unseen_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row per source that nothing was fitted to and one per kind, as UNSEEN says."""
    rows = {**summary["groups"], **summary["totals"]}
    inside = ["-" if g["covered"] is None else f"{g['covered']:.0%}" for g in rows.values()]
    return [[*line[: len(UNSEEN) - 1], share] for line, share in zip(error_rows(rows, ()), inside, strict=True)]


def _markdown(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


@cache
def findings() -> dict[str, list[dict[str, Any]]]:
    """What was found while predictions were held against the records, each with its day."""
    return tomllib.loads(Path(__file__).with_name("findings.toml").read_text(encoding="utf-8"))


def _findings(kind: str) -> str:
    """The findings of a kind as a list."""
    lines = (f"**{f['title']}** ({f['date'].isoformat()}): {f['text']}" for f in findings()[kind])
    wrapped = (
        textwrap.wrap(" ".join(line.split()), 118, break_long_words=False, break_on_hyphens=False) for line in lines
    )
    return "\n".join("* " + "\n  ".join(line) for line in wrapped) + "\n"


@cache
def aims() -> dict[str, dict[str, Any]]:
    """What the error of each group should not exceed."""
    return tomllib.loads(Path(__file__).with_name("aims.toml").read_text(encoding="utf-8"))


def aim_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row per group with an aim, as AIMS says: those that miss it first."""
    known = {**summary["groups"], **summary["totals"]}
    rows = []
    for name, aim in aims().items():
        stated = [e for e in ("median", "p90", "rank") if e in aim and known[name][e] is not None]
        missed = [e for e in stated if (known[name][e] < aim[e] if e == "rank" else known[name][e] > aim[e])]
        reached, wanted = (", ".join(f"{e} {of[e]:.3g}" for e in stated) for of in (known[name], aim))
        rows.append([name, wanted, reached, "missed" if missed else "reached", aim.get("cause", "") if missed else ""])
    return sorted(rows, key=lambda row: row[3])


def scatter_rows(scatter: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """One row per software stack, as SCATTER says."""
    names = ("model_error", "unexplained_error", "ranking_error")
    return [[name, str(s["rows"]), *(_cell(s[n], False) for n in names)] for name, s in scatter.items()]


def coverage_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row per source and one of all, as COVERAGE says."""
    rows, held_out = [], summary["held_out"]
    unseen = sum(n * share for n, share in held_out.values()) / max(sum(n for n, _ in held_out.values()), 1)
    for name, g in {**summary["groups"], "all training": summary["totals"]["all training"]}.items():
        if g.get("covered") is not None:
            known = held_out.get(name, (0, unseen if name == "all training" else None))[1]
            shares = ["-" if share is None else f"{share:.0%}" for share in (g["covered"], known)]
            rows.append([name, str(g["predicted"]), *shares, f"{g['reach']:.2f}"])
    return rows


SCATTER = ("software", "rows", "all of it", "unexplained", "between designs")
COVERAGE = ("source", "rows", "inside", "inside, source left out", "reach up in ln")
AIMS = ("group", "aim", "today", "", "why, and what it would take")
_AIMS = """What the error of each group should be at most, and where it is more the cause, found row by row with
`perfgrid validate --explain`.
"""
_CALIBRATED = """Of a software stack with ten records or more a few constants are fitted to its step times, shared by
all its devices, models and sources (`perfgrid calibrate --software NAME`; `perfgrid/validation/calibrations.toml` says
which). The fit goes through the model, in logarithms, from the priors of the table, and within physical bounds; far
rows count less. What the catalog holds is rounded from here. A constant near a bound (Megatron-DeepSpeed's
`pointwise_passes`) stands for more than its name says: what that stack does beside the counted kernels, reading and
writing memory. All values come from one run, `python -m perfgrid.validation all` (some minutes).

**Source left out** is the error when every source is predicted with constants from the others.
"""
_UNSEEN = """Records of `perfgrid/validation/unseen`: published systems that were collected afterwards and are evaluated
apart (`perfgrid validate --unseen`). No constant is fitted to them, they count in no other table, aim or calibration
of this page, and no page stands in both sets in the same version (`trtllm12` is the successor of that behind
`trtllm017` and `trtllm_online`, with other models and devices). Where one of them showed that a formula, or the entry
that stands for its system, was wrong, the list says so, with the error at first sight. Serving rows told where to look
for `sequence_overhead` and `expert_efficiency`; the values come from other sources (`trtllm12` below). Rows of
`megascale`, `mtnlg`, `llama3_run`, `nemotron4_run`, `palm`, `gpt_neox` and `pope2022` are recalled, not read
(`certainty`). **Inside**: the share of measurements within the stated intervals; it was 78 % of 200 training steps
before single sources were taken to scatter as those of other stacks do (below), for which these rows were the reason.
"""
_DATED = """Figures are those of the day in brackets, with the formulas and constants of that day.
"""
_LEFT_OUT = """By source: the error with its own rows among the fitted ones, and with constants from the other sources
of the same stack alone. Stacks with one source cannot be checked in this way.
"""
_INTERVALS = """The interval of a prediction is to hold 90 of 100 measurements. With c the constants of the catalog
that have a range,

    var(ln y) = g' C g + u^2,   g = d ln y / d ln c,   low, high = y exp(-+1.645 sd(ln y))

(JCGM 100:2008, equations 13 and 16; exact derivatives; a whole number such as the version of an attention kernel is
evaluated at both ends). C holds the ranges as central 90 %, with the covariances of constants that were calibrated
together, upwards and downwards apart where a range is lopsided. u is what the records of the software show beyond that,
the least value that contents nine of ten records of a source (one more than there are is counted: split conformal
prediction), on average over the sources of the stack, which all weigh alike (pooled distributions of two-layer models);
the largest where there are too few; of calibrated stacks with the errors of each source from constants without it. A
stack with a single source takes at least the median of those with several: one source does not tell how far the next
one lies from it (until 2026-11-22 it took its own alone, and of the unseen systems above 78 % lay inside). There are
five such stacks, with sources that often share a publisher; the one in the middle is LLM Foundry's of 2023. Fused
attention is as uncertain as its kernels in the tables above (`flash_efficiency`).
`perfgrid run`, `best`, `compare` and `validate` print these intervals (`perfgrid.interval`). Two designs share most of
what is wrong: in the ratio of two predictions what both rest on cancels, and u is the scatter between records of one
source (less for sizes of one design, see Ties); steps closer than that are called tied by `compare` and, with `--top`,
by `best`. The outputs `step_time_low` and `step_time_high` of a grid take **all of it** (`model_error`) for every
design of a stack.
"""
_TIES = """Two records of one source share their machine, software and errors. How far the ratio of their steps lies
from that of their predictions, by what differs between them: deviations are of ln(ratio), **half** the one that half of
the pairs show, in the median of the sources. **Nine of ten** is the deviation, beyond constants that the two do not
share, that holds as many pairs of a further source: sources weigh alike, and one more than there are is counted
(hierarchical conformal prediction), so that it takes nine. **Ties** is what `tie_margin` takes in the median,
exp(1.645 ties) - 1 as a relative difference; **inside** are the pairs that it holds, **source left out** those that
the column nine of ten holds where it comes from the others; to the **unseen** nothing was fitted.

* **Devices and batch**, both up to ten times those of the other: such pairs scatter less, in 12 sources of six
  publishers and in 12 unseen ones, of which 97 % are inside. They tie by the least of 0.13 (24 %; `scaling_error` is
  that over the square root of two, for each of the two) and what other designs of the stack tie by. With each publisher
  left out that leaves nine sources it holds 97 % as well. Farther apart they scatter more, and too few sources tell.
* **Layout** (everything of parallelism and microbatches, schedules and sharding): no less than any other difference.
  Of eight sources of four publishers three have all pairs but ten; 0.28 (60 %) would hold nine of ten pairs of these
  sources, and 86 % where each is left out. Where other differences occur in a source with and without a changed layout,
  they scatter more with it in nine sources of fourteen and six unseen ones of seven. The unseen source of the table,
  which also changes how states are sharded, lies outside more often than ties say.
* **Recomputation**: no two records differ in nothing else, and two pairs of unseen ones (0.01 and 0.05). In the four
  sources where it is one of several differences pairs scatter no more with it than without, in four of seven
  such unseen ones more: too little to promise less.
* **Precision, model, software, machine**: too few sources. In precision they disagree: what is farthest are mixtures of
  experts, measured with later software in another 8-bit format. Of two stacks, and of devices that no source has
  together, these records tell nothing.

So for all but the first, ties are the scatter of the stack between designs, whatever differs. Over any differences the
unseen sources show that this is not wide: 86 % are inside.
"""
_COVERAGE = """How often measurements lie inside. **Source left out**: constants and scatter come from the other
sources of the same stack; where there are none, the scatter from the stacks that have several, while constants that
were calibrated stay (`bloom`, `torchtitan`). **Reach** is the median of ln(high / predicted).
"""
_HEAD = """# Accuracy

<!-- Written by `python -m perfgrid.validation`; do not edit. -->

Every number below compares perfgrid with published measurements of real systems, the records that it ships
(`perfgrid/validation/records`; [records.md](records.md) describes their fields). `perfgrid validate` prints the same
tables from the formulas and the catalog as they are, `perfgrid validate --explain ID` derives a single prediction.

Constants of devices and fabrics come from data sheets, microbenchmarks of kernels and links, and counting: none is
fitted to a training step. Of six software stacks two to four constants are (see below); the tables are in-sample
for them. Two come from kernels: `softmax_overlap`, read off two of the `flashattn` rows of version 3 (head
dimensions 64 and 128 at 16384 tokens), and `expert_efficiency` of two serving stacks (`moe_triton`, `moe_b300`). Which
version's rates the attention of NeMo's recipes up to early 2025 reached is not documented: predictions take version 2,
which the records of long sequences suggest, intervals span 2 and 3. How the network of the cluster behind `hfbench`
falls off with the number of nodes comes from its operators' own benchmark of collectives
(`tests/network/test_congestion.py`). Where the structure of a formula was found by looking at
published kernels and steps (what fused attention waits for, float32 gradient accumulation, the scattered hand-over
between stages) these rows check it in-sample; its docstring or its test says so.

Of the inference stacks three times in the catalog (`step_overhead`, `sequence_overhead`, `collective_overhead`) and,
for TensorRT-LLM of 2024, `launch_overhead` are **calibrated on all records of the stack at once**, one set for all
devices, models and sources: these tables are in-sample for them. What is structural was found there too: that the
attention kernels of 2023 read the cache once for every query head (inferred from the records, not documented), which
collectives are the library's, and that a run of few requests ends with a round that is not full. What took no part:

* 236 further throughputs of the page behind `trtllm017`, other models, lengths, degrees and devices
  (`tests/inference/trtllm017_unseen.json`): median 0.076, p90 0.254. Worst are the 29 of a GH200 with less memory than
  the catalog's (0.26) and a windowed model at 20,000 tokens (1.0, as if the window were not used).
* 222 records of lower tier from the same sources (not shipped): 173 of FasterTransformer 0.035 (p90 0.17), 15 of
  TensorRT-LLM 0.17 0.022, 8 at 16 requests per second 0.32 (0.78; one of the systems saturates), and 26 of an
  unoptimised baseline, evaluated as FasterTransformer, 1.2: all of them together 0.041 (0.85).

* **n** records, of which so many are **predicted** (why the others are not is told below); **over memory**: of these,
  rows that ran but do not fit the device memory by perfgrid's formulas.
* **median, p90** of |ln(predicted / measured)|; **MAPE** is the mean of |predicted / measured - 1|; **bias** the mean
  of ln(predicted / measured): negative where predictions are too fast or too small.
* **rank** is Spearman's correlation of throughput per device (tokens per second of a step, FLOP/s of a kernel, the
  bytes themselves for memory, the latency or rate itself for inference) within the group.
* **constant** is the trivial predictor, fitted on these very rows: one hardware-FLOP rate for each device and precision
  times the pipeline bubble; one FLOP rate for each kernel version; bytes for each parameter held; for
  inference one factor on the ideal roofline for each device, precision and quantity.
* **Calculon** and **llm-analysis**: medians of these tools, run unmodified on the same sources, over the rows that
  they can express. For kernels aiconfigurator, which looks measurements up, reaches 0.26 (`deepgemm`) and 0.29
  (`flashattn`).
* On the **inference** rows other tools, run unmodified, reach medians (90th percentiles) of 0.19 (0.64):
  aiconfigurator, which looks up measured kernels, on 290 rows; 0.55 (1.1): llm-analysis; 0.62 (1.1), with one constant
  per device 0.18 (0.5): GenZ; 0.42 (0.8): LLM-Viewer on one device; 0.23 (0.54): LLMCompass on 56 rows. A roofline with
  six global constants fitted to these rows reaches 0.105 (0.32). **Bias** of rates is positive where predictions are
  too fast.
* The same configuration measured again with later software differs by 6 % in the median (dense models) and by up to
  1.8 times (mixtures of experts): no model can honestly stay below that.
"""
_CONVENTIONS = """Sources do not state everything. What is taken for a whole source (never for one row) stands in
`perfgrid/validation/conventions.toml`; the software that is named is taken as soon as the catalog has it, otherwise the
nearest Megatron-LM entry. A stated network or scale-up domain replaces the catalog's; where recomputation is not
stated, the least that fits the memory by perfgrid's own formulas is taken. No stated field of a predictable training
record is dropped; the last column names what happens in such a run that no formula and no field tells of.
"""
