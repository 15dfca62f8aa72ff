"""Environments: what an agent acts in. Each module reads its benchmark's official files and has a small built-in world.

    env = task.make(max_steps=50)
    env.reset() -> str                  the first observation
    env.step(action) -> (observation, reward, done)
    env.admissible -> list[str]         the commands that would do something now (may be empty)
    env.won, env.truncated              how it ended: solved, or cut off by the step limit

A module offers `tasks(split, data, limit, seed)`, `expert(first, steps, careless)`, `INSTRUCTION` (the prompt for a
language model) and `PHRASES` (fixed strings that the tiny agent's tokenizer keeps whole). No torch here, and no network.
"""
import importlib
from dataclasses import dataclass
from typing import Callable

from errors import BadInput

NAMES = ("alfworld",)


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


def tasks(name, split, data=None, limit=None, seed=0):
    """The tasks of a split: built-in ones, or the official files below `data`. The order depends on the seed alone."""
    return module(name).tasks(split, data=data, limit=limit, seed=seed)
