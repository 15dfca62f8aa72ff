"""ALFWorld's rules against text written by hand, on a small house in the official file format; then the built-in houses.

    python -m pytest -q tests/test_alfworld.py

Equality on the real games and recorded official episodes is another script's work: tests/check_alfworld.py.
"""
import hashlib
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

import envs
from envs import alfworld
from envs.alfworld_game import Game, display_names, kind_of, load, read_pddl, true
from errors import BadInput

ROOT = Path(__file__).resolve().parent.parent
SPLITS = ("train", "valid_seen", "valid_unseen")

# ---------------------------------------------------------------------------------------------- a small official-style house

# id, location, may it be opened?   Of equal kinds the last id is number 1: CounterTop +02 is "countertop 1".
RECEPTACLES = """
    Cabinet_bar__plus_01 loc_bar_1 openable
    CounterTop_bar__plus_01 loc_bar_1
    CounterTop_bar__plus_02 loc_bar_2
    Drawer_bar__plus_01 loc_bar_3 openable
    Drawer_bar__plus_02 loc_bar_4 openable
    Fridge_bar__plus_01 loc_bar_5 openable
    Microwave_bar__plus_01 loc_bar_6 openable
    SideTable_bar__plus_01 loc_bar_7
    Sink_bar__plus_01_bar_SinkBasin loc_bar_8"""
# id, the receptacle it is in, what is true of it
OBJECTS = """
    Apple_bar__plus_01 CounterTop_bar__plus_02 pickupable cleanable heatable coolable sliceable
    Apple_bar__plus_02 Fridge_bar__plus_01 pickupable cleanable heatable coolable sliceable isCool
    Book_bar__plus_01 SideTable_bar__plus_01 pickupable
    Bowl_bar__plus_01 Cabinet_bar__plus_01 pickupable cleanable isReceptacleObject
    ButterKnife_bar__plus_01 Drawer_bar__plus_02 pickupable cleanable
    DeskLamp_bar__plus_01 SideTable_bar__plus_01 toggleable
    Knife_bar__plus_01 CounterTop_bar__plus_02 pickupable cleanable
    Mug_bar__plus_01 CounterTop_bar__plus_01 pickupable cleanable heatable coolable
    Mug_bar__plus_02 Drawer_bar__plus_01 pickupable cleanable heatable coolable
    Pen_bar__plus_01 Drawer_bar__plus_01 pickupable
    Spoon_bar__plus_01 CounterTop_bar__plus_02 pickupable cleanable"""
FITS = {"Cabinet": "Mug Bowl", "CounterTop": "Apple Book Bowl Knife Mug Pen Spoon", "Drawer": "Mug Pen Spoon",
        "Fridge": "Apple Mug", "Microwave": "Apple Mug", "SideTable": "Apple Book Mug Pen", "SinkBasin": "Apple Knife Mug Spoon"}

PLACE = "(and (exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r) (objectType ?o {}Type)" \
        " (receptacleType ?r {}Type) {}))))"
GOALS = {           # the six shapes of goal, as in the official files: kind: (sentence, PDDL)
    "pick_and_place_simple": ("put a mug in sidetable", PLACE.format("Mug", "SideTable", "")),
    "look_at_obj_in_light": ("examine the mug with the desklamp",
        "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot DeskLampType) (toggleable ?ot)"
        " (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))"
        " (exists (?o - object ?a - agent) (and (objectType ?o MugType) (holds ?a ?o))))"),
    "pick_clean_then_place_in_recep": ("put a clean mug in sidetable",
                                       PLACE.format("Mug", "SideTable", "(cleanable ?o) (isClean ?o)")),
    "pick_heat_then_place_in_recep": ("heat some mug and put it in sidetable",
                                      PLACE.format("Mug", "SideTable", "(heatable ?o) (isHot ?o)")),
    "pick_cool_then_place_in_recep": ("put a cool mug in sidetable",
                                      PLACE.format("Mug", "SideTable", "(coolable ?o) (isCool ?o)")),
    "pick_two_obj_and_place": ("find two mug and put them in sidetable", PLACE.format("Mug", "SideTable",
        "(exists (?o2 - object) (and (not (= ?o ?o2)) (objectType ?o2 MugType) (receptacleType ?r SideTableType)"
        " (inReceptacle ?o2 ?r)))")),
}


def kind(entity):
    """ "Sink_bar__plus_01_bar_SinkBasin" -> "SinkBasin"; "Mug_bar__plus_01" -> "Mug"."""
    last = entity.split("_bar_")[-1]
    return last if last.isalpha() else entity.split("_bar_")[0]


def pddl(goal):
    """The house with this goal as a PDDL problem, as the official files write it."""
    receptacles = [line.split() for line in RECEPTACLES.strip().splitlines()]
    objects = [line.split() for line in OBJECTS.strip().splitlines()]
    at = {entity: location for entity, location, *_ in receptacles}
    declared = ["agent1 - agent", "Sink_bar__plus_01 - object", "loc_bar_9 - location", *(f"{l} - location" for l in at.values())]
    declared += [f"{r} - receptacle" for r in at] + [f"{o[0]} - object" for o in objects]
    declared += [f"{name}Type - rtype" for name in FITS]
    declared += [f"{name}Type - otype" for name in sorted({"Sink", *(kind(o[0]) for o in objects)})]
    facts = ["atLocation agent1 loc_bar_9", "objectType Sink_bar__plus_01 SinkType",
             "objectAtLocation Sink_bar__plus_01 loc_bar_8"]
    for entity, location, *more in receptacles:
        facts += [f"receptacleType {entity} {kind(entity)}Type", f"receptacleAtLocation {entity} {location}"]
        facts += [f"{predicate} {entity}" for predicate in more]
    for entity, receptacle, *more in objects:
        facts += [f"objectType {entity} {kind(entity)}Type", f"inReceptacle {entity} {receptacle}",
                  f"objectAtLocation {entity} {at[receptacle]}", *(f"{predicate} {entity}" for predicate in more)]
    facts += ["objectType Egg_bar__plus_01 EggType", "inReceptacleObject Egg_bar__plus_01 Bowl_bar__plus_01"]
    facts += [f"canContain {place}Type {thing}Type" for place in FITS for thing in FITS[place].split()]
    lines = "\n".join(dict.fromkeys(declared)) + "\nEgg_bar__plus_01 - object\nEggType - otype"
    costs = "\n(= (total-cost) 0)\n(= (distance loc_bar_1 loc_bar_2) 3)"
    init = "\n".join(f"({fact})" for fact in facts) + costs
    return (f"(define (problem plan_trial)\n(:domain alfred)\n(:objects\n{lines}\n)\n(:init\n{init}\n)\n(:goal {goal})\n"
            "(:metric minimize (total-cost)) ; the end\n)")


