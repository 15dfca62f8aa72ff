"""Stage 2: learn from trajectories (LTC §3.2, A.4; A3T §2.2; CoMLRL's multi-turn MAGRPO, IAC and MAAC).

    python train.py --loss lm --agent tiny --data runs/demos.jsonl --epochs 5 --lr 2e-3 --schedule cosine --out runs/it
    python train.py --loss ltc --agent runs/it --data runs/1.jsonl --lr 3e-4 --out runs/ltc-1
    python train.py --loss lm --agent runs/it --data runs/1-scored.jsonl --top 0.1 --used runs/used.jsonl --out runs/ws-1
    python train.py --loss contrast --agent runs/it --data runs/1.jsonl runs/1c.jsonl --average 3 --out runs/a3t-1
    python train.py --loss magrpo --agent runs/it --data runs/1.jsonl --player 0 --out runs/1/0

`--loss lm` is instruction tuning: cross-entropy on the positive trajectories of some agent. `--loss ltc` is the paper's sum,

    L_total = L_LM + beta (L_policy + lambda L_value + L_entropy)                                            (LTC A.4)

`--loss contrast` is A3T's policy gradient with binarised rewards, task by task (K successes, one failure):

    J = 1/(K+1) [ sum_j log p(success j) + R_fail log p(failure) ],  R_fail = -1                             (A3T §2.2)

`--loss magrpo`, `iac` and `maac` train one agent of a team (--player), or one of its critics, on joint rollouts: without ratio or
clip,

    L = - mean over completions of A log pi(completion)  [ + 0.6 (target - V(prompt))^2,  iac ]

with A = R - mean over the G completions of a node, normalised (magrpo), or r + gamma V' - V (iac: V by the agent's own head;
maac: by the critics that explored beside it). What is learnt of one agent leaves the others alone: each has a training, and
files, of its own.

Each term is one short function below, over the n tokens that some term weights; only those go through the output layer. Every
denominator is a sum over the whole update, so that cutting an update into micro-batches changes nothing (L16).

Where the paper leaves a choice, the default is the reading that the README lists as L1-L18, and an argument has the other one:
--beta-on, --lm-tokens, --gamma, --gae-lambda, --squash-returns, --teacher-logprob, --policy-tokens, --credit, --value-layer,
--replay. Not in the papers: --normalise-advantages, --max-grad-norm, --value-lr,
--lm-system-weight, --neg-floor.

A run keeps its last checkpoint in OUT.part (every --save-every updates); one that was stopped goes on from there and ends with
the same weights. OUT appears when all is there, with one JSON line an update in metrics.jsonl.
"""
import argparse
import functools
import json
import math
import operator
import os
import random
import shutil
import statistics
import sys
import time

import errors
from errors import BadInput

JOINT = ("magrpo", "iac", "maac")


