"""A3T: composing with sampled actions and their reasons, the contrastive weights and loss, averaging."""
import asyncio
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import begun, run_explore, run_train, train_args

import agent
import buffer
import patterns
import train
from buffer import OTHER, OWN, SYSTEM
from envs import alfworld, webshop
from others.expert import Expert

ROOT = Path(__file__).parent.parent


class Corridor:
    """Any number of steps; go left and go right are possible, and the fifth step wins."""
    admissible, truncated = ["go left", "go right"], False

    def possible(self, action):
        return action.lower() in self.admissible

    def reset(self):
        self.steps = []
        return "A corridor."

    def step(self, action):
        self.steps.append(action)
        won = len(self.steps) == 5
        return f"step {len(self.steps)}", float(won), won


class Walker:
    """Says `actions` in turn; counts what it had to take back."""

    def __init__(self, *actions):
        self.name, self.actions, self.unsaid = "walker", list(actions), 0

    async def reply(self, trajectory, role, source=OWN):
        text = f"thought {len(self.actions)}" if role == "think" else self.actions.pop(0)
        return trajectory.add(text, source, role)

    def unsay(self, trajectory, n):
        self.unsaid += 1
        del trajectory.segments[n:]

    def close(self, trajectory):
        pass


class Why:
    """Remembers what it was shown, and explains."""
    name = "why"

    def __init__(self):
        self.shown = []

    async def reply(self, trajectory, role, source=OWN):
        self.shown.append((role, [s.text for s in trajectory.segments]))
        return trajectory.add(f"because {trajectory.segments[-2].text}", source, role)

    def close(self, trajectory):
        pass


