#!/bin/sh
# From raw text to scores in one go: ELECTRA-Small with as many tokens as the paper's 6.25% row, 1.02 billion.
#
#   TEXT="wiki-a.txt wiki-b.txt books.txt" VOCAB=vocab.txt GLUE=glue sh runs/speedrun.sh [paper|record]
#
# What is learned in the end, and from where, is in runs/tasks.sh. FLAGS are given to `elektron pretrain`. Run again, it goes on
# where it stopped.
set -eu
kind=${1:-record}
: "${TEXT:?files or folders of text}" "${VOCAB:?a vocabulary (vocab.txt, tokenizer.json), or: train}"
elektron=${ELEKTRON:-.venv/bin/elektron}
cd "$(dirname "$0")/.."

# shellcheck disable=SC2086  # several words each
$elektron prepare --corpus $TEXT --tokenizer "$VOCAB" --out "${DATA:=data/speedrun}" ${PREPARING:-}
# shellcheck disable=SC2086
$elektron pretrain "configs/speedrun-$kind.toml" --data "$DATA" --run "${RUN:=runs/speedrun-$kind}" ${FLAGS:-}
sh runs/tasks.sh "$RUN" "${OUT:-finetuned/speedrun-$kind}"
