"""The ALFWorld text engine (Shridhar et al., 2021) in plain Python: a game's PDDL problem, its goal, its rules and its words.

A game is a set of PDDL facts. `Game.commands` lists every command that the facts allow, with what it does; `step` looks
the player's words up in that list and `admissible` is that list sorted, so the two cannot disagree. Equality with the
official engine (alfworld 0.4.2 on TextWorld) was checked on recorded episodes: every feedback, reward, done and
admissible list is the same, and every official walkthrough wins.

Different from the official engine: nothing is grounded or planned, so a game loads in milliseconds and not in a second;
the action rules are written here and not read from the file's pddl_domain; a step limit is part of the game; the reward
is paid once, on the step that wins.
"""
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from errors import BadInput

# ---------------------------------------------------------------- problems: reading PDDL

@dataclass
class Problem:
    """One game before its first step. Entities go by their names in the game, as "drawer 2"; all text is lower-case.

    facts: predicate -> set of argument tuples, e.g. facts["inreceptacle"] = {("mug 1", "drawer 2")}
    rank: entity -> its place in every list that the game prints;  objects: PDDL type -> names, what a quantifier ranges over
    goal: nested lists as in PDDL, e.g. ["exists", ["?o", "-", "object"], ["holds", "agent1", "?o"]]
    """
    sentence: str
    facts: dict
    rank: dict
    objects: dict
    goal: list


def read_pddl(text):
    """PDDL text -> nested lists of lower-case words. Raises ValueError on unbalanced brackets."""
    stack = [[]]
    for word in re.findall(r"[()]|[^\s()]+", re.sub(r";.*", "", text).lower()):
        if word == "(":
            stack.append([])
        elif word != ")":
            stack[-1].append(word)
        elif len(stack) > 1:
            inner = stack.pop()
            stack[-1].append(inner)
        else:
            raise ValueError("a ) too many")
    if len(stack) > 1:
        raise ValueError("a ) is missing")
    return stack[0]


def typed(words):
    """["?o", "?p", "-", "object"] -> [("?o", "object"), ("?p", "object")]."""
    pairs, names, rest = [], [], iter(words)
    for word in rest:
        if word == "-":
            kind = next(rest)
            pairs += [(name, kind) for name in names]
            names = []
        else:
            names.append(word)
    return pairs


def display_names(ids):
    """Sorted PDDL ids -> {id: name}. Of the ids "mug_bar_...", the last is "mug 1" (as the official AlfredDemangler has it)."""
    names, used = {}, Counter()
    for entity in reversed(ids):
        if "_bar_" in entity:
            kind = entity.split("_bar_")[0] + ("basin" if "basin" in entity else "")
            used[kind] += 1
            names[entity] = f"{kind} {used[kind]}"
    return names


def read_problem(sentence, text):
    """The text of a PDDL problem -> Problem. Raises ValueError or KeyError when it is no ALFWorld problem."""
    define = read_pddl(text)[0]
    parts = {part[0]: part[1:] for part in define[1:] if isinstance(part, list)}
    init = [fact for fact in parts[":init"] if fact[0] != "="]          # "=" sets a cost
    ids = sorted({word for fact in init for word in fact[1:]})
    names = display_names(ids)
    rank = {names.get(entity, entity): i for i, entity in enumerate(ids)}
    facts, objects = {}, {}
    for predicate, *words in init:
        facts.setdefault(predicate, set()).add(tuple(names.get(word, word) for word in words))
    for word, kind in typed(parts[":objects"]):
        objects.setdefault(kind, []).append(names.get(word, word))
    if missing := {"atlocation", "receptacleatlocation", "receptacletype"} - set(facts):
        raise KeyError(", ".join(sorted(missing)))
    goal = parts[":goal"][0]
    true(goal, facts, objects, {})                                      # a goal that cannot be tested fails here, not in play
    return Problem(sentence, facts, rank, objects, goal)


def load(path):
    """An official game.tw-pddl -> Problem. Raises BadInput with the file's name."""
    mend = "download ALFWorld's json_2.1.1 again, or remove this game's folder"
    try:
        game = json.loads(Path(path).read_text(encoding="utf-8"))
        sentence = re.search(r"Your task is to: (.*?)\.?\"", game["grammar"]).group(1)
        return read_problem(sentence, game["pddl_problem"])
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); {mend}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"{path}: not a JSON file ({error}); {mend}") from None
    except KeyError as error:
        raise BadInput(f"{path}: not an ALFWorld game, {error} is missing; {mend}") from None
    except (ValueError, TypeError, AttributeError, IndexError, StopIteration) as error:
        raise BadInput(f"{path}: its task or its pddl_problem does not parse ({error}); {mend}") from None


# ---------------------------------------------------------------- goals

def parts_of(formula):
    """The atoms that must all hold for a formula to hold, looking through `and` and `exists`."""
    if formula[0] == "and":
        return [atom for part in formula[1:] for atom in parts_of(part)]
    return parts_of(formula[2]) if formula[0] == "exists" else [formula]


