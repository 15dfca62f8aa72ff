"""WebShop: buy what an instruction asks for, by searching and clicking. The text environment, its reward, and small built-in
shops.

    import envs.webshop as webshop
    task = webshop.tasks("test", limit=1)[0]                # a built-in shop; data="DIR": the official files
    env = task.make(max_steps=15)
    first = env.reset()                                     # "WebShop [SEP] Instruction: [SEP] i need ... [SEP] Search"
    observation, reward, done = env.step("search[soft cotton shirt]")           # click[...], and click[buy now] at the end

Pages, buttons and observations are those of the original's text mode (but for the last page, which here has only the score). The
reward on "Buy Now" is the original's, a number from 0 to 1; an episode is won if it is exactly 1 (A3T).

Official data (`data`, MIT, from github.com/princeton-nlp/WebShop): items_shuffle.json or items_shuffle_1000.json, with
items_ins_v2.json or items_ins_v2_1000.json, and, for goals written by people, items_human_ins.json. Goals are shuffled as there;
0-499 are test, 500-1499 eval, the rest train. Where the original draws without a seed (the upper price of a goal, the price of a
product that has a range), we draw with one. Nouns in titles come from spaCy and its en_core_web_sm; without them every word
that is no function word counts as a noun, which is said once on stderr and changes r_type a little. Searching is BM25 (Lucene
there).
"""
import json
import random
import re
import sys
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Callable

from envs import Task
from errors import BadInput

TEST = "test"                                     # the split to evaluate on
COUNTS = {"train": 1000, "eval": 200, "test": 500}
RESULTS, PAGE = 50, 10                            # products a search finds, products a page shows
SUB_PAGES = ("description", "features", "reviews")
COMMAND = re.compile(r"(search|click)\[(.+)\]")                # at the start; what follows is ignored, as in the original
SEP = " [SEP] "


@dataclass(frozen=True)
class Product:
    """What the pages show and the reward reads. `options`: name -> values; `price`: dollars, `tag`: as shown."""
    asin: str
    title: str
    description: str
    bullets: tuple
    attributes: tuple
    options: dict
    price: float
    tag: str
    query: str
    categories: tuple


@dataclass(frozen=True)
class Goal:
    """What is to be bought. `options`: the values wanted; `nouns`: title -> its nouns, for the reward."""
    instruction: str
    product: Product
    attributes: tuple
    options: tuple
    price_upper: float
    nouns: Callable


# ---------------------------------------------------------------- the reward (WebShop's engine/goal.py)

COLOURS = """alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal dark denim
eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender
lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard natural navy nude
olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone
stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow""".split()
FUNCTION_WORDS = set("a an and are as at by for from in into is it its of off on or our out so than that the their this to too "
                     "up with you your".split())


def command_of(action):
    """(search or click, its argument in lower case); (None, "") for what is no command. Blanks at the brackets do not count."""
    command = COMMAND.match(action.strip())
    return (command[1], command[2].strip().lower()) if command else (None, "")


def token_set_ratio(a, b):
    """0 to 100: how alike two texts are as sets of words."""
    try:
        from rapidfuzz import fuzz, utils
    except ModuleNotFoundError:
        raise BadInput("--env webshop: comparing texts needs a package; pip install rapidfuzz") from None
    a, b = (utils.default_process(text.encode("ascii", "ignore").decode()) for text in (a, b))
    return round(fuzz.token_set_ratio(a, b)) if a and b else 0


def normalise_colour(text):
    """The first colour, in the order of the list, that the text contains; else the text."""
    return next((colour for colour in COLOURS if colour in text), text)


def words(title):
    """All words of a title but function words, in lower case: the nouns of those who have no parser."""
    return [word for word in re.findall(r"[a-z][a-z'-]+", title.lower()) if word not in FUNCTION_WORDS]


@cache
def noun_parser():
    """title -> its nouns in lower case, by spaCy's small English model; `words`, and a line on stderr, where it is not
    installed."""
    try:
        import spacy
        model = spacy.load("en_core_web_sm", disable=["parser", "ner"])
        return cache(lambda title: [token.text.lower() for token in model(title) if token.pos_ in ("NOUN", "PROPN")])
    except (ModuleNotFoundError, OSError):
        print("webshop: without spaCy and en_core_web_sm all words but function words count as nouns of a title; for the "
              "original's reward pip install spacy, then python -m spacy download en_core_web_sm", file=sys.stderr)
        return words


