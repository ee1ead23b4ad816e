"""Devices come from what starts the processes of a job, never from a batch; contradictions are one line with both."""

import pytest
from typer.testing import CliRunner

from perfgrid.cli.main import app
from perfgrid.engine.errors import PerfgridError, one_line
from perfgrid.jobs.launcher import allocation_of, launched_by, variables_of
from perfgrid.jobs.read import read_job
from tests.each import each

from .test_bad_input import LLAMA

BATCH = "--micro-batch-size 1 --global-batch-size 512 --tensor-model-parallel-size 4"
TRAIN = f"pretrain_gpt.py {LLAMA} --vocab-size 128256 {BATCH} "
SIXTEEN = "#!/bin/bash\n#SBATCH --nodes=16 --gpus-per-node=4\n"


def devices(text, **options):
    return read_job({"run.sh": text}, **options).values.get("devices")


@each(
    "head, launch, found",
    [
        (SIXTEEN, "srun python", 64),
        (SIXTEEN, "python", 64),
        ("#SBATCH -N 2\n#SBATCH --gres=gpu:h100:8\n", "srun python", 16),
        ("#SBATCH --nodes 2\n#SBATCH --gpus-per-node=a100:4\n#SBATCH --ntasks-per-node=4\n", "srun python", 8),
        ("#SBATCH -n 8 --gpus-per-task=1\n", "srun python", 8),
        ("#SBATCH --gpus=32\n#SBATCH -N4\n", "srun python", 32),
        ("#SBATCH -N 4\n#SBATCH --ntasks-per-node=8\n#SBATCH --exclusive\n", "srun python", 32),
        ("#SBATCH -N 4\n#SBATCH --tasks-per-node=8\n", "srun --label python", 32),
        ("#SBATCH -N 4\n#SBATCH --gpus-per-node=8\n", "srun -N 2 python", 16),
        ("#SBATCH -N 4\n#SBATCH --gpus-per-node=8\n", "srun --nodes=2 --container-image x bash -c 'python RUN'", 16),
        (
            "#SBATCH -N 4\n#SBATCH --gpus-per-node=8\nIP=$(srun --nodes=1 --ntasks=1 hostname)\n",
            "srun --nodes=1 --ntasks=1 hostname\nsrun bash -c 'python RUN'",
            32,
        ),
        ("", "srun -N 2 --gpus-per-node 8 python", 16),
        ("", "srun -n16 --ntasks-per-node=8 python", 16),
        ("", "mpirun -np 16 --mca btl self -x PATH python", 16),
        ("", "mpiexec -n 8 python", 8),
        ("", "torchrun --nproc-per-node 8", 8),
        ("", "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend c10d", 16),
        ("", "python -m torch.distributed.launch --nproc_per_node 4 --use_env", 4),
        ("", "python3 -u -m torch.distributed.run --standalone --nproc_per_node=8", 8),
        (
            "#SBATCH -N 2\n#SBATCH --gpus-per-node=8\n",
            "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE",
            16,
        ),
        ("#SBATCH -N 2\n", "srun torchrun --nnodes $SLURM_JOB_NUM_NODES --nproc_per_node 8", 16),
        ("#SBATCH -N 2\n#SBATCH --gpus-per-node=8\n", "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node gpu", 16),
        ("export WORLD_SIZE=16\n", "python", 16),
        ("NNODES=2\nGPUS_PER_NODE=8\n", "python", 16),
        ("", "python", None),
        ("", "torchrun --nnodes 1:4 --nproc_per_node 8", None),
        ("", "torchrun --nnodes $NODES --nproc_per_node 8", None),
        ("#SBATCH -N 4\n#SBATCH --exclusive\n", "srun python", None),
        ("#SBATCH -N 4\n#SBATCH --gres=gpu:8\n#SBATCH --gpus-per-node=4\n", "srun python", None),
    ],
)
def test_devices_are_those_of_the_launcher(head, launch, found):
    text = head + (launch.replace("RUN", TRAIN) if "RUN" in launch else f"{launch} {TRAIN}")
    job = read_job({"run.sh": text}, format="megatron-lm")
    assert job.values.get("devices") == found
    assert list(job.open) == ([] if found else ["devices"])
    if found:
        assert job.values["dp"] == found // 4
        with pytest.raises(PerfgridError, match=f"devices is {found} by .*, not 3$") as error:
            devices(text, format="megatron-lm", devices=3)
        assert one_line(str(error.value)) == str(error.value)
    else:  # the user says it; the batch does not
        assert "dp" not in job.values
        assert devices(text, format="megatron-lm", devices=32) == 32