def true(formula, facts, objects, bound):
    """Is a PDDL formula true? `bound` maps the variables met so far to entities.

    `exists` does not try all objects: any value must occur in a fact of each positive atom that names the variable, so
    the atom with the fewest facts proposes the values (none is hot yet: a "put a hot mug" goal is refuted at once).
    """
    head, rest = formula[0], formula[1:]
    if head == "and":
        return all(true(part, facts, objects, bound) for part in rest)
    if head == "or":
        return any(true(part, facts, objects, bound) for part in rest)
    if head == "not":
        return not true(rest[0], facts, objects, bound)
    if head == "forall":
        return not true(["exists", rest[0], ["not", rest[1]]], facts, objects, bound)
    if head == "=":
        return bound.get(rest[0], rest[0]) == bound.get(rest[1], rest[1])
    if head != "exists":
        return tuple(bound.get(word, word) for word in rest) in facts.get(head, ())
    if not rest[0]:
        return true(rest[1], facts, objects, bound)
    (variable, kind), *others = typed(rest[0])
    inner = ["exists", [word for name, its_kind in others for word in (name, "-", its_kind)], rest[1]]
    atoms = [atom for atom in parts_of(rest[1]) if variable in atom[1:] and atom[0] not in ("or", "not", "forall", "=")]
    values = objects.get(kind, [])
    if atoms:
        predicate, *words = min(atoms, key=lambda atom: len(facts.get(atom[0], ())))
        words = [bound.get(word, word) for word in words]
        values = {fact[words.index(variable)] for fact in facts.get(predicate, ())
                  if all(word == value or word[0] == "?" for word, value in zip(words, fact))}
    return any(true(inner, facts, objects, {**bound, variable: value}) for value in values)


# ---------------------------------------------------------------- the engine

CHANGING = ("atlocation opened inreceptacle objectatlocation holds isclean ishot iscool istoggled issliced takenfrom").split()
TOOLS = {"clean": ("sinkbasin", "cleanable", "isclean", None), "heat": ("microwave", "heatable", "ishot", "iscool"),
         "cool": ("fridge", "coolable", "iscool", "ishot")}             # verb: tool, what can be, gains, loses
COMMAND = re.compile(r"(?:go to|open|close|examine|use|slice) \w+ \d+|inventory|look|help|"
                     r"(?:take|move|clean|heat|cool|slice) \w+ \d+ (?:from|to|with) \w+ \d+")
WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
MIDDLE = "You are in the middle of a room. Looking quickly around you, you see"
HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


def listing(names):
    """[] -> "nothing"; ["mug 2", "pen 1"] -> "a mug 2, and a pen 1" (the comma is the official one)."""
    names = [f"a {name}" for name in names]
    return ", and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "nothing"


def kind_of(name):
    """ "mug 1" -> "mug"."""
    return name.split()[0]


