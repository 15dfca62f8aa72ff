"""Stage 1: let agents act, and write down what happens (LTC §3.1, A.6).

    python explore.py --agent expert:0.8 --env alfworld --split train --limit 3000 --out runs/demos.jsonl
    python explore.py --agent runs/agent --env alfworld --split train --limit 256 --round 1 --out runs/1.jsonl
    python explore.py --agent runs/agent --env hotpotqa --pattern dialogue --teacher expert --max-steps 8 --out runs/1.jsonl
    python explore.py --agent runs/agent --env gsm8k --pattern analogue --teacher http://HOST:8000/v1#gpt --out runs/1.jsonl
    python explore.py --agent runs/agent --env apibank --per-task 5 --critic http://HOST:8000/v1#yi --out runs/1.jsonl
    python explore.py --criticise runs/1.jsonl --critic oracle:0.7/0.97 --out runs/1-scored.jsonl
    python explore.py --agent runs/agent --pattern actre --annotator expert --failed runs/1.jsonl --round 1 --per-task 9 \
        --out runs/1c.jsonl

Every task of the split is played once, or --per-task times; as many episodes run at once as the agent has slots. Finished ones
are appended to OUT.part; when all are there, they are written to OUT in the order of the tasks. A run that was stopped goes on
from OUT.part, if the arguments are those in OUT.args.

Dialogue and Analogue need a --teacher; its words get mask 2, and the log-probabilities that the agent gives them (L7). Replies of
a server are kept in OUT.replies.jsonl, so that nothing is asked, and paid, twice.

With a --critic each trajectory gets a score (--criticise: those of a file, and nothing is played). oracle:P/R is a critic who is
told how it ended, and errs (others/expert.py).

A trajectory that the step limit or the context's length cut off is stored with `truncated` and a last reward of
--overflow-reward (L13: -1, where the paper's listing has 0 and its appendix "non-zero").
"""
import argparse
import asyncio
import os
import random
import re
import sys
from pathlib import Path

import buffer
import envs
import errors
import patterns
import ranks
from errors import BadInput
from others.names import make_agent, make_critic, make_other
from others.team import make_team, play_tree, sandbox_slice

# The arguments below for an agent that plays each task once and alone, as it is tested; a team plays it with one answer a turn.
ALONE = {"pattern": "monologue", "judge": "env", "assume_teacher": False, "round": 0, "per_task": 1, "until_success": None,
         "joint_mode": "aligned", "generations": 1, "early_termination": None, "critics": None}


def parse():
    p = argparse.ArgumentParser(description="Play tasks and record the trajectories.")
    p.add_argument("--agent",
                   help="a checkpoint directory, a hub name, http://HOST:PORT/v1#MODEL, expert, or expert:SHARE (careless in "
                   "that share of the episodes); of a team: A,B")
    p.add_argument("--out", required=True, help="the JSONL file to write")
    add_arguments(p)
    p.add_argument("--split", default="train", help="which tasks")
    p.add_argument("--functions", help="mathqa: a functions.json of optimize.py, whose functions the agent may call")
    p.add_argument("--pattern", choices=["monologue", "dialogue", "analogue", "actre", "joint"],
                   help=f"who speaks when; default monologue, joint for --env {' and '.join(envs.JOINT)}")
    p.add_argument("--teacher", help="the other agent of a dialogue or analogue, named as for --agent")
    p.add_argument("--judge", choices=["env", "teacher"], default="env", help="who rewards the first answer of an analogue (L12)")
    p.add_argument("--assume-teacher", action="store_true",
                   help="+1 for each correction of an analogue's teacher, as the paper; default: only for right ones (L12)")
    p.add_argument("--annotator", help="actre: who writes the reasons of sampled actions: as --agent, or none for no reasons")
    p.add_argument("--p-sample", type=float, default=0.5, help="actre: probability that an action is sampled (A3T: 0.5)")
    p.add_argument("--critic", help="who scores the finished trajectories: as --agent, or oracle:PRECISION/RECALL")
    p.add_argument("--criticise", metavar="FILE", help="score the trajectories of this file; nothing is played")
    p.add_argument("--failed", nargs="+", help="only the tasks that are failed in these files, and solved in none of them")
    p.add_argument("--per-task", type=errors.count, default=1, help="episodes a task (A3T: ALFWorld 40, WebShop at most 20)")
    p.add_argument("--until-success", type=errors.count, metavar="N",
                   help="stop a task's episodes at the first success, but not before N episodes (A3T on WebShop: 3)")
    p.add_argument("--joint-mode", choices=["aligned", "cross"], default="aligned", help="joint: which answers are combined")
    p.add_argument("--generations", type=errors.count, default=4, help="joint: answers at each node (MAGRPO 4; IAC, MAAC 1)")
    p.add_argument("--early-termination", type=float, metavar="R", help="joint: no further turn after a mean reward above R")
    p.add_argument("--critics", help="joint: whose values are recorded: one that reads all prompts, or one an agent, A,B")
    p.add_argument("--round", type=int, default=0, help="number of this exploration, stored in the record")
    p.add_argument("--temperature", type=float, default=1.0, help="of sampling; 0 is greedy")
    p.add_argument("--overwrite", action="store_true", help="replace a finished OUT, and forget an unfinished one")
    args = p.parse_args()
    args.pattern = args.pattern or ("joint" if args.env in envs.JOINT else "monologue")
    return args


