#!/bin/sh
# Which learning rate each side of runs/against-mlm.sh would choose: half, once and twice that of the record run, an eighth
# as long, one seed each.
#
#   DATA=data/speedrun GLUE=glue sh runs/rates.sh
#
# As runs/against-mlm.sh; RATES are the learning rates.
set -eu
cd "$(dirname "$0")/.."

for rate in ${RATES:-1e-3 2e-3 4e-3}; do
    BUDGET=${BUDGET:-8.82e15} SEEDS=1 RUN="${RUN:-runs/rates}/$rate" \
        FLAGS="--schedule.learning-rate $rate ${FLAGS:-}" sh runs/against-mlm.sh
done
