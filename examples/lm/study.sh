#!/bin/sh
# Train the GPT under several strategies and compare them in a report:
#
#     examples/lm/study.sh [RANKS] [arguments of parallel.py]        for example: examples/lm/study.sh 4 --epochs 3
#
# sync divides batches among the ranks, the others give each rank whole batches. Runs are recorded in runs/lm.
set -e
ranks=${1:-4}
[ $# -eq 0 ] || shift
program=$(dirname "$0")/parallel.py
runs=runs/lm

paceline run -n 1 --strategy serial --runs "$runs" "$program" "$@"
for strategy in sync local-sgd:every=16 elastic gossip; do
    paceline run -n "$ranks" --strategy "$strategy" --runs "$runs" "$program" "$@"
done
paceline report "$runs" -o "$runs/report.html"
