"""Pictures of what was measured, as PNG.

    python recipes/plot.py curve runs/demo/eval --out runs/demo/curve.png
        Success of the agents named NAME N of an evaluation (its metrics.json) against N, one line a name, with 95% intervals.

    python recipes/plot.py turns "aligned=runs/magrpo/eval" "cross=runs/magrpo-cross/eval" --steps 1280 --out runs/turns.png
        What a team's turns earned (turn_1/reward_mean, turn_2/reward_mean, ..., turn_1/expected_return) against N of its agents
        NAME N, one colour a folder; with --steps, against the environment steps (reward evaluations) that a round had.

    python recipes/plot.py optimizer runs/agentoptimizer --out runs/optimizer.png
        Right answers by epoch of recipes/agentoptimizer.sh: what each epoch's functions scored in training, what the best so far
        did, and what those score on held-out problems.

    python recipes/plot.py contrast "K >= 2=runs/a3t/1" "K >= 1=runs/a3t-k1/1" --out runs/stability.png
        How stable is a contrastive training? Log-probabilities by update (the metrics.jsonl of train.py --loss contrast) of what
        failures share with successes, and of failures. On tokens that a failure shares with all its K successes the weights of
        J add up to (K - 1)/(K + 1): for K = 1 nothing holds them up. -log p of a failure has no bound for any K.
"""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import errors
from errors import BadInput
from evaluate import CURVE


def parse():
    p = argparse.ArgumentParser(description="Draw what was measured.")
    p.add_argument("what", choices=["curve", "turns", "optimizer", "contrast"], help="the picture")
    p.add_argument("folder", nargs="+", help="curve, turns: folders of evaluate.py (curve: one); optimizer: a recipe's OUT; "
                   "contrast: folders of train.py; turns and contrast with an optional name: NAME=FOLDER")
    p.add_argument("--steps", type=errors.count, default=1, help="turns: environment steps a round")
    p.add_argument("--out", required=True, help="the PNG to write")
    return p.parse_args()


def read(path, of, parse_file):
    """What `parse_file` makes of a file. Raises BadInput if it can make nothing of it."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse_file(file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: no metrics of {of} ({type(error).__name__}: {error}); give a folder that it wrote") from None


def curve(folder, pyplot):
    """Success by number, one line a name."""
    agents = read(os.path.join(folder, "metrics.json"), "evaluate.py", lambda file: [
        (a["name"], 100 * a["success"]["all"], [100 * x for x in a["interval"]]) for a in json.load(file)["agents"]])
    series = {}
    for name, success, interval in agents:
        if found := CURVE.fullmatch(name):
            series.setdefault(found[1], []).append((int(found[2]), success, *interval))
    if not series:
        raise BadInput(f"{folder}: no agent there is named NAME N, so there is no curve to draw")
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    for name, points in series.items():
        x, y, low, high = zip(*sorted(points))
        line, = axes.plot(x, y, marker="o", label=name)
        axes.fill_between(x, low, high, alpha=0.15, color=line.get_color())
    axes.set(xlabel="iteration", ylabel="success on held-out tasks, %", ylim=(0, 100))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def turns(entries, steps, pyplot):
    """Mean reward of each turn, and the expected return, by round: one colour a folder, one kind of line a turn."""
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), sharex=True)
    for number, entry in enumerate(entries):
        name, _, folder = entry.rpartition("=")
        points = read(os.path.join(folder, "metrics.json"), "evaluate.py", lambda file: sorted(
            (int(found[2]) * steps, a["metrics"]) for a in json.load(file)["agents"] if (found := CURVE.fullmatch(a["name"]))))
        if not points or "turn_1/reward_mean" not in points[0][1]:
            raise BadInput(f"{folder}: no team there is named NAME N, so there is no curve to draw")
        for metric in points[0][1]:
            turn, _, what = metric.partition("/")
            if what in ("reward_mean", "expected_return"):
                style = ("--", "-", ":", "-.")[int(turn[5:]) % 4 - 1] if what == "reward_mean" else "-"
                x, y = zip(*((x, metrics[metric]) for x, metrics in points))
                panels[int(what == "expected_return")].plot(x, y, style, marker=".", color=f"C{number}",
                                                            label=f"{name or folder}, {metric}")
    for axes, title in zip(panels, ("mean reward of a turn", "expected return")):
        axes.set(title=title, xlabel="environment steps" if steps > 1 else "iteration")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small", handlelength=4)
    return figure


def optimizer(folder, pyplot):
    """Training and held-out accuracy by epoch."""
    tried = read(os.path.join(folder, "full", "epochs.jsonl"), "optimize.py", lambda file: [
        100 * json.loads(line)["performance"] for line in file])
    held = read(os.path.join(folder, "eval", "metrics.json"), "evaluate.py", lambda file: sorted(
        (int(found[2]), 100 * a["success"]["all"]) for a in json.load(file)["agents"] if (found := CURVE.fullmatch(a["name"]))))
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    axes.plot(tried, "x", color="grey", label="training: tried")
    axes.plot([max(tried[:i + 1]) for i in range(len(tried))], marker="o", label="training: best so far")
    axes.plot(*zip(*held), marker="s", label="held out: best so far")
    axes.set(xlabel="epoch", ylabel="right answers, %", ylim=(0, 102))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def contrast(entries, pyplot):
    """Log-probabilities by update, one line a training."""
    def steps_of(file):
        steps = [json.loads(line) for line in file]
        if not steps:
            raise ValueError("it is empty")
        return {name: [step[name] for step in steps] for name in ("shared", "negative")}
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), sharex=True)
    for entry in entries:
        name, _, folder = entry.rpartition("=")
        found = read(os.path.join(folder, "metrics.jsonl"), "--loss contrast", steps_of)
        for axes, (term, title) in zip(panels, (("shared", "shared prefix"), ("negative", "failures"))):
            steps = [i for i, x in enumerate(found[term]) if x]             # an update without a failure says nothing
            axes.plot(steps, [found[term][i] for i in steps], marker=".", label=name or folder)
            axes.set(title=title, xlabel="update", ylabel="mean log p of a token")
            axes.grid(alpha=0.3)
    panels[0].legend()
    return figure


def main():
    args = parse()
    if not args.out.endswith(".png"):
        raise BadInput(f"--out {args.out}: pictures are PNG; give a name that ends in .png")
    if args.what in ("curve", "optimizer") and len(args.folder) > 1:
        raise BadInput(f"{args.folder[1]}: it is drawn from one folder; leave out the others")
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise BadInput("drawing needs a package; pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot
    if args.what in ("curve", "optimizer"):
        figure = (curve if args.what == "curve" else optimizer)(args.folder[0], pyplot)
    else:
        figure = turns(args.folder, args.steps, pyplot) if args.what == "turns" else contrast(args.folder, pyplot)
    figure.tight_layout()
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    figure.savefig(args.out, dpi=130)


if __name__ == "__main__":
    errors.run(main)
