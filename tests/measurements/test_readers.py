"""Readers of measurements: jobs, results of serving, damaged files, and the commands that take them."""

import json
import math
import random
import re

import pytest

import perfgrid as pg
from perfgrid import PerfgridError
from perfgrid.cli.main import imported
from perfgrid.validation.measurements.measured import Measured
from perfgrid.validation.schema import read_records
from tests.each import each

from . import logs
from .given import BASE, STEPS, read, table


def test_a_job_file_states_the_job_and_predicts_as_the_study_does(tmp_path, job):
    """The record of a log carries the whole job: predicted is what `explain` says of the study of `read-job`."""
    path = tmp_path / "train.log"
    path.write_text(logs.megatron(STEPS, 128, 16))
    (found,) = read(path, job=(job,), on="h100-sxm-80gb")
    assert found.value == pytest.approx(9.012, abs=2e-3)  # median of steps 2 to 21
    assert found.note == "median of 20 logged iterations, 2 to 21"
    assert (found.software, found.plan.dp, found.plan.zero) == ("megatron-core", 8, 1)
    content = {
        "outputs": ["step_time"],
        "dtype": "float64",
        "axes": {
            "model": ["llama-3.1-8b"],
            "device": ["h100-sxm-80gb"],
            "software": ["megatron-core"],
            "parallelism": {n: [v] for n, v in {"devices": 16, "tp": 2, "pp": 1, "chunks": 1}.items()},
        },
        "workload_parameters": {"sequence_length": 8192, "global_batch": 128, "zero": 1, "recompute": "none"},
    }
    study = pg.Study.make(**content)
    (predicted,) = pg.validate([Measured(path, job=(job,), on="h100-sxm-80gb")]).predictions
    assert predicted.predicted == pytest.approx(float(pg.evaluate(study)["step_time"].squeeze()), rel=1e-9)


def test_serving_results_state_lengths_and_load(tmp_path):
    saved = {
        "model_id": "meta-llama/Llama-3.1-8B-Instruct",
        "max_concurrency": 8,
        "request_rate": "inf",
        "completed": 80,
    }
    saved |= {"total_input_tokens": 81920, "total_output_tokens": 40960, "output_throughput": 640.0}
    saved |= {"request_throughput": 1.25, "mean_ttft_ms": 50.0, "mean_tpot_ms": 12.0}
    printed = """Maximum request concurrency: 8
============ Serving Benchmark Result ============
Successful requests:                     80
Total input tokens:                      81920
Total generated tokens:                  40960
Output token throughput (tok/s):         640.00
---------------Time to First Token----------------
Mean TTFT (ms):                          50.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          12.00
==================================================
"""
    means = {"time_to_first_token": 50.0, "inter_token_latency": 12.0, "request_latency": 6000.0}
    export = {name: {"unit": "ms", "avg": value} for name, value in means.items()}
    export |= {"output_token_throughput": {"unit": "tokens/sec", "avg": 640.0}, "request_count": {"avg": 80}}
    export |= {"input_sequence_length": {"avg": 1024.0}, "output_sequence_length": {"avg": 512.0}}
    export["input_config"] = {"endpoint": {"model_names": ["Llama-3.1-8B-Instruct"]}, "loadgen": {"concurrency": 8}}
    texts = {"saved.json": json.dumps(saved), "printed.txt": printed, "export.json": json.dumps(export)}
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text)
        records = {r.quantity: r for r in read(path, on="h100-sxm-80gb", stated={"model": "llama-3.1-8b"})}
        assert records["time_to_first_token"].value == pytest.approx(0.05)
        assert records["time_per_output_token"].value == pytest.approx(0.012)
        assert records["output_tokens_per_second"].value == pytest.approx(640)
        load = records["time_to_first_token"].workload
        assert (load.prompt_tokens, load.output_tokens, load.batch, load.batch_rule, load.requests) == (
            *(1024, 512, 8),
            "concurrency",
            80,
        )


@each("kind", logs.sound_files())
def test_damaged_files_end_in_one_line(tmp_path, kind):
    """Whatever numbers, words and ends a damaged file has, it is read or refused in one line."""
    text, draw, path = logs.sound_files()[kind], random.Random(7), tmp_path / "damaged.txt"
    stated = {"model": "llama-3.1-8b", "recompute": "selective"}
    words = ["-1", "0", "1e400", "nan", "", "x", "null", "[]", '"y"', "9" * 40, "\x00", "{", "999999999", "0.5"]
    for _ in range(60):
        parts = re.split(r"(\d+\.?\d*)", text)
        for _ in range(draw.choice([1, 1, 2, 5])):
            parts[draw.randrange(len(parts))] = draw.choice(words)
        damaged = "".join(parts)
        path.write_text(damaged[: draw.randrange(len(damaged))] if draw.random() < 0.2 else damaged)
        try:
            on = None if kind == "torchtitan" else "h100-sxm-80gb"  # its log states the device
            records, problems = read_records([Measured(path, kind, on=on, stated=stated)])
            told = [p.reason for p in problems]
            assert all(math.isfinite(r.value) for r in records)
        except PerfgridError as error:
            told = [str(error)]
        assert all("\n" not in reason for reason in told)


