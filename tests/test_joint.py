"""CoMLRL: rollout trees, their returns and advantages, temporal differences, external transitions, a team's training."""
import asyncio
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import TINY, begun, run_evaluate, run_explore, run_train, train_args

import agent
import buffer
import patterns
import train
from buffer import OWN, SYSTEM
from envs import coding, summaries
from errors import BadInput
from others import team

SHORT = ["--env", "summaries", "--max-tokens", 8, "--max-length", 120, "--slots", 8]


def near(wanted):
    return pytest.approx(wanted, abs=1e-6)


# ---------------------------------------------------------------------------------------------------- SPEC G9 and G10, by hand

def test_returns_of_an_aligned_tree():
    children = [[.5, .1], [1, .4]]
    assert buffer.tree_returns([.2, .6], children) == near([.5, 1.3])
    assert buffer.tree_returns([.2, .6], children, .9) == near([.47, 1.23])
    assert buffer.tree_returns([.2, .6], [None, None]) == near([.2, .6])


@pytest.mark.parametrize("returns, baseline, normalise, wanted", [
    ([.5, 1.3], "mean", False, [-.4, .4]), ([.5, 1.3], "rloo", False, [-.8, .8]), ([.5, 1.3], "max", False, [-.8, 0]),
    ([.5, 1.3], "raw", False, [.5, 1.3]), ([.5, 1.3], "mean", True, [-1, 1]),
    ([1, 2, 3, 6], "mean", False, [-2, -1, 0, 3]), ([1, 2, 3, 6], "max", False, [-5, -4, -3, 0]),
    ([1, 2, 3, 6], "rloo", False, [-2.666667, -1.333333, 0, 4]),
    *[([1, 2, 3, 6], b, True, [-1.069045, -.534522, 0, 1.603567]) for b in ("mean", "raw", "max", "rloo")],
    *[([.3, .3, .3], b, True, [0, 0, 0]) for b in ("mean", "raw", "max", "rloo")]])
def test_advantages_of_a_group(returns, baseline, normalise, wanted):
    assert buffer.group_advantages(returns, baseline, normalise) == near(wanted)


def test_leave_one_out_needs_another():
    with pytest.raises(ValueError, match="at least 2"):
        buffer.group_advantages([1.0], "rloo")


def test_cross_credit():
    actions = buffer.joint_actions(2, 2, "cross")
    assert actions == [(0, 0), (0, 1), (1, 0), (1, 1)] and buffer.joint_actions(3, 2, "aligned") == [(0, 0, 0), (1, 1, 1)]
    returns = buffer.tree_returns([.1, .3, .5, .9], [[.3], [.2, 0], [.5], [.4, .6]])
    assert returns == near([.4, .4, 1, 1.4])
    sums = [buffer.completion_returns(returns, actions, i, 2) for i in range(2)]
    assert sums == [near([.8, 2.4]), near([1.4, 1.8])]
    assert buffer.group_advantages(sums[0], normalise=False) == near([-.8, .8])
    assert buffer.group_advantages(sums[1], normalise=False) == near([-.2, .2])


@pytest.mark.parametrize("rewards, values, gamma, targets", [
    ([.2, .5, 1], [.4, .6, .7], .9, [.74, 1.13, 1]), ([.2, .5, 1], [.4, .6, .7], 1, [.8, 1.2, 1]),
    ([.2, .5], [.4, .6], .9, [.74, .5]), ([.2, .5, 1], [.1, .2, .9], .9, [.38, 1.31, 1])])
def test_td_targets(rewards, values, gamma, targets):
    assert buffer.td_targets(rewards, values, gamma) == near(targets)


def test_deltas_of_a_group_are_normalised():
    assert buffer.normalised([.34, .10]) == near([1, -1]) and buffer.normalised([.3, .3]) == near([0, 0])


def test_critic_term():
    old, target = torch.tensor([.4, .6, .7]), torch.tensor([.74, 1.13, 1.0])
    loss = train.critic_loss(old, old, target, torch.ones(3), 3)
    assert loss.item() == near(.162167) and (.6 * loss).item() == near(.0973)


@pytest.mark.parametrize("target, wanted", [(.74, .0256), (1.2, .36)])
def test_value_clip_takes_the_larger_error(target, wanted):
    value, one = torch.tensor([.9]), torch.ones(1)
    assert train.critic_loss(value, torch.tensor([.4]), torch.tensor([target]), one, 1, clip=.2).item() == near(wanted)


