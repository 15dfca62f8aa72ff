"""Communication patterns: who speaks when, and to whom (LTC §3.1, Algorithms 1-3; A3T Appendix A; the critic of weak
supervision; CoMLRL's rollout trees).

A pattern is a coroutine that reads like the paper's listing and knows nothing of batches, models or files. It is given an
environment, the agents and an empty trajectory, and lets them talk until the environment says that it is over. Hundreds run at
once; wherever one waits for a reply, the others go on. Roles are prompts: who stands behind a role is an argument, so that the
agent can play its own teacher, as it does when it is tested.

    monologue   the agent thinks, the agent acts                                        one episode
    dialogue    the teacher thinks, the agent acts                                      one episode
    analogue    the agent answers; the teacher corrects it; the teacher asks something   three episodes in one record
                similar; the agent answers that
    actre       the agent thinks and acts, but now and then chance acts, and the         one episode
                annotator finds a reason for it
    criticise   a critic reads what is finished and says how good it was                no episode
    joint       N agents answer at once, each its own prompt, turn by turn               a tree of them

Every text is a segment of its own, with its own speaker and reward (L10). A reward is stored on the environment's response after
the agent's action, from where L6 moves it to the agent's last token; a teacher's stands on the teacher's own last action.
"""
import asyncio
import re
from dataclasses import dataclass, replace
from statistics import fmean

from buffer import OTHER, OWN, SYSTEM, completion_returns, joint_actions, tree_returns
from errors import BadInput

PROMPTS = {"think": "Thought:", "act": "Action:", "judge": "Is that right?", "pose": "Question:", "reason": "Thought:",
           "score": "Score:"}
CRITERIA = """Was this work good? Check four things: was the right function chosen at each step; were its arguments right; were \
errors dealt with; does the conclusion follow from the results, and answer what was asked? Any of them gone wrong makes it bad. \
Then give a number from 0, useless, to 10, faultless, on a last line of the form Score: N"""


@dataclass(frozen=True)
class Rules:
    """What the paper leaves open and explore.py has arguments for."""
    keep_invalid: bool = False          # learn from actions that cannot be parsed too; LTC A.2 skips them
    overflow_reward: float = -1.0       # added to the last reward of an episode that was cut off (L13)
    judge: str = "env"                  # who rewards the first answer of an Analogue: the environment's key, or the teacher (L12)
    assume_teacher: bool = False  # +1 for every correction of a teacher; else for those that the environment finds right (L12)


async def ask(agent, trajectory, role, source=OWN):
    """Prompt for a role and let `agent` fill it. Returns the segment it added."""
    trajectory.add(PROMPTS[role], SYSTEM, "prompt")
    return await agent.reply(trajectory, role, source)


async def attempt(env, thinker, actor, trajectory, rules, sources=(OWN, OWN)):
    """Think, act, observe, until the environment ends it. `sources`: whose words thought and action are.

    An own action that cannot be parsed as a command is skipped as an action (LTC A.2), and so is the own thought before it: both
    stay in the record, for the agent has read them, but as system text, so that nothing is learnt from them. A command that does
    nothing ("Nothing happens.") is an action like any other. What another agent's episode earns is for the caller to say.
    """
    done = False
    while not done:
        thought = await ask(thinker, trajectory, "think", sources[0])
        action = await ask(actor, trajectory, "act", sources[1])
        if sources[1] == OWN and not rules.keep_invalid and not env.parses(action.text):
            action.source = SYSTEM
            if sources[0] == OWN:
                thought.source = SYSTEM
        observation, reward, done = env.step(action.text)
        reward = reward + rules.overflow_reward * env.truncated if sources[1] == OWN else 0.0
        trajectory.add(observation, SYSTEM, "observation", reward)


async def monologue(env, agent, trajectory, rules=Rules()):
    """LTC Algorithm 1: both roles are played by the same agent."""
    trajectory.add(env.reset(), SYSTEM, "task")
    await attempt(env, agent, agent, trajectory, rules)


async def dialogue(env, agent, teacher, trajectory, rules=Rules()):
    """LTC Algorithm 2: the same with another agent's thoughts, which get mask 2."""
    trajectory.add(env.reset(), SYSTEM, "task")
    await attempt(env, teacher, agent, trajectory, rules, (OTHER, OWN))


