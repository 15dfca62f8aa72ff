#!/usr/bin/env bash
# LTC on the official ALFWorld games: the recipe of ltc.sh on json_2.1.1/train, evaluated on valid_seen. Well under an hour on two
# cores with the tiny agent. (Measured with --keep-invalid, so it stands here.)
#
#   DATA=DIR bash recipes/ltc_official.sh          DIR holds json_2.1.1
#
# Demonstrations come from our scripted expert, who plays every kind of task well (success on valid_seen near 100%).
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=${SEED:-0} OUT=${OUT:-runs/ltc_official} ITERATIONS=${ITERATIONS:-6}
DATA=${DATA:?give DATA=DIR, the folder that holds json_2.1.1}
world="--env alfworld --data $DATA --max-length 1024"
source recipes/stages.sh

run "$OUT/demos.jsonl" python explore.py --agent expert $world --max-steps 50 --seed "$SEED"
run "$OUT/tuned" python train.py --agent tiny --width 128 --layers 2 --heads 8 --loss lm --data "$OUT/demos.jsonl" --epochs 6 \
    --batch-size 8 --lr 2e-3 --schedule cosine --lm-tokens all-positive --lm-system-weight 0.5 --seed "$SEED"
before="$OUT/tuned"
for i in $(seq "$ITERATIONS"); do
    run "$OUT/LTC-$i.jsonl" python explore.py --agent "$before" $world --limit 256 --max-steps 30 --keep-invalid --round "$i" --seed "$((SEED * 1000 + i))"
    run "$OUT/LTC-$i" python train.py --agent "$before" --data "$OUT/LTC-$i.jsonl" --loss ltc --batch-size 16 --lr 1e-4 \
        --value-lr 1e-2 --normalise-advantages --seed "$SEED"
    before="$OUT/LTC-$i"
done
finish ltc_official "$((SECONDS - started))" --agent "instruction tuned=$OUT/tuned" "LTC=$before" $world --max-steps 50 \
    --split valid_seen --seed "$SEED"