def write_game(data, task="pick_and_place_simple", split="train", trial="trial_1", **changes):
    """Write DATA/json_2.1.1/SPLIT/TASK/TRIAL/game.tw-pddl, as in the official download. -> its path"""
    sentence, goal = GOALS[task]
    grammar = 'grammar :: """ {"intro": [{"rhs": "#look.feedback#\\n\\n#task#"}], "task": [{"rhs": "Your task is to: ' \
              f'{sentence}."}}]}} """;'
    game = {"pddl_domain": "", "grammar": grammar, "pddl_problem": pddl(goal), "walkthrough": [], "solvable": True, **changes}
    file = Path(data) / "json_2.1.1" / split / f"{task}-Mug-None-SideTable-1" / trial / "game.tw-pddl"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({key: value for key, value in game.items() if value is not None}))
    return file


@pytest.fixture
def house(tmp_path):
    """house("pick_and_place_simple", max_steps) -> a fresh Game of the house above."""
    return lambda task="pick_and_place_simple", max_steps=None: Game(load(write_game(tmp_path, task)), max_steps)


def do(env, *commands):
    """Play several commands. -> the last (observation, reward, done)"""
    return [env.step(command) for command in commands][-1]


# ------------------------------------------------------------------------------------------------------- what the game says

FIRST = """\
-= Welcome to TextWorld, ALFRED! =-

You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a countertop 2, a countertop 1, a drawer 2, \
a drawer 1, a fridge 1, a microwave 1, a sidetable 1, and a sinkbasin 1.

Your task is to: put a mug in sidetable."""