def type_reward(bought, goal):
    """r_type: 1 for the same kind of thing; 0.5, 0.1 or 0 as it is less like it."""
    wanted = goal.nouns(goal.product.title)
    score = len(set(goal.nouns(bought.title)) & set(wanted)) / len(wanted) if wanted else 0.2
    if score == 0:
        return 0.0
    if score < 0.1:
        return 0.1
    alike = bought.query == goal.product.query or len(set(bought.categories) & set(goal.product.categories)) >= 2 or score > 0.2
    return 1.0 if alike else 0.5


def attribute_matches(bought, goal):
    """How many of the goal's attributes the product has: in its list, more or less, or anywhere in its texts, to the letter."""
    texts = (bought.title.lower(), " ".join(bought.bullets).lower(), bought.description.lower())
    return sum(any(token_set_ratio(has, wanted) > 85 for has in bought.attributes) or any(wanted in text for text in texts)
               for wanted in goal.attributes)


def option_matches(chosen, goal):
    """How many of the goal's options were chosen, colours by their first colour word."""
    chosen = [normalise_colour(value) for value in chosen]
    return sum(any(token_set_ratio(value, wanted) > 85 for value in chosen) for wanted in map(normalise_colour, goal.options))


def reward(bought, chosen, goal):
    """r_type x (attributes + options + [price within the limit]) / (their number + 1). chosen: the values of the options."""
    parts = attribute_matches(bought, goal) + option_matches(chosen, goal) + (bought.price <= goal.price_upper)
    return type_reward(bought, goal) * parts / (len(goal.attributes) + len(goal.options) + 1)


# ---------------------------------------------------------------- the shop

class Shop:
    """Products and their search."""

    def __init__(self, products):
        self.products, self.index = {p.asin: p for p in products}, None

    def search(self, keywords):
        """The products that fit the keywords best, at most RESULTS."""
        try:
            import bm25s
        except ModuleNotFoundError:
            raise BadInput("--env webshop: searching needs a package; pip install bm25s") from None
        products = list(self.products.values())
        if self.index is None:
            texts = bm25s.tokenize([self.text(p) for p in products], stopwords="en", show_progress=False)
            self.index = bm25s.BM25()
            self.index.index(texts, show_progress=False)
        query = bm25s.tokenize([keywords.lower()], stopwords="en", show_progress=False, return_ids=False)
        found, scores = self.index.retrieve(query, k=min(RESULTS, len(products)), show_progress=False)
        return [products[i] for i, score in zip(found[0], scores[0]) if score > 0]

    @staticmethod
    def text(product):
        """What is indexed of a product: title, description, first bullet, options."""
        options = " ".join(f"{name} {value}" for name, values in product.options.items() for value in values)
        return f"{product.title} {product.description} {(*product.bullets, '')[0]} {options}".lower()


class Game:
    """One shopping trip. `metrics` after the end: the score, which is the reward."""

    def __init__(self, goal, shop, max_steps=None):
        self.goal, self.shop, self.max_steps = goal, shop, max_steps

    def reset(self):
        """The search page."""
        self.page, self.found, self.number, self.product, self.chosen, self.steps = "search", [], 1, None, {}, 0
        self.won = self.truncated = False
        self.metrics = {"score": 0.0}
        return self.observation()

    def parses(self, action):
        """Is this a command at all?"""
        return command_of(action)[0] is not None

    def possible(self, action):
        """Would it do something now? Searching does from every page."""
        name, argument = command_of(action)
        return name == "search" or argument in self.clickable()

    @property
    def admissible(self):
        """All clicks of the page; on the search page, the search for the whole instruction."""
        if self.page == "search":
            return [f"search[{self.goal.instruction.partition(', and price')[0]}]"]
        return [f"click[{name}]" for name in self.clickable()]

    def step(self, action):
        """-> (observation, reward, done). What cannot be clicked changes nothing. Searching works from every page."""
        self.steps += 1
        self.truncated = self.steps == self.max_steps
        name, argument = command_of(action)
        if name == "search":
            self.found, self.number = self.shop.search(argument), 1
            self.show_results()
        elif name == "click" and argument == "buy now" and argument in self.clickable():
            score = reward(self.product, self.chosen.values(), self.goal)
            self.won, self.truncated, self.metrics = score == 1, False, {"score": score}
            return f"Thank you for shopping with us!{SEP}Your score (min 0.0, max 1.0){SEP}{score}", score, True
        elif name == "click" and argument in self.clickable():
            self.click(argument)
        return self.observation(), 0.0, self.truncated

    def show_results(self):
        """The page of results: product and options are forgotten."""
        self.page, self.product, self.chosen = "results", None, {}

    def click(self, name):
        """Go where a button, a link or an option leads."""
        if name == "back to search":
            self.page, self.found, self.number, self.product, self.chosen = "search", [], 1, None, {}
        elif self.page == "results" and name in ("next >", "< prev"):
            self.number += 1 if name == "next >" else -1
        elif self.page == "results":
            self.page, self.product = "item", self.shop.products[name.upper()]
        elif name == "< prev" and self.page == "item":
            self.show_results()
        elif name == "< prev":
            self.page = "item"
        elif name in SUB_PAGES:
            self.page = name
        else:
            option = [option for option, values in self.product.options.items() if name in values][-1]
            self.chosen[option] = name

    def shown(self):
        """The products of this page of results."""
        return self.found[(self.number - 1) * PAGE:self.number * PAGE]

    def clickable(self):
        """What can be clicked on this page, as typed."""
        if self.page == "search":
            return []
        if self.page == "results":
            return ["back to search", *["< prev"] * (self.number > 1), "next >", *(p.asin.lower() for p in self.shown())]
        if self.page != "item":
            return ["back to search", "< prev"]
        values = [value for values in self.product.options.values() for value in values]
        return ["back to search", "< prev", *SUB_PAGES, "buy now", *dict.fromkeys(values)]

    def observation(self):
        """The page as text."""
        if self.page == "search":
            return SEP.join(["WebShop", "Instruction:", self.goal.instruction, "Search"])
        parts = ["Instruction:", self.goal.instruction, "Back to Search"]
        if self.page == "results":
            parts += [f"Page {self.number} (Total results: {len(self.found)})", *["< Prev"] * (self.number > 1), "Next >"]
            for p in self.shown():
                parts += [p.asin, p.title, p.tag]
        elif self.page == "item":
            p = self.product
            parts += ["< Prev", *(text for name, values in p.options.items() for text in (name, *values)), p.title,
                      f"Price: {p.tag}", "Rating: N.A.", "Description", "Features", "Reviews", "Buy Now"]
        else:
            shown = {"description": (self.product.description,), "features": self.product.bullets}
            parts += ["< Prev", *shown.get(self.page, ())]
        return SEP.join(parts)


