#!/bin/sh
# What an encoder comes to: the tasks of GLUE that are there, and SQuAD in windows as long as the rows of pre-training.
#
#   GLUE=glue SQUAD=squad sh runs/tasks.sh MODEL OUT
#
# GLUE has CoLA/train.tsv and so on; runs/qqp.py makes QQP. SQUAD has train-v1.1.json and dev-v1.1.json. What is empty is left
# out. Each is learned with SEEDS seeds (5), by the paper's recipe and TUNING. Run again, it goes on where it stopped.
set -eu
model=$1 out=$2
elektron=${ELEKTRON:-.venv/bin/elektron}

learn() {
    # shellcheck disable=SC2086  # several words
    $elektron finetune "$@" --model "$model" --out "$out" --seeds "${SEEDS:-5}" --keep none ${TUNING:-}
}
[ -z "${GLUE:-}" ] || learn glue --data "$GLUE"
[ -z "${SQUAD:-}" ] || learn squad --data "$SQUAD" --length 128
