"""API-Bank: the parser and printer of calls, what counts as right, and official dialogues."""
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs import apibank, apibank_calls, apibank_tools
from errors import BadInput


@pytest.mark.parametrize("text, name, arguments", [
    ("[GetToday()]", "GetToday", {}), ("GetToday()", "GetToday", {}),
    ("Sure: [ Add ( a = 1 , b = -2.5 ) ] then", "Add", {"a": 1, "b": -2.5}),
    ("[A(x='it\\'s', y=\"a 'b' \\\"c\\\"\", z='l1\\nl2')]", "A", {"x": "it's", "y": "a 'b' \"c\"", "z": "l1\nl2"}),
    ("[A(x=['a', \"b\", [1, []]], y={'k': {'n': True}, 2: None})]", "A",
     {"x": ["a", "b", [1, []]], "y": {"k": {"n": True}, 2: None}}),
    ("[A(x='a, b=c)', y='[1]',)]", "A", {"x": "a, b=c)", "y": "[1]"}),
    ("[A(x=true, y=null, z=1e3)]", "A", {"x": True, "y": None, "z": 1000.0}),
    ("I log in (as Ann): [A(x='caf\\u00e9')]", "A", {"x": "café"}), ("a" * 9999 + " [A(x=1)]", "A", {"x": 1}),
    ("[A(x='1')] [B(y=2)]", "A", {"x": "1"}), ("[A(x='ünïcode 你好')]", "A", {"x": "ünïcode 你好"})])
def test_calls_are_read(text, name, arguments):
    assert apibank_calls.parse_call(text) == (name, arguments)


@pytest.mark.parametrize("text, message", [
    ("", "no Name"), ("I do not know.", "no Name"), ("[A(x=1", "too early"), ("[A(x=)]", "no value"),
    ("[A(x=abc)]", "texts need quotes"),
    ("[A(1)]", "where a word was expected"), ("[A(x 1)]", "'=' was expected"), ("[A(x=1 y=2)]", "'\\)' was expected"),
    ("[A(x='open)]", "no part of a call"), ("[A(x=1, x=2)]", "given twice"), ("[A(x=[1 2])]", "'\\]' was expected"),
    ("[A(x=" + "1" * 5000 + ")]", "no number that anybody needs"), ("[A(x=1e999)]", "no number that anybody needs"),
    ("[A(x={[1]: 2})]", "a key of an object"), ("[A(x=" + "[" * 99 + ")]", "too deeply"), ("[A(x=2023-07-15)]", "was expected")])
def test_what_is_no_call_is_said(text, message):
    with pytest.raises(apibank_calls.NoCall, match=message):
        apibank_calls.parse_call(text)


SIMPLE = st.none() | st.booleans() | st.integers(-10**12, 10**12) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SIMPLE, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
                      max_leaves=12)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z_0-9]*", fullmatch=True)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(NAMES, st.dictionaries(NAMES, VALUES, max_size=5))
def test_what_is_printed_is_read_back(name, arguments):
    assert apibank_calls.parse_call(apibank_calls.print_call(name, arguments)) == (name, arguments)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text() | st.text(alphabet="A(x=')[]{}\\\",:1e-. ", max_size=40).map("[A(".__add__))
def test_nothing_but_the_parsers_own_error_is_raised(text):
    try:
        apibank_calls.parse_call(text)
    except apibank_calls.NoCall as error:
        assert str(error)


RECORD = {"api_name": "AddMeeting", "param_dict": {
    "token": "a1", "meeting_topic": "new project launch plan", "attendees": "['John', 'Jane']", "count": "2"}}


@pytest.mark.parametrize("change, wanted", [
    ({}, True), ({"attendees": ["John", "Jane"]}, True), ({"attendees": ["Jane", "John"]}, False),
    ({"count": 2}, True), ({"count": 2.0}, True),
    ({"count": 3}, False), ({"count": True}, False), ({"meeting_topic": "project launch plan"}, True),
    ({"meeting_topic": "launch"}, False),
    ({"count": "2.0"}, True), ({"count": "02"}, False), ({"attendees": "['John', 'Jane'] and more"}, False),
    ({"token": "a1 "}, True), ({"token": "A1"}, False), ({"extra": 1}, False), ({"token": None}, False)])
def test_what_counts_as_right(change, wanted):
    assert apibank.right("AddMeeting", {**RECORD["param_dict"], **change}, RECORD) == wanted


