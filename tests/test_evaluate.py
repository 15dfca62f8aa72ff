"""Intervals, tables and averages against hand-made episodes, and the files an evaluation leaves behind."""
import json
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from conftest import SHORT, run_evaluate, stop_at

import buffer
import evaluate
import explore
from buffer import OWN, SYSTEM
from errors import BadInput

ROOT = Path(__file__).parent.parent


def episode(task, kind, won, prompt=None, actions=1):
    """An episode with so many actions, whose prompt had so many tokens (None: nobody counted)."""
    t = buffer.Trajectory(id=task, task=task, kind=kind, success=won)
    t.add("a house", SYSTEM, "observation").tokens = None if prompt is None else [0] * (prompt - 1)
    t.add("Thought:", SYSTEM, "prompt").tokens = None if prompt is None else [0]
    for _ in range(actions):
        t.add("go", OWN, "act").tokens = [1, 2, 3]
    t.add("end", SYSTEM, "observation", 1 if won else -1).tokens = [0] * 9
    return t


FIRST = [episode("a", "heat", True, 10, 2), episode("b", "heat", False, 20, 4), episode("c", "cool", True, 30, 6)]
SECOND = [episode("a", "heat", False, 10, 2), episode("b", "heat", False, 20, 4), episode("c", "cool", True, 30, 6)]


@pytest.mark.parametrize("won, n, low, high", [
    (45, 95, .3763, .5731), (0, 10, 0, .2775), (10, 10, .7225, 1), (5, 10, .2366, .7634), (1, 1, .2065, 1)])
def test_wilson_interval(won, n, low, high):
    """Its ends are the rates x from which won / n is 1.96 standard deviations away: (won / n - x)^2 = 1.96^2 x (1 - x) / n."""
    ends = evaluate.wilson(won, n)
    assert ends == pytest.approx((low, high), abs=6e-5)
    for x in ends:
        assert (won / n - x) ** 2 == pytest.approx(1.96 ** 2 * x * (1 - x) / n, abs=1e-12)


def test_wilson_interval_stays_between_0_and_1():
    for n in range(1, 300):
        assert 0 <= evaluate.wilson(0, n)[0] and evaluate.wilson(n, n)[1] <= 1
    assert "-0.0%" not in evaluate.table([evaluate.measure("x", [[episode(str(i), "heat", False) for i in range(10)]])])


def test_prompt_is_what_is_read_before_the_agents_first_word():
    assert evaluate.prompt_tokens(FIRST[0]) == 10
    assert evaluate.prompt_tokens(episode("a", "heat", True)) is None


def test_success_is_averaged_over_runs_and_the_best_run_is_named():
    m = evaluate.measure("x", [SECOND, FIRST])
    assert m["success"] == pytest.approx({"heat": .25, "cool": 1, "all": .5})
    assert m["best"] == pytest.approx({"heat": .5, "cool": 1, "all": 2 / 3})
    assert m["n"] == {"heat": 2, "cool": 1, "all": 3} and (m["tasks"], m["runs"]) == (3, 2)
    assert m["interval"] == pytest.approx(evaluate.wilson(3, 6))
    assert (m["prompt_tokens"], m["steps"], m["reward"]) == pytest.approx((20, 4, 0))


def test_table_has_a_column_an_agent_and_a_row_a_kind():
    text = evaluate.table([evaluate.measure("x", [SECOND, FIRST]), evaluate.measure("why", [FIRST, FIRST])])
    rows = {cells[0]: cells[1:] for cells in (re.split(r" {2,}", line) for line in text.splitlines())}
    assert rows["success by kind of task"] == ["x", "why"]
    assert rows["heat (2)"] == ["25.0%", "50.0%"] and rows["cool (1)"] == ["100.0%", "100.0%"]
    assert rows["all (3)"] == ["50.0%", "66.7%"] and rows["best of 2 runs"] == ["66.7%", "66.7%"]
    assert rows["tokens of the prompt"] == ["20", "20"] and rows["actions an episode"] == ["4.0", "4.0"]
    assert len({len(line) for line in text.splitlines()}) == 1


def test_table_of_an_expert_has_no_prompt_and_one_run_has_no_best():
    text = evaluate.table([evaluate.measure("expert", [[episode("a", "heat", True)]])])
    assert text.splitlines()[-1].split() == ["tokens", "of", "the", "prompt", "-"] and "best" not in text


