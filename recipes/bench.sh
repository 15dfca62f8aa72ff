#!/usr/bin/env bash
# Speed, as ratios against a named alternative in the same run.
#
#   AGENT=runs/demo/LTC-2 DATA=DIR OFFICIAL=path/to/python-with-alfworld bash recipes/bench.sh
#
# AGENT: a checkpoint (make demo writes some). DATA: the folder that holds ALFWorld's json_2.1.1; without it the engines are not
# compared. OFFICIAL: a Python in which `pip install alfworld==0.4.2` was done; without it only our engine is timed.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -n "${DATA:-}" ]; then
    python recipes/bench_alfworld.py --data "$DATA" ${OFFICIAL:+--official "$OFFICIAL"} --games "${GAMES:-12}"
fi
python recipes/bench_explore.py --agent "${AGENT:-runs/demo/LTC-2}" --max-steps 20 --max-length 512 --repeats "${REPEATS:-3}"