def test_long_numbers_are_compared_to_the_last_digit():
    record = {"api_name": "A", "param_dict": {"x": "123456789012345678"}}
    assert apibank.right("A", {"x": 123456789012345678}, record) and not apibank.right("A", {"x": "123456789012345679"}, record)


def test_another_name_or_a_missing_argument_is_wrong():
    assert not apibank.right("AddAgenda", RECORD["param_dict"], RECORD)
    for key in RECORD["param_dict"]:
        assert not apibank.right("AddMeeting", {k: v for k, v in RECORD["param_dict"].items() if k != key}, RECORD)


def turn(name, output="success", exception=None, **arguments):
    return {"role": "API", "api_name": name, "param_dict": arguments,
            "result": {"api_name": name, "input": arguments, "output": output, "exception": exception}}


TURNS = [{"role": "User", "text": "Wake me."}, {"role": "AI", "text": "Who are you?"},
         turn("GetUserToken", {"token": "t"}, username="Al"),
         {"role": "AI", "text": "When?"}, {"role": "User", "text": "At 9."},
         turn("AddAlarm", None, "no such day", token="t", time="9"),
         {"role": "AI", "text": "Sorry."}]


def folder(tmp_path, turns=TURNS, name="level-1-given-desc"):
    (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / name / "a.jsonl").write_text("\n\n".join(map(json.dumps, turns)) + "\n")
    return tmp_path


def test_an_official_dialogue_is_played_call_by_call(tmp_path):
    task, = envs.tasks("apibank", data=folder(tmp_path))
    assert (task.id, task.kind, task.split) == ("level-1-given-desc/a", "level 1", "test")
    env = task.make()
    assert env.reset() == "User: Wake me.\nAI: Who are you?"
    assert env.step("[GetUserToken(username='Al')]") == ('Result: {"token": "t"}\nAI: When?\nUser: At 9.', 0, False)
    assert env.metrics == {"accuracy": .5}
    assert env.step("[AddAlarm(token='t', time=9)]") == ("Result: Error: no such day\nAI: Sorry.", 1, True) and env.won
    assert env.metrics == {"accuracy": 1}


def test_a_wrong_call_is_counted_and_the_dialogue_goes_on(tmp_path):
    env = envs.tasks("apibank", data=folder(tmp_path))[0].make()
    env.reset()
    assert env.step("hm")[0].startswith("Result: ") and not env.parses("hm") and env.parses("[A()]")
    assert env.step("[AddAlarm(token='t', time='9')]")[1:] == (-1, True) and not env.won and env.metrics == {"accuracy": .5}


def test_a_dialogue_that_ends_with_a_call(tmp_path):
    env = envs.tasks("apibank", data=folder(tmp_path, TURNS[:3], "level-2-toolsearcher"))[0].make()
    env.reset()
    assert env.step("[GetUserToken(username='Al')]") == ('Result: {"token": "t"}', 1, True)


@pytest.mark.parametrize("line", ["{", "[]", '{"role": "AI"}', '{"role": "API", "api_name": "A", "param_dict": {}}',
                                  '{"text": "a"}',
                                  '{"role": "API", "api_name": "A", "param_dict": [], "result": {"output": 1, "exception": 1}}'])
def test_broken_dialogues(tmp_path, line):
    (folder(tmp_path) / "level-1-given-desc" / "a.jsonl").write_text(json.dumps(TURNS[0]) + "\n" + line + "\n")
    with pytest.raises(BadInput, match="a.jsonl:2: no turn of a dialogue"):
        envs.tasks("apibank", data=tmp_path)


def test_dialogues_are_split_once(tmp_path):
    """95 of 315 are for the test, the same ones whatever the seed, which only orders them."""
    folder(tmp_path)
    for i in range(9):
        (tmp_path / "level-1-given-desc" / f"{i}.jsonl").write_text("\n".join(map(json.dumps, TURNS)))
    names = {split: [[t.id for t in envs.tasks("apibank", split, data=tmp_path, seed=seed)] for seed in range(3)]
             for split in ("train", "test", "all")}
    for orders in names.values():
        assert len({*map(tuple, orders)}) > 1 and len({frozenset(order) for order in orders}) == 1
    assert [len(names[split][0]) for split in names] == [6, 4, 10]
    assert set(names["train"][0] + names["test"][0]) == set(names["all"][0])


def test_missing_dialogues(tmp_path):
    (tmp_path / "empty").mkdir()
    for options, message in (({"apibank": "x"}, "have tools of their own"), ({"split": "dev"}, "API-Bank has train, test"),
                             ({"data": tmp_path / "empty"}, "there is no level-1-given-desc or level"),
                             ({"data": folder(tmp_path), "split": "dev"}, "have train, test, all")):
        with pytest.raises(BadInput, match=message):
            envs.tasks("apibank", **options)