def test_rows_of_the_summary():
    assert evaluate.rows([evaluate.measure("x", [FIRST])]) == [
        {"name": "x", "metric": "success", "value": pytest.approx(2 / 3), "n": 3},
        {"name": "x", "metric": "success heat", "value": .5, "n": 2}, {"name": "x", "metric": "success cool", "value": 1, "n": 1}]


def test_tasks_solved_so_far_add_up_along_a_curve(tmp_path, capsys, monkeypatch):
    """The first point solves a and c, the second b alone: 2 of 3, then all 3. Beside other agents the table has no such row."""
    third = [episode("a", "heat", False), episode("b", "heat", True), episode("c", "cool", False)]
    monkeypatch.setattr(evaluate, "play", lambda name, args, tasks: [FIRST if name == "x 0" else third])
    run_evaluate("--agent", "x 1=second", "x 0=first", "--limit", 3, "--out", tmp_path / "eval", "--summary", tmp_path / "s.json")
    assert re.search(r"by one of those so far +100.0% +66.7%\n", capsys.readouterr().out)           # by number, not by place
    found = [r["value"] for r in json.loads((tmp_path / "s.json").read_text())["rows"] if r["metric"] == "accumulated success"]
    assert found == pytest.approx([1, 2 / 3])
    run_evaluate("--agent", "x 0=first", "y=second", "--limit", 3, "--out", tmp_path / "other")
    assert "so far" not in capsys.readouterr().out


def test_tasks_solved_so_far_are_averaged_over_runs():
    """Of three tasks the first point solves 2 and 1 in two runs; with the second point it is 3 and 1. Another curve is apart."""
    third = [episode("a", "heat", False), episode("b", "heat", True), episode("c", "cool", False)]
    played = {"x 0": [FIRST, SECOND], "x 1": [third, SECOND], "y 0": [third, third]}
    results = [evaluate.measure(name, runs) for name, runs in played.items()]
    evaluate.accumulate(results, played)
    assert [r["accumulated"] for r in results] == pytest.approx([1 / 2, 2 / 3, 1 / 3])