# ---------------------------------------------------------------- official files

def tasks(split, data=None, limit=None, seed=0):
    """The goals of "train", "eval" or "test": official ones from the folder DATA (shuffled by `seed` within the split), or
    those of built-in shops, made by `seed`."""
    if split not in COUNTS:
        raise BadInput(f"--split {split}: WebShop has {', '.join(COUNTS)}")
    if data is None:
        return [built_in_task(split, seed, index) for index in range(COUNTS[split] if limit is None else limit)]
    shop, goals = official(str(data))
    cut = {"test": goals[:500], "eval": goals[500:1500], "train": goals[1500:]}[split]
    if not cut:
        raise BadInput(f"--data {data}: only {len(goals)} goals, which are all in test; use --split test, or the larger file")
    order = list(enumerate(cut))
    random.Random(f"{split} {seed}").shuffle(order)
    return [make_task(f"{split}/{i}", split, goal, shop) for i, goal in order[:limit]]


def make_task(name, split, goal, shop):
    """A goal as a Task; its kind is how many options have to be chosen."""
    n = len(goal.options)
    return Task(name, f"{n} option{'s' * (n != 1)}", split, lambda max_steps=15: Game(goal, shop, max_steps))


@cache
def official(data):
    """(shop, goals in the original's order) of the official files."""
    items = read_json(data, ("items_shuffle.json", "items_shuffle_1000.json"))
    attributes = read_json(data, ("items_ins_v2.json", "items_ins_v2_1000.json"))
    people = read_json(data, ("items_human_ins.json",)) if (Path(data) / "items_human_ins.json").exists() else None
    rng, products, goals, seen = random.Random(233), [], [], set()
    for number, item in enumerate(items):
        try:
            if item["asin"] not in seen and (product := read_product(item, attributes, rng)):
                products.append(product)
                seen.add(product.asin)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"--data {data}: product {number + 1} is broken ({type(error).__name__}: {error}); get the file "
                           "again") from None
    shop = Shop(products)
    for product in shop.products.values():
        if people is not None:
            for wish in people.get(product.asin, ()):
                if wish["instruction_attributes"]:
                    goals.append(make_goal(wish["instruction"].strip("."), product, wish["instruction_attributes"],
                                           wish["instruction_options"], rng, noun_parser()))
        elif attributes.get(product.asin, {}).get("instruction"):
            goals += synthetic_goals(product, attributes[product.asin], rng)
    random.Random(233).shuffle(goals)
    return shop, goals


