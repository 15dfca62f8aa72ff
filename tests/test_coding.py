"""The coding environment: levels of the reward by hand, official formats, transitions, and problems that can be solved."""
import json

import pytest

from envs import coding
from envs.sandbox import Sandbox
from errors import BadInput


@pytest.fixture(scope="module")
def box():
    with Sandbox(seconds=2.0) as box:
        yield box


PROBLEM = coding.Problem("p", "f doubles x, then adds 3.", "f", ("assert f(1) == 5", "assert f(2) == 7"))
SUM = "def aux(x): return x * 2 + 3"
AUX, MAIN = "def aux(x): return x * 2", "def f(x): return aux(x) + 3"


@pytest.mark.parametrize("aux, main, reward, passed", [
    (AUX, MAIN, 1.0, 1), (f"```python\n{AUX}\n```", f"Here:\n```\n{MAIN}\n``` That is it.", 1.0, 1),
    ("def aux(x): return", MAIN, .4, 0),                             # nothing passes: the call earns nothing
    (AUX, "def f(x): return x * 2 + 3", .8, 1),                      # solved alone
    ("def aux(x): return x * 2 + 3", "def f(x): return aux(x)", .9, 1),                          # a mere wrapper
    ("def aux(x): return x * 2 + 3", "def f(x):\n    '''Text.'''\n    return aux(x)", .9, 1),
    (AUX, "def f(x): return aux(x) + 3 if x == 1 else 0", .4 + .2 + .2, .5),                     # one of two tests
    ("def aux(x: return", MAIN, .2, 0), ("x = 1", MAIN, .3, 0), ("", "", .2, 0), ("no", "no way", .1, 0),
    ("def aux(x): return x * 2", "def g(x): return aux(x) + 3", .3, 0),
    (SUM, "def f(x): return aux(x=x)", .9, 1), (SUM, "def f(x):\n    y = aux(x)\n    return y", .9, 1),
    (SUM, "def f(x, /): return aux(x)", .9, 1), ("def aux(x, y): return x * 2 + y", "def f(x): return aux(x, 3)", 1.0, 1),
    (SUM, "def aux(x): return x\ndef f(x): return aux(x) * 2 + 3", .8, 1),                     # a helper of its own
    (AUX, "from __future__ import annotations\n" + MAIN, 1.0, 1), (f"```python3\n{AUX}\n```", f"```Python\n{MAIN}", 1.0, 1),
    (AUX, "class A:\n    def f(x): return aux(x) + 3", .3, 0),       # at top level only
    (AUX, "raise SystemExit\n" + MAIN, .4, 0), (AUX, "\x00", .2, 0)])
def test_the_levels_of_the_reward(box, aux, main, reward, passed):
    judged = coding.judge(PROBLEM, [aux, main], sandbox=box)
    assert judged.reward == pytest.approx(reward) and judged.passed == passed


def test_the_levels_are_told(box):
    told = [text for _, text in coding.judge(PROBLEM, [AUX, "def f(x): return aux(x)"], sandbox=box).levels]
    assert told == ["aux is Python.", "f is Python.", "aux is defined.", "f is defined.",
                    "0 of 2 tests pass. assert f(1) == 5: AssertionError:", "f uses aux.", "f does nothing beyond aux."]
    assert [text for _, text in coding.judge(PROBLEM, ["(", "x = 1"], sandbox=box).levels] == [
        "aux is not Python.", "f is Python.", "aux is not defined.", "f is not defined."]


@pytest.mark.parametrize("which, wanted", [(1, "a"), (2, "ab"), (0, "abc"), (None, "abc"), ("all", "abc"), (-1, "c"), (-2, "bc"),
                                           ("2", "ab"), (9, "abc")])
def test_slices_of_the_tests(which, wanted):
    assert "".join(coding.sliced(tuple("abc"), which)) == wanted


def test_transitions(box):
    """Plain tells what was said; feedback, what was found with the tests of the slice; edits, to each agent its own."""
    ask = ("f doubles x, then adds 3.", [AUX, "def f(x): return aux(x)"], 2)
    plain = coding.transition("plain", PROBLEM)(*ask)
    said = f"f doubles x, then adds 3.\naux so far: {AUX}\nf so far: def f(x): return aux(x)\n"
    assert plain == [f"{said}Look at it again.\nRevise your function."] * 2
    first, = set(coding.transition("level_feedback", PROBLEM, sandbox=box)(*ask, [["a"], ["b"]], [["c"], ["d"]]))
    assert "0 of 1 tests pass. assert f(1) == 5: AssertionError:" in first
    assert "0 of 2 tests pass." in coding.transition("level_feedback", PROBLEM, "all", sandbox=box)(*ask)[0]
    asked = []

    def propose(request):
        asked.append(request)
        return 'Well: {"aux": "multiply", "f": "add 3"}'
    one, two = coding.transition("expert_edits", PROBLEM, propose=propose)(*ask)
    assert "Proposed: multiply\n" in one and "Proposed: add 3\n" in two and said.strip() in asked[0] and len(asked) == 1


