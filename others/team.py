"""A team: the N agents of a joint pattern, their critics, and what makes the next turn's prompts (CoMLRL).

    --agent runs/1/0,runs/1/1       agents of any kind, in the order of their parts; adapters of one base model share it in memory
    --critics runs/critic           one that reads all prompts (MAAC), or one an agent, that reads its (IAC with separate critics)
    --external MODE                 the environment's external transition of that name, or FILE.py:FUNCTION of the signature

        f(prompt, agent_completions, num_agents, prompt_history_per_agent=None, response_history_per_agent=None) -> prompts

`prompt` is the task's own; the histories, one list an agent, include the turn that has just ended. What it returns goes through
each agent's formatter as a new prompt would, unless --external-prompt-passthrough. It is called in a thread of its own, so it may
take its time. A FILE.py is run as what it is, the user's own program.
"""
import argparse
import asyncio
import importlib.util
import itertools
import os

import buffer
import envs
import patterns
from errors import BadInput
from others.names import make_agent


def make_team(args, replies):
    """(agents, critics, expert): those behind --agent, --critics and --expert."""
    names, world = args.agent.split(","), envs.module(args.env)
    if len(names) != world.AGENTS:
        raise BadInput(f"--agent {args.agent}: --env {args.env} has {world.AGENTS} agents; name them with commas between")
    critics = args.critics.split(",") if args.critics else []
    if len(critics) not in (0, 1, len(names)):
        raise BadInput(f"--critics {args.critics}: give one that reads all prompts, or one an agent ({len(names)})")
    for name in critics:
        if not os.path.isdir(name):
            raise BadInput(f"--critics {name}: no checkpoint of train.py; give its folder")
    if (args.external == "expert_edits") != bool(args.expert):
        raise BadInput("--expert, --external: expert_edits needs an --expert AGENT who proposes the edits, and nothing else does")
    length = args.max_length * (1 if len(critics) > 1 else len(names))          # one critic reads all prompts
    one = argparse.Namespace(**{**vars(args), "max_tokens": 1, "max_length": length})
    shared = {}                                     # base model -> (its policy, how many adapters there are on it)
    return ([make_agent(name, args, replies, shared=shared) for name in names],
            [make_agent(name, one, replies, shared=shared) for name in critics],
            make_agent(args.expert, args, replies, student=False) if args.expert else None)


def make_external(args, task, propose):
    """The external transition of a task, by its name."""
    file, _, function = args.external.rpartition(":")
    if file:
        return load_function(file, function)
    return envs.module(args.env).transition(args.external, task, args.sandbox_slice, propose)


def in_thread(made, args, task, agents):
    """An external transition as async (completions, prompts, responses) -> the next prompts, through the formatters."""
    world = envs.module(args.env)

    async def transition(completions, prompts, responses):
        found = await asyncio.to_thread(made, task.prompt, completions, agents, prompt_history_per_agent=prompts,
                                        response_history_per_agent=responses)
        if args.external_prompt_passthrough or not isinstance(found, (list, tuple)):        # (patterns.joint refuses the latter)
            return found
        return [world.format_prompt(task, agent, prompt) for agent, prompt in enumerate(found)]
    return transition


def load_function(file, name):
    """A function of a user's Python file."""
    try:
        spec = importlib.util.spec_from_file_location("external", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return vars(module)[name]
    except (AttributeError, OSError, SyntaxError, ImportError, KeyError) as error:
        raise BadInput(f"--external {file}:{name}: cannot be loaded ({type(error).__name__}: {error}); give "
                       "FILE.py:FUNCTION") from None


def sandbox_slice(text):
    """1, the first test, or another number: the first n, or the last; 0 or all: all of them. As the `type` of an argument."""
    try:
        return 0 if text == "all" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: give a number, or all") from None


async def play_tree(task, team, slots, args):
    """Grow the tree of a task. slots: a semaphore an agent and a critic. Returns its trajectories, those of the root last."""
    from agent import Overflow
    agents, critics, expert = team
    world, speakers, loop, tries = envs.module(args.env), [*agents, *critics], asyncio.get_running_loop(), itertools.count()
    name = f"{args.round}/{args.seed}/{task.id}"

    def begin(path, number, k):
        node = ".".join(map(str, path))
        speaker = speakers[number]
        t = buffer.Trajectory(
            id=f"{name}/{node}/{number}.{k}", task=task.id, env=args.env, split=task.split, kind=task.kind, pattern="joint",
            round=args.round, policy=speaker.name, temperature=args.temperature, group=f"{name}/{node}", agent=number,
            turn=len(path) + 1)
        t.add(world.INSTRUCTION, buffer.SYSTEM, "instruction")
        return t

    async def complete(number, t, role="completion"):
        async with slots[number]:
            try:
                await speakers[number].reply(t, role)
            except Overflow:
                t.truncated = True
                t.add("", buffer.SYSTEM, role)
            finally:
                speakers[number].close(t)

    async def values(path, prompts):
        found = []
        for number in range(len(agents), len(speakers)):
            t = begin(path, number, 0)
            t.add("\n".join(prompts) if len(critics) == 1 else prompts[number - len(agents)], buffer.SYSTEM, "task")
            found.append(t)
        await asyncio.gather(*(complete(t.agent, t, "value") for t in found))
        if any(t.truncated for t in found):
            raise BadInput(f"--max-length {args.max_length}: too short for a critic to read {found[0].id}; give more")
        said = [t.segments[-1].values[0] for t in found]
        return found, said * len(agents) if len(said) == 1 else said

    def propose(request):                                   # called from the thread of the transition
        scratch = buffer.Trajectory(id=f"{name}/edits/{next(tries)}", task=task.id, env=args.env)
        scratch.add(request, buffer.SYSTEM, "task")

        async def ask():
            try:
                return (await expert.reply(scratch, "completion", buffer.OTHER)).text
            except Overflow:
                return ""
            finally:
                expert.close(scratch)
        return asyncio.run_coroutine_threadsafe(ask(), loop).result()

    async def judge(texts):
        return await asyncio.to_thread(world.judge, task, texts)
    made = make_external(args, task, propose)
    tree = patterns.Tree(begin, complete, judge, in_thread(made, args, task, len(agents)), values, len(agents), args.turns,
                         args.generations, args.joint_mode, args.early_termination)
    prompts = [world.format_prompt(task, agent, task.prompt) for agent in range(len(agents))]
    _, trajectories = await patterns.joint(tree, prompts)
    for t in trajectories if expert else ():
        t.metrics["edits_refused"] = made.broken
    return trajectories
