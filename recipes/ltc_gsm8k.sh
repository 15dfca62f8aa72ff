#!/usr/bin/env bash
# LTC on GSM8K (Analogue): instruction-tune; then answer, be corrected, answer a similar question; train; no teacher at the test.
#
#   bash recipes/ltc_gsm8k.sh                                  built-in problems, the tiny agent and the scripted teacher
#   TEACHER=expert:0.4 OUT=runs/gsm8k-40 bash recipes/ltc_gsm8k.sh            a teacher that is wrong in 40% of its episodes
#   EXPLORE="--assume-teacher" TEACHER=expert:0.4 OUT=runs/gsm8k-40-assumed bash recipes/ltc_gsm8k.sh      and is believed (+1)
#   FLAGS="--policy-tokens own" LM=own OUT=runs/gsm8k-own bash recipes/ltc_gsm8k.sh  the teacher's tokens out of the loss
#   MODEL=huggyllama/llama-7b TEACHER=https://HOST/v1#MODEL DATA=DIR bash recipes/ltc_gsm8k.sh            the paper's run
#
# A stage whose output is there is skipped, so a recipe that was stopped goes on where it was.
# The paper's run: LLaMA-7B, LoRA r=16 alpha=16; instruction tuning on 8,192 successes, 3 epochs; 16 iterations of 512 new questions
# (the program: 4,096, batch 128, lr 4e-4), batch 32, lr 2e-4, replies of 512 tokens.
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=${SEED:-0} OUT=${OUT:-runs/ltc_gsm8k} TEACHER=${TEACHER:-expert} FLAGS=${FLAGS:-} EXPLORE=${EXPLORE:-}
recipe=ltc_gsm8k pattern=analogue

if [ -n "${MODEL:-}" ]; then
    ITERATIONS=${ITERATIONS:-16}
    world="--env gsm8k --data ${DATA:?give DATA=DIR, the folder with train.jsonl and test.jsonl}
           --max-tokens 512 --max-length 2048"
    demonstrations="--agent $TEACHER --limit 7473"
    explored="--limit 512"
    start="--agent $MODEL --lora-rank 16 --lora-alpha 16 --loss lm --epochs 3 --batch-size 32 --lr 2e-4 --max-length 2048"
    learning="--loss ltc --batch-size 32 --lr 2e-4 --max-length 2048"
    test="--limit 1319"
else
    ITERATIONS=${ITERATIONS:-2}
    world="--env gsm8k --max-length 512 --max-tokens 60"
    # Few demonstrations, in the form of the Analogue, so that the agent knows what a second question is.
    demonstrations="--agent expert --pattern analogue --teacher expert --limit 800"
    explored="--limit 3000"
    start="--agent tiny --width 96 --layers 2 --heads 6 --loss lm --epochs 10 --batch-size 8 --lr 3e-3 --schedule cosine
           --lm-tokens all-positive --lm-system-weight 0.5"
    learning="--loss ltc --epochs 1 --batch-size 8 --lr 1e-3 --schedule cosine --value-lr 1e-2
              --normalise-advantages --lm-tokens ${LM:-spoken}"
    test="--limit 400"
fi
source recipes/taught.sh
