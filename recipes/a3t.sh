#!/usr/bin/env bash
# A3T: explore, compose trajectories for what failed (sampled actions, reasons by ActRe), train contrastively, and again.
#
#   bash recipes/a3t.sh                                        built-in houses, the tiny agent, the scripted annotator
#   ENV=webshop OUT=runs/a3t-shop bash recipes/a3t.sh          the built-in shops
#   ANNOTATOR=none OUT=runs/a3t-mute bash recipes/a3t.sh       control: sampled actions without reasons
#   FLAGS="--fail-reward 0" OUT=runs/a3t-sft bash recipes/a3t.sh                control: imitation of the successes only
#   FLAGS="--k-min 1 --neg-floor=-inf" OUT=runs/a3t-k1 bash recipes/a3t.sh      contrast with a single success, too, and no floor
#   FLAGS="--success-at 0.5" ENV=webshop OUT=runs/a3t-half bash recipes/a3t.sh  half a success counts as one
#   MODEL=mistralai/Mistral-7B-Instruct-v0.2 ANNOTATOR=https://HOST/v1#MODEL DATA=DIR bash recipes/a3t.sh        the paper's run
#
# A stage whose output is there is skipped, so a recipe that was stopped goes on where it was; arms of one seed may
# share round 0: copy demos.jsonl and the folder 0 into the new OUT.
# The paper's run: QLoRA r=16 alpha=32 on q_proj and v_proj; 10 epochs in round 0, 6 in rounds 1-3, the last three averaged; 600
# training tasks of ALFWorld, 40 composed trajectories for each failed one with p = 0.5; on WebShop 3, then on to the first success,
# at most 20. Every round starts from the base model. For the tiny agent that is the agent of round 0: from nothing it could not
# speak. With p = 0.5 its composed trajectories hardly ever succeed, and without a floor what is pushed away runs off, and takes the
# successes with it.
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=${SEED:-0} ENV=${ENV:-alfworld} OUT=${OUT:-runs/a3t} ROUNDS=${ROUNDS:-3} ANNOTATOR=${ANNOTATOR:-expert} FLAGS=${FLAGS:-} explore=

case $ENV in
    alfworld) world="--env alfworld --max-steps 20 --max-length 512" demos="expert:0.9" demonstrations=8000 batch=8
              imitated="--success-at 1 --lm-tokens all-positive --lm-system-weight 0.5"
              tasks=160 compose="--per-task 4 --p-sample 0.1" test="--split valid_unseen --limit 201" ;;
    webshop)  world="--env webshop --max-steps 10 --max-length 600" demos="expert:0.85" demonstrations=3000 batch=4
              imitated="--lm-tokens all --lm-system-weight 0.1"
              tasks=160 compose="--per-task 6 --p-sample 0.2" test="--limit 200" explore="--temperature 0.7" ;;
    *) echo "error: ENV=$ENV: choose alfworld or webshop" >&2; exit 2 ;;
esac
lora="--lora-rank 16 --lora-alpha 32 --lora-target q_proj v_proj"
if [ -n "${MODEL:-}" ]; then
    world="--env $ENV --data ${DATA:?give DATA=DIR, the folder of the official files} --max-tokens 128 --max-length 4096"
    demos=$MODEL demonstrations=600 explore= scratch=$MODEL base=$MODEL tasks=600 test="" data=("$OUT/demos.jsonl") first=$((SEED + 1))
    start="$lora --success-at 1 --lr 1e-4 --epochs 10 --average 3 --max-length 4096"
    learning="$lora --lr 1e-4 --epochs 6 --average 3 --max-length 4096"
    [ "$ENV $ANNOTATOR" != "webshop expert" ] || { echo "error: ANNOTATOR: the scripted one knows built-in shops only; name another" >&2
                                                   exit 2; }
    case $ENV in alfworld) compose="--per-task 40" ;; webshop) compose="--per-task 20 --until-success 3" world+=" --max-steps 15" ;; esac
else
    scratch=tiny base=$OUT/0 data=() first=$SEED
    start="--width 96 --layers 2 --heads 6 --lr 3e-3 --epochs 4 --batch-size $batch --schedule cosine $imitated"
    learning="$lora --lora-dropout 0 --lr 4e-3 --epochs 6 --average 3 --batch-size 16 --neg-floor -0.5"
fi
source recipes/stages.sh

# Round 0: a model is prompted on the training tasks (the paper: with one example; here with the instruction alone), or, for the tiny
# agent, a scripted player plays, who is careless in most of its episodes. Its successes are imitated; in the shop, where those would
# teach it all at once, everything is.
run "$OUT/demos.jsonl" python explore.py --agent "$demos" $world --limit "$demonstrations" --seed "$first"
run "$OUT/0" python train.py --agent "$scratch" --data "$OUT/demos.jsonl" --loss lm $start --seed "$SEED"
agents=("round 0=$OUT/0")
for i in $(seq "$ROUNDS"); do
    before="$OUT/$((i - 1))"
    explored="--limit $tasks --keep-invalid --round $i --seed $((SEED + 1)) $explore"    # the same training tasks in every round
    run "$OUT/$i.explored.jsonl" python explore.py --agent "$before" $world $explored
    data+=("$OUT/$i.explored.jsonl")
    if grep -q '"success": false' "$OUT/$i.explored.jsonl"; then
        run "$OUT/$i.composed.jsonl" python explore.py --agent "$before" $world $explored --failed "$OUT/$i.explored.jsonl" $compose \
            --pattern actre --annotator "$ANNOTATOR"
        data+=("$OUT/$i.composed.jsonl")
    fi
    run "$OUT/$i" python train.py --agent "$base" --data "${data[@]}" --loss contrast $learning $FLAGS --seed "$SEED"
    agents+=("round $i=$OUT/$i")
done
finish a3t "$((SECONDS - started))" --agent "${agents[@]}" $world $test --seed "$((SEED + 100))"
curve
