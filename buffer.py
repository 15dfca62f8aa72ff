"""The replay buffer: trajectories, the masks over their tokens, and what each token earned (LTC §3.1, A.2).

A trajectory is a list of segments; a segment is who said what, and what it earned. On disk a trajectory is one line of JSON.
`flatten` turns it into the paper's five sequences, all of one length:

    S_a  tokens    the ids, exactly as they were fed to or sampled from the model (never made again from the text)
    S_m  mask      0 system, 1 own agent, 2 another agent
    S_v  values    V of the state *before* the token, recorded when it was sampled (own tokens; else 0)
    S_l  logprobs  log pi_old of the token, under the very distribution that sampled it (another agent's: as if it had); else 0
    S_r  rewards   a segment's reward, on the segment's last token

A worked example, the rewards of one Monologue turn in which the environment answers "you won" (reward 1):

    text      Your task is ...  | Action:  | go  to  desk 1  \\n | you won \\n
    S_m        0    0    0   0  |    0     |  1   1    1      1 |  0   0   0
    S_r        0    0    0   0  |    0     |  0   0    0      0 |  0   0   1
    effective  0    0    0   0  |    0     |  0   0    0      1 |  0   0   0     <- what `effective_rewards` makes of it

Where we depart from the paper or read a hole in it, the function says so.
"""
import dataclasses
import hashlib
import itertools
import json
import math
import os
import random
import sys
from dataclasses import dataclass, field

from errors import BadInput

SYSTEM, OWN, OTHER = 0, 1, 2


@dataclass
class Segment:
    """Who said what, and what it earned. `logprobs` and `values` have the length of `tokens`, or are None (nobody measured)."""
    source: int
    role: str
    text: str
    reward: float = 0.0
    tokens: list | None = None
    logprobs: list | None = None
    values: list | None = None


@dataclass
class Trajectory:
    """One session S = (T, M, R) with everything later stages ask about it. `reward` is the sum of the segments' rewards."""
    id: str
    task: str
    env: str = ""
    split: str = ""
    kind: str = ""
    pattern: str = ""
    round: int = 0
    policy: str = ""
    temperature: float = 1.0
    reward: float = 0.0
    success: bool = False
    truncated: bool = False
    score: float | None = None
    group: str | None = None
    agent: int = 0
    turn: int = 0
    teacher: str = ""
    metrics: dict = field(default_factory=dict)
    segments: list = field(default_factory=list)

    def add(self, text, source, role, reward=0.0):
        """Append a segment and return it. Rewards add up in `self.reward`."""
        segment = Segment(source, role, text, float(reward))
        self.segments.append(segment)
        self.reward += segment.reward
        return segment


# ---------------------------------------------------------------------------------------------------------------- files

def to_line(trajectory):
    """The trajectory as one line of JSON, newline included. Unmeasured fields of a segment are left out."""
    record = dict(vars(trajectory))
    record["segments"] = [{k: v for k, v in vars(s).items() if v is not None} for s in trajectory.segments]
    return json.dumps(record, ensure_ascii=False) + "\n"


def from_record(record):
    """The trajectory of a JSON object. Raises ValueError with what is wrong, in words."""
    if not isinstance(record, dict) or not isinstance(record.get("segments"), list):
        raise ValueError('not a trajectory: an object with "id", "task" and a list "segments" was expected')
    names = {f.name for f in dataclasses.fields(Trajectory)}
    if unknown := set(record) - names:
        raise ValueError(f"unknown field {sorted(unknown)[0]!r}")
    segments = []
    for number, s in enumerate(record["segments"]):
        try:
            segment = Segment(**s)
        except TypeError as error:
            raise ValueError(f"segment {number}: {error}") from None
        if segment.source not in (SYSTEM, OWN, OTHER) or not isinstance(segment.text, str):
            raise ValueError(f"segment {number}: source must be 0, 1 or 2 and text a string")
        for name, values in (("tokens", segment.tokens), ("logprobs", segment.logprobs), ("values", segment.values)):
            if values is None:
                continue
            if not isinstance(values, list) or not {type(x) for x in values} <= ({int} if name == "tokens" else {int, float}):
                raise ValueError(f"segment {number}: {name} must be a list of numbers")
            if len(values) != len(segment.tokens or ()):
                raise ValueError(f"segment {number}: {len(values)} {name} for {len(segment.tokens or ())} tokens")
        segments.append(segment)
    if (score := record.get("score")) is not None and not (isinstance(score, (int, float)) and math.isfinite(score)):
        raise ValueError("score must be a number or null")
    try:
        return Trajectory(**{**record, "segments": segments})
    except TypeError as error:
        raise ValueError(str(error)) from None


