"""Two agents write one program: a helper function `aux`, and a main function that is to use it (CoMLRL's code generation).

    from envs import coding
    problem = coding.tasks("test", limit=1)[0]              # a built-in one; data="FILE": HumanEval, MBPP or CoopHumanEval
    prompts = [coding.format_prompt(problem, agent, problem.prompt) for agent in (0, 1)]
    judged = coding.judge(problem, [helper, main])          # judged.reward, .passed, .levels

**The reward**, shared by both, from 0 to 1:

| level | for | |
|---|---|---|
| 1 | each text that is Python | 0.1 each |
| 2 | each that defines its function | 0.1 each |
| 3 | the share of the tests that pass, if both levels above are complete | 0.4 |
| 4 | a main function that calls the helper, if any test passes | 0.1 |
| 5 | and does more than return what it returns for the same arguments | 0.1 |

**External transitions** make the prompts of the next turn of what was said; `transition` has three: `plain` (what was said, and
the instruction to revise it), `level_feedback` (what the levels above found, with the results of the tests that `which`
names), `expert_edits` (another agent proposes edits).

Official files: HumanEval (JSONL, MIT, github.com/openai/human-eval), sanitized MBPP (JSON, CC BY 4.0, github.com/google-research/
google-research/tree/master/mbpp), CoopHumanEval (JSON, OpenMLRL on the hub). Tests are split, so that they can pass one by one.
"""
import ast
import functools
import json
import random
import re
import threading
from dataclasses import dataclass
from pathlib import Path

from envs.sandbox import Sandbox
from errors import BadInput

TEST = "test"
COUNTS = {"train": 256, "test": 100}              # built-in problems, if no limit is given
AGENTS = 2
INSTRUCTION = "You write a Python function, and nothing else. Another agent writes one that is to work with it."
HELPER = "aux"
WORTH = {"python": 0.1, "defines": 0.1, "tests": 0.4, "calls": 0.1, "more": 0.1}
SANDBOX, LOCK = Sandbox(), threading.Lock()       # its process starts with the first run, and ends with ours
PARSING = threading.Lock()                        # ast.parse of Python 3.11 counts its depth for all threads together


@dataclass(frozen=True)
class Problem:
    """`tests`: statements, each with an assertion, that see what the program has defined. `preamble`: imports and functions that
    the prompt gives. `solution`: a reference program, where there is one. `steps`: of a built-in problem, in Python."""
    id: str
    prompt: str
    entry_point: str
    tests: tuple
    preamble: str = ""
    solution: str = ""
    kind: str = "program"
    split: str = "test"
    steps: tuple = ()


@dataclass(frozen=True)
class Judgement:
    """A joint answer's reward, the share of tests passed, and what was found, level by level, as (worth, told to the agents)."""
    reward: float
    passed: float
    levels: tuple

    @property
    def won(self):
        """All tests pass."""
        return self.passed == 1

    @property
    def metrics(self):
        """What is reported beside the reward."""
        return {"tests passed": self.passed}


# ---------------------------------------------------------------- the reward

def code_of(text):
    """The code in a reply: the first fenced block, or all of it."""
    fenced = re.search(r"```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", text, re.DOTALL)
    return (fenced[1] if fenced else text).strip()


def parse(code):
    """The syntax tree; None for what is no Python."""
    try:
        with PARSING:
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def definition(tree, name):
    """The last definition of a function at top level; None without one."""
    return next((node for node in reversed(tree.body) if isinstance(node, ast.FunctionDef) and node.name == name), None)


def calls_helper(main):
    """Does the function call the helper?"""
    return any(is_call_of_helper(node) for node in ast.walk(main))


def is_call_of_helper(node):
    """Is this part of a syntax tree `aux(...)`?"""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == HELPER