def add_arguments(p):
    """What exploring and evaluating have in common."""
    p.add_argument("--env", default="alfworld", help=f"one of {', '.join(envs.NAMES)}")
    p.add_argument("--data", help="folder of the benchmark's official files; default: the built-in tasks")
    p.add_argument("--wiki", choices=["offline", "live"], help="hotpotqa: search the paragraphs of --data, or the real Wikipedia")
    p.add_argument("--apibank", help="apibank: run the official tools of this checkout (the folder api-bank)")
    p.add_argument("--limit", type=errors.count, help="at most this many tasks (LTC: 256 an iteration)")
    p.add_argument("--seed", type=int, default=0, help="of the tasks and of sampling")
    p.add_argument("--max-steps", type=errors.count, default=50, help="step limit of an episode (LTC's program: 32)")
    p.add_argument("--max-tokens", type=errors.count, default=40, help="longest reply in tokens (LTC: 128)")
    p.add_argument("--max-length", type=errors.count, default=1024, help="longest episode in tokens (LTC: 1024)")
    p.add_argument("--slots", type=errors.count, default=64, help="episodes at once; memory grows with slots x max-length")
    p.add_argument("--turns", type=errors.count, default=2, help="joint: answers one after the other (CoMLRL: 2)")
    p.add_argument("--external", default="plain", metavar="MODE",
                   help="joint: what makes the next prompts: plain, level_feedback, expert_edits, or FILE.py:FUNCTION")
    p.add_argument("--external-prompt-passthrough", action="store_true", help="joint: use them as they are")
    p.add_argument("--sandbox-slice", type=sandbox_slice, default=1,
                   help="level_feedback: tests that are run: 1 the first, 0 or all, -n the last n")
    p.add_argument("--expert", help="expert_edits: who proposes edits, named as for --agent")
    p.add_argument("--overflow-reward", type=float, default=-1.0, help="last reward of an episode that was cut off")
    p.add_argument("--keep-invalid", action="store_true", help="learn from unparsable actions too (LTC A.2 skips them)")
    add_loading_arguments(p)
    p.add_argument("--plain", action="store_true", help="local models without their chat templates")
    p.add_argument("--value-layer", type=int, help="layer the value is read from: -2 paper, -1 program; default the checkpoint's")
    p.add_argument("--threads", type=errors.count, default=1, help="CPU threads; more than one helps only bigger models")


def add_loading_arguments(p):
    """How local models are loaded."""
    p.add_argument("--dtype", choices=["float32", "bfloat16"], help="of the weights; default float32 on a CPU, bfloat16 on a GPU")
    p.add_argument("--load-4bit", action="store_true", help="weights in 4 bits (NF4, doubly quantised; QLoRA)")