def synthetic_goals(product, record, rng):
    """One goal for each combination of options, worded as the original's."""
    combinations = [{}]
    for name in sorted(product.options):
        combinations = [{**before, name: value} for before in combinations for value in product.options[name]]
    goals = []
    for options in combinations:
        text = ", and ".join(f"{name}: {value}" for name, value in options.items())
        wish = record["instruction"] + (f" with {text}" if text else "")
        goals.append(make_goal(wish, product, record["instruction_attributes"], list(options.values()), rng, noun_parser()))
    return goals


def make_goal(text, product, attributes, options, rng, nouns):
    """A goal with an upper price: the larger of two of the next four tens of dollars above the product's price."""
    above = [10.0 * i for i in range(1, 100) if 10.0 * i > product.price][:4]
    upper = max(rng.sample(above, 2)) if len(above) >= 2 else 1_000_000
    text += f", and price lower than {upper:.2f} dollars" if len(above) >= 2 else ""
    return Goal(text, product, tuple(attributes), tuple(options), upper, nouns)


def read_json(data, names):
    """The content of the first of these files that is in the folder."""
    file = next((Path(data) / name for name in names if (Path(data) / name).is_file()), None)
    if file is None:
        raise BadInput(f"--data {data}: there is no {' or '.join(names)} in it; give the folder of WebShop's data")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{file}: no JSON ({error}); download it again") from None


def read_product(item, attributes, rng):
    """A Product of an official record; None for those the original leaves out."""
    asin = item["asin"]
    if asin == "nan" or len(asin) > 10:
        return None
    prices = [float(re.sub(r"[^\d.]", "", part)) for part in (item.get("pricing") or "$100.0").split("$")[1:]][:2]
    options = {}
    for name, contents in (item.get("customization_options") or {}).items():
        if contents is not None:
            options[name.lower()] = [content["value"].strip().replace("/", " | ").lower() for content in contents]
    bullets = item["small_description"]
    return Product(asin, item["name"], item["full_description"] or "", tuple(bullets if isinstance(bullets, list) else [bullets]),
                   tuple(attributes.get(asin, {}).get("attributes", ["DUMMY_ATTR"])), options,
                   prices[0] if len(prices) == 1 else rng.uniform(*prices),
                   f"${prices[0]}" if len(prices) == 1 else f"${prices[0]} to ${prices[1]}", item["query"].lower().strip(),
                   tuple(part.strip() for part in item["product_category"].split("›")))


# ---------------------------------------------------------------- the built-in shops

BOTH = ("colored", "sized")
THINGS = {"lamp": ("colored",), "mug": ("colored",), "basket": ("sized",), "pillow": ("sized",), "shirt": BOTH, "dress": BOTH,
          "jacket": BOTH, "coat": BOTH, "rug": BOTH, "blanket": BOTH}               # thing: what can be chosen of it
ASINS = [f"B0{first}{second}" for first in "AB" for second in "EFGHIJ"]
BRANDS = "Alder Birch Cedar Elm Fern Hazel Linden Maple Rowan Thorn".split()
QUALITIES = """cotton leather wool linen silk bamboo washable handmade organic foldable strong light soft warm thin wide striped
plain modern classic""".split()
SOLD_COLOURS, SIZES = "black blue brown green grey pink red white yellow".split(), "small medium large".split()


@lru_cache(100)
def goal_and_shop(name, thing):
    """(a goal for a thing, the shop): a product of each thing and one more of the goal's, each with two qualities, and
    three colours or sizes, or both."""
    rng, products = random.Random(f"webshop {name}"), []
    for asin, kind in zip(rng.sample(ASINS, len(THINGS) + 1), [*THINGS, thing]):
        qualities = tuple(rng.sample(QUALITIES, 2))
        price = float(rng.randrange(8, 90))
        choices = {"color": rng.sample(SOLD_COLOURS, 3), "size": SIZES}
        options = {name: choices[name] for name, word in (("color", "colored"), ("size", "sized")) if word in THINGS[kind]}
        title = " ".join([rng.choice(BRANDS), *qualities, kind]).title()
        bullets = f"It is {qualities[0]} and {qualities[1]}.", f"This {kind} lasts."
        products.append(Product(asin, title, f"A {kind} for every day.", bullets, qualities, options, price,
                                f"${price}", kind, ("Home", kind.title())))
    wanted = rng.choice([product for product in products if product.query == thing])
    options = [rng.choice(values) for values in wanted.options.values()]
    text = f"i need a {' '.join(wanted.attributes)} {thing} " + " and ".join(map(" ".join, zip(THINGS[thing], options)))
    return make_goal(text, wanted, wanted.attributes, options, rng, words), Shop(products)


