"""GSM8K: grade-school word problems, one answer each. The official file, or built-in problems with exact keys.

    import envs.gsm8k as gsm8k
    task = gsm8k.tasks("test", limit=4)[3]                  # built-in; with data="DIR" the official DIR/test.jsonl
    env = task.make()
    question = env.reset()
    thought, action = gsm8k.expert(question, ())            # "12 plus 5 is 17 . ...", "finish[34]"
    observation, reward, done = env.step(action)            # reward 1 right, -1 wrong

The scripted expert answers official questions with the worked solutions of the file.

An answer is any text; the number in it counts (see `number`), compared exactly with the key. Built-in problems follow one
quantity through one to four changes; those of the test split have operations and numbers that no training problem has.
"""
import json
import random
import re
from fractions import Fraction
from pathlib import Path

from envs import Task
from errors import BadInput

COUNTS = {"train": 7473, "test": 1319}             # the official sizes; default limits of built-in tasks
TEST = "test"                                      # the split to evaluate on

# ---------------------------------------------------------------- numbers

NUMBER = re.compile(r"""(?<![\w.])(?P<sign>-|\$-|)(?:\$\s?)?                   # -3, -$3, $-3; the minus of 10-3 or 10 - 3 is none
                        (?:(?P<units>\d+)\s(?=\d+\s?/\s?\d))?                   # 1 1/2
                        (?P<whole>\d{1,3}(?:,\d{3})+(?!\d)|\d+(?=\D|$)|\d*(?=\.\d))(?P<point>\.\d+)?
                        (?:\s?/\s?(?P<below>\d+(?:\.\d+)?))?""", re.VERBOSE)


def number(text):
    """The number a text ends on, as a Fraction; None if it has none.

    What follows the last "####" counts, else what follows the last "answer is", else the whole text. Of several numbers the last
    one counts. 1,000 is a thousand; $5.50, 18 eggs, 50% and 8.0 are 5.5, 18, 50 and 8; 3/4 and 1 1/2 are fractions.
    """
    text = text.replace("\u2212", "-")
    for mark in ("####", "answer is"):
        head, found, tail = text.rpartition(mark)
        if found:
            text = tail
            break
    value = None
    for found in NUMBER.finditer(text):
        if not (found["whole"] or found["point"]):
            continue
        size = Fraction((found["whole"] or "0").replace(",", "") + (found["point"] or ""))
        if found["below"]:
            if not Fraction(found["below"]):
                continue
            size /= Fraction(found["below"])
        size += int(found["units"] or 0)
        value = -size if "-" in found["sign"] else size
    return value


def solution(answer):
    """The worked solution of an official answer as one line: calculator marks and the key stripped."""
    steps = re.sub(r"<<.*?>>", "", answer.rpartition("####")[0] or answer)
    return " ".join(line.strip() for line in steps.splitlines() if line.strip())


# ---------------------------------------------------------------- tasks

WORKED = {}                                         # question: (worked solution, key), of the official files that were read


class Question:
    """One question as an environment: the first answer ends it."""

    admissible, truncated = (), False               # any text is an answer

    def __init__(self, text, key):
        self.text, self.key, self.won, self.metrics = text, key, False, {}

    def reset(self):
        """The question."""
        self.won = False
        return self.text

    def parses(self, answer):
        """Does it hold a number?"""
        return number(answer) is not None

    def step(self, answer):
        """-> (observation, reward, done): 1 if the number in the answer is the key, else -1."""
        self.won = number(answer) == self.key
        return ("Right.", 1.0, True) if self.won else ("Wrong.", -1.0, True)


def make_task(name, kind, split, text, key):
    """A question as a Task. A single step: there is no step limit to reach."""
    return Task(name, kind, split, lambda max_steps=None: Question(text, key))


def tasks(split, data=None, limit=None, seed=0):
    """The questions of "train" or "test": official ones from DATA (DATA/SPLIT.jsonl, or a JSONL file), shuffled by `seed`; or
    built-in ones of one to four steps in turn, chosen by `seed`."""
    if data is not None:
        return official_tasks(split, data, limit, seed)
    if split not in COUNTS:
        raise BadInput(f"--split {split}: the built-in problems have {', '.join(COUNTS)}")
    found = []
    for index in range(COUNTS[split] if limit is None else limit):
        text, key, steps = problem(random.Random(f"gsm8k {split} {seed} {index}"), 1 + index % 4, split)
        found.append(make_task(f"{split}/{seed}/{index}", f"{steps} step{'s' * (steps > 1)}", split, text, key))
    return found


def official_tasks(split, data, limit, seed):
    """Reads {"question", "answer"} lines; the key follows "####"; the kind is the number of calculator marks."""
    file = Path(data) if Path(data).is_file() else Path(data) / f"{split}.jsonl"
    try:
        lines = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--data {data}: {file} cannot be read ({error}); give the folder with GSM8K's train.jsonl and "
                       "test.jsonl") from None
    found = []
    for line_number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            text, answer = record["question"], record["answer"]
            key = number("####" + answer.rpartition("####")[2]) if "####" in answer else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{file}:{line_number}: no GSM8K question ({type(error).__name__}: {error}); an object with question "
                           "and answer was expected") from None
        if key is None:
            raise BadInput(f'{file}:{line_number}: the answer has no number after "####"')
        steps, text = min(answer.count("<<"), 8), " ".join(text.split())
        WORKED[text] = solution(answer), key
        found.append(make_task(f"{split}/{line_number - 1}", f"{steps} marks", split, text, key))
    random.Random(f"{split} {seed}").shuffle(found)
    return found[:limit]


