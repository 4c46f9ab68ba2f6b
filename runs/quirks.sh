#!/bin/sh
# Which of the original's settings keeps its generator on the plateau of word frequencies: the paper run without one of
# them at a time, a quarter as long.
#
#   DATA=data/speedrun sh runs/quirks.sh
#
# DATA is what runs/speedrun.sh has prepared. WITHOUT names some of them, as below. FLAGS are given to `elektron pretrain`.
# Run again, it goes on where it stopped.
set -eu
: "${DATA:?a prepared folder}"
elektron=${ELEKTRON:-.venv/bin/elektron}
cd "$(dirname "$0")/.."

for name in ${WITHOUT:-nothing shown dropout epsilon repeats correction product}; do
    case $name in
        nothing) flags= ;;
        shown) flags="--objective.keep-rate 0" ;;
        dropout) flags="--model.dropout 0 --model.attention-dropout 0" ;;
        epsilon) flags="--optimizer.epsilon 1e-12" ;;
        repeats) flags="--objective.draws without-replacement" ;;
        correction) flags="--optimizer.bias-correction" ;;
        product) flags="--schedule.kind linear" ;;
        *) echo "$name is none of the paper's settings" >&2 && exit 2 ;;
    esac
    # shellcheck disable=SC2086  # several words each
    $elektron pretrain configs/speedrun-paper.toml --data "$DATA" --run "${RUN:-runs/quirks}/without-$name" \
        --train.phases 15625 128 128 --schedule.warmup-steps 2500 --watch.evaluate-every 5000 $flags ${FLAGS:-}
done
