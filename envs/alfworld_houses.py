"""Built-in ALFWorld houses: a seeded supply of small solvable games, played by the engine of the official ones.

Four room types, 5 to 8 receptacles, 1 to 3 objects in each, all six kinds of task in equal shares; 20 steps are enough for
every one. In about half of the tasks what is looked for lies behind a door. The splits follow the official idea: valid_seen
has train's layouts furnished anew, valid_unseen has other layouts and other (object, destination) pairs. (All "look" tasks end
at a desk lamp: there a pair would be an object that is never lit in training, so they are split by layout alone, as officially.)
"""
import random
from collections import Counter, defaultdict
from functools import cache

from envs import Task
from envs.alfworld_game import TOOLS, Game, Problem, kind_of, read_pddl

PLACED = "(exists (?r - receptacle ?o - object) (and (receptacleType ?r {r}Type) (objectType ?o {o}Type) (inReceptacle ?o ?r)%s))"
KINDS_OF_TASK = {   # kind: rooms, sentences, goal ({o} an object kind, {r} its destination), worded as in the official games
    "pick_and_place_simple": ("kitchen livingroom bedroom bathroom", ("put a {o} in {r}", "put some {o} on {r}"), PLACED % ""),
    "look_at_obj_in_light": ("livingroom bedroom", ("look at {o} under the {r}", "examine the {o} with the {r}"),
        "(and (exists (?t - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?t {r}Type) (isToggled ?t)"
        " (inReceptacle ?t ?r) (receptacleAtLocation ?r ?l) (atLocation ?a ?l)))"
        " (exists (?o - object ?a - agent) (and (objectType ?o {o}Type) (holds ?a ?o))))"),
    "pick_clean_then_place_in_recep": ("kitchen bathroom", ("put a clean {o} in {r}", "clean some {o} and put it in {r}"),
                                       PLACED % " (isClean ?o)"),
    "pick_heat_then_place_in_recep": ("kitchen", ("put a hot {o} in {r}", "heat some {o} and put it in {r}"),
                                      PLACED % " (isHot ?o)"),
    "pick_cool_then_place_in_recep": ("kitchen", ("put a cool {o} in {r}", "cool some {o} and put it in {r}"),
                                      PLACED % " (isCool ?o)"),
    "pick_two_obj_and_place": ("kitchen livingroom bedroom bathroom", ("put two {o} in {r}", "find two {o} and put them in {r}"),
        PLACED % " (exists (?p - object) (and (not (= ?o ?p)) (objectType ?p {o}Type) (inReceptacle ?p ?r)))"),
}
ROOMS = {           # room: number of its first layout, what always stands in it, what else may
    "kitchen": (1, "CounterTop Fridge Microwave SinkBasin",
                "Cabinet Cabinet Drawer Drawer CounterTop DiningTable Shelf GarbageCan SideTable StoveBurner"),
    "livingroom": (201, "CoffeeTable Drawer Drawer Sofa",
                   "Drawer Safe Cabinet ArmChair ArmChair SideTable TVStand Shelf GarbageCan DiningTable"),
    "bedroom": (301, "Bed Desk Drawer Drawer", "Drawer Safe Dresser SideTable SideTable Shelf Shelf GarbageCan ArmChair"),
    "bathroom": (401, "Cabinet CounterTop SinkBasin Toilet",
                 "Cabinet Cabinet Drawer Drawer Shelf Shelf GarbageCan SideTable BathtubBasin Cart"),
}
OPENABLE = "Cabinet Drawer Fridge Microwave Safe".split()
LAMP_PLACES = "CoffeeTable Desk DiningTable Dresser SideTable TVStand".split()
STOCK = (           # rooms, objects, the places they may be put in
    ("kitchen", "Apple Egg Potato Tomato", "CounterTop DiningTable Fridge GarbageCan Microwave SideTable SinkBasin"),
    ("kitchen", "Cup Mug Plate", "Cabinet CounterTop DiningTable Drawer Fridge Microwave Shelf SideTable SinkBasin StoveBurner"),
    ("bathroom", "Cloth SoapBar", "BathtubBasin Cabinet Cart CounterTop Drawer GarbageCan Shelf SideTable SinkBasin Toilet"),
    ("bathroom", "Candle TissueBox ToiletPaper", "Cabinet Cart CounterTop Drawer GarbageCan Shelf SideTable Toilet"),
    ("bedroom livingroom", "CD CellPhone Pillow Watch",
     "ArmChair Bed Cabinet CoffeeTable Desk DiningTable Drawer Dresser GarbageCan Safe Shelf SideTable Sofa TVStand"),
    ("bedroom", "Book Pencil", "Bed Desk Drawer Dresser GarbageCan Safe Shelf SideTable"),
    ("livingroom", "Newspaper Vase", "ArmChair Cabinet CoffeeTable DiningTable Drawer GarbageCan Shelf SideTable Sofa TVStand"),
)
CAN = {"clean": "Apple Cloth Cup Egg Mug Plate Potato SoapBar Tomato".split(),
       "heat": "Apple Cup Egg Mug Plate Potato Tomato".split(),
       "cool": "Apple Cup Egg Mug Plate Potato Tomato".split()}