def is_wrapper(main):
    """Does it return what the helper returns for its own arguments, and nothing more?"""
    body = [node for node in main.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    if len(body) == 2 and isinstance(body[0], ast.Assign):                                  # y = aux(x); return y
        body = body[1:] if ast.unparse(body[1]) != f"return {ast.unparse(body[0].targets[0])}" else [ast.Return(body[0].value)]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or not is_call_of_helper(body[0].value):
        return False
    given = [ast.unparse(part) for part in (*body[0].value.args, *(keyword.value for keyword in body[0].value.keywords))]
    return given == [argument.arg for argument in (*main.args.posonlyargs, *main.args.args, *main.args.kwonlyargs)]


def joined(*codes):
    """One program of several; what it takes from the future has to stand first."""
    lines = "\n\n".join(codes).split("\n")
    return "\n".join(sorted(lines, key=lambda line: not line.startswith("from __future__ import")))


@functools.lru_cache(50_000)
def run(sandbox, program, tests, entry_point):
    """The sandbox's Outcome. Agents that agree write the same programs again and again."""
    with LOCK:
        return sandbox.run(program, tests, keep=[entry_point])


def judge(problem, texts, tests=None, sandbox=SANDBOX):
    """The Judgement of a joint answer (the helper's text, the main function's). tests: which to run; default all."""
    levels, codes = [], [code_of(text) for text in texts]
    trees, names = [parse(code) for code in codes], (HELPER, problem.entry_point)
    for name, tree in zip(names, trees):
        levels.append((WORTH["python"] * (tree is not None), f"{name} is{' not' * (tree is None)} Python."))
    found = [tree and definition(tree, name) for name, tree in zip(names, trees)]
    for name, function in zip(names, found):
        levels.append((WORTH["defines"] * (function is not None), f"{name} is{' not' * (function is None)} defined."))
    passed = 0.0
    if all(found):
        chosen = problem.tests if tests is None else tests
        outcome = run(sandbox, joined(problem.preamble, *codes), chosen, problem.entry_point)
        passed = sum(outcome.passed) / max(1, len(chosen))
        failed = next((f" {test}: {error}" for test, error in zip(chosen, outcome.errors) if error), "")
        levels.append((WORTH["tests"] * passed, f"{sum(outcome.passed)} of {len(chosen)} tests pass.{failed}"))
        used = calls_helper(found[1]) and definition(trees[1], HELPER) is None        # not a helper of its own
        levels.append((WORTH["calls"] * (used and passed > 0), f"{names[1]} uses{' not' * (not used)} {HELPER}."))
        more = used and not is_wrapper(found[1])
        than = "more than" if more else "nothing beyond"
        levels.append((WORTH["more"] * (more and passed > 0), f"{names[1]} does {than} {HELPER}."))
    return Judgement(sum(worth for worth, _ in levels), passed, tuple(levels))


# ---------------------------------------------------------------- prompts and transitions

SAID, ASK_EDITS = "{name} so far: ", "Propose edits as JSON"
ROLES = (f"Write only the helper function {HELPER}, to make the main function easier. Another agent writes {{entry_point}}.",
         f"Write only the main function {{entry_point}}. Another agent writes a helper function {HELPER}; call it.")


def format_prompt(problem, agent, prompt):
    """An agent's formatter: the prompt and the agent's part."""
    return f"{prompt.strip()}\n{ROLES[agent].format(entry_point=problem.entry_point)}"


def sliced(tests, which):
    """The tests that a sandbox slice names: 1 (the first), n; 0, None or "all": all; -n: the last n. Never none."""
    n = 0 if which in (None, "all") else int(which)
    return tests if n == 0 else tests[:n] if n > 0 else tests[n:]


def transition(mode, problem, which=1, propose=None, sandbox=SANDBOX):
    """An external transition of the signature that CoMLRL has:

        f(prompt, agent_completions, num_agents, prompt_history_per_agent=None, response_history_per_agent=None) -> prompts

    propose: for expert_edits, a function of the request to an expert that returns its reply, which is to be a JSON object with
    an edit for each function; broken JSON three times is no edits, counted in `f.broken`.
    """
    names = (HELPER, problem.entry_point)

    def external(prompt, agent_completions, num_agents, prompt_history_per_agent=None, response_history_per_agent=None):
        said = "\n".join(SAID.format(name=name) + code_of(text) for name, text in zip(names, agent_completions))
        if mode == "level_feedback":
            judged = judge(problem, agent_completions, sliced(problem.tests, which), sandbox)
            news = ["Found: " + " ".join(told for _, told in judged.levels)] * num_agents
        elif mode == "expert_edits":
            edits = proposals(f"{prompt}\n{said}")
            news = ["Proposed: " + edits.get(name, "nothing.") for name in names]
        else:
            news = ["Look at it again."] * num_agents
        return [f"{problem.prompt.strip()}\n{said}\n{new}\nRevise your function." for new in news]

    def proposals(request):
        ask = f'{request}\n{ASK_EDITS}, {{"{names[0]}": "...", "{names[1]}": "..."}}, and nothing else.'
        for _ in range(3):
            found = re.search(r"\{.*\}", propose(ask), re.DOTALL)
            try:
                edits = json.loads(found[0]) if found else None
            except (ValueError, RecursionError):
                edits = None
            if isinstance(edits, dict) and all(isinstance(edit, str) for edit in edits.values()):
                return edits
        external.broken += 1
        return {}
    external.broken = 0
    if mode not in ("plain", "level_feedback", "expert_edits"):
        raise BadInput(f"--external {mode}: choose plain, level_feedback, expert_edits or FILE.py:FUNCTION")
    return external


# ---------------------------------------------------------------- problems: official files, and built-in ones

def tasks(split, data=None, limit=None, seed=0):
    """The problems of an official file `data`, which has no split, or built-in ones made by `seed`; at most `limit`."""
    if split not in COUNTS:
        raise BadInput(f"--split {split}: coding has {', '.join(COUNTS)}")
    if data is None:
        return [built_in_problem(split, seed, index) for index in range(COUNTS[split] if limit is None else limit)]
    found = read(data)
    random.Random(f"coding {seed}").shuffle(found)
    return found[:limit]


def read(file):
    """All problems of a file: HumanEval's or CoopHumanEval's records (prompt, test, entry_point, perhaps canonical_solution), or
    MBPP's (prompt, code, test_list)."""
    try:
        text = Path(file).read_text(encoding="utf-8")
        lines = [line for line in text.split("\n") if line.strip()]
        records = json.loads(text) if text.lstrip().startswith("[") else list(map(json.loads, lines))
        found = [read_mbpp(r) if "test_list" in r else read_human_eval(r) for r in records]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SyntaxError, StopIteration, IndexError) as error:
        raise BadInput(f"--data {file}: no file of HumanEval, MBPP or CoopHumanEval ({type(error).__name__}: {error})") from None
    if not found:
        raise BadInput(f"--data {file}: there is no problem in it")
    return found


