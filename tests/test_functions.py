"""AgentOptimizer: functions, the actions on them, the search; MATH's answers; calls in the sandbox."""
import json
import re

import pytest
from conftest import argv, run_evaluate, run_explore

import buffer
import optimize
from envs import functions as toolbox
from envs import mathqa
from errors import BadInput
from others.expert import Proposer

CODE = "def {0}(x):\n    return x + {1}"


def function(name, add=1, **changes):
    return {"name": name, "description": f"Adds {add}.", "arguments": {"x": {"type": "integer"}}, "packages": "",
            "code": CODE.format(name, add), **changes}


def action(verb, name, *rest, **changes):
    given = function(name, *rest, **changes)
    return {"name": verb, "arguments": {k: v for k, v in given.items() if v is not None}}


def names(functions):
    return [f["name"] for f in functions]


def run_optimize(*words):
    with argv(*words):
        optimize.main()


# ------------------------------------------------------------------------------------------------------------- SPEC G14, by hand

def test_actions_change_the_list():
    functions = [function("f"), function("g")]
    added = toolbox.act(functions, action("add_function", "h"))
    revised = toolbox.act(added, action("revise_function", "f", 5))
    assert names(added) == ["f", "g", "h"] == names(revised)                        # a revised one keeps its place
    assert [toolbox.call(revised, name, '{"x": 1}') for name in "fgh"] == ["Result: 6", "Result: 2", "Result: 2"]
    for wrong in (action("remove_function", "zzz"), action("revise_function", "nope"), action("add_function", "bad", code="def bad(")):
        with pytest.raises(ValueError):
            toolbox.act(revised, wrong)
    assert names(revised) == ["f", "g", "h"] and names(functions) == ["f", "g"]     # nothing was changed in place
    assert names(toolbox.act(revised, action("remove_function", "g"))) == ["f", "h"]


@pytest.mark.parametrize("ties, kept, best, failures", [
    (False, [True, True, False, False, False], .6, [.5, .55, .6]), (True, [True, True, False, True, False, True], .7, [])])
def test_roll_back(ties, kept, best, failures):
    """Scores .4 .6 .5 .6 .55 .7, patience 3."""
    progress, found = optimize.Progress(), []
    for i, score in enumerate([.4, .6, .5, .6, .55, .7]):
        if progress.row >= 3:
            break
        progress = optimize.judge(progress, [i], score, ties)
        found.append(progress.row == 0)
    assert found == kept and progress.performance == best and [score for score, _ in progress.failures] == failures
    assert progress.functions == ([1] if not ties else [5])


def test_a_success_forgets_the_failures():
    progress = optimize.judge(optimize.judge(optimize.Progress(["f"], .5), ["g"], .4), ["h"], .6)
    assert progress == optimize.Progress(["h"], .6)
    assert optimize.judge(progress, ["i"], .1, always=True) == optimize.Progress(["i"], .1)


# ------------------------------------------------------------------------------------------- what the released version gets wrong

def test_each_name_runs_its_own_function():
    functions = [function(name, i) for i, name in enumerate("fgh", start=1)]
    assert [toolbox.call(functions, name, '{"x": 0}') for name in "fgh"] == ["Result: 1", "Result: 2", "Result: 3"]


def test_helpers_of_one_name_do_not_disturb_each_other():
    code = "def help(x):\n    return x * {1}\n\ndef {0}(x):\n    return help(x)"
    functions = [function(name, code=code.format(name, i)) for i, name in enumerate("fg", start=2)]
    assert [toolbox.call(functions, name, '{"x": 10}') for name in "fg"] == ["Result: 20", "Result: 30"]


def test_a_removed_function_is_gone_for_the_agent_and_the_executor():
    functions = toolbox.act([function("f"), function("g")], action("remove_function", "f"))
    env = mathqa.Problem("What?", "2", functions, 5)
    assert "f(" not in env.reset() and "g(x: integer): Adds 1." in env.reset()
    assert env.step('call[f({"x": 1})]')[0] == "Error: there is no function f; there are g."


def test_terminate_stops():
    asked = []
    def propose(text):
        asked.append(text)
        return json.dumps([action("add_function", "f"), {"name": "TERMINATE", "arguments": {}}, action("add_function", "g")])
    applied, functions, refused = optimize.step([], {}, [], propose)
    assert (names(functions), len(applied), refused, len(asked)) == (["f"], 1, [], 1)
    assert optimize.step([], {}, [], lambda text: "TERMINATE") == ([], [], [])