def load_tasks(args):
    """The tasks that the arguments name."""
    only = {"wiki": "hotpotqa", "apibank": "apibank", "functions": "mathqa"}
    options = {name: vars(args)[name] for name in only if vars(args)[name]}
    for name, env in only.items():
        if name in options and args.env != env:
            raise BadInput(f"--{name} {options[name]}: it is for --env {env}; leave it out")
    tasks = envs.tasks(args.env, args.split, args.data, args.limit, args.seed, **options)
    if not tasks:
        raise BadInput(f"--data {args.data}: there is no task in it")
    return tasks


def only_failed(tasks, files):
    """The tasks that some trajectory of these files fails and none solves."""
    outcomes = {}
    for t in (t for path in files for t in buffer.read(path)):
        outcomes[t.task] = outcomes.get(t.task, False) or t.success
    left = [task for task in tasks if outcomes.get(task.id) is False]
    if not left:
        raise BadInput(f"--failed {' '.join(files)}: none of the {len(tasks)} tasks is failed in it; give the same --limit and "
                       "--seed as there")
    return left


async def episode(task, agent, teacher, args, number=0):
    """Play one task to its end, the `number`th time. `teacher`: or annotator. Returns the trajectory."""
    from agent import Overflow
    world, env = envs.module(args.env), task.make(max_steps=args.max_steps)
    name = f"{args.round}/{args.seed}/{task.id}" + (f"#{number}" if args.per_task > 1 else "")     # it seeds all chance, too
    trajectory = buffer.Trajectory(
        id=name, task=task.id, env=args.env, split=task.split, kind=task.kind, pattern=args.pattern, round=args.round,
        policy=agent.name, teacher=teacher.name if teacher else "", temperature=args.temperature)
    trajectory.add(world.INSTRUCTION, buffer.SYSTEM, "instruction")
    rules = patterns.Rules(args.keep_invalid, args.overflow_reward, args.judge, args.assume_teacher)
    try:
        if args.pattern == "monologue":
            await patterns.monologue(env, agent, trajectory, rules)
        elif args.pattern == "dialogue":
            await patterns.dialogue(env, agent, teacher, trajectory, rules)
        elif args.pattern == "actre":
            await patterns.actre(env, agent, teacher, trajectory, random.Random(f"actre {trajectory.id}"), rules, args.p_sample)
        else:
            await patterns.analogue(env, task.make(max_steps=args.max_steps), lambda words: world.analogous(task, env, words),
                                    agent, teacher, trajectory, rules)
        trajectory.truncated = env.truncated
    except Overflow:
        trajectory.truncated = True
        trajectory.segments[-1].reward += args.overflow_reward
        trajectory.reward += args.overflow_reward
    trajectory.success, trajectory.metrics = env.won, env.metrics
    for speaker in (agent, teacher) if teacher else (agent,):
        speaker.close(trajectory)
    return trajectory


async def play_joint(tasks, team, args, on_end, done):
    """Grow the trees of all tasks at once, each agent with at most --slots answers in the making. done: task -> its whole
    tree."""
    from tqdm import tqdm
    agents, critics, _ = team
    slots = [asyncio.Semaphore(args.slots) for _ in (*agents, *critics)]
    bar = tqdm(total=len(tasks), initial=len(done), desc=f"explore {args.agent}", unit="tree", dynamic_ncols=True, mininterval=1,
               disable=ranks.RANK > 0)
    returns = []

    async def one(task):
        found = done.get(task.id) or await play_tree(task, team, slots, args)
        if task.id not in done:
            on_end(*found)
            bar.update()
        returns.append(found[-1].metrics["expected_return"])
        bar.set_postfix_str(f"expected return {sum(returns) / len(returns):.2f}", refresh=False)
        return found
    with bar:
        return await drawn(tasks, one, args, len(tasks))


