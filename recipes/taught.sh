# The stages that LTC with a teacher has in common: tune, then explore with the teacher and train in turns, then evaluate alone.
# Sourced by ltc_hotpotqa.sh and ltc_gsm8k.sh, which say, in these variables, what differs:
#   recipe pattern           its name, and who speaks when
#   world                    arguments of explore.py and evaluate.py
#   demonstrations explored  arguments of explore.py, for what is tuned on and for an iteration
#   start learning           arguments of train.py, for tuning and for an iteration
#   test                     arguments of evaluate.py
source recipes/stages.sh

run "$OUT/demos.jsonl" python explore.py $demonstrations $world --seed "$SEED"
run "$OUT/tuned" python train.py $start --data "$OUT/demos.jsonl" --seed "$SEED"
before="$OUT/tuned" agents=("instruction tuned=$OUT/tuned" "LTC=$OUT/LTC-$ITERATIONS" "LTC 0=$OUT/tuned")
for i in $(seq "$ITERATIONS"); do
    run "$OUT/LTC-$i.jsonl" python explore.py --agent "$before" --teacher "$TEACHER" --pattern "$pattern" $world $explored $EXPLORE \
        --round "$i" --seed "$((SEED * 1000 + i + 1))"
    run "$OUT/LTC-$i" python train.py --agent "$before" --data "$OUT/LTC-$i.jsonl" $learning $FLAGS --seed "$SEED"
    before="$OUT/LTC-$i"
    agents+=("LTC $i=$before")
done
finish "$recipe" "$((SECONDS - started))" --agent "${agents[@]}" $world $test --seed "$SEED"
curve