STORIES = {         # "> command", and on the next line what the game answers
    "go": """
        > go to countertop 1
        You arrive at countertop 1. On the countertop 1, you see a apple 2, a knife 1, and a spoon 1.
        > go to countertop 1
        Nothing happens.
        > go to countertop 2
        You arrive at countertop 2. On the countertop 2, you see a mug 2.
        > go to drawer 2
        You arrive at drawer 2. The drawer 2 is closed.
        > go to sinkbasin 1
        You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.
        > go to sink 1
        Nothing happens.
        > go to countertop 3
        Nothing happens.
        > go to mug 2
        Nothing happens.
        > go to countertop
        Nothing happens.""",
    "open and close": """
        > open drawer 2
        Nothing happens.
        > go to drawer 2
        You arrive at drawer 2. The drawer 2 is closed.
        > close drawer 2
        Nothing happens.
        > examine drawer 2
        The drawer 2 is closed.
        > take pen 1 from drawer 2
        Nothing happens.
        > open drawer 2
        You open the drawer 2. The drawer 2 is open. In it, you see a mug 1, and a pen 1.
        > open drawer 2
        Nothing happens.
        > examine drawer 2
        The drawer 2 is open. In it, you see a mug 1, and a pen 1.
        > take pen 1 from drawer 2
        You pick up the pen 1 from the drawer 2.
        > close drawer 2
        You close the drawer 2.
        > move pen 1 to drawer 2
        Nothing happens.
        > examine drawer 2
        The drawer 2 is closed.
        > go to drawer 1
        You arrive at drawer 1. The drawer 1 is closed.
        > open drawer 1
        You open the drawer 1. The drawer 1 is open. In it, you see a butterknife 1.
        > move pen 1 to drawer 1
        You move the pen 1 to the drawer 1.
        > go to sidetable 1
        You arrive at sidetable 1. On the sidetable 1, you see a book 1, and a desklamp 1.
        > go to drawer 1
        You arrive at drawer 1. The drawer 1 is open. In it, you see a butterknife 1, and a pen 1.
        > open sidetable 1
        Nothing happens.""",
    "take and move": """
        > take mug 2 from countertop 2
        Nothing happens.
        > go to countertop 2
        You arrive at countertop 2. On the countertop 2, you see a mug 2.
        > take mug 1 from countertop 2
        Nothing happens.
        > take mug 2
        Nothing happens.
        > take mug 2 from countertop 1
        Nothing happens.
        > take mug 2 from countertop 2
        You pick up the mug 2 from the countertop 2.
        > examine countertop 2
        On the countertop 2, you see nothing.
        > go to countertop 1
        You arrive at countertop 1. On the countertop 1, you see a apple 2, a knife 1, and a spoon 1.
        > take spoon 1 from countertop 1
        Nothing happens.
        > move spoon 1 to countertop 1
        Nothing happens.
        > put mug 2 in countertop 1
        Nothing happens.
        > put mug 2 on countertop 1
        Nothing happens.
        > put mug 2 in/on countertop 1
        Nothing happens.
        > move mug 2 to countertop 2
        Nothing happens.
        > move mug 2 to countertop 1
        You move the mug 2 to the countertop 1.
        > examine countertop 1
        On the countertop 1, you see a apple 2, a knife 1, a mug 2, and a spoon 1.
        > take knife 1 from countertop 1
        You pick up the knife 1 from the countertop 1.
        > go to sidetable 1
        You arrive at sidetable 1. On the sidetable 1, you see a book 1, and a desklamp 1.
        > move knife 1 to sidetable 1
        Nothing happens.
        > go to sinkbasin 1
        You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.
        > move knife 1 to sinkbasin 1
        You move the knife 1 to the sinkbasin 1.
        > go to sidetable 1
        You arrive at sidetable 1. On the sidetable 1, you see a book 1, and a desklamp 1.
        > take desklamp 1 from sidetable 1
        Nothing happens.""",
    "inventory and help": """
        > inventory
        You are not carrying anything.
        > go to countertop 2
        You arrive at countertop 2. On the countertop 2, you see a mug 2.
        > take mug 2 from countertop 2
        You pick up the mug 2 from the countertop 2.
        > inventory
        You are carrying: a mug 2.""",
    "look": """
        > look
        You are in the middle of a room. Looking quickly around you, you see nothing.
        > go to drawer 1
        You arrive at drawer 1. The drawer 1 is closed.
        > look
        You are facing the drawer 1. Next to it, you see nothing.
        > go to countertop 2
        You arrive at countertop 2. On the countertop 2, you see a mug 2.
        > look
        You are facing the cabinet 1, and countertop 2. Next to it, you see nothing.
        > examine cabinet 1
        The cabinet 1 is closed.
        > go to cabinet 1
        Nothing happens.
        > take mug 2 from countertop 2
        You pick up the mug 2 from the countertop 2.
        > look
        You are facing the cabinet 1, and countertop 2. Next to it, you see nothing.
        > open cabinet 1
        You open the cabinet 1. The cabinet 1 is open. In it, you see a bowl 1.
        > move mug 2 to cabinet 1
        You move the mug 2 to the cabinet 1.
        > look
        You are facing the cabinet 1, and countertop 2. Next to it, you see a mug 2.
        > take bowl 1 from cabinet 1
        You pick up the bowl 1 from the cabinet 1.
        > move bowl 1 to countertop 2
        You move the bowl 1 to the countertop 2.
        > look
        You are facing the cabinet 1, and countertop 2. Next to it, you see a bowl 1, and a mug 2.
        > take bowl 1 from countertop 2
        You pick up the bowl 1 from the countertop 2.
        > move bowl 1 to cabinet 1
        You move the bowl 1 to the cabinet 1.
        > look
        You are facing the cabinet 1, and countertop 2. Next to it, you see a bowl 1, and a mug 2.""",
    "look at two mugs put down": """
        > go to drawer 2
        You arrive at drawer 2. The drawer 2 is closed.
        > open drawer 2
        You open the drawer 2. The drawer 2 is open. In it, you see a mug 1, and a pen 1.
        > take mug 1 from drawer 2
        You pick up the mug 1 from the drawer 2.
        > go to countertop 2
        You arrive at countertop 2. On the countertop 2, you see a mug 2.
        > open cabinet 1
        You open the cabinet 1. The cabinet 1 is open. In it, you see a bowl 1.
        > move mug 1 to countertop 2
        You move the mug 1 to the countertop 2.
        > look
        You are facing the cabinet 1, and countertop 2. Next to it, you see nothing.
        > take mug 1 from countertop 2
        You pick up the mug 1 from the countertop 2.
        > move mug 1 to cabinet 1
        You move the mug 1 to the cabinet 1.
        > take mug 2 from countertop 2
        You pick up the mug 2 from the countertop 2.
        > move mug 2 to cabinet 1
        You move the mug 2 to the cabinet 1.
        > examine cabinet 1
        The cabinet 1 is open. In it, you see a bowl 1, a mug 2, and a mug 1.
        > look
        You are facing the cabinet 1, and countertop 2. Next to it, you see a mug 2, and a mug 1.""",
    "examine objects": """
        > go to countertop 2
        You arrive at countertop 2. On the countertop 2, you see a mug 2.
        > examine mug 2
        Nothing happens.
        > take mug 2 from countertop 2
        You pick up the mug 2 from the countertop 2.
        > examine mug 2
        There's nothing special about mug 2.
        > go to sinkbasin 1
        You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.
        > examine countertop 2
        Nothing happens.
        > clean mug 2 with sinkbasin 1
        You clean the mug 2 using the sinkbasin 1.
        > examine mug 2
        This is a clean mug 2.
        > go to microwave 1
        You arrive at microwave 1. The microwave 1 is closed.
        > heat mug 2 with microwave 1
        You heat the mug 2 using the microwave 1.
        > examine mug 2
        This is a hot and clean mug 2.
        > go to fridge 1
        You arrive at fridge 1. The fridge 1 is closed.
        > cool mug 2 with fridge 1
        You cool the mug 2 using the fridge 1.
        > examine mug 2
        This is a cool and clean mug 2.
        > go to countertop 2
        You arrive at countertop 2. On the countertop 2, you see nothing.
        > move mug 2 to countertop 2
        You move the mug 2 to the countertop 2.
        > open cabinet 1
        You open the cabinet 1. The cabinet 1 is open. In it, you see a bowl 1.
        > take bowl 1 from cabinet 1
        You pick up the bowl 1 from the cabinet 1.
        > examine bowl 1
        This is a normal bowl 1. In it, you see a egg 1.""",
    "heat and cool undo each other": """
        > go to fridge 1
        You arrive at fridge 1. The fridge 1 is closed.
        > open fridge 1
        You open the fridge 1. The fridge 1 is open. In it, you see a apple 1.
        > take apple 1 from fridge 1
        You pick up the apple 1 from the fridge 1.
        > examine apple 1
        This is a cold apple 1.
        > heat apple 1 with fridge 1
        Nothing happens.
        > go to microwave 1
        You arrive at microwave 1. The microwave 1 is closed.
        > heat apple 1 with microwave 1
        You heat the apple 1 using the microwave 1.
        > examine apple 1
        This is a hot apple 1.
        > go to fridge 1
        You arrive at fridge 1. The fridge 1 is open. In it, you see nothing.
        > cool apple 1 with fridge 1
        You cool the apple 1 using the fridge 1.
        > examine apple 1
        This is a cold apple 1.""",
    "what cannot be clean, hot or cool": """
        > go to sidetable 1
        You arrive at sidetable 1. On the sidetable 1, you see a book 1, and a desklamp 1.
        > take book 1 from sidetable 1
        You pick up the book 1 from the sidetable 1.
        > go to microwave 1
        You arrive at microwave 1. The microwave 1 is closed.
        > heat book 1 with microwave 1
        Nothing happens.
        > go to fridge 1
        You arrive at fridge 1. The fridge 1 is closed.
        > cool book 1 with fridge 1
        Nothing happens.
        > go to sinkbasin 1
        You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.
        > clean book 1 with sinkbasin 1
        Nothing happens.
        > clean mug 2 with sinkbasin 1
        Nothing happens.
        > go to sidetable 1
        You arrive at sidetable 1. On the sidetable 1, you see a desklamp 1.
        > move book 1 to sidetable 1
        You move the book 1 to the sidetable 1.
        > go to countertop 1
        You arrive at countertop 1. On the countertop 1, you see a apple 2, a knife 1, and a spoon 1.
        > take spoon 1 from countertop 1
        You pick up the spoon 1 from the countertop 1.
        > go to microwave 1
        You arrive at microwave 1. The microwave 1 is closed.
        > heat spoon 1 with microwave 1
        Nothing happens.
        > clean spoon 1 with sinkbasin 1
        Nothing happens.
        > go to sinkbasin 1
        You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.
        > clean spoon 1 with sinkbasin 1
        You clean the spoon 1 using the sinkbasin 1.""",
    "use": """
        > use desklamp 1
        Nothing happens.
        > go to sidetable 1
        You arrive at sidetable 1. On the sidetable 1, you see a book 1, and a desklamp 1.
        > use desklamp 1
        You turn on the desklamp 1.
        > use desklamp 1
        You turn on the desklamp 1.
        > use book 1
        Nothing happens.
        > examine desklamp 1
        Nothing happens.""",
    "slice": """
        > go to countertop 1
        You arrive at countertop 1. On the countertop 1, you see a apple 2, a knife 1, and a spoon 1.
        > slice apple 2 with knife 1
        Nothing happens.
        > take spoon 1 from countertop 1
        You pick up the spoon 1 from the countertop 1.
        > slice apple 2 with spoon 1
        Nothing happens.
        > move spoon 1 to countertop 1
        You move the spoon 1 to the countertop 1.
        > take knife 1 from countertop 1
        You pick up the knife 1 from the countertop 1.
        > slice spoon 1 with knife 1
        Nothing happens.
        > slice apple 1 with knife 1
        Nothing happens.
        > slice apple 2 with knife 1
        You sliced the apple 2 with the knife 1.
        > move knife 1 to countertop 1
        You move the knife 1 to the countertop 1.
        > take apple 2 from countertop 1
        You pick up the apple 2 from the countertop 1.
        > examine apple 2
        This is a sliced apple 2.
        > go to microwave 1
        You arrive at microwave 1. The microwave 1 is closed.
        > heat apple 2 with microwave 1
        You heat the apple 2 using the microwave 1.
        > examine apple 2
        This is a hot sliced apple 2.
        > go to fridge 1
        You arrive at fridge 1. The fridge 1 is closed.
        > cool apple 2 with fridge 1
        You cool the apple 2 using the fridge 1.
        > examine apple 2
        This is a cool sliced apple 2.
        > go to sinkbasin 1
        You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.
        > clean apple 2 with sinkbasin 1
        You clean the apple 2 using the sinkbasin 1.
        > examine apple 2
        This is a cool and clean sliced apple 2.""",
    "slice with a butter knife": """
        > go to drawer 1
        You arrive at drawer 1. The drawer 1 is closed.
        > open drawer 1
        You open the drawer 1. The drawer 1 is open. In it, you see a butterknife 1.
        > take butterknife 1 from drawer 1
        You pick up the butterknife 1 from the drawer 1.
        > go to countertop 1
        You arrive at countertop 1. On the countertop 1, you see a apple 2, a knife 1, and a spoon 1.
        > slice apple 2 with butterknife 1
        You sliced the apple 2 with the butterknife 1.""",
    "slice behind a door": """
        > go to countertop 1
        You arrive at countertop 1. On the countertop 1, you see a apple 2, a knife 1, and a spoon 1.
        > take knife 1 from countertop 1
        You pick up the knife 1 from the countertop 1.
        > go to fridge 1
        You arrive at fridge 1. The fridge 1 is closed.
        > slice apple 1 with knife 1
        You sliced the apple 1 with the knife 1.""",
}
GARBLED = ("", "xyzzy", "LOOK", "Look", "look around", "l o o k", "go  to drawer 1", "go to drawer1", "go to the drawer 1",
           "go to drawer 1.", "goto drawer 1", "> look", "look; inventory", "look\nlook", "go to Drawer 1", "go to drawer 01")