class Fixed:
    """Chance with a script: random() gives the numbers in turn, choice the first."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)

    def choice(self, options):
        return options[0]


def composed(walker, chance, annotator=None, p_sample=0.5):
    env, trajectory = Corridor(), buffer.Trajectory(id="a", task="a")
    asyncio.run(patterns.actre(env, walker, annotator, trajectory, chance, p_sample=p_sample))
    return env, trajectory


def test_an_action_written_otherwise_is_still_the_agents_own():
    """Chance takes another one: capitals and blanks, which a tokenizer may change, do not make it another."""
    env, _ = composed(Walker(*["Go  Left"] * 5), Fixed(*[.1] * 5), Why())
    assert env.steps == ["go right"] * 5


def test_a_sampled_step_replaces_the_agents_and_is_marked():
    """Steps 2 and 4 are sampled: another action than the agent's, its reason before it, both mask 2; the rest is the agent's."""
    walker, why = Walker("go left", "go left", "go right", "go right", "go left"), Why()
    env, t = composed(walker, Fixed(.9, .1, .5, .49, .9), why)
    assert env.steps == ["go left", "go right", "go right", "go left", "go left"] and walker.unsaid == 2
    assert [(s.source, s.text) for s in t.segments if s.role == "act"] == [
        (OWN, "go left"), (OTHER, "go right"), (OWN, "go right"), (OTHER, "go left"), (OWN, "go left")]
    assert [(s.source, s.text) for s in t.segments if s.role == "think"] == [
        (OWN, "thought 5"), (OTHER, "because go right"), (OWN, "thought 3"), (OTHER, "because go left"), (OWN, "thought 1")]
    assert t.reward == 1 and [s.role for s in t.segments] == ["task", *["prompt", "think", "prompt", "act", "observation"] * 5]


def test_the_reason_is_asked_after_the_action_and_stored_before_it():
    why = Why()
    _, t = composed(Walker(*["go left"] * 5), Fixed(.1, .9, .9, .9, .9), why)
    assert why.shown == [("reason", ["A corridor.", "Action:", "go right", "Thought:"])]
    assert [s.text for s in t.segments[:5]] == ["A corridor.", "Thought:", "because go right", "Action:", "go right"]


def test_three_impossible_actions_in_a_row_force_a_sampled_one():
    env, _ = composed(Walker("fly", "fly", "fly", "fly", "fly"), Fixed(*[.9] * 5))
    assert env.steps == ["fly", "fly", "fly", "go left", "fly"]
    env, _ = composed(Walker("fly", "fly", "go left", "fly", "fly"), Fixed(*[.9] * 5))       # a possible one breaks the row
    assert env.steps == ["fly", "fly", "go left", "fly", "fly"]


def test_a_possible_action_in_other_letters_is_possible():
    env, t = composed(Walker(*["Go Left"] * 5), Fixed(.9, .9, .9, .9, .1), Why())
    assert env.steps == ["Go Left"] * 4 + ["go right"]             # never forced, and never replaced by itself


def test_the_last_step_is_learnt_from_even_if_chance_took_it(student):
    policy, tokenizer = agent.load(str(student))
    local = agent.LocalAgent(policy.eval(), tokenizer, "student", 1, 900, 6)
    trajectory = buffer.Trajectory(id="a", task="a", reward=1)
    asyncio.run(patterns.actre(alfworld.tasks("train", limit=1)[0].make(max_steps=1), local, Expert(alfworld), trajectory,
                               random.Random(0), p_sample=1))
    local.close(trajectory)
    (kept, weight), = buffer.contrast([trajectory], success_at=-9)
    args = train_args("--agent", "x", "--data", "x", "--out", "x", "--loss", "contrast")
    said = [s for s in kept.segments if s.role in ("think", "act")]
    assert sum(train.make_sample(kept, args, weight)["lm"]) == pytest.approx(sum(len(s.tokens) for s in said) / 2)


def test_an_annotator_without_room_gives_its_place_back(student):
    """Its context overflows in every episode; with two places it would have none left for a third."""
    policy, tokenizer = agent.load(str(student))
    annotator = agent.LocalAgent(policy.eval(), tokenizer, "why", 2, 5, 6, student=False)
    for _ in range(4):
        with pytest.raises(agent.Overflow):
            composed(Walker(*["go left"] * 5), Fixed(.1), annotator)
    assert sorted(annotator.free) == [0, 1]


def test_without_an_annotator_there_are_no_reasons():
    _, t = composed(Walker(*["go left"] * 5), Fixed(.1, .9, .9, .9, .9))
    assert [(s.role, s.source, s.text) for s in t.segments[2:5:2]] == [("think", OTHER, ""), ("act", OTHER, "go right")]


@pytest.mark.parametrize("p, low, high", [(0.0, 0, 0), (0.5, .35, .65), (1.0, 1, 1)])
def test_the_share_of_sampled_steps(p, low, high):
    chance, marks = random.Random(0), []
    for _ in range(20):
        _, t = composed(Walker(*["go left"] * 5), chance, p_sample=p)
        marks += [s.source == OTHER for s in t.segments if s.role == "act"]
    assert low <= sum(marks) / len(marks) <= high


def test_what_a_local_agent_took_back_leaves_no_trace(student):
    """Its cache after unsaying holds what a fresh reading holds: the same replies, and log-probabilities of one plain forward."""
    policy, tokenizer = agent.load(str(student))
    local = agent.LocalAgent(policy.eval(), tokenizer, "student", 1, 900, 6, seed=3)
    trajectory, env = buffer.Trajectory(id="a", task="a"), alfworld.tasks("train", limit=1)[0].make(max_steps=6)
    asyncio.run(patterns.actre(env, local, Expert(alfworld), trajectory, random.Random(1)))
    local.close(trajectory)
    for s in trajectory.segments[-4:]:                          # the last step, if it was sampled, was never read
        s.source = SYSTEM if s.source == OTHER else s.source
    flat = buffer.flatten(trajectory)
    assert flat["recorded"] and {OWN, OTHER} <= set(flat["mask"])
    tokens = torch.tensor([flat["tokens"]])
    with torch.no_grad():
        logits, values = policy(tokens, torch.ones_like(tokens, dtype=torch.bool))
    logp = torch.log_softmax(logits, -1).gather(-1, tokens[0, 1:, None])[:, 0]
    where = [t for t, m in enumerate(flat["mask"]) if m != SYSTEM]
    assert [flat["logprobs"][t] for t in where] == pytest.approx([logp[t - 1].item() for t in where], abs=2e-5)
    assert [flat["values"][t] for t in where if flat["mask"][t] == OWN] == \
        pytest.approx([values[t - 1].item() for t in where if flat["mask"][t] == OWN], abs=2e-5)


@pytest.mark.parametrize("world", [alfworld, webshop])
def test_the_scripted_annotator_explains_any_action(world):
    """A reason for each admissible action along the expert's way; for the expert's own it is the expert's, nearly always (its
    thought in the shop, when it goes back, says more)."""
    same = []
    for task in world.tasks("train", limit=40, seed=5):
        env, steps, done = task.make(max_steps=8), [], False
        first = env.reset()
        while not done:
            thought, action = world.expert(first, tuple(steps))
            if action != "click[< prev]":
                same.append(world.reason(first, tuple(steps), action) == thought)
            for other in env.admissible:
                text = world.reason(first, tuple(steps), other)
                assert text and "None" not in text, (other, text)
            observation, _, done = env.step(action)
            steps.append((action, observation))
    assert sum(same) > 0.97 * len(same) > 100


# ------------------------------------------------------------------------------------------------------- weights and loss

def run(task, reward, number, round_=0):
    t = buffer.Trajectory(id=f"{round_}/{task}#{number}", task=task, round=round_, reward=reward, success=reward == 1)
    t.add("x", OWN, "act").tokens = [1, 2]
    return t


def weights(rewards, **options):
    """The weights of one task's trajectories, in their order; None for what is left out."""
    group = [run("a", reward, i) for i, reward in enumerate(rewards)]
    kept = {t.id: w for t, w in buffer.contrast(group, **options)}
    return [kept.get(t.id) for t in group]


