"""Who speaks when, with which mask and which reward: Dialogue and Analogue (LTC Algorithms 2 and 3), and the teacher's tokens."""
import asyncio
import copy
from argparse import Namespace

import pytest
import torch
from conftest import TINY, run_explore, run_train
from test_numbers import settings

import agent
import buffer
import envs
import explore
import patterns
import train
from buffer import OTHER, OWN, SYSTEM
from envs import gsm8k, words
from others.expert import Expert


class Scripted:
    """Says what it was told to say, role by role."""

    def __init__(self, name, **said):
        self.name, self.said = name, {role: list(texts) for role, texts in said.items()}

    async def reply(self, trajectory, role, source=OWN):
        return trajectory.add(self.said[role].pop(0), source, role)

    def close(self, trajectory):
        pass


def quiz(key):
    return gsm8k.Question(f"What is {key}?", key)


def spoken(trajectory):
    """(role, source, text, reward) of all that is no prompt."""
    return [(s.role, s.source, s.text, s.reward) for s in trajectory.segments if s.role != "prompt"]


RULES = patterns.Rules()


def dialogue(action, rules=RULES):
    trajectory = buffer.Trajectory(id="a", task="a")
    student, teacher = Scripted("student", act=[action]), Scripted("teacher", think=["it is 3"])
    asyncio.run(patterns.dialogue(quiz(3), student, teacher, trajectory, rules))
    return trajectory


def test_dialogue_has_the_teachers_thoughts_and_the_students_actions():
    t = dialogue("finish[3]")
    assert spoken(t) == [("task", 0, "What is 3?", 0), ("think", OTHER, "it is 3", 0), ("act", OWN, "finish[3]", 0),
                         ("observation", 0, "Right.", 1)]
    assert [s.text for s in t.segments if s.role == "prompt"] == ["Thought:", "Action:"] and t.reward == 1


def test_an_unparsable_action_of_a_dialogue_takes_no_teachers_thought_with_it():
    """LTC A.2 skips what the agent got wrong; the teacher's thought stays a teacher's."""
    assert [source for _, source, _, _ in spoken(dialogue("hello"))] == [0, OTHER, SYSTEM, 0]
    assert [source for _, source, _, _ in spoken(dialogue("hello", patterns.Rules(keep_invalid=True)))] == [0, OTHER, OWN, 0]


def analogue(first, correction, second, posed="What is 5? Answer: 5", verdict=(), **rules):
    student = Scripted("student", think=["hm", "so"], act=[first, second])
    teacher = Scripted("teacher", think=["look"], act=[correction], pose=[posed], judge=verdict)
    trajectory, env = buffer.Trajectory(id="a", task="a"), quiz(3)
    asyncio.run(patterns.analogue(env, quiz(3), lambda words: gsm8k.analogous(None, env, words), student, teacher, trajectory,
                                  patterns.Rules(**rules)))
    return trajectory, env


def test_analogue_answer_correction_question_answer():
    t, env = analogue("finish[4]", "finish[3]", "finish[5]")
    assert spoken(t) == [
        ("task", 0, "What is 3?", 0), ("think", 1, "hm", 0), ("act", 1, "finish[4]", 0), ("observation", 0, "Wrong.", -1),
        ("task", 0, "What is 3?", 0), ("think", 2, "look", 0), ("act", 2, "finish[3]", 1), ("observation", 0, "Right.", 0),
        ("task", 2, "What is 5?", 0), ("think", 1, "so", 0), ("act", 1, "finish[5]", 0), ("observation", 0, "Right.", 1)]
    assert t.reward == 1 and not env.won            # success is the first answer's


def test_the_key_of_the_posed_question_is_nowhere_in_the_record():
    t, _ = analogue("finish[3]", "finish[3]", "finish[8]", posed="Question: Two and six? Answer: 8")
    posed = [s.text for s in t.segments if s.source == OTHER and s.role == "task"]
    assert posed == ["Two and six?"] and t.segments[-1].reward == 1


def test_a_teacher_that_poses_nothing_ends_the_analogue():
    t, _ = analogue("finish[3]", "finish[3]", "", posed="I am tired.")
    assert spoken(t)[-1] == ("pose", SYSTEM, "I am tired.", 0) and t.reward == 2


