"""ALFWorld as text, in plain Python: the official games, small built-in houses, and an expert who plays both.

    import envs.alfworld as alfworld
    task = alfworld.tasks("train", limit=6)[0]              # built-in; with data="DIR" the official DIR/json_2.1.1/train
    env, steps = task.make(max_steps=20), []
    first, done = env.reset(), False
    while not done:
        thought, action = alfworld.expert(first, steps)
        observation, reward, done = env.step(action)
        steps.append((action, observation))

The engine is envs/alfworld_game.py, the built-in houses are envs/alfworld_houses.py.
"""
import random
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from envs import Task
from envs.alfworld_game import HELP, MIDDLE, TOOLS, WELCOME, Game, kind_of, load
from envs.alfworld_houses import KINDS_OF_TASK, built_in_task
from errors import BadInput

TEST = "valid_unseen"                                                   # the split to evaluate on
COUNTS = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}        # the official sizes; default limits of built-in tasks


# ---------------------------------------------------------------- tasks

def tasks(split, data=None, limit=None, seed=0):
    """The tasks of "train", "valid_seen" or "valid_unseen": official ones below `data`, shuffled by `seed`; or built-in
    ones, the six kinds in turn, `seed` choosing which (any number of them; without a limit as many as the official split).

    valid_seen: layouts and (object, destination) pairs of train, furnished anew. valid_unseen: other layouts, other pairs.
    """
    if data is not None:
        return official_tasks(split, data, limit, seed)
    if split not in COUNTS:
        raise BadInput(f"--split {split}: the built-in houses have {', '.join(COUNTS)}")
    return [built_in_task(split, seed, index) for index in range(COUNTS[split] if limit is None else limit)]


def official_tasks(split, data, limit, seed):
    """Lists DATA/json_2.1.1/SPLIT/TASK/TRIAL/game.tw-pddl without reading the games (each is read when it is first made)."""
    folder = next((path for path in (Path(data) / "json_2.1.1" / split, Path(data) / split) if path.is_dir()), None)
    if folder is None:
        raise BadInput(f"--data {data}: there is no folder json_2.1.1/{split} in it; give the folder that holds json_2.1.1")
    files = sorted(folder.glob("*/*/game.tw-pddl"))
    if not files:
        raise BadInput(f"{folder}: no TASK/TRIAL/game.tw-pddl below it; unpack ALFWorld's json_2.1.1 (alfworld-download) there")
    random.Random(f"{split} {seed}").shuffle(files)
    found = []
    for file in files:
        if len(found) == limit:
            break
        if not marked_unsolvable(file):
            task, trial = file.parts[-3:-1]
            found.append(Task(f"{task}/{trial}", task.split("-")[0], split,
                              lambda max_steps=50, file=file: Game(load(file), max_steps)))
    return found


def marked_unsolvable(file):
    """The download holds games without a solution, which nobody counts. The mark stands at the end of the file."""
    with open(file, "rb") as text:
        text.seek(max(0, file.stat().st_size - 80))
        return b'"solvable": false' in text.read()


def analogous(task, env, words):
    """A built-in house with the same kind of task, whatever a teacher says: words cannot furnish a house."""
    index = list(KINDS_OF_TASK).index(task.kind)
    return built_in_task("train", f"analogue {task.id}", index).make(env.max_steps)


# ---------------------------------------------------------------- the expert

# In a house of many places (an official one) the open surfaces come first: they hold most of what a task asks for.
SURFACES = ("countertop diningtable coffeetable desk bed dresser sidetable tvstand sofa armchair toilet coffeemachine stoveburner"
            " handtowelholder towelholder toiletpaperhanger bathtubbasin cart ottoman sinkbasin garbagecan shelf"
            " fridge microwave safe cabinet drawer").split()