def test_no_record_no_division():
    assert optimize.statistics_of([]) == {} and optimize.conversations([], 3) == []
    assert optimize.step([], optimize.statistics_of([]), [], lambda text: "TERMINATE") == ([], [], [])


@pytest.mark.parametrize("changes, says", [
    ({"arguments": None}, "arguments is missing"), ({"code": None}, "code is missing"), ({"description": ""}, "description must be a text"),
    ({"arguments": "{"}, "arguments is no JSON"), ({"arguments": "[1]"}, "must be a JSON object"),
    ({"arguments": {"x": {"type": "int"}}}, "no JSON schema"), ({"arguments": {"y": {}}}, r"defines f\(x\), but arguments has y"),
    ({"code": "def g(x): return x"}, "does not define a function f"), ({"code": "if 1:\n def f(x): return x"}, "does not define"),
    ({"code": "f = lambda x: x"}, "does not define"), ({"code": "def f(x): return x)"}, "code is no Python"),
    ({"code": "def f(x): return\x00"}, "code is no Python"), ({"code": "def f(x):\n break"}, "code is no Python"),
    ({"code": "import nowhere_at_all\ndef f(x): return x"}, "imports nowhere_at_all, which is not installed"),
    ({"code": 3}, "code must be a text")])
def test_what_is_no_function(changes, says):
    with pytest.raises(ValueError, match=f"add_function f: .*{says}"):
        toolbox.act([], action("add_function", "f", **changes))


@pytest.mark.parametrize("name, says", [("print", "builtin"), ("2x", "no name"), ("def", "no name"), ("", "name must be a text")])
def test_names_that_no_function_may_have(name, says):
    with pytest.raises(ValueError, match=says):
        toolbox.act([], action("add_function", name))


@pytest.mark.parametrize("wrong, says", [
    ({"name": "improve"}, "no action of that name"), ("add_function", "no action of that name"), ({}, "no action of that name"),
    ({"name": "add_function"}, "must be a JSON object"), ({"name": "remove_function", "arguments": {}}, "no function None"),
    (action("add_function", "g"), "is there already"), (action("revise_function", "f"), "no function 'f'; there are g")])
def test_actions_that_cannot_be_done(wrong, says):
    with pytest.raises(ValueError, match=says):
        toolbox.act([function("g")], wrong)


def test_the_arguments_may_be_a_text_or_a_whole_schema():
    plain = {"x": {"type": "integer"}}
    for given in (plain, json.dumps(plain), {"type": "object", "properties": plain, "required": ["x"]}):
        assert toolbox.act([], action("add_function", "f", arguments=given))[0]["arguments"] == plain


@pytest.mark.parametrize("text, says", [
    ('{"x": 1}', "Result: 2"), ("{}", "'x' is a required property"), ('{"x": "1"}', "'1' is not of type 'integer'"),
    ('{"x": 1, "y": 2}', "Additional properties"), ("{x: 1}", "no JSON"), ("[1]", "not of type 'object'"), ("", "required property")])
def test_arguments_of_a_call_are_checked(text, says):
    assert says in toolbox.call([function("f")], "f", text)


def test_a_default_need_not_be_given():
    functions = toolbox.act([], action("add_function", "f", arguments={"x": {}, "y": {}}, code="def f(x, y=3): return x + y"))
    assert toolbox.call(functions, "f", '{"x": 1}') == "Result: 4"


@pytest.mark.parametrize("body, says", [
    ("while True: pass", "Error: out of time"), ("print('a' * 10**9)\n    return 1", "Error: MemoryError"),
    ("for _ in range(10**9): print('a' * 1000)", "Error: out of time"), ("return 'a' * 10**10", "Error: MemoryError"),
    ("import os; os._exit(0)", "Error: it ended its process"), ("raise ValueError('no')", "Error: ValueError: no"),
    ("return 'a\\n' * 10**6", "Result: 'a"), ("return f(x)", "Error: RecursionError"),
    ("import socket; return socket.socket()", "Error: "), ("return open('/etc/passwd').read()", "Error: ")])