@pytest.mark.parametrize("loss, wanted", [("iac", .36), ("maac", .09)])
def test_only_a_shared_backbone_is_clipped(loss, wanted):
    """V .9, before .4, target 1.2; and the sum of the two terms."""
    b = {"tokens": torch.tensor([1]), "lm": torch.tensor([.34]), "old_values": torch.tensor([.4]), "target": torch.tensor([1.2]),
         "value": torch.ones(1)}
    args = samples_of(loss, "x")
    total, terms = train.losses(torch.zeros(1, 4), torch.tensor([.9]), b, {"completions": 1}, args)
    assert terms["critic"].item() == near(wanted) and terms["actor"].item() == near(.34 * math.log(4))
    assert total.item() == near(.34 * math.log(4) + .6 * wanted)


def test_actor_term():
    """Over the tokens of a completion: log p -3 in three tokens, delta .34."""
    logp = torch.tensor([-1.0, -1.5, -.5])
    assert train.actor_loss(logp, torch.full((3,), .34), 1).item() == near(1.02)
    assert train.actor_loss(logp, torch.full((3,), .34), 4).item() == near(.255)


# ----------------------------------------------------------------------------------------------------------- the tree, played

class Stub:
    """A team whose answers name the place where they were said, and what asked for them."""

    def __init__(self, mode="aligned", turns=2, generations=2, agents=2, stop_above=None, reward=lambda texts: 0.0, new=None):
        self.judged, self.transitions, self.reward, self.new = [], [], reward, new
        self.tree = patterns.Tree(self.begin, self.complete, self.judge, self.transition, self.values, agents, turns, generations,
                                  mode, stop_above)

    def begin(self, path, number, k):
        return buffer.Trajectory(id=f"{path}{number}{k}", task="t", group=str(path), agent=number, turn=len(path) + 1)

    async def complete(self, number, t):
        await asyncio.sleep(0)
        t.add(f"<{t.id}>", OWN, "completion")

    async def judge(self, texts):
        self.judged.append(texts)
        return SimpleNamespace(reward=self.reward(texts), won=self.reward(texts) >= .5, metrics={"share": len(self.judged)})

    async def transition(self, completions, prompts, responses):
        self.transitions.append((completions, prompts, responses))
        new = [f"{p[-1]} {c}" for p, c in zip(prompts, completions)]
        return self.new(new) if self.new else new

    async def values(self, path, prompts):
        return [], []

    def grow(self):
        return asyncio.run(patterns.joint(self.tree, ["a"] * self.tree.agents))


@pytest.mark.parametrize("mode, actions, nodes, leaves, evaluations, answers", [("aligned", 2, 3, 4, 6, 6), ("cross", 4, 5, 16, 20, 10)])
def test_counts_of_a_tree(mode, actions, nodes, leaves, evaluations, answers):
    """SPEC G9: N = T = G = 2."""
    stub = Stub(mode)
    returns, found = stub.grow()
    assert len(returns) == actions == len(stub.transitions) and len({t.group for t in found}) == nodes
    assert len(stub.judged) == evaluations and sum(t.agent == 0 for t in found) == answers == sum(t.agent == 1 for t in found)
    assert evaluations - actions == leaves
    assert [t.turn for t in found[-4:]] == [1] * 4                                         # the root comes last


def test_three_turns_of_one_answer_are_a_chain():
    stub = Stub(turns=3, generations=1, agents=3)
    _, found = stub.grow()
    assert [(t.turn, t.agent) for t in found] == [(turn, i) for turn in (3, 2, 1) for i in range(3)]
    assert [len(history[0]) for _, history, _ in stub.transitions] == [1, 2]               # histories include the turn just ended


def test_a_branch_knows_nothing_of_its_siblings():
    stub = Stub(turns=3)
    _, found = stub.grow()
    for t in found:
        path = [int(j) for j in t.group.strip("()").replace(",", " ").split()]
        for depth, j in enumerate(path):
            own, sibling = (f"<{tuple(path[:depth])}{t.agent}{k}>" for k in (j, 1 - j))
            assert own in t.segments[0].text and sibling not in t.segments[0].text
        assert t.segments[0].text.count("<") == len(path)
    for completions, prompts, responses in stub.transitions:
        assert [said[-1] for said in responses] == completions and all(len(p) == len(r) for p, r in zip(prompts, responses))


