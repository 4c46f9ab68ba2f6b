"""Pre-training by Ray Train, on a Ray cluster (`ray job submit`) whose nodes all see the run's folder and data:

    python recipes/ray_train.py --workers 32 -- configs/base.toml --train.accumulate 1 --run /nfs/base --data /nfs/data

Ray finds the GPUs, starts a worker on each and starts all of them again when one is lost; what a worker does is
`elektron pretrain`, as a rank of torchrun would. The run saves itself in its own folder and goes on from there, with as
many workers as there are then: Ray's own checkpoints are not used. Written for ray[train] 2.60.
"""

import argparse
import os
import socket
import subprocess
import sys
from typing import Any

import ray.train
import torch.distributed
from ray.train.torch import TorchConfig, TorchTrainer


def rank(config: dict[str, Any]) -> None:
    """One rank. A process of its own: training hears signals, which only a main thread can, and opens its own process
    group. The one that Ray has opened serves to agree where."""
    address = [_free_address()]
    torch.distributed.broadcast_object_list(address, src=0)
    host, port = address[0]
    command = [sys.executable, "-m", "elektron", "pretrain", *config["arguments"]]
    done = subprocess.run(command, env=os.environ | {"MASTER_ADDR": host, "MASTER_PORT": str(port)})
    if done.returncode:
        raise RuntimeError(f"rank {os.environ['RANK']} ended with {done.returncode}")


def _free_address() -> tuple[str, int]:
    """Of this machine, where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return ray.util.get_node_ip_address(), probe.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="ranks, each with a GPU of its own")
    parser.add_argument("--cpu", action="store_true", help="train on CPUs")
    parser.add_argument("--failures", type=int, default=3, help="times that all are started again; -1: no end")
    parser.add_argument("--storage", help="where Ray keeps its notes; all nodes must see it if there are several")
    parser.add_argument("arguments", nargs="+", help="after --: files and flags of elektron pretrain")
    options = parser.parse_args()
    trainer = TorchTrainer(
        rank,
        train_loop_config={"arguments": options.arguments},
        torch_config=TorchConfig(backend="gloo"),  # for a few words: the GPUs are for training
        scaling_config=ray.train.ScalingConfig(num_workers=options.workers, use_gpu=not options.cpu),
        run_config=ray.train.RunConfig(
            storage_path=options.storage, failure_config=ray.train.FailureConfig(max_failures=options.failures)
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