def read_story(text):
    """-> [(command, feedback), ...]"""
    lines = [line.strip() for line in text.strip().splitlines()]
    return list(zip([line[2:] for line in lines[::2]], lines[1::2], strict=True))


def test_first_observation(house):
    assert house().reset() == FIRST


@pytest.mark.parametrize("name", STORIES)
def test_every_command_answers_in_the_official_words(house, name):
    env = house()
    for command, feedback in read_story(STORIES[name]):
        assert (command, *env.step(command)) == (command, feedback, 0, False)


def test_help(house):
    text = house().step("help")[0]
    assert text.startswith("Available commands:\n  look:                             look around your current location\n")
    assert text.endswith("\n  slice (object) with (object):     slice an object using a sharp object\n")
    assert text.count("\n") == 14


def test_what_is_no_command_does_nothing(house):
    env = house()
    for command in GARBLED:
        assert env.step(command) == ("Nothing happens.", 0, False)
    assert env.count == len(GARBLED) and env.reset() == FIRST


def test_space_around_a_command_does_not_count(house):
    env = house()
    assert env.step("  inventory \n")[0] == "You are not carrying anything."
    assert env.step("\tgo to drawer 2  ")[0] == "You arrive at drawer 2. The drawer 2 is closed."


def test_numbers_are_those_of_the_official_demangler():
    """The last sorted id is number 1; "basin" anywhere in an id makes another kind."""
    ids = ["agent1", "bathtub_bar_1_bar_bathtubbasin", "mug_bar_1", "mug_bar_2", "mug_bar_3", "sink_bar_1",
           "sink_bar_1_bar_sinkbasin", "sink_bar_2_bar_sinkbasin"]
    assert display_names(ids) == {
        "bathtub_bar_1_bar_bathtubbasin": "bathtubbasin 1", "mug_bar_1": "mug 3", "mug_bar_2": "mug 2", "mug_bar_3": "mug 1",
        "sink_bar_1": "sink 1", "sink_bar_1_bar_sinkbasin": "sinkbasin 2", "sink_bar_2_bar_sinkbasin": "sinkbasin 1"}


PLACES = ["cabinet 1", "countertop 1", "countertop 2", "drawer 1", "drawer 2", "fridge 1", "microwave 1", "sidetable 1",
          "sinkbasin 1"]
ADMISSIBLE = (      # commands that lead there; what can be done there besides go to all other places, help, inventory, look
    ("", ""),
    ("go to countertop 1", "examine countertop 1, take apple 2 from countertop 1, take knife 1 from countertop 1,"
                           " take spoon 1 from countertop 1"),
    ("go to drawer 2", "examine drawer 2, open drawer 2"),
    ("go to drawer 2, open drawer 2", "close drawer 2, examine drawer 2, take mug 1 from drawer 2, take pen 1 from drawer 2"),
    ("go to drawer 2, open drawer 2, take mug 1 from drawer 2",
     "close drawer 2, examine drawer 2, examine mug 1, move mug 1 to drawer 2"),
    ("go to cabinet 1", "examine cabinet 1, examine countertop 2, open cabinet 1, take mug 2 from countertop 2"),
    ("go to countertop 2, take mug 2 from countertop 2, go to microwave 1",
     "examine microwave 1, examine mug 2, heat mug 2 with microwave 1, open microwave 1"),
    ("go to countertop 2, take mug 2 from countertop 2, go to fridge 1, open fridge 1",
     "close fridge 1, cool mug 2 with fridge 1, examine fridge 1, examine mug 2, move mug 2 to fridge 1"),
    ("go to countertop 2, take mug 2 from countertop 2, go to sinkbasin 1",
     "clean mug 2 with sinkbasin 1, examine mug 2, examine sinkbasin 1, move mug 2 to sinkbasin 1"),
    ("go to countertop 1, take knife 1 from countertop 1",
     "examine countertop 1, examine knife 1, move knife 1 to countertop 1, slice apple 2 with knife 1"),
    ("go to sidetable 1", "examine sidetable 1, take book 1 from sidetable 1, use desklamp 1"),
    ("go to sidetable 1, take book 1 from sidetable 1",
     "examine book 1, examine sidetable 1, move book 1 to sidetable 1, use desklamp 1"),
)


