"""Stage 2 without weights: an agent's functions are what is trained (AgentOptimizer, arXiv 2402.11359).

    python optimize.py --agent expert --proposer scripted:0.4/0.2/0.3/0.1 --out runs/ao
    python optimize.py --agent http://HOST/v1#MODEL --proposer http://HOST/v1#MODEL --data MATH --limit 20 --out runs/ao
    python evaluate.py --env mathqa --agent expert --functions runs/ao/functions.json --out runs/eval

    F* = argmin over F of the loss of the agent with functions F on the training tasks; the model is never touched.

Each epoch a proposer sees how the agent fared, changes the best functions so far by a few actions (`step`), and the agent plays
the training tasks with them. Strictly better: they are kept. Else they are rolled back, and remembered with what they scored, for
the proposer to see. After --patience failures in a row, or --epochs, it ends.

OUT/functions.json is the best list so far, OUT/EPOCH.best.json that of an epoch; OUT/EPOCH.json what was tried in it,
OUT/EPOCH.jsonl its trajectories, and OUT/epochs.jsonl a line an epoch: what it scored, whether it was kept, which actions were
applied and why others were refused. A run that was stopped goes on from there.

Departures: a proposer answers with all its actions of a step at once, and is asked again only if some were refused; functions run
in our sandbox, and packages are never installed. Where nothing was changed, the training tasks are not played again.
"""
import argparse
import asyncio
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import buffer
import errors
import explore
from envs import functions as toolbox
from errors import BadInput
from others.names import make_agent, make_proposer
from others.remote import transcript

TRIES = 3


def parse():
    p = argparse.ArgumentParser(description="Train the functions of an agent.")
    p.add_argument("--agent", required=True, help="who solves: as for explore.py")
    p.add_argument("--proposer", required=True, help="who changes them: as --agent, or scripted:USEFUL/USELESS/HARMFUL/MALFORMED")
    p.add_argument("--out", required=True, help="folder for functions.json, the epochs and their trajectories")
    explore.add_arguments(p)
    p.set_defaults(env="mathqa", max_steps=6)
    p.add_argument("--split", default="train", help="the training tasks")
    p.add_argument("--temperature", type=float, default=0.0, help="of the agent and the proposer; 0 is greedy")
    p.add_argument("--epochs", type=errors.count, default=10, help="(the paper: 10)")
    p.add_argument("--patience", type=errors.count, default=10, help="failures in a row that end it (the paper: 10)")
    p.add_argument("--actions", type=errors.count, default=3, help="at most so many in a step (the paper: 3)")
    p.add_argument("--shown", type=errors.count, default=8, help="conversations of the best run that the proposer is shown")
    p.add_argument("--one-shot", action="store_true", help="ablation: a single step, kept whatever it scores")
    p.add_argument("--no-rollback", action="store_true", help="ablation: every step is kept, and nothing ends it before --epochs")
    p.add_argument("--accept-ties", action="store_true", help="keep what is as good as the best, too")
    p.add_argument("--proposer-tokens", type=errors.count, default=1024, help="longest reply of the proposer")
    p.add_argument("--proposer-length", type=errors.count, default=8192, help="longest prompt and reply, if it is local")
    p.add_argument("--overwrite", action="store_true", help="replace a finished OUT, and forget an unfinished one")
    return p.parse_args()


# ----------------------------------------------------------------------------------------------------------------- one step

@dataclass
class Progress:
    """Where the search is. `failures`: what was rolled back since the last success, as (performance, functions); `row`: in a
    row."""
    functions: list = field(default_factory=list)
    performance: float = -1.0
    failures: list = field(default_factory=list)
    row: int = 0


def judge(progress, functions, performance, ties=False, always=False):
    """The Progress after these functions scored `performance`: kept if strictly better (`ties`: or as good; `always`), else
    rolled back and remembered, failures in ascending order (AgentOptimizer, Algorithm 1)."""
    if always or performance > progress.performance or (ties and performance == progress.performance):
        return Progress(functions, performance)
    failures = sorted([*progress.failures, (performance, functions)], key=lambda failure: failure[0])
    return Progress(progress.functions, progress.performance, failures, progress.row + 1)


