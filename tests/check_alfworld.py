"""Is the ALFWorld engine equal to the official one? A script for the real data; pytest does not collect it.

    python tests/check_alfworld.py --data DIR [--transcripts FILE ...]

DIR holds ALFWorld's json_2.1.1. Every game of every split is loaded, and its stored walkthrough must win it.
A transcript is an episode recorded from the official engine (alfworld 0.4.2), one JSON object a line (.xz is read too):

    {"game": "TASK/TRIAL", "first": observation, "steps": [[command, feedback, reward, done, won], ...],
     "admissible": [sorted commands before the first step, after it, after the second, ...]}

It is replayed command by command, and every field must be the same. Ends with 1 if anything differs.
"""
import argparse
import json
import lzma
import sys
import time
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from envs.alfworld import marked_unsolvable
from envs.alfworld_game import Game, load
from errors import BadInput, run

SHOWN = 5           # how many mismatches are printed


def find_games(data):
    """-> {"SPLIT/TASK/TRIAL": file}, of all splits below DATA/json_2.1.1 that can be solved."""
    files = sorted((Path(data) / "json_2.1.1").glob("*/*/*/game.tw-pddl"))
    if not files:
        raise BadInput(f"--data {data}: no json_2.1.1/SPLIT/TASK/TRIAL/game.tw-pddl below it; give the folder of json_2.1.1")
    return {"/".join(file.parts[-4:-1]): file for file in files if not marked_unsolvable(file)}


def check_walkthroughs(games):
    """Play what the official planner stored in each game. -> names of the games that it does not win."""
    lost, loading, playing, steps = [], 0.0, 0.0, 0
    bar = tqdm(games.items(), desc="walkthroughs", unit="game")
    for name, file in bar:
        walkthrough = json.loads(file.read_text(encoding="utf-8")).get("walkthrough") or []
        start = time.perf_counter()
        env = Game(load(file), max_steps=None)
        loaded = time.perf_counter()
        rewards = [env.step(command)[1] for command in walkthrough]
        playing += time.perf_counter() - loaded
        loading += loaded - start
        steps += len(walkthrough)
        if not env.won or sum(rewards) != 1 or rewards[-1] != 1:
            lost.append(name)
        bar.set_postfix(lost=len(lost), refresh=False)
    print(f"walkthroughs: {len(games) - len(lost)} of {len(games)} games won; {1000 * loading / len(games):.1f} ms a load, "
          f"{steps} steps, {steps / max(playing, 1e-9):.0f} steps/s")
    for name in lost[:SHOWN]:
        print(f"  not won: {name}")
    return lost


def read_transcripts(path):
    """-> list of (line number, record). Raises BadInput with the line's number."""
    records = []
    try:
        with (lzma.open if path.endswith(".xz") else open)(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                record = json.loads(line)
                if missing := {"game", "first", "steps", "admissible"} - set(record):
                    raise BadInput(f"{path}:{number}: {', '.join(sorted(missing))} is missing; record the episode again")
                if len(record["admissible"]) != len(record["steps"]) + 1:
                    raise BadInput(f"{path}:{number}: steps and admissible do not fit together; record the episode again")
                records.append((number, record))
    except (OSError, lzma.LZMAError) as error:
        raise BadInput(f"--transcripts {path}: cannot be read ({error}); check the name") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"{path}:{len(records) + 1}: not JSON ({error}); record the episode again") from None
    return records


def compare(record, env):
    """Replay one episode. -> (number of fields compared, list of (what, ours, official) that differ)."""
    pairs = [("first observation", env.reset(), record["first"]),
             ("admissible at first", env.admissible, record["admissible"][0])]
    for i, (step, admissible) in enumerate(zip(record["steps"], record["admissible"][1:], strict=True), 1):
        command, feedback, reward, done, won = step
        got = env.step(command)
        where = f"step {i} {command!r}"
        pairs += [(f"{where}: feedback", got[0], feedback), (f"{where}: reward", got[1], reward),
                  (f"{where}: done", got[2], done), (f"{where}: won", env.won, won),
                  (f"{where}: admissible", env.admissible, admissible)]
    return len(pairs), [pair for pair in pairs if pair[1] != pair[2]]


def check_transcripts(path, games):
    """Replay a file of episodes. -> number of fields that differ."""
    by_name = {name.split("/", 1)[1]: file for name, file in games.items()}
    episodes = fields = steps = 0
    different = []
    for number, record in tqdm(read_transcripts(path), desc=Path(path).name, unit="episode"):
        if record["game"] not in by_name:
            raise BadInput(f"{path}:{number}: game {record['game']} is not below --data; give the data it was recorded with")
        count, found = compare(record, Game(load(by_name[record["game"]]), max_steps=None))
        episodes, fields, steps = episodes + 1, fields + count, steps + len(record["steps"])
        different += [(number, record["game"], *pair) for pair in found]
    print(f"{path}: {episodes} episodes, {steps} steps, {fields} fields compared, {len(different)} different")
    for number, game, what, ours, official in different[:SHOWN]:
        print(f"  line {number} {game}, {what}:\n    ours     {ours!r}\n    official {official!r}")
    return len(different)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder that holds json_2.1.1")
    parser.add_argument("--transcripts", nargs="*", default=[], metavar="FILE", help="recorded official episodes")
    args = parser.parse_args()
    games = find_games(args.data)
    wrong = len(check_walkthroughs(games))
    for path in args.transcripts:
        wrong += check_transcripts(path, games)
    print("all equal" if not wrong else f"{wrong} mismatches")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    run(main)
