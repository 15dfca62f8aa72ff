"""Environments: what an agent acts in. Each module of NAMES reads its benchmark's official files and has a small built-in world.

    env = task.make(max_steps=50)
    env.reset() -> str                  the first observation
    env.step(action) -> (observation, reward, done)
    env.parses(action) -> bool          is this a command at all? (It may still do nothing.)
    env.admissible -> list[str]         the commands that would do something now, where they can be listed; else empty
    env.possible(action) -> bool        would it do something now? (only where they can be listed)
    env.won, env.truncated              how it ended: solved, or cut off by the step limit
    env.metrics -> dict                 what else its benchmark reports, e.g. {"f1": 0.5}

A module offers
    tasks(split, data, limit, seed)             the problems, and TEST, the name of the split to evaluate on
    expert(first, steps, careless)              the scripted player: the next (thought, action) from what was seen so far
    pose(task, first, chance, careless)         the scripted teacher's similar problem, "question Answer: key" (questions only)
    reason(first, steps, action)                the scripted annotator's thought before any action (where actions can be listed)
    analogous(task, env, words)                 the environment of a similar problem: the one that such words pose (None if they
                                                pose none), or, where words cannot (games), one of its own
    INSTRUCTION                                 the prompt for a language model
    PHRASES, KINDS, MARKS                       fixed strings and numbered things ("mug 1") that are one token of the tiny agent,
                                                and punctuation that it keeps

In those of JOINT, N agents answer at once, and nobody steps. Such a module offers
    tasks(split, data, limit, seed), TEST       the problems, each with id, kind, split and prompt
    AGENTS, INSTRUCTION, PHRASES, KINDS, MARKS  how many, and as above
    format_prompt(problem, agent, prompt)       a prompt for one of the agents
    judge(problem, texts)                       what a joint answer earns: an object with reward, won and metrics
    transition(mode, problem, which, propose)   an external transition: what makes the next turn's prompts (others/team.py)
    complete(task, agent, prompt, chance)       the scripted player's answer; task: a problem's id
No torch here, and no network unless asked for.
"""
import importlib
from dataclasses import dataclass
from typing import Callable

from errors import BadInput

NAMES = ("alfworld", "apibank", "coding", "gsm8k", "hotpotqa", "mathqa", "summaries", "webshop")
JOINT = ("coding", "summaries")


@dataclass(frozen=True)
class Task:
    """One problem. `make(max_steps=50)` returns a fresh environment of it; None lifts the step limit."""
    id: str
    kind: str
    split: str
    make: Callable


def module(name):
    """The environment's module. Raises BadInput for a name that is none of NAMES."""
    if name not in NAMES:
        raise BadInput(f"--env {name}: no such environment; choose from {', '.join(NAMES)}")
    return importlib.import_module(f"envs.{name}")


def tasks(name, split=None, data=None, limit=None, seed=0, **options):
    """The tasks of a split (default: the one to evaluate on): built-in ones, or the official files below `data`. The order
    depends on the seed alone. options: what only this environment knows, e.g. hotpotqa's wiki="live"."""
    return module(name).tasks(split or module(name).TEST, data=data, limit=limit, seed=seed, **options)
