#!/bin/bash
# Pre-training on the nodes of a Slurm cluster, requeued until it is done. With an environment active that has
# elektron in it, and run and data on storage that all nodes see:
#
#     sbatch recipes/slurm.sh configs/base.toml --train.accumulate 1 --run /shared/runs/base --data /shared/data
#     sbatch --nodes 2 --time 4:00:00 recipes/slurm.sh ...
#
# Before its time is over Slurm warns this script alone (B:), which passes the warning on once: the ranks save, and the
# job goes back into the queue. The next one may have another number of nodes. A run that fails is not requeued.
#
#SBATCH --job-name=elektron
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

set -u

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=150     # seconds that torchrun gives its ranks to save, of the 180 above

# One torchrun a node starts the ranks of that node. If one ends first, the others are still given time to save. Since
# Slurm 22.05 a step has one CPU unless it is told again.
srun --kill-on-bad-exit=0 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" torchrun \
    --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint "$first:${RENDEZVOUS_PORT:-29400}" --rdzv-id "$SLURM_JOB_ID" \
    -m -- elektron pretrain "$@" &
step=$!

warned=
trap '[ "$warned" ] || kill -TERM "$step"; warned=1' TERM
while wait "$step"; code=$?; kill -0 "$step" 2>/dev/null; do :; done  # a signal ends the waiting, not the step

if [ "$warned" ] && [ "$code" != 0 ]; then
    echo "saved before the time was over; back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
    exit
fi
exit "$code"