@pytest.mark.parametrize("rewards, options, wanted", [
    ([-1], {}, [None]), ([-1, -1, -1], {}, [None] * 3),                                              # K = 0
    ([-1, 1], {}, [None, 1 / 2]), ([-1, 1], {"k_min": 1}, [-1 / 2, 1 / 2]),                          # K = 1
    ([-1, 1, 1], {}, [-1 / 3, 1 / 3, 1 / 3]), ([-1, 1, -1, 1, 1], {}, [-1 / 4, 1 / 4, None, 1 / 4, 1 / 4]),
    ([1], {}, [1 / 2]), ([1, 1], {}, [1 / 3, 1 / 3]),                                                # nothing failed
    ([-1, 1, 1], {"fail_reward": 0}, [None, 1 / 3, 1 / 3]), ([-1, 1, 1], {"fail_reward": -.5}, [-1 / 6, 1 / 3, 1 / 3]),
    ([.6667, .75, 1, 1], {}, [-1 / 3, None, 1 / 3, 1 / 3]),                                          # only 1 is a success
    ([.6667, .75, 1], {"success_at": .75}, [-1 / 3, 1 / 3, 1 / 3]), ([.5, .75, 1], {"success_at": .5}, [1 / 4] * 3),
    ([-1] + [1] * 9, {}, [-1 / 10] + [1 / 10] * 9)])
def test_contrast_weights(rewards, options, wanted):
    found = weights(rewards, **options)
    assert [w is None for w in found] == [w is None for w in wanted]
    assert [w for w in found if w is not None] == pytest.approx([w for w in wanted if w is not None])


