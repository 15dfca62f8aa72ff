# What all recipes do alike. Sourced by them, after SEED and OUT are set.
started=$SECONDS
mkdir -p "$OUT"

run() {                                              # run OUTPUT COMMAND...: unless the output is there
    [ -e "$1" ] || "${@:2}" --out "$1"
}

finish() {                                           # finish NAME SECONDS ARGUMENTS...: evaluate, and write the recipe's summary
    local again=                                     # an evaluation that was stopped goes on; a finished one is made again
    [ ! -e "$OUT/eval/metrics.json" ] || again=--overwrite
    python evaluate.py "${@:3}" --recipe "$1" --seconds "$2" --summary "$OUT/summary.json" --out "$OUT/eval" $again
}

curve() {                                            # draw what `finish` has measured
    python recipes/plot.py curve "$OUT/eval" --out "$OUT/curve.png"
}

turns() {                                            # the same of a team, by turn
    python recipes/plot.py turns "$OUT/eval" --out "$OUT/turns.png"
}