def parse():
    p = argparse.ArgumentParser(description="Train an agent on recorded trajectories.")
    p.add_argument("--agent", required=True, help="where to start: tiny (from scratch), a checkpoint directory or a hub name")
    p.add_argument("--data", nargs="+", required=True, help="trajectory files, oldest first: the replay buffer")
    p.add_argument("--out", required=True, help="folder of the new checkpoint")
    p.add_argument("--loss", choices=["lm", "ltc", "contrast", *JOINT], default="ltc",
                   help="lm: instruction tuning; ltc: all four terms; contrast: successes against a failure; magrpo, iac, maac: "
                   "a team's rollouts")
    p.add_argument("--player", type=int, help="learn from this one of a team: its agents are 0 to N-1, then come its critics")
    p.add_argument("--baseline", choices=["mean", "raw", "max", "rloo"], default="mean",
                   help="magrpo: of the advantage (all alike once normalised)")
    p.add_argument("--rollout-buffer-size", type=errors.count, default=8, help="joint: nodes, for an update a turn (CoMLRL: 8)")
    p.add_argument("--value-clip", type=float, default=0.2, help="iac: how far V may go in an update (CoMLRL: 0.2)")
    p.add_argument("--replay", choices=["recent", "uniform"], default="recent", help="which of the buffer to train on (L18)")
    p.add_argument("--n-train", type=errors.count, help="how many of it (LTC's program on ALFWorld: 1024); default all")
    p.add_argument("--epochs", type=errors.count, default=1, help="passes (LTC: 1 a round, 3 of instruction tuning)")
    p.add_argument("--batch-size", type=errors.count, default=32, help="trajectories an update (LTC: 32)")
    p.add_argument("--micro-batch", type=errors.count, default=8,
                   help="trajectories a forward; changes memory and speed, not the result")
    p.add_argument("--max-length", type=errors.count, default=1024, help="longer trajectories are cut, their reward kept (L14)")
    p.add_argument("--lr", type=float, default=2e-4, help="learning rate (LTC: 2e-4)")
    p.add_argument("--value-lr", type=float, help="learning rate of the value head; default: --lr")
    p.add_argument("--schedule", choices=["constant", "cosine"], default="constant", help="cosine: from --lr to --lr-end")
    p.add_argument("--lr-end", type=float, default=0.0, help="where the cosine ends (weak supervision: 5e-6 from 5e-5)")
    p.add_argument("--warm-up", type=int, default=5, help="of the cosine, in percent of the updates (weak supervision: 0)")
    p.add_argument("--weight-decay", type=float, default=0.001, help="AdamW's (LTC's program: 0.001)")
    p.add_argument("--max-grad-norm", type=float, default=1.0, help="clip the gradient's norm")
    p.add_argument("--lm-tokens", choices=["own", "spoken", "all-positive", "all"], default="own",
                   help="tokens of the LM term (L2)")
    p.add_argument("--lm-system-weight", type=float, default=1.0, help="weight of system tokens where --lm-tokens has them")
    p.add_argument("--policy-tokens", choices=["spoken", "own"], default="spoken", help="tokens of the policy and entropy terms")
    p.add_argument("--beta", type=float, default=0.5, help="weight of the RL terms (LTC's program: 0.5)")
    p.add_argument("--beta-on", choices=["rl", "lm"], default="rl", help="rl: A.4; lm: Eq. 1, beta on the LM term (L1)")
    p.add_argument("--lambda", dest="value_weight", type=float,
                   help="weight of the value term (LTC's program: 0.5; iac and maac: 0.6), which is the default")
    p.add_argument("--entropy", type=float, default=0.01, help="weight of the entropy term (LTC: 0.01)")
    p.add_argument("--clip", type=float, default=0.2, help="PPO's epsilon (LTC's program: 0.2)")
    p.add_argument("--gamma", type=float, default=1.0, help="discount a token (L4); iac, maac: a turn")
    p.add_argument("--gae-lambda", type=float, default=1.0, help="1: advantage = return - V (L4)")
    p.add_argument("--squash-returns", action="store_true", help="tanh of the returns, as LTC's program (L4)")
    p.add_argument("--credit", choices=["local", "whole"], default="local", help="returns restart after a reward, or not (L9)")
    p.add_argument("--teacher-logprob", choices=["student", "one"], default="student",
                   help="log pi_old of another agent's tokens: the student's own, or 1.0 as LTC's program (L7)")
    p.add_argument("--normalise-advantages", action=argparse.BooleanOptionalAction,
                   help="to mean 0 and deviation 1: ltc over all spoken tokens (default: no); magrpo over a node's completions, "
                   "iac and maac over those of an update (default: yes)")
    p.add_argument("--top", type=errors.share, metavar="SHARE", help="lm: only the best-scored share, whatever its reward (0.1)")
    p.add_argument("--used", metavar="FILE", help="--top: ledger of what was trained on before, and is not to be again")
    p.add_argument("--mix", metavar="FILE", help="lm: as many general conversations, a JSONL file of messages")
    p.add_argument("--success-at", type=float, help="least reward of a success: lm (default: any above 0), contrast (A3T: 1)")
    p.add_argument("--fail-reward", type=float, default=-1.0, help="contrast: R of a failure (A3T: -1); 0: imitate only")
    p.add_argument("--k-min", type=int, default=2, help="contrast: with fewer successes the failure is left out (A3T: 2)")
    p.add_argument("--neg-floor", type=float, default=-math.inf, help="contrast: no push below this log-probability of a token")
    p.add_argument("--average", type=errors.count, help="average the weights after each of the last N epochs (A3T: 3)")
    p.add_argument("--value-layer", type=int, help="layer the value is read from: -2 paper, -1 program (L15)")
    p.add_argument("--lora-rank", type=int, default=0, help="train a LoRA adapter (LTC: 16); 0: all weights")
    p.add_argument("--lora-alpha", type=int, default=16, help="LTC: 16")
    p.add_argument("--lora-dropout", type=float, default=0.05, help="LTC's program: 0.05")
    p.add_argument("--lora-target", nargs="+", default=["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"],
                   help="projections with an adapter (default: LTC's program)")
    p.add_argument("--width", type=errors.count, default=128, help="of --agent tiny")
    p.add_argument("--layers", type=errors.count, default=3, help="of --agent tiny")
    p.add_argument("--heads", type=errors.count, default=8, help="of --agent tiny")
    p.add_argument("--dtype", choices=["float32", "bfloat16"], help="of the weights; default float32 on a CPU, bfloat16 on a GPU")
    p.add_argument("--load-4bit", action="store_true", help="weights in 4 bits (NF4, doubly quantised), and an adapter (QLoRA)")
    p.add_argument("--gradient-checkpointing", action="store_true", help="less memory, a third more time")
    p.add_argument("--plain", action="store_true", help="without the model's chat template, as it was explored")
    p.add_argument("--seed", type=int, default=0, help="of the order, dropout and --agent tiny's weights")
    p.add_argument("--save-every", type=errors.count, default=200, help="updates between checkpoints to resume from")
    p.add_argument("--threads", type=errors.count, default=1, help="CPU threads; more than one helps only bigger models")
    p.add_argument("--overwrite", action="store_true", help="replace a finished OUT, and forget an unfinished one")
    args = p.parse_args()
    if args.value_weight is None:
        args.value_weight = 0.6 if args.loss in JOINT else 0.5
    return args