def test_hostile_functions_are_contained(body, says):
    told = toolbox.call([function("f", code=f"def f(x):\n    {body}")], "f", '{"x": 1}')
    assert told.startswith(says) and len(told) < 1100 and "\n" not in told
    assert toolbox.call([function("g")], "g", '{"x": 1}') == "Result: 2"


# ---------------------------------------------------------------------------------------------------------- what proposers write

ADD = action("add_function", "f")


@pytest.mark.parametrize("text", [
    json.dumps([ADD]), json.dumps(ADD), "Here it is:\n```json\n" + json.dumps([ADD], indent=1) + "\n```\nDone.",
    repr([ADD]), json.dumps([ADD])[:-1] + ",]", json.dumps([ADD]).replace("\\n", "\n"),
    json.dumps([{"type": "function", "function": ADD}]), json.dumps({"add_function": ADD["arguments"]}), json.dumps([{**ADD, "arguments": json.dumps(ADD["arguments"])}])])
def test_what_models_do_wrong_is_mended(text):
    """Fences, single quotes, trailing commas, line breaks in strings, two layers of JSON."""
    found, = optimize.actions_in(text)
    assert names(toolbox.act([], found)) == ["f"] and toolbox.call(toolbox.act([], found), "f", '{"x": 1}') == "Result: 2"


@pytest.mark.parametrize("text", ["", "I would add a function.", "{", "[", "[]", "{}", "[[[", '["add_function"]', "null", "```\n```"])
def test_garbage_is_no_action(text):
    assert optimize.actions_in(text) == []


def test_reasons_are_shown_to_the_next_try():
    asked, replies = [], [json.dumps([action("remove_function", "zzz"), action("add_function", "f")]), json.dumps([action("add_function", "g")])]
    def propose(text):
        asked.append(text)
        return replies[len(asked) - 1]
    applied, functions, refused = optimize.step([], {"all": .5, "x": .5}, [], propose)
    assert names(functions) == ["f", "g"] and len(applied) == 2 and refused == ["remove_function: there is no function 'zzz'; there are none"]
    assert "Refused: remove_function" not in asked[0] and f"Refused: {refused[0]}" in asked[1] and 'Names: ["f"]' in asked[1]


def test_at_most_three_actions_and_three_tries():
    five = json.dumps([action("add_function", name) for name in "fghij"])
    applied, functions, refused = optimize.step([], {}, [], lambda text: five)
    assert names(functions) == ["f", "g", "h"] and len(refused) == 2 and "only 3 actions" in refused[0]
    asked = []
    assert optimize.step([], {}, [function("k")], lambda text: asked.append(text) or "no")[1] == [function("k")] and len(asked) == 3


def test_what_a_proposer_sees():
    seen = optimize.shown(["talk one"], {"all": .25, "algebra": .25}, [function("f")], [function("f"), function("g", 7)],
                          [(.1, [function("h")]), (.2, [])], ["why"], 2)
    order = ["talk one", "Share of right answers: 25.0%", '{"algebra": 0.25}', "best functions so far", "Adds 1.", "you are changing", "Adds 7.",
             "with 10.0% right", "h(x: integer)", "with 20.0% right", "Refused: why", "remove_function", "at most 2 actions"]
    places = [seen.index(part) for part in order]
    assert places == sorted(places)


def test_the_tools_have_the_released_names():
    found = {tool["function"]["name"]: tool["function"]["parameters"] for tool in toolbox.tools()}
    assert found["add_function"]["required"] == ["name", "description", "arguments", "packages", "code"]
    assert found["remove_function"]["required"] == ["name"] and found["TERMINATE"]["required"] == []


# -------------------------------------------------------------------------------------------------------------------- the search

SEARCH = ["--agent", "expert", "--limit", 25, "--epochs", 4]


def log_of(folder):
    return [json.loads(line) for line in open(folder / "epochs.jsonl")]


def test_a_search_keeps_what_is_better(tmp_path, capsys):
    run_optimize(*SEARCH, "--proposer", "scripted:1/0/0/0", "--out", tmp_path / "o")
    log = log_of(tmp_path / "o")
    assert log[-1]["performance"] > log[0]["performance"] + .3 and all(entry["kept"] for entry in log)
    found = toolbox.read(tmp_path / "o" / "functions.json")
    assert found and len(buffer.read(tmp_path / "o" / "4.jsonl")) == 25
    run_evaluate("--env", "mathqa", "--agent", "none=expert", "trained=expert", "--functions", "none", tmp_path / "o" / "functions.json",
                 "--limit", 50, "--out", tmp_path / "eval")
    rates = {a["name"]: a["success"]["all"] for a in json.loads((tmp_path / "eval" / "metrics.json").read_text())["agents"]}
    assert rates["trained"] > rates["none"] + .3
    with pytest.raises(BadInput, match="is there already"):
        run_optimize(*SEARCH, "--proposer", "scripted:1/0/0/0", "--out", tmp_path / "o")


