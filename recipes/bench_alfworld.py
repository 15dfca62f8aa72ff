"""How fast is the ALFWorld engine, and how fast the official one, on the same games and the same commands?

    python recipes/bench_alfworld.py --data DIR [--official VENV/bin/python] [--games 12]

DIR holds ALFWorld's json_2.1.1. The other engine runs in a process of its own, with the Python given by --official; without
it only our side is measured. Make that Python so: python -m venv VENV && VENV/bin/pip install alfworld==0.4.2

Each game is loaded and reset, its stored walkthrough is played, then 20 random admissible commands. Both sides compute the
admissible commands at reset and at every step (the official engine cannot do without), and both load one game before the
clock starts. What they answer is compared as well. Memory is the peak of each process: ours holds the engine alone, no torch.
"""
import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS = (("load, ms", "load"), ("reset, ms", "reset"), ("steps/s", "rate"))
INSTALL = "python -m venv VENV && VENV/bin/pip install alfworld==0.4.2"


def peak_memory():
    """MB (Linux reports kilobytes, macOS bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)


def measure(load, reset, step, commands):
    """Time one game. `reset` and `step` return (observation, admissible commands). -> its numbers, and what it answered"""
    start = time.perf_counter()
    env = load()
    loaded = time.perf_counter()
    first = reset(env)
    ready = time.perf_counter()
    answers = [step(env, command) for command in commands]
    seconds = time.perf_counter() - ready
    return {"load": 1000 * (loaded - start), "reset": 1000 * (ready - loaded), "rate": len(commands) / seconds,
            "answers": [[text, list(listed)] for text, listed in [first, *answers]]}


# ---------------------------------------------------------------- the official side: runs in its own Python, without our code

def official(plan_file, result_file):
    """Play the plan, a list of [game file, commands], with TextWorld and ALFWorld's names."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    with open(plan_file) as file:
        plan = json.load(file)
    infos = textworld.EnvInfos(won=True, admissible_commands=True)
    env = textworld.start(plan[0][0], infos, wrappers=[AlfredDemangler()])      # not timed; one environment for all games
    env.reset()

    def load(file):
        env.load(file)
        return env

    def read(state):
        return state.feedback, state.admissible_commands

    games = [measure(lambda file=file: load(file), lambda env: read(env.reset()),
                     lambda env, command: read(env.step(command)[0]), commands) for file, commands in plan]
    with open(result_file, "w") as file:
        json.dump({"games": games, "memory": peak_memory()}, file)