def test_what_a_tree_has_earned_is_in_the_record():
    """Aligned: root rewards .2, .6; children .5, .1 and 1, .4 (SPEC G9)."""
    rewards = {"<()00>": .2, "<()01>": .6, "<(0,)00>": .5, "<(0,)01>": .1, "<(1,)00>": 1.0, "<(1,)01>": .4}
    returns, found = Stub(reward=lambda texts: rewards[texts[0]]).grow()
    assert returns == near([.5, 1.3])
    root = [t for t in found if t.turn == 1 and t.agent == 1]
    assert [t.metrics["return"] for t in root] == near([.5, 1.3]) and [t.reward for t in root] == near([.2, .6])
    assert root[0].metrics["reward_mean"] == near(.4) and root[0].metrics["expected_return"] == near(.9)
    leaf = next(t for t in found if t.id == "(1,)00")
    assert (leaf.metrics["turn_1/reward_mean"], leaf.metrics["turn_2/reward_mean"]) == near((.6, 1.0))
    assert leaf.segments[-1].reward == 1.0


def test_cross_rewards_are_shared():
    """Agent 0's answer stands in two joint actions: its reward is their mean, its return their sum."""
    table = {(0, 0): .1, (0, 1): .3, (1, 0): .5, (1, 1): .9}
    _, found = Stub("cross", turns=1, reward=lambda texts: table[int(texts[0][-2]), int(texts[1][-2])]).grow()
    assert [t.reward for t in found] == near([.2, .7, .3, .6])
    assert [t.metrics["return"] for t in found] == near([.4, 1.4, .6, 1.2])
    assert [t.success for t in found] == [False, True, False, False]            # all joint actions with it have won


@pytest.mark.parametrize("above, nodes", [(None, 3), (.5, 3), (.4999, 1), (-.2, 1)])
def test_early_termination(above, nodes):
    """A node whose mean reward is above the threshold has no children; by default none is stopped."""
    _, found = Stub(stop_above=above, reward=lambda texts: .8 if texts[0].endswith("0>") else .2).grow()
    assert len({t.group for t in found}) == nodes


@pytest.mark.parametrize("new", [lambda prompts: prompts[:1], lambda prompts: "ab", lambda prompts: None, lambda prompts: [1, 2]])
def test_a_transition_of_the_wrong_length(new):
    with pytest.raises(BadInput, match="--external: it returned .*, not a list of 2 prompts"):
        Stub(new=new).grow()


# ------------------------------------------------------------------------------------------------------------------- the stages

