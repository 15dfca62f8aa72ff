"""The scripted expert of an environment as an agent: it thinks and acts, teaches, judges, and finds reasons."""
import functools
import random

from buffer import OWN


class Expert:
    """An environment's scripted expert as an agent, in any role. `world`: the environment's module.

    careless: the share of episodes in which it plays carelessly, e.g. 0.8 (each episode's lot is drawn from its id).
    """

    def __init__(self, world, careless=0.0, seed=0):
        self.world, self.careless, self.seed = world, careless, seed
        self.player = functools.lru_cache(1024)(world.expert)
        self.name = f"expert:{careless:g}" if careless else "expert"

    async def reply(self, trajectory, role, source=OWN):
        """Say the thought or the action of the expert's next move (roles "think", "act"), whether it would have acted as was
        just acted ("judge"), a reason for what was just acted ("reason"), or a similar task with its key ("pose")."""
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
