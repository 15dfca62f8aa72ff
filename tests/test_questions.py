"""GSM8K and HotpotQA: official formats, parsers and metrics, the built-in worlds and their scripted players."""
import http.server
import json
import re
import threading
from fractions import Fraction

import pytest
from conftest import run_evaluate, run_explore

import buffer
import envs
from envs import gsm8k, hotpotqa
from errors import BadInput


def played(task, world, careless=False, max_steps=8):
    """Play a task with its expert -> (the environment at its end, the steps, the last reward)."""
    env, steps, done = task.make(max_steps=max_steps), [], False
    first = env.reset()
    while not done:
        _, action = world.expert(first, tuple(steps), careless)
        observation, reward, done = env.step(action)
        steps.append((action, observation))
    return env, steps, reward


# ------------------------------------------------------------------------------------------------------------------ GSM8K

@pytest.mark.parametrize("text, wanted", [
    ("1,000", 1000), ("$5.50", "11/2"), ("-3", -3), ("8.0", 8), ("18 eggs.", 18), ("18,", 18), ("18.", 18), ("3/4", "3/4"),
    ("1 1/2", "3/2"), ("5 or 7", 7), ("none", None), ("", None), ("#### -3", -3), ("10-3", 3), ("10 - 3", 3), ("$-5", -5),
    ("-$5.50", "-11/2"), (".5", "1/2"), ("1,234,567.5", "2469135/2"), ("3,4", 4), ("50%", 50), ("finish[7]", 7), ("x=5", 5),
    ("2 + 2 = 4", 4), ("\u22127", -7), ("7 / 2", "7/2"), ("1/0", None), ("12.50.", "25/2"), ("$ 5", 5), ("0", 0), ("(-4)", -4),
    ("The answer is 12, not 13. #### 12 (of 20)", 20), ("So the answer is 6", 6), ("She pays $1,050.75 now", "4203/4"),
    ("the year 2,024, then", 2024)])
def test_number(text, wanted):
    assert gsm8k.number(text) == (None if wanted is None else Fraction(wanted))


@pytest.mark.parametrize("answer, reward", [("finish[18]", 1), ("18.0 eggs.", 1), ("$18", 1), ("finish[17]", -1),
                                            ("eighteen", -1)])
def test_an_answer_is_compared_as_a_number(answer, reward):
    env = gsm8k.Question("Nine and nine?", Fraction(18))
    assert env.reset() == "Nine and nine?"
    assert env.step(answer)[1:] == (reward, True) and env.won == (reward == 1)
    assert env.parses(answer) == (answer != "eighteen")


OFFICIAL = [{"question": "Ann has 2 pens and\nbuys 3.  How many?", "answer": "2+3 = <<2+3=5>>5 pens.\n#### 5"},
            {"question": "A car of $1,200 loses a third. What is left?", "answer": "A third is <<1200/3=400>>400.\n"
             "So <<1200-400=800>>800 are left.\n#### 1,800"}]


def test_official_gsm8k(tmp_path, monkeypatch):
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(r) + "\n" for r in OFFICIAL))
    tasks = {t.id: t for t in envs.tasks("gsm8k", data=tmp_path)}
    assert {t.kind for t in tasks.values()} == {"1 marks", "2 marks"} and set(tasks) == {"test/0", "test/1"}
    assert tasks["test/0"].make().reset() == "Ann has 2 pens and buys 3. How many?" and tasks["test/1"].make().key == 1800
    assert gsm8k.solution(OFFICIAL[0]["answer"]) == "2+3 = 5 pens."
    question = tasks["test/1"].make().reset()
    assert gsm8k.expert(question, ()) == ("A third is 400. So 800 are left.", "finish[1800]")
    assert gsm8k.expert(question, (), careless=True)[1] == "finish[1801]"
    other = tasks["test/0"].make().reset()
    monkeypatch.setattr(gsm8k, "WORKED", {q: gsm8k.WORKED[q] for q in (question, other)})
    assert gsm8k.pose("test/1", question, "x") == f"{other} Answer: 5" and gsm8k.pose("", question, "x", True).endswith(" 6")
    first, = envs.tasks("gsm8k", data=tmp_path / "test.jsonl", limit=1)
    assert first.id == envs.tasks("gsm8k", data=tmp_path)[0].id


@pytest.mark.parametrize("line, message", [
    ("{", "test.jsonl:2: no GSM8K question"), ('{"question": "a"}', "test.jsonl:2: no GSM8K question"),
    ("[]", "test.jsonl:2: no GSM8K"),
    ('{"question": "a", "answer": "5"}', "test.jsonl:2: the answer has no number"),
    ('{"question": "a", "answer": "#### many"}', "test.jsonl:2: the answer has no number")])
