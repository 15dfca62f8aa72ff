"""Stage 3: how good is an agent on tasks it has never seen? (LTC Tables 1 and 4, Figure 5)

    python evaluate.py --agent runs/ltc-6 --env alfworld --split valid_unseen --out runs/eval
    python evaluate.py --agent "tuned=runs/it" "LTC=runs/ltc-6" --runs 3 --temperature 0.5 --show 3 --out runs/eval
    python evaluate.py --agent "LTC 0=runs/it" "LTC 1=runs/ltc-1" "LTC 2=runs/ltc-2" --out runs/eval

Prints success by kind of task for each agent, with a 95% Wilson interval on the whole, the average and the best of --runs runs
(as LTC's Table 1), and the mean length of the prompt, which is all that is read before the agent's first word (as Table 4).
Writes OUT/metrics.json and the trajectories, OUT/NAME.RUN.jsonl; an evaluation that was stopped goes on from those. Agents named
NAME N are points of a learning curve (recipes/plot.py draws it); if there are no others, their table also says how many tasks
have been solved by one of them so far (as A3T's tables of rounds).
Agents play greedily unless --temperature says otherwise; greedy runs are all alike.
"""
import argparse
import functools
import json
import math
import os
import re
import sys
import time
from pathlib import Path
from statistics import fmean

import buffer
import envs
import errors
import explore
import ranks
from errors import BadInput
from others.remote import transcript

CURVE = re.compile(r"(.+) (\d+)")          # NAME N: point N of the curve NAME


def parse():
    p = argparse.ArgumentParser(description="Measure agents on held-out tasks.")
    p.add_argument("--agent", nargs="+", required=True, help="agents as for explore.py, each with an optional name: NAME=AGENT")
    p.add_argument("--out", required=True, help="folder for metrics.json and the trajectories")
    explore.add_arguments(p)
    p.add_argument("--split", help="which tasks; default: the environment's held-out ones (LTC on ALFWorld: the 134 unseen ones)")
    p.add_argument("--functions", nargs="+", metavar="FILE",
                   help="mathqa: a functions.json of optimize.py, to be called: one for all agents, or one (or none) each")
    p.add_argument("--runs", type=errors.count, default=1, help="runs with different chance (LTC: 3)")
    p.add_argument("--temperature", type=float, default=0.0, help="of sampling; 0 is greedy")
    p.add_argument("--show", type=int, default=0, help="print so many trajectories of the last agent")
    p.add_argument("--summary", help="write a recipe's summary.json here, with --recipe and --seconds")
    p.add_argument("--recipe", default="", help="name of the recipe, for --summary")
    p.add_argument("--seconds", type=float, default=0, help="how long the recipe took before this evaluation, for --summary")
    p.add_argument("--overwrite", action="store_true", help="replace a finished OUT, and forget an unfinished one")
    return p.parse_args()


def wilson(won, n, z=1.96):
    """The 95% Wilson score interval of a success rate, (low, high)."""
    p, spread = won / n, z * math.sqrt(won / n * (1 - won / n) / n + z * z / (4 * n * n))
    centre, scale = p + z * z / (2 * n), 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def prompt_tokens(trajectory):
    """Tokens read before the first thought or action; None if they were never made (an expert)."""
    said = (i for i, s in enumerate(trajectory.segments) if s.role in ("think", "act", "completion"))
    first = next(said, len(trajectory.segments))
    before = [s.tokens for s in trajectory.segments[:first]]
    return None if None in before else sum(map(len, before))


