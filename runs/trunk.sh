#!/bin/sh
# Larger budgets: as many tokens as the paper's 6.25%, 12.5% and 25% rows, from one trunk whose learning rate stays at its
# peak until each of them leaves it; else by the settings of the record run.
#
#   DATA=data/speedrun GLUE=glue sh runs/trunk.sh
#
# DATA is what runs/speedrun.sh has prepared. STEPS has the lengths, the longest last, all multiples of the first: each of the
# others leaves the trunk after four fifths of its own. ROWS are their length and number in a step. FLAGS are given to
# `elektron pretrain`; what is learned in the end is in runs/tasks.sh. Run again, it goes on where it stopped.
set -eu
: "${DATA:?a prepared folder}"
elektron=${ELEKTRON:-.venv/bin/elektron}
cd "$(dirname "$0")/.."
RUN=${RUN:-runs/trunk}
STEPS=${STEPS:-31250 62500 125000}
longest=${STEPS##* } first=${STEPS%% *}
rows=${ROWS:-128 256}
every=$((first * 4 / 5)) # where the trunk is left

for steps in $STEPS; do
    [ $((steps % first)) = 0 ] && [ "$steps" -le "$longest" ] && [ $((first % 5)) = 0 ] && continue
    echo "STEPS=\"$STEPS\": $steps is no multiple of $first, or $first none of 5, or the longest is not the last" >&2
    exit 2
done

# shellcheck disable=SC2086  # several words each
for steps in $longest ${STEPS% *}; do
    [ "$steps" = "$longest" ] || set -- --branch "$(printf '%s/%s/checkpoints/step-%08d' "$RUN" "$longest" $((steps * 4 / 5)))"
    $elektron pretrain configs/speedrun-record.toml --data "$DATA" --run "$RUN/$steps" --schedule.kind wsd \
        --train.phases "$steps" $rows --watch.checkpoint-every $every --watch.keep-checkpoints 9 ${FLAGS:-} "$@"
done
for steps in $STEPS; do
    sh runs/tasks.sh "$RUN/$steps" "${OUT:-finetuned/trunk}/$steps"
done