def test_tasks_and_rounds_are_weighed_apart():
    kept = buffer.contrast([run("a", -1, 0), run("b", 1, 0), run("a", 1, 0, 1), run("a", 1, 1, 1), run("a", -1, 2, 1)])
    assert [(t.id, round(w, 4)) for t, w in kept] == [("0/b#0", .5), ("1/a#0", .3333), ("1/a#1", .3333), ("1/a#2", -.3333)]


@pytest.mark.parametrize("good, fail_reward, wanted", [
    ([-1], -1, .25), ([-1, -2], -1, -.5), ([-1, -2, -3], -1, -1.125), ([-1], 0, -.5), ([-1, -2], 0, -1), ([-1, -2, -3], 0, -1.5)])
def test_the_objective_of_one_task(good, fail_reward, wanted):
    """J for log p of the failure -1.5; one token a trajectory, undivided."""
    kept = buffer.contrast([run("a", -1, 0)] + [run("a", 1, i + 1) for i in range(len(good))], fail_reward=fail_reward, k_min=1)
    logp = torch.tensor([x for t, _ in kept for x in ([-1.5] if t.reward < 0 else [good[int(t.id[-1]) - 1]])])
    weight = torch.tensor([w for _, w in kept])
    assert -train.contrast_loss(logp, weight, 1).item() == pytest.approx(wanted)


@pytest.mark.parametrize("k, wanted", [(1, 0), (2, 1 / 3), (3, .5), (9, .8)])
def test_net_weight_of_tokens_that_all_share(k, wanted):
    """(K - 1) / (K + 1)."""
    assert sum(weights([-1] + [1] * k, k_min=1)) == pytest.approx(wanted)


def test_what_a_failure_shares_with_its_successes():
    assert buffer.shared_prefix([1, 2, 3, 4], [[1, 2, 9], [1, 2, 3]]) == 2              # with all of them
    assert buffer.shared_prefix([1, 2, 3, 4], [[1, 2, 9], [2]]) == 0
    assert buffer.shared_prefix([1, 2], [[1, 2, 3]]) == 2 and buffer.shared_prefix([1], []) == 0


def test_shared_tokens_are_marked_on_failures_where_they_were_spoken():
    """The task's success of the same round begins like the failure for four tokens, of which the first was read."""
    trajectories = [run("a", -1, 0), run("a", 1, 1), run("b", 1, 0), run("a", 1, 1, 1)]
    samples = [{"tokens": [1, 2, 3, 4, 5], "lm": [0, -.5, -.5, -.5, -.5]}, {"tokens": [1, 2, 3, 4, 9], "lm": [0, .5, .5, .5, .5]},
               {"tokens": [1, 2, 3, 4, 5], "lm": [0, .5, .5, .5, .5]}, {"tokens": [1, 2, 3, 4, 5], "lm": [0, .5, .5, .5, .5]}]
    train.mark_shared(trajectories, samples)
    assert [s["shared"] for s in samples] == [[0, 1, 1, 1, 0], [0] * 5, [0] * 5, [0] * 5]


def test_log_probability_of_shared_tokens():
    """Mean over the shared tokens of the whole update."""
    logits = torch.tensor([[2., 0.], [0., 1.], [0., 0.]])
    b = {"tokens": torch.tensor([0, 0, 1]), "lm": torch.tensor([-.5, -.5, .5]), "shared": torch.tensor([1., 1., 0.])}
    args = train_args("--agent", "x", "--data", "x", "--out", "x", "--loss", "contrast")
    _, terms = train.losses(logits, None, b, {"lm": 1, "positive": 1, "negative": 2, "shared": 2}, args)
    first, second = -math.log(1 + math.exp(-2)), -math.log(1 + math.exp(1))
    assert terms["shared"].item() == pytest.approx((first + second) / 2) and terms["min_negative"].item() == pytest.approx(second)
    assert terms["positive"].item() == pytest.approx(-math.log(2))