def measure(name, runs):
    """Metrics of one agent from its runs (lists of trajectories): success by kind, averaged and of the best run."""
    kinds = list(dict.fromkeys(t.kind for t in runs[0]))
    def by_kind(trajectories):
        rate = {k: fmean([t.success for t in trajectories if t.kind == k]) for k in kinds}
        return {**rate, "all": fmean([t.success for t in trajectories])}
    rates = [by_kind(r) for r in runs]
    everything = [t for r in runs for t in r]
    prompts = [n for t in everything if (n := prompt_tokens(t)) is not None]
    steps = [t.turn or sum(s.role == "act" for s in t.segments) for t in everything]
    return {"name": name, "tasks": len(runs[0]), "runs": len(runs),
            "n": {**{k: sum(t.kind == k for t in runs[0]) for k in kinds}, "all": len(runs[0])},
            "success": {k: sum(r[k] for r in rates) / len(rates) for k in rates[0]}, "best": max(rates, key=lambda r: r["all"]),
            "interval": wilson(sum(t.success for t in everything), len(everything)),
            "metrics": {m: fmean([t.metrics[m] for t in everything]) for m in everything[0].metrics},
            "prompt_tokens": fmean(prompts) if prompts else None, "steps": fmean(steps),
            "reward": fmean([t.reward for t in everything])}


def accumulate(results, played):
    """Add to each point of a curve the share of the tasks that it or a point before it has won, averaged over the runs.
    played: name -> runs."""
    points = {name: point for name in played if (point := CURVE.fullmatch(name))}
    for result in results:
        if point := points.get(result["name"]):
            sofar = [name for name, p in points.items() if p[1] == point[1] and int(p[2]) <= int(point[2])]
            won = [{t.task for name in sofar for t in played[name][run] if t.success} for run in range(result["runs"])]
            result["accumulated"] = fmean([len(tasks) / result["tasks"] for tasks in won])


def table(results):
    """The table as text, one column an agent; points of a curve are left out where other agents are there."""
    results = [r for r in results if not CURVE.fullmatch(r["name"])] or results
    names, kinds = [r["name"] for r in results], results[0]["success"]
    lines = [["success by kind of task", *names]]
    for k in kinds:
        lines.append([f"{k} ({results[0]['n'][k]})", *(f"{r['success'][k]:.1%}" for r in results)])
    lines.append(["95% interval", *("{:.1%} - {:.1%}".format(*r["interval"]) for r in results)])
    if results[0]["runs"] > 1:
        lines.append([f"best of {results[0]['runs']} runs", *(f"{r['best']['all']:.1%}" for r in results)])
    if "accumulated" in results[0]:
        lines.append(["by one of those so far", *(f"{r['accumulated']:.1%}" for r in results)])
    for m in results[0]["metrics"]:
        style = ".2f" if m.endswith("return") else ".1%"
        lines.append([m, *(f"{r['metrics'][m]:{style}}" for r in results)])
    lines.append(["actions an episode", *(f"{r['steps']:.1f}" for r in results)])
    prompts = ("-" if r["prompt_tokens"] is None else f"{r['prompt_tokens']:.0f}" for r in results)
    lines.append(["tokens of the prompt", *prompts])
    widths = [max(len(row[i]) for row in lines) for i in range(len(lines[0]))]
    def line(row):
        return "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
    text = [line(row) for row in lines]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def rows(results):
    """The rows of summary.json: success of each agent, on all tasks and on each kind."""
    found = []
    for r in results:
        values = [("success", r["success"]["all"], "all")]
        values += [(f"success {k}", v, k) for k, v in r["success"].items() if k != "all"]
        values += [(m, v, "all") for m, v in r["metrics"].items()]
        values += [("accumulated success", r["accumulated"], "all")] if "accumulated" in r else []
        found += [{"name": r["name"], "metric": metric, "value": value, "n": r["n"][kind]} for metric, value, kind in values]
    return found


def readable(trajectory):
    """A trajectory as text, one line a turn."""
    end = "won" if trajectory.success else "not won"
    return f"--- {trajectory.task}: {end}, reward {trajectory.reward:+g}\n{transcript(trajectory)}"


def run_file(name, run, args):
    """Where the trajectories of an agent's run are kept."""
    return os.path.join(args.out, re.sub(r"[^\w.-]+", "_", name) + f".{run}.jsonl")


