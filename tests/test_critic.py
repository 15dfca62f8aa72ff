"""Weak supervision: a critic's replies and scores, selection, its ledger, the mix with conversations, and the schedule."""
import asyncio
import collections
import json
import math
import re
from argparse import Namespace

import pytest
import torch
from conftest import SHORT, TINY, run_explore, run_train, stop_at, train_args

import agent
import buffer
import explore
import patterns
import train
from buffer import OTHER, OWN, SYSTEM
from envs import words
from errors import BadInput
from others import chat
from others.expert import Oracle

# ------------------------------------------------------------------------------------------------------------- the critic

@pytest.mark.parametrize("reply, wanted", [
    ("7", 7), ("10", 10), ("0", 0), ("8.5", 8.5), (" 7. ", 7), ("7/10", 7), ("Score: 7", 7), ("score : 3", 3),
    ("**Score:** 8", 8),
    ("**Score: 8**", 8), ("All is well. SCORE: 9!", 9), ("Score: 2 at first, but then\nScore: 6", 6),
    ("The calls are right. Score: 4", 4), ("", -1), ("no idea", -1), ("11", -1), ("Score: 11", -1), ("Score: -3", -1),
    ("Score: seven", -1), ("Score: 5 or so. Score: 11", -1),
    ("Score: 8. Score: unknown", -1), ("Score: 1e1", -1), ("Score: nan", -1), ("Score: 3a", -1), ("Note : 7", -1),
    ("得分：8", -1),
    ("I give it a Score", -1), ("7 of 10 people", 7)])
def test_replies_of_critics(reply, wanted):
    """The last "Score:" counts, the prompt's own being the first; what is no number from 0 to 10 is below the lowest."""
    assert patterns.score_of(reply) == wanted


def finished(name="a", score=None, success=True, act="go", source=OWN, round=0):
    t = buffer.Trajectory(id=name, task=name, score=score, success=success, round=round, reward=1.0 if success else -1.0)
    for text, whose, role in (("Do it.", SYSTEM, "instruction"), ("A room.", SYSTEM, "task"), ("Action:", SYSTEM, "prompt"),
                              (act, source, "act"), ("The end.", SYSTEM, "observation")):
        t.add(text, whose, role)
    return t


class Critic:
    """Says what it is told to, and remembers what it read."""
    name = "critic"

    def __init__(self, says):
        self.says, self.read, self.closed = says, [], 0

    async def reply(self, trajectory, role, source):
        self.read.append([s.text for s in trajectory.segments])
        if self.says is None:
            raise agent.Overflow
        return trajectory.add(self.says, source, role)

    def close(self, trajectory):
        self.closed += 1


def test_a_critic_reads_all_and_leaves_no_trace():
    trajectory = finished()
    before = buffer.to_line(trajectory)
    critic = Critic("Score: 3")
    assert asyncio.run(patterns.criticise(critic, trajectory)) == 3 and critic.closed == 1
    assert buffer.to_line(trajectory) == before
    *said, criteria, prompt = critic.read[0]
    assert said == ["Do it.", "A room.", "Action:", "go", "The end."] and prompt == "Score:"
    for check in ("function", "arguments", "errors", "conclusion"):
        assert check in criteria
    critic = Critic(None)                                               # what is too long to read has no score
    assert asyncio.run(patterns.criticise(critic, trajectory)) == -1 and critic.closed == 1


def test_a_local_model_as_critic():
    """It reads with its own tokenizer, and its slots are free again."""
    tokenizer = words.tokenizer_for(["do it room go score 7"], [patterns.CRITERIA], [])
    critic = agent.LocalAgent(agent.make_tiny(tokenizer, 16, 2, 2).eval(), tokenizer, "s", 2, 99, 3, 0.0, student=False)
    trajectories = [finished(str(i)) for i in range(5)]
    asyncio.run(explore.criticise(trajectories, critic, Namespace(slots=2)))
    assert critic.tokens_sampled == 3 * 5 and all(t.score is not None for t in trajectories)      # it has read, and replied
    assert not critic.conversations and len(critic.free) == 2
    assert all(s.tokens is None for t in trajectories for s in t.segments)