@pytest.mark.parametrize("way, here", ADMISSIBLE)
def test_admissible_is_exactly_what_can_be_done(house, way, here):
    env = house()
    for command in way.split(", ") if way else []:
        assert env.step(command)[0] != "Nothing happens."
    at = [part[6:] for part in way.split(", ") if part.startswith("go to ")][-1:]
    at += ["countertop 2"] * (at == ["cabinet 1"])
    wanted = [f"go to {place}" for place in PLACES if place not in at] + ["help", "inventory", "look"]
    assert env.admissible == sorted(wanted + (here.split(", ") if here else []))


def test_admissible_is_exactly_what_answers(house):
    """Many random commands: those listed do something, others do not."""
    env, rng, seen = house(), random.Random(0), set()
    for _ in range(400):
        listed = env.admissible
        assert listed == sorted(set(listed))
        seen.update(listed)
        command = rng.choice(sorted(seen))
        observation, reward, done = env.step(command)
        assert (observation != "Nothing happens.") == (command in listed)
        if env.won:
            env.reset()


# --------------------------------------------------------------------------------------------- reward, the end, the step limit

def test_reward_comes_once_and_ends_the_episode(house):
    env = house(max_steps=5)
    way = "go to countertop 2", "take mug 2 from countertop 2", "go to sidetable 1"
    assert [env.step(command)[1:] for command in way] == [(0, False)] * 3 and not env.won
    assert env.step("move mug 2 to sidetable 1") == ("You move the mug 2 to the sidetable 1.", 1, True)
    assert env.won and not env.truncated
    assert env.step("take mug 2 from sidetable 1")[1:] == (0, True)
    assert env.step("move mug 2 to sidetable 1")[1:] == (0, True) and env.won and not env.truncated


def test_the_step_limit_cuts_off(house):
    env = house(max_steps=3)
    assert [env.step(command)[2] for command in ("look", "xyzzy")] == [False, False] and not env.truncated
    assert env.step("look") == ("You are in the middle of a room. Looking quickly around you, you see nothing.", 0, True)
    assert env.truncated and not env.won


def test_winning_on_the_last_step_is_no_cut(house):
    env = house(max_steps=4)
    result = do(env, "go to countertop 2", "take mug 2 from countertop 2", "go to sidetable 1", "move mug 2 to sidetable 1")
    assert result[1:] == (1, True) and env.won and not env.truncated


def test_no_limit(house):
    env = house(max_steps=None)
    assert not any(env.step("look")[2] for _ in range(300)) and not env.truncated


def test_make_gives_the_limit(tmp_path):
    write_game(tmp_path)
    for task in (envs.tasks("alfworld", "train", data=tmp_path)[0], envs.tasks("alfworld", "train", limit=1)[0]):
        for limit, env in ((50, task.make()), (7, task.make(max_steps=7)), (None, task.make(max_steps=None))):
            ends = [env.step("look")[2] for _ in range(60)]
            assert (ends.index(True) + 1 if any(ends) else None) == limit


def test_reset_starts_anew(house):
    env = house("look_at_obj_in_light", max_steps=8)
    do(env, "go to drawer 2", "open drawer 2", "take mug 1 from drawer 2", "go to sinkbasin 1", "clean mug 1 with sinkbasin 1",
       "go to sidetable 1", "use desklamp 1")
    assert env.won
    assert env.reset() == FIRST.replace("put a mug in sidetable", "examine the mug with the desklamp")
    assert env.admissible == sorted([f"go to {place}" for place in PLACES] + ["help", "inventory", "look"])
    assert (env.count, env.won, env.truncated) == (0, False, False)
    assert do(env, "go to drawer 2")[0] == "You arrive at drawer 2. The drawer 2 is closed."
    assert do(env, "open drawer 2")[0].endswith("you see a mug 1, and a pen 1.")
    assert do(env, "take mug 1 from drawer 2", "examine mug 1")[0] == "There's nothing special about mug 1."
    assert do(env, "go to sidetable 1")[1:] == (0, False)


def test_two_games_of_one_task_do_not_share_their_state(tmp_path):
    write_game(tmp_path)
    for task in (envs.tasks("alfworld", "train", data=tmp_path)[0], envs.tasks("alfworld", "train", limit=1)[0]):
        one, other = task.make(), task.make()
        before = other.admissible
        for _ in range(10):
            one.step(one.admissible[0])
        assert other.admissible == before


# -------------------------------------------------------------------------------------------------------- the six kinds of goal

GET = "go to countertop 2, take mug 2 from countertop 2, "
OTHER = "go to drawer 2, open drawer 2, take mug 1 from drawer 2, go to sidetable 1, move mug 1 to sidetable 1"
PUT = "go to sidetable 1, move mug 2 to sidetable 1"
CLEAN, HEAT, COOL = ("go to sinkbasin 1, clean mug 2 with sinkbasin 1, ", "go to microwave 1, heat mug 2 with microwave 1, ",
                     "go to fridge 1, cool mug 2 with fridge 1, ")


@pytest.mark.parametrize("task, way, won", [
    ("pick_and_place_simple", GET + PUT, True),
    ("pick_and_place_simple", GET + CLEAN + PUT, True),
    ("pick_and_place_simple", GET + "go to countertop 1, move mug 2 to countertop 1", False),
    ("pick_and_place_simple",
     "go to countertop 1, take apple 2 from countertop 1, go to sidetable 1, move apple 2 to sidetable 1", False),
    ("pick_clean_then_place_in_recep", GET + CLEAN + PUT, True),
    ("pick_clean_then_place_in_recep", GET + PUT, False),
    ("pick_clean_then_place_in_recep", GET + HEAT + PUT, False),
    ("pick_clean_then_place_in_recep", GET + CLEAN + "go to countertop 1, move mug 2 to countertop 1", False),
    ("pick_clean_then_place_in_recep", GET + CLEAN + "go to countertop 2, move mug 2 to countertop 2, " + OTHER, False),
    ("pick_heat_then_place_in_recep", GET + HEAT + PUT, True),
    ("pick_heat_then_place_in_recep", GET + PUT, False),
    ("pick_heat_then_place_in_recep", GET + HEAT + COOL + PUT, False),
    ("pick_heat_then_place_in_recep", GET + COOL + HEAT + PUT, True),
    ("pick_heat_then_place_in_recep", GET + HEAT + CLEAN + PUT, True),
    ("pick_cool_then_place_in_recep", GET + COOL + PUT, True),
    ("pick_cool_then_place_in_recep", GET + PUT, False),
    ("pick_cool_then_place_in_recep", GET + COOL + HEAT + PUT, False),
    ("pick_cool_then_place_in_recep", GET + HEAT + COOL + PUT, True),
    ("pick_two_obj_and_place", GET + PUT + ", " + OTHER, True),
    ("pick_two_obj_and_place", GET + PUT, False),
    ("pick_two_obj_and_place", GET + PUT + ", take mug 2 from sidetable 1, move mug 2 to sidetable 1", False),
    ("pick_two_obj_and_place",
     GET + PUT + ", take mug 2 from sidetable 1, go to countertop 1, move mug 2 to countertop 1, " + OTHER, False),
    ("look_at_obj_in_light", GET + "go to sidetable 1, use desklamp 1", True),
    ("look_at_obj_in_light", GET + "go to sidetable 1", False),
    ("look_at_obj_in_light", "go to sidetable 1, use desklamp 1, take book 1 from sidetable 1", False),
    ("look_at_obj_in_light", GET + PUT + ", use desklamp 1", False),
    ("look_at_obj_in_light", GET + PUT + ", use desklamp 1, take mug 2 from sidetable 1", True),
    ("look_at_obj_in_light", "go to sidetable 1, use desklamp 1, " + GET + "go to countertop 1", False),
    ("look_at_obj_in_light", "go to sidetable 1, use desklamp 1, " + GET + "go to sidetable 1", True)])