@each(
    "text, first, second, numbers",
    [
        (
            f"#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\nsrun torchrun --nnodes 4 --nproc_per_node 8 {TRAIN}",
            "--nnodes 4 and --nproc_per_node 8",
            "#SBATCH --nodes=2 and #SBATCH --gpus-per-node=8",
            (32, 16),
        ),
        (
            f"#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\nsrun torchrun --nnodes 2 --nproc_per_node 8 {TRAIN}",
            "--nnodes 2 and --nproc_per_node 8",
            "#SBATCH --nodes=2 and #SBATCH --gres=gpu:4",
            (16, 8),
        ),
        (
            f"srun -n 8 -N 8 --gpus-per-task=8 torchrun --nproc_per_node 8 {TRAIN}",
            "torchrun without --nnodes and --nproc_per_node 8",
            "srun -N 8 and srun -n 8 and srun --gpus-per-task=8",
            (8, 64),
        ),
        (
            f"#SBATCH -N 2\n#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=4\nsrun python {TRAIN}",
            "#SBATCH -N 2 and #SBATCH --gpus-per-node=8",
            "#SBATCH -N 2 and #SBATCH --ntasks-per-node=4",
            (16, 8),
        ),
    ],
)
def test_launchers_that_contradict_each_other_are_one_line_and_the_user_chooses(text, first, second, numbers):
    with pytest.raises(PerfgridError) as error:
        devices(text)
    told = str(error.value)
    assert told.startswith(f"run.sh: {first} contradicts {second}: {numbers[0]} or {numbers[1]} devices")
    assert one_line(told) == told
    assert [devices(text, devices=number) for number in numbers] == list(numbers)
    with pytest.raises(PerfgridError, match="choose with --devices"):
        devices(text, devices=24)


@each(
    "option", ["--requeue", "--no-requeue", "--hold", "-H", "--parsable", "--wait", "-W", "--reboot", "--get-user-env"]
)
def test_a_directive_without_a_value_leaves_the_next_line_alone(option):
    text = f"#!/bin/bash\n#SBATCH --gpus-per-node=8\n#SBATCH {option}\n#SBATCH --nodes=8\nsrun -K1 torchrun "
    assert devices(f"{text}--nnodes 8 --nproc_per_node 8 {TRAIN}") == 64
    assert devices(f"{text.partition('srun')[0]}srun python {TRAIN}") == 64


@each("option", ["display-map", "nooversubscribe", "use-hwthread-cpus", "verbose", "some-new-one"])
def test_an_option_is_no_value_of_the_one_before_it(option):
    assert devices(f"mpirun --{option} -np 64 python {TRAIN}") == 64
    assert devices(f"mpirun -np 64 --{option} python {TRAIN}") == 64


def test_directives_behind_the_first_command_do_not_count_and_are_named():
    text = f"#SBATCH -N 2\n\n# a comment\n#SBATCH --gpus-per-node=8\nmodule load x\n#SBATCH -N 9\nsrun python {TRAIN}"
    job = read_job({"run.sh": text})
    assert job.values["devices"] == 16
    assert ("#SBATCH -N 9", "", "behind the first command, where Slurm reads no directive") in job.ignored
    assert devices(f"cat > a.sh <<EOF\n#!/bin/bash\n#SBATCH -N 2 --gpus-per-node=8\nEOF\nsrun python {TRAIN}") == 16


def test_a_mesh_that_the_framework_fills_states_the_devices_by_its_equation():
    axes = "model_name: llama3.1-8b\nici_fsdp_parallelism: 16\ndcn_data_parallelism: 4\nper_device_batch_size: 2\n"
    job = read_job(axes)
    assert job.values["devices"] == 64
    assert ("devices", "64", "implied by devices 64 = tp 1 x cp 1 x pp 1 x dp 64") in job.assumed
    assert read_job(axes.replace(": 16", ": -1")).open == ("devices",)
    enforced = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}'
    assert read_job(enforced).values["devices"] == 8  # DeepSpeed refuses any other number
    loose = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}'
    assert read_job(loose).values.get("devices") is None


