"""API-Bank: a user asks, the assistant answers with calls such as [AddAlarm(token='a1b2', time='2023-07-15 09:00:00')].

    import envs.apibank as apibank
    task = apibank.tasks("test", limit=1)[0]                # a built-in question (envs/apibank_tools.py)
    task = apibank.tasks("test", data="DIR")[0]  # official dialogues: DIR holds level-1-given-desc, level-2-toolsearcher
    env = task.make()
    first = env.reset()                                     # the dialogue up to the first call
    observation, reward, done = env.step("[GetUserToken(username='JohnDoe', password='pass123')]")

A built-in question is answered by calls of our own tools, and a last "Answer: ...".

An official dialogue is played call by call: after each call of the agent the recorded result and what was said next is shown,
up to the next call, whatever the agent called (as the official evaluation does). A call is right if it has the recorded name
and the recorded input, type by type; arguments that hold free text may differ in their words (Jaccard > 0.5). With
apibank="CHECKOUT" the official tools run (envs/apibank_official.py): their descriptions open the dialogue, they are really
called, and they say what is right, result and exception included; for what cannot run (no network, a package that is missing)
the record decides. Accuracy is right calls / all calls; an episode is won if all are right.

Official files (`data`, Apache-2.0, from github.com/AlibabaResearch/DAMO-ConvAI/tree/main/api-bank).
"""
import json
import random
import re
import select
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from envs import Task
from envs.apibank_calls import NoCall, Tokens, parse_call
from envs.apibank_tools import PHRASES as BUILT_IN_PHRASES
from envs.apibank_tools import built_in_task, expert, is_call  # noqa: F401 (the scripted player)
from errors import BadInput