async def analogue(env, again, similar, agent, teacher, trajectory, rules=Rules()):
    """LTC Algorithm 3, homework and its correction. An answer is a whole episode, so that it works with tools too.

    env, again: the same task twice, for the agent and for the teacher's correction. similar: the words that a teacher poses ->
    an environment with a similar task, or None if they pose none; similar(None) -> such a task without a teacher's words, or
    None if the teacher has to pose it. The key stays out of the record (L11).
    """
    trajectory.add(env.reset(), SYSTEM, "task")
    await attempt(env, agent, agent, trajectory, rules)
    if rules.judge == "teacher":
        answer = trajectory.segments[-1]                # what the environment said of it, unread so far
        trajectory.reward -= answer.reward
        answer.text, answer.reward = "", 0.0
        verdict = await ask(teacher, trajectory, "judge", OTHER)
        answer.reward = 1.0 if verdict.text.strip().lower().startswith("yes") else -1.0
        trajectory.reward += answer.reward
    trajectory.add(again.reset(), SYSTEM, "task")
    correction = len(trajectory.segments)
    await attempt(again, teacher, teacher, trajectory, rules, (OTHER, OTHER))
    words = [s for s in trajectory.segments[correction:] if s.source == OTHER]
    if again.won or rules.assume_teacher:
        words[-1].reward = 1.0
        trajectory.reward += 1.0
    else:                                               # a wrong correction teaches nothing: -1 would push its right steps down
        for s in words:
            s.source = SYSTEM
    if (new := similar(None)) is not None:
        trajectory.add(new.reset(), SYSTEM, "task")
    else:
        posed = await ask(teacher, trajectory, "pose", OTHER)
        new = similar(posed.text)
        if new is None:                                 # no question and key in it: nobody can answer it
            posed.source = SYSTEM
            return
        posed.text, posed.role = new.reset().removeprefix(PROMPTS["pose"]).strip(), "task"
    await attempt(new, agent, agent, trajectory, rules)


async def actre(env, agent, annotator, trajectory, chance, rules=Rules(), p_sample=0.5):
    """Compose one trajectory of own and of sampled actions (A3T Appendix A). chance: a random.Random; annotator None: no reasons.

    With probability `p_sample`, and always after three impossible actions in a row, the agent's move is unsaid, and another
    action is drawn from the admissible ones. The annotator is asked for its reason *after* it is known; the record has the
    reason *before* it, so that it reads like any other thought. Both get mask 2: that is how sampled steps are marked.
    """
    trajectory.add(env.reset(), SYSTEM, "task")
    impossible, done = 0, False
    while not done:
        said = len(trajectory.segments)
        await ask(agent, trajectory, "think")
        action = (await ask(agent, trajectory, "act")).text.strip()
        squeezed = action.lower().replace(" ", "")                       # a tokenizer may set blanks beside brackets
        others = [other for other in env.admissible if other.replace(" ", "") != squeezed]
        if (chance.random() < p_sample or impossible >= 3) and others:
            agent.unsay(trajectory, said)
            action, impossible = chance.choice(others), 0
            reason = await reason_for(action, annotator, trajectory) if annotator else ""
            for role, text in (("think", reason), ("act", action)):
                trajectory.add(PROMPTS[role], SYSTEM, "prompt")
                trajectory.add(text, OTHER, role)
        else:
            impossible = 0 if env.possible(action) else impossible + 1
        observation, reward, done = env.step(action)
        trajectory.add(observation, SYSTEM, "observation", reward + rules.overflow_reward * env.truncated)


async def reason_for(action, annotator, trajectory):
    """Ask why: the history, the action, then the prompt of a thought. Nothing of it enters the record."""
    scratch = replace(trajectory, segments=list(trajectory.segments))
    scratch.add(PROMPTS["act"], SYSTEM, "prompt")
    scratch.add(action, SYSTEM, "act")
    try:
        return (await ask(annotator, scratch, "reason", OTHER)).text
    finally:
        annotator.close(scratch)            # also when it overflows: its place is needed


async def criticise(critic, trajectory):
    """A critic's score of a finished trajectory, 0 to 10; -1, below the lowest, for a reply without a score (weak supervision
    §2.3; its prompt is not published, this one has its four checks). Nothing of it enters the record."""
    from agent import Overflow
    scratch = replace(trajectory, segments=[replace(s, tokens=None) for s in trajectory.segments])
    scratch.add(CRITERIA, SYSTEM, "task")
    try:
        return score_of((await ask(critic, scratch, "score", OTHER)).text)
    except Overflow:                        # too long for this critic to read
        return -1.0
    finally:
        critic.close(scratch)


def score_of(reply):
    """The number of the last "Score:" in a reply, the prompt's own included, if it is one from 0 to 10; else -1."""
    said = re.findall(r"score[\s*_]*:[\s*_]*(?=(\S*))", f"Score: {reply}", re.IGNORECASE)[-1]
    number = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/10)?[.,;!*_]*", said)
    return float(number[1]) if number and float(number[1]) <= 10 else -1.0


