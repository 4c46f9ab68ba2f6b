"""The recipes, as far as a machine without a cluster can try them: the scripts run for real on one CPU, with stand-ins
for Slurm's commands and torch's own torchrun; the manifest is held against the operator's API."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import parse_args

from elektron.train.checkpoint import all_steps, load_newest
from ports import free_port
from test_house import ROOT, parse

RECIPES = ROOT / "recipes"
SCRIPTS = [RECIPES / "slurm.sh", RECIPES / "spot.sh"]
STEPS = 300
FLAGS = (
    "--model.layers 1 --model.width 32 --model.heads 2 --model.feedforward-width 64 --model.embedding-width 16 "
    "--model.positions 32 --schedule.warmup-steps 3 --watch.evaluate-every 1000 --watch.evaluate-rows 8 "
    f"--watch.log-every 10 --watch.checkpoint-every 1000 --device cpu --train.phases {STEPS} 16 4"
).split()
"""A second of steps. None is saved but the last, and where a signal comes."""


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}")
    (folder / name).chmod(0o755)


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """Stand-ins first, then this Python's own programs; no GPU."""
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "CUDA_VISIBLE_DEVICES": "", "TORCHRUN": "--standalone --nproc-per-node 1"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, data_folder) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    command = [sys.executable, "-m", "elektron", "pretrain", "--data", str(data_folder), "--run", str(run), *FLAGS]
    subprocess.run(command, check=True, capture_output=True)
    return run