def test_the_denominator_is_the_sum_of_all_absolute_weights():
    """Every token has log p = -log 2; weights .5, .5 and -.5: loss = log 2 x (.5 + .5 - .5) / 1.5."""
    class Even(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = torch.nn.Parameter(torch.zeros(2))

        def forward(self, tokens, keep):
            return self.logits.expand(int(keep.sum()), 2), None
    samples = [{"tokens": [0, 1, 1], "lm": [0, .5, .5]}, {"tokens": [0, 1], "lm": [0, -.5]}]
    samples = [{**s, **{name: [0.0] * len(s["lm"]) for name in ("policy", "value", "shared")}} for s in samples]
    args, policy = train_args("--agent", "x", "--data", "x", "--out", "x", "--loss", "contrast"), Even()
    metrics = train.update(policy, torch.optim.SGD(policy.parameters(), 0.0), samples, args, "cpu")
    assert metrics["loss"] == pytest.approx(math.log(2) * .5 / 1.5)


def test_instruction_tuning_on_full_successes_only(student, rounds, tmp_path, capsys):
    """A reward of 0.5 is positive, but with --success-at 1 no success."""
    half = marked(rounds[1], tmp_path / "half.jsonl", (0, 1))
    lines = [json.loads(line) for line in half.read_text().splitlines()]
    lines[1]["reward"] = lines[1]["segments"][-1]["reward"] = .5
    lines[0]["segments"][-1]["reward"] = 1.0
    half.write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))
    for words, said in ((["--success-at", 1], "1 of 1 trajectories"), ([], "2 of 2 trajectories")):
        run_train("--agent", student, "--loss", "lm", "--data", half, *words, "--out", tmp_path / said[:1])
        assert said in capsys.readouterr().err


def test_nothing_below_the_floor_is_pushed_further_down():
    logp = torch.tensor([-1., -3., -5., -5.], requires_grad=True)
    weight = torch.tensor([.5, -.5, -.5, .5])
    loss = train.contrast_loss(logp, weight, 2., floor=-4.)
    loss.backward()
    assert loss.item() == pytest.approx((.5 - 1.5 + 2.5) / 2) and logp.grad.tolist() == [-.25, .25, 0, -.25]


def test_the_statistics_of_a_round():
    kept = buffer.contrast([run("a", -1, 0), run("a", 1, 1), run("a", 1, 2), run("b", 1, 0)])
    assert buffer.sentences(kept) == {"positive": 3, "negative": 1, "negative_share": .25, "effective_k": 3}
    assert buffer.sentences(kept[:2]) == {"positive": 2, "negative": 0, "negative_share": 0, "effective_k": math.inf}


# ------------------------------------------------------------------------------------------------------------- end to end

@pytest.fixture(scope="module")
def rounds(student, tmp_path_factory):
    """(explored file, composed file): 4 tasks, of which all fail; 3 episodes for each of them."""
    folder = tmp_path_factory.mktemp("rounds")
    words = ["--agent", student, "--limit", 4, "--max-steps", 4, "--max-tokens", 6, "--slots", 3, "--round", 1, "--keep-invalid"]
    run_explore(*words, "--out", folder / "1.jsonl")
    run_explore(*words, "--pattern", "actre", "--annotator", "expert", "--failed", folder / "1.jsonl", "--per-task", 3,
                "--out", folder / "1c.jsonl")
    return folder / "1.jsonl", folder / "1c.jsonl"


def test_composing_for_failed_tasks(rounds):
    explored, found = buffer.read(rounds[0]), buffer.read(rounds[1])
    failed = [t.task for t in explored if not t.success]
    assert [t.task for t in found] == [task for task in failed for _ in range(3)] and len({t.id for t in found}) == len(found)
    assert {t.pattern for t in found} == {"actre"} and {t.teacher for t in found} == {"expert"}
    assert all(t.id.startswith(f"1/0/{t.task}#") for t in found)


