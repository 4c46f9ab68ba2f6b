#!/bin/sh
# The paper's Table 5 in small, and generators of other widths than its electra's (0.25): three seeds of each, a quarter
# of the 6.25% row's tokens.
#
#   DATA=data/speedrun GLUE=glue sh runs/ladder.sh
#
# As runs/against-mlm.sh, but BUDGET is in tokens. WIDTHS are the generators'; where OBJECTIVES or WIDTHS are empty, theirs is
# left out.
set -eu
: "${DATA:?a prepared folder}" "${GLUE:?a folder}"
elektron=${ELEKTRON:-.venv/bin/elektron}
cd "$(dirname "$0")/.."

ladder() {
    run=$1
    shift
    # shellcheck disable=SC2046,SC2086  # several words each
    $elektron compare configs/speedrun-record.toml --data "$DATA" --run "${RUN:-runs/ladder}/$run" \
        --budget-tokens "${BUDGET:-256e6}" --seed "${SEED:-0}" --seeds "${SEEDS:-3}" --points 1 --task-seeds 3 \
        --tasks $(for task in ${TASKS:-cola sst mrpc sts rte}; do echo "$task=$GLUE"; done) ${FLAGS:-} "$@"
}

objectives=${OBJECTIVES-electra,all-tokens-mlm,replace-mlm,electra-15,mlm}
[ -z "$objectives" ] || ladder objectives --objectives "$objectives"
for width in ${WIDTHS-0.125 0.5 1}; do
    ladder "width-$width" --objectives electra --objective.generator-width "$width"
done
