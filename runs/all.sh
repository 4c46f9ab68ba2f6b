#!/bin/sh
# All that docs/results.md tells of, on one GPU, what matters most first.
#
#   TEXT="wiki-a.txt wiki-b.txt books.txt" VOCAB=vocab.txt GLUE=glue SQUAD=squad FCE=fce BLIMP=blimp ASR="tune.json test.json" \
#       sh runs/all.sh [PART ...]
#
# The variables are those of the other scripts. PARTs are record, rates, against, paper, quirks, ladder, electric, own and trunk, in
# this order if none is named. The record run has the machine to itself, so that its minutes are its own; what it has become learns
# its tasks beside what is trained next. It is the first of ELECTRA's seeds against the masked LM, too. AGAINST has the seeds of that
# comparison and LADDER those of the ladder (0 1 2): with one seed each, several of these scripts may run side by side, and one trains
# while another learns tasks (under NVIDIA's MPS, where there is one: its processes share a GPU rather than take turns). SIDES are mlm
# and electra, or one of them. MASKED are flags for the masked LM alone, should it like another learning rate better. `electric` has
# the same FLOPs, `own` is the record run with a vocabulary of its text. All that is done is stored by runs/keep.py as of COMMIT, and
# the tables are made. Run again, it goes on where it stopped.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
export SEEDS="${SEEDS:-3}" DATA="${DATA:=data/speedrun}" COMMIT="${COMMIT:=$(git rev-parse --short HEAD)}"
aside=

keep() { # RUN RESULTS NAME WHAT [EYE]
    $python runs/keep.py "$1" "$2" "$3" "$COMMIT" "$4" "${5:-}"
}
beside() { # one thing at a time, while others are trained
    [ -z "$aside" ] || wait "$aside"
    "$@" &
    aside=$!
}
asked() { # KIND WHAT
    sh runs/tasks.sh "runs/speedrun-$1" "finetuned/speedrun-$1"
    sh runs/eye.sh "runs/speedrun-$1" "eye/speedrun-$1"
    keep "runs/speedrun-$1" "finetuned/speedrun-$1" "speedrun-$1" "$2" "eye/speedrun-$1"
    if [ "$1" = record ]; then keep runs/speedrun-record finetuned/speedrun-record against-electra-seed-0 "$2"; fi
}
trained() { # KIND WHAT CONFIG VOCAB DATA
    GLUE='' SQUAD='' VOCAB=$4 DATA=$5 RUN="runs/speedrun-$1" OUT="finetuned/speedrun-$1" sh runs/speedrun.sh "$3"
    beside asked "$1" "$2"
}
against() { # OBJECTIVE SEED FLAGS
    RUN=runs/against/$1-$2 SEED=$2 SEEDS=1 OBJECTIVES=$1 FLAGS="$3 ${FLAGS:-}" sh runs/against-mlm.sh
    if [ "$2" = 0 ]; then beside seen "$1"; else keep "runs/against/$1-$2" - against "$1 at equal FLOPs"; fi
}
seen() { # OBJECTIVE, of the first seed; a masked LM takes a pass for each token, too many for lists of hypotheses
    run=runs/against/$1-0/$1/seed-0
    [ "$1" != mlm ] || ASR=
    sh runs/eye.sh "$run" "$run/eye"
    keep "runs/against/$1-0" - against "$1 at equal FLOPs"
}

[ $# -gt 0 ] || set -- record rates against paper quirks ladder electric own trunk
for part; do
    case $part in
        record | rates | against | paper | quirks | ladder | electric | own | trunk) ;;
        *) echo "$part is no part: record, rates, against, paper, quirks, ladder, electric, own or trunk" >&2 && exit 2 ;;
    esac
done
for part; do
    case $part in
        record | paper) trained "$part" "the $part run" "$part" "${VOCAB:-}" "$DATA" ;;
        own) trained record-own "the record run, a vocabulary of its text" record train "$DATA-own" ;;
        electric) against electric 0 "--objective.generator two-tower" ;;
        against)
            for seed in ${AGAINST:-0 1 2}; do
                for side in ${SIDES:-mlm electra}; do
                    case $side-$seed in
                        mlm-*) against mlm "$seed" "${MASKED:-}" ;;
                        electra-0) ;; # the record run
                        *) against electra "$seed" "" ;;
                    esac
                done
            done ;;
        ladder)
            for seed in ${LADDER:-0 1 2}; do
                SEED=$seed SEEDS=1 RUN=runs/ladder/$seed sh runs/ladder.sh
                for run in runs/ladder/"$seed"/*; do keep "$run" - "ladder-${run##*/}" "${run##*/}"; done
            done ;;
        quirks | rates)
            RUN=runs/$part sh "runs/$part.sh"
            for run in runs/"$part"/*; do keep "$run" - "$part-${run##*/}" "${run##*/}"; done ;;
        trunk)
            RUN=runs/trunk OUT=finetuned/trunk sh runs/trunk.sh
            for run in runs/trunk/*; do keep "$run" "finetuned/trunk/${run##*/}" "speedrun-trunk-${run##*/}" "from a trunk"; done ;;
    esac
done
[ -z "$aside" ] || wait "$aside"
$python runs/tables.py