def test_a_stopped_evaluation_goes_on(tmp_path, monkeypatch):
    """What was played is kept, whole agents and single episodes; the result is that of one go. Another command is refused."""
    words = ["--agent", "x=expert", "y=expert:1", "--limit", 6, "--slots", 1]
    run_evaluate(*words, "--out", tmp_path / "whole")
    played = stop_at(monkeypatch, 9)
    with pytest.raises(KeyboardInterrupt):
        run_evaluate(*words, "--out", tmp_path / "eval")
    with pytest.raises(BadInput, match="args.json: what is there was begun with another --max-steps .50.; give the same"):
        run_evaluate(*words, "--max-steps", 9, "--out", tmp_path / "eval")
    run_evaluate(*words, "--out", tmp_path / "eval")
    assert len(played) == 9 + 4
    for name in ("x.0.jsonl", "y.0.jsonl", "metrics.json"):
        assert (tmp_path / "eval" / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert sorted(p.name for p in (tmp_path / "eval").iterdir()) == ["metrics.json", "x.0.jsonl", "y.0.jsonl"]


def test_an_unfinished_evaluation_of_others_is_not_lost(tmp_path, monkeypatch):
    """Another command in its folder is refused; --overwrite forgets all that was there."""
    stop_at(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        run_evaluate("--agent", "c=expert", "--limit", 5, "--slots", 1, "--out", tmp_path / "eval")
    with pytest.raises(BadInput, match="begun with another --agent"):
        run_evaluate("--agent", "d=expert:1", "--limit", 5, "--out", tmp_path / "eval")
    run_evaluate("--agent", "c=expert", "--limit", 5, "--slots", 2, "--out", tmp_path / "eval", "--summary", tmp_path / "s.json")
    run_evaluate("--agent", "d=expert:1", "--limit", 2, "--out", tmp_path / "eval", "--overwrite")
    assert sorted(p.name for p in (tmp_path / "eval").iterdir()) == ["d.0.jsonl", "metrics.json"]


def test_a_failure_after_the_last_episode_loses_nothing(tmp_path, monkeypatch):
    words = ["--agent", "x 0=expert", "--limit", 2, "--out", tmp_path / "eval"]
    with pytest.raises(BadInput, match="--summary .*: is a folder; give the name of a file"):
        run_evaluate(*words, "--summary", tmp_path)
    assert not (tmp_path / "eval").exists()                             # said before anything was played
    with monkeypatch.context() as full_disk, pytest.raises(OSError):
        full_disk.setattr(evaluate, "rows", mock.Mock(side_effect=OSError))
        run_evaluate(*words, "--summary", tmp_path / "s.json")
    monkeypatch.setattr(explore, "episode", None)                       # nothing is played again
    run_evaluate(*words, "--summary", tmp_path / "s.json")
    assert (tmp_path / "eval" / "metrics.json").exists()


def test_two_agents_of_one_name_are_refused(tmp_path):
    with pytest.raises(BadInput, match="two agents have the same name"):
        run_evaluate("--agent", "a b=expert", "a_b=expert:1", "--limit", 1, "--out", tmp_path / "eval")


def test_curve_is_drawn(tmp_path):
    """Of the agents named NAME N; what is wrong is said in one line."""
    pytest.importorskip("matplotlib")
    results = [evaluate.measure(name, [runs]) for name, runs in (("tuned", FIRST), ("LTC 0", SECOND), ("LTC 1", FIRST))]
    (tmp_path / "metrics.json").write_text(json.dumps({"agents": results}))
    draw = [sys.executable, "recipes/plot.py", "curve", str(tmp_path), "--out"]
    subprocess.run([*draw, str(tmp_path / "new" / "curve.png")], check=True, cwd=ROOT)
    assert (tmp_path / "new" / "curve.png").read_bytes().startswith(b"\x89PNG")
    for text, out, message in ((json.dumps({"agents": results[:1]}), "c.png", "no agent there is named NAME N"),
                               ("{}", "c.png", "no metrics of evaluate.py .KeyError"),
                               ("{}", "c.curve", "pictures are PNG; give a")):
        (tmp_path / "metrics.json").write_text(text)
        wrong = subprocess.run([*draw, str(tmp_path / out)], cwd=ROOT, capture_output=True, text=True)
        assert wrong.returncode == 2 and re.search(message, wrong.stderr) and len(wrong.stderr.splitlines()) == 1


def test_readable_shows_who_said_what():
    t = buffer.Trajectory(id="a", task="heat-1", success=True, reward=1.0)
    for text, source, role in [("Do it.", SYSTEM, "instruction"), ("A room.", SYSTEM, "observation"),
                               ("Action:", SYSTEM, "prompt"), ("go", OWN, "act"), ("Won.", SYSTEM, "observation")]:
        t.add(text, source, role)
    assert evaluate.readable(t).splitlines() == ["--- heat-1: won, reward +1", "A room.", "Action: go", "Won."]


def test_an_evaluation_from_agents_to_files(student, tmp_path, capsys):
    """Two names of one agent are played once; the expert wins, the untrained student does not."""
    run_evaluate("--agent", "best=expert", "x 0=" + str(student), "x 1=" + str(student), "--limit", 4, "--runs", 2, *SHORT,
                 "--max-steps", 30, "--max-length", 100, "--out", tmp_path / "eval", "--summary", tmp_path / "summary.json",
                 "--recipe", "test", "--seconds", 100, "--show", 1)
    out = capsys.readouterr().out
    assert out.startswith("--- ") and "best of 2 runs" in out
    metrics = json.loads((tmp_path / "eval" / "metrics.json").read_text())
    assert [a["name"] for a in metrics["agents"]] == ["best", "x 0", "x 1"]
    assert [a["success"]["all"] for a in metrics["agents"]] == [1, 0, 0]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary) == {"recipe", "seed", "seconds", "rows"} and summary["seconds"] >= 100
    assert summary["rows"][0] == {"name": "best", "metric": "success", "value": 1, "n": 4}
    files = sorted(p.name for p in (tmp_path / "eval").glob("*.jsonl"))
    assert files == ["best.0.jsonl", "best.1.jsonl", "x_0.0.jsonl", "x_0.1.jsonl"]
    greedy = [[s.tokens for t in buffer.read(tmp_path / "eval" / f"x_0.{run}.jsonl") for s in t.segments] for run in (0, 1)]
    assert greedy[0] == greedy[1]
    with pytest.raises(BadInput, match="metrics.json: is there already"):
        run_evaluate("--agent", "expert", "--limit", 1, "--out", tmp_path / "eval")