@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A tiny agent that has seen both parts of the length game."""
    folder = tmp_path_factory.mktemp("pair")
    run_explore(*SHORT, "--agent", "expert,expert", "--generations", 1, "--limit", 40, "--out", folder / "demos.jsonl")
    run_train(*TINY, "--loss", "lm", "--data", folder / "demos.jsonl", "--lr", 3e-3, "--epochs", 2, "--out", folder / "it")
    return folder / "it"


@pytest.fixture(scope="module")
def rollouts(pair, tmp_path_factory):
    out = tmp_path_factory.mktemp("rollouts") / "r.jsonl"
    run_explore(*SHORT, "--agent", f"{pair},{pair}", "--generations", 3, "--limit", 4, "--out", out)
    return out


@pytest.fixture(scope="module")
def chains(pair, tmp_path_factory):
    out = tmp_path_factory.mktemp("chains") / "r.jsonl"
    run_explore(*SHORT, "--agent", f"{pair},{pair}", "--generations", 1, "--limit", 6, "--critics", pair, "--out", out)
    return out


def test_same_seed_same_trees(pair, rollouts, tmp_path):
    play = [*SHORT, "--agent", f"{pair},{pair}", "--generations", 3, "--limit", 4]
    run_explore(*play, "--out", tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == rollouts.read_bytes()
    assert len(buffer.read(rollouts)) == 4 * (1 + 3) * 2 * 3


def test_a_killed_exploration_grows_broken_trees_again(pair, rollouts, tmp_path):
    """One tree whole, one without its last line, one torn."""
    lines = rollouts.read_text().splitlines(keepends=True)
    play = [*SHORT, "--agent", f"{pair},{pair}", "--generations", 3, "--limit", 4, "--out", tmp_path / "new.jsonl"]
    begun(*play)
    (tmp_path / "new.jsonl.part").write_text("".join(lines[:24] + lines[24:47] + lines[48:50]) + lines[50][:40])
    run_explore(*play)
    one, two = (buffer.read(file) for file in (tmp_path / "new.jsonl", rollouts))
    assert [(t.id, t.metrics, [s.tokens for s in t.segments]) for t in one] == [
        (t.id, t.metrics, [s.tokens for s in t.segments]) for t in two]


def test_a_shared_prompt_is_read_once_and_changes_nothing(pair, rollouts, monkeypatch):
    """The record has the very log-probabilities of a forward pass, and fewer rows were read than answers were begun."""
    policy, tokenizer = agent.load(pair)
    for t in buffer.read(rollouts)[:12]:
        flat = buffer.flatten(t)
        tokens, keep = torch.tensor([flat["tokens"]]), torch.tensor([[m == OWN for m in flat["mask"]]])
        with torch.no_grad():
            logits, values = policy(tokens, keep)
        logp = torch.log_softmax(logits, -1).gather(-1, tokens[keep][:, None])[:, 0]
        assert logp.tolist() == pytest.approx([x for x, m in zip(flat["logprobs"], flat["mask"]) if m == OWN], abs=1e-4)
    rows, whole = [], agent.SlotCache.read

    def read(cache, policy, tokens, *rest):
        rows.append(tokens.shape)
        return whole(cache, policy, tokens, *rest)
    monkeypatch.setattr(agent.SlotCache, "read", read)
    speaker = agent.LocalAgent(policy.eval(), tokenizer, "x", 8, 120, 3)

    async def crowd():
        found = [buffer.Trajectory(id=str(i), task="t") for i in range(5)]
        for t in found:
            t.add("boat river" if t.id != "4" else "river boat", SYSTEM, "task")
        await asyncio.gather(*(speaker.reply(t, "completion") for t in found))
    asyncio.run(crowd())
    assert rows[0][0] == 2 and all(shape[1] == 1 for shape in rows[1:])


def samples_of(loss, data, **changes):
    args = train_args("--agent", "x", "--data", data, "--out", "x", "--loss", loss, "--player", changes.pop("player", 0),
                      "--max-length", 120)
    vars(args).update(changes)
    return args


def test_the_end_of_a_completion_is_trained(pair, rollouts):
    """The weights stand on all that the agent said, its end mark among it, and nothing else."""
    _, tokenizer = agent.load(pair)
    args = samples_of("magrpo", rollouts, player=1)
    trajectories = [t for t in buffer.read(rollouts) if t.agent == 1]
    ended = 0
    for samples, _ in train.joint_updates(args, tokenizer):
        for s in samples:
            own = next(t for t in trajectories if buffer.flatten(t)["tokens"] == s["tokens"]).segments[-1].tokens
            weights = s["lm"][-len(own):]
            assert not any(s["lm"][:-len(own)]) and len(set(weights)) == 1
            ended += own[-1] == tokenizer.eos_token_id
    assert ended > 5


def test_updates_are_by_turn_from_a_buffer_of_nodes(pair, rollouts):
    """Four trees of 1 + 3 nodes, a buffer of six: six nodes (turns 1, 2), six, and the four left."""
    _, tokenizer = agent.load(pair)
    updates = train.joint_updates(samples_of("magrpo", rollouts, rollout_buffer_size=6), tokenizer)
    assert [(len(samples) // 3, next(iter(told))[:6]) for samples, told in updates] == [
        (2, "turn_1"), (4, "turn_2"), (1, "turn_1"), (5, "turn_2"), (1, "turn_1"), (3, "turn_2")]
    nodes = [t for t in buffer.read(rollouts) if t.turn == 1 and t.agent == 0][::3][:2]
    told = updates[0][1]
    assert told["turn_1/reward_mean"] == near(sum(t.metrics["reward_mean"] for t in nodes) / 2)
    assert told["turn_1/expected_return"] == near(sum(t.metrics["expected_return"] for t in nodes) / 2)


def test_magrpo_compares_within_a_node(pair, rollouts):
    _, tokenizer = agent.load(pair)
    (samples, _), *_ = train.joint_updates(samples_of("magrpo", rollouts, normalise_advantages=False), tokenizer)
    nodes = {}
    for t in buffer.read(rollouts):
        if t.agent == 0 and t.turn == 1:
            nodes.setdefault(t.group, []).append(t.metrics["return"])
    wanted = [r - sum(group) / 3 for group in nodes.values() for r in group][:len(samples)]
    assert [s["lm"][-1] for s in samples] == near(wanted)


def test_td_of_a_team(pair, chains):
    """iac: V is the agent's own at its first word; maac: the critic's. Targets and deltas by hand."""
    _, tokenizer = agent.load(pair)
    trajectories = buffer.read(chains)
    assert {t.agent for t in trajectories} == {0, 1, 2}
    for loss, gamma in (("iac", .9), ("maac", 1.0)):
        updates = train.joint_updates(samples_of(loss, chains, gamma=gamma, normalise_advantages=False), tokenizer)
        mine = sorted((t for t in trajectories if t.agent == 0), key=lambda t: t.turn)
        by_tokens = {tuple(s["tokens"]): s for samples, _ in updates for s in samples}
        for t in mine:
            turns = [u for u in mine if u.task == t.task]
            value = [u.segments[-1].values[0] if loss == "iac" else u.metrics["value"] for u in turns]
            target = t.reward + (gamma * value[1] if t.turn == 1 else 0)
            s = by_tokens[tuple(buffer.flatten(t)["tokens"])]
            assert s["lm"][-1] == near(target - value[t.turn - 1])
            own = len(t.segments[-1].tokens)
            if loss == "iac":                   # V is read at the last token of the prompt, which predicts the first own one
                assert s["value"] == [float(i == len(s["tokens"]) - own) for i in range(len(s["tokens"]))]
                assert max(s["target"], key=abs) == near(target)
            else:
                assert not any(s["value"])


def test_one_critic_reads_all_prompts(chains):
    found = buffer.read(chains)
    for t in (t for t in found if t.agent == 2):
        prompts = [u.segments[1].text for u in found if u.group == t.group and u.agent < 2]
        assert t.segments[1].text == "\n".join(prompts) and len(t.segments[-1].tokens) == 1


def test_the_critic_of_a_team_learns_values_only(pair, chains):
    _, tokenizer = agent.load(pair)
    for samples, _ in train.joint_updates(samples_of("maac", chains, player=2), tokenizer):
        assert all(not any(s["lm"]) and sum(s["value"]) == 1 for s in samples)


def test_deltas_are_normalised_within_a_turn(pair, chains, tmp_path):
    _, tokenizer = agent.load(pair)
    found = buffer.read(chains)
    for i, t in enumerate(found):
        t.metrics["reward_mean"] = i / 10
    buffer.write(tmp_path / "r.jsonl", found)
    for samples, _ in train.joint_updates(samples_of("maac", tmp_path / "r.jsonl", rollout_buffer_size=6), tokenizer):
        deltas = [s["lm"][-1] for s in samples]
        assert sum(deltas) == near(0) and len(deltas) == 3
        assert sum(d * d for d in deltas) == near(len(deltas))


def test_a_delta_alone_stays_as_it_is(pair, chains):
    """Normalised to itself it would be nothing."""
    _, tokenizer = agent.load(pair)
    updates = train.joint_updates(samples_of("maac", chains, rollout_buffer_size=1), tokenizer)
    raw = train.joint_updates(samples_of("maac", chains, rollout_buffer_size=1, normalise_advantages=False), tokenizer)
    deltas = [[samples[0]["lm"][-1] for samples, _ in found] for found in (updates, raw)]
    assert deltas[0] == deltas[1] and len(deltas[0]) == 12 and all(len(samples) == 1 for samples, _ in updates)


def test_several_answers_have_no_temporal_differences(pair, rollouts, tmp_path):
    for loss in ("iac", "maac"):
        with pytest.raises(BadInput, match=f"--loss {loss}: .*3 answers at a node.*--generations 1"):
            run_train("--agent", pair, "--loss", loss, "--player", 0, "--data", rollouts, "--out", tmp_path / "x")


def test_maac_needs_a_critic(pair, rollouts, tmp_path):
    run_explore(*SHORT, "--agent", f"{pair},{pair}", "--generations", 1, "--limit", 2, "--out", tmp_path / "r.jsonl")
    with pytest.raises(BadInput, match="no critic was there"):
        run_train("--agent", pair, "--loss", "maac", "--player", 0, "--data", tmp_path / "r.jsonl", "--out", tmp_path / "x")


def test_equal_returns_move_nothing(pair, rollouts, tmp_path):
    found = buffer.read(rollouts)
    for t in found:
        t.metrics["return"] = .5
    buffer.write(tmp_path / "r.jsonl", found)
    run_train("--agent", pair, "--loss", "magrpo", "--player", 0, "--data", tmp_path / "r.jsonl", "--weight-decay", 0, "--out",
              tmp_path / "x", "--max-length", 120)
    before, after = agent.load(pair)[0].state_dict(), agent.load(tmp_path / "x")[0].state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_magrpo_raises_what_returned_most(pair, rollouts, tmp_path):
    """And the log has CoMLRL's names."""
    run_train("--agent", pair, "--loss", "magrpo", "--player", 1, "--data", rollouts, "--lr", 1e-3, "--epochs", 3, "--out",
              tmp_path / "x", "--max-length", 120)
    log = [json.loads(line) for line in open(tmp_path / "x" / "metrics.jsonl")]
    assert log[0]["actor"] == near(log[0]["loss"]) and {"turn_1/reward_mean", "turn_1/expected_return"} <= log[0].keys()
    policies = [agent.load(folder)[0] for folder in (pair, tmp_path / "x")]
    gain = {1: [], -1: []}
    for t in (t for t in buffer.read(rollouts) if t.agent == 1):
        node = [u.metrics["return"] for u in buffer.read(rollouts) if u.group == t.group and u.agent == 1]
        if (better := t.metrics["return"] - sum(node) / 3):
            flat = buffer.flatten(t)
            tokens, keep = torch.tensor([flat["tokens"]]), torch.tensor([[m == OWN for m in flat["mask"]]])
            with torch.no_grad():
                logp = [torch.log_softmax(p(tokens, keep)[0], -1).gather(-1, tokens[keep][:, None]).sum().item() for p in policies]
            gain[int(math.copysign(1, better))].append(logp[1] - logp[0])
    assert sum(gain[1]) / len(gain[1]) > sum(gain[-1]) / len(gain[-1])