# ------------------------------------------------------------------------------------------------------ the official tools

TOOL_MANAGER = """
import json, os, socket
import nltk
from nltk.tokenize import word_tokenize
COUNT = 0
class ToolManager:
    def __init__(self):
        global COUNT
        COUNT += 1
        self.made = COUNT
    def list_all_apis(self):
        return ["Add"]
    def get_api_description(self, name):
        return "about " + name
    def get_api_by_name(self, name):
        if name not in ("Add", "Net", "Words", "Odd", "Quit"):
            raise Exception("invalid tool name.")
        return {"input_parameters": {"a": {"type": "int"}, "b": {"type": "list(str)"}, "c": {"type": "str"}}}
    def api_call(self, name, **arguments):
        print("tools print")
        if name == "Quit":
            os._exit(3)
        if name == "Net":
            try:
                socket.create_connection(("localhost", 1))
            except Exception:
                return {"output": None, "exception": "no net"}
        if name == "Words":
            return {"output": word_tokenize("a b"), "exception": None}
        assert "d" not in arguments, "invalid parameter name. parameter: d"
        return {"output": [arguments, dict(os.environ)], "exception": None}
    def init_tool(self, name):
        return self
    def check_api_call_correctness(self, result, record):
        return result["output"][0] == record["output"]
"""


@pytest.fixture
def tools(tmp_path):
    (tmp_path / "tool_manager.py").write_text(TOOL_MANAGER)
    tools = apibank.Official(tmp_path)
    yield tools
    if tools.process:
        tools.process.kill()
        tools.process.communicate()


def test_official_tools_run_in_a_process_of_their_own(tools, monkeypatch):
    """Texts become lists, and values texts, as they declare; no secret of the environment is there; "absent" is no result."""
    monkeypatch.setenv("PARLEY_API_KEY", "secret")
    arguments = {"a": 1, "b": "['x']", "c": 2}
    record = {"output": {"a": 1, "b": ["x"], "c": "2"}}
    said = tools.ask(name="Add", arguments=arguments, result=record)
    assert said["right"] and said["output"][0] == record["output"] and "secret" not in str(said)
    assert not tools.ask(name="Add", arguments={**arguments, "a": 2}, result=record)["right"]
    assert not tools.ask(name="Add", arguments=arguments, result={"output": 1})["right"]
    assert tools.ask(name="Net", arguments={}, result=record) == {"absent": "the network"}
    if "absent" in (said := tools.ask(name="Words", arguments={}, result=record)):       # where nltk is not installed
        assert said == {"absent": "the package nltk"}
    assert tools.ask(name="Odd", arguments={"d": 1}, result=record)["refused"].endswith("invalid parameter name. parameter: d")
    assert tools.ask(name="None", arguments={}, result=record) == {"refused": "Exception: invalid tool name."}
    assert tools.ask(describe="Add") == {"description": "about Add"} and tools.ask(describe="X") == {"description": ""}


def test_official_tools_that_do_not_run(tools, tmp_path):
    with pytest.raises(BadInput, match="its tools do not run"):
        tools.ask(name="Quit", arguments={}, result={})
    (tmp_path / "tool_manager.py").write_text("1 / 0")
    with pytest.raises(BadInput, match="its tools do not run .*ZeroDivisionError"):
        tools.ask(name="Add", arguments={}, result={})
    with pytest.raises(BadInput, match="there is no tool_manager.py in it; give the folder api-bank"):
        apibank.Official(tmp_path / "nowhere")


def test_official_tools_that_talk(tools, tmp_path, monkeypatch):
    """What they print fills no pipe; what is absent when the result is compared is absent, too."""
    monkeypatch.setattr(apibank, "PATIENCE", 5)
    (tmp_path / "tool_manager.py").write_text(TOOL_MANAGER.replace('"tools print"', '"x" * 50000').replace(
        'return result["output"][0] == record["output"]', 'return word_tokenize("a")'))
    said = [tools.ask(name="Add", arguments={"a": 1}, result={"output": 1}) for _ in range(4)]
    assert all("refused" not in answer for answer in said) and said[0] == said[3]
    dialogue = folder(tmp_path, [{"role": "User", "text": "a\u2028b"}, TURNS[2]])
    assert envs.tasks("apibank", "all", data=dialogue)[0].make().reset() == "User: a\u2028b"
    (dialogue / "level-1-given-desc" / "a.jsonl").write_bytes(b"\xff")
    with pytest.raises(BadInput, match="a.jsonl: cannot be read"):
        envs.tasks("apibank", "all", data=dialogue)