TEST = "test"                                     # the split to evaluate on
COUNTS = {"train": 220, "test": 95}               # built-in questions, if no limit is given (as the paper)
LEVELS = {"1": "level-1-given-desc", "2": "level-2-toolsearcher"}
FREE_TEXT = {"content", "text", "keywords", "keyword", "question", "description", "symptom", "meeting_topic", "desc_for_search"}
PATIENCE = 60                                     # seconds for a call of an official tool


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
    """A text that is a number, a list or an object as what it is; numbers as floats, but for those that a float cannot hold;
    everything else as it is. 007 is a text."""
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(r"-?(0|[1-9]\d{0,14})?(\.\d{1,15})?", text) and text not in ("", "-"):
            return float(text)
        if text[:1] in ("[", "{"):
            tokens = Tokens(text, 0)
            try:
                found = tokens.value()
            except NoCall:
                return text
            return text if text[tokens.at:].strip() else plain(found)
        return {"true": True, "false": False}.get(text.lower(), text)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e15 else str(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def jaccard(a, b):
    """Shared words / all words of two texts."""
    a, b = set(re.findall(r"\w+", a.lower())), set(re.findall(r"\w+", b.lower()))
    return len(a & b) / len(a | b) if a | b else 1.0


# ---------------------------------------------------------------- the official tools

class Official:
    """The official tools of a checkout, in a process that is started when it is first needed."""

    def __init__(self, checkout):
        if not (Path(checkout) / "tool_manager.py").is_file():
            raise BadInput(f"--apibank {checkout}: there is no tool_manager.py in it; give the folder api-bank of a checkout of "
                           "github.com/AlibabaResearch/DAMO-ConvAI")
        self.checkout, self.process = str(Path(checkout).resolve()), None

    def ask(self, **request):
        """The answer to a request, see envs/apibank_official.py. Raises BadInput if the process is of no use."""
        if self.process is None:
            worker = Path(__file__).with_name("apibank_official.py")
            self.said = tempfile.TemporaryFile("w+")        # a pipe that nobody reads would fill up and stop it
            self.process = subprocess.Popen([sys.executable, "-I", str(worker), self.checkout], env={}, text=True, bufsize=1,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said)
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
            line = self.process.stdout.readline() if ready else ""
        except BrokenPipeError:
            line, ready = "", True
        if line:
            return json.loads(line)
        self.process.kill()
        self.process.communicate()
        self.said.seek(0)
        said, self.process = self.said.read().strip().splitlines(), None
        if not ready:
            return {"refused": f"no answer within {PATIENCE} seconds"}
        raise BadInput(f"--apibank {self.checkout}: its tools do not run ({said[-1] if said else 'no message'})")


official = cache(Official)


# ---------------------------------------------------------------- the environment

class Dialogue:
    """One official dialogue. tools: Official, or None. `metrics`: the share of right calls so far."""

    admissible, truncated = (), False
    parses = staticmethod(is_call)

    def __init__(self, turns, tools=None):
        self.turns, self.tools = turns, tools

    def reset(self):
        """The descriptions of the dialogue's tools, where they are known, and what was said before the first call."""
        self.place, self.rights, self.calls, self.won = 0, 0, 0, False
        self.metrics = {"accuracy": 0.0}
        names = dict.fromkeys(turn["api_name"] for turn in self.turns if turn["role"] == "API") if self.tools else ()
        about = [self.tools.ask(describe=name).get("description", "") for name in names]
        return "\n".join([*about, self.listen()])

    def step(self, action):
        """-> (observation, reward, done): how the call ended, and what was said up to the next one."""
        record = self.turns[self.place]
        result = record["result"]
        try:
            name, arguments = parse_call(action)
            said = {"absent": ""} if self.tools is None else self.tools.ask(name=name, arguments=arguments, result=result)
            if "absent" in said:
                self.rights += right(name, arguments, record)
            else:                                           # the official evaluation asks for the name first
                self.rights += name == record["api_name"] and said.get("right", False)
                result = {"output": None, "exception": said["refused"]} if "refused" in said else said
        except NoCall as error:                             # no call is a wrong call
            result = result if self.tools is None else {"output": None, "exception": f"no call: {error}"}
        self.calls += 1
        self.metrics = {"accuracy": self.rights / sum(t["role"] == "API" for t in self.turns)}
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


def tasks(split, data=None, limit=None, seed=0, apibank=None):
    """Built-in questions, made by `seed`; or the official dialogues below DATA that have a call, shuffled by `seed`. 95 in 315
    of those are "test" and the rest "train", as in the weak-supervision paper, whose split is not published: ours is drawn once.
    "all": both. apibank: a checkout, whose tools are to run."""
    if data is None:
        if apibank:
            raise BadInput(f"--apibank {apibank}: the built-in questions have tools of their own; give --data DIR, too")
        if split not in COUNTS:
            raise BadInput(f"--split {split}: API-Bank has {', '.join(COUNTS)}")
        return [built_in_task(split, seed, index) for index in range(COUNTS[split] if limit is None else limit)]
    if split not in (*COUNTS, "all"):
        raise BadInput(f"--split {split}: the official dialogues have {', '.join(COUNTS)}, all")
    tools = official(apibank) if apibank else None
    files = [file for folder in LEVELS.values() for file in sorted((Path(data) / folder).glob("*.jsonl"))]
    if not files:
        raise BadInput(f"--data {data}: there is no {' or '.join(LEVELS.values())} with dialogues in it")
    random.Random("api-bank").shuffle(files)
    tests = -(-len(files) * 95 // 315)
    files = {"test": files[:tests], "train": files[tests:], "all": files}[split]
    random.Random(f"{split} {seed}").shuffle(files)
    found = []
    for file in files:
        if len(found) == limit:
            break
        turns = read_dialogue(file)
        if any(turn["role"] == "API" for turn in turns):
            kind = next(f"level {level}" for level, folder in LEVELS.items() if file.parent.name == folder)
            name = f"{file.parent.name}/{file.stem}"
            found.append(Task(name, kind, split, lambda max_steps=None, turns=turns: Dialogue(turns, tools)))
    return found


def read_dialogue(file):
    """The turns of an official file: {"role": "User" or "AI", "text"}, or {"role": "API", "api_name", "param_dict", "result"}."""
    turns = []
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: cannot be read ({error}); get the file again") from None
    for number, line in enumerate(lines, start=1):
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

INSTRUCTION = """You are an assistant who helps with calls to an API. Each turn, first write a thought: what is wanted, and \
which call does it. Then write one call in the form [Name(key='value', key2=2)], with nothing else. A question you end \
with Answer: and the result that answers it, or the error that stands in the way, word by word."""

PHRASES, KINDS, MARKS = [INSTRUCTION, *BUILT_IN_PHRASES], [], "()=,"
