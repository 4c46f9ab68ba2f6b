#!/bin/sh
# What a pre-trained model sees by itself: BLiMP's pairs, the errors that FCE's annotators marked, calibration, and
# LibriSpeech's hypotheses in a better order; then FCE learned.
#
#   BLIMP=blimp FCE=fce ASR="tune.json test.json" sh runs/eye.sh MODEL OUT
#
# MODEL is a run or a Hugging Face folder, of electra or of electric. FCE has train.txt and dev.txt, a word a line, c or i
# behind it: the calibration that fits the first is saved with the model, and what was found to be the better lead goes
# before BLiMP's sentences too. BLIMP has a file a phenomenon; ASR are two files of hypotheses with their scores and
# references (runs/halves.py). What is not named is left out.
set -eu
model=$1 out=$2
elektron=${ELEKTRON:-.venv/bin/elektron}
mkdir -p "$out"

if [ -n "${FCE:-}" ]; then
    $elektron calibrate "$model" --dev "$FCE/train.txt" --test "$FCE/dev.txt" --out "$out/fce.json"
    # shellcheck disable=SC2086  # several words
    $elektron finetune ged --model "$model" --data "$FCE" --out "$out/ged" --seeds "${SEEDS:-3}" --keep none ${TUNING:-}
fi
if [ -n "${BLIMP:-}" ]; then
    $elektron score --model "$model" --pairs "$BLIMP" --lead= --out "$out/blimp-plain.json"
    $elektron score --model "$model" --pairs "$BLIMP" --out "$out/blimp.json"
fi
[ -z "${ASR:-}" ] || $elektron score --model "$model" --tune "${ASR% *}" --rerank "${ASR#* }" --out "$out/asr.json"