def test_harm_is_rolled_back_or_not(tmp_path):
    for arm, words in (("full", []), ("kept", ["--no-rollback"]), ("one", ["--one-shot"])):
        run_optimize(*SEARCH, "--seed", 1, "--proposer", "scripted:0.3/0/0.7/0", "--out", tmp_path / arm, *words)
    full, kept, one = (log_of(tmp_path / arm) for arm in ("full", "kept", "one"))
    best = max(entry["performance"] for entry in full)
    assert sum(not entry["kept"] for entry in full) > 0 and all(entry["kept"] for entry in kept) and len(one) == 2
    for i, entry in enumerate(full):
        assert entry["kept"] == (entry["performance"] > max((e["performance"] for e in full[:i]), default=-1))
    last = max(i for i, entry in enumerate(full) if entry["performance"] == best and entry["kept"])
    assert toolbox.read(tmp_path / "full" / "functions.json") == toolbox.read(tmp_path / "full" / f"{last}.json")
    assert toolbox.read(tmp_path / "kept" / "functions.json") == toolbox.read(tmp_path / "kept" / "4.json")


def test_only_garbage_changes_nothing(tmp_path, capsys):
    run_optimize(*SEARCH, "--proposer", "scripted:0/0/0/1", "--patience", 2, "--out", tmp_path / "o")
    log = log_of(tmp_path / "o")
    assert [entry["kept"] for entry in log] == [True, False, False] and toolbox.read(tmp_path / "o" / "functions.json") == []
    assert all(entry["refused"] and not entry["actions"] for entry in log[1:])
    said = capsys.readouterr().out
    assert "functions: none: nothing that was proposed helped" in said and said.count("refused:") >= 6
    assert not (tmp_path / "o" / "1.jsonl").exists()                       # the same functions are not played again


@pytest.mark.parametrize("stop", ["judge", "write"])
def test_a_stopped_search_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch, stop):
    words = [*SEARCH, "--proposer", "scripted:0.4/0.2/0.3/0.1", "--seed", 3]
    run_optimize(*words, "--out", tmp_path / "whole")
    calls, whole = [], vars(optimize)[stop] if stop == "judge" else toolbox.write

    def killed(*given):
        calls.append(given)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return whole(*given)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(optimize if stop == "judge" else toolbox, stop, killed)
        if stop == "judge":
            calls.extend([None, None, None])
        run_optimize(*words, "--out", tmp_path / "cut")
    done, proposed, step = len(log_of(tmp_path / "cut")), [], optimize.step
    monkeypatch.setattr(optimize, "step", lambda *given: proposed.append(1) or step(*given))
    run_optimize(*words, "--out", tmp_path / "cut")
    if stop == "judge":                                     # what was proposed already is not proposed again
        assert len(proposed) == 4 - done
    for name in ("functions.json", "epochs.jsonl", "4.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("words, says", [
    (["--proposer", "scripted:1/2"], "four weights"), (["--proposer", "scripted:0/0/0/0"], "four weights"),
    (["--proposer", "expert"], "the expert solves"), (["--proposer", "scripted:1/0/0/0", "--env", "gsm8k"], "in mathqa only")])
def test_what_a_search_cannot_do(tmp_path, words, says):
    with pytest.raises(BadInput, match=says):
        run_optimize("--agent", "expert", "--out", tmp_path / "o", *words)


@pytest.mark.parametrize("text", ["{}x", "3", '[{"name": "f"}]', json.dumps([function("f"), function("f")])])
def test_files_that_hold_no_functions(tmp_path, text):
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(BadInput, match="--functions .*f.json: no list of functions"):
        run_explore("--env", "mathqa", "--agent", "expert", "--functions", tmp_path / "f.json", "--out", tmp_path / "r.jsonl")


