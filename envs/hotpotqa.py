"""HotpotQA: questions that need two articles, answered with search, lookup and finish. ReAct's tool over an offline Wikipedia.

    import envs.hotpotqa as hotpotqa
    task = hotpotqa.tasks("dev", limit=1)[0]                # a built-in world; data="DIR": the official files
    env = task.make(max_steps=8)
    question = env.reset()
    observation, reward, done = env.step("search[Ada Brook]")       # or lookup[born], finish[Elmford]

Tool and texts are those of ReAct's environment: `search` shows an article's first five sentences, or five similar titles;
`lookup` shows one sentence of the open article after another in which the words stand; `finish` ends the episode. The reward is
1 for an exact match and -1 otherwise (LTC; ReAct's text says 1 or 0). Exact match and F1 are the official evaluation's.

Official data (`data`, CC BY-SA 4.0): hotpot_train_v1.1.json, hotpot_dev_distractor_v1.json or hotpot_dev_fullwiki_v1.json, as
downloaded or one object a line; Wikipedia is then all paragraphs of that file, or the real one (`wiki="live"`).
The built-in worlds are a seeded supply of towns, people and books with an article each. Facts differ from world to world, so
that nothing can be known by heart, and half of them stand after the fifth sentence, where only `lookup` finds them.
"""
import json
import random
import re
import string
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from envs import Task
from errors import BadInput

COUNTS = {"train": 90447, "dev": 7405}            # the official sizes
FILES = {"train": ("hotpot_train_v1.1.json",), "dev": ("hotpot_dev_distractor_v1.json", "hotpot_dev_fullwiki_v1.json")}
TEST = "dev"                                      # the split to evaluate on
SHOWN, SIMILAR = 5, 5                             # sentences of a hit, titles of a miss (ReAct)
COMMAND = re.compile(r"(search|lookup|finish)\s*\[\s*(.*?)\s*\]", re.IGNORECASE | re.DOTALL)


# ---------------------------------------------------------------- the official metrics

