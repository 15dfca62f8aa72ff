#!/usr/bin/env bash
# A3T: explore, compose trajectories for what failed (sampled actions, reasons by ActRe), train contrastively, and again.
#
#   bash recipes/a3t.sh                                        built-in houses, the tiny agent, the scripted annotator
#   ENV=webshop OUT=runs/a3t-shop bash recipes/a3t.sh          the built-in shop
#   ANNOTATOR=none OUT=runs/a3t-mute bash recipes/a3t.sh       control: sampled actions without reasons
#   FLAGS="--fail-reward 0" OUT=runs/a3t-sft bash recipes/a3t.sh                control: imitation of the successes only
#   FLAGS="--k-min 1" OUT=runs/a3t-k1 bash recipes/a3t.sh      contrast with a single success, too
#
# A stage whose output is there is skipped, so a recipe that was stopped goes on where it was.
# The paper's run: Mistral-7B-Instruct-v0.2, QLoRA r=16 alpha=32 on q_proj and v_proj; 10 epochs in round 0, 6 in rounds 1-3, the last
# three averaged; 600 training tasks of ALFWorld, 40 composed trajectories for each failed one; on WebShop 3, then on to the first
# success, at most 20. Every round starts from the base model. Here the base is the agent of round 0: a model from scratch has nothing
# else to start from.
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=${SEED:-0} ENV=${ENV:-alfworld} OUT=${OUT:-runs/a3t} ROUNDS=${ROUNDS:-3} ANNOTATOR=${ANNOTATOR:-expert} FLAGS=${FLAGS:-}
case $ENV in
    alfworld) world="--env alfworld --max-steps 20 --max-length 512" demos="--agent expert:0.9 --limit 6000"
              compose="--per-task 12 --p-sample 0.3" test="--split valid_unseen --limit 201" ;;
    webshop)  world="--env webshop --max-steps 15 --max-length 1200" demos="--agent expert --limit 1200"
              compose="--per-task 12 --until-success 3 --p-sample 0.3" test="--limit 200" ;;
esac
run() { [ -e "$1" ] || "${@:2}" --out "$1"; }        # run OUTPUT COMMAND...: unless the output is there
started=$SECONDS
mkdir -p "$OUT"

run "$OUT/demos.jsonl" python explore.py $demos $world --seed "$SEED"
run "$OUT/0" python train.py --agent tiny --width 96 --layers 2 --heads 6 --data "$OUT/demos.jsonl" --loss lm --epochs 4 --batch-size 8 \
    --lr 3e-3 --schedule cosine --lm-tokens all-positive --lm-system-weight 0.5 --max-length 1200 --seed "$SEED"
data=() agents=("round 0=$OUT/0")
for i in $(seq "$ROUNDS"); do
    before="$OUT/$((i - 1))"
    explored="--limit 256 --keep-invalid --round $i --seed $((SEED + 1))"                # the same training tasks in every round
    run "$OUT/$i.explored.jsonl" python explore.py --agent "$before" $world $explored
    run "$OUT/$i.composed.jsonl" python explore.py --agent "$before" $world $explored --pattern actre --annotator "$ANNOTATOR" $compose \
        --failed "$OUT/$i.explored.jsonl"
    data+=("$OUT/$i.explored.jsonl" "$OUT/$i.composed.jsonl")
    run "$OUT/$i" python train.py --agent "$OUT/0" --data "${data[@]}" --loss contrast --epochs 6 --average 3 --batch-size 16 --lr 4e-4 \
        --max-length 1200 $FLAGS --seed "$SEED"
    agents+=("round $i=$OUT/$i")
done
python evaluate.py --agent "${agents[@]}" $world $test --seed "$((SEED + 100))" --plot "$OUT/curve.png" --summary "$OUT/summary.json" \
    --recipe a3t --seconds "$((SECONDS - started))" --out "$OUT/eval" --overwrite