def actions_in(text):
    """The actions in what a proposer wrote: JSON objects {"name", "arguments"}, alone, in a list, or in a fence, mended where
    models break them (single quotes, trailing commas, line breaks in strings). [] if there are none."""
    import json_repair
    fenced = re.search(r"```(?:\w+)?\s*\n(.*?)(?:```|\Z)", text, re.DOTALL)
    text = fenced[1] if fenced else text
    start = min((i for i in (text.find("["), text.find("{")) if i >= 0), default=None)
    if start is None:
        return [{"name": "TERMINATE"}] if text.strip().strip(".").upper() == "TERMINATE" else []
    try:
        found = json_repair.loads(text[start:])
    except (ValueError, RecursionError):
        return []
    found = found if isinstance(found, list) else [found]
    by_key = [(verb, a[verb]) for a in found if isinstance(a, dict) for verb in a if verb in toolbox.ACTIONS]
    found = [{"name": verb, "arguments": given} for verb, given in by_key] or found              # {"add_function": {...}}
    for action in (a for a in found if isinstance(a, dict)):
        if isinstance(action.get("function"), dict):                        # {"type": "function", "function": {...}}
            action.update(action.pop("function"))
        if isinstance(action.get("arguments"), str):                        # encoded once more, as the tools' protocol does
            action["arguments"] = json_repair.loads(action["arguments"])
    return [a for a in found if isinstance(a, dict) and "name" in a]


def step(history, statistic, current_functions, propose, failures=(), limit=3):
    """One step of the optimiser: -> (actions that were applied, functions after them, why others were refused).

    history: conversations of the best run, as texts; statistic: what it scored, {"all": share, kind: share, ...};
    current_functions: the best list, from which the step starts; propose: what is shown -> the proposer's words, called at most
    three times, the second and third time only if something was refused; failures: (performance, functions) in ascending order.
    At most `limit` actions are applied; TERMINATE ends the step. Nothing is changed in place."""
    functions, applied, refused = list(current_functions), [], []
    for _ in range(TRIES):
        wrong = []
        left = limit - len(applied)
        proposed = actions_in(propose(shown(history, statistic, current_functions, functions, failures, refused, left)))
        if not proposed:
            wrong.append("no action in JSON was found")
        for action in proposed:
            if action["name"] == "TERMINATE":
                return applied, functions, refused + wrong
            if len(applied) == limit:
                wrong.append(f"{action['name']}: only {limit} actions are allowed in a step")
                continue
            try:
                functions = toolbox.act(functions, action)
                applied.append(action)
            except ValueError as error:
                wrong.append(str(error))
        refused += wrong
        if not wrong or len(applied) == limit:
            break
    return applied, functions, refused


def shown(history, statistic, best, functions, failures, refused, left):
    """What the proposer sees (AgentOptimizer §3.2, in our words)."""
    def listed(some):
        return "\n\n".join(f"{toolbox.signatures([f])}\n{f['code']}" for f in some) or "(none)"
    shares = {kind: round(share, 4) for kind, share in statistic.items() if kind != "all"}
    parts = [
        "An agent solves problems, and may call functions. Improve them: they should help with many problems of such kinds.",
        *(f"Conversation {i}:\n{text}" for i, text in enumerate(history, start=1)),
        f"Share of right answers: {statistic.get('all', 0):.1%}",
        f"Right answers: {json.dumps(shares)}",
        f"The best functions so far:\n{listed(best)}",
        f"The functions that you are changing:\n{listed(functions)}" if functions != best else "You are changing these.",
        *(f"Worse or no better, with {performance:.1%} right answers:\n{listed(some)}" for performance, some in failures),
        f"Names: {json.dumps([f['name'] for f in functions])}",
        *(f"Refused: {why}" for why in refused),
        "You can take these actions:\n" + "\n".join(f"{name}: {about}" for name, about in toolbox.ACTIONS.items()),
        f'Write a JSON list of at most {left} actions, {{"name": ..., "arguments": {{...}}}}; arguments of add_function and '
        f'revise_function are {", ".join(toolbox.FIELDS)}, of remove_function name. "arguments" of a function is a JSON object '
        'of parameter -> schema.']
    return "\n\n".join(parts)


# ----------------------------------------------------------------------------------------------------------------- the loop

def run(args, tasks_of, epoch, functions, agent):
    """Play the training tasks with these functions; what is there already is read. Returns the trajectories."""
    out = os.path.join(args.out, f"{epoch}.jsonl")
    if os.path.exists(out):
        return buffer.read(out)
    options = argparse.Namespace(**{**vars(args), **explore.ALONE, "round": epoch, "out": out})
    return explore.explore(options, tasks_of(functions), agent)


def statistics_of(trajectories):
    """Share of right answers, of all and by kind; {} of no record at all."""
    kinds = {}
    for t in trajectories:
        kinds.setdefault(t.kind, []).append(float(t.success))
    shares = {kind: fmean(found) for kind, found in kinds.items()}
    return {"all": fmean(x for found in kinds.values() for x in found), **shares} if kinds else {}


def conversations(trajectories, n):
    """n conversations as text: failures first, each of another kind as far as they go."""
    ordered, seen = [], {}
    for t in sorted(trajectories, key=lambda t: t.success):
        seen[t.kind, t.success] = seen.get((t.kind, t.success), 0) + 1
        ordered.append((t.success, seen[t.kind, t.success], len(ordered), t))
    return [f"{transcript(t)}\n({'right' if t.success else 'wrong'})" for *_, t in sorted(ordered, key=lambda x: x[:3])[:n]]