def test_adapters_of_a_team_share_their_base_and_nothing_else(pair, rollouts, tmp_path):
    """Each agent's training leaves the other's files alone; explored side by side on one base, each speaks as it does alone."""
    lora = ["--lora-rank", 2, "--lora-dropout", 0, "--lora-target", "q_proj", "v_proj", "--lr", 1e-2, "--max-length", 120]
    for player in (0, 1):
        run_train("--agent", pair, "--loss", "magrpo", "--player", player, "--data", rollouts, *lora, "--out", tmp_path / str(player))
    kept = (tmp_path / "1" / "adapter_model.safetensors").read_bytes()
    run_train("--agent", tmp_path / "0", "--loss", "magrpo", "--player", 0, "--data", rollouts, *lora, "--out", tmp_path / "00")
    assert (tmp_path / "1" / "adapter_model.safetensors").read_bytes() == kept
    shared = {}
    together = [agent.load(str(tmp_path / name), shared=shared)[0] for name in ("00", "1")]
    assert len(shared) == 1 and together[0].model is together[1].model
    tokens = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        for policy, name in [*zip(together, ("00", "1")), (together[0], "00")]:
            alone = agent.load(str(tmp_path / name))[0]
            assert torch.allclose(policy.eval().read(tokens)[0], alone.eval().read(tokens)[0], atol=1e-6), name
    run_explore(*SHORT, "--agent", f"{tmp_path / '00'},{tmp_path / '1'}", "--limit", 2, "--out", tmp_path / "r.jsonl")
    for t in buffer.read(tmp_path / "r.jsonl"):
        policy = agent.load(str(tmp_path / ("00", "1")[t.agent]))[0].eval()
        flat = buffer.flatten(t)
        tokens, keep = torch.tensor([flat["tokens"]]), torch.tensor([[m == OWN for m in flat["mask"]]])
        with torch.no_grad():
            logp = torch.log_softmax(policy(tokens, keep)[0], -1).gather(-1, tokens[keep][:, None])[:, 0]
        assert logp.tolist() == pytest.approx([x for x, m in zip(flat["logprobs"], flat["mask"]) if m == OWN], abs=1e-4)