def run_official(python, plan):
    """-> {"games": [...], "memory": MB}"""
    from errors import BadInput
    with tempfile.TemporaryDirectory() as folder:
        plan_file, result_file = Path(folder) / "plan.json", Path(folder) / "result.json"
        plan_file.write_text(json.dumps(plan))
        command = [python, __file__, "--play-plan", str(plan_file), str(result_file)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise BadInput(f"--official {python}: cannot be run ({error.strerror}); {INSTALL}") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise BadInput(f"--official {python}: {last}; {INSTALL}")
        return json.loads(result_file.read_text())


# ---------------------------------------------------------------- our side

def reset_ours(env):
    return env.reset(), env.admissible


def step_ours(env, command):
    return env.step(command)[0], env.admissible


def make_plan(data, count, seed):
    """Draw games from all splits, and commands for each: the walkthrough, then 20 random admissible ones."""
    from envs.alfworld import marked_unsolvable
    from envs.alfworld_game import Game, load
    from errors import BadInput
    files = sorted((Path(data) / "json_2.1.1").glob("*/*/*/game.tw-pddl"))
    files = [str(file.resolve()) for file in files if not marked_unsolvable(file)]
    if not files:
        raise BadInput(f"--data {data}: no json_2.1.1/SPLIT/TASK/TRIAL/game.tw-pddl below it; give the folder of json_2.1.1")
    rng, plan = random.Random(seed), []
    for file in rng.sample(files, min(count, len(files))):
        env = Game(load(file), max_steps=None)
        commands = json.loads(Path(file).read_text(encoding="utf-8")).get("walkthrough") or []
        for command in commands:
            env.step(command)
        for _ in range(20):
            commands = commands + [rng.choice(env.admissible)]
            env.step(commands[-1])
        plan.append([file, commands])
    return plan


def ours(plan):
    from envs.alfworld_game import Game, load
    return {"games": [measure(lambda file=file: Game(load(file), max_steps=None), reset_ours, step_ours, commands)
                      for file, commands in plan], "memory": peak_memory()}


def built_in(count, seed):
    """The built-in houses: make, reset, and 30 random admissible commands each."""
    import envs
    games = []
    for task in envs.tasks("alfworld", "train", limit=count, seed=seed):
        env, rng, commands = task.make(max_steps=None), random.Random(task.id), []
        for _ in range(30):
            commands.append(rng.choice(env.admissible))
            env.step(commands[-1])
        games.append(measure(lambda task=task: task.make(max_steps=None), reset_ours, step_ours, commands))
    return {"games": games}


# ---------------------------------------------------------------- the table

def number(value):
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def in_words(values):
    """[1, 2, 4] -> "2.00 (1.00 - 4.00)": median, least, most."""
    return f"{number(statistics.median(values))} ({number(min(values))} - {number(max(values))})"


def spread(side, name):
    """Median, least and most over the games."""
    return in_words([game[name] for game in side["games"]])


def median(side, name):
    return statistics.median(game[name] for game in side["games"])


def table(mine, other):
    """Print median (min - max) over the games, and how many times better ours is."""
    print(f"{'':<12}{'parley':>28}" + (f"{'alfworld 0.4.2':>28}{'times better':>28}" if other else ""))
    for title, name in ROWS:
        line = f"{title:<12}{spread(mine, name):>28}"
        if other:
            better = [(a[name] / b[name]) if name == "rate" else (b[name] / a[name])
                      for a, b in zip(mine["games"], other["games"], strict=True)]
            line += f"{spread(other, name):>28}{in_words(better):>28}"
        print(line)
    line = f"{'memory, MB':<12}{number(mine['memory']):>28}"
    print(line + (f"{number(other['memory']):>28}{number(other['memory'] / mine['memory']):>28}" if other else ""))


def same_answers(mine, other):
    """Count the answers (first observation, then feedback and admissible commands) that are the same. -> (same, all)"""
    pairs = [(a, b) for one, two in zip(mine["games"], other["games"], strict=True)
             for a, b in zip(one["answers"], two["answers"], strict=True)]
    return sum(a == b for a, b in pairs), len(pairs)


def summary(mine, other, houses, seed, seconds):
    """The numbers in the shape that every recipe writes to OUT/summary.json; n is the number of games."""
    sides = [("parley", mine), ("alfworld 0.4.2", other), ("built-in houses", houses)]
    rows = [{"name": side, "metric": title, "value": round(median(result, name), 4), "n": len(result["games"])}
            for side, result in sides if result for title, name in ROWS]
    rows += [{"name": side, "metric": "memory, MB", "value": round(result["memory"], 1), "n": len(result["games"])}
             for side, result in sides if result and "memory" in result]
    return {"recipe": "bench_alfworld", "seed": seed, "seconds": round(seconds, 1), "rows": rows}


def main():
    from errors import BadInput
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder that holds json_2.1.1")
    parser.add_argument("--official", metavar="PYTHON", help="a Python that has alfworld 0.4.2; its side is measured too")
    parser.add_argument("--games", type=int, default=12, help="how many games (default 12)")
    parser.add_argument("--seed", type=int, default=0, help="which games and which random commands")
    parser.add_argument("--out", help="a folder: write OUT/summary.json there")
    args = parser.parse_args()
    if args.games < 1:
        raise BadInput(f"--games {args.games}: give 1 or more")
    start = time.time()
    plan = make_plan(args.data, args.games, args.seed)
    mine = ours(plan)
    other = run_official(args.official, plan) if args.official else None
    houses = built_in(args.games, args.seed)
    print(f"{len(plan)} official games, {sum(len(commands) for _, commands in plan)} commands; median (min - max) over the games")
    table(mine, other)
    make, reset, rate = (spread(houses, name) for _, name in ROWS)
    print(f"built-in houses: make {make} ms, reset {reset} ms, {rate} steps/s")
    if args.out:
        os.makedirs(args.out, exist_ok=True)
        text = json.dumps(summary(mine, other, houses, args.seed, time.time() - start), indent=1)
        Path(args.out, "summary.json").write_text(text + "\n")
    if not other:
        print(f"the official engine beside it: {INSTALL}, then add --official VENV/bin/python")
        return
    same, count = same_answers(mine, other)
    print(f"the same answers and admissible commands: {same} of {count}")
    if same != count:
        sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play-plan"]:
        official(*sys.argv[2:])
    else:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        from errors import run
        run(main)