def ask(proposer, epoch, args):
    """The proposer as a function of what is shown -> its words."""
    number = 0

    def propose(text):
        nonlocal number
        number += 1
        scratch = buffer.Trajectory(id=f"{epoch}/{args.seed}/propose/{number}", task=f"epoch {epoch}", env=args.env)
        scratch.add(text, buffer.SYSTEM, "task")

        async def reply():
            try:
                return (await proposer.reply(scratch, "propose", buffer.OTHER)).text
            finally:
                proposer.close(scratch)
        from agent import Overflow
        try:
            return asyncio.run(reply())
        except Overflow:
            raise BadInput(f"--proposer {args.proposer}: what it is to read is longer than --proposer-length "
                           f"{args.proposer_length}; give more, or fewer --shown") from None
    return propose


def read_step(file, epoch):
    """The step of this epoch, if it was begun; else None."""
    if not os.path.exists(file):
        return None
    entry = json.loads(buffer.open_text(file))
    return entry if entry["epoch"] == epoch else None


def optimize(args, tasks_of, agent, proposer):
    """The whole search. Returns its Progress. An epoch that is in OUT/epochs.jsonl is not done again."""
    log = os.path.join(args.out, "epochs.jsonl")
    Path(log).touch()
    buffer.cut_torn_line(log)
    done = [json.loads(line) for line in buffer.open_text(log).splitlines()]
    progress, best, epochs = Progress(), [], 1 if args.one_shot else args.epochs
    for epoch in range(epochs + 1):
        if progress.row >= args.patience and not args.no_rollback:
            break
        version, begun = os.path.join(args.out, f"{epoch}.json"), os.path.join(args.out, "step.json")
        entry = done[epoch] if epoch < len(done) else read_step(begun, epoch)
        if entry:
            functions = toolbox.read(version)
        else:
            applied, functions, refused = [], [], []
            if epoch:
                applied, functions, refused = step(conversations(best, args.shown), statistics_of(best), progress.functions,
                                                   ask(proposer, epoch, args), progress.failures, args.actions)
            entry = {"epoch": epoch, "actions": applied, "refused": refused}
            toolbox.write(version, functions)
            toolbox.write(begun, entry)
        same = epoch > 0 and functions == progress.functions
        trajectories = best if same else run(args, tasks_of, epoch, functions, agent)
        performance = progress.performance if same else statistics_of(trajectories)["all"]
        kept = judge(progress, functions, performance, args.accept_ties, args.no_rollback or args.one_shot or not epoch)
        best = trajectories if kept.row == 0 else best
        progress = kept
        for name in ("functions.json", f"{epoch}.best.json"):
            toolbox.write(os.path.join(args.out, name), progress.functions)
        if epoch >= len(done):
            with open(log, "a", encoding="utf-8") as file:
                file.write(json.dumps({**entry, "performance": performance, "kept": progress.row == 0}) + "\n")
            names = ", ".join(f["name"] for f in functions) or "none"
            print(f"epoch {epoch}: {performance:.1%} right, {'kept' if progress.row == 0 else 'rolled back'}; functions: {names}"
                  + "".join(f"\n    refused: {why}" for why in entry["refused"]), flush=True)
    return progress


def main():
    args = parse()
    if args.env != "mathqa":
        raise BadInput(f"--env {args.env}: functions can be called in mathqa only")
    finished, note = os.path.join(args.out, "finished"), os.path.join(args.out, "args.json")
    if os.path.exists(finished) and not args.overwrite:
        raise BadInput(f"{args.out}: is there already; give --overwrite or another --out")
    os.makedirs(args.out, exist_ok=True)
    ours = re.compile(r"\d+\.(best\.)?jsonl?(\.part)?|epochs\.jsonl")
    there = [os.path.join(args.out, name) for name in os.listdir(args.out) if ours.fullmatch(name)]
    errors.same_command(note, args, there)
    if args.overwrite:
        for file in (*there, finished, *(os.path.join(args.out, n) for n in ("replies.jsonl", "proposals.jsonl", "step.json"))):
            Path(file).unlink(missing_ok=True)

    def tasks_of(functions):
        return explore.load_tasks(argparse.Namespace(**{**vars(args), "functions": functions}))
    tasks_of([])                                            # what is wrong with them is to be said before anybody is loaded
    agent = make_agent(args.agent, args, os.path.join(args.out, "replies.jsonl"))
    proposer = make_proposer(args, os.path.join(args.out, "proposals.jsonl"))
    progress = optimize(args, tasks_of, agent, proposer)
    Path(finished).touch()
    os.remove(note)
    names = ", ".join(f["name"] for f in progress.functions) or "none: nothing that was proposed helped, or could be applied"
    print(f"{args.out}/functions.json: {progress.performance:.1%} right; functions: {names}")


if __name__ == "__main__":
    errors.run(main)