def test_goals(house, task, way, won):
    """Nothing is won before the last command of the way, and that one wins or does not."""
    env, commands = house(task), way.split(", ")
    for command in commands:
        observation, reward, done = env.step(command)
        assert observation != "Nothing happens."
        assert (reward, done, env.won) == ((1, True, True) if won and command is commands[-1] else (0, False, False))


@pytest.mark.parametrize("formula, wanted", [
    ("(in a r1)", True), ("(in a r2)", False), ("(out a r1)", False), ("(not (in a r2))", True), ("(= a a)", True),
    ("(= a b)", False),
    ("(or (in a r2) (in b r2))", True), ("(or (in a r2) (in b r1))", False), ("(and)", True), ("(or)", False),
    ("(exists (?o - object) (in ?o r2))", True), ("(exists (?o - object) (in ?o r3))", False),
    ("(exists (?o - object ?r - receptacle) (and (in ?o ?r) (hot ?o)))", True),
    ("(exists (?o - object ?r - receptacle) (and (in ?o ?r) (hot ?o) (= ?r r2)))", False),
    ("(exists (?r - receptacle) (and (in b ?r) (= ?r r2)))", True),
    ("(exists (?o ?p - object) (and (hot ?o) (hot ?p) (not (= ?o ?p))))", False),
    ("(exists (?o ?p - object) (and (hot ?o) (not (= ?o ?p))))", True),
    ("(exists (?o - object) (not (hot ?o)))", True), ("(exists (?o - object) (or (in ?o r3) (hot ?o)))", True),
    ("(forall (?o - object) (hot ?o))", False), ("(forall (?o - object) (exists (?r - receptacle) (in ?o ?r)))", True),
    ("(forall (?r - receptacle) (exists (?o - object) (in ?o ?r)))", False)])
def test_formulas(formula, wanted):
    """The house: a, b are objects, a is in r1, b is in r2, nothing is in r3; only a is hot."""
    facts = {"in": {("a", "r1"), ("b", "r2")}, "hot": {("a",)}}
    assert true(read_pddl(formula)[0], facts, {"object": ["a", "b"], "receptacle": ["r1", "r2", "r3"]}, {}) is wanted


def test_pddl_text():
    assert read_pddl("(define ; a comment )\n (Goal (in ?o R1)()))") == [["define", ["goal", ["in", "?o", "r1"], []]]]
    for text in ("(a (b)", "(a))", ")"):
        with pytest.raises(ValueError):
            read_pddl(text)


# ------------------------------------------------------------------------------------------------------------- the official files

def test_official_files_are_listed_shuffled_by_the_seed_and_skipped_when_unsolvable(tmp_path):
    for i in range(8):
        write_game(tmp_path, trial=f"trial_{i}")
    write_game(tmp_path, trial="trial_x", solvable=False)
    write_game(tmp_path, "pick_two_obj_and_place", split="valid_seen")
    tasks = envs.tasks("alfworld", "train", data=tmp_path)
    names = [task.id for task in tasks]
    assert sorted(names) == [f"pick_and_place_simple-Mug-None-SideTable-1/trial_{i}" for i in range(8)] != names
    assert {(task.kind, task.split) for task in tasks} == {("pick_and_place_simple", "train")}
    assert names == [task.id for task in envs.tasks("alfworld", "train", data=str(tmp_path / "json_2.1.1"))]
    assert names[:3] == [task.id for task in envs.tasks("alfworld", "train", data=tmp_path, limit=3)]
    assert names != [task.id for task in envs.tasks("alfworld", "train", data=tmp_path, seed=1)]
    assert envs.tasks("alfworld", "train", data=tmp_path, limit=0) == []
    assert [task.kind for task in envs.tasks("alfworld", "valid_seen", data=tmp_path)] == ["pick_two_obj_and_place"]
    assert tasks[0].make().reset() == FIRST


def one_line(error):
    """The message of a BadInput; a user reads one line."""
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(BadInput) as error:
        envs.tasks("alfworld", "train", data=tmp_path)
    assert str(tmp_path) in one_line(error) and "give the folder that holds json_2.1.1" in one_line(error)
    (tmp_path / "json_2.1.1" / "train").mkdir(parents=True)
    with pytest.raises(BadInput) as error:
        envs.tasks("alfworld", "train", data=tmp_path)
    assert str(tmp_path / "json_2.1.1" / "train") in one_line(error) and "unpack" in one_line(error)


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(BadInput) as error:
        envs.tasks("alfworld", "eval")
    assert "--split eval" in one_line(error) and "train, valid_seen, valid_unseen" in one_line(error)
    with pytest.raises(BadInput) as error:
        envs.tasks("alfwold", "train")
    assert "--env alfwold" in one_line(error) and "choose from alfworld" in one_line(error)


@pytest.mark.parametrize("changes, what", [
    ({"pddl_problem": None}, "'pddl_problem' is missing"), ({"grammar": None}, "'grammar' is missing"),
    ({"pddl_problem": pddl("(and)")[:-1]}, "a ) is missing"), ({"pddl_problem": pddl("(and)") + ")"}, "a ) too many"),
    ({"pddl_problem": "(define)"}, "':init' is missing"), ({"pddl_problem": ""}, "does not parse"),
    ({"pddl_problem": 3}, "does not parse"), ({"grammar": "no sentence"}, "does not parse"),
    ({"pddl_problem": pddl("(exists ?o)")}, "does not parse"), ({"pddl_problem": pddl("")}, "does not parse"),
    ({"pddl_problem": "(define (:init (a b)) (:objects) (:goal (and)))"}, "receptacleatlocation"),
    ("{'not': json", "not a JSON file"), ("", "not a JSON file"), (b"\xff\xfe\x00", "not a JSON file"),
    ("[1]", "does not parse")])
