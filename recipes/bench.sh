#!/usr/bin/env bash
# Speed and memory, as ratios against named alternatives in the same run.
#
#   bash recipes/bench.sh                               the tiny agent (a minute of tuning first)
#   GGUF=MODEL.gguf TRL=path/to/python-with-trl DATA=DIR OFFICIAL=path/to/python-with-alfworld bash recipes/bench.sh      all
#
# GGUF: SmolLM2-135M-Instruct (recipes/smollm2.sh says where from); without it only the tiny agent is measured. TRL: a Python in
# which `pip install trl==1.16.0` was done; without it training has no outside peer. DATA: the folder that holds ALFWorld's
# json_2.1.1; without it the engines are not compared. OFFICIAL: a Python in which `pip install alfworld==0.4.2` was done; without
# it only our engine is timed. REPEATS=3, GAMES=12, THREADS=1 (for SmolLM2: 2).
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=${SEED:-1} OUT=${OUT:-runs/bench} REPEATS=${REPEATS:-3}
source recipes/stages.sh

run "$OUT/demos.jsonl" python explore.py --agent expert:0.9 --env alfworld --max-steps 20 --limit 2000 --seed "$SEED"
run "$OUT/tuned" python train.py --agent tiny --width 96 --layers 2 --heads 6 --data "$OUT/demos.jsonl" --epochs 3 --loss lm \
    --batch-size 8 --lr 3e-3 --schedule cosine --lm-tokens all-positive --lm-system-weight 0.5 --seed "$SEED"
echo "exploration, tiny agent, 64 episodes of 20 steps"
python recipes/bench_explore.py --agent "$OUT/tuned" --max-steps 20 --max-length 512 --repeats "$REPEATS"
echo "training, tiny agent, all its weights, batches of 32"
python recipes/bench_train.py --agent "$OUT/tuned" --data "$OUT/demos.jsonl" --repeats "$REPEATS" ${TRL:+--trl "$TRL"}
if [ -n "${GGUF:-}" ]; then
    [ -e "$OUT/smollm2/state.json" ] || python -c "
import sys, agent
agent.save(*agent.load(sys.argv[1]), sys.argv[2], {})" "$GGUF" "$OUT/smollm2"
    echo "exploration, SmolLM2-135M in bfloat16, 16 episodes of 4 steps"
    python recipes/bench_explore.py --agent "$OUT/smollm2" --dtype bfloat16 --episodes 16 --slots 16 --single 2 --max-steps 4 \
        --max-tokens 24 --max-length 2048 --keep-invalid --threads "${THREADS:-2}" --repeats "$REPEATS"
    echo "training, SmolLM2-135M in float32, LoRA on q and v, batches of 8"
    python recipes/bench_train.py --agent "$OUT/smollm2" --data "$OUT/demos.jsonl" --lora --updates 1 --batch-size 8 --micro-batch 2 \
        --threads "${THREADS:-2}" --repeats "$REPEATS" ${TRL:+--trl "$TRL"}
fi
if [ -n "${DATA:-}" ]; then
    python recipes/bench_alfworld.py --data "$DATA" ${OFFICIAL:+--official "$OFFICIAL"} --games "${GAMES:-12}"
fi
