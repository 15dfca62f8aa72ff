#!/usr/bin/env bash
# MAAC and IAC: two agents with critics, one answer a turn; IAC's critics are the agents' own value heads, MAAC's reads all prompts.
#
#   bash recipes/maac.sh                                               the length game, two tiny agents and a central critic
#   LOSS=iac OUT=runs/iac bash recipes/maac.sh                         a critic an agent: its own head on its own backbone
#   CRITICS=each OUT=runs/maac-each bash recipes/maac.sh               a critic an agent, a model of its own (IAC with separate critics)
#   LOSS=magrpo GENERATIONS=4 TASKS=... OUT=runs/magrpo-length         see recipes/magrpo.sh, for the same number of environment steps
#
# A stage whose output is there is skipped, so a recipe that was stopped goes on where it was; arms of one seed may share the tuned
# pair: copy demos.jsonl and the folder it into the new OUT.
# CoMLRL's settings: one answer a turn, discount 0.9 (or 1), buffer 8, value loss 0.6, value clip 0.2. The tiny pair is first tuned on
# a scripted player's answers, who writes summaries of any length.
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=${SEED:-0} ENV=${ENV:-summaries} OUT=${OUT:-runs/maac} ROUNDS=${ROUNDS:-8} TASKS=${TASKS:-640} LOSS=${LOSS:-maac}
world="--env $ENV --external ${EXTERNAL:-level_feedback} --turns 2 --max-length 400"
learning="--loss $LOSS --gamma ${GAMMA:-0.9} --rollout-buffer-size ${BUFFER:-64} --lr ${LR:-5e-5} --value-lr ${VALUE_LR:-1e-3} --max-length 800"
source recipes/stages.sh

run "$OUT/demos.jsonl" python explore.py --agent expert,expert $world --generations 1 --limit 3000 --seed "$SEED"
run "$OUT/it" python train.py --agent tiny --data "$OUT/demos.jsonl" --loss lm --width 96 --layers 2 --heads 6 --lr 3e-3 --epochs 2 \
    --batch-size 16 --schedule cosine --lm-tokens all --lm-system-weight 0.3 --max-length 400 --seed "$SEED"
base=$OUT/it before=$base,$base agents=("${LOSS^^} 0=$base,$base")
case "$LOSS ${CRITICS:-one}" in
    iac*) critics= players="0 1" ;;
    maac\ one) critics=$base players="0 1 2" ;;
    maac\ each) critics=$base,$base players="0 1 2 3" ;;
    *) echo "error: LOSS=$LOSS CRITICS=${CRITICS:-}: choose maac or iac, and one or each" >&2; exit 2 ;;
esac
for i in $(seq "$ROUNDS"); do
    run "$OUT/$i.jsonl" python explore.py --agent "$before" $world --generations 1 ${critics:+--critics "$critics"} --limit "$TASKS" \
        --round "$i" --seed "$((1000 * SEED + i))"
    all=$before${critics:+,$critics}
    for player in $players; do                            # what one learns is no business of the others: at once
        run "$OUT/$i/$player" python train.py --agent "$(cut -d, -f$((player + 1)) <<< "$all")" --data "$OUT/$i.jsonl" $learning \
            --player "$player" --seed "$SEED" &
    done
    wait
    before=$OUT/$i/0,$OUT/$i/1
    agents+=("${LOSS^^} $i=$before")
    case "$LOSS ${CRITICS:-one}" in maac\ one) critics=$OUT/$i/2 ;; maac\ each) critics=$OUT/$i/2,$OUT/$i/3 ;; esac
done
finish "$LOSS" "$((SECONDS - started))" --agent "${agents[@]}" $world --limit 200 --seed "$((SEED + 100))"
turns