async def play(tasks, agent, teacher, args, on_end=lambda trajectory: None, done=None):
    """Play all tasks, --per-task times each, at most --slots at once, with a progress bar. done: task -> trajectories there
    already. Returns the trajectories in the order of the tasks."""
    from tqdm import tqdm
    done = done or {}
    ended = sum(map(len, done.values()))
    won = sum(t.success for found in done.values() for t in found)
    bar = tqdm(total=len(tasks) * args.per_task, initial=ended, desc=f"explore {agent.name}", unit="ep", dynamic_ncols=True,
               mininterval=1, disable=ranks.RANK > 0)

    async def one(task):
        nonlocal ended, won
        found = list(done.get(task.id, ()))
        for number in range(len(found), args.per_task):
            if args.until_success and len(found) >= args.until_success and any(t.success for t in found):
                break
            found.append(await episode(task, agent, teacher, args, number))
            on_end(found[-1])
            ended, won = ended + 1, won + found[-1].success
            bar.set_postfix_str(f"success {won / ended:.0%}", refresh=False)
            bar.update()
        return found

    with bar:
        return await drawn(tasks, one, args, args.slots)


async def drawn(tasks, one, args, n):
    """The trajectories of the tasks that this rank draws, in the order of the tasks: n at once, each then draws the next."""
    draw, found = ranks.counter(args.out), {}

    async def worker():
        while (i := draw()) < len(tasks):
            found[i] = await one(tasks[i])
    await asyncio.gather(*(worker() for _ in range(n)))
    return [t for i in sorted(found) for t in found[i]]


async def criticise(trajectories, critic, args):
    """Have a critic score each trajectory, --slots at once."""
    from tqdm import tqdm
    slots, bar = asyncio.Semaphore(args.slots), tqdm(total=len(trajectories), desc=f"criticise {critic.name}", dynamic_ncols=True)

    async def one(trajectory):
        async with slots:
            trajectory.score = await patterns.criticise(critic, trajectory)
        bar.update()
    with bar:
        await asyncio.gather(*map(one, trajectories))
    missing = sum(t.score < 0 for t in trajectories)
    print(f"{critic.name}: {len(trajectories)} replies, {missing} without a score", file=sys.stderr)


def score_all(trajectories, critic, args):
    """`criticise`, each rank a share of them."""
    mine = ranks.share(trajectories)
    asyncio.run(criticise(mine, critic, args))
    for rank, scores in enumerate(ranks.together([t.score for t in mine])):
        for t, score in zip(trajectories[rank::ranks.WORLD], scores):
            t.score = score


def explore(args, tasks, agent, teacher=None, critic=None):
    """Play what OUT.part does not hold yet, have it scored, then write OUT. Returns all trajectories. agent: with --pattern joint
    a team, whose trees are whole in OUT.part, or are grown again. Under torchrun each rank has a part of its own, and all return
    all."""
    part, done = f"{args.out}.part", {}
    if ranks.RANK == 0:
        collect(args.out)
    ranks.wait()
    if os.path.getsize(part):
        for t in buffer.read(part):
            done.setdefault(t.task, []).append(t)
        if stray := done.keys() - {t.id for t in tasks}:
            raise BadInput(f"{part}: task {min(stray)} in it is not among those to play; did --data or --failed change? Give "
                           "--overwrite to begin anew")
        if args.pattern == "joint":             # the root comes last
            done = {task: found for task, found in done.items() if found[-1].id == root_end(found[-1], agent, args)}
        print(f"{part}: going on after {sum(map(len, done.values()))} episodes", file=sys.stderr)
    ranks.wait()                                # nobody writes before all have read
    if args.pattern == "joint" and ranks.RANK == 0:
        buffer.write(part, [t for found in done.values() for t in found])
    with open(f"{args.out}.{ranks.RANK}.part" if ranks.RANK else part, "a", encoding="utf-8") as file:
        def keep(*found):
            file.write("".join(map(buffer.to_line, found)))
            file.flush()
        joint = args.pattern == "joint"
        playing = play_joint(tasks, agent, args, keep, done) if joint else play(tasks, agent, teacher, args, keep, done)
        trajectories = asyncio.run(playing)
    if ranks.WORLD > 1:
        trajectories = all_of_them(args, tasks)
    if critic:
        score_all(trajectories, critic, args)
    if ranks.RANK == 0:
        buffer.write(args.out, trajectories)
        os.remove(part)
    ranks.wait()
    return trajectories


