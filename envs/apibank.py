"""API-Bank: a user asks, the assistant answers with calls such as [AddAlarm(token='a1b2', time='2023-07-15 09:00:00')].

    import envs.apibank as apibank
    task = apibank.tasks("test", data="DIR")[0]  # official dialogues: DIR holds level-1-given-desc, level-2-toolsearcher
    env = task.make()
    first = env.reset()                                     # the dialogue up to the first call
    observation, reward, done = env.step("[GetUserToken(username='JohnDoe', password='pass123')]")

An official dialogue is played call by call: after each call of the agent the recorded result and what was said next is shown,
up to the next call, whatever the agent called (as the official evaluation does). A call is right if it has the recorded name
and the recorded input, type by type; arguments that hold free text may differ in their words (Jaccard > 0.5). The official
rule compares results too; they follow from name and input. Accuracy is right calls / all calls; an episode is won if all are
right.

Official files (`data`, Apache-2.0, from github.com/AlibabaResearch/DAMO-ConvAI/tree/main/api-bank).
"""
import json
import random
import re
from pathlib import Path

from envs import Task
from errors import BadInput

TEST = "test"                                     # the split to evaluate on
LEVELS = {"1": "level-1-given-desc", "2": "level-2-toolsearcher"}
FREE_TEXT = {"content", "text", "keywords", "keyword", "question", "description", "symptom", "meeting_topic", "desc_for_search"}


# ---------------------------------------------------------------- calls

class NoCall(Exception):
    """The text is no call; the message says why and where."""


TOKEN = re.compile(r"""\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
                        |(?P<number>-?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?![\w.]))
                        |(?P<word>[A-Za-z_]\w*)|(?P<mark>[\[\](){},:=]))""", re.VERBOSE | re.DOTALL)
WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
DEEPEST = 50                                      # nested lists and objects


def parse_call(text):
    """(name, {argument: value}) of the first call [Name(key=value, ...)] in a text; the brackets around it may be missing.

    Values are strings in either quotes with backslash escapes, numbers, True/False/None as Python or JSON writes them, lists, and
    objects. Raises NoCall for anything else.
    """
    start = re.search(r"[A-Za-z_]\w*\s*\(", text)
    if start is None:
        raise NoCall("there is no Name( in it")
    tokens = Tokens(text, start.start())
    name = tokens.take("word")
    tokens.take_mark("(")
    arguments = {}
    while not tokens.skip_mark(")"):
        key = tokens.take("word")
        tokens.take_mark("=")
        if key in arguments:
            raise NoCall(f"argument {key} is given twice")
        arguments[key] = tokens.value()
        if not tokens.skip_mark(","):
            tokens.take_mark(")")
            break
    return name, arguments


class Tokens:
    """The tokens of a text from a place on, taken one by one."""

    def __init__(self, text, at):
        self.text, self.at = text, at

    def peek(self):
        """(kind, text, where it ends) of the next token."""
        found = TOKEN.match(self.text, self.at)
        if found is None:
            rest = self.text[self.at:self.at + 20].strip()
            raise NoCall(f"at {self.at}: {rest!r} is no part of a call" if rest else "it ends too early")
        return found.lastgroup, found[found.lastgroup], found.end()

    def take(self, kind):
        """The next token, which must be of this kind."""
        found, text, end = self.peek()
        if found != kind:
            raise NoCall(f"at {self.at}: {text!r} where a {kind} was expected")
        self.at = end
        return text

    def take_mark(self, mark):
        """The next token, which must be this mark."""
        if not self.skip_mark(mark):
            raise NoCall(f"at {self.at}: {self.peek()[1]!r} where {mark!r} was expected")

    def skip_mark(self, mark):
        """Take the next token if it is this mark. -> was it?"""
        kind, text, end = self.peek()
        if (kind, text) == ("mark", mark):
            self.at = end
            return True
        return False

    def value(self, depth=0):
        """The value that begins here."""
        kind, text, end = self.peek()
        if depth > DEEPEST:
            raise NoCall("it is nested too deeply")
        if kind == "string":
            self.at = end
            return re.sub(r"\\(.)", lambda m: ESCAPES.get(m[1], m[1]), text[1:-1], flags=re.DOTALL)
        if kind == "number":
            self.at = end
            return int(text) if text.lstrip("-").isdigit() else float(text)
        if kind == "word" and text in WORDS:
            self.at = end
            return WORDS[text]
        if kind == "mark" and text == "[":
            self.at = end
            return self.items("]", lambda: self.value(depth + 1))
        if kind == "mark" and text == "{":
            self.at = end
            return dict(self.items("}", lambda: self.pair(depth + 1)))
        raise NoCall(f"at {self.at}: {text!r} is no value; texts need quotes")

    def pair(self, depth):
        """key: value in an object."""
        key = self.value(depth)
        if isinstance(key, (list, dict)):
            raise NoCall("a key of an object must be a text or a number")
        self.take_mark(":")
        return key, self.value(depth)

    def items(self, closing, read):
        """Items read by `read`, with commas between them and perhaps after the last, up to the closing mark."""
        found = []
        while not self.skip_mark(closing):
            found.append(read())
            if not self.skip_mark(","):
                self.take_mark(closing)
                break
        return found


def print_call(name, arguments):
    """The call as text; `parse_call` reads it back."""
    return f"[{name}({', '.join(f'{key}={print_value(value)}' for key, value in arguments.items())})]"