def built_in_task(split, seed, index):
    """A goal of one or two options, in a shop of its own: a shopper has to read the pages."""
    name = f"{split} {seed} {index}"
    thing = random.Random(f"webshop thing {name}").choice(list(THINGS))
    kind = "2 options" if THINGS[thing] == BOTH else "1 option"
    return Task(f"{split}/{seed}/{index}", kind, split, lambda max_steps=15: Game(*goal_and_shop(name, thing), max_steps))


WISH = re.compile(r"i need a (\w+) (\w+) (\w+)(?: colored (\w+))?(?:(?: and)? sized (\w+))?, "
                  r"and price lower than ([\d.]+) dollars")
LISTED = re.compile(r"(B0\w\w) \[SEP\] \w+ (\w+ \w+ \w+) \[SEP\] \$([\d.]+)")


def expert(first, steps, careless=False):
    """The next (thought, action) of a shopper who has read the first page and then the (action, observation) pairs `steps`.

    It searches, opens what has the right title and price, chooses the options and buys; a product that lacks one it leaves.
    careless: of two options it forgets the second, the size.
    """
    wish = WISH.search(first)
    if wish is None:
        raise BadInput("--agent expert, --teacher expert: the scripted shopper knows the built-in shops only; leave out --data")
    *qualities, thing, colour, size, upper = wish.groups()
    wanted, options = " ".join([*qualities, thing]), [option for option in (colour, size) if option]
    page = steps[-1][1] if steps else first
    if page.startswith("WebShop"):
        return f"I search for a {wanted}.", f"search[{wanted}]"
    clicks = [action.strip().lower().removeprefix("click[").removesuffix("]").strip() for action, _ in steps]
    if "Page " in page:
        unfit = {name.upper() for name, (_, item) in zip(clicks, steps)
                 if "Buy Now" in item and any(f"[SEP] {option} [SEP]" not in item for option in options)}
        for asin, title, price in LISTED.findall(page):
            if set(wanted.split()) == set(title.lower().split()) and float(price) <= float(upper) and asin not in unfit:
                return f"I look at {asin}.", f"click[{asin.lower()}]"
        return "Nothing fits. I turn the page.", "click[next >]"
    if "Buy Now" not in page:
        return "I go back.", "click[< prev]"
    if missing := [option for option in options if f"[SEP] {option} [SEP]" not in page]:
        return f"There is no {missing[0]}. I go back.", "click[< prev]"
    item = next((i for i in reversed(range(len(clicks))) if clicks[i].upper() in ASINS), 0)
    if left := [option for option in options[:1 if careless else 2] if option not in clicks[item:]]:
        return reason(first, steps, f"click[{left[0]}]"), f"click[{left[0]}]"
    return "All is right. I buy it.", "click[buy now]"


def reason(first, steps, action):
    """A thought that leads to any action, in the expert's words."""
    name = action.partition("[")[2].removesuffix("]")
    if action.startswith("search["):
        return f"I search for a {name.removeprefix('i need a ')}."
    if name.upper() in ASINS:
        return f"I look at {name.upper()}."
    if WISH.search(first) is None:
        raise BadInput("--annotator expert: the scripted annotator knows the built-in shops only; leave out --data")
    return {"next >": "Nothing fits. I turn the page.", "< prev": "I go back.", "back to search": "I go back.",
            "features": "I read the features.", "description": "I read the description.", "reviews": "I read the reviews.",
            "buy now": "All is right. I buy it."}.get(name, f"It must be {'sized' if name in SIZES else 'colored'} {name}.")


def analogous(task, env, words):
    """Another wish in a built-in shop, whatever a teacher says."""
    return built_in_task("train", "analogue", task.id).make(env.max_steps)


# ---------------------------------------------------------------- words, for prompts and tokenizers

INSTRUCTION = """You shop for what an instruction asks for. Each turn, first write a thought: what you look for, and whether \
what you see fits. Then write one command: search[words], or click[name] with the name of a button, a product or an option on \
the page. Choose the right options before click[buy now], which ends the trip."""

PHRASES = [INSTRUCTION, "WebShop [SEP] Instruction:", "Instruction:", "i need a", "and price lower than", "dollars",
           "[SEP] Search", "Back to Search [SEP] Page 1 (Total results:", "Back to Search", "Total results:", "Next >", "< Prev",
           "Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now", "Price:", "search[", "click[",
           "back to search]", "buy now]", "next >]", "< prev]", "features]", "I search for a", "I look at",
           "Nothing fits. I turn the page.", "I go back.", "There is no", "I read the features.", "It must be",
           "All is right. I buy it.", "It is", "lasts.", "Thank you for shopping with us!", "Your score (min 0.0, max 1.0)"]

KINDS, MARKS = [], ""