@dataclass(frozen=True)
class Tree:
    """What grows a tree of joint rollouts. All but the numbers are functions, so that a test can play them."""
    begin: callable             # (path, agent, completion) -> an empty trajectory; path: the joint actions that led to the node
    complete: callable          # async (agent, trajectory) -> None: the agent (a number) answers what is in the trajectory
    judge: callable             # async (texts of a joint action) -> something with reward, won and metrics
    transition: callable        # async (completions, prompts, responses) -> the next prompts, one an agent
    values: callable            # async (path, prompts) -> (trajectories of critics, a value an agent), empty without critics
    agents: int = 2
    turns: int = 2
    generations: int = 4
    mode: str = "aligned"
    stop_above: float | None = None


async def joint(tree, prompts, asked=None, answered=None, path=(), before=()):
    """Grow the node of a joint history, and all that follows (CoMLRL's multi-turn MAGRPO; with one generation a chain, as for
    IAC and MAAC). Returns (the returns of its joint actions, the trajectories of the tree, those of its root last).

    Each of N agents answers its prompt G times. Every joint action of the mode gets one shared reward and, unless this is the
    last turn, one child, whose N prompts the external transition makes of that branch alone. asked, answered: what each agent has
    been asked and has answered on this branch; before: the metrics of its turns. If the node's mean reward is above `stop_above`,
    it has no children: CoMLRL's default, -0.2, would end every branch whose rewards cannot be negative, so ours is None.

    One trajectory a completion: `reward` is the mean of its joint actions', metrics["return"] the sum of their returns.
    """
    asked, answered = asked or [[] for _ in prompts], answered or [[] for _ in prompts]
    turn, everyone = len(path) + 1, range(tree.agents)

    async def completion(i, k):
        trajectory = tree.begin(path, i, k)
        trajectory.add(prompts[i], SYSTEM, "task")
        await tree.complete(i, trajectory)
        return trajectory
    said, critics = await asyncio.gather(
        asyncio.gather(*(completion(i, k) for i in everyone for k in range(tree.generations))), tree.values(path, prompts))
    said = [said[i * tree.generations:(i + 1) * tree.generations] for i in everyone]                        # [N][G]
    actions = joint_actions(tree.agents, tree.generations, tree.mode)
    texts = [[said[i][k].segments[-1].text for i, k in enumerate(action)] for action in actions]
    judged = await asyncio.gather(*map(tree.judge, texts))
    rewards = [j.reward for j in judged]
    told = [{**dict(before), f"turn_{turn}/reward_mean": j.reward, **{f"turn_{turn}/{name}": x for name, x in j.metrics.items()}}
            for j in judged]

    async def child(j):
        heard = [[*old, new] for old, new in zip(asked, prompts)], [[*old, new] for old, new in zip(answered, texts[j])]
        new = await tree.transition(texts[j], *heard)
        if not isinstance(new, (list, tuple)) or len(new) != tree.agents or not all(isinstance(prompt, str) for prompt in new):
            raise BadInput(f"--external: it returned {str(new)[:80]!r}, not a list of {tree.agents} prompts, one an agent")
        return await joint(tree, list(new), *heard, (*path, j), told[j])
    last = turn == tree.turns or (tree.stop_above is not None and fmean(rewards) > tree.stop_above)
    children = [] if last else await asyncio.gather(*map(child, range(len(actions))))
    returns = tree_returns(rewards, [child for child, _ in children] or [None] * len(rewards))
    note(said, actions, judged, told, returns, critics)
    return returns, [t for _, found in children for t in found] + [t for mine in said for t in mine] + critics[0]


def note(said, actions, judged, told, returns, critics):
    """Write what a node's joint actions have earned into the trajectories of its completions and of its critics."""
    of_node = {"reward_mean": fmean(j.reward for j in judged), "expected_return": fmean(returns)}
    for i, completions in enumerate(said):
        sums = completion_returns(returns, actions, i, len(completions))
        for k, trajectory in enumerate(completions):
            mine = [j for j, action in enumerate(actions) if action[i] == k]
            trajectory.reward = trajectory.segments[-1].reward = fmean(judged[j].reward for j in mine)
            trajectory.success = all(judged[j].won for j in mine)
            trajectory.metrics = {**{name: fmean(told[j][name] for j in mine) for name in told[0]}, **of_node, "return": sums[k]}
            if critics[1]:
                trajectory.metrics["value"] = critics[1][i]
    for trajectory in critics[0]:
        trajectory.reward = trajectory.segments[-1].reward = of_node["reward_mean"]
        trajectory.metrics = {**of_node, "value": trajectory.segments[-1].values[0]}