def test_an_official_tool_that_never_ends(tools, tmp_path, monkeypatch):
    """It is stopped, and started again for the next call."""
    monkeypatch.setattr(apibank, "PATIENCE", 1)
    (tmp_path / "tool_manager.py").write_text(TOOL_MANAGER.replace("os._exit(3)", "__import__('time').sleep(99)"))
    assert tools.ask(name="Quit", arguments={}, result={}) == {"refused": "no answer within 1 seconds"}
    monkeypatch.setattr(apibank, "PATIENCE", 60)
    assert tools.ask(describe="Add") == {"description": "about Add"}


def test_a_dialogue_with_official_tools(tools, tmp_path):
    """What they say is shown, and counts; where they cannot run, the record does."""
    turns = [TURNS[0], turn("Add", {"c": "1"}, c="1"), turn("Net", 7, x=1), turn("Add", {"c": "2"}, c="2")]
    env = apibank.Dialogue(turns, tools)
    assert env.reset() == "about Add\n\nUser: Wake me."
    assert env.step("[Add(c=1)]")[0].startswith('Result: [{"c": "1"}, {')
    assert env.step("[Net(x=1)]")[0] == "Result: 7" and env.rights == 2
    assert env.step("[Net(") == ("Result: Error: no call: it ends too early", -1, True) and env.rights == 2
    env.reset()
    assert env.step("[Odd(c=1)]")[0].startswith("Result: [") and env.rights == 0         # the name decides first
    assert env.step("[Add(d=1)]")[0] == "Result: Error: AssertionError: invalid parameter name. parameter: d" and env.rights == 0


# ---------------------------------------------------------------------------------------------------- the built-in questions

T = apibank_tools


@pytest.fixture
def db():
    db = T.database(random.Random(0))
    db["people"]["ann"] = {"password": 11, "token": 55, "money": 30, "agenda": {"monday": "party"}, "reminders": ["milk"]}
    db["people"]["ben"]["money"] = 5
    db["weather"]["oslo"]["friday"] = ("fog", 3)
    return {**db, "today": "friday"}


@pytest.mark.parametrize("text, wanted", [
    ("[GetToken(username='ann', password=11)]", 55), ("[gettoken(username=' Ann ', password=11)]", 55),
    ("[GetToken(username='ann', password=12)]", "wrong password"), ("[GetToken(username='zoe', password=1)]", "no such user"),
    ("[Balance(token=55)]", 30), ("[Balance(token=11)]", "no such token"),
    ("[Transfer(token=55, to='ben', amount=30)]", "done"), ("[Transfer(token=55, to='ben', amount=31)]", "not enough money"),
    ("[Transfer(token=55, to='ben', amount=-1)]", "not enough money"),
    ("[Transfer(token=55, to='zoe', amount=1)]", "no such user"),
    ("[QueryAgenda(token=55, day='monday')]", "party"), ("[QueryAgenda(token=55, day='friday')]", "nothing on that day"),
    ("[AddAgenda(token=55, day='friday', event='lecture')]", "done"),
    ("[AddAgenda(token=55, day='monday', event='lecture')]", "that day is taken"),
    ("[AddAgenda(token=55, day='never', event='lecture')]", "no such day"),
    ("[DeleteAgenda(token=55, day='monday')]", "done"), ("[DeleteAgenda(token=55, day='friday')]", "nothing on that day"),
    ("[QueryReminders(token=55)]", ["milk"]), ("[AddReminder(token=55, thing='keys')]", "done"),
    ("[AddReminder(token=55, thing='milk')]", "it is there already"), ("[DeleteReminder(token=55, thing='milk')]", "done"),
    ("[DeleteReminder(token=55, thing='keys')]", "no such reminder"), ("[ModifyPassword(token=55, new_password=9)]", "done"),
    ("[Today()]", "friday"), ("[Weather(town='oslo', day='friday')]", "fog"), ("[Temperature(town='oslo', day='friday')]", 3),
    ("[Weather(town='bonn', day='friday')]", "no such town"), ("[Weather(town='oslo', day='x')]", "no such day"),
    ("[Temperature(town='oslo', day='x')]", "no such day"), ("[Capital(country='italy')]", "rome"),
    ("[Capital(country='x')]", "no such country"), ("[StockPrice(company='x')]", "no such company"),
    ("[Convert(amount=2, unit='hours', to='minutes')]", 120), ("[Convert(amount=.5, unit='hours', to='minutes')]", 30.0),
    ("[Convert(amount=2, unit='hours', to='days')]", "no such units"), ("[Fly(to='x')]", "no such tool: Fly"),
    ("[Balance(token='55')]", "token must be a number"), ("[Balance(token=True)]", "token must be a number"),
    ("[Capital(country=1)]", "country must be a text"), ("[Balance()]", "Balance needs the argument token"),
    ("[Today(day='x')]", "Today has no argument day")])
