"""Two agents summarise one post: the first briefly, the second at a given ratio of that length (after CoMLRL's TLDR reward).

    from envs import summaries
    post = summaries.tasks("test", limit=1)[0]              # a built-in one; data="FILE": JSONL of {"prompt": ...}, as TLDR
    judged = summaries.judge(post, [brief, detailed])       # judged.reward, .won, .levels

They do not see each other's words before the second turn: a length that suits has to be agreed on by habit, or mended.

**The reward**, shared by both, from 0 to 1; a level counts only if those before it do:

| level | for | |
|---|---|---|
| 1 | both are within the limits (2 to 24 words; official posts: 8 to 256) | 0.2 |
| 2 | the ratio of their lengths: whole within a tenth of the given one, falling to 0 at half and at double of it | 0.6 |
| 3 | the share of their words that stand in the post and are not repeated (their product) | 0.2 |

The original's ratio is always 1.6 to 3.2, its third level compares numbers of unique words, and a fourth counts transition words.
"""
import json
import random
from dataclasses import dataclass
from pathlib import Path

from errors import BadInput

TEST = "test"
COUNTS = {"train": 256, "test": 100}              # built-in posts, if no limit is given
AGENTS = 2
INSTRUCTION = "You summarise a post. Another agent does so too, and your lengths have to fit."
WORDS = ("boat river stone garden winter letter brother market bread song window horse village rain doctor train coffee island "
         "teacher lamp").split()


@dataclass(frozen=True)
class Post:
    """`least`, `most`: words of a summary; `ratio`: how many times as long the second one is to be."""
    id: str
    prompt: str
    ratio: int = 2
    least: int = 2
    most: int = 24
    kind: str = "post"
    split: str = "test"


@dataclass(frozen=True)
class Judgement:
    """A joint answer's reward, whether it is at least 0.9, and what was found, level by level, as (worth, told to the agents)."""
    reward: float
    levels: tuple

    @property
    def won(self):
        """Nearly all that can be had."""
        return self.reward >= 0.9

    @property
    def metrics(self):
        """Nothing beside the reward."""
        return {}


def judge(post, texts):
    """The Judgement of the brief and of the detailed summary."""
    brief, detailed = (text.lower().split() for text in texts)
    told = f"They have {len(brief)}, {len(detailed)} words."
    if not all(post.least <= len(words) <= post.most for words in (brief, detailed)):
        return Judgement(0.0, ((0.0, f"{told} Not within {post.least} to {post.most}."),))
    fit = closeness(len(detailed) / len(brief), post.ratio)
    levels = [(0.2, told), (0.6 * fit, f"The lengths {'fit' if fit == 1 else 'do not fit' if fit == 0 else 'nearly fit'}.")]
    if fit:
        there = set(post.prompt.lower().split())
        shares = [len(set(words) & there) / len(words) for words in (brief, detailed)]
        levels.append((0.2 * shares[0] * shares[1], ""))
    return Judgement(sum(worth for worth, _ in levels), tuple(levels))


def closeness(ratio, wanted):
    """1 within a tenth of the wanted ratio, 0 outside half and double of it, linear between."""
    share = ratio / wanted
    if share < 0.9:
        return max(0.0, (share - 0.5) / 0.4)
    return 1.0 if share <= 1.1 else max(0.0, (2 - share) / 0.9)


def format_prompt(post, agent, prompt):
    """An agent's formatter: the post and the agent's part."""
    part = "Write the brief summary." if agent == 0 else f"Write the detailed summary, {post.ratio} times as long."
    return f"{prompt.strip()}\n{part}"


def transition(mode, post, which=1, propose=None):
    """An external transition (see envs/coding.py): `plain`, what was said, or `level_feedback`, what the levels found, too."""
    if mode not in ("plain", "level_feedback"):
        raise BadInput(f"--external {mode}: choose plain, level_feedback or FILE.py:FUNCTION")

    def external(prompt, agent_completions, num_agents, prompt_history_per_agent=None, response_history_per_agent=None):
        said = "\n".join(f"{name} so far: {text}" for name, text in zip(("brief", "detailed"), agent_completions))
        news = " ".join(told for _, told in judge(post, agent_completions).levels) if mode == "level_feedback" else ""
        return [f"{post.prompt.strip()}\n{said}\n{news}\nWrite it again."] * num_agents
    return external


def tasks(split, data=None, limit=None, seed=0):
    """The posts of a JSONL file, which has no split, or built-in ones made by `seed`; at most `limit`."""
    if split not in COUNTS:
        raise BadInput(f"--split {split}: summaries has {', '.join(COUNTS)}")
    if data is None:
        return [built_in_post(split, seed, index) for index in range(COUNTS[split] if limit is None else limit)]
    try:
        lines = Path(data).read_text(encoding="utf-8").split("\n")
        prompts = [json.loads(line)["prompt"].strip() for line in lines if line.strip()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f'--data {data}: no JSONL of {{"prompt": ...}} ({type(error).__name__}: {error}); give TLDR\'s') from None
    found = [Post(f"post/{number}", prompt, 2, 8, 256) for number, prompt in enumerate(prompts, start=1)]
    random.Random(f"summaries {seed}").shuffle(found)
    return found[:limit]


def built_in_post(split, seed, index):
    """A dozen words, and a ratio."""
    chance = random.Random(f"summaries {split} {seed} {index}")
    return Post(f"{split}/{seed}/{index}", " ".join(chance.sample(WORDS, 12)), chance.choice((2, 3)), split=split)


def complete(task, agent, prompt, chance):
    """The scripted player: the first words of the post, of a length that it does not think about."""
    words = prompt.split("\n")[0].split()
    return " ".join(words[:chance.randint(2, 5 if agent == 0 else 12)])


# One token of the tiny agent each
KINDS, MARKS = (), ",."
PHRASES = ([format_prompt(Post("", "", ratio), agent, "").strip() for agent in (0, 1) for ratio in (2, 3)] +
           ["brief so far:", "detailed so far:", "Write it again.", "They have", "words.", "Not within 2 to 24.", INSTRUCTION] +
           [f"The lengths {how}." for how in ("fit", "do not fit", "nearly fit")])
