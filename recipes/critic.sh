#!/usr/bin/env bash
# Weak supervision: an agent tries each instruction K times, a critic scores the trajectories, and the agent is tuned on the best.
#
#   bash recipes/critic.sh                                          built-in API-Bank, the tiny agent, three scripted critics
#   TOP=0.25 OUT=runs/critic-25 bash recipes/critic.sh              the best quarter
#   USED= OUT=runs/critic-again bash recipes/critic.sh              what was trained on may be chosen again
#   MIX= OUT=runs/critic-alone bash recipes/critic.sh               without general conversations
#   MODEL=01-ai/Yi-6B CRITICS="yi=https://HOST/v1#Yi-34B-Chat" DATA=DIR MIX=chat.jsonl bash recipes/critic.sh        the paper's run
#
# A stage whose output is there is skipped, so a recipe that was stopped goes on where it was.
# The paper's run: 220 instructions, 5 trajectories each of at most 5 rounds, the best 10% and as many conversations, 4 iterations,
# cosine 5e-5 to 5e-6 without warm-up.
# For the tiny agent the base is tuned on what a scripted player does, who is careless in most episodes, right or wrong.
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=${SEED:-0} OUT=${OUT:-runs/critic} ITERATIONS=${ITERATIONS:-4} TOP=${TOP:-0.1} USED=${USED-ledger} MIX=${MIX-recipes/chat.jsonl}
CRITICS=${CRITICS:-noisy=oracle:0.7/0.97 exact=oracle:1/1 random=oracle:0.36/1}
source recipes/stages.sh
mix=${MIX:+--mix $MIX}

if [ -n "${MODEL:-}" ]; then
    world="--env apibank --data ${DATA:?give DATA=DIR, the folder of the official dialogues} --max-steps 5 --max-tokens 128
           --max-length 4096"
    explored="--split train" base=$MODEL test=""
    learning="--lora-rank 16 --lora-alpha 16 --lr 5e-5 --lr-end 5e-6 --warm-up 0 --schedule cosine --epochs 3 --max-length 4096"
else
    world="--env apibank --max-steps 6 --max-length 300"
    explored="--limit 150" base="$OUT/base" test="--limit 200"
    run "$OUT/demos.jsonl" python explore.py --agent expert:0.75 --limit 3500 $world --seed "$SEED"
    run "$base" python train.py --agent tiny --width 96 --layers 2 --heads 6 --data "$OUT/demos.jsonl" ${mix:---mix recipes/chat.jsonl} \
        --loss lm --lm-tokens all --lm-system-weight 0.2 --lr 3e-3 --epochs 4 --batch-size 8 --schedule cosine --seed "$SEED"
    learning="--lr 1e-3 --lr-end 1e-4 --warm-up 0 --schedule cosine --epochs 4 --batch-size 16"
fi
agents=("base=$base")
for entry in $CRITICS; do
    name=${entry%%=*} before=$base data=()
    agents+=("$name=$OUT/$name-$ITERATIONS" "$name 0=$base")
    for i in $(seq "$ITERATIONS"); do
        # The first pool is the same for all critics: it is explored once.
        tried="$OUT/$([ "$i" = 1 ] && echo all || echo "$name")-$i.jsonl"
        run "$tried" python explore.py --agent "$before" $world $explored --per-task 5 --keep-invalid --round "$i" \
            --seed "$((SEED * 1000 + i))"
        run "$OUT/$name-$i.scored.jsonl" python explore.py --criticise "$tried" --critic "${entry#*=}" ${MODEL:+--max-length 4096} --seed "$SEED"
        data+=("$OUT/$name-$i.scored.jsonl")
        run "$OUT/$name-$i" python train.py --agent "$before" --data "${data[@]}" --loss lm --top "$TOP" \
            ${USED:+--used "$OUT/$name-used.jsonl"} $mix $learning --seed "$SEED"
        before="$OUT/$name-$i"
        agents+=("$name $i=$before")
    done
    python recipes/critic_report.py confusion "${data[@]}"
done
finish critic "$((SECONDS - started))" --agent "${agents[@]}" $world $test --seed "$((SEED + 100))"
curve
[ -n "${MODEL:-}" ] || python recipes/critic_report.py chat recipes/chat.jsonl --agent $(printf '%s\n' "${agents[@]}" | grep -v ' ')