def test_broken_gsm8k(tmp_path, line, message):
    (tmp_path / "test.jsonl").write_text(json.dumps(OFFICIAL[0]) + "\n" + line + "\n")
    with pytest.raises(BadInput, match=message):
        envs.tasks("gsm8k", "test", data=tmp_path)
    with pytest.raises(BadInput, match="train.jsonl cannot be read"):
        envs.tasks("gsm8k", "train", data=tmp_path)


def test_built_in_problems():
    """Four lengths in turn; the expert solves all, and the careless one none, with one wrong step at least."""
    tasks = envs.tasks("gsm8k", "train", limit=200)
    assert [t.kind for t in tasks[:4]] == ["1 step", "2 steps", "3 steps", "4 steps"]
    for task in tasks:
        env = task.make()
        question = env.reset()
        thought, action = gsm8k.expert(question, ())
        assert len(re.findall(r" is \d+ \.", thought)) == int(task.kind[0]) and env.step(action)[1] == 1
        numbers = [int(n) for n in re.findall(r"\d+", question + thought)]
        assert 0 < min(numbers) and max(numbers) <= gsm8k.TOP
        assert env.step(gsm8k.expert(question, (), careless=True)[1])[1] == -1


def test_no_problem_of_the_test_split_is_in_the_training_split():
    """Not even with other names and things: the numbers and operations are others."""
    def bare(split):
        return {re.sub(r"\b[A-Z]\w+|" + "|".join(gsm8k.THINGS), "_", t.make().reset())
                for seed in range(3) for t in envs.tasks("gsm8k", split, limit=400, seed=seed)}
    train, test = bare("train"), bare("test")
    assert not train & test and len(test) > 600
    assert [t.make().reset() for t in envs.tasks("gsm8k", "test", limit=5, seed=1)] == \
        [t.make().reset() for t in envs.tasks("gsm8k", "test", limit=5, seed=1)]


def test_an_analogous_problem_has_the_same_operations_and_a_right_key():
    for task in envs.tasks("gsm8k", "train", limit=40):
        env = task.make()
        first = env.reset()
        words = gsm8k.pose(task.id, first, "chance")
        new = gsm8k.analogous(task, env, words)
        assert [word for word, *_ in gsm8k.changes(new.text)[1]] == [word for word, *_ in gsm8k.changes(first)[1]]
        assert new.text != first and "Answer" not in new.text and new.step(gsm8k.expert(new.text, ())[1])[1] == 1
        wrong = gsm8k.analogous(task, env, gsm8k.pose(task.id, first, "chance", careless=True))
        assert wrong.text == new.text and wrong.key != new.key
    assert gsm8k.analogous(task, env, "Question: What is one and one? Answer: 2 pens").key == 2
    assert [gsm8k.analogous(task, env, words) for words in ("What now?", "Answer: 5", None)] == [None] * 3


# --------------------------------------------------------------------------------------------------------------- HotpotQA

@pytest.mark.parametrize("answer, gold, em, f1", [
    ("The Blue River!", "blue river", True, 1), ("yes", "yes", True, 1), ("yes", "no", False, 0), ("yes it is", "yes", False, 0),
    ("a red house", "the red big house", False, 4 / 5), ("pen", "desk", False, 0), ("", "desk", False, 0),
    ("one one two", "one two two", False, 2 / 3), ("noanswer", "no answer", False, 0), ("U.S.A.", "USA", True, 1)])
def test_the_official_metrics(answer, gold, em, f1):
    assert hotpotqa.exact_match(answer, gold) == em and hotpotqa.f1(answer, gold) == pytest.approx(f1)


PAGES = {"Old Mill": ["The Old Mill stands in Elm.", " It was built in 1800.", " It grinds corn.", " Tom owned the mill.",
                      " It burnt.",
                      " The mill was rebuilt by Ann."], "Elm": ["Elm is a town."], "Ann Reed": ["Ann Reed is a miller from Elm."]}


