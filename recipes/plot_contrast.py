"""How stable is a contrastive training? Log-probabilities by update of what failures share with successes, and of failures.

    python recipes/plot_contrast.py "K >= 2=runs/a3t/1" "K >= 1=runs/a3t-k1/1" --out runs/stability.png

Reads the metrics.jsonl of train.py --loss contrast. On tokens that a failure shares with all its K successes the weights of J add
up to (K - 1)/(K + 1): for K = 1 nothing holds them up. -log p of a failure has no bound for any K.
"""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import errors
import evaluate
from errors import BadInput


def parse():
    p = argparse.ArgumentParser(description="Draw the log-probabilities of a contrastive training.")
    p.add_argument("run", nargs="+", help="folders that train.py --loss contrast wrote, each with an optional name: NAME=FOLDER")
    p.add_argument("--out", required=True, help="the PNG to write")
    return p.parse_args()


def curves(folder):
    """The metrics of each update."""
    path = os.path.join(folder, "metrics.jsonl")
    try:
        with open(path, encoding="utf-8") as file:
            steps = [json.loads(line) for line in file]
        if not steps:
            raise ValueError("it is empty")
        return {name: [step[name] for step in steps] for name in ("shared", "negative")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: no metrics of --loss contrast ({type(error).__name__}: {error}); give a folder that it "
                       "wrote") from None


def main():
    args = parse()
    pyplot = evaluate.drawing(args.out)
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), sharex=True)
    for entry in args.run:
        name, _, folder = entry.rpartition("=")
        found = curves(folder)
        for axes, (term, title) in zip(panels, (("shared", "shared prefix"), ("negative", "failures"))):
            steps = [i for i, x in enumerate(found[term]) if x]             # an update without a failure says nothing
            axes.plot(steps, [found[term][i] for i in steps], marker=".", label=name or folder)
            axes.set(title=title, xlabel="update", ylabel="mean log p of a token")
            axes.grid(alpha=0.3)
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(args.out, dpi=130)


if __name__ == "__main__":
    errors.run(main)