def test_broken_games_are_named_with_a_mend(tmp_path, changes, what):
    file = write_game(tmp_path, **(changes if isinstance(changes, dict) else {}))
    if not isinstance(changes, dict):
        file.write_bytes(changes if isinstance(changes, bytes) else changes.encode())
    task = envs.tasks("alfworld", "train", data=tmp_path)[0]
    with pytest.raises(BadInput) as error:
        task.make()
    message = one_line(error)
    assert message.startswith(f"{file}: ") and what in message and "download ALFWorld's json_2.1.1 again" in message


def test_a_game_that_went_away_is_named(tmp_path):
    file = write_game(tmp_path)
    task = envs.tasks("alfworld", "train", data=tmp_path)[0]
    file.unlink()
    with pytest.raises(BadInput) as error:
        task.make()
    assert f"{file}: cannot be read" in one_line(error)


# -------------------------------------------------------------------------------------------------------------------- the expert

def play(env, careless=False, steps=()):
    """The expert plays on to the end. -> (first observation, [(command, observation), ...])"""
    first, steps, done = env.reset(), list(steps), False
    for command, _ in steps:
        env.step(command)
    while not done:
        command = alfworld.expert(first, steps, careless)[1]
        observation, _, done = env.step(command)
        steps.append((command, observation))
    return first, steps


CONVERSATION = """
    > go to cabinet 1
    I need to find a mug . Next I look at cabinet 1 .
    You arrive at cabinet 1. The cabinet 1 is closed.
    > open cabinet 1
    I need to find a mug . Now I open cabinet 1 .
    You open the cabinet 1. The cabinet 1 is open. In it, you see a bowl 1.
    > go to drawer 1
    I need to find a mug . Next I look at drawer 1 .
    You arrive at drawer 1. The drawer 1 is closed.
    > open drawer 1
    I need to find a mug . Now I open drawer 1 .
    You open the drawer 1. The drawer 1 is open. In it, you see a mug 2, and a pen 1.
    > take mug 2 from drawer 1
    I see mug 2 . Now I take it from drawer 1 .
    You pick up the mug 2 from the drawer 1.
    > go to microwave 1
    I have mug 2 . Next I go to microwave 1 to heat it .
    You arrive at microwave 1. The microwave 1 is closed.
    > heat mug 2 with microwave 1
    I have mug 2 . Now I heat it with microwave 1 .
    You heat the mug 2 using the microwave 1.
    > go to shelf 1
    I have mug 2 . Next I go to shelf 1 to put it there .
    You arrive at shelf 1. On the shelf 1, you see nothing.
    > move mug 2 to shelf 1
    I have mug 2 . Now I put it in shelf 1 .
    You move the mug 2 to the shelf 1."""


def test_the_expert_needs_only_what_it_has_read():
    """No game here: a conversation written by hand, and what the expert thinks and does at each point of it."""
    first = ("-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see"
             " a cabinet 1, a drawer 1, a microwave 1, and a shelf 1.\n\nYour task is to: heat some mug and put it in shelf.")
    lines, steps = [line.strip() for line in CONVERSATION.strip().splitlines()], []
    for command, thought, observation in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        assert alfworld.expert(first, steps) == (thought, command[2:])
        steps.append((command[2:], observation))


@pytest.mark.parametrize("sentence, told, wanted", [
    # no place for it here: to the next place, and not the same command again
    ("put a mug in shelf", [("go to shelf 2", "You arrive at shelf 2. On the shelf 2, you see a pen 1."),
                            ("take pen 1 from shelf 2", "You pick up the pen 1 from the shelf 2."),
                            ("move pen 1 to shelf 2", "Nothing happens.")], "go to microwave 1"),
    # two go into one receptacle: where the first one is
    ("put two mug in shelf", [("go to shelf 2", "You arrive at shelf 2. On the shelf 2, you see nothing."),
                              ("move mug 1 to shelf 2", "You move the mug 1 to the shelf 2."),
                              ("go to table 1", "You arrive at table 1. On the table 1, you see a mug 2."),
                              ("take mug 2 from table 1", "You pick up the mug 2 from the table 1.")], "go to shelf 2"),
    # somebody cooled what had to be hot: heat it again
    ("heat some mug and put it in shelf", [("take mug 1 from table 1", "You pick up the mug 1 from the table 1."),
                                           ("heat mug 1 with microwave 1", "You heat the mug 1 using the microwave 1."),
                                           ("cool mug 1 with fridge 1", "You cool the mug 1 using the fridge 1.")],
     "go to microwave 1")])
def test_the_expert_minds_what_happened(sentence, told, wanted):
    first = f"You see a microwave 1, a shelf 1, a shelf 2, and a table 1.\n\nYour task is to: {sentence}."
    assert alfworld.expert(first, told)[1] == wanted


@pytest.mark.parametrize("task", GOALS)
def test_the_expert_wins_official_files(house, task):
    env = house(task, max_steps=50)
    play(env)
    assert env.won


@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_wins_every_built_in_task_in_20_steps(split):
    tasks = envs.tasks("alfworld", split, limit=60, seed=3)
    assert {kind: sum(task.kind == kind for task in tasks) for kind in GOALS} == dict.fromkeys(GOALS, 10)
    assert {task.id.split("-")[0] for task in tasks} == set(GOALS) and {task.split for task in tasks} == {split}
    for task in tasks:
        env = task.make(max_steps=20)
        assert task.id.startswith(task.kind) and play(env) and env.won and not env.truncated, task.id


@pytest.mark.parametrize("split", SPLITS)
def test_no_built_in_task_is_won_without_its_middle_step(split):
    """The expert's commands again, less the cleaning, heating, cooling, the lamp or one of two objects."""
    for task in envs.tasks("alfworld", split, limit=24, seed=4):
        commands = [command for command, _ in play(task.make(max_steps=20))[1]]
        verb = {"look": "use", "pick_two": "move"}.get(re.match("pick_two|look|pick", task.kind)[0], task.kind.split("_")[1])
        verb = "move" if verb == "and" else verb
        skipped = next(command for command in commands if command.split()[0] == verb)
        env = task.make(max_steps=None)
        for command in commands:
            if command != skipped:
                env.step(command)
        assert not env.won, (task.id, skipped)


def test_the_careless_expert_opens_nothing_and_wins_where_all_stands_open():
    tasks = envs.tasks("alfworld", "train", limit=120)
    won = 0
    for task in tasks:
        env = task.make(max_steps=20)
        assert "open" not in [command.split()[0] for command, _ in play(env, careless=True)[1]], task.id
        won += env.won
    assert .3 < won / len(tasks) < .6