def normalise(answer):
    """Lower case, without punctuation, articles and extra spaces."""
    words = "".join(c for c in answer.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", words).split())


def exact_match(answer, gold):
    """Are the two the same once normalised?"""
    return normalise(answer) == normalise(gold)


def f1(answer, gold):
    """Harmonic mean of word precision and recall. yes, no and noanswer match only themselves."""
    answer, gold = normalise(answer), normalise(gold)
    if answer != gold and {answer, gold} & {"yes", "no", "noanswer"}:
        return 0.0
    answer, gold = answer.split(), gold.split()
    common = sum((Counter(answer) & Counter(gold)).values())
    return 2 * common / (len(answer) + len(gold)) if common else 0.0


# ---------------------------------------------------------------- Wikipedia, offline and live

class Articles:
    """An offline Wikipedia: title -> sentences. Titles are found in any case; what is not found is searched with BM25."""

    def __init__(self, pages):
        self.pages, self.titles, self.index = pages, {title.lower(): title for title in pages}, None

    def find(self, entity):
        """(sentences, []) of the article, or (None, titles like it)."""
        title = self.titles.get(entity.strip().lower())
        return (self.pages[title], []) if title else (None, self.similar(entity))

    def similar(self, entity):
        """The titles of the five articles that fit best (title and text, the title counting twice)."""
        try:
            import bm25s
        except ModuleNotFoundError:
            raise BadInput("--env hotpotqa: searching needs a package; pip install bm25s") from None
        titles = list(self.pages)
        if self.index is None:
            self.index = bm25s.BM25()
            texts = [" ".join([t, t, *self.pages[t]]) for t in titles]
            self.index.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
        query = bm25s.tokenize([entity], stopwords="en", show_progress=False, return_ids=False)
        found, _ = self.index.retrieve(query, k=min(SIMILAR, len(titles)), show_progress=False)
        return [titles[i] for i in found[0]]


class LiveWikipedia:
    """The real Wikipedia through its public API: one request a second at most, ten seconds for an answer."""

    api, pause, timeout = "https://en.wikipedia.org/w/api.php", 1.0, 10.0

    def __init__(self):
        self.asked, self.known = 0.0, {}

    def find(self, entity):
        """(sentences, []) of the article, or (None, titles like it). Raises BadInput when Wikipedia cannot be reached."""
        if entity not in self.known:
            pages = self.ask(prop="extracts", explaintext=1, redirects=1, titles=entity)["pages"].values()
            text = next((page["extract"] for page in pages if page.get("extract")), "")
            sentences = [s for line in text.split("\n") for s in re.split(r"(?<=[.!?]) (?=[A-Z])", line.strip()) if s]
            hits = [] if sentences else self.ask(list="search", srsearch=entity or "-", srlimit=SIMILAR)["search"]
            self.known[entity] = (sentences or None, [hit["title"] for hit in hits])
        return self.known[entity]

    def ask(self, **what):
        """One request to the API -> the "query" of its JSON."""
        time.sleep(max(0.0, self.asked + self.pause - time.monotonic()))
        self.asked = time.monotonic()
        url = f"{self.api}?{urllib.parse.urlencode({'action': 'query', 'format': 'json', **what})}"
        request = urllib.request.Request(url, headers={"User-Agent": "parley (teaching code; one request a second)"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return json.load(answer)["query"]
        except (urllib.error.URLError, TimeoutError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"--wiki live: no answer from {self.api} ({error}); check the network, or leave out --wiki") from None


# ---------------------------------------------------------------- the environment

class Game:
    """One question with the tool. `metrics` after the end: F1."""

    admissible = ()

    def __init__(self, question, answer, wiki, max_steps=None):
        self.question, self.answer, self.wiki, self.max_steps = question, answer, wiki, max_steps

    def reset(self):
        """The question."""
        self.page, self.word, self.results, self.steps = None, None, [], 0
        self.won = self.truncated = False
        self.metrics = {"f1": 0.0}
        return f"Question: {self.question}"

    def parses(self, action):
        """Is this a command at all?"""
        return COMMAND.fullmatch(action.strip()) is not None

    def step(self, action):
        """-> (observation, reward, done)"""
        self.steps += 1
        command = COMMAND.fullmatch(action.strip())
        name, argument = (command[1].lower(), command[2]) if command else (None, "")
        if name == "finish":
            self.won, self.metrics = exact_match(argument, self.answer), {"f1": f1(argument, self.answer)}
            return f"Episode finished, reward = {int(self.won)}", 1.0 if self.won else -1.0, True
        self.truncated = self.steps == self.max_steps
        if name == "search":
            return self.search(argument), 0.0, self.truncated
        if name == "lookup":
            return self.lookup(argument), 0.0, self.truncated
        return f"Invalid action: {action}", 0.0, self.truncated

    def search(self, entity):
        """Open an article."""
        page, similar = self.wiki.find(entity)
        if page:
            self.page, self.word, self.results = page, None, []
        return " ".join(s.strip() for s in page[:SHOWN]) if page else f"Could not find {entity}. Similar: {similar}."

    def lookup(self, word):
        """The next sentence of the open article with this word in it; another word starts anew."""
        if word != self.word:
            self.word, self.seen = word, 0
            self.results = [s.strip() for s in self.page or [] if word.lower() in s.lower()]
        self.seen += 1
        if self.seen > len(self.results):
            return "No more results."
        return f"(Result {self.seen} / {len(self.results)}) {self.results[self.seen - 1]}"


# ---------------------------------------------------------------- tasks

def tasks(split, data=None, limit=None, seed=0, wiki="offline"):
    """The questions of "train" or "dev": official ones from DATA (a folder with the official files, or one file), shuffled by
    `seed`; or built-in ones, twenty a world, chosen by `seed`. wiki: "offline" or "live" (official questions only)."""
    if data is not None:
        return official_tasks(split, data, limit, seed, wiki)
    if wiki != "offline":
        raise BadInput("--wiki live: the built-in worlds are not on Wikipedia; give --data with official questions")
    if split not in COUNTS:
        raise BadInput(f"--split {split}: the built-in worlds have {', '.join(COUNTS)}")
    return [built_in_task(split, seed, index) for index in range(COUNTS[split] if limit is None else limit)]


def official_tasks(split, data, limit, seed, wiki):
    """Reads {"_id", "question", "answer", "type", "level", "context"} objects."""
    file = find_file(split, data)
    records, pages, found = read_records(file), {}, []
    for i, record in enumerate(records):
        try:
            context = record["context"]
            if isinstance(context, dict):                   # the hub's form of the same data
                context = list(zip(context["title"], context["sentences"], strict=True))
            for title, sentences in context:
                pages.setdefault(title, sentences)
            kind = record.get("type", "question")
            found.append((record.get("_id") or record.get("id") or str(i), kind, record["question"], record["answer"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"{file}: record {i + 1} is no HotpotQA question ({type(error).__name__}: {error}); question, answer "
                           "and context [[title, [sentences]]] were expected") from None
    source = LiveWikipedia() if wiki == "live" else Articles(pages)
    random.Random(f"{split} {seed}").shuffle(found)
    return [Task(name, kind, split, lambda max_steps=8, q=question, a=answer: Game(q, a, source, max_steps))
            for name, kind, question, answer in found[:limit]]


def find_file(split, data):
    """The official file of a split in the folder `data`; `data` itself if it is a file."""
    if Path(data).is_file():
        return Path(data)
    for name in FILES.get(split, ()):
        if (Path(data) / name).is_file():
            return Path(data) / name
    raise BadInput(f"--data {data}: none of {', '.join(FILES.get(split, [split]))} is there; give HotpotQA's folder or file")


def read_records(file):
    """The objects of a JSON list, or of one object a line."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: cannot be read ({error})") from None
    if text.lstrip().startswith("["):
        try:
            return json.loads(text)
        except ValueError as error:
            raise BadInput(f"{file}: no JSON ({error}); download it again") from None
    records = []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise BadInput(f"{file}:{number}: no JSON ({error})") from None
    return records


# ---------------------------------------------------------------- built-in worlds

FIRST = "Ada Ben Cleo Dan Eva Finn Gia Hugo Ida Jon Kim Leo Mia Ned Ola Pia Rex Sue Tom Uma".split()
LAST = "Bell Brook Cole Dale Ford Gray Hill Lake Marsh Moss Park Reed Snow Stone Vale West".split()
TOWNS = ("Alder Birch Cedar Elm Fern Hazel Ivy Linden Maple Oak Pine Rowan Sage Thorn Willow Yew".split(),
         ["field", "ton", "wick"])
COUNTRIES = "Arland Borland Corland Dorland Norland Orland Sorland Torland".split()
RIVERS = "Amber Blue Clear Dark Green Long Red Swift White Winding".split()
BOOKS = ("Broken Golden Hidden Last Lost Quiet Silver Stolen Sunken Winter".split(),
         "Bridge Clock Crown Garden Island Key Lamp Letter Mirror Tower".split())
JOBS = "baker doctor farmer judge painter pilot sailor teacher".split()
FILLERS = ["Many people like {it}.", "Little is known of {it}.", "There are songs of {it}.", "Old maps show {it}.",
           "A museum remembers {it}.", "Children learn about {it}.", "Some letters mention {it}.", "The story of {it} is long."]
FACTS = {       # relation: (sentence, what a reader looks up, what it is called in a thought)
    "born": ("{x} was born in {y}.", "born", "birthplace"),
    "job": ("{x} works as {y}.", "works", "work"),
    "country": ("{x} lies in {y}.", "lies", "country"),
    "river": ("{x} stands on the river {y}.", "river", "river"),
    "author": ("{x} was written by {y}.", "written", "author"),
}
QUESTIONS = {   # kind: (wording, relations from one article to the next)
    "bridge: country": ("In which country is the birthplace of {x}?", ("born", "country")),
    "bridge: river": ("On which river is the birthplace of {x}?", ("born", "river")),
    "bridge: author's birthplace": ("Where was the author of {x} born?", ("author", "born")),
    "bridge: author's work": ("What is the work of the author of {x}?", ("author", "job")),
    "comparison": ("Were {x} and {z} born in the same town?", ("born",)),
}
A_WORLD = 20                                            # questions


@dataclass(frozen=True)
class World:
    """Some people, towns and books: fact[entity, relation], and the articles."""
    people: list
    books: list
    fact: dict
    wiki: Articles


@lru_cache(64)
def world(name):
    """A world drawn from its name."""
    rng = random.Random(f"world {name}")
    towns = rng.sample([a + b for a in TOWNS[0] for b in TOWNS[1]], 12)
    people = rng.sample([f"{a} {b}" for a in FIRST for b in LAST], 20)
    books = rng.sample([f"{a} {b}" for a in BOOKS[0] for b in BOOKS[1]], 12)
    fact = {}
    for town in towns:
        fact[town, "country"], fact[town, "river"] = rng.choice(COUNTRIES), rng.choice(RIVERS)
    for i, person in enumerate(people):                 # neighbours in the list are often born in one town: for comparisons
        same = i % 2 and rng.random() < 0.5
        fact[person, "born"] = fact[people[i - 1], "born"] if same else rng.choice(towns)
        fact[person, "job"] = rng.choice(JOBS)
    for book in books:
        fact[book, "author"] = rng.choice(people)
    return World(people, books, fact, Articles({x: article(rng, x, fact) for x in towns + people + books}))


def article(rng, entity, fact):
    """Seven to nine sentences; each fact is among the first five or after them, with equal chances."""
    said = [FACTS[relation][0].format(x=entity, y=value) for (x, relation), value in fact.items() if x == entity]
    filler = [sentence.format(it=entity) for sentence in rng.sample(FILLERS, 7)]
    first, later = filler[:5], filler[5:]
    for sentence in said:
        if rng.random() < 0.5:
            first[rng.randrange(5)] = sentence          # (two facts may meet: the later one then stands alone)
        else:
            later.append(sentence)
    rng.shuffle(later)
    missing = [sentence for sentence in said if sentence not in first + later]
    return first + later + missing


def question(place, index):
    """(kind, text, answer) of question number `index` in a world."""
    kind = list(QUESTIONS)[index % len(QUESTIONS)]
    wording, relations = QUESTIONS[kind]
    rng = random.Random(f"question {index} {place.people}")
    if kind == "comparison":
        i = rng.randrange(0, len(place.people), 2)
        x, z = rng.sample(place.people[i:i + 2], 2)
        return kind, wording.format(x=x, z=z), "yes" if place.fact[x, "born"] == place.fact[z, "born"] else "no"
    x = answer = rng.choice(place.people if relations[0] == "born" else place.books)
    for relation in relations:
        answer = place.fact[answer, relation]
    return kind, wording.format(x=x), answer


def built_in_task(split, seed, index):
    """Question number `index`: the kinds in turn, A_WORLD questions a world."""
    name = f"{split} {seed} {index // A_WORLD}"
    kind, text, answer = question(world(name), index % A_WORLD)
    return Task(f"{split}/{seed}/{index}", kind, split,
                lambda max_steps=8: Game(text, answer, world(name).wiki, max_steps))


# ---------------------------------------------------------------- the scripted expert

ASKED = {kind: re.compile(re.escape(wording).replace(r"\{x\}", "(?P<x>.+?)").replace(r"\{z\}", "(?P<z>.+?)"))
         for kind, (wording, _) in QUESTIONS.items()}
TOLD = {relation: re.compile(re.escape(sentence).replace(r"\{x\}", "([A-Z]\\w*(?: [A-Z]\\w*)?)")
                             .replace(r"\{y\}", "([\\w ]+?)")) for relation, (sentence, _, _) in FACTS.items()}


def expert(first, steps, careless=False):
    """The next (thought, action) of a player who has read the question and then the (action, observation) pairs `steps`.

    It says what it needs, searches it, looks it up if it is not among the first sentences, and goes on from what it found.
    careless: it never looks anything up, and gives up when what it needs is not in sight.
    """
    kind, asked = next(((kind, found) for kind, pattern in ASKED.items() if (found := pattern.search(first))), (None, None))
    if kind is None:
        raise BadInput("--agent expert, --teacher expert: the scripted player knows built-in questions only; leave out --data")
    known = {(x, relation): y for _, text in steps for relation, pattern in TOLD.items() for x, y in pattern.findall(text)}
    chains = [asked["x"]] if kind != "comparison" else [asked["x"], asked["z"]]
    ends = []
    for entity in chains:
        for relation in QUESTIONS[kind][1]:
            if (entity, relation) not in known:
                return seek(entity, relation, steps, careless)
            entity = known[entity, relation]
        ends.append(entity)
    answer = ends[0] if kind != "comparison" else "yes" if ends[0] == ends[1] else "no"
    return f"I found all. The answer is {answer}.", f"finish[{answer}]"


def seek(entity, relation, steps, careless):
    """Search the article, or look the fact up in it."""
    _, word, called = FACTS[relation]
    commands = [found for action, _ in steps if (found := COMMAND.fullmatch(action.strip()))]
    opened = [command[2].lower() for command in commands if command[1].lower() == "search"]
    if opened[-1:] != [entity.lower()]:
        return f"I need the {called} of {entity}. Next I search it.", f"search[{entity}]"
    if careless:
        return f"I do not see the {called} of {entity}.", "finish[unknown]"
    return f"I do not see the {called} of {entity}. Next I look up {word}.", f"lookup[{word}]"


def pose(task, first, chance, careless=False):
    """A teacher's analogous question with its key, as text: another one of the same kind in the same world. careless: the key
    is wrong."""
    split, seed, index = task.split("/")
    place = world(f"{split} {seed} {int(index) // A_WORLD}")
    number = int(index) % len(QUESTIONS) + len(QUESTIONS) * (A_WORLD + random.Random(f"analogue {chance}").randrange(1000))
    _, text, answer = question(place, number)
    return f"{text} Answer: {'unknown' if careless else answer}"


def analogous(task, env, words):
    """The question that a teacher's words "question Answer: key" pose, over the same Wikipedia; None if there is none."""
    if words is None:
        return None
    text, found, key = words.rpartition("Answer:")
    text = text.strip().removeprefix("Question:").strip()
    return Game(text, key.strip(), env.wiki, env.max_steps) if found and text and key.strip() else None


# ---------------------------------------------------------------- words, for prompts and tokenizers

INSTRUCTION = """You answer a question with an encyclopedia. Each turn, first write a thought: what you know and what you still \
need. Then write one command. search[title] opens an article and shows its first sentences, or titles like it. lookup[word] \
shows the next sentence of the open article that has the word. finish[answer] gives your answer, as short as possible, and \
ends."""

PHRASES = [INSTRUCTION, "Question:", "search[", "lookup[", "finish[", "Could not find", "Similar:", "No more results.",
           "Invalid action:", "Episode finished, reward =", "I found all. The answer is", "I need the", "I do not see the",
           "Next I search it.", "Next I look up", "was born in", "works as", "lies in", "stands on the river", "was written by",
           "In which country is the birthplace of", "On which river is the birthplace of", "Where was the author of",
           "What is the work of the author of", "born in the same town", "(Result 1 / 1)",
           *(part for filler in FILLERS for part in filler.rstrip(".").split("{it}") if part.strip())]

KINDS, MARKS = [], ""