def test_a_team_trains_all_ways_and_is_measured(pair, chains, tmp_path, capsys):
    for loss, player in (("iac", 0), ("iac", 1), ("maac", 0), ("maac", 1), ("maac", 2)):
        run_train("--agent", pair, "--loss", loss, "--player", player, "--data", chains, "--max-length", 120, "--out",
                  tmp_path / f"{loss}{player}")
        log = [json.loads(line) for line in open(tmp_path / f"{loss}{player}" / "metrics.jsonl")]
        assert all("critic" in entry and math.isfinite(entry["loss"]) for entry in log)
        assert agent.load(tmp_path / f"{loss}{player}")[0].squash is False
    run_evaluate(*SHORT, "--agent", f"IAC={tmp_path / 'iac0'},{tmp_path / 'iac1'}", f"base={pair},{pair}", "--limit", 3, "--out",
                 tmp_path / "eval")
    told = json.loads((tmp_path / "eval" / "metrics.json").read_text())["agents"][0]["metrics"]
    assert told["turn_1/expected_return"] == near(told["turn_1/reward_mean"] + told["turn_2/reward_mean"])
    assert "turn_2/reward_mean" in capsys.readouterr().out


def test_one_critic_an_agent(pair, tmp_path):
    run_explore(*SHORT, "--agent", f"{pair},{pair}", "--generations", 1, "--limit", 2, "--critics", f"{pair},{pair}", "--out",
                tmp_path / "r.jsonl")
    found = buffer.read(tmp_path / "r.jsonl")
    for t in found:
        critic = next(u for u in found if u.agent == t.agent % 2 + 2 and u.group == t.group)
        assert t.metrics["value"] == critic.segments[-1].values[0]
        if t.agent < 2:
            assert critic.segments[1].text == t.segments[1].text