if __name__ == "__main__":
    ARGS = parse()          # before the heavy imports: --help and a mistyped argument answer at once

import torch  # noqa: E402

import agent  # noqa: E402
import buffer  # noqa: E402
import envs.words  # noqa: E402
import others.chat  # noqa: E402
import ranks  # noqa: E402
import speech  # noqa: E402

# ------------------------------------------------------------------------------------------------------- the loss (LTC A.4)
# All arguments are tensors over n tokens: [n], logits [n, V]. `weight` is the term's mask, `total` its sum over the whole update.

def lm_loss(logp, weight, total):
    """Cross-entropy on tokens of positive trajectories: behaviour cloning of one's own successes."""
    return -(weight * logp).sum() / total


def policy_loss(logp, old_logp, advantage, weight, total, clip):
    """PPO's clipped surrogate over every agent's tokens, m_policy = [S_m != 0]. Also returns the ratio pi / pi_old."""
    ratio = (logp - old_logp).exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    return -(weight * surrogate).sum() / total, ratio


def value_loss(value, target, weight, total):
    """Squared error of V against the return over own tokens, m_value = [S_m = 1]."""
    return (weight * (value - target) ** 2).sum() / total


def entropy_loss(logits, weight, total, scale):
    """scale x sum_a pi log pi: the negative entropy, so that minimising it keeps the policy open. Over m_policy."""
    logp = torch.log_softmax(logits, dim=-1)
    return scale * (weight * (logp.exp() * logp).sum(-1)).sum() / total


def total_loss(lm, policy, value, entropy, beta, value_weight, beta_on="rl"):
    """A.4: L_LM + beta (L_policy + lambda L_value + L_entropy). Eq. 1 has beta on L_LM instead (L1)."""
    reinforce = policy + value_weight * value + entropy
    return lm + beta * reinforce if beta_on == "rl" else beta * lm + reinforce


def contrast_loss(logp, weight, total, floor=-math.inf):
    """- weighted mean of log p: weight 1/(K+1) on all tokens of a success, R_fail/(K+1) on those of the failure (A3T §2.2).

    K > 1 does not bound it: -log p of a failure grows for ever. Tokens of a failure below `floor` are let alone.
    """
    weight = torch.where((weight < 0) & (logp < floor), 0.0, weight)
    return -(weight * logp).sum() / total


def actor_loss(logp, advantage, completions):
    """- mean over completions of A log pi(completion): advantage has A on each of its tokens, the last one, EOS, among them (the
    original's slice drops it). MAGRPO, and the actor of IAC and MAAC: the first step on fresh rollouts, so no ratio (CoMLRL)."""
    return -(advantage * logp).sum() / completions


def critic_loss(value, old_value, target, weight, completions, clip=math.inf):
    """(target - V)^2 at the last token of the prompt, averaged over completions. Where actor and critic share a backbone, the
    larger of that and of the error of V held within `clip` of what it was (CoMLRL)."""
    held = old_value + (value - old_value).clamp(-clip, clip)
    return (weight * torch.maximum((target - value) ** 2, (target - held) ** 2)).sum() / completions


def losses(logits, values, b, totals, args):
    """The four terms of a micro-batch and what a reader wants to see beside them. b: the batch's fields at the n kept tokens."""
    logp = torch.log_softmax(logits, -1).gather(-1, b["tokens"][:, None]).squeeze(-1)
    if args.loss == "contrast":
        terms = {"contrast": contrast_loss(logp, b["lm"], totals["lm"], args.neg_floor)}
        with torch.no_grad():
            good, bad = logp[b["lm"] > 0], logp[b["lm"] < 0]
            terms["positive"], terms["negative"] = good.sum() / totals["positive"], bad.sum() / totals["negative"]
            terms["shared"] = (b["shared"] * logp).sum() / totals["shared"]
            terms["min_negative"] = bad.min() if len(bad) else torch.zeros(())
        return terms["contrast"], terms
    if args.loss in JOINT:
        terms = {"actor": actor_loss(logp, b["lm"], totals["completions"])}
        if args.loss != "magrpo":
            clip = args.value_clip if args.loss == "iac" else math.inf          # a critic of its own has no backbone to spare
            terms["critic"] = critic_loss(values, b["old_values"], b["target"], b["value"], totals["completions"], clip)
        return terms["actor"] + args.value_weight * terms.get("critic", 0), terms
    terms = {"lm": lm_loss(logp, b["lm"], totals["lm"])}
    if args.loss == "lm":
        return terms["lm"], terms
    tempered = logits / b["temperature"][:, None]             # pi_old is what sampled: its temperature belongs to the ratio
    logp = torch.log_softmax(tempered, -1).gather(-1, b["tokens"][:, None]).squeeze(-1)
    terms["policy"], ratio = policy_loss(logp, b["logprobs"], b["advantage"], b["policy"], totals["policy"], args.clip)
    terms["value"] = value_loss(values, b["target"], b["value"], totals["value"])
    terms["entropy"] = entropy_loss(tempered, b["policy"], totals["policy"], args.entropy)
    loss = total_loss(*(terms[name] for name in ("lm", "policy", "value", "entropy")), args.beta, args.value_weight, args.beta_on)
    with torch.no_grad():
        weight, log_ratio = b["policy"] / totals["policy"], logp - b["logprobs"]
        terms["approx_kl"] = (weight * (ratio - 1 - log_ratio)).sum()
        terms["clip_fraction"] = (weight * ((ratio - 1).abs() > args.clip)).sum()
        terms["ratio_error"] = (b["policy"] * (ratio - 1).abs()).max()        # largest; about 1e-6 on the first update
    return loss, terms