@pytest.mark.parametrize("reply", ["", "no", "{", '{"aux":' + "[" * 99999 + "}", '{"aux": 1}', "[1]", '{"aux": "x"'])
def test_broken_edits_are_no_edits(reply):
    """After three tries; counted."""
    asked = []
    external = coding.transition("expert_edits", PROBLEM, propose=lambda request: asked.append(request) or reply)
    assert all("Proposed: nothing." in prompt for prompt in external("p", ["a", "b"], 2))
    assert len(asked) == 3 and external.broken == 1
    external("p", ["a", "b"], 2)
    assert external.broken == 2


def test_unknown_transitions():
    with pytest.raises(BadInput, match="external x: choose plain, level_feedback, expert_edits"):
        coding.transition("x", PROBLEM)


def test_each_agent_has_its_own_part():
    helper, main = (coding.format_prompt(PROBLEM, agent, "Do it.") for agent in range(2))
    assert helper.startswith("Do it.\nWrite only the helper function aux") and "Another agent writes f." in helper
    assert main.startswith("Do it.\nWrite only the main function f.")


def test_built_in_problems_have_two_ways(box):
    """Helper and main function of one way solve them; those of different ways hardly ever do."""
    mixed = 0
    for problem in coding.tasks("test", limit=25, seed=3):
        first, code, second, code_2 = steps_of(problem.prompt)
        ways = coding.programs(code, code_2)
        assert problem.solution == "\n".join(ways[0]) and len(set(problem.tests)) == 4
        for way in ways:
            assert coding.judge(problem, way, sandbox=box).reward == pytest.approx(1), (problem, way)
        mixed += coding.judge(problem, (ways[0][0], ways[1][1]), sandbox=box).passed == 1
    assert mixed < 8
    assert coding.tasks("train", limit=3, seed=1) == coding.tasks("train", limit=3, seed=1)
    assert coding.tasks("train", limit=3, seed=1) != coding.tasks("test", limit=3, seed=1)


def steps_of(prompt):
    """Words and code of both steps, read from the prompt."""
    import re
    found = []
    first, second = re.fullmatch(r"f (.*) x, then (.*) that\.", prompt).groups()
    for said in (first, second):
        for words, code, _ in (step for steps in coding.STEPS.values() for step in steps):
            if match := re.fullmatch(words.replace("{n}", r"(\d+)"), said):
                found += [said, code.replace("{n}", match[1] if match.groups() else "")]
    return found


CHECK = """
METADATA = {'author': 'a'}
import math
EPS = 1

def check(candidate):
    wide = 3
    assert candidate(1) == 2
    for i in range(3):
        assert candidate(i) == i + 1, "text"
    assert True, "nothing"
    def other():
        assert False
    wide = 4
    assert abs(candidate(math.e) - wide) < EPS
"""
HUMAN = {"task_id": "H/0", "prompt": "import math\n\ndef other(x):\n    return x\n\ndef inc(x):\n    '''Adds 1.'''\n",
         "entry_point": "inc", "canonical_solution": "    return other(x) + 1\n", "test": CHECK}
MBPP = {"task_id": 7, "prompt": "Add 1.", "code": "def one():\n    return 1\ndef inc(x):\n    return x + one()",
        "test_imports": ["import math"], "test_list": ["assert inc(1) == 2", "assert inc(math.inf) == math.inf"]}


def test_official_formats(box, tmp_path):
    """Tests are split; what stands before them in the file and in the prompt is there for all of them."""
    (tmp_path / "human.jsonl").write_text(json.dumps(HUMAN) + "\n\n")
    (tmp_path / "coop.json").write_text(json.dumps([{k: v for k, v in HUMAN.items() if k != "canonical_solution"}]))
    (tmp_path / "mbpp.json").write_text(json.dumps([MBPP]))
    human, coop, mbpp = (coding.read(tmp_path / name)[0] for name in ("human.jsonl", "coop.json", "mbpp.json"))
    assert (human.id, human.entry_point, len(human.tests)) == ("H/0", "inc", 3)
    assert coop.solution == "" and coop.tests == human.tests
    assert (mbpp.id, mbpp.entry_point, len(mbpp.tests)) == ("mbpp/7", "inc", 2)
    for problem in (human, mbpp):
        assert all(box.run(problem.solution, problem.tests).passed)
    assert box.run("def inc(x): return 2", human.tests).passed == [True, False, False]
    joint = coding.judge(coop, ["def aux(x): return other(x)", "def inc(x): return aux(x) + 1"], sandbox=box)
    assert joint.reward == pytest.approx(1)                             # the prompt's own functions are there
    assert coding.tasks("test", tmp_path / "mbpp.json", limit=1) == [mbpp]


@pytest.mark.parametrize("text", ["", "{", "[{}]", "[1]", "[]", json.dumps([{**MBPP, "test_list": []}]),
                                  json.dumps([{**MBPP, "code": "("}]),
                                  json.dumps({**HUMAN, "test": "x = 1"}), json.dumps({**HUMAN, "test": "def check(c): pass"}),
                                  json.dumps([{**MBPP, "test_list": ["assert other(1)"]}])])
def test_broken_files(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BadInput, match="a.json: (no file of HumanEval|there is no problem in it)"):
        coding.read(tmp_path / "a.json")


def test_wrong_names(tmp_path):
    with pytest.raises(BadInput, match="nowhere: no file of HumanEval"):
        coding.read(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="--split dev: coding has train, test"):
        coding.tasks("dev")
