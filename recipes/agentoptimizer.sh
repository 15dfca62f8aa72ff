#!/usr/bin/env bash
# AgentOptimizer: an agent's functions are trained, its weights are not; with the ablations of the paper.
#
#   bash recipes/agentoptimizer.sh                                     built-in problems, the scripted solver and proposer
#   AGENT=http://HOST/v1#MODEL PROPOSER=http://HOST/v1#MODEL DATA=MATH bash recipes/agentoptimizer.sh              the paper's run
#
# A stage whose output is there is skipped or goes on, so a recipe that was stopped goes on where it was.
# The paper's run: 20 training and 80 test problems of a type, 10 epochs, 3 actions a step; GPT-4 solves and proposes. The scripted
# proposer's actions are useful, useless, harmful or malformed with the weights in its name.
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=${SEED:-0} OUT=${OUT:-runs/agentoptimizer} EPOCHS=${EPOCHS:-10} AGENT=${AGENT:-expert}
PROPOSER=${PROPOSER:-scripted:0.4/0.2/0.3/0.1}
world="--env mathqa --max-steps 6 ${DATA:+--data $DATA --max-tokens 512}" train=${TRAIN:-100} test=${TEST:-400}
source recipes/stages.sh

optimise() {                                         # optimise NAME ARGUMENTS...
    [ -e "$OUT/$1/finished" ] || python optimize.py --agent "$AGENT" --proposer "$PROPOSER" $world --limit "$train" --epochs "$EPOCHS" \
        --seed "$SEED" --out "$OUT/$1" "${@:2}"
}
optimise full
optimise one-shot --one-shot
optimise no-rollback --no-rollback
agents=("no training=$AGENT") functions=(none)
for arm in one-shot no-rollback full; do
    agents+=("$arm=$AGENT") functions+=("$OUT/$arm/functions.json")
done
for epoch in $(seq 0 "$EPOCHS"); do                  # what the full run had kept by then
    [ -e "$OUT/full/$epoch.best.json" ] || break
    agents+=("full $epoch=$AGENT") functions+=("$OUT/full/$epoch.best.json")
done
finish agentoptimizer "$((SECONDS - started))" --agent "${agents[@]}" --functions "${functions[@]}" $world --limit "$test" --seed "$((SEED + 100))"
python recipes/plot.py optimizer "$OUT" --out "$OUT/curve.png"