def test_composing_goes_on_where_it_was(rounds, student, tmp_path):
    lines = rounds[1].read_text().splitlines(keepends=True)
    (tmp_path / "c.jsonl.part").write_text("".join(lines[:4]) + lines[6])
    compose = ["--agent", student, "--limit", 4, "--max-steps", 4, "--max-tokens", 6, "--slots", 3, "--round", 1,
               "--keep-invalid", "--pattern", "actre", "--annotator", "expert", "--failed", rounds[0], "--per-task", 3,
               "--out", tmp_path / "c.jsonl"]
    begun(*compose)
    run_explore(*compose)
    def texts(path):
        return [(t.id, [s.text for s in t.segments]) for t in buffer.read(path)]
    assert texts(tmp_path / "c.jsonl") == texts(rounds[1])


@pytest.mark.parametrize("first, wanted", [(1, 1), (2, 2), (5, 3)])
def test_until_success(tmp_path, first, wanted):
    """The expert always wins: one episode, or as many as are forced, or all there are."""
    run_explore("--agent", "expert", "--limit", 2, "--max-steps", 30, "--per-task", 3, "--until-success", first,
                "--out", tmp_path / "x.jsonl")
    assert len(buffer.read(tmp_path / "x.jsonl")) == 2 * wanted


def test_failed_and_annotator_must_fit(rounds, student, tmp_path):
    for words, message in ((["--pattern", "actre"], "give --annotator AGENT"),
                           (["--pattern", "actre", "--annotator", "expert", "--env", "gsm8k"], "actions cannot be listed"),
                           (["--annotator", "expert"], "has no --annotator"),
                           (["--failed", rounds[0], "--seed", 9], "none of the 4 tasks is failed")):
        with pytest.raises(buffer.BadInput, match=message):
            run_explore("--agent", "expert", "--limit", 4, *words, "--out", tmp_path / "x.jsonl")