def test_evaluate_wants_functions_for_all(tmp_path):
    with pytest.raises(BadInput, match="2 files for 1 agents"):
        run_evaluate("--env", "mathqa", "--agent", "expert", "--functions", "none", "none", "--out", tmp_path / "e")
    with pytest.raises(BadInput, match="--functions x: it is for --env mathqa"):
        run_evaluate("--env", "gsm8k", "--agent", "expert", "--functions", "x", "--out", tmp_path / "e")


def test_the_scripted_proposer_keeps_its_rates():
    seen = 'Right answers: {"algebra": 0.1, "counting": 0.9}\nNames: []'
    import asyncio
    def kinds(rates):
        proposer, found = Proposer(mathqa, rates), []
        for i in range(60):
            t = buffer.Trajectory(id=str(i), task="t")
            t.add(seen, 0, "task")
            found += json.loads(asyncio.run(proposer.reply(t, "propose")).text)
        return found
    assert {a["arguments"]["name"] for a in kinds((1, 0, 0, 0))} == {"square_sum"}                   # of the worst kind
    right, wrong = ({family[i] for family in mathqa.FAMILIES.values()} for i in (5, 6))
    assert all(a["arguments"]["code"] in wrong for a in kinds((0, 0, 1, 0)))
    mixed = [a["arguments"].get("code") for a in kinds((1, 0, 1, 0))]
    assert .35 < sum(code in right for code in mixed) / len(mixed) < .65


# ------------------------------------------------------------------------------------------------------------- MATH, its answers

@pytest.mark.parametrize("given, wanted", [
    ("\\dfrac{1}{2}", "\\frac12"), ("\\frac 12", "1/2"), ("0.5", "\\frac{1}{2}"), (".5", "0.5"), ("1,000", "1000"), ("10,\\!080", "10080"),
    ("x=5", "5"), ("90^\\circ", "90"), ("90^{\\circ}", "90"), ("\\$32", "32"), ("50\\%", "50"), ("5\\text{ cm}", "5"), ("5 \\mbox{ inches}^2", "5"),
    ("\\text{Evelyn}", "Evelyn"), ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})"), ("\\sqrt2", "\\sqrt{2}"), ("6 - 5i", "6-5i"),
    ("12.0", "12"), ("$7$", "7"), ("7.", "7"), ("\\frac{270}7\\text{ degrees}", "\\frac{270}{7}"), ("(3,4]", "(3, 4]"), ("\u22123", "-3"),
    ("45 degrees", "45"), ("11,\\! 111,\\! 111,\\! 100", "11,111,111,100")])
def test_equal_answers(given, wanted):
    assert mathqa.normalise(given) == mathqa.normalise(wanted)


@pytest.mark.parametrize("given, wanted", [
    ("\\frac{1}{2}", "\\frac{1}{3}"), ("(3,4]", "(3,4)"), ("(3,4)", "[3,4)"), ("12", "120"), ("1,2", "12"), ("3, 5, 7", "357"), ("52_8", "52"),
    ("-3", "3"), ("\\text{even}", "odd"), ("x^2", "x2"), ("1000", "1,00"), ("2\\sqrt{3}", "\\sqrt{3}"), ("", "0")])
def test_different_answers(given, wanted):
    assert mathqa.normalise(given) != mathqa.normalise(wanted)


@pytest.mark.parametrize("text, wanted", [
    ("So \\boxed{5}.", "5"), ("\\boxed{1} then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"), ("\\fbox{7}", "7"), ("$\\boxed 9$", "9"),
    ("none", None), ("\\boxed{open", None)])
def test_last_boxed(text, wanted):
    assert mathqa.last_boxed(text) == wanted