def test_the_tool_answers_as_reacts():
    env = hotpotqa.Game("Who rebuilt the Old Mill?", "Ann Reed", hotpotqa.Articles(PAGES), 20)
    assert env.reset() == "Question: Who rebuilt the Old Mill?"
    assert env.step("lookup[mill]") == ("No more results.", 0, False)                    # no article is open
    first = "The Old Mill stands in Elm. It was built in 1800. It grinds corn. Tom owned the mill. It burnt."
    assert env.step("search[old mill]")[0] == env.step("Search[Old Mill ]")[0] == first
    assert env.step("lookup[mill]")[0] == "(Result 1 / 3) The Old Mill stands in Elm."
    assert env.step("lookup[mill]")[0] == "(Result 2 / 3) Tom owned the mill."
    assert env.step("lookup[burnt]")[0] == "(Result 1 / 1) It burnt."                    # another word starts anew
    assert env.step("lookup[mill]")[0] == "(Result 1 / 3) The Old Mill stands in Elm."
    assert env.step("lookup[mill]")[0].startswith("(Result 2 / 3)") and env.step("lookup[mill]")[0].startswith("(Result 3 / 3)")
    assert env.step("lookup[mill]")[0] == env.step("lookup[mill]")[0] == "No more results."
    missed = env.step("search[Ann]")[0]
    assert missed.startswith("Could not find Ann. Similar: ['Ann Reed', 'Old Mill'") and missed.endswith("].")
    assert env.step("lookup[mill]")[0] == "No more results."  # the last article stays open, the place too
    assert env.step("lookup[corn]")[0] == "(Result 1 / 1) It grinds corn."
    assert env.step("hello") == ("Invalid action: hello", 0, False) and not env.parses("hello") and env.parses("search[x]")
    assert env.step("finish[the Ann Reed]") == ("Episode finished, reward = 1", 1, True)
    assert env.won and not env.truncated and env.metrics == {"f1": 1}


def test_wrong_answers_and_the_step_limit():
    env = hotpotqa.Game("Who?", "Ann Reed", hotpotqa.Articles(PAGES), 2)
    env.reset()
    assert env.step("finish[Ann]") == ("Episode finished, reward = 0", -1, True) and env.metrics == {"f1": pytest.approx(2 / 3)}
    env.reset()
    assert env.metrics == {"f1": 0} and not env.step("search[Elm]")[2]
    assert env.step("search[Elm]") == ("Elm is a town.", 0, True) and env.truncated and not env.won
    env.reset()
    env.step("search[Elm]")
    assert env.step("finish[Ann Reed]")[2] and env.won and not env.truncated             # in the last step


RECORD = {"_id": "a1", "question": "Who rebuilt the Old Mill?", "answer": "Ann", "type": "bridge", "level": "hard",
          "supporting_facts": [["Old Mill", 5]], "context": [[t, s] for t, s in PAGES.items()]}


@pytest.mark.parametrize("form", ["list", "lines", "hub"])
def test_official_hotpotqa(tmp_path, form):
    record, file = dict(RECORD), tmp_path / "hotpot_dev_distractor_v1.json"
    if form == "hub":
        record = {**RECORD, "id": record.pop("_id"), "context": {"title": list(PAGES), "sentences": list(PAGES.values())}}
        del record["_id"]
    records = [record, {**record, "question": "Where is it?", "answer": "Elm", "type": "comparison"}]
    file.write_text(json.dumps(records) if form == "list" else "".join(json.dumps(r) + "\n" for r in records))
    for data in (tmp_path, file):
        tasks = envs.tasks("hotpotqa", data=data, seed=1)
        assert {t.kind for t in tasks} == {"bridge", "comparison"} and tasks[0].split == "dev"
    env = next(t for t in tasks if t.kind == "bridge").make()
    assert env.reset() == "Question: Who rebuilt the Old Mill?" and env.step("search[elm]")[0] == "Elm is a town."


@pytest.mark.parametrize("content, message", [
    ("[{]", "no JSON"), ('{"question": "a"}\n', "record 1 is no HotpotQA question"), ("{}\n{\n", ":2: no JSON"),
    ("[3]", "record 1 is no")])
def test_broken_hotpotqa(tmp_path, content, message):
    (tmp_path / "hotpot_train_v1.1.json").write_text(content)
    with pytest.raises(BadInput, match=message):
        envs.tasks("hotpotqa", "train", data=tmp_path)
    with pytest.raises(BadInput, match="none of hotpot_dev_distractor_v1.json, hotpot_dev_fullwiki_v1.json is there"):
        envs.tasks("hotpotqa", "dev", data=tmp_path)


def test_built_in_questions():
    """The expert answers all within the limit of the paper's program (6 steps); the careless one wins what is in sight, and
    never looks anything up."""
    tasks = envs.tasks("hotpotqa", "train", limit=200, seed=2)
    assert {t.kind for t in tasks} == set(hotpotqa.QUESTIONS)
    assert all(played(t, hotpotqa, max_steps=6)[0].won for t in tasks)
    careless = [played(t, hotpotqa, True) for t in tasks]
    assert not any(action.startswith("lookup") for _, steps, _ in careless for action, _ in steps)
    assert 0.1 < sum(env.won for env, _, _ in careless) / len(tasks) < 0.4
    answers = [t.make().answer for t in tasks if t.kind == "comparison"]
    assert 0.3 < answers.count("yes") / len(answers) < 0.7