class Game:
    """One episode. reset() -> first observation; step(action) -> (observation, reward, done); see envs/__init__.py."""

    def __init__(self, problem, max_steps=50):
        self.problem, self.max_steps = problem, max_steps
        self.types = dict(problem.facts.get("objecttype", ())) | dict(problem.facts["receptacletype"])
        self.place = dict(problem.facts["receptacleatlocation"])        # receptacle -> location, in the order of lists
        self.place = dict(sorted(self.place.items(), key=lambda item: problem.rank[item[0]]))
        self.reset()

    def reset(self):
        self.facts = dict(self.problem.facts)
        for predicate in CHANGING:
            self.facts[predicate] = set(self.facts.get(predicate, ()))
        self.count, self.won, self.truncated, self.known = 0, False, False, None
        look = f"{MIDDLE} {listing(self.place)}." if not self.near() else self.look()
        return f"{WELCOME}\n\n{look}\n\nYour task is to: {self.problem.sentence}."

    def step(self, action):
        """Do one command, in the official words. Anything else: "Nothing happens." (it still counts as a step)."""
        command = self.commands().get(action.strip())
        observation, reward = "Nothing happens.", 0
        if command is not None:
            do, *arguments = command
            observation, self.known = do(*arguments), None
            if not self.won and true(self.problem.goal, self.facts, self.problem.objects, {}):
                self.won, reward = True, 1
        self.count += 1
        self.truncated = not self.won and self.max_steps is not None and self.count >= self.max_steps
        return observation, reward, self.won or self.truncated

    metrics = {}

    def parses(self, action):
        """Is this a command at all?"""
        return COMMAND.fullmatch(action.strip()) is not None

    def possible(self, action):
        """Would it do something now?"""
        return action.strip() in self.commands()

    @property
    def admissible(self):
        return sorted(self.commands())

    # what is where

    def has(self, predicate, *names):
        return names in self.facts.get(predicate, ())

    def here(self):
        return next(iter(self.facts["atlocation"]))[1]

    def near(self):
        """The receptacles at the player's location."""
        here = self.here()
        return [receptacle for receptacle, location in self.place.items() if location == here]

    def inside(self, receptacle, predicate="inreceptacle"):
        return sorted((o for o, r in self.facts.get(predicate, ()) if r == receptacle), key=self.problem.rank.get)

    def reachable(self, receptacle):
        return not self.has("openable", receptacle) or self.has("opened", receptacle)

    def commands(self):
        """All that can be done now: command -> (method, arguments...). Kept until the next change."""
        if self.known is not None:
            return self.known
        known = self.known = {"look": (self.look,), "inventory": (self.inventory,), "help": (lambda: HELP,)}
        here, held = self.here(), [name for _, name in self.facts["holds"]]
        for receptacle, location in self.place.items():
            if location != here:
                known[f"go to {receptacle}"] = (self.go, receptacle)
        for receptacle in self.near():
            known[f"examine {receptacle}"] = (self.describe, receptacle)
            reachable = self.reachable(receptacle)
            if self.has("openable", receptacle):
                known[f"close {receptacle}" if reachable else f"open {receptacle}"] = (self.turn, receptacle)
            for name in self.inside(receptacle):
                if reachable and not held and self.has("pickupable", name):
                    known[f"take {name} from {receptacle}"] = (self.take, name, receptacle)
                if self.has("toggleable", name):
                    known[f"use {name}"] = (self.use, name)
            for name in held:
                if reachable and self.has("cancontain", self.types[receptacle], self.types[name]):
                    known[f"move {name} to {receptacle}"] = (self.move, name, receptacle)
                for verb, (tool, can, gains, loses) in TOOLS.items():
                    if self.types[receptacle] == f"{tool}type" and self.has(can, name):
                        known[f"{verb} {name} with {receptacle}"] = (self.treat, verb, name, receptacle)
        for name in held:
            known[f"examine {name}"] = (self.examine, name)
            if self.types[name] in ("knifetype", "butterknifetype"):
                for other, location in self.facts["objectatlocation"]:
                    if location == here and self.has("sliceable", other):
                        known[f"slice {other} with {name}"] = (self.slice, other, name)
        return known

    # what the commands do and say

    def look(self):
        near, here = self.near(), self.here()
        if not near:
            return f"{MIDDLE} nothing."
        # Official quirk: "next to it" are things put down here that were once taken from another receptacle at this spot.
        beside = [name for name, location in self.facts["objectatlocation"] if location == here
                  for receptacle in near if self.has("takenfrom", name, receptacle)]
        facing = ", and ".join([", ".join(near[:-1]), near[-1]] if len(near) > 1 else near)
        return f"You are facing the {facing}. Next to it, you see {listing(sorted(beside, key=self.problem.rank.get))}."

    def inventory(self):
        held = [name for _, name in self.facts["holds"]]
        return f"You are carrying: {listing(held)}." if held else "You are not carrying anything."

    def describe(self, receptacle):
        contents = listing(self.inside(receptacle))
        if not self.has("openable", receptacle):
            return f"On the {receptacle}, you see {contents}."
        return f"The {receptacle} is open. In it, you see {contents}." if self.has("opened", receptacle) \
            else f"The {receptacle} is closed."

    def examine(self, name):
        if self.has("isreceptacleobject", name):
            return f"This is a normal {name}. In it, you see {listing(self.inside(name, 'inreceptacleobject'))}."
        words = [word for word, predicate in (("hot", "ishot"), ("cool", "iscool"), ("clean", "isclean"))
                 if self.has(predicate, name)]
        sliced = self.has("issliced", name)
        if words or sliced:
            state = "cold" if words == ["cool"] and not sliced else " and ".join(words)
            return f"This is a {state}{' ' if words and sliced else ''}{'sliced' if sliced else ''} {name}."
        return f"There's nothing special about {name}."

    def go(self, receptacle):
        self.facts["atlocation"] = {("agent1", self.place[receptacle])}
        return f"You arrive at {receptacle}. {self.describe(receptacle)}"

    def turn(self, receptacle):
        """Open what is closed, close what is open."""
        if self.has("opened", receptacle):
            self.facts["opened"].remove((receptacle,))
            return f"You close the {receptacle}."
        self.facts["opened"].add((receptacle,))
        return f"You open the {receptacle}. {self.describe(receptacle)}"

    def take(self, name, receptacle):
        self.facts["inreceptacle"].remove((name, receptacle))
        self.facts["takenfrom"].add((name, receptacle))
        self.facts["objectatlocation"].discard((name, self.here()))
        self.facts["holds"].add(("agent1", name))
        return f"You pick up the {name} from the {receptacle}."

    def move(self, name, receptacle):
        self.facts["inreceptacle"].add((name, receptacle))
        self.facts["takenfrom"].discard((name, receptacle))
        self.facts["objectatlocation"].add((name, self.here()))
        self.facts["holds"].remove(("agent1", name))
        return f"You move the {name} to the {receptacle}."

    def treat(self, verb, name, receptacle):
        gains, loses = TOOLS[verb][2:]
        self.facts[gains].add((name,))
        if loses:
            self.facts[loses].discard((name,))
        return f"You {verb} the {name} using the {receptacle}."

    def use(self, name):
        self.facts["istoggled"].add((name,))                            # for good: using it again changes nothing
        return f"You turn on the {name}."

    def slice(self, name, knife):
        self.facts["issliced"].add((name,))
        return f"You sliced the {name} with the {knife}."
