#!/bin/sh
# From raw text to scores in one go: ELECTRA-Small with as many tokens as the paper's 6.25% row, 1.02 billion.
#
#   TEXT="wiki-a.txt wiki-b.txt books.txt" VOCAB=vocab.txt GLUE=glue sh runs/speedrun.sh [paper|record]
#
# GLUE has CoLA/train.tsv and so on; runs/qqp.py makes QQP. FLAGS are given to `elektron pretrain`, TUNING to
# `elektron finetune`, which learns each task with SEEDS seeds (5). Run again, it goes on where it stopped.
set -eu
kind=${1:-record}
: "${TEXT:?files or folders of text}" "${VOCAB:?a vocabulary (vocab.txt, tokenizer.json), or: train}" "${GLUE:?a folder}"
elektron=${ELEKTRON:-.venv/bin/elektron}
cd "$(dirname "$0")/.."

# shellcheck disable=SC2086  # several words each
$elektron prepare --corpus $TEXT --tokenizer "$VOCAB" --out "${DATA:=data/speedrun}" ${PREPARING:-}
# shellcheck disable=SC2086
$elektron pretrain "configs/speedrun-$kind.toml" --data "$DATA" --run "${RUN:=runs/speedrun-$kind}" ${FLAGS:-}
# shellcheck disable=SC2086
$elektron finetune glue --model "$RUN" --data "$GLUE" --out "${OUT:-finetuned/speedrun-$kind}" --seeds "${SEEDS:-5}" --keep none ${TUNING:-}