# ---------------------------------------------------------------------------------------------------------- external transitions

RULES = """
calls = []
def mine(prompt, agent_completions, num_agents, prompt_history_per_agent=None, response_history_per_agent=None):
    calls.append((prompt, agent_completions, prompt_history_per_agent, response_history_per_agent))
    return [f"{prompt} again {i}" for i in range(num_agents)]
def short(prompt, agent_completions, num_agents, **histories):
    return [prompt]
"""


@pytest.mark.parametrize("passthrough", [False, True])
def test_a_users_own_transition(tmp_path, passthrough):
    (tmp_path / "rules.py").write_text(RULES)
    run_explore(*SHORT, "--agent", "expert,expert", "--generations", 1, "--limit", 2, "--external", f"{tmp_path}/rules.py:mine", "--out",
                tmp_path / "r.jsonl", *(["--external-prompt-passthrough"] if passthrough else []))
    tasks = {task.id: task for task in summaries.tasks("train", limit=2)}
    for t in buffer.read(tmp_path / "r.jsonl"):
        if t.turn == 2:
            made = f"{tasks[t.task].prompt} again {t.agent}"
            assert t.segments[1].text == (made if passthrough else summaries.format_prompt(tasks[t.task], t.agent, made))


@pytest.mark.parametrize("name, says", [("rules.py:short", "not a list of 2 prompts"), ("rules.py:none", "cannot be loaded .KeyError"),
                                        ("gone.py:mine", "cannot be loaded .FileNotFoundError"), ("crossed", "choose plain")])
def test_transitions_that_do_not_work(tmp_path, name, says):
    (tmp_path / "rules.py").write_text(RULES)
    with pytest.raises(BadInput, match=says):
        run_explore(*SHORT, "--agent", "expert,expert", "--generations", 1, "--limit", 1, "--out", tmp_path / "r.jsonl", "--external",
                    f"{tmp_path}/{name}" if ":" in name else name)


def test_an_experts_edits_are_in_the_prompts(tmp_path):
    run_explore("--env", "coding", "--agent", "expert,expert", "--generations", 1, "--limit", 2, "--external", "expert_edits",
                "--expert", "expert", "--out", tmp_path / "r.jsonl")
    for t in buffer.read(tmp_path / "r.jsonl"):
        assert t.metrics["edits_refused"] == 0
        if t.turn == 2:
            assert "Proposed: def " + ("aux", "f")[t.agent] in t.segments[1].text


@pytest.mark.parametrize("words, says", [
    (["--agent", "expert"], "has 2 agents"), (["--agent", "expert,expert,expert"], "has 2 agents"),
    (["--agent", "expert,expert", "--critics", "a,b,c"], "--critics a,b,c: give one"),
    (["--agent", "expert,expert", "--critics", "expert"], "--critics expert: no checkpoint"),
    (["--agent", "expert,expert", "--external", "expert_edits"], "needs an --expert"),
    (["--agent", "expert,expert", "--expert", "expert"], "needs an --expert"),
    (["--agent", "expert,expert", "--pattern", "monologue"], "joint is for --env coding"),
    (["--agent", "expert,expert", "--env", "alfworld", "--pattern", "joint"], "joint is for --env coding")])