SENTENCE = re.compile(r"Your task is to: (?:(?:look at|examine the) (?P<lit>\w+) (?:under|with) the (?P<lamp>\w+)|"
                      r"(?P<verb>put|find|clean|heat|cool) (?P<many>a|some|two) (?:(?P<state>clean|hot|cool) )?(?P<thing>\w+)"
                      r"(?: and put (?:it|them))? (?:in|on) (?P<end>\w+))")


@dataclass
class Memory:
    """What a player can know from what it has read."""
    places: list            # in the order of the first observation
    seen: dict              # object -> the receptacle it was last seen in
    looked: set             # receptacles whose content was seen
    closed: set             # receptacles that are closed, as far as known
    here: str = None
    held: str = None
    treated: frozenset = frozenset()        # (verb, object) in force
    refused: frozenset = frozenset()        # move commands that did nothing


@lru_cache(maxsize=10_000)          # the history is read anew at each turn
def read_observation(text):
    """What a text says: (arrived at, ((place, names seen there), ...), closed place, taken, (moved, to), (verb, treated))."""
    arrived = re.match(r"You arrive at (\w+ \d+)\.", text)
    contents = re.findall(r"(?:On the|The) (\w+ \d+)(?:,| is open\. In it,) you see (.*?)\.", text)
    closed = re.search(r"The (\w+ \d+) is closed|You close the (\w+ \d+)", text)
    took = re.match(r"You pick up the (\w+ \d+)", text)
    moved = re.match(r"You move the (\w+ \d+) to the (\w+ \d+)", text)
    treated = re.match(r"You (clean|heat|cool) the (\w+ \d+)", text)
    return (arrived and arrived[1], tuple((place, tuple(re.findall(r"a (\w+ \d+)", names))) for place, names in contents),
            closed and (closed[1] or closed[2]), took and took[1], moved and moved.groups(), treated and treated.groups())


def remember(first, steps):
    """Read the first observation and the (action, observation) pairs -> Memory."""
    memory = Memory(re.findall(r"a (\w+ \d+)", first.partition("Your task is to:")[0]), {}, set(), set())
    for action, text in steps:
        arrived, contents, closed, took, moved, treated = read_observation(text)
        memory.here = arrived or memory.here
        for place, names in contents:
            memory.seen = {name: at for name, at in memory.seen.items() if at != place}
            memory.seen.update(dict.fromkeys(names, place))
            memory.looked.add(place)
            memory.closed.discard(place)
        if closed:
            memory.closed.add(closed)
        if took:
            memory.held = took
            memory.seen.pop(took, None)
        if moved:
            memory.held, memory.seen[moved[0]] = None, moved[1]
        if treated:
            undone = {"heat": "cool", "cool": "heat"}.get(treated[0])
            memory.treated = memory.treated - {(undone, treated[1])} | {treated}
        if text == "Nothing happens." and action.startswith("move "):
            memory.refused |= {action.strip()}
        if text == "Nothing happens." and action.startswith("go to ") and action[6:].strip() in memory.places:
            memory.here = action[6:].strip()        # it stands where the player is already (in some official games)
    return memory


def expert(first, steps, careless=False):
    """The next (thought, action) of a player who has read `first` and then the (action, observation) pairs `steps`.

    It reads everything anew each time, so it can take over from any other player. careless: it never opens anything, so it wins
    only where all it needs stands open.
    """
    memory, task = remember(first, steps), SENTENCE.search(first)
    target, end = (task["lit"], task["lamp"]) if task["lit"] else (task["thing"], task["end"])
    verb = {"hot": "heat"}.get(task["state"], task["state"]) or task["verb"]
    usable = [place for place in memory.places if not (careless and place in memory.closed)]
    if memory.held and kind_of(memory.held) != target:
        return put_down(memory, usable)
    if memory.held and task["lit"]:
        return light(memory, end)
    ends = [place for place in usable if kind_of(place) == end]
    if task["many"] == "two":       # both into one receptacle: where the first already is
        ends.sort(key=lambda place: -sum(kind_of(name) == target and at == place for name, at in memory.seen.items()))
    elif memory.here in ends:
        ends = [memory.here]
    if memory.held:
        return deliver(memory, verb, ends, careless)
    for name in sorted(memory.seen, key=lambda name: memory.seen[name] != memory.here):
        place = memory.seen[name]
        if kind_of(name) == target and place in usable and not (task["many"] == "two" and place in ends[:1]):
            return reach(memory, place, f"I need a {target} and saw {name} .",
                         (f"I see {name} . Now I take it from {place} .", f"take {name} from {place}"))
    return search(memory, f"I need to find a {target} .", careless)