def test_the_commands_take_tables_and_logs(tmp_path, job, capsys):
    """`records read` writes what `validate` reads; `calibrate` fits a stack to a table at once."""
    log, mine, sweep = tmp_path / "train.log", tmp_path / "mine.jsonl", tmp_path / "sweep.csv"
    log.write_text(logs.megatron(STEPS, 128, 16))
    options = ["--job", str(job), "--on", "h100-sxm-80gb"]
    imported("records").main(["read", str(log), "-o", str(mine), *options], standalone_mode=False)
    (found,) = read(mine)
    assert found == read(log, job=(job,), on="h100-sxm-80gb")[0]
    with pytest.raises(PerfgridError, match=r"'mine': records are lines of JSON; the file name must end in \.jsonl"):
        imported("records").main(["read", str(log), "-o", "mine", *options], standalone_mode=False)
    rows = [[*(BASE | {"tp": tp, "gbs": 128 * n}).values(), 8000] for tp in (1, 2, 4) for n in (1, 2, 4, 8)]
    table(tmp_path, [*BASE, "tokens/s/GPU"], *rows, name=sweep.name)
    arguments = [str(sweep), "--software", "megatron-core", "--constant", "library_efficiency"]
    imported("calibrate").main(arguments, standalone_mode=False)
    assert "megatron-core.library_efficiency" in capsys.readouterr().out


def test_a_folder_holds_measurements_beside_other_files(tmp_path, job):
    (tmp_path / "train.log").write_text(logs.megatron(STEPS, 128, 16))
    (tmp_path / "config.json").write_text('{"hidden_size": 4096}')
    (tmp_path / "notes.txt").write_text("half of this is about steps")
    (found,) = read(tmp_path, job=(job,), on="h100-sxm-80gb")
    assert found.id.endswith("-train")


def test_options_and_files_agree_or_say_so(tmp_path):
    saved = {"model_id": "Qwen/Qwen3-8B", "max_concurrency": 8, "completed": 80, "total_input_tokens": 80 * 998}
    saved |= {"total_output_tokens": 40960, "request_throughput": 1.25, "mean_ttft_ms": 50.0}
    serving, titan = tmp_path / "saved.json", tmp_path / "titan.log"
    serving.write_text(json.dumps(saved))
    titan.write_text(logs.torchtitan([1, 10, 20, 30, 40], [87, 5600, 5610, 5620, 5630], 44.84))
    found = read(serving, on="h100-sxm-80gb", stated={"prompt_tokens": 1000})
    assert found[0].workload.prompt_tokens == 1000  # a mean of 998 is that length
    wrong = [
        (serving, {"prompt_tokens": 2000}, "prompt_tokens is 998 by the result, but 2000 by --set"),
        (serving, {"model": "llama-3.1-8b"}, "the model is qwen3-8b by the result, but llama-3.1-8b by an option"),
        (titan, {"model": "llama-3.1-70b"}, "the model is llama-3.1-8b by the log, but llama-3.1-70b by an option"),
        (titan, {"devices": 16}, "devices is 8 by the mesh in the log, but 16 by --set"),
    ]
    for path, stated, told in wrong:
        with pytest.raises(PerfgridError, match=told):
            read(path, on="h100-sxm-80gb" if path == serving else None, stated=stated)


@each("unit, factor", [("ms", 1e-3), ("seconds", 1.0), ("us", 1e-6), ("fortnights", None)])
def test_units_of_an_export_are_known_or_refused(tmp_path, unit, factor):
    export = {"output_token_throughput": {"avg": 640.0}, "request_latency": {"unit": unit, "avg": 6000.0}}
    export |= {"input_sequence_length": {"avg": 1024.0}, "output_sequence_length": {"avg": 512.0}}
    export["input_config"] = {"model": "llama-3.1-8b", "concurrency": 8}
    path = tmp_path / "export.json"
    path.write_text(json.dumps(export))
    if factor is None:
        with pytest.raises(PerfgridError, match="request_latency in unknown unit 'fortnights': known are s, "):
            read(path, on="h100-sxm-80gb")
    else:
        found = {r.quantity: r for r in read(path, on="h100-sxm-80gb")}["request_latency"]
        assert (found.value, found.reported.unit) == (pytest.approx(6000 * factor), unit)