def play(name, args, tasks):
    """All runs of one agent, written to OUT; those that are there already are read. Returns lists of trajectories."""
    runs = []
    for run in range(args.runs):
        joint = args.env in envs.JOINT
        options = argparse.Namespace(**{**vars(args), **explore.ALONE, "seed": args.seed + run,       # no teacher at the test
                                        "out": run_file(name, run, args), **({"pattern": "joint"} if joint else {})})
        if os.path.exists(options.out):
            found = buffer.read(options.out)
        else:
            make = explore.make_team if joint else functools.partial(explore.make_agent, args.agent)
            found = explore.explore(options, tasks, make(options, os.path.join(args.out, "replies.jsonl")))
        runs.append(last_turns(found) if joint else found)
    return runs


def last_turns(trajectories):
    """Of a team's episodes: the first agent's last answer, with what all turns earned, in the names of CoMLRL's users."""
    last = {t.task: t for t in sorted(trajectories, key=lambda t: t.turn) if t.agent == 0}
    for t in last.values():
        t.metrics = {name: x for name, x in t.metrics.items() if name.startswith("turn_")}
        t.metrics["turn_1/expected_return"] = sum(x for name, x in t.metrics.items() if name.endswith("/reward_mean"))
    return list(last.values())


def main():
    args, started = parse(), time.time()
    ranks.start()
    target = os.path.join(args.out, "metrics.json")
    if os.path.exists(target) and not args.overwrite:
        raise BadInput(f"{target}: is there already; give --overwrite or another --out")
    named = [(name or agent, agent) for name, _, agent in (entry.rpartition("=") for entry in args.agent)]
    functions = [None if file == "none" else file for file in args.functions or ["none"]]
    functions *= len(named) if len(functions) == 1 else 1
    if len(functions) != len(named):
        raise BadInput(f"--functions: {len(functions)} files for {len(named)} agents; give one for all, or one (or none) each")
    tasks = {file: explore.load_tasks(argparse.Namespace(**{**vars(args), "functions": file})) for file in functions}
    if args.summary and os.path.isdir(args.summary):
        raise BadInput(f"--summary {args.summary}: is a folder; give the name of a file")
    files = [run_file(name, run, args) for name, _ in named for run in range(args.runs)]
    if len(set(files)) < len(files):
        raise BadInput("--agent: two agents have the same name; write NAME=AGENT with names that differ")
    for folder in (args.out, os.path.dirname(args.summary or "")):
        os.makedirs(folder or ".", exist_ok=True)
    note = os.path.join(args.out, "args.json")
    there = [os.path.join(args.out, f) for f in os.listdir(args.out) if re.fullmatch(r".+\.\d+\.jsonl(\.part)?", f)]
    if ranks.RANK == 0:
        errors.same_command(note, args, there)
    ranks.wait()
    if args.overwrite and ranks.RANK == 0:
        for file in (target, os.path.join(args.out, "replies.jsonl"), *there):
            Path(file).unlink(missing_ok=True)
    ranks.wait()
    seen, played = {}, {}
    for (name, args.agent), file in zip(named, functions):
        if (args.agent, file) not in seen:
            seen[args.agent, file] = play(name, args, tasks[file])
        played[name] = seen[args.agent, file]
    results = [measure(name, runs) for name, runs in played.items()]
    accumulate(results, played)
    ranks.end()
    if ranks.RANK:                  # rank 0 says and writes what all have measured
        return
    if args.summary:
        seconds = round(args.seconds + time.time() - started, 1)
        with open(args.summary, "w", encoding="utf-8") as file:
            json.dump({"recipe": args.recipe, "seed": args.seed, "seconds": seconds, "rows": rows(results)}, file, indent=1)
    split = tasks[functions[0]][0].split
    about = {"env": args.env, "split": split, "data": bool(args.data), "seed": args.seed, "agents": results}
    with open(f"{target}.tmp", "w", encoding="utf-8") as file:
        json.dump(about, file, indent=1)
    os.replace(f"{target}.tmp", target)          # last: what has it is finished
    os.remove(note)
    for trajectory in played[name][0][:args.show]:
        print(readable(trajectory), end="\n\n")
    sys.stderr.flush()
    print(table(results))


if __name__ == "__main__":
    errors.run(main)