def reach(memory, place, why, act, end="", inside=True):
    """Go to a receptacle, open it if it is closed (and `inside` matters), then `act`, a (thought, action)."""
    if memory.here != place:
        return f"{why} Next I go to {place}{end} .", f"go to {place}"
    if inside and place not in memory.looked | memory.closed:
        return f"{why} Next I look at {place} .", f"examine {place}"
    return (f"{why} Now I open {place} .", f"open {place}") if inside and place in memory.closed else act


def search(memory, why, careless):
    """Look into the next place; when all is seen, go round again."""
    order = memory.places
    if len(order) > 10:
        order = sorted(order, key=lambda place: SURFACES.index(kind_of(place)) if kind_of(place) in SURFACES else 0)
    if careless:
        order = [place for place in order if place not in memory.closed] or order
    left = [place for place in order if place not in memory.looked]
    if memory.here in left and memory.here in memory.closed:
        return f"{why} Now I open {memory.here} .", f"open {memory.here}"
    if not left:
        after = order.index(memory.here) + 1 if memory.here in order else 0
        left = order[after:] + order[:after]
    return f"{why} Next I look at {left[0]} .", f"{'examine' if left[0] == memory.here else 'go to'} {left[0]}"


def put_down(memory, usable):
    """Free the hand, here if possible."""
    item = memory.held
    for place in [memory.here] * (memory.here in usable and memory.here not in memory.closed) + usable:
        if f"move {item} to {place}" not in memory.refused:
            return reach(memory, place, f"I do not need {item} .",
                         (f"I do not need {item} . Now I put it in {place} .", f"move {item} to {place}"))
    return f"I do not need {item} . Next I look around .", "look"


def light(memory, lamp):
    """The thing is in the hand: to the lamp, which always stands in the open."""
    item = memory.held
    for name, place in memory.seen.items():
        if kind_of(name) == lamp:
            return reach(memory, place, f"I have {item} .", (f"I have {item} . Now I use {name} .", f"use {name}"),
                         f" to use the {lamp}", inside=False)
    return search(memory, f"I have {item} and need a {lamp} .", careless=True)


def deliver(memory, verb, ends, careless):
    """Clean, heat or cool what is in the hand, then put it where it belongs."""
    item = memory.held
    if verb in TOOLS and (verb, item) not in memory.treated:
        tools = [place for place in memory.places if kind_of(place) == TOOLS[verb][0]]
        place = memory.here if memory.here in tools else tools[0]
        act = f"I have {item} . Now I {verb} it with {place} .", f"{verb} {item} with {place}"
        return reach(memory, place, f"I have {item} .", act, f" to {verb} it", inside=False)
    if not ends:                    # careless, and every destination is closed
        return search(memory, f"I have {item} .", careless)
    act = f"I have {item} . Now I put it in {ends[0]} .", f"move {item} to {ends[0]}"
    return reach(memory, ends[0], f"I have {item} .", act, " to put it there")


