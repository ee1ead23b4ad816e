"""Run by the Python of a framework, not by the suite: its own parser takes what is written, or lists its keys.

``python parsers.py NAME check < launches`` reads one JSON list of words, or one JSON object, a line, and prints
for each ``ok`` or what the parser says. ``python parsers.py NAME list`` prints one line for every key: its name, type,
legal values and default. Nothing here imports perfgrid.
"""

# pyright: reportMissingImports=false
import argparse
import contextlib
import io
import itertools
import json
import math
import os
import sys
import typing
import warnings

PLAIN = {"int": "int", "float": "float", "str": "str", "bool": "bool"}


def of_argparse(parser):
    """Lines of an argparse parser: name, type, choices, default."""
    for action in parser._actions:
        names = [name[2:] for name in action.option_strings if name.startswith("--")]
        if not names or action.dest == "help":
            continue
        if action.nargs == 0 or isinstance(action, (argparse.BooleanOptionalAction, argparse._StoreTrueAction)):
            kind = "switch"
        else:
            kind = PLAIN.get(getattr(action.type, "__name__", "str"), "str") + (
                "*" if action.nargs in ("+", "*") else ""
            )
        choices = "|".join(map(str, action.choices)) if action.choices else ""
        for name in names:
            yield name, kind, choices, text(action.default)


def text(value):
    """A default as one word; empty for None, and for values other than text, numbers and flags."""
    plain = isinstance(value, (bool, int, float, str)) and len(str(value)) < 40
    return str(value).replace("\t", " ").replace("\n", " ") if plain else ""


def of_fields(cls, before=""):
    """Lines of the fields of a pydantic model."""
    for name, field in cls.model_fields.items():
        kinds = [
            PLAIN[getattr(a, "__name__", "")] for a in parts(field.annotation) if getattr(a, "__name__", "") in PLAIN
        ]
        words = [
            str(w)
            for a in parts(field.annotation)
            for w in typing.get_args(a)
            if typing.get_origin(a) is typing.Literal
        ]
        words += [str(m.value) for a in parts(field.annotation) if hasattr(a, "__members__") for m in a]
        yield (
            before + (field.alias or name),
            "float" if "float" in kinds else (kinds or ["str"])[0],
            "|".join(words),
            text(field.default),
        )


def parts(annotation):
    """A type and the members of a union."""
    if typing.get_origin(annotation) is typing.Literal or not typing.get_args(annotation):
        return [annotation]
    return [inner for arg in typing.get_args(annotation) for inner in parts(arg)]


def megatron_lm():
    """Megatron-LM: the parser, its cross-checks and the configuration of the transformer."""
    os.environ.setdefault("WORLD_SIZE", "1")
    import megatron.training.arguments as module
    import torch

    torch.cuda.get_device_capability = lambda *_: (9, 0)
    module.get_device_arch_version = lambda: 9

    def check(words):
        start = next(i for i, w in enumerate(words) if w.endswith("pretrain_gpt.py"))
        launcher = dict(itertools.pairwise(words[:start]))
        os.environ["WORLD_SIZE"] = str(int(launcher["--nproc-per-node"]) * int(launcher["--nnodes"]))
        os.environ.update(w.split("=", 1) for w in words[:start] if "=" in w)
        sys.argv = [*words[start:], "--no-rope-fusion"]  # which needs the Transformer Engine
        args = module.parse_args()
        module.validate_args(args, {})
        module.core_transformer_config_from_args(args)

    return check, lambda: of_argparse(module.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False)))


def sglang():
    """SGLang: the arguments of its server."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return lambda words: parser.parse_args(words[words.index("sglang.launch_server") + 1 :]), lambda: of_argparse(
        parser
    )


def vllm():
    """vLLM: the arguments of its engine."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    return lambda words: parser.parse_args(["--model", words[2], *words[3:]]), lambda: of_argparse(parser)


def deepspeed():
    """DeepSpeed: its configuration, for as many ranks as the batch states."""
    import deepspeed.comm as dist
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    def check(content):
        ranks = content["train_batch_size"] // (
            content["train_micro_batch_size_per_gpu"] * content.get("gradient_accumulation_steps", 1)
        )
        dist.get_rank = lambda *_: 0
        dist.get_world_size = lambda *_: ranks * content.get("sequence_parallel_size", 1)
        DeepSpeedConfig(content)

    return check, lambda: of_fields(DeepSpeedZeroConfig, "zero_optimization.")


