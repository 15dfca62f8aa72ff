"""Who stands behind a name on the command line: --agent, --teacher, --annotator, --critic."""
import argparse

import envs
import errors
from errors import BadInput
from others.expert import Expert, Oracle, Proposer


def make_agent(name, args, cache, student=True, shared=None):
    """The agent behind a name: the scripted expert of the environment, a server, or a local model. cache: a file for replies;
    shared: see agent.load."""
    import torch

    import agent
    from others.remote import RemoteAgent
    torch.set_num_threads(args.threads)
    if name.startswith(("http://", "https://")):
        return RemoteAgent(name, envs.module(args.env).INSTRUCTION, args.max_tokens, args.temperature, cache)
    kind, _, careless = name.partition(":")
    if kind == "expert":
        try:
            careless = float(careless or 0)
        except ValueError:
            raise BadInput(f"{name}: write expert:SHARE with a number, e.g. expert:0.8") from None
        return Expert(envs.module(args.env), careless, args.seed)
    policy, tokenizer = agent.load(name, args.value_layer, shared, args.dtype, args.load_4bit)
    return agent.LocalAgent(policy.eval(), tokenizer, name, args.slots, args.max_length, args.max_tokens, args.temperature,
                            args.seed, student, args.plain)


def make_critic(args, env):
    """The agent behind --critic, for trajectories of the environment `env`: at temperature 0, with room for its reasons."""
    kind, _, rates = args.critic.partition(":")
    if kind == "expert":
        raise BadInput("--critic expert: a scripted player gives no scores; choose a model, a server or oracle:PRECISION/RECALL")
    if kind == "oracle":
        try:
            precision, recall = map(errors.share, rates.split("/"))
            return Oracle(precision, recall, args.seed)
        except (ValueError, argparse.ArgumentTypeError):
            raise BadInput(f"--critic {args.critic}: write oracle:PRECISION/RECALL, two shares above 0, e.g. oracle:0.7/0.97"
                           ) from None
    own = {"env": env, "temperature": 0.0, "max_tokens": 512, "max_length": 2 * args.max_length + 512}
    return make_agent(args.critic, argparse.Namespace(**{**vars(args), **own}), f"{args.out}.replies.jsonl", student=False)


def make_proposer(args, cache):
    """The agent behind --proposer: any that can write JSON, or the environment's scripted one."""
    kind, _, rates = args.proposer.partition(":")
    if kind == "scripted":
        try:
            rates = [float(rate) for rate in rates.split("/")]
            if len(rates) != 4 or min(rates) < 0 or not sum(rates):
                raise ValueError
        except ValueError:
            raise BadInput(f"--proposer {args.proposer}: write scripted:USEFUL/USELESS/HARMFUL/MALFORMED, four weights, e.g. "
                           "scripted:0.4/0.2/0.3/0.1") from None
        return Proposer(envs.module(args.env), rates, args.seed)
    if kind == "expert":
        raise BadInput("--proposer expert: the expert solves; choose scripted:..., a model or a server")
    own = {"max_tokens": args.proposer_tokens, "max_length": args.proposer_length}
    return make_agent(args.proposer, argparse.Namespace(**{**vars(args), **own}), cache, student=False)


def make_other(args):
    """The agent behind --teacher or --annotator; None where there is none. Raises BadInput where it does not fit the pattern."""
    for option, name, needed_by in (("teacher", args.teacher, ("dialogue", "analogue")),
                                    ("annotator", args.annotator, ("actre",))):
        if name and args.pattern not in needed_by:
            raise BadInput(f"--pattern {args.pattern}: it has no --{option}; leave it out, or choose {' or '.join(needed_by)}")
        if not name and args.pattern in needed_by:
            raise BadInput(f"--pattern {args.pattern}: give --{option} AGENT, e.g. --{option} expert")
    if args.pattern == "actre" and args.env in ("gsm8k", "hotpotqa", "apibank", "mathqa"):
        raise BadInput(f"--pattern actre: in --env {args.env} actions cannot be listed, so none can be sampled; choose another")
    if args.pattern == "analogue" and args.env in ("apibank", "mathqa"):
        raise BadInput(f"--pattern analogue: --env {args.env} has no similar questions; choose another")
    if args.annotator == "none":
        return None
    name = args.teacher or args.annotator
    return make_agent(name, args, f"{args.out}.replies.jsonl", student=False) if name else None
