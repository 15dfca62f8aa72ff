#!/usr/bin/env bash
# LTC on ALFWorld (Monologue): instruction-tune, then explore and train in turns, then evaluate on unseen houses.
#
#   bash recipes/ltc.sh                                        built-in houses and the tiny agent: under 10 minutes
#   SEED=1 OUT=runs/ltc-1 bash recipes/ltc.sh
#   ITERATIONS=3 ABLATION=1 bash recipes/ltc.sh                longer, and the other arms of LTC's Figure 5
#
# A stage whose output is there is skipped, so a recipe that was stopped goes on where it was.
# The paper's run: LLaMA-7B, LoRA r=16 alpha=16; instruction tuning on 2,048 successes of GPT-3, 3 epochs; then 16 iterations of
# 256 new environments, batch 32, lr 2e-4, replies of 128 tokens, 32 steps.
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=${SEED:-0} OUT=${OUT:-runs/ltc} ITERATIONS=${ITERATIONS:-2} SHOW=${SHOW:-0}
world="--env alfworld --max-steps 20 --max-length 512"
tuning="--loss lm --batch-size 8 --lr 3e-3 --schedule cosine --lm-tokens all-positive --lm-system-weight 0.5"
learning="--loss ltc --epochs 2 --batch-size 16 --lr 6e-4 --schedule cosine --value-lr 1e-2 --normalise-advantages"
source recipes/stages.sh

# The teacher is the scripted expert, but in 90% of its episodes it never opens anything. Only its successes teach.
run "$OUT/demos.jsonl" python explore.py --agent expert:0.9 --env alfworld --max-steps 20 --limit 8000 --seed "$SEED"
run "$OUT/tuned" python train.py --agent tiny --width 96 --layers 2 --heads 6 --data "$OUT/demos.jsonl" --epochs 4 $tuning --seed "$SEED"

iterate() {                                          # iterate NAME FLAGS...: LTC's loop (Algorithm 4), one arm
    local name=$1 before="$OUT/tuned"; shift
    for i in $(seq "$ITERATIONS"); do
        run "$OUT/$name-$i.jsonl" python explore.py --agent "$before" $world --limit 512 --round "$i" --seed "$((SEED * 1000 + i + 1))"
        run "$OUT/$name-$i" python train.py --agent "$before" --data "$OUT/$name-$i.jsonl" $learning "$@" --seed "$SEED"
        before="$OUT/$name-$i"
        agents+=("$name $i=$before")
    done
}

agents=("instruction tuned=$OUT/tuned" "LTC=$OUT/LTC-$ITERATIONS" "LTC 0=$OUT/tuned")
iterate LTC
seconds=$((SECONDS - started))
if [ -n "${ABLATION:-}" ]; then
    agents+=("LM loss only=$OUT/lm-$ITERATIONS" "lm 0=$OUT/tuned")
    iterate lm --beta 0                              # communication data, but only successes are imitated
    # The fair rival: about the wall-clock of the iterations spent on instruction tuning, with twice the demonstrations.
    run "$OUT/more.jsonl" python explore.py --agent expert:0.9 --env alfworld --max-steps 20 --limit 8000 --seed "$((SEED + 500))"
    run "$OUT/more" python train.py --agent "$OUT/tuned" --data "$OUT/demos.jsonl" "$OUT/more.jsonl" --epochs 2 $tuning --seed "$SEED"
    agents+=("more instruction tuning=$OUT/more")
fi
finish ltc "$seconds" --agent "${agents[@]}" $world --split valid_unseen --limit 201 --seed "$((SEED + 100))" --show "$SHOW"
curve
