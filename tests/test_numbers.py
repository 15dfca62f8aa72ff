"""Masks, rewards, advantages and every loss term against numbers computed by hand."""
import math
from argparse import Namespace

import pytest
import torch

import buffer
import train
from buffer import OTHER, OWN, SYSTEM


def close(got, wanted, tolerance=1e-6):
    assert torch.as_tensor(got, dtype=torch.float64).flatten().tolist() == pytest.approx(wanted, abs=tolerance)


# ------------------------------------------------------------------------------------------------------------------ masks

MASK = [0, 2, 1, 1, 0, 1]


def test_policy_and_value_masks():
    assert buffer.policy_mask(MASK) == [0, 1, 1, 1, 0, 1]
    assert buffer.value_mask(MASK) == [0, 0, 1, 1, 0, 1]


@pytest.mark.parametrize("tokens, positive, wanted", [
    ("own", True, [0, 0, 1, 1, 0, 1]), ("own", False, [0] * 6),
    ("spoken", True, [0, 1, 1, 1, 0, 1]), ("spoken", False, [0] * 6),
    ("all-positive", True, [1] * 6), ("all-positive", False, [0] * 6),
    ("all", True, [1] * 6), ("all", False, [1] * 6)])
def test_lm_mask(tokens, positive, wanted):
    assert buffer.lm_mask(MASK, [positive] * 6, tokens) == wanted


def test_lm_mask_weighs_system_tokens():
    assert buffer.lm_mask(MASK, [True] * 6, "all-positive", system_weight=0.5) == [0.5, 1, 1, 1, 0.5, 1]
    assert buffer.lm_mask(MASK, [True] * 6, "own", system_weight=0.5) == [0, 0, 1, 1, 0, 1]


@pytest.mark.parametrize("mask, rewards, wanted", [
    ([0, 1, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 1, 0]), ([0, 1, 0, 0, 0], [0, 0, -1, 0, 1], [0, -1, 0, 0, 0]),
    ([1, 0, 2, 0], [0, -1, 1, -1], [-1, 0, 1, 0]), ([0, 0, 1], [1, 0, 0], [0, 0, 0]), ([1, 1, 0], [0, 1, -1], [0, 1, 0])])
def test_a_reward_pays_what_was_said_since_the_reward_before_it(mask, rewards, wanted):
    assert buffer.effective_rewards(mask, rewards) == wanted


def test_index_zero_is_never_a_target():
    sample = {name: [1.0, 1.0] for name in ("lm", "policy", "value")} | {"tokens": [5, 6]}
    batch = buffer.collate([sample])
    for name in ("lm", "policy", "value"):
        assert batch[name].tolist() == [[0.0, 1.0]]


# -------------------------------------------------------------------------------------------------- rewards and advantages

VALUES = [.1, .2, .4, .5]


@pytest.mark.parametrize("reward, gamma, lam, wanted", [
    (1, 1, 1, [.9, .8, .6, .5]), (-1, 1, 1, [-1.1, -1.2, -1.4, -1.5]),
    (1, 1, .95, [.808937, .74625, .575, .5]), (-1, 1, .95, [-.905812, -1.05875, -1.325, -1.5]),
    (1, .99, .95, [.782324, .727618, .56525, .5]), (-1, .99, .95, [-.881496, -1.041463, -1.31575, -1.5])])
def test_gae(reward, gamma, lam, wanted):
    advantage, target = buffer.advantages([OWN] * 4, [0, 0, 0, reward], VALUES, gamma, lam)
    close(advantage, wanted)
    close(target, [a + v for a, v in zip(wanted, VALUES)])


@pytest.mark.parametrize("reward, wanted", [(1, [.908937, .94625, .975, 1]), (-1, [-.805812, -.85875, -.925, -1])])
def test_value_targets(reward, wanted):
    close(buffer.advantages([OWN] * 4, [0, 0, 0, reward], VALUES, 1, .95)[1], wanted)


@pytest.mark.parametrize("reward, wanted", [
    (1, [.661594, .561594, .361594, .261594]), (-1, [-.861594, -.961594, -1.161594, -1.261594])])
def test_squashed_returns(reward, wanted):
    advantage, target = buffer.advantages([OWN] * 4, [0, 0, 0, reward], VALUES, squash=True)
    close(advantage, wanted)
    close(target, [math.tanh(reward)] * 4)


def test_gae_skips_the_tokens_of_others():
    """lambda < 1 must not be distorted by tokens without a value between the own ones."""
    mask, values = [0, 1, 0, 0, 1, 2, 1, 0, 1], [0, .1, 0, 0, .2, 0, .4, 0, .5]
    advantage, _ = buffer.advantages(mask, [0] * 8 + [1], values, 1, .95)
    close([a for a, m in zip(advantage, mask) if m == OWN], [.808937, .74625, .575, .5])
    assert [a for a, m in zip(advantage, mask) if m == SYSTEM] == [0] * 4


def test_reward_of_a_system_token_moves_to_the_last_own_token():
    mask = [0, 1, 1, 0, 1, 1, 0]
    moved = buffer.effective_rewards(mask, [0, 0, 0, 0, 0, 0, 1])
    assert [r for r, m in zip(moved, mask) if m == OWN] == [0, 0, 0, 1]
    assert sum(moved) == 1 and buffer.effective_rewards([0, 1], [1, 0]) == [0, 0]