@pytest.mark.parametrize("assume, earned", [(False, []), (True, [1])])
def test_a_wrong_correction_teaches_nothing_or_is_assumed_right(assume, earned):
    t, _ = analogue("finish[3]", "finish[9]", "finish[5]", assume_teacher=assume)
    assert [s.reward for s in t.segments if s.source == OTHER and s.role == "act"] == earned
    assert [s.source for s in t.segments if s.text in ("look", "finish[9]")] == [OTHER if assume else SYSTEM] * 2
    assert t.reward == sum(s.reward for s in t.segments) == 1 + sum(earned) + 1


@pytest.mark.parametrize("given, verdict", [("finish[4]", "yes"), ("Finish[ 4 ]", "yes"), ("finish[5]", "no")])
def test_the_scripted_judge_compares_answers_not_blanks(given, verdict):
    """A tokenizer may set blanks beside brackets and change capitals."""
    t = buffer.Trajectory(id="a", task="a")
    t.add("What?", SYSTEM, "task")
    t.add(given, OWN, "act")
    judge = Expert(Namespace(expert=lambda first, steps, careless: ("Four.", "finish[4]")))
    assert asyncio.run(judge.reply(t, "judge", OTHER)).text == verdict


@pytest.mark.parametrize("verdict, wanted", [("Yes, well done", 1), ("no", -1), ("hard to say", -1)])
def test_the_teacher_as_judge(verdict, wanted):
    """Its verdict replaces the key's (which would have been -1), and what the environment said is not shown."""
    t, _ = analogue("finish[4]", "finish[3]", "finish[5]", verdict=[verdict], judge="teacher")
    assert spoken(t)[3] == ("observation", 0, "", wanted) and spoken(t)[4] == ("judge", OTHER, verdict, 0)
    assert t.reward == wanted + 2


def flattened(trajectory):
    """Two tokens a spoken text, one for anything else; all measured."""
    for s in trajectory.segments:
        n = 2 if s.source != SYSTEM else 1
        s.tokens = [1] * n
        if s.source != SYSTEM:
            s.logprobs, s.values = [-1.0] * n, [0.25] * n
    return buffer.flatten(trajectory)


@pytest.mark.parametrize("credit, wanted", [("local", [-1, 1, 1]), ("whole", [1, 2, 1])])
def test_credit_of_an_analogue(credit, wanted):
    """-1, +1, +1: a wrong answer must not take credit for the correction that follows it (L9)."""
    flat = flattened(analogue("finish[4]", "finish[3]", "finish[5]")[0])
    advantage, target = buffer.advantages(flat["mask"], flat["rewards"], [0.0] * len(flat["mask"]), credit=credit)
    returns = [a for a, m in zip(advantage, flat["mask"]) if m != SYSTEM]
    answer, correction, rest = returns[:4], returns[4:8], returns[8:]                # think and act, two tokens each
    assert answer == [wanted[0]] * 4 and correction == [wanted[1]] * 4 and rest == [wanted[2]] * 6


def own_advantages(trajectory, cut=None):
    """Of the first answer's action and of the second one's, two tokens each."""
    flattened(trajectory)
    flat = buffer.flatten(trajectory, cut)
    advantage, _ = buffer.advantages(flat["mask"], flat["rewards"], [0.0] * len(flat["mask"]))
    return [a for a, m in zip(advantage, flat["mask"]) if m == OWN]


@pytest.mark.parametrize("first, correction, wanted", [
    ("finish[4]", "finish[3]", -1), ("finish[4]", "finish[9]", -1), ("finish[3]", "finish[3]", 1), ("finish[3]", "finish[9]", 1)])
def test_what_comes_later_does_not_pay_the_first_answer(first, correction, wanted):
    """The second answer cannot be parsed, so nobody spoke for its -1: it is dropped, not credited to the first answer."""
    assert own_advantages(analogue(first, correction, "what?")[0]) == [wanted] * 4
    assert own_advantages(analogue(first, correction, "", posed="I am tired.")[0]) == [wanted] * 4


def test_a_cut_does_not_credit_later_sessions():
    """Cut within the correction (17 tokens and prompts are before its reward): the first answer stays wrong."""
    for cut in range(9, 15):
        assert own_advantages(analogue("finish[4]", "finish[3]", "finish[5]")[0], cut) == [-1] * 4