def test_official_files(tmp_path):
    record = {"problem": "What is\n $1+1$?", "level": "Level 1", "type": "Algebra", "solution": "It is $\\boxed{2}$."}
    folder = tmp_path / "MATH" / "test" / "algebra"
    folder.mkdir(parents=True)
    (folder / "1.json").write_text(json.dumps(record))
    task, = mathqa.tasks("test", str(tmp_path / "MATH"))
    assert (task.id, task.kind) == ("algebra/1", "Algebra") and task.make().reset() == "What is $1+1$?"
    assert task.make().step("finish[$\\boxed{2}$]") == ("Right.", 1.0, True)
    with pytest.raises(BadInput, match="no train/SUBJECT"):
        mathqa.tasks("train", str(tmp_path / "MATH"))
    lines = [json.dumps({"problem": f"p{i}", "answer": str(i), "subject": "AB"[i % 2]}) for i in range(20)]
    (tmp_path / "m.jsonl").write_text("\n".join(lines) + "\n")
    train, test = (mathqa.tasks(split, str(tmp_path / "m.jsonl")) for split in ("train", "test"))
    assert len(train) == 4 and len(test) == 16 and not {t.id for t in train} & {t.id for t in test}
    assert len(mathqa.tasks("test", str(tmp_path / "m.jsonl"), limit=3)) == 3
    for text in ("{", "[]", '{"problem": "p", "solution": "none", "type": "A"}', '{"problem": 3, "answer": "1", "type": "A"}'):
        (tmp_path / "bad.jsonl").write_text(lines[0] + "\n" + text)
        with pytest.raises(BadInput, match=r"bad.jsonl:2: no problem of MATH"):
            mathqa.tasks("test", str(tmp_path / "bad.jsonl"))
    for split, data, says in (("dev", None, "--split dev"), ("test", str(tmp_path / "gone"), "cannot be read")):
        with pytest.raises(BadInput, match=says):
            mathqa.tasks(split, data)


def test_an_episode():
    env = mathqa.Problem("What?", "\\frac{1}{2}", [function("f")], 3)
    assert env.reset() == "What?\nFunctions:\nf(x: integer): Adds 1."
    assert env.step('call[ f( {"x": 1} ) ]') == ("Result: 2", 0.0, False)
    assert env.step("hello")[0].startswith("Error: write call[") and not env.parses("hello") and env.parses("finish[1]")
    assert env.step("call[f]") == ("Error: write call[FUNCTION({...})], its arguments in JSON.", 0.0, True) and env.truncated
    env.reset()
    assert env.step("finish[2]") == ("Wrong.", -1.0, True) and env.step("finish[1/2]") == ("Right.", 1.0, True)
    assert mathqa.Problem("What?", "1", [], 3).reset() == "What?"


def test_built_in_problems():
    """By hand, one of each family; the splits share none; right helpers give the key, wrong ones do not."""
    assert [mathqa.solved(kind, numbers) for kind, numbers in (
        ("number theory", {"n": 60}), ("counting", {"n": 5, "k": 2}), ("algebra", {"b": 5, "c": 6}), ("sequences", {"a": 1, "b": 2, "n": 5}),
        ("remainders", {"a": 2, "k": 5, "m": 7}))] == [12, 10, 13, 8, 4]
    train, test = (mathqa.tasks(split, limit=100) for split in ("train", "test"))
    assert not {t.make().text for t in train} & {t.make().text for t in test}
    for task in test[:15]:
        env = task.make()
        kind, numbers = mathqa.understood(env.reset())
        _, _, _, name, about, *codes = mathqa.FAMILIES[kind]
        told = [toolbox.call([function(name, code=code, arguments={n: {"type": "integer"} for n in numbers})], name, json.dumps(numbers))
                for code in codes]
        assert told[0] == f"Result: {env.answer}" and told[1] != told[0]
    alone = [mathqa.expert(t.make().reset(), ())[1] == f"finish[{t.make().answer}]" for t in mathqa.tasks("test", limit=400)]
    assert .3 < sum(alone) / 400 < .5
    with pytest.raises(BadInput, match="does not know this problem"):
        mathqa.expert("What is one and one?", ())


def test_a_remote_proposer_is_sent_the_tools(monkeypatch):
    """And its calls come back as JSON."""
    from types import SimpleNamespace

    from others.remote import RemoteAgent
    sent = []

    async def complete(messages, **given):
        sent.append(given)
        call = SimpleNamespace(function=SimpleNamespace(name="add_function", arguments=json.dumps(ADD["arguments"])))
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=None, tool_calls=[call]))], usage=None)
    import asyncio
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        remote = RemoteAgent("http://localhost:1/v1#m", "Solve.", 10, 0.0, f"{folder}/replies.jsonl")
        monkeypatch.setattr(remote, "client", lambda: SimpleNamespace(chat_completion=complete))
        t = buffer.Trajectory(id="1", task="t")
        t.add("Propose.", 0, "task")
        text = asyncio.run(remote.reply(t, "propose")).text
    assert names(toolbox.act([], optimize.actions_in(text)[0])) == ["f"] and sent[0]["tools"] == toolbox.tools()
    assert re.match(r"\[", text)