def reason(first, steps, action):
    """A thought that leads to any action, in the expert's words: what it is looking for or holding, and what comes next."""
    memory, task = remember(first, steps), SENTENCE.search(first)
    target, lamp = task["lit"] or task["thing"], task["lamp"]
    verb = {"hot": "heat"}.get(task["state"], task["state"]) or task["verb"]
    seen = [name for name in memory.seen if kind_of(name) == target]
    lamps = {at for name, at in memory.seen.items() if kind_of(name) == lamp}
    why = f"I have {memory.held} ." if memory.held else f"I need to find a {target} ."
    words = action.split()
    command, thing, place = words[0], " ".join(words[1:3]), " ".join(words[-2:])
    if command == "go":
        if memory.held and place in lamps:
            return f"{why} Next I go to {place} to use the {lamp} ."
        if memory.held and lamp and not lamps:
            return f"I have {memory.held} and need a {lamp} . Next I look at {place} ."
        if memory.held and verb in TOOLS and kind_of(place) == TOOLS[verb][0] and (verb, memory.held) not in memory.treated:
            return f"{why} Next I go to {place} to {verb} it ."
        if memory.held:
            return f"{why} Next I go to {place} to put it there ."
        if here := [name for name in seen if memory.seen[name] == place]:
            return f"I need a {target} and saw {here[0]} . Next I go to {place} ."
        return f"{why} Next I look at {place} ."
    return {"open": f"{why} Now I open {thing} .", "examine": f"{why} Next I look at {thing} .",
            "use": f"{why} Now I use {thing} .", "take": f"I see {thing} . Now I take it from {place} .",
            "move": f"{why} Now I put it in {place} ."}.get(
        command, f"{why} Now I {command} it with {place} ." if command in TOOLS else f"{why} Next I look around .")


# ---------------------------------------------------------------- words, for prompts and tokenizers

INSTRUCTION = """You live in a house and do one household task. Each turn, first write a thought: what you look for or hold, \
and what comes next. Then write one command. The commands are: go to X, open X, close X, take O from X, move O to X, \
examine X, use O, clean O with X, heat O with X, cool O with X, inventory, look. X is a place and O an object, written as in \
the text, such as drawer 2 or mug 1. You carry one object at a time. Closed places must be opened before you see what is \
inside. Clean with a sinkbasin, heat with a microwave, cool with a fridge. An impossible command gives: Nothing happens."""

PHRASES = [INSTRUCTION] + sorted((
    HELP, WELCOME, MIDDLE, "Your task is to:", "put a clean", "put a hot", "put a cool", "put two", "find two", "put some",
    "put a", "and put it in", "and put them in", "look at", "under the", "examine the", "with the", "Nothing happens.",
    "You arrive at", "is closed.", "is open. In it, you see", "you see nothing", "you see", "On the", "You open the",
    "You close the", "You pick up the", "from the", "You move the", "to the", "You clean the", "You heat the", "You cool the",
    "using the",
    "You turn on the", "You sliced the", "You are carrying:", "You are not carrying anything.", "You are facing the",
    "Next to it,", "There's nothing special about", "This is a normal", "In it, you see", "This is a", "go to",
    "I need to find a", "I need a", "and saw", "I see", "I have", "and need a", "I do not need", "Next I go to", "Next I look at",
    "Next I look around", "Now I open", "Now I take it from", "Now I put it in", "Now I clean it with", "Now I heat it with",
    "Now I cool it with", "Now I use", "to put it there", "to clean it", "to heat it", "to cool it", "to use the",
), key=len, reverse=True)

KINDS = """armchair bathtubbasin bed cabinet cart coffeemachine coffeetable countertop desk diningtable drawer dresser fridge
garbagecan handtowelholder laundryhamper microwave ottoman safe shelf sidetable sinkbasin sofa stoveburner toaster toilet
toiletpaperhanger towelholder tvstand alarmclock apple bathtub book bowl box bread butterknife candle cd cellphone cloth
creditcard cup curtains desklamp dishsponge egg floorlamp fork glassbottle handtowel houseplant kettle keychain knife ladle
laptop lettuce mirror mug newspaper pan papertowelroll pen pencil peppershaker pillow plate pot potato remotecontrol
saltshaker showerglass sink soapbar soapbottle spatula spoon spraybottle statue teddybear television tissuebox toiletpaper
tomato towel vase watch wateringcan window winebottle""".split()

MARKS = ""