def test_an_oracles_errors():
    """At a share of .36 right ones precision is .7 and recall .97; "exact" never errs; 0.36/1 calls all good, right and wrong."""
    pool = [finished(str(i), success=i % 100 < 36) for i in range(5000)]

    def judged(*rates):
        critic, count = Oracle(*rates), collections.Counter()

        async def judge():
            for t in pool:
                score = await patterns.criticise(critic, t)
                assert score in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)
                count[t.success, score > 5] += 1
        asyncio.run(judge())
        called = count[True, True] + count[False, True]
        return count[True, True] / called, count[True, True] / (count[True, True] + count[True, False])
    assert judged(.7, .97) == pytest.approx((.7, .97), abs=.02)
    assert judged(1, 1) == (1, 1) and judged(.36, 1) == (.36, 1)
    assert Oracle(.7, .97).fooled == pytest.approx(.97 * .36 * .3 / (.7 * .64))
    assert asyncio.run(patterns.criticise(Oracle(.5, .5), pool[3])) == asyncio.run(patterns.criticise(Oracle(.5, .5), pool[3]))


# -------------------------------------------------------------------------------------------------------------- selection

SCORES = [7, 9, 9, 3, 8, 9, 5, 9, 2, 8, 1, 6, 4, 7, 9, 0, 3, 8, 5, 6]           # SPEC G11


def pool(scores=SCORES, round=0):
    return [finished(f"{i:02}", score, round=round) for i, score in enumerate(scores)]


def names(chosen):
    return [int(t.id) for t in chosen]


def test_the_best_are_chosen_once():
    """SPEC G11: by score, ties by id, without what was used."""
    used = {buffer.identity(pool()[i]) for i in (1, 5)}
    assert names(buffer.select(pool(), .10, used)) == [2, 7] and names(buffer.select(pool(), .10)) == [1, 2]
    assert names(buffer.select(pool(), .25, used)) == [2, 7, 14, 4, 9]
    assert names(buffer.select(pool(), .01, used)) == [2] and names(buffer.select(pool()[::-1], .10)) == [1, 2]
    hundred = [finished(f"{i:03}", i % 7) for i in range(100)]
    assert [len(buffer.select(hundred, share)) for share in (.29, .57, 1)] == [29, 57, 100]               # whatever floats say
    assert names(buffer.select(pool([1, 2]), 1, {buffer.identity(t) for t in pool([1, 2])})) == []


def test_like_trajectories_are_one():
    """Same task and same actions: the better copy. What was not learnt from does not tell apart."""
    same = [finished("x", 1), finished("x", 5), finished("x", 5, act="stay")]
    same[0].id, same[1].id, same[2].id = "a", "b", "c"
    assert [t.id for t in buffer.select(same, 1)] == ["b", "c"]
    assert buffer.identity(same[0]) == buffer.identity(same[1]) != buffer.identity(same[2])
    assert buffer.identity(finished(act="go", source=SYSTEM)) == buffer.identity(finished(act="stay", source=SYSTEM))
    assert buffer.identity(finished("a")) != buffer.identity(finished("b"))


def test_the_pool_is_this_round_and_what_earlier_ones_left():
    """10 used ones of round 1 do not count, 10 unused ones do: 10% of 30 is 3."""
    first, second = pool(), pool([1] * 20, round=2)
    for t in second:
        t.task += " again"
    used = {buffer.identity(t) for t in first[:10]}
    assert len(buffer.select(first + second, .10, used)) == 3
    assert len(buffer.select(second, .10, {buffer.identity(t) for t in second[:10]})) == 2      # all of this round count


def test_selection_needs_scores():
    with pytest.raises(ValueError, match="trajectory b has no score; explore.py --critic gives one"):
        buffer.select([finished("a", 1), finished("b")], .1)


def test_a_ledger_belongs_to_its_trainings(tmp_path):
    """A training that is begun again replaces its own lines, and nobody else's; a broken ledger is said."""
    ledger = tmp_path / "used"
    assert buffer.ledger(ledger) == []
    buffer.note_use(ledger, "one", pool()[:3])
    buffer.note_use(ledger, "two", pool()[3:5])
    buffer.note_use(ledger, "one", pool()[:2])
    names = [buffer.identity(t) for t in pool()]
    assert buffer.ledger(ledger) == [[names[3], "two"], [names[4], "two"], [names[0], "one"], [names[1], "one"]]
    for broken in ("{", "[1]", "7"):
        ledger.write_text(broken)
        with pytest.raises(BadInput, match="used: no ledger of used trajectories"):
            buffer.ledger(ledger)


# --------------------------------------------------------------------------------------------------- conversations, schedule

def talk(*said):
    return json.dumps({"messages": [{"role": role, "content": text} for role, text in said]})


