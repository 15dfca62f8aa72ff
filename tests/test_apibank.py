"""API-Bank: the parser and printer of calls, what counts as right, and official dialogues."""
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from envs import apibank
from errors import BadInput


@pytest.mark.parametrize("text, name, arguments", [
    ("[GetToday()]", "GetToday", {}), ("GetToday()", "GetToday", {}),
    ("Sure: [ Add ( a = 1 , b = -2.5 ) ] then", "Add", {"a": 1, "b": -2.5}),
    ("[A(x='it\\'s', y=\"a 'b' \\\"c\\\"\", z='l1\\nl2')]", "A", {"x": "it's", "y": "a 'b' \"c\"", "z": "l1\nl2"}),
    ("[A(x=['a', \"b\", [1, []]], y={'k': {'n': True}, 2: None})]", "A",
     {"x": ["a", "b", [1, []]], "y": {"k": {"n": True}, 2: None}}),
    ("[A(x='a, b=c)', y='[1]',)]", "A", {"x": "a, b=c)", "y": "[1]"}),
    ("[A(x=true, y=null, z=1e3)]", "A", {"x": True, "y": None, "z": 1000.0}),
    ("[A(x='1')] [B(y=2)]", "A", {"x": "1"}), ("[A(x='ünïcode 你好')]", "A", {"x": "ünïcode 你好"})])
def test_calls_are_read(text, name, arguments):
    assert apibank.parse_call(text) == (name, arguments)


@pytest.mark.parametrize("text, message", [
    ("", "no Name"), ("I do not know.", "no Name"), ("[A(x=1", "too early"), ("[A(x=)]", "no value"),
    ("[A(x=abc)]", "texts need quotes"),
    ("[A(1)]", "where a word was expected"), ("[A(x 1)]", "'=' was expected"), ("[A(x=1 y=2)]", "'\\)' was expected"),
    ("[A(x='open)]", "no part of a call"), ("[A(x=1, x=2)]", "given twice"), ("[A(x=[1 2])]", "'\\]' was expected"),
    ("[A(x={[1]: 2})]", "a key of an object"), ("[A(x=" + "[" * 99 + ")]", "too deeply"), ("[A(x=2023-07-15)]", "was expected")])
def test_what_is_no_call_is_said(text, message):
    with pytest.raises(apibank.NoCall, match=message):
        apibank.parse_call(text)


SIMPLE = st.none() | st.booleans() | st.integers(-10**12, 10**12) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SIMPLE, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
                      max_leaves=12)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z_0-9]*", fullmatch=True)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(NAMES, st.dictionaries(NAMES, VALUES, max_size=5))
def test_what_is_printed_is_read_back(name, arguments):
    assert apibank.parse_call(apibank.print_call(name, arguments)) == (name, arguments)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text() | st.text(alphabet="A(x=')[]{}\\\",:1e-. ", max_size=40).map("[A(".__add__))
def test_nothing_but_the_parsers_own_error_is_raised(text):
    try:
        apibank.parse_call(text)
    except apibank.NoCall as error:
        assert str(error)


RECORD = {"api_name": "AddMeeting", "param_dict": {
    "token": "a1", "meeting_topic": "new project launch plan", "attendees": "['John', 'Jane']", "count": "2"}}


@pytest.mark.parametrize("change, wanted", [
    ({}, True), ({"attendees": ["John", "Jane"]}, True), ({"attendees": ["Jane", "John"]}, False),
    ({"count": 2}, True), ({"count": 2.0}, True),
    ({"count": 3}, False), ({"count": True}, False), ({"meeting_topic": "project launch plan"}, True),
    ({"meeting_topic": "launch"}, False),
    ({"token": "a1 "}, True), ({"token": "A1"}, False), ({"extra": 1}, False), ({"token": None}, False)])
def test_what_counts_as_right(change, wanted):
    assert apibank.right("AddMeeting", {**RECORD["param_dict"], **change}, RECORD) == wanted


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


def test_missing_dialogues(tmp_path):
    (tmp_path / "empty").mkdir()
    for options, message in (({}, "give --data DIR"), ({"data": tmp_path / "empty"}, "there is no level-1-given-desc or level"),
                             ({"data": folder(tmp_path), "split": "train"}, "all in test")):
        with pytest.raises(BadInput, match=message):
            envs.tasks("apibank", **options)