def read_human_eval(record):
    """The prompt is the beginning of the program; `check(candidate)` has the tests."""
    tree, name = ast.parse(record["prompt"].rstrip() + "\n    pass\n"), record["entry_point"]
    before = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == name)]
    solution = record["prompt"] + record["canonical_solution"] if "canonical_solution" in record else ""
    return Problem(str(record["task_id"]), record["prompt"], name, split_check(record["test"], name),
                   ast.unparse(ast.Module(before, [])), solution)


def split_check(text, entry_point):
    """The tests of a `check(candidate)`, one for each of its statements that asserts, after those before it that do not."""
    tree = ast.parse(text)
    check = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check")
    before = [node for node in tree.body if node is not check and not ast.unparse(node).startswith("METADATA")]
    setup, tests = [ast.unparse(node) for node in before] + [f"{check.args.args[0].arg} = {entry_point}"], []
    for node in check.body:
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant):
            continue                                        # HumanEval's "assert True", which tests nothing
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) and any(isinstance(n, ast.Assert) for n in ast.walk(node)):
            tests.append("\n".join([*setup, ast.unparse(node)]))
        else:
            setup.append(ast.unparse(node))
    if not tests:
        raise ValueError("check has no assertion")
    return tuple(tests)


def read_mbpp(record):
    """The entry point is the function of the reference that the tests call."""
    defined = [node.name for node in ast.parse(record["code"]).body if isinstance(node, ast.FunctionDef)]
    name = next(name for name in reversed(defined) if re.search(rf"\b{re.escape(name)}\s*\(", record["test_list"][0]))
    imports = "\n".join(record.get("test_imports", []))
    tests = tuple(f"{imports}\n{test}".strip() for test in record["test_list"])
    return Problem(f"mbpp/{record['task_id']}", record["prompt"], name, tests, "", record["code"])


