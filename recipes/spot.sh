#!/bin/bash
# Pre-training on machines that may be taken away (spot, preemptible). On each of them, at boot:
#
#     recipes/spot.sh configs/base.toml --train.accumulate 1 --run /shared/runs/base --data /shared/data
#
# SIGTERM means that this machine is to go: it is passed on once, the ranks save, and this script ends with 143. Whoever
# starts the next machine starts this script on it, and the run goes on.
# Ranks that end with 75 (--watch.deadline is over) or 143 (a rank elsewhere was told to go) are started again here.
# torchrun itself starts them again when one dies without a word, three times. Anything else is an error, and the end.
#
# TORCHRUN  its options: '--standalone --nproc-per-node gpu' if not given. On several machines for example
#           '--nnodes 1:4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 --rdzv-id base'
# GRACE     seconds to save in (110: AWS gives two minutes; say 25 where there are 30 seconds, as on GCP and Azure)
#
# As a systemd service give it KillMode=mixed, so that the ranks are told by torchrun alone. AWS and Azure announce the end
# at an HTTP address and send no signal: have a watcher `kill -TERM` this script.

set -u

read -ra options <<<"${TORCHRUN:---standalone --nproc-per-node gpu}"
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${GRACE:-110}
RANKS=$(mktemp -d) || exit
export RANKS
trap 'rm -rf "$RANKS"' EXIT

# torchrun ends with 1 however its ranks end: the first of them to end leaves its code in a file, one for each start.
# shellcheck disable=SC2016
rank='trap : TERM INT; "$@"; code=$?
    (set -C; echo "$code" >"$RANKS/$TORCHELASTIC_RESTART_COUNT") 2>/dev/null; exit "$code"'

told='' passed='' ranks=''
tell() {
    told=1
    [ -z "$ranks" ] || [ "$passed" ] || { passed=1; kill -TERM "$ranks"; }
}
trap tell TERM

until [ "$told" ]; do
    rm -f "$RANKS"/*
    torchrun "${options[@]}" --max-restarts 3 --no-python -- bash -c "$rank" rank python -m elektron pretrain "$@" &
    ranks=$!
    [ -z "$told" ] || tell
    while wait "$ranks"; code=$?; kill -0 "$ranks" 2>/dev/null; do :; done  # a signal ends the waiting, not the ranks
    ranks=
    [ "$code" != 0 ] || exit 0
    [ -z "$told" ] || break
    for file in "$RANKS"/*; do [ -e "$file" ] && code=$(<"$file"); done
    case $code in
    75 | 143) echo "the ranks ended with $code: starting them again" >&2 ;;
    *) echo "the ranks ended with $code, which no waiting mends: giving up" >&2; exit "$code" ;;
    esac
done
exit 143