def test_the_tools(db, text, wanted):
    try:
        found = T.call(db, *apibank_calls.parse_call(text))
    except T.ToolError as error:
        found = str(error)
    assert found == wanted


def test_the_tools_change_the_database(db):
    for text in ("Transfer(token=55, to='ben', amount=7)", "DeleteAgenda(token=55, day='monday')",
                 "AddAgenda(token=55, day='friday', event='lecture')", "DeleteReminder(token=55, thing='milk')",
                 "AddReminder(token=55, thing='keys')", "ModifyPassword(token=55, new_password=9)"):
        T.call(db, *apibank_calls.parse_call(text))
    ann = {"password": 9, "token": 55, "money": 23, "agenda": {"friday": "lecture"}, "reminders": ["keys"]}
    assert db["people"]["ann"] == ann
    assert db["people"]["ben"]["money"] == 12


def play(task, careless=False):
    env = task.make()
    first, steps, done = env.reset(), [], False
    while not done:
        _, action = T.expert(first, tuple(steps), careless)
        observation, reward, done = env.step(action)
        steps.append((action, observation))
    return env, reward, steps


def test_the_scripted_player_answers_every_question():
    tasks = envs.tasks("apibank", "train", limit=150, seed=3)
    assert {task.kind for task in tasks} == set(T.KINDS_OF_QUESTION)
    for task in tasks:
        env, reward, steps = play(task)
        assert env.won and reward == 1 and not env.truncated and len(steps) <= 4, (task, steps)
        if task.kind in ("own data", "change"):                                         # the careless one never buys a token
            env, reward, _ = play(task, careless=True)
            assert not env.won and reward == -1
    answers = {play(t)[0].answer for t in tasks}
    assert {"wrong password", "nothing on that day", "no such country", "done"} <= answers  # exceptions are among the questions


def test_an_answer_is_right_only_with_the_database_as_it_should_be(db):
    """Words alone do not do: nor does one change too many."""
    question = next(q for q in T.QUESTIONS if "remind me" in q.words)
    env = T.Tools(question, 0.5, 5)
    name, password, chore = T.PATTERNS[T.QUESTIONS.index(question)].fullmatch(env.reset().rpartition("Question: ")[2]).groups()
    token = env.db["people"][name]["token"]
    assert env.answer == "done" and env.step("Answer: done") == ("The end.", -1, True) and not env.won
    for extra, won in (((), True), ((f"[ModifyPassword(token={token}, new_password=1)]",), False)):
        env.reset()
        for call in (f"[AddReminder(token={token}, thing='{chore}')]", *extra):
            assert env.step(call) == ("Result: done", 0, False)
        assert env.step("answer Done.")[1:] == (1 if won else -1, True) and env.won == won


@pytest.mark.parametrize("action, parses, ends", [("Answer: 3", True, True), ("ANSWER 3", True, True), ("answers", False, False),
                                                  ("[A()]", True, False), ("hm", False, False), ("[A(", False, False)])
def test_calls_and_answers(action, parses, ends):
    """Only an answer ends it; what is neither is an error, and costs a step."""
    env = envs.tasks("apibank", limit=1)[0].make(max_steps=2)
    assert "Balance(token: int)" in env.reset() and env.parses(action) == parses
    observation, reward, done = env.step(action)
    assert done == ends and (observation == "The end.") == ends
    if not done:
        assert observation.startswith("Error: ") and env.step(action)[2] and env.truncated and not env.won


@pytest.mark.parametrize("said, wanted, same", [
    ("It", "it", True), ("3.0", "3", True), ("30", "3", False), ("a, b", "[\"a\", \"b\"]", True),
    ("b a", "a b", False), ("3.5", "3.5", True), ("3.5", "3", False)])
def test_answers_are_compared_by_their_words(said, wanted, same):
    assert (T.words_of(said) == T.words_of(wanted)) == same


def test_official_dialogues_have_no_scripted_player():
    with pytest.raises(BadInput, match="knows built-in questions only; leave out --data"):
        T.expert("User: Wake me.", ())