STEPS = {         # what is done to x: in words, in Python, and as we do it; n: a number
    "number": [("adds {n}", "{x} + {n}", lambda x, n: x + n), ("takes away {n}", "{x} - {n}", lambda x, n: x - n),
               ("multiplies by {n}", "{x} * {n}", lambda x, n: x * n), ("squares", "{x} ** 2", lambda x, n: x * x),
               ("turns the sign of", "-{x}", lambda x, n: -x)],
    "list": [("sorts", "sorted({x})", lambda x, n: sorted(x)), ("reverses", "{x}[::-1]", lambda x, n: x[::-1]),
             ("drops the first of", "{x}[1:]", lambda x, n: x[1:]), ("drops the last of", "{x}[:-1]", lambda x, n: x[:-1]),
             ("adds {n} to each of", "list(map(lambda i: i + {n}, {x}))", lambda x, n: [i + n for i in x]),
             ("multiplies by {n} each of", "list(map(lambda i: i * {n}, {x}))", lambda x, n: [i * n for i in x])]}
INPUTS = {"number": range(-3, 12), "list": [[3, 1, 2], [5, 4], [7, 9, 8, 6], [2, 2, 1], [10, 30, 20]]}


def built_in_problem(split, seed, index):
    """f(x) does one thing, then another; the two agents must agree who does which."""
    rng = random.Random(f"coding {split} {seed} {index}")
    kind = rng.choice(list(STEPS))
    (first, code, do), (second, code_2, do_2) = rng.sample(STEPS[kind], 2)
    n, n_2 = rng.sample(range(2, 10), 2)
    tests = tuple(f"assert f({x!r}) == {do_2(do(x, n), n_2)!r}" for x in rng.sample(list(INPUTS[kind]), 4))
    steps = code.replace("{n}", str(n)), code_2.replace("{n}", str(n_2))
    prompt = f"f {first.format(n=n)} x, then {second.format(n=n_2)} that."
    return Problem(f"{split}/{seed}/{index}", prompt, "f", tests, "", "\n".join(programs(*steps)[0]), kind, split, steps)


def programs(first, second):
    """The two ways to divide the work: the helper does the first step, or the second. -> ((helper, main), (helper, main))"""
    return ((f"def {HELPER}(x): return {first.format(x='x')}", f"def f(x): return {second.format(x=f'{HELPER}(x)')}"),
            (f"def {HELPER}(x): return {second.format(x='x')}", f"def f(x): return {HELPER}({first.format(x='x')})"))


def complete(task, agent, prompt, chance):
    """The scripted player of built-in problems: either way of dividing the work, by `chance`, which is not how the other agent
    chooses. What passes the tests, it repeats. As the expert who proposes edits it knows one way."""
    split, seed, index = task.split("/") if re.fullmatch(r"(train|test)/-?\d+/\d+", task) else ("", "", "")
    if not split:
        raise BadInput("--agent expert: it knows the built-in problems only; leave --data out, or choose another agent")
    problem = built_in_problem(split, int(seed), int(index))
    name = (HELPER, problem.entry_point)[agent]
    if ASK_EDITS in prompt:
        return json.dumps(dict(zip((HELPER, problem.entry_point), programs(*problem.steps)[0])))
    before = re.search(re.escape(SAID.format(name=name)) + "(.*)", prompt)
    if before and re.search(r"([1-9]\d*) of \1 tests pass", prompt):
        return before[1]
    return programs(*problem.steps)[chance.randrange(2)][agent]


# One token of the tiny agent each
KINDS, MARKS = (), "()=:+-*[],."
PHRASES = ([role.format(entry_point="f") for role in ROLES] + [SAID.format(name=name).strip() for name in (HELPER, "f")] +
           [f"{name} is{no} {what}." for name in (HELPER, "f") for no in ("", " not") for what in ("Python", "defined")] +
           [f"f uses{no} {HELPER}." for no in ("", " not")] +
           [f"f does {than} {HELPER}." for than in ("more than", "nothing beyond")] +
           [f"def {HELPER}(x): return", "def f(x): return", "list(map(lambda i:", "[::-1]", "[1:]", "[:-1]", "**", "))",
            "assert f(", "tests pass.", "Found:", "Proposed:", "Look at it again.", "Revise your function.", "AssertionError:",
            INSTRUCTION])