def read(path):
    """All trajectories of a JSONL file. A torn last line (a killed writer) is left out and said on stderr; any other broken
    line raises BadInput with `file:line: what`. Raises BadInput for a missing or an empty file."""
    lines = open_text(path).split("\n")
    trajectories, torn = [], lines.pop()          # what follows the last newline: "" in a file that was not cut short
    for number, line in enumerate(lines, start=1):
        try:
            trajectories.append(from_record(json.loads(line)))
        except ValueError as error:
            raise BadInput(f"{path}:{number}: {error}; mend or delete this line") from None
    if torn:
        print(f"{path}:{len(lines) + 1}: torn last line left out (its writer was stopped)", file=sys.stderr)
    if not trajectories:
        raise BadInput(f"{path}: no trajectories in it; run explore.py again")
    return trajectories


def open_text(path):
    """The text of a file."""
    try:
        return open(path, encoding="utf-8").read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error}); give a file that is there, in UTF-8") from None


def cut_torn_line(path):
    """Cut what a killed writer left after the last newline, so that appending is safe again."""
    with open(path, "rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


def write(path, trajectories):
    """Write a whole file: under a temporary name first, then renamed, so that a file that exists is complete."""
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.writelines(to_line(t) for t in trajectories)
    os.replace(f"{path}.tmp", path)


def replay(trajectories, n, how="recent", seed=0):
    """The n trajectories to train on from an append-only buffer: the latest (LTC A.4), or a uniform sample (Algorithm 4)."""
    if n is None or n >= len(trajectories):
        return list(trajectories)
    return trajectories[-n:] if how == "recent" else random.Random(f"replay {seed}").sample(trajectories, n)


# ------------------------------------------------------------------------------------------- the five sequences (LTC A.2)

def flatten(trajectory, max_length=None):
    """The five sequences as a dict of lists of one length, and `recorded`: whether every spoken token has a log-probability and
    every own one a value.

    A longer trajectory is cut at `max_length`, and the reward of the session that is cut moves to the last own token that is left
    of it (L14: otherwise a long failure would look neutral). Segments without tokens (empty text) hand their reward to the
    token before. Raises ValueError when a segment's tokens are missing.
    """
    flat = {"tokens": [], "mask": [], "values": [], "logprobs": [], "rewards": []}
    recorded = True
    for number, s in enumerate(trajectory.segments):
        if s.tokens is None:
            raise ValueError(f"segment {number} has no tokens: encode the trajectory first")
        n = len(s.tokens)
        recorded &= s.source == SYSTEM or (s.logprobs is not None and (s.source == OTHER or s.values is not None))
        flat["tokens"] += s.tokens
        flat["mask"] += [s.source] * n
        flat["values"] += s.values if s.values and s.source == OWN else [0.0] * n
        flat["logprobs"] += s.logprobs if s.logprobs and s.source != SYSTEM else [0.0] * n
        flat["rewards"] += [0.0] * n
        if flat["rewards"]:
            flat["rewards"][-1] += s.reward
    if max_length is not None and len(flat["tokens"]) > max_length:
        rewards = effective_rewards(flat["mask"], flat["rewards"])
        lost = next((r for r in rewards[max_length:] if r), 0.0)
        flat = {name: values[:max_length] for name, values in flat.items()}
        flat["rewards"] = rewards[:max_length]
        if lost and (own := last_own(flat["mask"], max_length - 1)) >= 0 and not any(flat["rewards"][own:]):
            flat["rewards"][own] += lost
    assert len({len(values) for values in flat.values()}) == 1
    return {**flat, "recorded": recorded}


def last_own(mask, position):
    """Index of the last own token at or before `position`; -1 if there is none."""
    while position >= 0 and mask[position] != OWN:
        position -= 1
    return position


def effective_rewards(mask, rewards):
    """Move each reward that stands on a system token to the last own token before it: there it can teach (L6).

    [0,0,0,0,0,0,1] with mask [0,1,1,0,1,1,0] becomes [0,0,0,0,0,1,0]. Rewards on spoken tokens stay. A reward pays only what was
    said since the reward before it, or it would be credited to a session that is over; where nobody of ours spoke, it is dropped.
    """
    moved, paid = [r if m != SYSTEM else 0.0 for m, r in zip(mask, rewards)], -1
    for t, (m, r) in enumerate(zip(mask, rewards)):
        if r:
            if m == SYSTEM and (own := last_own(mask, t)) > paid:
                moved[own] += r
            paid = t
    return moved


def advantages(mask, rewards, values, gamma=1.0, lam=1.0, credit="local", squash=False):
    """Advantages and value targets, two lists of the sequence's length (zero on system tokens).

    GAE over the agent's *own* tokens, in order, as if the tokens between them were not there (L5: they have no value).
    With gamma = lam = 1 it is the Monte-Carlo return minus V (L4; LTC never defines its advantage). The target is
    advantage + V, a return: taken literally, A.4's "value against advantage" would settle at half the return (L3).
    Another agent's tokens have no value either: their baseline is 0, so their advantage is the return itself (L7).

    credit  "local": the return-to-go starts afresh after each non-zero reward, so that a corrected answer does not take credit
            for the correction that follows it; "whole": rewards add up to the end of the trajectory (L9)
    squash  advantage = tanh(return) - V, target = tanh(return), as the authors' program has it
    """
    rewards = effective_rewards(mask, rewards)
    advantage, target = [0.0] * len(mask), [0.0] * len(mask)
    ret = nxt_value = nxt_advantage = others = 0.0    # `others`: rewards of other agents' tokens before the next own token
    for t in reversed(range(len(mask))):
        if mask[t] == SYSTEM:
            continue
        if credit == "local" and rewards[t]:
            ret = nxt_value = nxt_advantage = others = 0.0
        ret = rewards[t] + gamma * ret
        if mask[t] == OTHER:
            others += rewards[t]
            advantage[t] = math.tanh(ret) if squash else ret
            continue
        delta = rewards[t] + gamma * (others + nxt_value) - values[t]
        nxt_advantage = delta + gamma * lam * nxt_advantage
        nxt_value, others = values[t], 0.0
        advantage[t] = math.tanh(ret) - values[t] if squash else nxt_advantage
        target[t] = advantage[t] + values[t]
    return advantage, target


def policy_mask(mask, tokens="spoken"):
    """Tokens of the policy and entropy terms: every agent's, m_policy = [S_m != 0] (LTC A.4); "own": without other agents'."""
    return [float(m == OWN or (m == OTHER and tokens == "spoken")) for m in mask]


def value_mask(mask):
    """Tokens of the value term: the agent's own, m_value = [S_m = 1] (LTC A.4)."""
    return [float(m == OWN) for m in mask]


def positive_tokens(rewards, credit="local"):
    """Per token: does it belong to a session with positive reward?

    A record of several answers (Analogue) is several sessions in one. "local": the next reward, at the token or after it, is
    positive; after the last reward, that one is. "whole": the sum is. With a single reward both are the same.
    """
    if credit == "whole":
        return [sum(rewards) > 0] * len(rewards)
    near = next((r for r in reversed(rewards) if r), 0.0)
    positive = []
    for r in reversed(rewards):
        near = r or near
        positive.append(near > 0)
    return positive[::-1]


def lm_mask(mask, positive, tokens="own", system_weight=1.0):
    """Weights of the LM term (L2). `positive`, per token: does it belong to a session with positive reward?

    tokens  "own": own tokens of positive sessions (A.4); "spoken": every agent's; "all-positive": system tokens too;
            "all": all tokens of all sessions (§3.2)
    system_weight  weight of system tokens where they count: predicting the observations teaches a from-scratch model to copy
    """
    chosen = {"own": (OWN,), "spoken": (OWN, OTHER)}.get(tokens, (SYSTEM, OWN, OTHER))
    return [(system_weight if m == SYSTEM else 1.0) if m in chosen and (good or tokens == "all") else 0.0
            for m, good in zip(mask, positive, strict=True)]


# ------------------------------------------------------------------------------------------ contrastive weights (A3T §2.2)

def contrast(trajectories, success_at=1.0, fail_reward=-1.0, k_min=2):
    """(trajectory, weight) of those that the policy gradient with binarised rewards learns from, task by task and round by round.

    A task with K successes and one failure has J = 1/(K+1) [sum_j log p(success j) + fail_reward log p(failure)]: all
    successes, and the first failure, which is the one that was explored. Only a reward of at least `success_at` is a success.
    With K < k_min the failure is left out: with K = 1 there is no imitation left in J, only contrast, which is unstable.
    """
    groups = {}
    for t in trajectories:
        groups.setdefault((t.round, t.task), []).append(t)
    kept = []
    for group in groups.values():
        good = [t for t in group if t.reward >= success_at]
        bad = [t for t in group if t.reward < success_at][:1] if len(good) >= max(k_min, 1) and fail_reward else []
        kept += [(t, 1 / (len(good) + 1)) for t in good] + [(t, fail_reward / (len(good) + 1)) for t in bad]
    return kept


def shared_prefix(tokens, others):
    """How many tokens a failure has in common with the beginnings of all K successes of its task: pushed down once and up K
    times, they have a net weight of (K-1)/(K+1) in J, which is none for K = 1."""
    def common(other):
        return next((i for i, (a, b) in enumerate(zip(tokens, other)) if a != b), min(len(tokens), len(other)))
    return min(map(common, others), default=0)


def sentences(weighted):
    """The statistics of A3T's Tables 16 and 17: texts spoken in trajectories of positive and of negative weight, the negative
    share, and the effective K, how many positive ones stand against a negative one."""
    count = {sign: sum(s.source != SYSTEM for t, w in weighted if (w > 0) == sign for s in t.segments) for sign in (True, False)}
    total = count[True] + count[False]
    return {"positive": count[True], "negative": count[False], "negative_share": count[False] / total if total else 0.0,
            "effective_k": count[True] / count[False] if count[False] else math.inf}


# ---------------------------------------------------------------------------- joint rollouts: MAGRPO trees, IAC, MAAC (CoMLRL)

def joint_actions(agents, generations, mode):
    """What is combined at a node, as tuples of one completion's index an agent: "aligned": (j, ..., j), G of them; "cross": the
    Cartesian product, G ** agents."""
    return list(itertools.product(range(generations), repeat=agents) if mode == "cross" else zip(*[range(generations)] * agents))


def tree_returns(rewards, children, gamma=1.0):
    """The return of each joint action: its reward and, where it led on, the mean of its child's returns. children: the returns
    [J'] of each child, or None. Undiscounted; CoMLRL's older versions had gamma = 0.9."""
    return [r + gamma * (sum(child) / len(child) if child else 0.0) for r, child in zip(rewards, children, strict=True)]


def completion_returns(returns, actions, agent, generations):
    """[G] of one agent: the sum of the returns of all joint actions that a completion is part of (aligned: of its only one)."""
    return [sum(r for r, action in zip(returns, actions, strict=True) if action[agent] == k) for k in range(generations)]


def group_advantages(returns, baseline="mean", normalise=True):
    """Advantages of a node's G completions: R minus the group's mean (MAGRPO), nothing (MAREINFORCE), its maximum (MAReMax), or
    the mean of the others (MARLOO). Normalised to mean 0 and deviation 1, all four are the same. Equal returns give 0."""
    n, total = len(returns), sum(returns)
    if baseline == "rloo":
        if n < 2:
            raise ValueError("baseline rloo: there are no others to compare with; give --generations of at least 2")
        advantage = [(n * r - total) / (n - 1) for r in returns]
    else:
        advantage = [r - {"mean": total / n, "raw": 0.0, "max": max(returns)}[baseline] for r in returns]
    return normalised(advantage) if normalise else advantage


def normalised(values):
    """To mean 0 and (population) deviation 1; a deviation below 1e-6 counts as that."""
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
    return [(v - mean) / max(deviation, 1e-6) for v in values]


def td_targets(rewards, values, gamma=1.0):
    """r_t + gamma V(h_t+1) of one agent's turns; after the last one, or an early end, there is nothing to bootstrap from."""
    return [r + gamma * v for r, v in zip(rewards, [*values[1:], 0.0], strict=True)]


# ----------------------------------------------------------------------------------- selection (weak supervision §2.3, §2.4)

def identity(trajectory):
    """What makes two trajectories the same one: task and actions, as a hash."""
    acts = [s.text for s in trajectory.segments if s.role == "act" and s.source != SYSTEM]
    return hashlib.sha256(json.dumps([trajectory.task, acts]).encode()).hexdigest()[:24]


def select(trajectories, share, used=frozenset()):
    """The best-scored trajectories, never one that is like one in `used` or like another: k = max(1, floor(share x pool)), by
    score, ties by id. The pool: all of the latest round, and what earlier ones left unused. Raises ValueError without scores."""
    if unscored := next((t for t in trajectories if t.score is None), None):
        raise ValueError(f"trajectory {unscored.id} has no score; explore.py --critic gives one")
    named = [(identity(t), t) for t in sorted(trajectories, key=lambda t: (-t.score, t.id))]
    unused = {}                                     # of like ones the best
    for name, t in named:
        if name not in used:
            unused.setdefault(name, t)
    latest = max((t.round for t in trajectories), default=0)
    pool = sum(t.round == latest or name in unused for name, t in named)
    return list(unused.values())[:max(1, math.floor(share * pool + 1e-9))]


def ledger(path):
    """What trainings have used: [identity, the OUT whose training it was] for each line; nothing where there is no file yet."""
    try:
        return [[name, out] for name, out in map(json.loads, open_text(path).splitlines())] if os.path.exists(path) else []
    except (ValueError, TypeError) as error:
        raise BadInput(f"{path}: no ledger of used trajectories ({error}); mend it, or delete it to use all again") from None


def note_use(path, out, trajectories):
    """Write what the training of `out` uses into the ledger, in place of what it used before: a training that is stopped and
    begun again has the same choice."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    entries = [entry for entry in ledger(path) if entry[1] != out] + [[identity(t), out] for t in trajectories]
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)
    os.replace(f"{path}.tmp", path)


# --------------------------------------------------------------------------------------------------------------- batches

def collate(samples):
    """Right-padded tensors [B, T] of a list of samples (dicts of equally named lists). Causal attention never looks right, so
    padding needs no attention mask; every weight is 0 there. Index 0 is never a target: nothing stands before it."""
    import torch  # here, so that reading files and --help need not wait for it
    length = max(len(s["tokens"]) for s in samples)
    batch = {}
    for name in samples[0]:
        rows = [s[name] + [0] * (length - len(s[name])) for s in samples]
        batch[name] = torch.tensor(rows, dtype=torch.long if name in ("tokens", "mask") else torch.float32)
    for name in ("lm", "policy", "value"):
        batch[name][:, 0] = 0.0
    return batch


def by_length(samples, count):
    """Split samples into `count` groups of like length, longest first: little padding, and memory fails early if it must."""
    ordered = sorted(samples, key=lambda s: -len(s["tokens"]))
    size = -(-len(ordered) // max(count, 1)) or 1
    return [ordered[i:i + size] for i in range(0, len(ordered), size)]
