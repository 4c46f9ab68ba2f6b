#!/bin/sh
# ELECTRA against a masked LM at equal FLOPs, by the settings of the record run: three seeds of each.
#
#   DATA=data/speedrun GLUE=glue sh runs/against-mlm.sh
#
# DATA is what runs/speedrun.sh has prepared. BUDGET is in FLOPs; what it is without, ELECTRA spends on the 31,250 steps of the
# record run. OBJECTIVES, SEEDS and the first SEED say what of it to do. FLAGS are given to `elektron compare`. Run again, it
# goes on where it stopped.
set -eu
: "${DATA:?a prepared folder}" "${GLUE:?a folder}"
elektron=${ELEKTRON:-.venv/bin/elektron}
cd "$(dirname "$0")/.."

# shellcheck disable=SC2046,SC2086  # several words each
$elektron compare configs/speedrun-record.toml --data "$DATA" --run "${RUN:-runs/against-mlm}" \
    --objectives "${OBJECTIVES:-electra,mlm}" --budget-flops "${BUDGET:-7.057e16}" --seed "${SEED:-0}" --seeds "${SEEDS:-3}" \
    --points 1 --task-seeds 3 --tasks $(for task in ${TASKS:-cola sst mrpc sts rte}; do echo "$task=$GLUE"; done) ${FLAGS:-}