def test_worlds_differ_and_come_again():
    worlds = [hotpotqa.world(name) for name in ("train 0 0", "train 0 1", "dev 0 0")]
    born = [{(x, y) for (x, relation), y in w.fact.items() if relation == "born"} for w in worlds]
    assert not born[0] & born[1] and not born[0] & born[2]
    hotpotqa.world.cache_clear()
    assert hotpotqa.world("train 0 0").fact == worlds[0].fact and hotpotqa.world("train 0 0").wiki.pages == worlds[0].wiki.pages


def test_an_analogous_question_in_the_same_world():
    for task in envs.tasks("hotpotqa", "train", limit=10, seed=3):
        env = task.make(8)
        first = env.reset()
        new = hotpotqa.analogous(task, env, hotpotqa.pose(task.id, first, "chance"))
        assert new.wiki is env.wiki and new.max_steps == 8
        assert played(type(task)("x", task.kind, "train", lambda max_steps, new=new: new), hotpotqa)[0].won
    assert hotpotqa.analogous(task, env, hotpotqa.pose(task.id, first, "chance", careless=True)).answer == "unknown"
    assert hotpotqa.analogous(task, env, "Who? Answer:") is hotpotqa.analogous(task, env, "Who?") is None


def test_the_scripted_players_say_that_official_questions_are_not_theirs():
    for world, question in ((gsm8k, "What is love?"), (hotpotqa, "Question: What is love?")):
        with pytest.raises(BadInput, match="leave out --data"):
            world.expert(question, ())


def test_evaluation_reports_f1(tmp_path, capsys):
    run_evaluate("--agent", "expert", "careless=expert:1", "--env", "hotpotqa", "--limit", 20, "--out", tmp_path / "e")
    metrics = json.loads((tmp_path / "e" / "metrics.json").read_text())
    assert metrics["split"] == "dev" and metrics["agents"][0]["metrics"] == {"f1": 1} \
        and metrics["agents"][1]["metrics"]["f1"] < 0.6
    assert re.search(r"^f1 +100.0% ", capsys.readouterr().out, re.MULTILINE)


# ----------------------------------------------------------------------------------------------------------- live Wikipedia

@pytest.fixture
def wikipedia(monkeypatch):
    """A server that speaks as much of Wikipedia's API as the tool asks for; it counts the requests."""
    class Handler(http.server.BaseHTTPRequestHandler):
        asked = []

        def do_GET(self):
            self.asked.append((self.path, self.headers["User-Agent"]))
            if "titles=Elm" in self.path:
                answer = {"query": {"pages": {"1": {"extract": "Elm is a town. It is old.\nIt has a mill."}}}}
            elif "titles=" in self.path:
                answer = {"query": {"pages": {"-1": {"missing": ""}}}}
            else:
                answer = {"query": {"search": [{"title": "Elm"}, {"title": "Elm Street"}]}}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *args):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(hotpotqa.LiveWikipedia, "api", f"http://127.0.0.1:{server.server_port}/w/api.php")
    monkeypatch.setattr(hotpotqa.LiveWikipedia, "pause", 0.0)
    yield Handler.asked
    server.shutdown()
    server.server_close()


def test_live_wikipedia(wikipedia, tmp_path):
    (tmp_path / "hotpot_dev_distractor_v1.json").write_text(json.dumps([RECORD]))
    env = envs.tasks("hotpotqa", data=tmp_path, wiki="live")[0].make()
    env.reset()
    assert env.step("search[Elm]")[0] == "Elm is a town. It is old. It has a mill."
    assert env.step("lookup[mill]")[0] == "(Result 1 / 1) It has a mill."
    assert env.step("search[Oak]")[0] == "Could not find Oak. Similar: ['Elm', 'Elm Street']."
    env.step("search[Elm]")
    assert len(wikipedia) == 3 and all("parley" in agent for _, agent in wikipedia)        # what is known is not asked again


def test_live_wikipedia_offline(monkeypatch):
    monkeypatch.setattr(hotpotqa.LiveWikipedia, "api", "http://127.0.0.1:9/w/api.php")
    with pytest.raises(BadInput, match="--wiki live: no answer from .*; check the network"):
        hotpotqa.LiveWikipedia().find("Elm")
    with pytest.raises(BadInput, match="built-in worlds are not on Wikipedia"):
        envs.tasks("hotpotqa", wiki="live")


def test_explore_writes_the_metrics(tmp_path):
    run_explore("--agent", "expert", "--env", "hotpotqa", "--limit", 3, "--out", tmp_path / "x.jsonl")
    assert [t.metrics for t in buffer.read(tmp_path / "x.jsonl")] == [{"f1": 1.0}] * 3
