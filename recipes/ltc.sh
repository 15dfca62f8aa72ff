#!/usr/bin/env bash
# LTC on ALFWorld (Monologue): instruction-tune, then explore and train in turns, then evaluate on unseen houses.
#
#   bash recipes/ltc.sh                                        built-in houses, the tiny agent, minutes on a laptop
#   SEED=1 OUT=runs/ltc-1 bash recipes/ltc.sh
#
# A stage whose output is there is skipped, so a stopped recipe goes on where it was.
# The paper's run: LLaMA-7B, LoRA r=16 alpha=16, 256 new environments an iteration, batch 32, lr 2e-4, 16 iterations of
# 128 tokens x 32 steps, instruction tuning on 2,048 successes of GPT-3 for 3 epochs. Ours is below.
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=${SEED:-0} OUT=${OUT:-runs/ltc} ITERATIONS=${ITERATIONS:-6} SHOW=${SHOW:-0}
world="--env alfworld --max-steps 20 --max-length 512"
start=$SECONDS
mkdir -p "$OUT"
run() { [ -e "$1" ] || "${@:2}" --out "$1"; }        # run OUTPUT COMMAND...: unless the output is there

# The teacher: the scripted expert, but in 85% of its episodes it opens nothing. Only its successes are learnt from.
run "$OUT/demos.jsonl" python explore.py --agent expert:0.85 $world --split train --limit "${DEMOS:-5000}" --seed "$SEED"
run "$OUT/0" python train.py --agent tiny --loss lm --data "$OUT/demos.jsonl" --epochs "${EPOCHS:-5}" --batch-size 8 --lr 3e-3 \
    --schedule cosine --lm-tokens all-positive --lm-system-weight 0.5 --seed "$SEED"

for i in $(seq "$ITERATIONS"); do
    run "$OUT/$i.jsonl" python explore.py --agent "$OUT/$((i - 1))" $world --split train --limit 256 --round "$i" --seed "$((1000 * (SEED + 1) + i))"
    run "$OUT/$i" python train.py --agent "$OUT/$((i - 1))" --loss ltc --data "$OUT/$i.jsonl" --batch-size 16 --lr 4e-4 \
        --lm-weight 0 --lambda 0.2 --normalise-advantages --seed "$SEED"
done

agents=("instruction tuned=$OUT/0" "LTC=$OUT/$ITERATIONS")
for i in $(seq 0 "$ITERATIONS"); do agents+=("LTC $i=$OUT/$i"); done
python evaluate.py --agent "${agents[@]}" $world --split valid_unseen --limit 201 --seed "$SEED" --plot "$OUT/curve.png" --show "$SHOW" \
    --summary "$OUT/summary.json" --recipe ltc --seconds "$((SECONDS - start))" --out "$OUT/eval" --overwrite