def print_value(value):
    """A value as `parse_call` reads it."""
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace("'", "\\'")
        for letter, mark in ESCAPES.items():
            text = text.replace(mark, f"\\{letter}")
        return f"'{text}'"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(print_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{print_value(k)}: {print_value(v)}" for k, v in value.items()) + "}"
    return repr(value)


# ---------------------------------------------------------------- correctness

def right(name, arguments, record):
    """Is the call the recorded one? record: {"api_name", "param_dict"} of an official dialogue."""
    wanted = record["param_dict"]
    return name == record["api_name"] and arguments.keys() == wanted.keys() and \
        all(same(key, arguments[key], wanted[key]) for key in wanted)


def same(key, value, wanted):
    """Are two arguments the same? A list or a number and its text are; free text may differ by some words."""
    value, wanted = plain(value), plain(wanted)
    if key in FREE_TEXT and isinstance(value, str) and isinstance(wanted, str):
        return jaccard(value, wanted) > 0.5 or value == wanted
    return type(value) is type(wanted) and value == wanted


def plain(value):
    """A text that is a number, a list or an object as what it is; numbers as floats; everything else as it is."""
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(r"-?(\d+(\.\d*)?|\.\d+)", text):
            return float(text)
        if text[:1] in ("[", "{"):
            try:
                return plain(Tokens(text, 0).value())
            except NoCall:
                return text
        return {"true": True, "false": False}.get(text.lower(), text)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def jaccard(a, b):
    """Shared words / all words of two texts."""
    a, b = set(re.findall(r"\w+", a.lower())), set(re.findall(r"\w+", b.lower()))
    return len(a & b) / len(a | b) if a | b else 1.0


# ---------------------------------------------------------------- the environment

class Dialogue:
    """One official dialogue. `metrics`: the share of right calls so far."""

    admissible, truncated = (), False

    def __init__(self, turns):
        self.turns = turns

    def reset(self):
        """What was said before the first call."""
        self.place, self.rights, self.calls, self.won = 0, 0, 0, False
        self.metrics = {"accuracy": 0.0}
        return self.listen()

    def parses(self, action):
        """Is there a call in it?"""
        try:
            parse_call(action)
            return True
        except NoCall:
            return False

    def step(self, action):
        """-> (observation, reward, done): how the recorded call ended, and what was said up to the next one."""
        record = self.turns[self.place]
        try:
            name, arguments = parse_call(action)
            self.rights += right(name, arguments, record)
        except NoCall:
            pass                                            # no call is a wrong call
        self.calls += 1
        self.metrics = {"accuracy": self.rights / sum(t["role"] == "API" for t in self.turns)}
        result = record["result"]
        shown = f"Error: {result['exception']}" if result["exception"] else json.dumps(result["output"], ensure_ascii=False)
        self.place += 1
        said = self.listen()
        done = self.place >= len(self.turns)
        self.won = done and self.rights == self.calls
        return "\n".join(filter(None, [f"Result: {shown}", said])), (1.0 if self.won else -1.0) if done else 0.0, done

    def listen(self):
        """What user and assistant say up to the next call."""
        said = []
        while self.place < len(self.turns) and self.turns[self.place]["role"] != "API":
            turn = self.turns[self.place]
            said.append(f"{turn['role']}: {turn['text']}")
            self.place += 1
        return "\n".join(said)


def tasks(split, data=None, limit=None, seed=0):
    """The official dialogues below DATA that have a call, shuffled by `seed`; all of them are for the test."""
    if data is None:
        raise BadInput("--env apibank: give --data DIR, the folder that holds level-1-given-desc and level-2-toolsearcher")
    if split != TEST:
        raise BadInput(f"--split {split}: the official dialogues are all in test")
    files = [file for folder in LEVELS.values() for file in sorted((Path(data) / folder).glob("*.jsonl"))]
    if not files:
        raise BadInput(f"--data {data}: there is no {' or '.join(LEVELS.values())} with dialogues in it")
    random.Random(f"{split} {seed}").shuffle(files)
    found = []
    for file in files:
        if len(found) == limit:
            break
        turns = read_dialogue(file)
        if any(turn["role"] == "API" for turn in turns):
            kind = next(f"level {level}" for level, folder in LEVELS.items() if file.parent.name == folder)
            name = f"{file.parent.name}/{file.stem}"
            found.append(Task(name, kind, split, lambda max_steps=None, turns=turns: Dialogue(turns)))
    return found


def read_dialogue(file):
    """The turns of an official file: {"role": "User" or "AI", "text"}, or {"role": "API", "api_name", "param_dict", "result"}."""
    turns = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            turn = json.loads(line)
            if turn["role"] == "API":
                turn["api_name"], turn["param_dict"].keys(), turn["result"]["output"], turn["result"]["exception"]
            else:
                turn["text"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{file}:{number}: no turn of a dialogue ({type(error).__name__}: {error})") from None
        turns.append(turn)
    return turns


# ---------------------------------------------------------------- words, for prompts and tokenizers

INSTRUCTION = """You are an assistant who helps with calls to an API. Each turn, first write a thought: what the user wants, and \
which call does it. Then write one call in the form [Name(key='value', key2='value2')], with nothing else."""

PHRASES, KINDS = [INSTRUCTION], []