def test_conversations_become_trajectories(tmp_path):
    (tmp_path / "chat.jsonl").write_text("\n".join([
        talk(("system", "Be brief."), ("user", "Hi."), ("assistant", "Hello.")), "",
        talk(("user", "A?"), ("assistant", "B."), ("user", "C?"), ("assistant", "D."))]))
    first, second = chat.read(tmp_path / "chat.jsonl")
    assert [(s.text, s.source) for s in first.segments] == [("Be brief.", SYSTEM), ("Hi.", SYSTEM), ("Hello.", OWN)]
    assert [s.source for s in second.segments] == [SYSTEM, OWN, SYSTEM, OWN] and first.id != second.id
    assert first.segments[-1].reward == 1
    for wrong in ("{", "[]", '{"messages": 1}', '{"messages": []}', talk(("tool", "x")), '{"messages": [{"role": "user"}]}',
                  '{"messages": [{"role": "user", "content": null}]}', talk(("user", "Nobody?"))):
        (tmp_path / "chat.jsonl").write_text(talk(("assistant", "Hi.")) + "\n" + wrong)
        with pytest.raises(BadInput, match="chat.jsonl:2: no conversation"):
            chat.read(tmp_path / "chat.jsonl")
    (tmp_path / "chat.jsonl").write_text("")
    with pytest.raises(BadInput, match="there is no conversation in it"):
        chat.read(tmp_path / "chat.jsonl")


def test_the_mix_uses_all_before_any_comes_again():
    counts = collections.Counter(chat.mixed(list("abc"), 8, seed=1))
    assert sorted(counts.values()) == [2, 3, 3] and set(chat.mixed(list("abc"), 3)) == set("abc")
    assert chat.mixed(list("abcdef"), 6, 1) == chat.mixed(list("abcdef"), 6, 1) != chat.mixed(list("abcdef"), 6, 2)


def test_the_cosine_of_weak_supervision():
    """SPEC G13."""
    args = train_args("--agent", "x", "--data", "x", "--out", "x", "--schedule", "cosine", "--lr", 5e-5, "--lr-end", 5e-6,
                      "--warm-up", 0)
    rates = {t: args.lr * train.rate(t, 100, args) for t in (0, 25, 50, 75, 99, 100)}
    wanted = {0: 5e-5, 25: 4.340990e-5, 50: 2.75e-5, 75: 1.159010e-5, 99: 5.011102e-6, 100: 5e-6}
    assert rates == {t: pytest.approx(x, rel=1e-6) for t, x in wanted.items()}


# ------------------------------------------------------------------------------------------------------ the stages together