@pytest.mark.parametrize("credit, wanted", [("whole", [1, 1, 2, 2, 1, 1]), ("local", [-1, -1, 1, 1, 1, 1])])
def test_credit_of_a_corrected_answer(credit, wanted):
    """Analogue: wrong answer -1, teacher's answer +1, the student's new answer +1; two tokens each."""
    mask, rewards = [1, 1, 2, 2, 1, 1], [0, -1, 0, 1, 0, 1]
    advantage, target = buffer.advantages(mask, rewards, [0.0] * 6, credit=credit)
    close(advantage, wanted)
    close(target, [0 if m == OTHER else w for m, w in zip(mask, wanted)])


def test_whole_credit_subtracts_the_values():
    mask, values = [1, 1, 2, 2, 1, 1], [.1, .2, 0, 0, .3, .4]
    advantage, target = buffer.advantages(mask, [0, -1, 0, 1, 0, 1], values, credit="whole")
    close(advantage, [.9, .8, 2, 2, .7, .6])
    close(target, [1, 1, 0, 0, 1, 1])


# ------------------------------------------------------------------------------------------------------------------- terms

@pytest.mark.parametrize("ratio, advantage, loss, live", [
    (1.5, 1, -1.2, False), (1.5, -1, 1.5, True), (.5, 1, -.5, True), (.5, -1, .8, False), (1.1, 2, -2.2, True)])
def test_clipped_surrogate(ratio, advantage, loss, live):
    logp = torch.tensor([math.log(ratio)], requires_grad=True)
    got, _ = train.policy_loss(logp, torch.zeros(1), torch.tensor([float(advantage)]), torch.ones(1), 1, .2)
    got.backward()
    close(got, [loss])
    assert bool(logp.grad.abs() > 0) == live


def test_clipped_surrogate_is_a_mean_over_the_mask():
    logp = torch.tensor([1.5, 1.5, .5, .5, 7]).log()
    got, _ = train.policy_loss(logp, torch.zeros(5), torch.tensor([1., -1, 1, -1, 5]), torch.tensor([1., 1, 1, 1, 0]), 4, .2)
    close(got, [.15])


@pytest.mark.parametrize("advantage, loss, live", [(1, -.183940, True), (-1, .8, False)])
def test_teacher_token_with_the_programs_log_probability(advantage, loss, live):
    """log pi_old = 1 makes the ratio p / e: only a positive advantage can teach."""
    logp = torch.tensor([math.log(.5)], requires_grad=True)
    got, ratio = train.policy_loss(logp, torch.ones(1), torch.tensor([float(advantage)]), torch.ones(1), 1, .2)
    got.backward()
    close(ratio.detach(), [.183940])
    close(got, [loss])
    assert bool(logp.grad.abs() > 0) == live


def test_value_term():
    close(train.value_loss(torch.tensor([.1, -.3, .5]), torch.ones(3), torch.tensor([1., 1, 0]), 2), [1.25])


@pytest.mark.parametrize("probabilities, wanted", [([.5, .25, .25], -.010397), ([.7, .2, .1], -.008018), ([.25] * 4, -.013863)])
def test_entropy_term(probabilities, wanted):
    close(train.entropy_loss(torch.tensor([probabilities]).log(), torch.ones(1), 1, .01), [wanted])


@pytest.mark.parametrize("beta_on, wanted", [("rl", 2.182896), ("lm", 1.365792)])
def test_total(beta_on, wanted):
    close(train.total_loss(2, -.25, 1.25, -.009207699, .5, .5, beta_on), [wanted])


# -------------------------------------------------------------------------------------------------------------- end to end

@pytest.mark.parametrize("terminal, wanted", [
    (1, {"lm": .395495, "policy": -.803333, "value": .485, "entropy": -.008721, "loss": .110718}),
    (-1, {"lm": 0, "policy": 1.303333, "value": 1.885, "entropy": -.008721, "loss": 1.118556})])
def test_ltc_loss_from_record_to_total(terminal, wanted):
    """Five tokens: system, teacher, own, system, own. The teacher's advantage is its return, the own ones' return - V_old."""
    logp = [-.551445, -.551445, -.551445, -.239545]                                   # of x[1..4], by hand
    ratios, mask = [1, 1.3, 1, .9], [0, 2, 1, 0, 1]
    old = [0] + [x - math.log(r) for x, r in zip(logp, ratios)]
    t = buffer.Trajectory(id="a", task="a", reward=terminal)
    for i, (token, source) in enumerate(zip([0, 1, 2, 0, 1], mask)):
        s = t.add(str(token), source, "act")
        s.tokens = [token]
        if source != SYSTEM:
            s.logprobs, s.values = [old[i]], [[0, 0, .2, 0, .5][i]]
    t.segments[-1].reward, t.reward = terminal, terminal
    args = settings()
    sample = train.make_sample(t, args)
    batch = buffer.collate([sample])
    keep = (batch["lm"] > 0) | (batch["policy"] > 0)
    logits = torch.tensor([[0., 1, 0], [0, 0, 1], [1, 0, 0], [0, 2, 0]])[keep[0, 1:]]
    values = torch.tensor([.3, .1, 0, .6])[keep[0, 1:]]
    totals = {name: max(sum(sample[name][1:]), 1e-8) for name in ("lm", "policy", "value")}
    loss, terms = train.losses(logits, values, {k: x[keep] for k, x in batch.items()}, totals, args)
    for name, value in {**terms, "loss": loss}.items():
        if name in wanted:
            close(value, [wanted[name]], 2e-6)


def settings(**changes):
    """The arguments of train.py that the losses read, at their defaults."""
    return Namespace(**{**dict(loss="ltc", top=None, max_length=None, lm_tokens="own", lm_system_weight=1.0, gamma=1.0,
                               gae_lambda=1.0, credit="local", squash_returns=False, teacher_logprob="student",
                               policy_tokens="spoken", clip=.2, entropy=.01, beta=.5, value_weight=.5, beta_on="rl"), **changes})
