"""The stages end to end: same seed same result, a killed run goes on where it was, and what is wrong is said in one line."""
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import SHORT, TINY, argv, begun, run_evaluate, run_explore, run_train, stop_at, train_args
from safetensors.torch import load_file

import agent
import buffer
import errors
import explore
import train
from buffer import OWN, SYSTEM
from envs.words import tokenizer_for
from errors import BadInput

ROOT = Path(__file__).parent.parent


def line(id="a", reward=1.0, **changes):
    """A hand-made trajectory: two tokens read, two said, one read."""
    t = buffer.Trajectory(id=id, task=id, env="alfworld", **changes)
    for source, tokens, earned in ((SYSTEM, [5, 6], 0), (OWN, [7, 8], 0), (SYSTEM, [9], reward)):
        t.add("x", source, "act", earned).tokens = tokens
    return t


def spoken(path):
    """Ids and tokens of a file of trajectories."""
    return [(t.id, [s.tokens for s in t.segments]) for t in buffer.read(path)]


def weights(folder, file="model.safetensors"):
    return load_file(folder / file)


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


# ---------------------------------------------------------------------------------------------------------------- explore

def test_same_seed_same_file(student, played, tmp_path):
    play = ["--agent", student, "--limit", 8, "--temperature", 0.7, *SHORT]
    run_explore(*play, "--out", tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == played.read_bytes()
    run_explore(*play, "--seed", 1, "--out", tmp_path / "other.jsonl")
    assert spoken(tmp_path / "other.jsonl") != spoken(played)


def test_a_killed_exploration_goes_on_without_loss_or_doubles(student, played, tmp_path):
    """Three episodes were written, in the order they ended, and a fourth was torn by the kill."""
    lines = played.read_text().splitlines(keepends=True)
    kept = [json.dumps({**json.loads(lines[i]), "score": 0.25}) + "\n" for i in (5, 0, 3)]
    (tmp_path / "new.jsonl.part").write_text("".join(kept) + lines[1][:len(lines[1]) // 2])
    begun("--agent", student, "--limit", 8, "--temperature", 0.7, *SHORT, "--out", tmp_path / "new.jsonl")
    run_explore("--agent", student, "--limit", 8, "--temperature", 0.7, *SHORT, "--out", tmp_path / "new.jsonl")
    assert spoken(tmp_path / "new.jsonl") == spoken(played)
    assert [t.score for t in buffer.read(tmp_path / "new.jsonl")] == [.25, None, None, .25, None, .25, None, None]
    assert not (tmp_path / "new.jsonl.part").exists()


def test_an_exploration_that_dies_leaves_whole_lines(student, played, tmp_path, monkeypatch):
    play, ended = ["--agent", student, "--limit", 8, "--temperature", 0.7, *SHORT, "--out", tmp_path / "new.jsonl"], []
    whole = explore.episode

    async def dying(*args, **kw):
        if len(ended) >= 3:
            raise KeyboardInterrupt
        ended.append(await whole(*args, **kw))
        return ended[-1]
    monkeypatch.setattr(explore, "episode", dying)
    with pytest.raises(KeyboardInterrupt):
        run_explore(*play)
    assert not (tmp_path / "new.jsonl").exists() and len(buffer.read(tmp_path / "new.jsonl.part")) >= 3
    monkeypatch.setattr(explore, "episode", whole)
    run_explore(*play)
    assert spoken(tmp_path / "new.jsonl") == spoken(played)


def test_a_torn_first_line_begins_anew(demos, tmp_path):
    (tmp_path / "new.jsonl.part").write_text('{"id": "0/0/pi')
    play = ["--agent", "expert", "--limit", 2, "--out", tmp_path / "new.jsonl"]
    begun(*play)
    run_explore(*play)
    assert len(buffer.read(tmp_path / "new.jsonl")) == 2


@pytest.mark.parametrize("other, name", [
    (["--agent", "expert:0.5"], "agent"), (["--round", 3], "round"), (["--temperature", 0.5], "temperature"),
    (["--limit", 1], "limit"), (["--max-steps", 9], "max-steps"), (["--keep-invalid"], "keep-invalid")])
def test_a_part_of_another_command_is_refused(demos, tmp_path, monkeypatch, other, name):
    """Arguments that change the result must be the same; how many episodes run at once need not."""
    out = tmp_path / "new.jsonl"
    stop_at(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        run_explore("--agent", "expert", "--limit", 30, "--slots", 1, "--out", out)
    with pytest.raises(BadInput, match=f"new.jsonl.args: what is there was begun with another --{name} "):
        run_explore("--agent", "expert", "--limit", 30, *other, "--out", out)
    run_explore("--agent", "expert", "--limit", 30, "--out", out)
    assert len(buffer.read(out)) == 30 and [p.name for p in tmp_path.iterdir()] == ["new.jsonl"]


def test_a_damaged_note_is_said(tmp_path):
    (tmp_path / "new.jsonl.part").write_text("{}\n")
    (tmp_path / "new.jsonl.args").write_text("")
    with pytest.raises(BadInput, match="new.jsonl.args: cannot be read"):
        run_explore("--agent", "expert", "--limit", 3, "--out", tmp_path / "new.jsonl")


def test_a_note_that_lacks_an_argument_is_another_command(demos, tmp_path):
    """Written by a version that did not know it, even if it has its default now."""
    out = tmp_path / "new.jsonl"
    begun("--agent", "expert", "--limit", 30, "--out", out)
    note = json.loads((tmp_path / "new.jsonl.args").read_text())
    del note["until_success"]
    (tmp_path / "new.jsonl.args").write_text(json.dumps(note))
    (tmp_path / "new.jsonl.part").write_text(demos.read_text().splitlines(keepends=True)[0])
    with pytest.raises(BadInput, match="begun with another --until-success .None.; give the same"):
        run_explore("--agent", "expert", "--limit", 30, "--out", out)


def test_a_part_with_other_tasks_is_refused(demos, tmp_path):
    """The arguments are the same, but what --failed or --data names has changed."""
    out = tmp_path / "new.jsonl"
    begun("--agent", "expert", "--limit", 2, "--out", out)
    (tmp_path / "new.jsonl.part").write_text(demos.read_text().splitlines(keepends=True)[7])
    with pytest.raises(BadInput, match="is not among those to play; did --data or --failed change"):
        run_explore("--agent", "expert", "--limit", 2, "--out", out)
    assert (tmp_path / "new.jsonl.part").exists()
    run_explore("--agent", "expert", "--limit", 2, "--out", out, "--overwrite")


def test_an_option_is_called_by_its_name(student, demos, tmp_path, monkeypatch):
    words = short(student, demos, tmp_path / "cut")
    killed_after(2, monkeypatch, words)
    with pytest.raises(BadInput, match="begun with another --lambda .0.5.; give"):
        run_train(*words, "--lambda", 0.1)


def test_an_empty_part_binds_nobody(tmp_path):
    """Stopped before the first episode ended: nothing is there that another command could spoil."""
    begun("--agent", "expert:1", "--limit", 3, "--out", tmp_path / "new.jsonl")
    (tmp_path / "new.jsonl.part").touch()
    run_explore("--agent", "expert", "--limit", 2, "--out", tmp_path / "new.jsonl")
    assert len(buffer.read(tmp_path / "new.jsonl")) == 2


def test_a_part_of_which_nobody_knows_the_command_is_refused(demos, tmp_path):
    (tmp_path / "new.jsonl.part").write_text("".join(demos.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(BadInput, match="new.jsonl.args: cannot be read .*nobody knows what was begun there; give --overwrite"):
        run_explore("--agent", "expert", "--limit", 30, "--out", tmp_path / "new.jsonl")


def test_a_finished_file_is_replaced_only_when_told(tmp_path):
    (tmp_path / "new.jsonl").write_text("precious")
    play = ["--agent", "expert", "--limit", 1, "--out", tmp_path / "new.jsonl"]
    with pytest.raises(BadInput, match="is there already; give --overwrite"):
        run_explore(*play)
    assert (tmp_path / "new.jsonl").read_text() == "precious"
    run_explore(*play, "--overwrite")
    assert len(buffer.read(tmp_path / "new.jsonl")) == 1


def test_the_step_limit_costs_one(played):
    for t in buffer.read(played):
        assert t.truncated and not t.success and t.reward == t.segments[-1].reward == -1
        assert sum(s.role == "act" for s in t.segments) == 3 and t.temperature == 0.7


# ----------------------------------------------------------------------------------------------------------------- buffer

def test_replay_recent_and_uniform():
    ten = list(range(10))
    assert buffer.replay(ten, None) == buffer.replay(ten, 10) == buffer.replay(ten, 99, "uniform") == ten
    assert buffer.replay(ten, 3) == [7, 8, 9]
    drawn = buffer.replay(ten, 3, "uniform", seed=1)
    assert len(set(drawn)) == 3 and drawn == buffer.replay(ten, 3, "uniform", seed=1)
    assert {x for seed in range(40) for x in buffer.replay(ten, 3, "uniform", seed)} == set(ten)


def test_by_length_puts_like_beside_like():
    samples = [{"tokens": [0] * n} for n in (3, 9, 1, 7, 5)]
    assert [[len(s["tokens"]) for s in group] for group in buffer.by_length(samples, 2)] == [[9, 7, 5], [3, 1]]
    assert [len(group) for group in buffer.by_length(samples, 5)] == [1] * 5


def test_flatten_gives_five_sequences_of_one_length():
    t = line()
    t.segments[1].logprobs, t.segments[1].values = [-.1, -.2], [.3, .4]
    assert buffer.flatten(t) == {"tokens": [5, 6, 7, 8, 9], "mask": [0, 0, 1, 1, 0], "values": [0, 0, .3, .4, 0],
                                 "logprobs": [0, 0, -.1, -.2, 0], "rewards": [0, 0, 0, 0, 1], "recorded": True}
    assert not buffer.flatten(line())["recorded"]


def test_an_empty_segment_hands_its_reward_to_the_token_before():
    t = line(reward=0)
    t.add("", SYSTEM, "observation", -1).tokens = []
    assert buffer.flatten(t)["rewards"] == [0, 0, 0, 0, -1]


@pytest.mark.parametrize("length, rewards", [(5, [0, 0, 0, 0, -1]), (4, [0, 0, 0, -1]), (3, [0, 0, -1])])
def test_cutting_keeps_the_reward(length, rewards):
    flat = buffer.flatten(line(reward=-1), length)
    assert flat["rewards"] == rewards and {len(flat[k]) for k in ("tokens", "mask", "values", "logprobs")} == {length}


def test_cutting_keeps_the_rewards_on_both_sides_of_the_cut():
    """Two turns of two tokens, +1 after the first and -1 after the second, which is cut away: they meet on the last own token."""
    t = line(reward=1)
    for source, tokens, earned in ((OWN, [7, 8], 0), (SYSTEM, [9], -1)):
        t.add("x", source, "act", earned).tokens = tokens
    assert buffer.flatten(t, 7)["rewards"] == [0, 0, 0, 1, 0, 0, -1]
    assert buffer.flatten(t, 6)["rewards"] == [0, 0, 0, 1, 0, -1]
    assert buffer.flatten(t, 5)["rewards"] == [0, 0, 0, 1, 0]  # nothing of the second session is left to earn its -1


def test_a_file_comes_back_as_it_was_written(tmp_path):
    buffer.write(tmp_path / "t.jsonl", [line("a"), line("b", kind="ü", score=.5)])
    assert buffer.read(tmp_path / "t.jsonl") == [line("a"), line("b", kind="ü", score=.5)]
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_a_torn_last_line_is_left_out_and_said(tmp_path, capsys):
    (tmp_path / "t.jsonl").write_text(buffer.to_line(line("a")) + buffer.to_line(line("b"))[:40])
    assert [t.id for t in buffer.read(tmp_path / "t.jsonl")] == ["a"]
    assert "t.jsonl:2: torn last line left out" in capsys.readouterr().err


def broken(**changes):
    """A line of JSON with something wrong in it, at the top or in segment 1."""
    record = json.loads(buffer.to_line(line()))
    for name, value in changes.items():
        (record if name in record or name == "colour" else record["segments"][1])[name] = value
    return json.dumps(record)


@pytest.mark.parametrize("text, says", [
    ('{"id": "a", "segm', "Unterminated string"), ("", "Expecting value"), ("[1, 2]", "not a trajectory"),
    ('{"id": "a", "task": "a"}', "not a trajectory"), ('{"segments": []}', "missing .*'id'"),
    (broken(colour="red"), "unknown field 'colour'"), (broken(smell="bad"), "segment 1: .*'smell'"),
    (broken(segments="none"), "not a trajectory"), (broken(segments=[1]), "segment 0"),
    (broken(source=7), "segment 1: source must be"), (broken(values=[.1, .2, .3]), "segment 1: 3 values for 2 tokens"),
    (broken(logprobs=[-1.0]), "segment 1: 1 logprobs for 2 tokens"),
    (broken(logprobs=[-1., -1.], tokens=None), "segment 1: 2 logprobs for 0 tokens"),
    (broken(logprobs=3), "segment 1: .*logprobs"), (broken(tokens=3), "segment 1: .*tokens"),
    (broken(tokens=["a", "b"]), "segment 1: .*tokens")])
def test_a_broken_line_is_named(tmp_path, text, says):
    (tmp_path / "t.jsonl").write_text(buffer.to_line(line()) + text + "\n" + buffer.to_line(line()))
    with pytest.raises(BadInput, match=rf"t\.jsonl:2: .*{says}"):
        buffer.read(tmp_path / "t.jsonl")


def test_empty_and_missing_files_are_named(tmp_path):
    (tmp_path / "t.jsonl").write_text("")
    with pytest.raises(BadInput, match="t.jsonl: no trajectories"):
        buffer.read(tmp_path / "t.jsonl")
    with pytest.raises(BadInput, match="gone.jsonl: cannot be read"):
        buffer.read(tmp_path / "gone.jsonl")
    (tmp_path / "t.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(BadInput, match="t.jsonl: cannot be read"):
        buffer.read(tmp_path / "t.jsonl")


# ------------------------------------------------------------------------------------------------------- train: same again

class Killed(Exception):
    pass


def killed_after(updates, monkeypatch, words):
    """Run train.py until so many updates are done, then kill it."""
    whole, done = train.update, []

    def update(*args):
        if len(done) == updates:
            raise Killed
        done.append(1)
        return whole(*args)
    monkeypatch.setattr(train, "update", update)
    with pytest.raises(Killed):
        run_train(*words)
    monkeypatch.setattr(train, "update", whole)


def steps(folder):
    return [json.loads(text)["step"] for text in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("updates", [1, 3, 4])
def test_a_killed_training_ends_with_the_same_weights(demos, tmp_path, monkeypatch, updates):
    """Before the first checkpoint, after it, and right on the second one (a checkpoint every 2 updates, 6 in all)."""
    words = [*TINY, "--loss", "lm", "--data", demos, "--batch-size", 10, "--epochs", 2, "--schedule", "cosine", "--lr", 1e-2]
    run_train(*words, "--out", tmp_path / "whole")
    words += ["--save-every", 2, "--out", tmp_path / "cut"]
    killed_after(updates, monkeypatch, words)
    assert not (tmp_path / "cut").exists() and (tmp_path / "cut.part").exists() == (updates > 1)
    run_train(*words)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert steps(tmp_path / "cut") == steps(tmp_path / "whole") == list(range(6))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut", "whole"]


@pytest.fixture(scope="module")
def adapter(student, demos, tmp_path_factory):
    """A LoRA with dropout, trained without a break."""
    out = tmp_path_factory.mktemp("lora") / "whole"
    run_train(*lora_words(student, demos), "--out", out)
    return out


def lora_words(student, demos):
    return ["--agent", student, "--loss", "lm", "--data", demos, "--batch-size", 10, "--epochs", 2, "--lr", 1e-2,
            "--lora-rank", 4, "--lora-dropout", 0.3]


def test_a_killed_lora_goes_on_with_the_same_dropout(adapter, student, demos, tmp_path, monkeypatch):
    words = [*lora_words(student, demos), "--save-every", 2, "--out", tmp_path / "cut"]
    killed_after(3, monkeypatch, words)
    random.seed(99), torch.manual_seed(99)                                     # chance elsewhere must not matter
    run_train(*words)
    assert same(weights(adapter, "adapter_model.safetensors"), weights(tmp_path / "cut", "adapter_model.safetensors"))
    assert steps(tmp_path / "cut") == list(range(6))


def test_dropout_is_on_in_training(adapter, student, demos, tmp_path):
    run_train(*lora_words(student, demos), "--lora-dropout", 0, "--out", tmp_path / "dry")
    dry, wet = weights(tmp_path / "dry", "adapter_model.safetensors"), weights(adapter, "adapter_model.safetensors")
    assert dry.keys() == wet.keys() and not same(dry, wet)


def test_training_a_lora_again_goes_on_with_its_adapter(adapter, student, demos, tmp_path):
    """No second adapter on top of the first: the result opens with the same base model."""
    words = lora_words(student, demos)
    run_train("--agent", adapter, *words[2:], "--epochs", 1, "--out", tmp_path / "more")
    config = json.loads((tmp_path / "more" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(student)
    before, after = weights(adapter, "adapter_model.safetensors"), weights(tmp_path / "more", "adapter_model.safetensors")
    assert before.keys() == after.keys() and not same(before, after)
    assert max((before[k] - after[k]).abs().max() for k in before) < 0.1                       # three small steps from there
    agent.load(str(tmp_path / "more"))


def test_another_argument_is_refused_on_going_on(student, demos, tmp_path, monkeypatch):
    words = short(student, demos, tmp_path / "cut")
    killed_after(2, monkeypatch, words)
    with pytest.raises(BadInput, match="begun with another --lr "):
        run_train(*words, "--lr", 0.5)
    run_train(*words, "--lr", 0.5, "--overwrite")
    assert steps(tmp_path / "cut") == [0, 1, 2]


def short(student, demos, out):
    return ["--agent", student, "--loss", "lm", "--data", demos, "--batch-size", 10, "--save-every", 1, "--out", out]


@pytest.fixture(scope="module")
def unbroken(student, demos, tmp_path_factory):
    """Three updates without a break."""
    out = tmp_path_factory.mktemp("unbroken") / "out"
    run_train(*short(student, demos, out))
    return out


@pytest.mark.parametrize("deleted", ["all of it", "optimizer.pt", "state.json"])
def test_a_kill_while_a_checkpoint_replaces_the_one_before_is_mended(student, demos, unbroken, tmp_path, monkeypatch, deleted):
    """The new one is whole beside the old one, of which some files are deleted already."""
    words, old, new = short(student, demos, tmp_path / "cut"), tmp_path / "cut.part", tmp_path / "cut.part.new"
    killed_after(2, monkeypatch, words)
    shutil.copytree(old, new)
    if deleted == "all of it":
        shutil.rmtree(old)
    else:
        (old / deleted).unlink()
    run_train(*words)
    assert same(weights(unbroken), weights(tmp_path / "cut")) and steps(tmp_path / "cut") == [0, 1, 2]
    assert [p.name for p in tmp_path.iterdir()] == ["cut"]


@pytest.mark.parametrize("where", ["model", "rename"])
@pytest.mark.parametrize("every", [1, 100])
def test_a_kill_while_the_result_is_written_is_mended(student, demos, unbroken, tmp_path, monkeypatch, where, every):
    words = [*short(student, demos, tmp_path / "cut"), "--save-every", every]
    save, rename = agent.save, os.rename

    def dying_save(policy, tokenizer, folder, state):
        save(policy, tokenizer, folder, state)
        if "trajectories" in state and where == "model":
            raise Killed

    def dying_rename(old, new):
        if str(new) == str(tmp_path / "cut") and where == "rename":
            raise Killed
        rename(old, new)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(agent, "save", dying_save)
        patch.setattr(os, "rename", dying_rename)
        run_train(*words)
    run_train(*words)
    assert same(weights(unbroken), weights(tmp_path / "cut")) and steps(tmp_path / "cut") == [0, 1, 2]
    assert [p.name for p in tmp_path.iterdir()] == ["cut"]


def test_a_finished_checkpoint_is_replaced_only_when_told(student, demos, tmp_path):
    (tmp_path / "old").mkdir()
    with pytest.raises(BadInput, match="is there already; give --overwrite"):
        run_train("--agent", student, "--loss", "lm", "--data", demos, "--out", tmp_path / "old")


# ------------------------------------------------------------------------------------------------------ train: one update

def gradient(student, words, micro_batch):
    """The gradient of one update over all the data, by name: what plain descent with rate 1 takes off the weights."""
    args = train_args("--agent", student, "--out", "unused", "--micro-batch", micro_batch, "--max-grad-norm", 1e9, *words)
    policy, tokenizer = agent.load(str(student))
    with torch.no_grad():
        policy.value_head.weight.fill_(0.1)
    before = {k: v.detach().clone() for k, v in policy.named_parameters()}
    optimizer = torch.optim.SGD(policy.parameters(), lr=1)
    metrics = train.update(policy, optimizer, train.load_samples(args, tokenizer), args, "cpu")
    return {k: before[k] - v.detach() for k, v in policy.named_parameters()}, metrics


@pytest.mark.parametrize("loss", ["lm", "ltc"])
def test_micro_batches_change_nothing(student, demos, played, loss):
    """8 trajectories at once, 3 at a time and one at a time give one gradient: no sum is divided by a micro-batch's own count."""
    words = ["--loss", loss, "--data", played if loss == "ltc" else demos, "--n-train", 8]
    (whole, a), *others = [gradient(student, words, size) for size in (8, 3, 1)]
    assert max(g.abs().max() for g in whole.values()) > 1e-2
    for parts, b in others:
        assert max((whole[k] - parts[k]).abs().max() for k in whole) < 1e-6
        assert {k: b[k] for k in a} == pytest.approx(a, abs=1e-5)


def test_a_long_gradient_is_clipped(student, demos):
    grads, metrics = gradient(student, ["--loss", "lm", "--data", demos, "--max-grad-norm", 0.01], 8)
    assert metrics["grad_norm"] > 0.1                                         # as it was before
    assert sum((g ** 2).sum() for g in grads.values()).sqrt() == pytest.approx(0.01, rel=1e-3)


def test_the_first_ratio_on_what_was_just_explored_is_one(student, played, tmp_path):
    run_train("--agent", student, "--loss", "ltc", "--data", played, "--batch-size", 4, "--lr", 1e-2, "--out", tmp_path / "ltc")
    first, second = [json.loads(text) for text in (tmp_path / "ltc" / "metrics.jsonl").read_text().splitlines()]
    assert first["ratio_error"] < 1e-4 and first["clip_fraction"] == 0 and abs(first["approx_kl"]) < 1e-5
    assert second["ratio_error"] > 1e-3
    assert {"loss", "lm", "policy", "value", "entropy", "explained_variance", "grad_norm", "lr", "tokens_per_s"} <= first.keys()
    state = json.loads((tmp_path / "ltc" / "state.json").read_text())
    assert state["trajectories"] == 8 and state["args"]["loss"] == "ltc"


def test_failures_lower_their_own_probability(student, played, tmp_path):
    """All episodes failed, so after an update on them the agent says each of those things more rarely, and expects less."""
    run_train("--agent", student, "--loss", "ltc", "--data", played, "--lr", 1e-3, "--entropy", 0, "--out", tmp_path / "ltc")
    policy, tokenizer = agent.load(str(tmp_path / "ltc"))
    args = train_args("--agent", "x", "--data", played, "--out", "x")
    batch = buffer.collate(train.load_samples(args, tokenizer))
    keep = batch["policy"] > 0
    with torch.no_grad():
        logits, values = policy.eval()(batch["tokens"], keep)
    logp = torch.log_softmax(logits / 0.7, -1).gather(-1, batch["tokens"][keep][:, None])[:, 0]
    assert (logp - batch["logprobs"][keep]).mean() < 0 and values.mean() < 0


def test_a_schedule_warms_up_and_ends_at_zero():
    args = train_args("--agent", "x", "--data", "x", "--out", "x", "--schedule", "cosine")
    rates = [train.rate(step, 100, args) for step in range(100)]
    assert rates[:5] == pytest.approx([.2, .4, .6, .8, 1]) and rates[-1] < 1e-3
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert train.rate(0, 1, args) == 1


def test_every_epoch_is_another_order_of_the_same(student):
    args = train_args("--agent", "x", "--data", "x", "--out", "x", "--epochs", 2, "--batch-size", 4)
    found = [[s["id"] for s in b] for b, _ in train.batches(samples_of_lengths(range(10)), args)]
    assert [len(b) for b in found] == [4, 4, 2] * 2
    one, two = sum(found[:3], []), sum(found[3:], [])
    assert sorted(one) == sorted(two) == list(range(10)) and one != two
    assert found == [[s["id"] for s in b] for b, _ in train.batches(samples_of_lengths(range(10)), args)]


def samples_of_lengths(lengths):
    return [{"id": i, "tokens": [0] * n} for i, n in enumerate(lengths)]


def test_batches_are_shuffled_whatever_their_lengths():
    """Every epoch has all samples, in an order of its own that the seed gives."""
    samples = [{"tokens": [0] * n} for n in range(1, 25)]
    args = train_args("--agent", "x", "--data", "x", "--out", "x", "--batch-size", 6, "--epochs", 2, "--seed", 3)
    found = [[len(s["tokens"]) for s in batch] for batch, _ in train.batches(samples, args)]
    first, second = sum(found[:4], []), sum(found[4:], [])
    assert [len(batch) for batch in found] == [6] * 8 and sorted(first) == sorted(second) == list(range(1, 25))
    assert first != second and found == [[len(s["tokens"]) for s in batch] for batch, _ in train.batches(samples, args)]
    assert sum(max(batch) - min(batch) > 6 for batch in found) >= 6                 # long and short ones together


# -------------------------------------------------------------------------------------------------------------- bad input

def test_a_users_mistake_is_one_line_and_exit_code_two(capsys):
    def main():
        raise BadInput("x.jsonl: gone")
    with pytest.raises(SystemExit) as exit:
        errors.run(main)
    assert exit.value.code == 2 and capsys.readouterr().err == "error: x.jsonl: gone\n"
    with pytest.raises(ZeroDivisionError):
        errors.run(lambda: 1 / 0)


@pytest.mark.parametrize("program, words", [
    ("explore.py", "--agent expert --env chess --out x.jsonl"), ("explore.py", "--agent expert --split tomorrow --out x.jsonl"),
    ("evaluate.py", "--agent expert --data nowhere --out x"), ("train.py", "--agent tiny --data gone.jsonl --out x")])
def test_bad_input_ends_the_process_with_one_line(program, words, tmp_path):
    done = subprocess.run([sys.executable, ROOT / program, *words.split()], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(r"error: [^\n]+\n", done.stderr)


def test_help_does_not_wait_for_torch():
    script = """
import io, contextlib, runpy, sys
for program in ("explore.py", "train.py", "evaluate.py"):
    sys.argv = [program, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as exit:
            assert not exit.code, program
    assert "--agent" in text.getvalue() and "torch" not in sys.modules, program
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


@pytest.mark.parametrize("words, says", [
    (["--env", "chess"], "--env chess: no such environment"), (["--split", "tomorrow"], "--split tomorrow"),
    (["--data", "/nowhere"], "--data /nowhere: there is no folder json_2.1.1/train"),
    (["--agent", "expert:often"], "write expert:SHARE with a number"), (["--agent", "tiny"], "--agent tiny: no model there"),
    (["--agent", "no/such"], "--agent no/such: no model there")])
def test_explore_says_what_is_wrong(tmp_path, words, says):
    with pytest.raises(BadInput, match=says):
        run_explore("--agent", "expert", "--limit", 1, *words, "--out", tmp_path / "x.jsonl")


@pytest.mark.parametrize("text", ["no game", "{}", '{"pddl_problem": "(define (problem x"}'])
def test_a_game_file_that_is_no_game_is_named(tmp_path, text):
    trial = tmp_path / "json_2.1.1" / "train" / "pick_heat-Mug-1" / "trial_1"
    trial.mkdir(parents=True)
    (trial / "game.tw-pddl").write_text(text)
    with pytest.raises(BadInput, match=r"game\.tw-pddl"):
        run_explore("--agent", "expert", "--data", tmp_path, "--out", tmp_path / "x.jsonl")


def write(folder, *trajectories):
    buffer.write(folder / "t.jsonl", trajectories)
    return folder / "t.jsonl"


def wrong(tmp_path, says, *words):
    with pytest.raises(BadInput, match=says):
        run_train(*words, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_train_says_which_data_is_missing_empty_or_broken(student, tmp_path):
    wrong(tmp_path, "gone.jsonl: cannot be read", "--agent", student, "--data", tmp_path / "gone.jsonl")
    (tmp_path / "t.jsonl").write_text("")
    wrong(tmp_path, "t.jsonl: no trajectories", *TINY, "--data", tmp_path / "t.jsonl")
    (tmp_path / "t.jsonl").write_text("{}\n")
    wrong(tmp_path, "t.jsonl:1: not a trajectory", *TINY, "--data", tmp_path / "t.jsonl")


def test_train_needs_a_model(demos, tmp_path):
    wrong(tmp_path, "--agent nowhere: no model there", "--agent", "nowhere", "--loss", "lm", "--data", demos)


def test_a_broken_checkpoint_is_named(student, demos, tmp_path):
    for file, text in (("state.json", "{"), ("model.safetensors", "rubbish"), ("value_head.safetensors", "rubbish")):
        shutil.copytree(student, tmp_path / "broken", dirs_exist_ok=True)
        (tmp_path / "broken" / file).write_text(text)
        wrong(tmp_path, "broken", "--agent", tmp_path / "broken", "--loss", "lm", "--data", demos)


def test_a_trajectory_in_which_nobody_speaks_is_left_out(student, demos, tmp_path, capsys):
    """One of many stops nothing; where it is the only one there is nothing to learn from."""
    silent = line("silent")
    silent.segments[1].source = SYSTEM
    data = write(tmp_path, silent)
    wrong(tmp_path, "nothing to learn from", "--agent", student, "--loss", "lm", "--data", data)
    run_train(*short(student, demos, tmp_path / "more"), "--data", demos, data)
    assert "30 of 31 trajectories to learn from" in capsys.readouterr().err


def test_ltc_needs_recorded_log_probabilities(student, demos, tmp_path):
    wrong(tmp_path, "no log-probabilities were recorded", "--agent", student, "--loss", "ltc", "--data", demos)


def test_lm_needs_a_success(student, played, tmp_path):
    wrong(tmp_path, "no trajectory has a positive reward", "--agent", student, "--loss", "lm", "--data", played)


def test_data_of_another_vocabulary_is_refused(played, tmp_path):
    tokenizer = tokenizer_for(["go to desk 1"], ["go to"], ["desk"])
    agent.save(agent.make_tiny(tokenizer, 32, 2, 2), tokenizer, str(tmp_path / "other"), {})
    wrong(tmp_path, "was recorded with another vocabulary", "--agent", tmp_path / "other", "--loss", "ltc", "--data", played)


def test_a_loss_that_is_not_finite_stops_and_changes_nothing(student, played, tmp_path):
    damaged = buffer.read(played)
    for t in damaged:
        for s in t.segments:
            s.logprobs = [-1e30 for _ in s.logprobs] if s.logprobs else None
    wrong(tmp_path, "the loss is (inf|nan)", "--agent", student, "--loss", "ltc", "--data", write(tmp_path, *damaged))


@pytest.mark.parametrize("words, says", [
    (["--width", 30, "--heads", 4], "--heads"), (["--layers", 1], "--value-layer"), (["--value-layer", 7], "--value-layer")])
def test_shapes_that_cannot_be_are_named(demos, tmp_path, words, says):
    wrong(tmp_path, says, *TINY, *words, "--loss", "lm", "--data", demos)


@pytest.mark.parametrize("words, says", [(["--lora-target", "nose"], "--lora-target"), (TINY, "--lora-rank")])
def test_adapters_that_cannot_be_are_named(student, demos, tmp_path, words, says):
    """Projections that the model has not, and an adapter on a model that has learnt nothing yet."""
    wrong(tmp_path, says, "--agent", student, "--lora-rank", 4, *words, "--loss", "lm", "--data", demos)


@pytest.mark.parametrize("program, option", [
    (explore, "--limit"), (explore, "--slots"), (explore, "--max-tokens"), (train, "--batch-size"), (train, "--micro-batch"),
    (train, "--n-train"), (train, "--epochs"), (train, "--save-every")])
def test_counts_must_be_positive(program, option, capsys):
    """0 of them would divide by zero, wait for ever, or mean "all"."""
    with argv("--agent", "x", "--data", "x", "--out", "x", option, 0), pytest.raises((SystemExit, BadInput)) as error:
        program.parse()
    assert option in capsys.readouterr().err + str(error.value)


def test_evaluate_says_what_is_wrong(tmp_path):
    with pytest.raises(BadInput, match="--agent nowhere: no model there"):
        run_evaluate("--agent", "nowhere", "--limit", 1, "--out", tmp_path / "x")


def test_a_mistyped_argument_ends_with_code_two():
    with argv("--agent", "expert", "--colour", "red"), pytest.raises(SystemExit) as exit:
        explore.parse()
    assert exit.value.code == 2


def test_the_value_head_has_a_learning_rate_of_its_own(student, played, tmp_path):
    """AdamW's first step moves every weight that has a gradient by about its learning rate."""
    from safetensors.torch import load_file
    for name, words in (("own", ["--value-lr", 0.1]), ("same", [])):
        run_train("--agent", student, "--data", played, "--lr", 1e-3, *words, "--out", tmp_path / name)
    moved = {name: load_file(tmp_path / name / "value_head.safetensors")["bias"].abs().item() for name in ("own", "same")}
    assert moved["own"] == pytest.approx(0.1, rel=0.05) and moved["same"] == pytest.approx(1e-3, rel=0.05)


def test_explained_variance_by_hand():
    """Targets +-1 (variance 1), values +-0.5: the rest has variance 1/4. Tokens without a value weight do not count."""
    sample = {"target": [9, 1, 1, -1, -1], "old_values": [0, .5, .5, -.5, -.5], "value": [0, 1, 1, 1, 1]}
    assert train.explained_variance([sample]) == pytest.approx(.75)