def accelerate():
    """Accelerate: its configuration as `accelerate launch` takes it, and what its processes make of it."""
    import dataclasses
    import tempfile
    from pathlib import Path

    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils.launch import prepare_multi_gpu_env

    tables = {"FSDP": "fsdp_config.", "DeepSpeed": "deepspeed_config.", "ParallelismConfig": "parallelism_config."}
    machine = dict(os.environ)

    def check(content):
        os.environ.clear()
        os.environ.update(machine)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "config.yaml"
            file.write_text(json.dumps(content))
            args = launch_command_parser().parse_args(["--config_file", str(file), "train.py"])
            args, *_ = _validate_launch_command(args)
            os.environ.update(prepare_multi_gpu_env(args))
        FullyShardedDataParallelPlugin()
        sizes = ParallelismConfig()
        if sizes.total_size != content["num_processes"]:
            raise ValueError(f"{sizes.total_size} ranks for {content['num_processes']} processes")

    def listed():
        parser = launch_command_parser()
        for field in dataclasses.fields(ClusterConfig):
            yield (
                field.name,
                PLAIN.get(str(getattr(field.type, "__name__", field.type)), "str"),
                "",
                text(field.default),
            )
        for group in parser._action_groups:
            own = tables.get((group.title or "").split()[0].removesuffix("Arguments"))
            of = argparse.Namespace(_actions=group._group_actions)
            yield from ((f"{own}{name}", *rest) for name, *rest in of_argparse(of) if own and "-" not in name)

    return check, listed


def torchtitan():
    """torchtitan: its configuration and cross-checks."""
    import tyro
    from torchtitan.config import ConfigManager

    def words_of(words):
        own = words[words.index("torchtitan.train") + 1 :]
        return (
            own if "--module" in own else ["--module", "llama3", "--config", "llama3_8b", *own]
        )  # a model of any name

    def listed():
        manager = ConfigManager()
        config, _ = manager._load_config(["--module", "llama3", "--config", "llama3_8b"])
        from torchtitan.config.manager import custom_registry

        parser = tyro.extras.get_parser(type(config), default=config, registry=custom_registry)
        return of_argparse(parser)

    return lambda words: ConfigManager().parse_args(words_of(words)), listed


def maxtext():
    """MaxText: its configuration for a topology that is compiled for, so that no device is asked."""
    from maxtext.configs import pyconfig, types

    MACHINE = ("skip_jax_distributed_system=true", "compile_topology=v5p-64", "compile_topology_num_slices=2")

    def check(words):
        start = next(i for i, w in enumerate(words) if w.endswith("base.yml"))
        base = os.path.join(os.path.dirname(pyconfig.__file__), "base.yml")
        own = dict(word.split("=", 1) for word in words[start + 1 :])
        if "model_name" not in own:  # a model of as many layers as the pipeline holds
            names = ("ici_pipeline_parallelism", "dcn_pipeline_parallelism", "num_pipeline_repeats")
            layers = math.prod(int(own.get(n, 1)) for n in (*names, "num_layers_per_pipeline_stage"))
            own["base_num_decoder_layers"] = str(layers)
        pyconfig.initialize(["train", base, *(f"{k}={v}" for k, v in own.items()), *MACHINE])

    return check, lambda: of_fields(types.MaxTextConfig)


def main():
    """Check or list."""
    warnings.simplefilter("ignore")
    name, task = sys.argv[1:3]
    with contextlib.redirect_stdout(io.StringIO()):
        check, listed = globals()[name.replace("-", "_")]()
    if task == "list":
        with contextlib.redirect_stdout(io.StringIO()):
            lines = sorted(set(listed()))
        print("\n".join("\t".join(line).rstrip() for line in lines))
        return
    for line in sys.stdin.read().splitlines():
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                check(json.loads(line))
            print("ok")
        except SystemExit:
            print(" ".join(said.getvalue().split())[-300:] or "refused")
        except Exception as error:
            print(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


if __name__ == "__main__":
    main()