def test_from_scores_to_training(student, tmp_path, monkeypatch):
    """Scored while exploring and afterwards alike; the best half is imitated, failures among them; the mix doubles it; a
    training that is begun anew makes the same choice, another one the next best."""
    run_explore("--agent", student, "--critic", "oracle:0.7/0.97", "--limit", 8, *SHORT, "--out", tmp_path / "a.jsonl")
    run_explore("--agent", student, "--limit", 8, *SHORT, "--out", tmp_path / "b.jsonl")
    run_explore("--criticise", tmp_path / "b.jsonl", "--critic", "oracle:0.7/0.97", "--out", tmp_path / "c.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "c.jsonl").read_text() and not (tmp_path / "a.jsonl.args").exists()
    scored = buffer.read(tmp_path / "a.jsonl")
    assert not any(t.success for t in scored) and len({t.score for t in scored}) > 1
    (tmp_path / "chat.jsonl").write_text(talk(("user", "go to desk 1"), ("assistant", "go")))
    learnt = []
    monkeypatch.setattr(train, "train", lambda policy, tokenizer, samples, *rest: learnt.append(samples))
    words = ["--agent", student, "--data", tmp_path / "a.jsonl", "--loss", "lm", "--top", .25, "--used", tmp_path / "used"]
    run_train(*words, "--out", tmp_path / "one")
    run_train(*words, "--out", tmp_path / "one", "--overwrite")
    run_train(*words, "--out", tmp_path / "two", "--mix", tmp_path / "chat.jsonl")
    one, again, two = ([s["tokens"] for s in samples] for samples in learnt)
    assert len(one) == 2 and one == again and len(two) == 4 and not any(tokens in one for tokens in two)
    assert two[2] == two[3] and len(two[2]) < min(map(len, two[:2]))
    best = sorted(scored, key=lambda t: (-t.score, t.id))
    flat = [buffer.flatten(t) for t in best[:2]]
    assert one == [f["tokens"] for f in flat]
    assert [s["lm"] for s in learnt[0]] == [[float(m == OWN) for m in f["mask"]] for f in flat]          # actions only
    run_train(*words[:-3], 1.0, *words[-2:], "--out", tmp_path / "three")
    with pytest.raises(BadInput, match="all of .* has been used; explore more"):
        run_train(*words, "--out", tmp_path / "four")


def test_a_killed_exploration_is_scored_whole(student, tmp_path, monkeypatch):
    """The episodes that were there already, too; killed while it scores, nothing is played again."""
    words = ["--agent", student, "--critic", "oracle:1/1", "--limit", 6, *SHORT, "--slots", 1]
    run_explore(*words, "--out", tmp_path / "whole.jsonl")
    stop_at(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        run_explore(*words, "--out", tmp_path / "a.jsonl")
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(patterns, "criticise", interrupted)
        run_explore(*words, "--out", tmp_path / "a.jsonl")
    monkeypatch.setattr(explore, "episode", None)
    run_explore(*words, "--out", tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()


def test_a_killed_training_makes_the_same_choice(student, tmp_path, monkeypatch):
    """From its checkpoint it goes on with the very trajectories, whatever others have used since, and ends with the same weights;
    OUT may be written in another way. Conversations are as many as what is learnt from."""
    run_explore("--agent", student, "--critic", "oracle:0.7/0.97", "--limit", 8, *SHORT, "--out", tmp_path / "a.jsonl")
    (tmp_path / "chat.jsonl").write_text(talk(("user", "go to desk 1"), ("assistant", "go")))
    words = ["--agent", student, "--data", tmp_path / "a.jsonl", "--loss", "lm", "--top", .5, "--batch-size", 2,
             "--save-every", 1, "--mix", tmp_path / "chat.jsonl"]
    run_train(*words, "--used", tmp_path / "new" / "whole", "--out", tmp_path / "whole")
    updates, real = [], train.update

    def update(*args):
        updates.append(len(args[2]))
        if len(updates) == 3:
            raise KeyboardInterrupt
        return real(*args)
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(train, "update", update)
        run_train(*words, "--used", tmp_path / "used", "--out", tmp_path / "out")
    buffer.note_use(tmp_path / "used", "another", buffer.read(tmp_path / "a.jsonl"))
    monkeypatch.chdir(tmp_path)
    run_train(*words, "--used", tmp_path / "used", "--out", "out")
    one, two = (agent.load(str(tmp_path / name))[0].state_dict() for name in ("whole", "out"))
    assert all(torch.equal(one[name], two[name]) for name in one) and updates == [2, 2, 2]
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 4                                              # 4 trajectories and 4 conversations, 2 an update


def test_a_critic_behind_a_server(tmp_path, monkeypatch, capsys):
    """It is told the rules of the trajectories' world, has room for its reasons, and is asked again after --overwrite; replies
    without a score are counted."""
    from others.remote import RemoteAgent
    asked = []

    async def ask(self, messages, offered=None):
        asked.append((messages, self.max_tokens, self.temperature))
        return "Fine.\nScore: 8" if len(asked) % 2 else "Fine."
    monkeypatch.setattr(RemoteAgent, "ask", ask)
    run_explore("--agent", "expert", "--env", "apibank", "--limit", 2, "--out", tmp_path / "a.jsonl")
    words = ["--criticise", tmp_path / "a.jsonl", "--critic", "http://127.0.0.1:9/v1#m", "--slots", 1, "--out",
             tmp_path / "b.jsonl"]
    run_explore(*words)
    run_explore(*words, "--overwrite")
    assert len(asked) == 4 and {a[1:] for a in asked} == {(512, 0.0)}
    system, user = (message["content"] for message in asked[0][0])
    assert system.startswith("You are an assistant who helps with calls") and "You judge" in system
    assert "Question: " in user and user.endswith("Score:")
    assert [t.score for t in buffer.read(tmp_path / "b.jsonl")] == [8, -1]
    assert "2 replies, 1 without a score" in capsys.readouterr().err


def test_a_critic_that_fails_is_one_line(tmp_path):
    """However many are waiting for it."""
    import subprocess
    import sys
    run_explore("--agent", "expert", "--env", "apibank", "--limit", 5, "--out", tmp_path / "a.jsonl")
    said = subprocess.run([sys.executable, "explore.py", "--criticise", tmp_path / "a.jsonl", "--critic", "http://host:port/v1#m",
                           "--out", tmp_path / "b.jsonl"], capture_output=True, text=True)
    assert said.returncode == 2 and "Traceback" not in said.stderr and not (tmp_path / "b.jsonl").exists()


async def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("words, message", [
    (["--limit", 1], "give either an --agent who plays, or --criticise FILE and a --critic"),
    (["--agent", "expert", "--criticise", "x", "--critic", "oracle:1/1"], "give either an --agent"),
    (["--criticise", "x"], "give either an --agent"),
    (["--criticise", "nowhere", "--critic", "oracle:1/1"], "nowhere: cannot be read"),
    (["--agent", "expert", "--critic", "expert"], "--critic expert: a scripted player gives no scores"),
    (["--agent", "oracle:1/1"], "--agent oracle:1/1: no model there"),
    (["--agent", "expert", "--critic", "oracle:1"], "write oracle:PRECISION/RECALL"),
    (["--agent", "expert", "--critic", "oracle:0/1"], "write oracle:PRECISION/RECALL"),
    (["--agent", "expert", "--critic", "oracle:2/1"], "write oracle:PRECISION/RECALL"),
    (["--agent", "expert", "--apibank", "x"], "--apibank x: it is for --env apibank; leave it out")])
def test_wrong_arguments_of_a_critic(words, message, tmp_path):
    with pytest.raises(BadInput, match=re.escape(message)):
        run_explore(*words, "--out", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("words, message", [
    (["--loss", "ltc", "--top", .1], "--top 0.1: it is for --loss lm"),
    (["--loss", "contrast", "--mix", "x"], "--mix x: it is for"),
    (["--loss", "lm", "--used", "x"], "--used x: it is for --loss lm with --top"),
    (["--loss", "lm", "--top", .1], "has no score; explore.py --critic gives one"),
    (["--loss", "lm", "--mix", "nowhere"], "nowhere: cannot be read")])
def test_wrong_arguments_of_selection(words, message, student, tmp_path):
    run_explore("--agent", student, "--limit", 1, *SHORT, "--out", tmp_path / "a.jsonl")
    with pytest.raises(BadInput, match=re.escape(message)):
        run_train("--agent", student, "--data", tmp_path / "a.jsonl", "--out", tmp_path / "out", *words)


@pytest.mark.parametrize("share", ["0", "2", "-1", "x", "nan"])
def test_a_share_is_a_share(share, capsys):
    with pytest.raises(SystemExit, match="2"):
        train_args("--agent", "x", "--data", "x", "--out", "x", "--top", share)
    assert "argument --top" in capsys.readouterr().err


def test_the_tiny_agents_vocabulary_has_the_conversations(tmp_path):
    run_explore("--agent", "expert", "--limit", 2, "--out", tmp_path / "a.jsonl")
    (tmp_path / "chat.jsonl").write_text(talk(("user", "Hippopotamus?"), ("assistant", "Zanzibar!")))
    run_train("--agent", "tiny", *TINY, "--data", tmp_path / "a.jsonl", "--loss", "lm", "--mix", tmp_path / "chat.jsonl", "--out",
              tmp_path / "out")
    _, tokenizer = agent.load(str(tmp_path / "out"))
    assert {"hippopotamus", "zanzibar"} <= set(tokenizer.get_vocab())


def test_reports(student, tmp_path, capsys):
    """Confusion by hand: 35 / 1 / 15 / 49 is .70 / .97; the loss of an agent with equal logits is log V."""
    from recipes import critic_report
    scored = [finished(f"{i:03}", 8 if called else 2, right) for i, (right, called) in enumerate(
        [(True, True)] * 35 + [(True, False)] + [(False, True)] * 15 + [(False, False)] * 49)]
    count, precision, recall = critic_report.confusion(scored)
    assert list(count.values()) == [35, 1, 15, 49] and (precision, recall) == (.7, 35 / 36)
    assert critic_report.confusion(scored[51:])[1:] == (None, None)
    assert critic_report.selected(scored, .5) == (50, .7) and critic_report.selected(scored, .1) == (10, 1)
    policy, tokenizer = agent.load(str(student))
    chats = [finished(source=OTHER), finished()]
    loss = critic_report.chat_loss(policy.eval(), tokenizer, chats)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.zero_()
    assert 0 < loss != critic_report.chat_loss(policy, tokenizer, chats) == pytest.approx(
        math.log(policy.model.config.vocab_size), rel=1e-5)