# ---------------------------------------------------------------- built-in problems

NAMES = "Ada Ben Cleo Dan Eva Finn Gia Hugo Ida Jon".split()
THINGS = "apples books coins eggs marbles pens shells stamps".split()
TOP = 50                                            # no number is above it: a small model must learn its tables
CHANGES = {                                         # sentence: (word of the operation, function)
    "{who} buys {k} more.": ("plus", lambda n, k: n + k),
    "{who} finds {k} more.": ("plus", lambda n, k: n + k),
    "{who} gives {k} to a friend.": ("minus", lambda n, k: n - k),
    "{who} loses {k} of them.": ("minus", lambda n, k: n - k),
    "Then a friend brings so many that {who} has {k} times as many.": ("times", lambda n, k: n * k),
    "{who} sorts them into {k} equal boxes and keeps one box.": ("divided by", lambda n, k: Fraction(n, k)),
}
START, ASK = "{who} has {n} {things}.", "How many {things} does {who} have now?"
OPERATIONS = dict(CHANGES.values())
READ = [(re.compile(re.escape(sentence).replace(r"\{who\}", r"\w+").replace(r"\{k\}", r"(\d+)")), word)
        for sentence, (word, _) in CHANGES.items()]


def problem(rng, steps, split="train", like=None):
    """(text, key, steps) of a new problem of the split. like: sentences of the changes to use, for an analogous problem."""
    while True:
        who, things, n = rng.choice(NAMES), rng.choice(THINGS), rng.randint(2, TOP // 2)
        text, value, signature = [START.format(who=who, n=n, things=things)], n, [n]
        for sentence in like or [rng.choice(list(CHANGES)) for _ in range(steps)]:
            word, change = CHANGES[sentence]
            k = rng.randint(2, 5) if word in ("times", "divided by") else rng.randint(1, 9)
            value = change(value, k)
            text.append(sentence.format(who=who, k=k))
            signature += [word, k]
            if not (1 <= value <= TOP and value == int(value)):
                break
        else:
            if (random.Random(f"{signature}").random() < 0.2) == (split == "test"):
                return " ".join([*text, ASK.format(who=who, things=things)]), Fraction(value), len(like or range(steps))


def changes(question):
    """(first number, [(word, k, sentence), ...]) of a built-in problem. Raises BadInput for any other text."""
    start = re.search(r"has (\d+)", question)
    found = sorted((match.start(), word, int(match[1]), sentence)
                   for (pattern, word), sentence in zip(READ, CHANGES) for match in pattern.finditer(question))
    if not start or not found:
        raise BadInput("--agent expert, --teacher expert: the scripted teacher does not know this question; leave out --data")
    return int(start[1]), [(word, k, sentence) for _, word, k, sentence in found]


def work(value, todo, slip=None, by=0):
    """(thought, answer) of doing the operations in order. The result of operation number `slip` is wrong by `by`."""
    said = []
    for i, (word, k, _) in enumerate(todo):
        result = max(0, round(OPERATIONS[word](value, k)) + by * (i == slip))     # after a slip a division may not come out even
        said.append(f"{value} {word} {k} is {result} .")
        value = result
    return " ".join(said), value


def expert(first, steps, careless=False):
    """(thought, action) that solve a problem step by step: a built-in one by its own work, an official one as the file does.
    careless: one operation is miscalculated, and so is the end; the official key is one too high."""
    if first in WORKED:
        thought, key = WORKED[first]
        return thought, f"finish[{key + careless}]"
    value, todo = changes(first)
    thought, answer = right = work(value, todo)
    slips = [(slip, by) for slip in range(len(todo)) for by in (-2, -1, 1, 2)]
    random.Random(f"slip {first}").shuffle(slips)
    while careless and answer == right[1]:                  # (rounding can hide a slip)
        thought, answer = work(value, todo, *slips.pop())
    return thought, f"finish[{answer}]"


def pose(task, first, chance, careless=False):
    """A teacher's analogous problem with its key, as text: the same operations with other numbers, names and things; to an
    official question, another one of the file. careless: the key is wrong."""
    if first in WORKED:
        question = random.Random(f"analogue {chance}").choice(sorted(WORKED.keys() - {first}) or [first])
        return f"{question} Answer: {WORKED[question][1] + careless}"
    text, _, _ = problem(random.Random(f"analogue {chance}"), 0, like=[sentence for _, _, sentence in changes(first)[1]])
    return f"{text} Answer: {number(expert(text, (), careless)[1])}"


def analogous(task, env, words):
    """The question that a teacher's words "question Answer: key" pose, as an environment; None if there is none with a number
    for its key."""
    if words is None:
        return None
    question, _, key = words.rpartition("Answer:")
    question, key = question.removeprefix("Question:").strip(), number(key)
    return Question(question, key) if question and key is not None else None


# ---------------------------------------------------------------- words, for prompts and tokenizers

INSTRUCTION = """You solve a word problem. First write a thought: the calculation, step by step, on one line. Then write your \
answer as finish[NUMBER], with nothing but the number between the brackets."""

PHRASES = [INSTRUCTION, "to a friend", "of them", "Then a friend brings so many that", "times as many", "sorts them into",
           "equal boxes and keeps one box", "How many", "have now", "divided by", "Right.", "Wrong.", "finish[", "Answer:"]

KINDS, MARKS = [], ""
