"""MATH: competition problems with one answer each, and functions to call on the way. Official files, or built-in families.

    from envs import mathqa
    task = mathqa.tasks("test", limit=1)[0]                 # built-in; data="FILE" or "DIR": MATH
    env = task.make(max_steps=6)
    problem = env.reset()                                   # and the signatures of the functions, if any
    observation, reward, done = env.step('call[count_divisors({"n": 60})]')     # "Result: 12"
    observation, reward, done = env.step("finish[12]")      # reward 1 right, -1 wrong

Official data (Hendrycks et al., MIT): DIR/SPLIT/SUBJECT/*.json, or one JSONL file with problem, answer or solution, and subject
or type; such a file has no split: the first fifth of each subject, in an order that never changes, is "train", the rest "test".

**Answers** are compared as texts once they are normalised as MATH's own evaluation does (fractions, roots, units, spaces,
degrees, percent, text, leading zeros, "x ="); where those differ, by math-verify (SymPy), if it is installed: pip install
math-verify.

**Built-in problems** come from five families. The scripted solver gets some right by itself (which ones, the problem's text
decides); where a function of the family's name is there, it calls it and believes what it says: a right one visibly helps, a
wrong one hurts.
"""
import json
import math
import random
import re
from pathlib import Path

from envs import Task
from envs import functions as toolbox
from errors import BadInput

COUNTS = {"train": 100, "test": 400}               # built-in problems, if no limit is given (the paper: 20 and 80 a type)
TEST = "test"
COMMAND = re.compile(r"(call|finish)\s*\[\s*(.*?)\s*\]\s*", re.IGNORECASE | re.DOTALL)
CALL = re.compile(r"(\w+)\s*\(\s*(.*?)\s*\)", re.DOTALL)


# ---------------------------------------------------------------- answers

def last_boxed(text):
    """What stands in the last \\boxed{...} or \\fbox{...} of a text; None without one."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return None
    opening = text.find("{", start)
    if opening < 0:                                         # \boxed 5
        return text[start:].split("$")[0].removeprefix("\\boxed").removeprefix("\\fbox").strip()
    depth = 0
    for i in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[opening + 1:i]
    return None


def normalise(answer):
    """An answer in the form in which answers are compared: what MATH's evaluation takes away or rewrites, and a little more."""
    text = re.sub(r",\\!\s*", ",", answer.replace("\n", "").replace("\u2212", "-").strip().strip("$").rstrip("."))
    for old, new in (("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("cfrac", "frac"), ("\\left", ""),
                     ("\\right", ""), ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""), ("$", ""), ("\\%", ""), ("%", ""),
                     ("\\,", ""), ("\\;", ""), ("\\ ", ""), ("~", "")):
        text = text.replace(old, new)
    text = re.sub(r"(?<=[\d}])\s*\\(?:text|mbox|mathrm)\s*\{[^}]*\}(?:\^\{?\d\}?)?$", "", text)         # units on the right
    text = re.sub(r"\\(?:text|mbox|mathrm|textbf)\s*\{\s*([^}]*?)\s*\}", r"\1", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text) if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", text.strip()) else text
    text = re.sub(r"(?<![\d])\.(?=\d)", "0.", text)
    text = re.sub(r"\s+(?:degrees?|dollars?|units?)$", "", text.strip())
    if found := re.fullmatch(r"\s*[A-Za-z]\w?\s*=([^=]*)", text):                                      # x = 5
        text = found[1]
    text = re.sub(r"\\sqrt\s*(\w)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\frac\s*(?:\{([^{}]*)\}|(\w))\s*(?:\{([^{}]*)\}|(\w))",
                  lambda m: f"\\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", text)
    text = re.sub(r"\s", "", text)
    text = {"0.5": "\\frac{1}{2}"}.get(text, text)
    if found := re.fullmatch(r"(-?)(\d+)/(-?\d+)", text):
        text = f"{found[1]}\\frac{{{found[2]}}}{{{found[3]}}}"
    return re.sub(r"(?<!\d)(-?\d+)\.0+$", r"\1", text)


def same_answer(given, wanted):
    """Are two answers equal? By their normal forms, else by math-verify where it is installed."""
    if normalise(given) == normalise(wanted):
        return True
    try:
        from math_verify import parse, verify
    except ModuleNotFoundError:
        return False
    one, two = (parse(f"${text}$") for text in (wanted, given))
    return bool(one and two) and verify(one, two)


# ---------------------------------------------------------------- the environment