def test_the_expert_is_a_function_of_what_it_read():
    """The same input gives the same answer, nothing that it is given is changed, and no call depends on the one before."""
    told = []
    for task in envs.tasks("alfworld", "train", limit=12, seed=5):
        first, steps = play(task.make(max_steps=20))
        told += [(first, steps[:i], steps[i][0]) for i in range(len(steps))]
    random.Random(0).shuffle(told)
    for first, steps, command in told:
        before = list(steps)
        assert alfworld.expert(first, steps)[1] == command
        assert steps == before and alfworld.expert(first, tuple(steps))[1] == command


def test_the_expert_takes_over_after_random_actions():
    rng = random.Random(0)
    for task in envs.tasks("alfworld", "valid_seen", limit=24, seed=6):
        env, steps = task.make(max_steps=None), []
        while len(steps) < 15 and not env.won:
            command = rng.choice([rng.choice(env.admissible), "dance", "go to nowhere 1"])
            steps.append((command, env.step(command)[0]))
        if not env.won:
            env = task.make(max_steps=60)
            play(env, steps=steps)
            assert env.won, task.id


# ------------------------------------------------------------------------------------------------------------ the built-in houses

def receptacles(task):
    return re.sub(r" \d+|\.\n.*", "", task.make().reset().partition("you see ")[2], flags=re.DOTALL)


def test_splits_share_no_layout_and_no_pair_with_valid_unseen():
    layouts, pairs, ids = {}, {}, set()
    for split in SPLITS:
        tasks = [task for seed in range(3) for task in envs.tasks("alfworld", split, limit=180, seed=seed)]
        parts = [task.id.split("/")[0].split("-") for task in tasks]
        layouts[split] = {int(number) for *_, number in parts}
        pairs[split] = {(thing, end) for kind, thing, _, end, _ in parts if not kind.startswith("look")}
        ids |= {task.id for task in tasks}
    assert len(ids) == 3 * 3 * 180
    assert not layouts["train"] & layouts["valid_unseen"] and not layouts["valid_seen"] & layouts["valid_unseen"]
    assert not pairs["train"] & pairs["valid_unseen"] and not pairs["valid_seen"] & pairs["valid_unseen"]
    assert len(layouts["valid_seen"] & layouts["train"]) > 0.5 * len(layouts["valid_seen"])
    assert len(pairs["valid_seen"] & pairs["train"]) > 0.5 * len(pairs["valid_seen"])


def test_houses_of_valid_unseen_have_other_receptacles():
    """Not only other numbers: no room of valid_unseen has the same list of receptacles as one of train."""
    rooms = {split: {receptacles(task) for task in envs.tasks("alfworld", split, limit=120)} for split in SPLITS}
    assert not rooms["train"] & rooms["valid_unseen"] and rooms["train"] & rooms["valid_seen"]


def test_houses_are_small():
    """5 to 8 receptacles; 1 to 3 objects in each, but for a few that are empty or hold one more."""
    houses = [task.make() for task in envs.tasks("alfworld", "train", limit=60)]
    assert {len(env.place) for env in houses} == {5, 6, 7, 8}
    sizes = [len(env.inside(place)) for env in houses for place in env.place]
    assert max(sizes) <= 4 and sum(1 <= size <= 3 for size in sizes) > 0.95 * len(sizes)


def test_how_houses_are_furnished():
    """What is looked for is behind a door in nearly half of them; 12 looks find everything; lists have the highest number
    first, as in the official games; and the number of an object does not follow the order of the places."""
    hidden, order = 0, set()
    for task in envs.tasks("alfworld", "train", limit=120):
        env = task.make()
        at = dict(env.facts["inreceptacle"])
        doors = {place for place in env.place if env.has("openable", place)}
        assert len(env.place) + len(doors) <= 12
        thing = task.id.split("-")[1].lower()
        hidden += all(place in doors for name, place in at.items() if kind_of(name) == thing)
        for listed in (list(env.place), *map(env.inside, env.place)):
            assert listed == sorted(listed, key=lambda name: (kind_of(name), -int(name.split()[1])))
        order |= {at[name] > at[f"{kind_of(name)} 2"] for name in at
                  if name.endswith(" 1") and kind_of(name) != thing and f"{kind_of(name)} 2" in at}
    assert 0.35 < hidden / 120 < 0.6 and order == {True, False}


def test_default_sizes_and_limits():
    assert [len(envs.tasks("alfworld", split)) for split in SPLITS] == [3553, 140, 134]
    assert [len(envs.tasks("alfworld", "train", limit=limit)) for limit in (0, 1, 7)] == [0, 1, 7]
    assert len(envs.tasks("alfworld", "valid_seen", limit=150)) == 150


def test_the_seed_decides():
    def look(seed):
        return [(task.id, task.make().reset()) for task in envs.tasks("alfworld", "train", limit=12, seed=seed)]
    assert look(0) == look(0)
    assert not {first for _, first in look(0)} & {first for _, first in look(1)}


DIGEST = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from test_alfworld import digest
print(digest({data!r}))
"""


def digest(data):
    """A fingerprint of task names and whole episodes, admissible commands included."""
    seen = hashlib.sha256()
    for source in (None, data):
        for task in envs.tasks("alfworld", "train", data=source, limit=6):
            first, steps = play(task.make(max_steps=20))
            env = task.make()
            admissible = [env.admissible for command, _ in steps if env.step(command)]
            seen.update(repr((task.id, first, steps, admissible)).encode())
    return seen.hexdigest()


def test_nothing_depends_on_the_order_of_sets(tmp_path):
    write_game(tmp_path)
    write_game(tmp_path, "look_at_obj_in_light")
    script = DIGEST.format(root=str(ROOT), tests=str(ROOT / "tests"), data=str(tmp_path))
    started = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE,
                                env={**os.environ, "PYTHONHASHSEED": seed}) for seed in ("1", "2")]
    assert [process.communicate()[0].decode().strip() for process in started] == [digest(str(tmp_path))] * 2


def test_phrases_and_kinds_cover_the_built_in_houses():
    """The fixed strings for the tiny agent's tokenizer: longest first; every kind of thing in a house is named."""
    lengths = [len(phrase) for phrase in alfworld.PHRASES[1:]]
    assert lengths == sorted(lengths, reverse=True) and alfworld.PHRASES[0] == alfworld.INSTRUCTION
    for task in envs.tasks("alfworld", "train", limit=24):
        assert {kind_of(name) for name in task.make().types} <= set(alfworld.KINDS)


def test_every_admissible_command_parses_and_babble_does_not():
    for task in envs.tasks("alfworld", "train", limit=12):
        env = task.make()
        for command, _ in play(task.make(max_steps=20))[1]:
            assert all(map(env.parses, env.admissible))
            env.step(command)
    assert env.parses(" take mug 7 from moon 2 ")
    assert not any(map(env.parses, ("", "go", "go to desk", "take mug 1", "dance", "look up")))