@pytest.mark.parametrize("credit, imitated", [("local", "finish[5]"), ("whole", "finish[4] finish[5]")])
def test_only_right_answers_of_an_analogue_are_imitated(credit, imitated):
    t, _ = analogue("finish[4]", "finish[3]", "finish[5]")
    flat = flattened(t)
    weights = buffer.lm_mask(flat["mask"], buffer.positive_tokens(flat["rewards"], credit))
    at, found = 0, []
    for s in t.segments:
        if s.role == "act" and any(weights[at:at + len(s.tokens)]):
            found.append(s.text)
        at += len(s.tokens)
    assert " ".join(found) == imitated


@pytest.mark.parametrize("rewards, local, whole", [
    ([0, 0, -1, 0, 1, 0, 1, 0], [0, 0, 0, 1, 1, 1, 1, 1], [1] * 8), ([0, 1, 0, -1, 0], [1, 1, 0, 0, 0], [0] * 5),
    ([0, 0, 1, 0], [1] * 4, [1] * 4), ([0, 0], [0, 0], [0, 0])])
def test_positive_tokens(rewards, local, whole):
    assert buffer.positive_tokens(rewards, "local") == local and buffer.positive_tokens(rewards, "whole") == whole


@pytest.mark.parametrize("pattern", ["monologue", "dialogue", "analogue"])
def test_lengths_of_the_segments(pattern):
    """Text, mask and reward are one list of segments, and the five sequences of one length, in all patterns (L10)."""
    if pattern == "analogue":
        t, _ = analogue("finish[4]", "finish[3]", "finish[5]")
    elif pattern == "dialogue":
        t = dialogue("finish[3]")
    else:
        t = buffer.Trajectory(id="a", task="a")
        asyncio.run(patterns.monologue(quiz(3), Scripted("student", think=["it is 3"], act=["finish[3]"]), t))
    flat = flattened(t)
    expected = sum(2 if s.source != SYSTEM else 1 for s in t.segments)
    assert {len(flat[name]) for name in ("tokens", "mask", "values", "logprobs", "rewards")} == {expected}
    assert {"monologue": 6, "dialogue": 6, "analogue": 19}[pattern] == len(t.segments)
    assert flat["recorded"]


def test_a_teachers_text_never_receives_a_value_target():
    flat = flattened(analogue("finish[4]", "finish[3]", "finish[5]")[0])
    assert [v for v, m in zip(flat["values"], flat["mask"]) if m == OTHER] == [0.0] * 6      # whatever was recorded
    _, target = buffer.advantages(flat["mask"], flat["rewards"], flat["values"])
    weight = buffer.value_mask(flat["mask"])
    assert all(t == 0 and w == 0 for t, w, m in zip(target, weight, flat["mask"]) if m == OTHER)
    assert buffer.policy_mask(flat["mask"], "own") == weight != buffer.policy_mask(flat["mask"])


# ------------------------------------------------------------------------------------------------------- the grid, end to end

ENVS = {"alfworld": 4, "gsm8k": 2, "hotpotqa": 3}


@pytest.fixture(scope="module", params=ENVS)
def world(request, tmp_path_factory):
    """(environment, its step limit, a tiny student of its words, its folder)"""
    folder = tmp_path_factory.mktemp(request.param)
    run_explore("--agent", "expert", "--env", request.param, "--limit", 12, "--max-steps", 20, "--out", folder / "demos.jsonl")
    run_train(*TINY, "--loss", "lm", "--data", folder / "demos.jsonl", "--lr", 1e-2, "--out", folder / "student")
    return request.param, ENVS[request.param], folder / "student", folder


@pytest.mark.parametrize("pattern", ["dialogue", "analogue"])
def test_any_pattern_on_any_environment(world, pattern):
    """The record is whole: every teacher's token has the student's own log-probability, so the first update's ratio is 1."""
    env, steps, student, folder = world
    steps, out = 20 if pattern == "analogue" else steps, folder / f"{pattern}.jsonl"  # the teacher must have time to be right
    run_explore("--agent", student, "--env", env, "--limit", 4, "--max-steps", steps, "--max-tokens", 6, "--slots", 3,
                "--pattern", pattern, "--teacher", "expert", "--temperature", 0.8, "--out", out)
    trajectories = buffer.read(out)
    others = [s for t in trajectories for s in t.segments if s.source == OTHER]
    assert {t.pattern for t in trajectories} == {pattern} and {t.teacher for t in trajectories} == {"expert"} and others
    assert all(len(s.logprobs) == len(s.tokens) and s.values is None and max(s.logprobs) <= 0 for s in others)
    run_train("--agent", student, "--data", out, "--lr", 1e-9, "--lm-tokens", "all", "--out", folder / f"{pattern}-trained",
              "--batch-size", 4)
    first = (folder / f"{pattern}-trained" / "metrics.jsonl").read_text().splitlines()[0]
    assert float(first.split('"ratio_error": ')[1].split(",")[0]) < 1e-4


