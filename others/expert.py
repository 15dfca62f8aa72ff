"""Scripted agents: the expert of an environment, who thinks and acts, teaches, judges, and finds reasons; a noisy critic; and a
proposer of functions."""
import functools
import random

from buffer import OWN


class Expert:
    """An environment's scripted expert as an agent, in any role. `world`: the environment's module.

    careless: the share of episodes in which it plays carelessly, e.g. 0.8 (each episode's lot is drawn from its id).
    """

    def __init__(self, world, careless=0.0, seed=0):
        self.world, self.careless, self.seed = world, careless, seed
        self.player = functools.lru_cache(1024)(lambda *seen: world.expert(*seen))
        self.name = f"expert:{careless:g}" if careless else "expert"

    async def reply(self, trajectory, role, source=OWN):
        """Say the thought or the action of the expert's next move (roles "think", "act"), whether it would have acted as was
        just acted ("judge"), a reason for what was just acted ("reason"), a similar task with its key ("pose"), or its part of a
        joint answer ("completion")."""
        if role == "completion":
            said = self.world.complete(trajectory.task, trajectory.agent, trajectory.segments[-1].text,
                                       random.Random(f"{self.seed} {trajectory.id}"))
            return trajectory.add(said, source, role)
        start = max(i for i, s in enumerate(trajectory.segments) if s.role == "task")
        acts = [s.text for s in trajectory.segments[start:] if s.role == "act"]
        told = [s.text for s in trajectory.segments[start:] if s.role == "observation"]
        first, careless = trajectory.segments[start].text, self.is_careless(trajectory)
        if role == "pose":
            return trajectory.add(self.world.pose(trajectory.task, first, f"{self.seed} {trajectory.id}", careless), source, role)
        if role == "reason":
            return trajectory.add(self.world.reason(first, tuple(zip(acts[:-1], told)), acts[-1]), source, role)
        if role == "judge":
            _, action = self.player(first, tuple(zip(acts[:-1], told)), careless)
            given, wanted = (text.lower().replace(" ", "") for text in (acts[-1], action))      # a tokenizer may change both
            return trajectory.add("yes" if given == wanted else "no", source, role)
        thought, action = self.player(first, tuple(zip(acts, told)), careless)
        return trajectory.add(thought if role == "think" else action, source, role)

    def unsay(self, trajectory, n):
        """Nothing to forget: the expert reads the record."""
        del trajectory.segments[n:]

    def is_careless(self, trajectory):
        """The episode's lot."""
        return random.Random(f"{self.seed} {trajectory.id}").random() < self.careless

    def close(self, trajectory):
        """Nothing to forget: the expert reads the record."""


class Oracle:
    """A critic that knows how an episode ended, and errs as often as it is told. What it calls good gets a score from 6 to 10,
    the rest 0 to 4, at random (by the episode's id).

    precision, recall: of what it calls good, where SHARE of the episodes are right, as in the paper's sample of 100 (35 right
    ones called good, 1 bad; 15 wrong ones called good, 49 bad: .70, .97). Where more are right it is more precise: its own is
    how often it takes a wrong one for good, recall x SHARE (1 - precision) / (precision (1 - SHARE)). "0.36/1" calls all good,
    so that chance alone selects.
    """
    SHARE = 0.36

    def __init__(self, precision, recall, seed=0):
        self.recall, self.seed, self.name = recall, seed, f"oracle:{precision:g}/{recall:g}"
        self.fooled = min(1.0, recall * self.SHARE * (1 - precision) / (precision * (1 - self.SHARE)))

    async def reply(self, trajectory, role, source=OWN):
        """Say a score."""
        chance = random.Random(f"critic {self.seed} {trajectory.id}")
        good = chance.random() < (self.recall if trajectory.success else self.fooled)
        return trajectory.add(str(chance.randint(6, 10) if good else chance.randint(0, 4)), source, role)

    def close(self, trajectory):
        """Nothing to forget."""


class Proposer:
    """An environment's scripted proposer of functions. rates: weights of useful, useless, harmful and malformed actions."""

    def __init__(self, world, rates, seed=0):
        self.world, self.rates, self.seed, self.name = world, rates, seed, "scripted:" + "/".join(f"{rate:g}" for rate in rates)

    async def reply(self, trajectory, role, source=OWN):
        """Propose actions, as JSON."""
        chance = random.Random(f"proposer {self.seed} {trajectory.id}")
        return trajectory.add(self.world.propose(trajectory.segments[-1].text, chance, *self.rates), source, role)

    def close(self, trajectory):
        """Nothing to forget."""