def collect(out):
    """Put what other ranks have written into OUT.part; torn lines are cut."""
    part, folder = f"{out}.part", os.path.dirname(out) or "."
    Path(part).touch()
    buffer.cut_torn_line(part)
    for name in sorted(os.listdir(folder)):
        if re.fullmatch(re.escape(os.path.basename(out)) + r"\.\d+\.part", name):
            other = os.path.join(folder, name)
            buffer.cut_torn_line(other)
            with open(part, "a", encoding="utf-8") as file:
                file.write(buffer.open_text(other))
            os.remove(other)


def all_of_them(args, tasks):
    """The trajectories of all ranks, in the order of the tasks."""
    ranks.wait()
    if ranks.RANK == 0:
        collect(args.out)
    ranks.wait()
    order = {task.id: i for i, task in enumerate(tasks)}
    return sorted(buffer.read(f"{args.out}.part"), key=lambda t: order[t.task])      # stable


def root_end(trajectory, team, args):
    """The id of the last trajectory of the tree that this one is part of."""
    agents, critics, _ = team
    last = f"{len(agents) + len(critics) - 1}.0" if critics else f"{len(agents) - 1}.{args.generations - 1}"
    return f"{args.round}/{args.seed}/{trajectory.task}//{last}"


def main():
    args = parse()
    ranks.start()
    if (args.pattern == "joint") != (args.env in envs.JOINT):
        raise BadInput(f"--pattern {args.pattern}: joint is for --env {' and '.join(envs.JOINT)}, and the others are not")
    if os.path.exists(args.out) and not args.overwrite:
        raise BadInput(f"{args.out}: is there already; give --overwrite or another --out")
    if bool(args.agent) == bool(args.criticise) or (args.criticise and not args.critic):
        raise BadInput("--agent, --criticise: give either an --agent who plays, or --criticise FILE and a --critic")
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    replies, agent, teacher = f"{args.out}.replies.jsonl", None, None
    tasks = [] if args.criticise else only_failed(load_tasks(args), args.failed) if args.failed else load_tasks(args)
    if ranks.RANK == 0:
        begin(args, replies)
    ranks.wait()
    if args.criticise:
        trajectories = buffer.read(args.criticise)
        critic = make_critic(args, trajectories[0].env)
        score_all(trajectories, critic, args)
        if ranks.RANK == 0:
            buffer.write(args.out, trajectories)
    else:
        if args.pattern == "joint":
            agent, teacher = make_team(args, replies), None
        else:
            agent, teacher = make_agent(args.agent, args, replies), make_other(args)
        critic = make_critic(args, args.env) if args.critic else None
        if args.overwrite and ranks.RANK == 0:
            collect(args.out)
            os.remove(f"{args.out}.part")
        trajectories = explore(args, tasks, agent, teacher, critic)
    if ranks.RANK == 0:
        Path(f"{args.out}.args").unlink(missing_ok=True)
        speakers = (*(agent[0] if args.pattern == "joint" else [agent]), teacher, critic)
        report(args, trajectories, [speaker for speaker in speakers if speaker])
    ranks.end()


def begin(args, replies):
    """Note the command, and forget what an earlier one has left if it is to be overwritten."""
    if not args.criticise:
        errors.same_command(f"{args.out}.args", args, [f"{args.out}.part"])
    if args.overwrite:
        Path(replies).unlink(missing_ok=True)


def report(args, trajectories, speakers):
    """Say what servers were asked, and how it went."""
    for speaker in speakers:
        if speaker.name.startswith("http"):
            print(f"{speaker.name}: {speaker.asked} requests, {speaker.tokens['prompt']:,} tokens read, "
                  f"{speaker.tokens['reply']:,} written", file=sys.stderr)
    won = sum(t.success for t in trajectories)
    print(f"{args.out}: {len(trajectories)} trajectories, success {won / len(trajectories):.1%}")


if __name__ == "__main__":
    errors.run(main)