# --------------------------------------------------------------------------------------------------------------------- data

def load_samples(args, tokenizer):
    """The trajectories to learn from, as samples for `buffer.collate`. Trajectories without any weighted token are left out."""
    trajectories = buffer.replay([t for path in args.data for t in buffer.read(path)], args.n_train, args.replay, args.seed)
    if args.player is not None:
        trajectories = [t for t in trajectories if t.agent == args.player]
        if not trajectories:
            raise BadInput(f"--player {args.player}: {', '.join(args.data)}: nothing of it there")
    voice, weights = speech.speech_of(tokenizer, args.plain), None
    if args.loss == "lm" and args.success_at is not None:
        trajectories = [t for t in trajectories if t.reward >= args.success_at]
    if args.top:
        trajectories = choose(trajectories, args)
    if args.loss == "contrast":
        at = 1.0 if args.success_at is None else args.success_at
        weighted = buffer.contrast(trajectories, at, args.fail_reward, args.k_min)
        trajectories, weights = [t for t, _ in weighted], {id(t): w for t, w in weighted}
        said = buffer.sentences(weighted)
        print(f"sentences: {said['positive']:,} positive, {said['negative']:,} negative ({said['negative_share']:.1%}), "
              f"effective K {said['effective_k']:.1f}", file=sys.stderr)
    samples = make_samples(trajectories, args, voice, weights)
    if args.loss == "contrast":
        mark_shared(trajectories, samples)
    kept = [s for s in samples if any(s["lm"][1:]) or any(s["policy"][1:])]
    if args.mix:
        kept += make_samples(others.chat.mixed(others.chat.read(args.mix), len(kept), args.seed), args, voice)
    tokens = sum(len(s["tokens"]) for s in kept)
    print(f"{len(kept)} of {len(samples)} trajectories to learn from, {tokens:,} tokens", file=sys.stderr)
    if not kept:
        raise BadInput(f"{', '.join(args.data)}: nothing to learn from: no trajectory has a positive reward (see --lm-tokens), "
                       "or none that of --success-at")
    if args.loss == "ltc" and args.normalise_advantages:
        normalise_advantages(kept)
    return kept


def make_samples(trajectories, args, voice, weights=None):
    """A sample of each trajectory; what was never read by a model is encoded."""
    samples = []
    for t in trajectories:
        if not speech.check_tokens(voice.tokenizer, t):
            raise BadInput(f"{', '.join(args.data)}: trajectory {t.id} was recorded with another vocabulary (by {t.policy}) than "
                           f"that of --agent {args.agent}; train the agent that recorded it, or explore again")
        speech.encode_all(voice, t)
        try:
            samples.append(make_sample(t, args, weights and weights[id(t)]))
        except ValueError as error:
            raise BadInput(f"{', '.join(args.data)}: trajectory {t.id}: {error}") from None
    return samples


def choose(trajectories, args):
    """The best-scored share of the trajectories; what is chosen is noted in the ledger --used."""
    ledger, me = buffer.ledger(args.used) if args.used else [], os.path.abspath(args.out)
    mine = {name for name, out in ledger if out == me} if os.path.exists(f"{args.out}.part") else ()
    try:
        if mine:                                # stopped and begun again: the same choice
            chosen = buffer.select([t for t in trajectories if buffer.identity(t) in mine], 1)
        else:
            chosen = buffer.select(trajectories, args.top, {name for name, out in ledger if out != me})
    except ValueError as error:
        raise BadInput(f"--top {args.top}: {' '.join(args.data)}: {error}") from None
    if not chosen:
        raise BadInput(f"--used {args.used}: all of {' '.join(args.data)} has been used; explore more")
    if args.used and ranks.RANK == 0:
        buffer.note_use(args.used, me, chosen)
    print(f"best {args.top:.0%}: {len(chosen)} trajectories, {statistics.fmean(t.success for t in chosen):.1%} of them right",
          file=sys.stderr)
    return chosen