def test_a_key_of_the_framework_and_the_launcher_must_agree():
    text = "trainer.num_nodes=4 trainer.devices=8 trainer.precision=bf16 model.micro_batch_size=1"
    head = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n"
    assert devices(f"{head}srun python train.py {text}", format="nemo-1") == 32
    with pytest.raises(PerfgridError, match=r"trainer.num_nodes 4 contradicts #SBATCH --nodes=2: both state nodes"):
        devices(f"{head.replace('=4', '=2')}srun python train.py {text}", format="nemo-1")


def test_a_server_takes_the_part_of_an_allocation_that_its_degrees_say():
    text = "#SBATCH -N 1\n#SBATCH --gpus-per-node=8\nsrun vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4\n"
    assert devices(text) == 4


def test_a_command_behind_the_launch_is_not_the_launcher():
    text = "#SBATCH -N 4\nsrun torchrun --nnodes 4 --nproc_per_node 8 -m torchtitan.train --job.config_file a.toml\n"
    config = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\nlocal_batch_size = 1\n'
    for behind in ("", "srun -N 1 hostname\n", "dcgmi profile --resume\n", "mpirun -np 2 hostname\n"):
        assert read_job({"a.toml": config, "run.sh": text + behind}).values["devices"] == 32


def test_variables_of_slurm():
    allocation = allocation_of(
        ("#SBATCH -N 3\n#SBATCH --ntasks-per-node 2\n#SBATCH --gpus-per-node=h100:4\n##SBATCH -N 9\n",)
    )
    assert {
        name: variables_of(allocation)[name] for name in ("SLURM_NNODES", "SLURM_NTASKS", "SLURM_GPUS_PER_NODE")
    } == {
        "SLURM_NNODES": "3",
        "SLURM_NTASKS": "6",
        "SLURM_GPUS_PER_NODE": "4",
    }
    assert launched_by(["python", "a.py"], allocation_of(("#SBATCH --nodes=2-4\n#SBATCH --gpus-per-node=8\n",)), {})[
        0
    ].unread


POD = """
        containers:
        - name: pytorch
          command: ["bash", "-c"]
          args: ["torchrun --nnodes $PET_NNODES --nproc_per_node $GPUS RUN"]
          env: [{name: GPUS, value: "8"}]
          resources: {limits: {"nvidia.com/gpu": 8}}
"""
PYTORCH = f"""apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: train}}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
       spec:{POD}
    Worker:
      replicas: 3
      template:
       spec:{POD}
"""
MPI = """kind: MPIJob
spec:
  slotsPerWorker: 4
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template: {spec: {containers: [{command: [mpirun, -np, "8", python], args: [WORDS]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: 4}}}]}}
"""


def test_pods_of_kubernetes_are_nodes():
    assert devices(PYTORCH.replace("RUN", TRAIN)) == 32
    with pytest.raises(
        PerfgridError, match=r"--nnodes 2 and .* contradicts PyTorchJob --nodes=4 and .*: 16 or 32 devices"
    ):
        devices(PYTORCH.replace("RUN", TRAIN).replace("$PET_NNODES", "2"))
    words = ", ".join(f'"{word}"' for word in TRAIN.split())
    assert devices(MPI.replace("WORDS", words)) == 8
    with pytest.raises(PerfgridError, match="MPIJob states no command"):
        devices(MPI.replace(", args: [WORDS]", "").replace('command: [mpirun, -np, "8", python]', "name: x"))


def test_the_command_line_asks_for_devices_and_shows_who_states_them(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f"{SIXTEEN}srun python {TRAIN}")
    shown = CliRunner().invoke(app, ["read-job", str(script)]).stdout
    assert "#SBATCH --nodes=16 and #SBATCH" in shown
    assert "implied by devices 64 = tp 4 x cp 1 x pp 1 x dp 16" in shown
    script.write_text(f"python {TRAIN}")
    shown = CliRunner().invoke(app, ["read-job", str(script)]).stdout
    assert "Open: devices: no launcher states it: give --devices" in shown
    with pytest.raises(PerfgridError, match="states no devices: give --devices"):
        app(["read-job", str(script), "--on", "h100-sxm-80gb", "-o", str(tmp_path / "s.toml")], standalone_mode=False)