def stock(room):
    """object kind -> the receptacle kinds it may be put in, in this room."""
    return {name: places.split() for rooms, names, places in STOCK if room in rooms.split() for name in names.split()}


@cache
def layouts(room):
    """100 different lists of 5 to 8 receptacle kinds, the same for every seed: 80 to train in, 20 for valid_unseen.

    At most 12 looks (a place costs one, to open it another) find anything, so that 20 steps are enough for every task.
    """
    rng, found = random.Random(f"layouts {room}"), []
    while len(found) < 100:
        fixed, more = (words.split() for words in ROOMS[room][1:])
        kinds = sorted(fixed + rng.sample(more, rng.randint(5, 8) - len(fixed)))
        if kinds not in found and len(kinds) + sum(kind in OPENABLE for kind in kinds) <= 12:
            found.append(kinds)
    return found


def held_out(thing, place):
    """A fifth of all (object, destination) pairs is kept for valid_unseen. (With this seed every kind of task has some.)"""
    return random.Random(f"pairs {thing} {place}").random() < 0.2


def built_in_task(split, seed, index):
    """Draw what is to be done and where; the house is furnished when the task is made."""
    rng, unseen = random.Random(f"{split} {seed} {index}"), split == "valid_unseen"
    kind = list(KINDS_OF_TASK)[index % 6]
    verb, pairs = kind.split("_")[1], []
    while not pairs:                                                    # some layouts have no place for a pair of this split
        room = rng.choice(KINDS_OF_TASK[kind][0].split())
        number = rng.randrange(80, 100) if unseen else rng.randrange(80)
        kinds = layouts(room)[number]
        closed = rng.random() < 0.15                                    # must the destination be opened first?
        ends = [place for place in kinds if (place in OPENABLE) == closed and place.lower() != TOOLS.get(verb, [""])[0]]
        pairs = [(thing, end) for thing, places in stock(room).items() if thing in CAN.get(verb, [thing])
                 for end in (["DeskLamp"] if kind.startswith("look") else ends)
                 if end in places + ["DeskLamp"] and (kind.startswith("look") or held_out(thing, end) == unseen)]
    thing, end = rng.choice(pairs)
    name = f"{kind}-{thing}-None-{end}-{ROOMS[room][0] + number}/trial_{split}_{seed}_{index}"
    return Task(name, kind, split, lambda max_steps=50: Game(furnish(name, kind, room, kinds, thing, end), max_steps))


def furnish(name, kind, room, kinds, thing, end):
    """Put 1 to 3 things in each receptacle; what is looked for is rather behind a door than not. -> Problem."""
    rng, where = random.Random(name), stock(room)
    places = [f"{place} {kinds[:i + 1].count(place)}" for i, place in enumerate(kinds)]
    fits = [place for place in places if kind_of(place) in where[thing] and kind_of(place) != end]
    hidden = rng.random() < 0.6
    fits = [place for place in fits if (kind_of(place) in OPENABLE) == hidden] or fits
    put = [(thing, rng.choice(fits)) for _ in range(1 + (kind == "pick_two_obj_and_place") + (rng.random() < 0.25))]
    if room in ("bedroom", "livingroom"):
        put.append(("DeskLamp", rng.choice([place for place in places if kind_of(place) in LAMP_PLACES])))
    for place in places:
        for _ in range(rng.choice((1, 1, 2, 3)) - sum(at == place for _, at in put)):
            others = [other for other in where if other != thing and kind_of(place) in where[other]
                      and sum(other == before for before, _ in put) < 3]
            put += [(rng.choice(others), place)] if others else []
    rng.shuffle(put)                                                    # so that numbers tell nothing about places
    sentence, goal = rng.choice(KINDS_OF_TASK[kind][1]), KINDS_OF_TASK[kind][2]
    return house(sentence.format(o=thing, r=end).lower(), read_pddl(goal.format(o=thing, r=end))[0], places, put, where)


def house(sentence, goal, places, put, where):
    """The facts of a house. places: "Drawer 1"...; put: (object kind, place) pairs; where: what may be put where. -> Problem"""
    facts = defaultdict(set, atlocation={("agent1", "start")})
    for place in places:
        kind, name = kind_of(place), place.lower()
        facts["receptacletype"].add((name, f"{kind.lower()}type"))
        facts["receptacleatlocation"].add((name, f"at {name}"))
        facts["cancontain"] |= {(f"{kind.lower()}type", f"{thing.lower()}type") for thing in where if kind in where[thing]}
        if kind in OPENABLE:
            facts["openable"].add((name,))
    used = Counter()
    for thing, place in put:
        used[thing] += 1
        name = f"{thing} {used[thing]}".lower()
        facts["objecttype"].add((name, f"{thing.lower()}type"))
        facts["inreceptacle"].add((name, place.lower()))
        facts["toggleable" if thing == "DeskLamp" else "pickupable"].add((name,))
        for verb in CAN:
            if thing in CAN[verb]:
                facts[TOOLS[verb][1]].add((name,))
    names = [name for name, _ in facts["objecttype"]]
    # Lists are in the official order: by kind, the highest number first.
    order = sorted([*names, *map(str.lower, places)], key=lambda name: (kind_of(name), -int(name.split()[1])))
    return Problem(sentence, dict(facts), {name: i for i, name in enumerate(order)}, {"object": sorted(names)}, goal)
