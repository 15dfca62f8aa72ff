#!/usr/bin/env bash
# MAGRPO: two agents answer, turn by turn; the tree of what could have been said is what each answer is compared with.
#
#   bash recipes/magrpo.sh                                             built-in code tasks, two tiny agents, two turns
#   JOINT_MODE=cross OUT=runs/magrpo-cross bash recipes/magrpo.sh      all combinations of the answers at a node, not only equal numbers
#   BASELINE=rloo RAW=1 OUT=runs/marloo bash recipes/magrpo.sh         MARLOO (max: MAReMax; raw: MAREINFORCE), not normalised
#   ENV=summaries OUT=runs/magrpo-length bash recipes/magrpo.sh        the length game
#   MODEL=Qwen/Qwen2.5-Coder-3B DATA=HumanEval.jsonl bash recipes/magrpo.sh        as CoMLRL's runs
#
# A stage whose output is there is skipped, so a recipe that was stopped goes on where it was; arms of one seed may share the tuned
# pair: copy demos.jsonl and the folder it into the new OUT.
# CoMLRL's settings: 2 agents, 2 turns, G = 4, lr 5e-6, temperature 0.6. The tiny pair is first tuned on a scripted player's answers,
# who does not think of who does which step: what is to be learnt is an agreement.
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=${SEED:-0} ENV=${ENV:-coding} OUT=${OUT:-runs/magrpo} ROUNDS=${ROUNDS:-8} TASKS=${TASKS:-128} JOINT_MODE=${JOINT_MODE:-aligned}
GENERATIONS=${GENERATIONS:-4} BASELINE=${BASELINE:-mean} RAW=${RAW:-}
world="--env $ENV --external ${EXTERNAL:-level_feedback} --turns 2"
learning="--loss magrpo --rollout-buffer-size ${BUFFER:-64} --baseline $BASELINE ${RAW:+--no-normalise-advantages}"
if [ -n "${MODEL:-}" ]; then
    world+=" --data ${DATA:?give DATA=FILE, the official problems} --max-tokens 256 --max-length 2048 --split test" temperature=0.6
    learning+=" --lora-rank 16 --lora-alpha 32 --lr 5e-6 --max-length 2048" base=$MODEL
else
    world+=" --max-length 400" temperature=1 base=$OUT/it
    learning+=" --lr ${LR:-1e-4} --max-length 400"
fi
source recipes/stages.sh

if [ -z "${MODEL:-}" ]; then
    run "$OUT/demos.jsonl" python explore.py --agent expert,expert $world --generations 1 --limit 3000 --seed "$SEED"
    run "$OUT/it" python train.py --agent tiny --data "$OUT/demos.jsonl" --loss lm --width 96 --layers 2 --heads 6 --lr 3e-3 --epochs 2 \
        --batch-size 16 --schedule cosine --lm-tokens all --lm-system-weight 0.3 --max-length 400 --seed "$SEED"
fi
before=$base,$base agents=("MAGRPO 0=$base,$base")
for i in $(seq "$ROUNDS"); do
    run "$OUT/$i.jsonl" python explore.py --agent "$before" $world --generations "$GENERATIONS" --joint-mode "$JOINT_MODE" \
        --temperature $temperature --limit "$TASKS" --round "$i" --seed "$((1000 * SEED + i))"
    for player in 0 1; do                                 # what one learns is no business of the other's: both at once
        run "$OUT/$i/$player" python train.py --agent "$(cut -d, -f$((player + 1)) <<< "$before")" --data "$OUT/$i.jsonl" $learning \
            --player $player --seed "$SEED" &
    done
    wait
    before=$OUT/$i/0,$OUT/$i/1
    agents+=("MAGRPO $i=$before")
done
finish magrpo "$((SECONDS - started))" --agent "${agents[@]}" $world --limit 200 --seed "$((SEED + 100))"
turns