class Problem:
    """One problem as an environment: calls, then the answer."""

    admissible = ()                                 # any text may be an answer

    def __init__(self, text, answer, functions, max_steps):
        self.text, self.answer, self.functions, self.max_steps = text, answer, functions, max_steps
        self.won = self.truncated = False
        self.steps, self.metrics = 0, {}

    def reset(self):
        """The problem, and the functions' signatures."""
        self.won, self.truncated, self.steps = False, False, 0
        return f"{self.text}\nFunctions:\n{toolbox.signatures(self.functions)}" if self.functions else self.text

    def parses(self, action):
        """Is it a call or an answer?"""
        return COMMAND.fullmatch(action.strip()) is not None

    def step(self, action):
        """-> (observation, reward, done)"""
        self.steps += 1
        command = COMMAND.fullmatch(action.strip())
        name, inside = (command[1].lower(), command[2]) if command else (None, "")
        if name == "finish":
            self.won = same_answer(last_boxed(inside) or inside, self.answer)
            return ("Right.", 1.0, True) if self.won else ("Wrong.", -1.0, True)
        self.truncated = self.steps == self.max_steps
        if name != "call":
            return "Error: write call[FUNCTION({...})] or finish[ANSWER].", 0.0, self.truncated
        found = CALL.fullmatch(inside)
        if not found:
            return "Error: write call[FUNCTION({...})], its arguments in JSON.", 0.0, self.truncated
        return toolbox.call(self.functions, *found.groups()), 0.0, self.truncated


def make_task(name, kind, split, text, answer, functions):
    """A problem as a Task."""
    return Task(name, kind, split, lambda max_steps=None: Problem(text, answer, functions, max_steps))


def tasks(split, data=None, limit=None, seed=0, functions=None):
    """The problems of "train" or "test". functions: those that an agent may call, as a list or the name of a file."""
    functions = toolbox.read(functions) if isinstance(functions, str) else functions or []
    if split not in COUNTS:
        raise BadInput(f"--split {split}: mathqa has {', '.join(COUNTS)}")
    if data is None:
        found = []
        for index in range(COUNTS[split] if limit is None else limit):
            kind = list(FAMILIES)[index % len(FAMILIES)]
            chance = random.Random(f"mathqa {split} {seed} {index}")
            text, answer = new_problem(kind, chance, split)
            found.append(make_task(f"{split}/{seed}/{index}", kind, split, text, answer, functions))
        return found
    found = [make_task(name, kind, split, text, answer, functions) for name, kind, text, answer in official(Path(data), split)]
    random.Random(f"mathqa {seed}").shuffle(found)
    return found[:limit]


