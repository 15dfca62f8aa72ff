#!/usr/bin/env bash
# LTC on HotpotQA (Dialogue): instruction-tune, then explore with a teacher that thinks and train in turns; no teacher at the test.
#
#   bash recipes/ltc_hotpotqa.sh                               built-in worlds, the tiny agent and the scripted teacher
#   TEACHER=expert:0.4 OUT=runs/hotpot-40 bash recipes/ltc_hotpotqa.sh            a teacher that is careless in 40% of its episodes
#   FLAGS="--policy-tokens own" LM=own OUT=runs/hotpot-own bash recipes/ltc_hotpotqa.sh  the teacher's tokens out of the loss
#   MODEL=huggyllama/llama-7b TEACHER=https://HOST/v1#MODEL DATA=DIR bash recipes/ltc_hotpotqa.sh         the paper's run
#
# A stage whose output is there is skipped, so a recipe that was stopped goes on where it was.
# The paper's run: LLaMA-7B, LoRA r=16 alpha=16; instruction tuning on 4,096 successes, 3 epochs; 8 iterations of 1,024 new questions
# (the program: 2,048), batch 32, lr 2e-4 (the program: 4e-4), replies of 256 tokens, 6 steps, 2,048 tokens an episode.
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=${SEED:-0} OUT=${OUT:-runs/ltc_hotpotqa} TEACHER=${TEACHER:-expert} FLAGS=${FLAGS:-} EXPLORE=${EXPLORE:-}
recipe=ltc_hotpotqa pattern=dialogue

if [ -n "${MODEL:-}" ]; then
    ITERATIONS=${ITERATIONS:-8}
    world="--env hotpotqa --data ${DATA:?give DATA=DIR, the folder of the official files}
           --max-steps 6 --max-tokens 256 --max-length 2048"
    demonstrations="--agent $TEACHER --limit 8192"
    explored="--limit 1024"
    start="--agent $MODEL --lora-rank 16 --lora-alpha 16 --loss lm --epochs 3 --batch-size 32 --lr 2e-4 --max-length 2048"
    learning="--loss ltc --batch-size 32 --lr 2e-4 --max-length 2048"
    test="--limit 500"
else
    ITERATIONS=${ITERATIONS:-3}
    world="--env hotpotqa --max-steps 8 --max-length 512"
    # The teacher of the demonstrations never looks anything up in 97% of its episodes; only its successes are learnt from.
    demonstrations="--agent expert:0.97 --limit 6000"
    explored="--limit 512"
    start="--agent tiny --width 96 --layers 2 --heads 6 --loss lm --epochs 4 --batch-size 8 --lr 3e-3 --schedule cosine
           --lm-tokens all-positive --lm-system-weight 0.5"
    learning="--loss ltc --epochs 2 --batch-size 16 --lr 4e-4 --value-lr 1e-2
              --normalise-advantages --lm-tokens ${LM:-spoken}"
    test="--limit 300"
fi
source recipes/taught.sh