def test_a_team_that_does_not_fit(tmp_path, words, says):
    with pytest.raises(BadInput, match=says):
        run_explore(*SHORT, *words, "--out", tmp_path / "r.jsonl")


def test_crossed_is_no_mode(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run_explore(*SHORT, "--agent", "expert,expert", "--joint-mode", "crossed", "--out", tmp_path / "r.jsonl")
    assert "invalid choice: 'crossed'" in capsys.readouterr().err


@pytest.mark.parametrize("text, wanted", [("1", 1), ("0", 0), ("all", 0), ("-2", -2)])
def test_sandbox_slice(text, wanted):
    assert team.sandbox_slice(text) == wanted
    problem = coding.tasks("test", limit=1)[0]
    assert len(coding.sliced(problem.tests, wanted)) == {1: 1, 0: 4, -2: 2}[wanted]


@pytest.mark.parametrize("words", [["--loss", "magrpo"], ["--loss", "ltc", "--player", 0]])
def test_player_is_for_a_team(tmp_path, words):
    with pytest.raises(BadInput, match="--player"):
        run_train("--agent", "x", "--data", "x", "--out", tmp_path / "x", *words)


# ------------------------------------------------------------------------------------------------------------- the length game

POST = summaries.Post("t", "boat river stone garden winter letter brother market", 2)


@pytest.mark.parametrize("brief, detailed, reward", [
    ("boat river", "boat river stone garden", 1.0),                                 # ratio 2: 0.2 + 0.6 + 0.2
    ("boat river", "boat boat stone garden", .2 + .6 + .2 * .75),                   # a word repeated
    ("boat lamp", "boat river stone garden", .2 + .6 + .2 * .5),                    # a word that is not in the post
    ("boat river", "boat river stone", .2 + .6 * (.75 - .5) / .4 + .2),             # ratio 1.5, 0.75 of what was asked
    ("boat river", "boat river stone garden winter letter", .2 + .6 * .5 / .9 + .2),  # ratio 3
    ("boat river", "boat river", .2), ("boat", "boat river", 0), ("boat river", "boat " * 25, 0), ("", "boat river", 0)])
def test_the_reward_of_two_lengths(brief, detailed, reward):
    judged = summaries.judge(POST, [brief, detailed])
    assert judged.reward == near(reward) and judged.won == (reward >= .9)


def test_posts_of_a_file(tmp_path):
    (tmp_path / "tldr.jsonl").write_text('{"prompt": " A story. ", "completion": "x"}\n\n{"prompt": "Another."}\n')
    found = summaries.tasks("test", tmp_path / "tldr.jsonl")
    assert sorted(post.prompt for post in found) == ["A story.", "Another."] and found[0].least == 8
    assert summaries.tasks("test", tmp_path / "tldr.jsonl", limit=1) == found[:1]
    for text in ("", "{}", "[1]", "x", '{"prompt": 3}'):
        (tmp_path / "bad.jsonl").write_text(text)
        if text:
            with pytest.raises(BadInput, match="bad.jsonl: no JSONL"):
                summaries.tasks("test", tmp_path / "bad.jsonl")
    with pytest.raises(BadInput, match="--split dev"):
        summaries.tasks("dev")


@pytest.mark.parametrize("env", ["coding", "summaries"])
def test_a_second_turn_reads_what_both_have_said(tmp_path, env):
    for mode in ("plain", "level_feedback"):
        run_explore("--env", env, "--agent", "expert,expert", "--generations", 1, "--limit", 3, "--external", mode, "--overwrite", "--out",
                    tmp_path / "r.jsonl")
        found = buffer.read(tmp_path / "r.jsonl")
        for t in (t for t in found if t.turn == 2):
            before = [u.segments[-1].text for u in found if u.task == t.task and u.turn == 1]
            assert all(text in t.segments[1].text for text in before)
            assert ("Found:" in t.segments[1].text or "They have" in t.segments[1].text) == (mode == "level_feedback")


def test_files_are_named_where_they_are_wrong(tmp_path):
    with pytest.raises(BadInput, match="nowhere.*no JSONL"):
        summaries.tasks("test", Path(tmp_path / "nowhere"))