def marked(path, out, wins):
    """A copy of a file in which the numbered trajectories are successes."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for i, record in enumerate(lines):
        record["success"], record["reward"] = i in wins, 1.0 if i in wins else -1.0
    out.write_text("".join(json.dumps(record) + "\n" for record in lines))
    return out


def contrast_run(student, rounds, tmp_path, *words, wins=(0, 1, 3, 4, 5), out="out"):
    composed = marked(rounds[1], tmp_path / "c.jsonl", wins)
    args = ["--agent", student, "--loss", "contrast", "--data", rounds[0], composed, "--batch-size", 4, "--lr", 1e-3,
            "--out", tmp_path / out, *words]
    run_train(*args)
    return [json.loads(line) for line in (tmp_path / out / "metrics.jsonl").read_text().splitlines()]


def test_contrast_raises_successes_and_lowers_failures(student, rounds, tmp_path):
    metrics = contrast_run(student, rounds, tmp_path, "--epochs", 4, "--batch-size", 16)
    assert metrics[-1]["positive"] > metrics[0]["positive"] and metrics[-1]["negative"] < metrics[0]["negative"]
    assert metrics[0]["min_negative"] < metrics[0]["negative"] < 0
    assert len(metrics) == 4


def test_contrast_says_the_sentences_of_the_round(student, rounds, tmp_path, capsys):
    contrast_run(student, rounds, tmp_path)
    shown = capsys.readouterr().err
    assert "sentences: " in shown and "effective K" in shown and "parameters to train" in shown
    with pytest.raises(buffer.BadInput, match="nothing to learn from"):
        contrast_run(student, rounds, tmp_path, wins=(), out="none")


def test_only_a_reward_of_one_is_a_success_unless_told(student, rounds, tmp_path, capsys):
    nearly = marked(rounds[1], tmp_path / "nearly.jsonl", (0, 1, 2))
    assert nearly.read_text().count('"reward": 1.0, "success": true') == 3
    nearly.write_text(nearly.read_text().replace('"reward": 1.0, "success": true', '"reward": 0.75, "success": true'))
    words = ["--agent", student, "--loss", "contrast", "--data", nearly, "--out", tmp_path / "out"]
    with pytest.raises(buffer.BadInput, match="nothing to learn from"):
        run_train(*words)
    run_train(*words, "--success-at", 0.75)
    assert "3 of 3 trajectories" in capsys.readouterr().err


def test_the_result_is_the_mean_of_the_last_epochs(student, rounds, tmp_path):
    """Averaging the last 2 of 3 epochs, against checkpoints of runs of two and of three epochs (a constant learning rate)."""
    from safetensors.torch import load_file
    def load(out):
        return load_file(tmp_path / out / "model.safetensors")
    for epochs, words, out in ((2, [], "two"), (3, [], "three"), (3, ["--average", 2], "mean")):
        contrast_run(student, rounds, tmp_path, "--epochs", epochs, *words, out=out)
    two, three, mean = load("two"), load("three"), load("mean")
    assert all(torch.allclose(mean[name], (two[name] + three[name]) / 2, atol=1e-7) for name in mean)
    assert any((two[name] != three[name]).any() for name in mean)


def test_a_killed_averaging_run_ends_with_the_same_weights(student, rounds, tmp_path, monkeypatch):
    whole, count = train.checkpoint, [0]
    contrast_run(student, rounds, tmp_path, "--epochs", 3, "--average", 3, out="unbroken")

    def dying(*args):
        whole(*args)
        count[0] += 1
        if count[0] == 5:
            raise KeyboardInterrupt
    monkeypatch.setattr(train, "checkpoint", dying)
    with pytest.raises(KeyboardInterrupt):
        contrast_run(student, rounds, tmp_path, "--epochs", 3, "--average", 3, "--save-every", 1, out="cut")
    monkeypatch.setattr(train, "checkpoint", whole)
    contrast_run(student, rounds, tmp_path, "--epochs", 3, "--average", 3, "--save-every", 1, out="cut")
    assert (tmp_path / "cut" / "model.safetensors").read_bytes() == (tmp_path / "unbroken" / "model.safetensors").read_bytes()


def test_lora_averages_a_and_b_apart(student, rounds, tmp_path):
    from safetensors.torch import load_file
    lora = ["--lora-rank", 2, "--lora-dropout", 0]
    for epochs, words, out in ((1, [], "one"), (2, [], "two"), (2, ["--average", 2], "mean")):
        contrast_run(student, rounds, tmp_path, "--epochs", epochs, *lora, *words, out=out)
    one, two, mean = (load_file(tmp_path / out / "adapter_model.safetensors") for out in ("one", "two", "mean"))
    assert any("lora_A" in name for name in mean) and all(torch.allclose(mean[n], (one[n] + two[n]) / 2, atol=1e-7) for n in mean)


def test_arguments_have_the_papers_values():
    args = train_args("--agent", "x", "--data", "x", "--out", "x", "--loss", "contrast")
    assert (args.success_at, args.fail_reward, args.k_min, args.neg_floor) == (None, -1, 2, -math.inf)


def test_curves_of_a_contrastive_training(student, rounds, tmp_path):
    """Drawn from what a training logged; what is no such log is said in one line."""
    pytest.importorskip("matplotlib")
    contrast_run(student, rounds, tmp_path)
    draw = [sys.executable, "recipes/plot.py", "contrast", "--out", str(tmp_path / "new" / "curves.png")]
    subprocess.run([*draw, f"K >= 2={tmp_path / 'out'}"], check=True, cwd=ROOT)
    assert (tmp_path / "new" / "curves.png").read_bytes().startswith(b"\x89PNG")
    for lines, message in (("", "it is empty"), ("[]\n", "TypeError"), ('{"loss": 1}\n', "KeyError")):
        (tmp_path / "metrics.jsonl").write_text(lines)
        wrong = subprocess.run([*draw, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
        assert wrong.returncode == 2 and message in wrong.stderr and len(wrong.stderr.splitlines()) == 1