def joint_updates(args, tokenizer):
    """The updates of --loss magrpo, iac or maac, as (samples, what to log). The nodes of the rollouts fill a buffer in the order
    in which they were played; a full one, and what is left at the end, is learnt from turn by turn, a step each (CoMLRL)."""
    voice, nodes, order = speech.speech_of(tokenizer, args.plain), {}, {}
    for t in (t for path in args.data for t in buffer.read(path)):
        if t.pattern == "joint" and t.agent == args.player:
            nodes.setdefault(t.group, []).append(t)
            order.setdefault(episode_of(t), len(order))
    nodes = sorted(nodes.values(), key=lambda node: (order[episode_of(node[0])], node[0].turn))
    if not nodes:
        raise BadInput(f"--player {args.player}: {' '.join(args.data)}: no joint rollouts of it there")
    targets = {} if args.loss == "magrpo" else td(nodes, args)
    updates, size = [], args.rollout_buffer_size
    for held in (nodes[i:i + size] for i in range(0, len(nodes), size)):
        for turn in sorted({node[0].turn for node in held}):
            group = [node for node in held if node[0].turn == turn]
            try:
                advantages = weigh(group, targets, args)
            except ValueError as error:
                raise BadInput(f"{' '.join(args.data)}: {error}") from None
            trajectories = [t for node in group for t in node]
            told = {f"turn_{turn}/{name}": statistics.fmean(node[0].metrics[name] for node in group)
                    for name in ("reward_mean", "expected_return")}
            samples = make_samples(trajectories, args, voice, {id(t): a for t, a in zip(trajectories, advantages)})
            for t, sample in zip(trajectories, samples):
                sample["target"] = [x * targets.get(id(t), (0.0, 0.0))[0] for x in sample["value"]]
                sample["old_values"] = [x * targets.get(id(t), (0.0, 0.0))[1] for x in sample["value"]]
            updates.append((samples, told))
    return updates


def episode_of(trajectory):
    """The name of the joint episode: that of its node without the path."""
    return trajectory.group.rpartition("/")[0]


def td(nodes, args):
    """id of a trajectory -> (TD target, V): of one agent's turns, one answer each. V is what the critic who was there said, or
    else what the agent's own head said before its first word, from the last token of the prompt."""
    episodes, found = {}, {}
    for node in nodes:
        if len(node) > 1:
            raise BadInput(f"--loss {args.loss}: {' '.join(args.data)}: there are {len(node)} answers at a node; temporal "
                           "differences follow one course of events: explore with --generations 1")
        episodes.setdefault(episode_of(node[0]), []).append(node[0])
    for turns in episodes.values():
        own = [t.segments[-1].values[0] if t.segments[-1].values else 0.0 for t in turns]
        if args.loss == "maac" and "value" not in turns[0].metrics:
            raise BadInput(f"--loss maac: {' '.join(args.data)}: no critic was there; explore with --critics, or choose iac")
        values = [t.metrics["value"] for t in turns] if args.loss == "maac" else own
        targets = buffer.td_targets([t.metrics["reward_mean"] for t in turns], values, args.gamma)
        found |= {id(t): pair for t, pair in zip(turns, zip(targets, values))}
    return found


def weigh(nodes, targets, args):
    """The advantages of all completions of these nodes, which are of one turn."""
    normalise = args.normalise_advantages is not False
    if args.loss == "magrpo":
        returns = [[t.metrics["return"] for t in node] for node in nodes]
        return [a for group in returns for a in buffer.group_advantages(group, args.baseline, normalise)]
    deltas = [target - value for node in nodes for target, value in (targets[id(node[0])],)]
    return buffer.normalised(deltas) if normalise and len(deltas) > 1 else deltas


def mark_shared(trajectories, samples):
    """For --loss contrast: mark, to log their log-probability, the tokens that a failure spoke as all its successes did."""
    beginnings = {}                         # of a task's successes in a round
    for t, s in zip(trajectories, samples):
        if max(s["lm"]) > 0:
            beginnings.setdefault((t.round, t.task), []).append(s["tokens"])
    for t, s in zip(trajectories, samples):
        n = buffer.shared_prefix(s["tokens"], beginnings.get((t.round, t.task), [])) if min(s["lm"]) < 0 else 0
        s["shared"] = [float(i < n and w != 0) for i, w in enumerate(s["lm"])]