def assert_same_weights(run: Path, other: Path) -> None:
    a, b = load_newest(run), load_newest(other)
    assert a is not None
    assert b is not None
    assert a.step == b.step == STEPS
    assert a.model.keys() == b.model.keys()
    assert all(torch.equal(a.model[name], b.model[name]) for name in a.model)
    assert all(torch.equal(a.optimizer[name], b.optimizer[name]) for name in a.optimizer)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound(script):
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if checker is None:
        pytest.skip("no shellcheck here")
    found = subprocess.run([checker, script], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


SRUN = """
[[ $* == *" --cpus-per-task=3 "* ]] || exit 9
while [[ $1 == -* ]]; do shift; done
"$@" & task=$!
trap 'kill -TERM "$task"' TERM
while wait "$task"; code=$?; kill -0 "$task" 2>/dev/null; do :; done
exit "$code"
"""
SCONTROL = """
case $1 in
show) echo localhost ;;
requeue) [ "$2" = "$SLURM_JOB_ID" ] && touch "$QUEUE" ;;
esac
"""
SBATCH = """
script=$1; shift
grep -q '^#SBATCH --signal=B:TERM@' "$script" && grep -q '^#SBATCH --requeue' "$script" || exit 9
export SLURM_JOB_ID=7 SLURM_JOB_NODELIST=localhost SLURM_JOB_NUM_NODES=1
export SLURM_GPUS_ON_NODE=1 SLURM_CPUS_PER_TASK=3
bash "$script" "$@" & job=$!
until grep -q '"train"' "$METRICS" 2>/dev/null; do kill -0 "$job" || exit 9; sleep 0.02; done
kill -TERM "$job"  # its time is over soon
wait "$job"
rm "$QUEUE" && exec bash "$script" "$@"
"""
"""A job whose time is over after the first record, and the next one, which may take as long as it likes."""


def test_slurm_requeues_until_it_is_done(tmp_path, environment, data_folder, undisturbed):
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("sbatch", SBATCH)):
        program(tmp_path / "bin", name, text)
    run, queue = tmp_path / "run", tmp_path / "queue"
    environment |= {"QUEUE": str(queue), "METRICS": str(run / "metrics.jsonl"), "RENDEZVOUS_PORT": str(free_port())}
    command = ["sbatch", RECIPES / "slurm.sh", "--data", data_folder, "--run", run, *FLAGS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "back into the queue" in done.stdout
    assert done.stdout.count("stopped by SIGTERM") == 1
    assert not queue.exists()
    assert len(all_steps(run)) == 2  # where the time was over, and the end
    assert_same_weights(run, undisturbed)


def test_slurm_does_not_requeue_what_fails(tmp_path, environment):
    program(tmp_path / "bin", "srun", "exit 5")
    program(tmp_path / "bin", "scontrol", SCONTROL)
    environment |= {"QUEUE": str(tmp_path / "queue"), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a"}
    environment |= {"SLURM_JOB_NUM_NODES": "1"}
    assert subprocess.run([RECIPES / "slurm.sh"], env=environment).returncode == 5
    assert not (tmp_path / "queue").exists()


def test_a_machine_that_is_taken_away_costs_nothing(tmp_path, environment, data_folder, undisturbed):
    """SIGTERM after the first record: saved at once, and the next machine goes on from there."""
    run = tmp_path / "run"
    command = [str(RECIPES / "spot.sh"), "--data", str(data_folder), "--run", str(run), *FLAGS]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = run / "metrics.jsonl"
    while not (metrics.exists() and '"train"' in metrics.read_text()):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, error
    assert "stopped by SIGTERM" in out
    (reached,) = all_steps(run)
    assert 10 <= reached < STEPS
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert_same_weights(run, undisturbed)


JOINS = """
import os, sys
import torch
from elektron.train.distributed import joined
with joined(torch.device("cpu")) as world:
    world.wait()
sys.exit(75 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
"""
"""A rank that ends for now, and then for good."""


def test_ranks_that_are_started_again_find_each_other(tmp_path, environment):
    """Not where the ones before them were, which torchrun's store still tells."""
    (tmp_path / "joins.py").write_text(JOINS)
    program(tmp_path / "bin", "python", f"exec {sys.executable} {tmp_path / 'joins.py'}")
    environment |= {"TORCHRUN": "--standalone --nproc-per-node 2"}
    done = subprocess.run([RECIPES / "spot.sh"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "exitcode: 75" in done.stderr


TORCHRUN = """
while [ "$1" != -- ]; do shift; done
shift; export TORCHELASTIC_RESTART_COUNT=0
"$@" || exit 1
"""
PYTHON = """
echo "$@" >>"$SAID"
read -r code rest <"$CODES"; echo "$rest" >"$CODES"
exit "$code"
"""


@pytest.mark.parametrize(
    ("codes", "last", "times"),
    [("0", 0, 1), ("75 143 75 0", 0, 4), ("75 2 0", 2, 2), ("1 0", 1, 1), ("143 137 0", 137, 2)],
)
def test_what_ends_for_now_is_started_again(tmp_path, environment, codes, last, times):
    """Every end a rank may have, by stand-ins for torchrun, which itself ends with 1, and for the rank."""
    program(tmp_path / "bin", "torchrun", TORCHRUN)
    program(tmp_path / "bin", "python", PYTHON)
    (tmp_path / "codes").write_text(codes + "\n")
    environment |= {"CODES": str(tmp_path / "codes"), "SAID": str(tmp_path / "said"), "TMPDIR": str(tmp_path)}
    done = subprocess.run([RECIPES / "spot.sh", "--seed", "a b"], env=environment, capture_output=True, text=True)
    assert done.returncode == last
    assert (tmp_path / "said").read_text() == "-m elektron pretrain --seed a b\n" * times
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "codes", "said"}


def test_ray_trains_by_the_same_command(tmp_path, environment, data_folder, undisturbed):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'ray[train]==2.60.0' to try its recipe")
    run = tmp_path / "run"
    options = ["--cpu", "--workers", "1", "--failures", "0", "--storage", str(tmp_path / "ray")]
    command = [sys.executable, RECIPES / "ray_train.py", *options, "--", "--data", data_folder, "--run", run, *FLAGS]
    environment |= {"RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert_same_weights(run, undisturbed)


def test_torchrun_hears_how_long_it_may_take_to_save(monkeypatch):
    """The recipes set a variable of torch's, and less than whoever kills in the end allows."""
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7")
    assert LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1).shutdown_timeout == 7
    slurm = (RECIPES / "slurm.sh").read_text()
    seconds = re.findall(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", slurm)
    assert [int(found) < int(re.findall(r"--signal=B:TERM@(\d+)", slurm)[0]) for found in seconds] == [True]
    pod = manifest()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    given = {variable["name"]: variable["value"] for variable in pod["containers"][0]["env"]}
    assert int(given["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]


def manifest() -> dict[str, Any]:
    return yaml.safe_load((RECIPES / "kubernetes.yaml").read_text())


REPLICA = {"replicas?": int, "template?": {"metadata?": dict, "spec": dict}, "restartPolicy?": str}
JOB = {
    "apiVersion": str,
    "kind": str,
    "metadata": dict,
    "spec": {
        "runPolicy?": {
            "cleanPodPolicy?": str,
            "ttlSecondsAfterFinished?": int,
            "activeDeadlineSeconds?": int,
            "backoffLimit?": int,
            "schedulingPolicy?": dict,
        },
        "elasticPolicy?": {
            "minReplicas?": int,
            "maxReplicas?": int,
            "rdzvBackend?": str,
            "rdzvPort?": int,
            "rdzvHost?": str,
            "rdzvId?": str,
            "rdzvConf?": list,
            "standalone?": bool,
            "nProcPerNode?": int,
            "maxRestarts?": int,
            "metrics?": list,
        },
        "pytorchReplicaSpecs": {"Master?": REPLICA, "Worker?": REPLICA},
        "nprocPerNode?": str,
    },
}
"""The fields of kubeflow.org/v1's PyTorchJob, by pkg/apis/kubeflow.org/v1 of kubeflow/training-operator; '?': may be
absent."""


def assert_fits(value: Any, schema: Any, where: str = "") -> None:
    if not isinstance(schema, dict):
        assert type(value) is schema, f"{where}: {value!r}"
        return
    known = {name.rstrip("?"): kind for name, kind in schema.items()}
    assert value.keys() <= known.keys(), f"{where}: {value.keys() - known.keys()}"
    assert {name for name in schema if not name.endswith("?")} <= value.keys(), where
    for name, inner in value.items():
        assert_fits(inner, known[name], f"{where}.{name}")


def test_the_manifest_is_a_pytorch_job():
    job = manifest()
    assert_fits(job, JOB)
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert job["metadata"]["name"]
    spec = job["spec"]
    assert spec["elasticPolicy"]["rdzvBackend"] in ("c10d", "etcd", "etcd-v2")
    assert spec["runPolicy"]["cleanPodPolicy"] in ("All", "Running", "None")
    assert spec["pytorchReplicaSpecs"].keys() == {"Worker"}  # an elastic job has no master
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    assert worker["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
    assert spec["elasticPolicy"]["minReplicas"] <= worker["replicas"] <= spec["elasticPolicy"]["maxReplicas"]
    pod = worker["template"]["spec"]
    container = pod["containers"][0]
    assert container["name"] == "pytorch"  # PytorchJobDefaultContainerName
    assert str(container["resources"]["limits"]["nvidia.com/gpu"]) == spec["nprocPerNode"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert all(isinstance(variable["value"], str) for variable in container["env"])


def test_the_manifest_s_folders_are_on_its_volume():
    spec = manifest()["spec"]
    container = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    program, *words = [*container["command"], *container["args"]]
    assert program == "torchrun"
    options = parse_args(words)  # torchrun's own
    assert (options.module, options.training_script, options.nproc_per_node) == (True, "elektron", spec["nprocPerNode"])
    folders = [options.training_script_args[options.training_script_args.index(f) + 1] for f in ("--run", "--data")]
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert all(any(folder.startswith(f"{mount}/") for mount in mounts) for folder in folders)


def test_the_commands_in_the_recipes_are_understood():
    pod = manifest()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    commands = [["pretrain", *pod["containers"][0]["args"]]]
    for recipe in ("slurm.sh", "spot.sh", "ray_train.py"):
        lines = re.findall(rf"^#? +(?:sbatch|python)? ?recipes/{recipe} (.*)$", (RECIPES / recipe).read_text(), re.M)
        assert lines, recipe
        for line in lines:
            words = shlex.split(line.split(" -- ")[-1])
            assert (ROOT / words[0]).exists()
            commands.append(["pretrain", *words[1:]])
    parse(commands)
