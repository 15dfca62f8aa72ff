#!/usr/bin/env bash
# One CUDA GPU, ten minutes: does everything that a laptop's CPU cannot show hold there? Prints what it measures.
#
#   MODEL=HuggingFaceTB/SmolLM2-135M-Instruct bash recipes/gpu_check.sh            any small chat model; a folder or a .gguf file, too
#
# bf16 and 4-bit load; the slot cache against whole forward passes; one training step of each loss, with its peak memory; the speed of
# exploration against `generate`.
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=0 OUT=${OUT:-runs/gpu} MODEL=${MODEL:?give MODEL=NAME, a small chat model}
world="--env alfworld --max-steps 4 --max-tokens 32 --max-length 1024 --slots 32 --keep-invalid"
lora="--lora-rank 16 --lora-alpha 32 --lora-target q_proj v_proj --max-length 1024 --batch-size 16 --micro-batch 4"
source recipes/stages.sh
python -c "import torch; print(torch.__version__, torch.cuda.get_device_name(0))"

for how in "--dtype float32" "--dtype bfloat16" "--load-4bit"; do
    python tests/check_generation.py "$MODEL" $how --conversations 32
done
python explore.py --agent "$MODEL" $world --limit 32 --out "$OUT/explored.jsonl" --overwrite
python explore.py --agent expert $world --max-steps 30 --limit 32 --out "$OUT/expert.jsonl" --overwrite
python explore.py --agent "$MODEL,$MODEL" --env coding --generations 4 --limit 4 --max-tokens 64 --max-length 1024 --slots 32 \
    --out "$OUT/tree.jsonl" --overwrite
python explore.py --agent "$MODEL,$MODEL" --env coding --generations 1 --limit 8 --max-tokens 64 --max-length 1024 --slots 32 \
    --critics "$MODEL" --out "$OUT/chain.jsonl" --overwrite
for how in "" "--load-4bit" "--gradient-checkpointing"; do
    python train.py --agent "$MODEL" --loss ltc --data "$OUT/explored.jsonl" $lora $how --out "$OUT/ltc" --overwrite
    tail -n 1 "$OUT/ltc/metrics.jsonl"
done
python train.py --agent "$MODEL" --loss lm --data "$OUT/expert.jsonl" $lora --out "$OUT/lm" --overwrite
python train.py --agent "$MODEL" --loss contrast --k-min 1 --data "$OUT/explored.jsonl" "$OUT/expert.jsonl" $lora --out "$OUT/contrast" --overwrite
for loss in magrpo iac maac; do
    data=$([ $loss = magrpo ] && echo tree || echo chain)
    python train.py --agent "$MODEL" --loss $loss --player 0 --data "$OUT/$data.jsonl" $lora --out "$OUT/$loss" --overwrite
done
for loss in lm contrast magrpo iac maac; do
    echo "$loss"; tail -n 1 "$OUT/$loss/metrics.jsonl"
done
python evaluate.py --agent "ltc=$OUT/ltc" $world --limit 8 --out "$OUT/eval" --overwrite
python recipes/bench_explore.py --agent "$MODEL" $world --episodes 32 --single 4 --repeats 2