def official(place, split):
    """(id, kind, problem, answer) of the problems of MATH."""
    if place.is_dir():
        files = sorted((place / split).glob("*/*.json"))
        if not files:
            raise BadInput(f"--data {place}: there is no {split}/SUBJECT/*.json in it; give MATH's folder, or a JSONL file")
        return [record(file, file.read_text(encoding="utf-8"), f"{file.parent.name}/{file.stem}") for file in files]
    try:
        lines = place.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--data {place}: cannot be read ({error}); give MATH's folder, or a JSONL file") from None
    found = [record(f"{place}:{number}", line, f"math/{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    kinds = {}
    for item in found:
        kinds.setdefault(item[1], []).append(item)
    parts = []
    for items in kinds.values():
        random.Random("mathqa split").shuffle(items)
        cut = -(-len(items) // 5)
        parts += items[:cut] if split == "train" else items[cut:]
    return parts


def record(where, text, name):
    """One problem of an official file."""
    try:
        r = json.loads(text)
        answer = r["answer"] if "answer" in r else last_boxed(r["solution"])
        if answer is None:
            raise ValueError("its solution has no \\boxed{}")
        return name, str(r["subject"] if "subject" in r else r["type"]), " ".join(r["problem"].split()), answer
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{where}: no problem of MATH ({type(error).__name__}: {error}); one has problem, answer or solution, and "
                       "subject or type") from None


# ---------------------------------------------------------------- built-in problems, the scripted solver and proposer

# kind: the problem, ranges of its numbers, how we solve it, and the function that helps: name, what it does, code, wrong code
FAMILIES = {
    "number theory": ("How many positive divisors does {n} have?", {"n": (12, 400)},
                      lambda n: sum(n % d == 0 for d in range(1, n + 1)), "count_divisors", "The number of divisors of n.",
                      "def count_divisors(n):\n    return sum(n % d == 0 for d in range(1, n + 1))",
                      "def count_divisors(n):\n    return sum(n % d == 0 for d in range(2, n))"),
    "counting": ("In how many ways can one choose {k} of {n} people?", {"n": (6, 20), "k": (2, 5)}, lambda n, k: math.comb(n, k),
                 "binomial", "In how many ways k of n things can be chosen.",
                 "from math import comb\n\ndef binomial(n, k):\n    return comb(n, k)",
                 "from math import perm\n\ndef binomial(n, k):\n    return perm(n, k)"),
    "algebra": ("What is the sum of the squares of the roots of x^2 - {b}x + {c} = 0?", {"b": (3, 30), "c": (1, 20)},
                lambda b, c: b * b - 2 * c, "square_sum", "The sum of the squares of the roots of x^2 - bx + c.",
                "def square_sum(b, c):\n    return b * b - 2 * c", "def square_sum(b, c):\n    return b * b + 2 * c"),
    "sequences": ("A sequence begins {a}, {b}; each further term is the sum of the two before it. What is term number {n}?",
                  {"a": (1, 9), "b": (1, 9), "n": (6, 20)}, lambda a, b, n: term(a, b, n), "sum_sequence",
                  "Term n of the sequence a, b, a + b, ...",
                  "def sum_sequence(a, b, n):\n    for _ in range(n - 1):\n        a, b = b, a + b\n    return a",
                  "def sum_sequence(a, b, n):\n    for _ in range(n):\n        a, b = b, a + b\n    return a"),
    "remainders": ("What is the remainder of {a}^{k} divided by {m}?", {"a": (2, 20), "k": (5, 60), "m": (3, 30)}, pow,
                   "power_remainder", "The remainder of a to the power of k divided by m.",
                   "def power_remainder(a, k, m):\n    return pow(a, k, m)",
                   "def power_remainder(a, k, m):\n    return (a * k) % m"),
}
READ = {kind: re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", re.escape(family[0]))) for kind, family in FAMILIES.items()}
ALONE = 0.4                                        # of the problems, how many the solver gets right without a function
HARMFUL, USELESS = "harmful", "useless"


def term(a, b, n):
    """Term n of a, b, a + b, ..."""
    return a if n == 1 else term(b, a + b, n - 1)


def solved(kind, numbers):
    """The answer of a built-in problem."""
    return FAMILIES[kind][2](*(numbers[name] for name in FAMILIES[kind][1]))


def new_problem(kind, chance, split):
    """(text, answer) of a new problem; no problem is of both splits."""
    while True:
        numbers = {name: chance.randint(*bounds) for name, bounds in FAMILIES[kind][1].items()}
        text = FAMILIES[kind][0].format(**numbers)
        if (random.Random(text).random() < 0.5) == (split == "test"):
            return text, str(solved(kind, numbers))


def understood(first):
    """(kind, numbers) of a built-in problem. Raises BadInput for any other text."""
    for kind, pattern in READ.items():
        if found := pattern.search(first):
            return kind, {name: int(x) for name, x in found.groupdict().items()}
    raise BadInput("--agent expert: the scripted solver does not know this problem; leave out --data, or choose another agent")


def expert(first, steps, careless=False):
    """(thought, action) of the scripted solver. careless: it never calls."""
    kind, numbers = understood(first)
    name, problem = FAMILIES[kind][3], first.split("\n")[0]
    if steps and steps[-1][1].startswith("Result: "):
        return "That is it.", f"finish[{steps[-1][1].removeprefix('Result: ')}]"
    if re.search(rf"^{name}\(", first, re.MULTILINE) and not steps and not careless:
        return f"{name} can tell.", f"call[{name}({json.dumps(numbers)})]"
    right = solved(kind, numbers)
    alone = random.Random(f"alone {problem}").random() < ALONE
    return "I work it out by myself.", f"finish[{right if alone else right + 1}]"


def propose(prompt, chance, useful, useless, harmful, malformed):
    """The scripted proposer: one to three actions as JSON, each of a kind that is drawn with these weights. It reads of the
    prompt what every proposer is shown: the share of right answers by kind, and the names of the functions."""
    shares, there = told(prompt, "Right answers"), told(prompt, "Names")
    actions = []
    for _ in range(chance.randint(1, 3)):
        what = chance.choices(["useful", USELESS, HARMFUL, "malformed"], [useful, useless, harmful, malformed])[0]
        worst = min(shares, key=lambda k: (shares[k], chance.random()), default=None) if what == "useful" else None
        kind = worst or chance.choice(list(FAMILIES))
        _, numbers, _, name, about, right, wrong = FAMILIES[kind]
        if what == USELESS:
            name, about, right, numbers = f"note_{chance.randint(0, 99)}", "Repeats a text.", None, ["text"]
        code = wrong if what == HARMFUL else right or f"def {name}(text):\n    return text"
        schema = {n: {"type": "string" if n == "text" else "integer"} for n in numbers}
        given = {"name": name, "description": about, "arguments": json.dumps(schema), "packages": "", "code": code}
        verb = "revise_function" if name in there else "add_function"
        if what == "malformed":
            verb, given = chance.choice([("remove_function", {"name": "nobody"}), (verb, {**given, "code": code + ")"}),
                                         (verb, {n: x for n, x in given.items() if n != "arguments"}), ("improve", {})])
        actions.append({"name": verb, "arguments": given})
        there = [*there, name]
    return json.dumps(actions)


def told(prompt, title):
    """The JSON of the prompt's last line of this title."""
    return json.loads(re.findall(rf"^{title}: (.*)$", prompt, re.MULTILINE)[-1])


# ---------------------------------------------------------------- words, for prompts and tokenizers

INSTRUCTION = """You solve a mathematical problem. Each turn, first write a thought on one line, then an action: \
call[FUNCTION({"argument": value})] calls one of the functions that are listed below the problem, if there are any; \
finish[ANSWER] gives your answer, in LaTeX where it is no plain number, and ends the episode."""

PHRASES, KINDS, MARKS = [INSTRUCTION, "Functions:", "Result:", "Right.", "Wrong.", "finish[", "call["], [], '(){}":,^=.'