def make_sample(trajectory, args, weight=None):
    """One trajectory as equally long lists: tokens, logprobs, advantage, target, and the weights of the terms. weight: of all its
    spoken tokens, for --loss contrast."""
    for s in trajectory.segments if args.loss == "ltc" else ():
        if s.source == buffer.OTHER and s.logprobs is None:         # said last and never read: the agent has no probability of it
            s.source = buffer.SYSTEM
    flat = buffer.flatten(trajectory, args.max_length)
    n, mask = len(flat["tokens"]), flat["mask"]
    if args.loss in JOINT:                      # V is read where the first own token is predicted: at the last one of the prompt
        own, zeros = buffer.policy_mask(mask, "own"), [0.0] * n
        critic = trajectory.segments[-1].role == "value"
        first = zeros if args.loss == "maac" and not critic else [float(w and not any(own[:i])) for i, w in enumerate(own)]
        return {"tokens": flat["tokens"], "lm": zeros if critic else [weight * w for w in own], "policy": zeros, "value": first}
    if args.loss == "contrast":
        lm = [weight * w for w in buffer.policy_mask(mask)]
    else:
        positive = [True] * n if args.top else buffer.positive_tokens(flat["rewards"], args.credit)
        lm = buffer.lm_mask(mask, positive, args.lm_tokens, args.lm_system_weight)
    sample = {"tokens": flat["tokens"], "lm": lm}
    if args.loss != "ltc":
        return {**sample, "policy": [0.0] * n, "value": [0.0] * n}
    if not flat["recorded"]:
        raise ValueError("no log-probabilities were recorded (an expert's?); --loss ltc needs what the agent itself sampled")
    advantage, target = buffer.advantages(mask, flat["rewards"], flat["values"], args.gamma, args.gae_lambda, args.credit,
                                          args.squash_returns)
    if args.teacher_logprob == "one":
        flat["logprobs"] = [1.0 if m == buffer.OTHER else x for m, x in zip(mask, flat["logprobs"])]
    return {**sample, "logprobs": flat["logprobs"], "advantage": advantage, "target": target,
            "policy": buffer.policy_mask(mask, args.policy_tokens), "value": buffer.value_mask(mask),
            "temperature": [trajectory.temperature or 1.0] * n, "old_values": flat["values"]}


def normalise_advantages(samples):
    """To mean 0 and deviation 1 over all spoken tokens of all samples, in place."""
    spoken = iter(buffer.normalised([a for s in samples for a, w in zip(s["advantage"], s["policy"]) if w]))
    for s in samples:
        s["advantage"] = [next(spoken) if w else 0.0 for w in s["policy"]]


def explained_variance(samples):
    """1 - Var(target - V_old) / Var(target) over own tokens: what the values of the exploration knew of the returns."""
    pairs = [(g, v) for s in samples for g, v, w in zip(s["target"], s["old_values"], s["value"]) if w]
    spread = statistics.pvariance([g for g, _ in pairs]) if pairs else 0.0
    return 1 - statistics.pvariance([g - v for g, v in pairs]) / spread if spread else 0.0


# --------------------------------------------------------------------------------------------------------------------- loop

def update(policy, optimizer, samples, args, device):
    """One optimiser step on `samples`. Returns its metrics. Raises BadInput when the loss is not finite: nothing is changed."""
    totals = {name: max(sum(sum(map(abs, s[name][1:])) for s in samples), 1e-8) for name in ("lm", "policy", "value")}
    totals["completions"] = len(samples)
    if args.loss == "contrast":                             # tokens of successes and of failures, to log means
        for name, sign in (("positive", 1), ("negative", -1)):
            totals[name] = max(sum(sign * w > 0 for s in samples for w in s["lm"][1:]), 1)
        totals["shared"] = max(sum(sum(s["shared"][1:]) for s in samples), 1)
    metrics, mine = {"loss": 0.0}, ranks.share(samples)
    for group in buffer.by_length(mine, -(-len(mine) // args.micro_batch)):
        batch = {name: x.to(device) for name, x in buffer.collate(group).items()}
        keep = (batch["lm"] != 0) | (batch["policy"] > 0) | (batch["value"] > 0)               # [B, T]
        logits, values = policy(batch["tokens"], keep)                                         # [n, V], [n]
        loss, terms = losses(logits, values, {name: x[keep] for name, x in batch.items()}, totals, args)
        loss.backward()
        metrics = joined(metrics, {name: x.item() for name, x in {"loss": loss, **terms}.items()})
    metrics = functools.reduce(joined, ranks.together(metrics))
    trained = [p for p in policy.parameters() if p.requires_grad]
    ranks.add_up(trained)
    metrics["grad_norm"] = torch.nn.utils.clip_grad_norm_(trained, args.max_grad_norm).item()
    if not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])):
        raise BadInput(f"--data {' '.join(args.data)}: the loss is {metrics['loss']} with gradient norm {metrics['grad_norm']}; "
                       "lower --lr, or look for damaged logprobs in the data; the last checkpoint is kept")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return metrics


def joined(one, two):
    """The metrics of two parts of an update together."""
    how = {"ratio_error": max, "min_negative": min}
    return {name: how.get(name, operator.add)(one.get(name, 0), two.get(name, 0)) for name in {**one, **two}}


