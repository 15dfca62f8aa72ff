"""Communication patterns: who speaks when, and to whom (LTC §3.1, Algorithms 1-3).

A pattern is a coroutine that reads like the paper's listing and knows nothing of batches, models or files. It is given an
environment, the agents and an empty trajectory, and lets them talk until the environment says that it is over. Hundreds run at
once; wherever one waits for a reply, the others go on. Roles are prompts: who stands behind a role is an argument.
"""
from buffer import OWN, SYSTEM

PROMPTS = {"think": "Thought:", "act": "Action:"}


async def ask(agent, trajectory, role, source=OWN):
    """Prompt for a role and let `agent` fill it. Returns the segment it added."""
    trajectory.add(PROMPTS[role], SYSTEM, "prompt")
    return await agent.reply(trajectory, role, source)


async def monologue(env, agent, trajectory, keep_invalid=False):
    """Think, act, observe, until the environment ends it (LTC Algorithm 1): both roles are played by the same agent.

    A turn whose action is no command that could do anything is skipped as an action (LTC A.2): it stays in the record, for the
    agent has read it, but as system text, so that nothing is learnt from it. `keep_invalid` learns from it like from any other.
    """
    trajectory.add(env.reset(), SYSTEM, "observation")
    done = False
    while not done:
        thought = await ask(agent, trajectory, "think")
        action = await ask(agent, trajectory, "act")
        if not keep_invalid and env.admissible and action.text not in env.admissible:
            thought.source = action.source = SYSTEM
        observation, reward, done = env.step(action.text)
        trajectory.add(observation, SYSTEM, "observation", reward)
