#!/bin/sh
# What a pre-trained model sees by itself: BLiMP's pairs, the errors that FCE's annotators marked, calibration, and
# LibriSpeech's hypotheses in a better order; then FCE learned.
#
#   BLIMP=blimp FCE=fce ASR="tune.json test.json" sh runs/eye.sh MODEL OUT
#
# MODEL is a run or a Hugging Face folder, of electra or of electric. BLIMP has a file a phenomenon; FCE has train.txt and
# dev.txt, a word a line, c or i behind it; ASR are two files of hypotheses with their scores and references (runs/halves.py).
# What is not named is left out.
set -eu
model=$1 out=$2
elektron=${ELEKTRON:-.venv/bin/elektron}
mkdir -p "$out"

[ -z "${BLIMP:-}" ] || $elektron score --model "$model" --pairs "$BLIMP" --out "$out/blimp.json"
if [ -n "${FCE:-}" ]; then
    $elektron calibrate "$model" --dev "$FCE/train.txt" --test "$FCE/dev.txt" --no-save --out "$out/fce.json"
    $elektron finetune ged --model "$model" --data "$FCE" --out "$out/ged" --seeds "${SEEDS:-3}" --keep none ${TUNING:-}
fi
[ -z "${ASR:-}" ] || $elektron score --model "$model" --tune "${ASR% *}" --rerank "${ASR#* }" --out "$out/asr.json"