def test_log_probabilities_of_a_teachers_words_are_the_students_own(world):
    """Against one plain forward over the whole record, at the temperature that samples."""
    env, steps, student, _ = world
    policy, tokenizer = agent.load(str(student))
    local = agent.LocalAgent(policy.eval(), tokenizer, "student", 2, 900, 6, temperature=0.5)
    args = Namespace(**{**explore.ALONE, "pattern": "dialogue"}, env=env, seed=0, max_steps=steps, overflow_reward=-1.0,
                     temperature=0.5, keep_invalid=False)
    teacher = Expert(envs.module(env))
    for task in envs.tasks(env, "train", limit=2):
        flat = buffer.flatten(asyncio.run(explore.episode(task, local, teacher, args)))
        tokens = torch.tensor([flat["tokens"]])
        with torch.no_grad():
            logits, _ = policy(tokens, torch.ones_like(tokens, dtype=torch.bool))
        logp = torch.log_softmax(logits / 0.5, -1).gather(-1, tokens[0, 1:, None])[:, 0]
        where = [t for t, m in enumerate(flat["mask"]) if m == OTHER]
        assert where and [flat["logprobs"][t] for t in where] == pytest.approx([logp[t - 1].item() for t in where], abs=2e-5)


def test_a_local_teacher_leaves_the_record_to_the_students_tokenizer(tmp_path):
    """Two models with different vocabularies: the teacher's ids never enter the record."""
    said = {"a": ["five apples now", "one more"], "b": ["now", "apples", "five", "more", "one", "and another"]}
    made = {}
    for name, texts in said.items():
        tokenizer = words.tokenizer_for(texts, [], [])
        made[name] = agent.make_tiny(tokenizer, 16, 2, 2, seed=1).eval(), tokenizer
    student = agent.LocalAgent(*made["a"], "a", 1, 200, 4)
    teacher = agent.LocalAgent(*made["b"], "b", 1, 200, 4, student=False)
    trajectory = buffer.Trajectory(id="a", task="a")
    asyncio.run(patterns.dialogue(quiz(3), student, teacher, trajectory, patterns.Rules(keep_invalid=True)))
    student.close(trajectory), teacher.close(trajectory)
    thought = next(s for s in trajectory.segments if s.role == "think")
    assert thought.source == OTHER and thought.tokens == student.speech.said(thought)
    assert thought.values is None and len(thought.logprobs) == len(thought.tokens)
    assert teacher.free == student.free == [0]


def test_a_teachers_words_that_nobody_read_teach_nothing():
    """The context is full after the teacher's thought: the student never read it, so LTC has no probability of it to learn from;
    imitation needs none."""
    tokenizer = words.tokenizer_for(["one two three four five six"], [], [])
    student = agent.LocalAgent(agent.make_tiny(tokenizer, 16, 2, 2).eval(), tokenizer, "s", 1, max_length=8, max_tokens=2)
    trajectory = buffer.Trajectory(id="a", task="a")
    teacher = Scripted("teacher", think=["one two three four five six"])
    with pytest.raises(agent.Overflow):
        asyncio.run(patterns.dialogue(quiz(3), student, teacher, trajectory))
    student.close(trajectory)
    assert next(s for s in trajectory.segments if s.role == "think").source == OTHER
    args = settings(lm_tokens="all")
    weights = {}
    for args.loss in ("contrast", "ltc"):
        weights[args.loss] = train.make_sample(copy.deepcopy(trajectory), args, 0.5)
    assert sum(weights["contrast"]["lm"]) == 0.5 * 7 and sum(weights["ltc"]["policy"]) == 0


@pytest.mark.parametrize("words, message", [
    (["--pattern", "dialogue"], "give --teacher AGENT"), (["--teacher", "expert"], "it has no --teacher; leave it out"),
    (["--wiki", "live"], "--wiki live: it is for --env hotpotqa")])
def test_patterns_and_teachers_must_fit(tmp_path, words, message):
    with pytest.raises(explore.BadInput, match=message):
        run_explore("--agent", "expert", "--limit", 1, *words, "--out", tmp_path / "x.jsonl")
