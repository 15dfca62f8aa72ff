"""Tests run from the repository's root, offline, on one thread. What several files of tests use stands here.

The stages are called inside the test's process: `run_explore("--agent", "expert")` is `python explore.py --agent expert`.
"""
import os
import sys
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import pytest
import torch

torch.set_num_threads(1)
SHORT = ["--max-steps", 3, "--max-tokens", 6, "--slots", 4, "--keep-invalid"]      # an untrained agent babbles: keep it short
TINY = ["--agent", "tiny", "--width", 32, "--layers", 2, "--heads", 2]


def argv(*words):
    """Within it, these words are the command line."""
    return mock.patch.object(sys, "argv", ["program", *map(str, words)])


def run_explore(*words):
    import explore
    with argv(*words):
        explore.main()


def begun(*words):
    """Leave behind what an exploration writes down before it plays."""
    import errors
    import explore
    with argv(*words):
        args = explore.parse()
    errors.same_command(f"{args.out}.args", args, [])


def stop_at(monkeypatch, n):
    """The nth episode that is begun from now on is a Ctrl-C. Returns the list of the tasks that were begun, which grows."""
    import explore
    whole, played = explore.episode, []

    async def play(task, *args):
        played.append(task.id)
        if len(played) == n:
            raise KeyboardInterrupt
        return await whole(task, *args)
    monkeypatch.setattr(explore, "episode", play)
    return played


def train_args(*words):
    import train
    with argv(*words):
        return train.parse()


def run_train(*words):
    import train
    train.main(train_args(*words))


def run_evaluate(*words):
    import evaluate
    with argv(*words):
        evaluate.main()


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """A folder for what all tests share; nobody changes what lies there."""
    return tmp_path_factory.mktemp("shop")


@pytest.fixture(scope="session")
def demos(shop):
    """30 demonstrations of the expert in the built-in houses."""
    run_explore("--agent", "expert", "--limit", 30, "--max-steps", 30, "--out", shop / "demos.jsonl")
    return shop / "demos.jsonl"


@pytest.fixture(scope="session")
def student(shop, demos):
    """A tiny agent, tuned for one epoch on the demonstrations: it has the vocabulary, and hardly a clue."""
    run_train(*TINY, "--loss", "lm", "--data", demos, "--batch-size", 8, "--lr", 1e-2, "--out", shop / "student")
    return shop / "student"


@pytest.fixture(scope="session")
def played(shop, student):
    """8 short episodes of the student, all failures (reward -1 at the step limit)."""
    run_explore("--agent", student, "--limit", 8, "--temperature", 0.7, *SHORT, "--out", shop / "played.jsonl")
    return shop / "played.jsonl"