def batches(samples, args):
    """The updates of the whole run, in order, as (samples, what to log beside): each epoch shuffled by its own seed, so that a
    resumed run meets the same ones; a team's as `joint_updates` has them.

    Not by length, though that would be faster: batches of short episodes alone count each of their tokens for more.
    """
    for epoch in range(args.epochs):
        if args.loss in JOINT:
            yield from samples
            continue
        order = list(samples)
        random.Random(f"order {args.seed} {epoch}").shuffle(order)
        for i in range(0, len(order), args.batch_size):
            yield order[i:i + args.batch_size], {}


def rate(step, steps, args):
    """Learning rate of a step, as a share of --lr."""
    if args.schedule == "constant":
        return 1.0
    warm = max(1, steps * args.warm_up // 100) if args.warm_up else 0
    end = args.lr_end / args.lr
    cosine = end + (1 - end) * 0.5 * (1 + math.cos(math.pi * max(0, step - warm) / max(1, steps - warm)))
    return min((step + 1) / warm, cosine) if warm else cosine


def train(policy, tokenizer, samples, args, part, step=0):
    """All updates from `step` on, checkpoints in the folder `part`, a bar with the figures that matter."""
    from tqdm import tqdm
    device = next(policy.parameters()).device
    head = set(policy.value_head.parameters())
    groups = [{"params": [p for p in policy.parameters() if p.requires_grad and p not in head], "lr": args.lr},
              {"params": list(head), "lr": args.value_lr or args.lr}]
    if args.load_4bit and device.type == "cuda":            # its state moves to the CPU when the GPU is full
        from bitsandbytes.optim import PagedAdamW as AdamW
    else:
        from torch.optim import AdamW
    optimizer = AdamW(groups, betas=(0.9, 0.98), weight_decay=args.weight_decay)
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    if step:
        saved = torch.load(os.path.join(part, "optimizer.pt"), weights_only=True)
        optimizer.load_state_dict(saved["optimizer"])
        if ranks.RANK < len(saved["random"]):
            torch.set_rng_state(saved["random"][ranks.RANK])
    elif ranks.RANK:
        torch.manual_seed(args.seed + ranks.RANK)           # other dropout on other samples
    average = saved["average"] if step else {}
    average = saved["average"] if step else {}
    epoch_steps = len(samples) if args.loss in JOINT else -(-len(samples) // args.batch_size)
    steps = args.epochs * epoch_steps
    constant = {"explained_variance": explained_variance(samples)} if args.loss == "ltc" else {}
    if args.gradient_checkpointing:
        policy.trunk.activation_checkpointing_enable({"use_reentrant": False})
    policy.train()
    if args.loss not in ("lm", "contrast"):             # with dropout the first update's ratio would not be 1
        for module in policy.modules():
            if isinstance(module, torch.nn.Dropout):
                module.eval()
    bar = tqdm(total=steps, initial=step, desc="train", dynamic_ncols=True, mininterval=1, disable=ranks.RANK > 0)
    with open(os.devnull if ranks.RANK else f"{part}.metrics", "a", encoding="utf-8") as log, bar:
        for number, (batch, told) in enumerate(batches(samples, args)):
            if number < step:
                continue
            started = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * rate(number, steps, args)
            metrics = update(policy, optimizer, batch, args, device)
            speed = sum(len(s["tokens"]) for s in batch) / (time.perf_counter() - started)
            log.write(json.dumps({"step": number, **metrics, **constant, **told, "lr": optimizer.param_groups[0]["lr"],
                                  "tokens_per_s": round(speed), "peak_memory_mb": peak_memory()}) + "\n")
            bar.set_postfix_str(f"loss {metrics['loss']:.3f} {speed:,.0f} tok/s", refresh=False)
            bar.update()
            if args.average and (number + 1) % epoch_steps == 0 and number + 1 > (args.epochs - args.average) * epoch_steps:
                add_to_average(average, policy)
            if (number + 1) % args.save_every == 0 and number + 1 < steps:
                log.flush()
                checkpoint(policy, tokenizer, optimizer, args, part, number + 1, average)
    if average:
        with torch.no_grad():
            for name, p in policy.named_parameters():
                if p.requires_grad:
                    p.copy_(average[name] / average["count"])


def add_to_average(average, policy):
    """Add the trained parameters to a running sum: LoRA's A and B each on their own (their product is not averaged; A3T §3)."""
    average["count"] = average.get("count", torch.zeros(())) + 1
    for name, p in policy.named_parameters():
        if p.requires_grad:
            average[name] = average.get(name, torch.zeros_like(p)) + p.detach()


def peak_memory():
    """Peak memory in MiB: the GPU's where there is one, else the process's."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() >> 20
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def checkpoint(policy, tokenizer, optimizer, args, part, step, average):
    """Replace the folder `part` by the present state; at no moment is there none that is whole."""
    new, states = f"{part}.new", ranks.together(torch.get_rng_state())
    if ranks.RANK:
        return
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(new)
    state = {"optimizer": optimizer.state_dict(), "random": states, "average": average}
    torch.save(state, os.path.join(new, "optimizer.pt"))
    agent.save(policy, tokenizer, new, {"step": step, "args": vars(args)})
    shutil.rmtree(part, ignore_errors=True)
    os.rename(new, part)


def resume_from(args, part):
    """(folder, step) to go on from; (None, 0) if this run is new. A kill within `checkpoint` is mended."""
    if agent.read_state(f"{part}.new"):                 # whole, so newer than what is left of the one it replaces
        shutil.rmtree(part, ignore_errors=True)
        os.rename(f"{part}.new", part)
    state = agent.read_state(part)
    if not state or args.overwrite:
        for leftover in (part, f"{part}.new"):
            shutil.rmtree(leftover, ignore_errors=True)
        open(f"{part}.metrics", "w").close()
        return None, 0
    with open(f"{part}.metrics", encoding="utf-8") as file:
        lines = file.readlines()[:state["step"]]
    with open(f"{part}.metrics", "w", encoding="utf-8") as file:
        file.writelines(lines)
    print(f"{part}: going on after {state['step']} updates", file=sys.stderr)
    return part, state["step"]


def start(args, folder):
    """(policy, tokenizer) to train: a resumed one, a tiny one made for the demonstrations, or the one named."""
    how = {"dtype": args.dtype, "four_bit": args.load_4bit}
    if folder:
        return agent.load(folder, **how)
    if args.load_4bit and not (args.lora_rank or agent.is_adapter(args.agent)):
        raise BadInput("--load-4bit: weights in 4 bits cannot be trained themselves; give --lora-rank")
    if args.agent == "tiny" and args.lora_rank:
        raise BadInput("--lora-rank: --agent tiny starts from random weights, which an adapter would leave as they are")
    if args.agent == "tiny":
        trajectories = [t for path in args.data for t in buffer.read(path)]
        world, texts = envs.module(trajectories[0].env), trajectories + (others.chat.read(args.mix) if args.mix else [])
        tokenizer = envs.words.tokenizer_for({s.text for t in texts for s in t.segments}, world.PHRASES, world.KINDS, world.MARKS)
        layer = -2 if args.value_layer is None else args.value_layer
        return agent.make_tiny(tokenizer, args.width, args.layers, args.heads, layer, args.seed), tokenizer
    policy, tokenizer = agent.load(args.agent, args.value_layer, **how)
    if args.lora_rank and not agent.is_adapter(args.agent):        # an adapter is trained on as it is
        policy = agent.add_lora(policy, args.lora_rank, args.lora_alpha, args.lora_dropout, args.lora_target)
    return policy, tokenizer


def main(args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    ranks.start()
    args.out = args.out.rstrip("/")
    if (args.loss in JOINT and args.player is None) or (args.loss in ("ltc", "contrast") and args.player is not None):
        raise BadInput("--player: it is for --loss magrpo, iac and maac, which need it, and for lm")
    for option, value in (("top", args.top), ("used", args.used), ("mix", args.mix)):
        if value and (args.loss != "lm" or (option == "used" and not args.top)):
            raise BadInput(f"--{option} {value}: it is for --loss lm{' with --top' * (option == 'used')}; leave it out")
    part = f"{args.out}.part"
    os.makedirs(os.path.dirname(args.out) or ".", exist_ok=True)
    if os.path.exists(args.out) and not args.overwrite:
        raise BadInput(f"{args.out}: is there already; give --overwrite or another --out")
    found = None
    if ranks.RANK == 0:
        errors.same_command(f"{args.out}.args", args, [part, f"{part}.new"])
        found = resume_from(args, part)
    folder, step = ranks.together(found)[0]
    policy, tokenizer = start(args, folder)
    if args.loss in ("iac", "maac"):
        policy.squash = False               # a return may be above 1
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    print(f"{trained:,} parameters to train, vocabulary {len(tokenizer)}", file=sys.stderr)
    samples = joint_updates(args, tokenizer) if args.loss in JOINT else load_samples(args, tokenizer)
    train(policy, tokenizer, samples, args, part, step)
    if ranks.RANK == 0:
        finish(policy, tokenizer, args, part, len(samples))
    ranks.end()


def finish(policy, tokenizer, args, part, n):
    """Write OUT and remove what was only needed to resume."""
    done = f"{args.out}.done"           # not PART.new: a run killed here must not go on from it
    shutil.rmtree(done, ignore_errors=True)
    os.makedirs(done)
    agent.save(policy, tokenizer, done, {"step": None, "args": vars(args), "trajectories": n})
    shutil.copy(f"{part}.metrics", os.path.join(done, "metrics.jsonl"))
    shutil.rmtree(args.out, ignore_errors=True)
    os.rename(done, args.out)
    shutil.rmtree(part, ignore_errors=True)
    for leftover in (f"{part}.metrics", f"{args.out}.args"):
        os.remove(leftover)
    print(f"{args.out}: trained")


if __name__ == "__main__":
    errors.run(lambda: main(ARGS))
