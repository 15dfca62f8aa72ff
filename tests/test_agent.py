"""The local agent: what the slot cache computes and samples, the value head, the tiny tokenizer, checkpoints, and the record.

`lively` is a small model with big random weights, so that every token before has a say in the next one; what the agent says with
its cache and its crowd is compared with the plain thing: one conversation, one token, one full forward pass at a time.
"""
import asyncio
import json
import random
from argparse import Namespace

import pytest
import torch
from conftest import TINY, run_train

import agent
import buffer
import envs
import explore
import patterns
import speech
from buffer import OWN, SYSTEM
from envs import words
from others.expert import Expert

WORDS = ["you see mug 1 and desk 2 and book 3", "go to desk 1", "take mug 2 from shelf 1", "your task is to: find a pen",
         "nothing happens.", "put pen", "do one task.", "you won", "i see mug 1 .", "thought: action:"]
PHRASES = ["go to", "you see", "nothing happens.", "thought:", "action:", "On the", "put pen", "put"]
KINDS = ["mug", "desk", "book", "shelf", "pen"]


@pytest.fixture(scope="module")
def tokenizer():
    return words.tokenizer_for(WORDS, PHRASES, KINDS)


def make_lively(tokenizer, value_layer=-2, seed=1):
    policy = agent.make_tiny(tokenizer, width=32, layers=3, heads=2, value_layer=value_layer, seed=seed).eval()
    with torch.no_grad():
        for name, p in policy.named_parameters():
            if "norm" not in name:
                p.normal_(0, 0.05 if "value" in name else 0.25)
    return policy


@pytest.fixture(scope="module")
def lively(tokenizer):
    return make_lively(tokenizer)


# ------------------------------------------------------------------------------------- conversations, and the plain thing

def script(number, turns):
    """What the world says in a conversation: texts of different lengths."""
    chance = random.Random(number)
    words = "mug desk book 1 2 pen see go to you".split()
    return [" ".join(chance.choices(words, k=chance.randint(1, 12))) for _ in range(turns)]


STOP = set(range(0, 1000, 5))         # every fifth token ends a reply, so that replies differ in length and rows wait for others


def talk_all(local, scripts, ids, stop=STOP):
    """Hold all conversations at once, at most `local.slots` in the air. Returns the trajectories."""
    if stop:
        local.speech.stop = lambda role: stop

    async def one(texts, id, slots):
        trajectory = buffer.Trajectory(id=id, task=id, temperature=local.temperature)
        async with slots:
            for text in texts:
                trajectory.add(text, SYSTEM, "observation")
                await patterns.ask(local, trajectory, "act")
            trajectory.add("you won", SYSTEM, "observation", 1)
            local.close(trajectory)
        return trajectory

    async def everybody():
        slots = asyncio.Semaphore(local.slots)
        return await asyncio.gather(*(one(texts, id, slots) for texts, id in zip(scripts, ids, strict=True)))
    return asyncio.run(everybody())


def plain(policy, tokenizer, texts, id, max_tokens, temperature, seed):
    """The same by full forward passes of the plain Transformers model: a list of (tokens, logprobs, values), one a reply."""
    end = speech.speech_of(tokenizer).line
    tokens, chance, replies = [], random.Random(f"{seed} {id}"), []
    for text in texts:
        tokens += tokenizer.encode(text) + end + tokenizer.encode(patterns.PROMPTS["act"])
        reply = [], [], []
        while len(reply[0]) < max_tokens and not (reply[0] and reply[0][-1] in STOP):
            with torch.no_grad():
                out = policy.model(torch.tensor([tokens]), output_hidden_states=True)
            logp = torch.log_softmax(out.logits[0, -1].double() / (temperature or 1), -1)
            below, u = logp.exp().cumsum(0), chance.random()
            token = int(logp.argmax()) if temperature == 0 else int((below <= u).sum())
            hidden = out.hidden_states[policy.value_layer][0, -1]        # (embeddings, after layer 0, 1, after the last and norm)
            tokens.append(token)
            reply[0].append(token)
            reply[1].append(logp[token].item())
            reply[2].append(torch.tanh(policy.value_head(hidden)).item())
        replies.append(reply)
    return replies


def own(trajectory):
    return [s for s in trajectory.segments if s.source == OWN]


SCRIPTS = [script(n, turns) for n, turns in enumerate([3, 1, 4, 2, 5, 1, 3])]
IDS = [f"talk {n}" for n in range(len(SCRIPTS))]


@pytest.fixture(scope="module", params=[0.0, 1.0, 0.6])
def wanted(request, lively, tokenizer):
    """A temperature, and what all conversations must say at it."""
    return request.param, [plain(lively, tokenizer, *talk, 8, request.param, 7) for talk in zip(SCRIPTS, IDS, strict=True)]


@pytest.mark.parametrize("slots", [1, 3, 6, 16])
def test_slot_cache_says_what_full_forward_passes_say(lively, tokenizer, wanted, slots):
    """Different lengths, several turns, more conversations than slots (1, 3, 6), and empty slots (16)."""
    local = agent.LocalAgent(lively, tokenizer, "lively", slots, max_tokens=8, temperature=wanted[0], seed=7)
    for trajectory, replies in zip(talk_all(local, SCRIPTS, IDS), wanted[1], strict=True):
        for segment, (tokens, logprobs, values) in zip(own(trajectory), replies, strict=True):
            assert segment.tokens == tokens
            assert segment.logprobs == pytest.approx(logprobs, abs=1e-4)
            assert segment.values == pytest.approx(values, abs=1e-4)
    assert sorted(local.free) == list(range(slots)) and not local.conversations


@pytest.mark.parametrize("at_once", [1, 7])
def test_long_prompts_are_read_in_pieces(lively, tokenizer, wanted, at_once, monkeypatch):
    """And nobody sees it in what is said."""
    monkeypatch.setattr(agent, "AT_ONCE", at_once)
    fed, read = [], lively.read
    monkeypatch.setattr(lively, "read", lambda tokens, **how: fed.append(tokens.numel()) or read(tokens, **how))
    local = agent.LocalAgent(lively, tokenizer, "lively", 3, max_tokens=8, temperature=wanted[0], seed=7)
    for trajectory, replies in zip(talk_all(local, SCRIPTS, IDS), wanted[1], strict=True):
        assert [s.tokens for s in own(trajectory)] == [tokens for tokens, _, _ in replies]
        for segment, (_, logprobs, _) in zip(own(trajectory), replies, strict=True):
            assert segment.logprobs == pytest.approx(logprobs, abs=1e-4)
    assert max(fed) <= max(at_once, 3)


def test_the_plain_thing_is_not_trivial(wanted):
    """The comparison above means something: replies differ in words, length and value."""
    replies = [reply for talk in wanted[1] for reply in talk]
    assert len({tuple(tokens) for tokens, _, _ in replies}) > len(replies) / 2
    assert len({len(tokens) for tokens, _, _ in replies}) > 3
    values = [v for _, _, vs in replies for v in vs]
    assert max(values) - min(values) > 0.5


def test_a_crowd_does_not_change_what_one_says(lively, tokenizer):
    def said(scripts, ids, slots):
        local = agent.LocalAgent(lively, tokenizer, "lively", slots, max_tokens=6, seed=3)
        return talk_all(local, scripts, ids)
    def logprobs(trajectory):
        return [x for s in own(trajectory) for x in s.logprobs]
    crowd = said(SCRIPTS, IDS, 4)
    for n in (0, 4):
        alone, = said([SCRIPTS[n]], [IDS[n]], 1)
        assert [s.tokens for s in alone.segments] == [s.tokens for s in crowd[n].segments]
        assert logprobs(alone) == pytest.approx(logprobs(crowd[n]), abs=1e-5)


def test_chance_belongs_to_the_conversation_and_the_seed(lively, tokenizer):
    def said(id, seed):
        local = agent.LocalAgent(lively, tokenizer, "lively", 2, max_tokens=8, seed=seed)
        return [s.tokens for s in talk_all(local, [SCRIPTS[2]], [id])[0].segments]
    assert said("a", 0) == said("a", 0)
    assert said("a", 0) != said("b", 0) and said("a", 0) != said("a", 1)


def test_a_reply_stops_at_its_end_mark_or_at_max_tokens(tokenizer, monkeypatch):
    local = agent.LocalAgent(make_lively(tokenizer), tokenizer, "scripted", 1, max_tokens=4)
    says(monkeypatch, tokenizer, ["go to", "desk 1", words.END, "pen", "pen", "pen", "pen", "pen"])
    first, second = own(talk_all(local, [["you see mug 1", "nothing happens."]], ["a"], None)[0])
    assert first.text == "go to desk 1" and tokenizer.decode(first.tokens) == "go to desk 1 <end>"
    assert second.text == "pen pen pen pen" and len(second.tokens) == 4


def says(monkeypatch, tokenizer, words):
    """Make any local agent say these tokens, one after the other, each with probability 1/2."""
    words, vocabulary = list(words), tokenizer.get_vocab()
    monkeypatch.setattr(agent, "sample", lambda logits, temperature, chances: (
        torch.tensor([vocabulary[words.pop(0)]]), torch.full((1,), 0.5).log()))


def test_an_error_of_the_model_reaches_everyone_who_waits(lively, tokenizer, monkeypatch):
    monkeypatch.setattr(agent, "sample", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        talk_all(agent.LocalAgent(lively, tokenizer, "broken", 2), SCRIPTS[:2], IDS[:2])


# --------------------------------------------------------------------------------------------------------------- sampling

LOGITS = torch.tensor([[0.5, 0.3, 0.2]]).log()


@pytest.mark.parametrize("chance, token", [(0.0, 0), (0.499, 0), (0.501, 1), (0.799, 1), (0.801, 2), (1 - 2 ** -53, 2)])
def test_sample_inverts_the_cumulative_distribution(chance, token):
    picked, logprob = agent.sample(LOGITS, 1.0, [chance])
    assert picked.item() == token
    assert logprob.item() == pytest.approx(LOGITS[0, token].item(), abs=1e-6)


@pytest.mark.parametrize("chance", [0.0, 0.5, 1 - 2 ** -53])
def test_sample_never_picks_what_has_no_probability(chance):
    logits = torch.tensor([[-1e9, 0.0, -1e9, -1e9]])
    assert agent.sample(logits, 1.0, [chance])[0].item() == 1


def test_sample_draws_each_row_by_its_own_chance():
    picked, _ = agent.sample(LOGITS.repeat(3, 1), 1.0, [0.9, 0.1, 0.6])
    assert picked.tolist() == [2, 0, 1]


def test_temperature_is_in_the_recorded_log_probability():
    """p^2 / sum p^2 at temperature 1/2: 25/38, 9/38, 4/38."""
    picked, logprob = agent.sample(LOGITS.repeat(2, 1), 0.5, [0.65, 0.66])
    assert picked.tolist() == [0, 1]
    assert logprob.exp().tolist() == pytest.approx([25 / 38, 9 / 38])


def test_greedy_takes_the_best_and_records_its_log_probability_at_temperature_one():
    picked, logprob = agent.sample(torch.tensor([[0.2, 0.3, 0.5]]).log(), 0.0, [0.0])
    assert picked.item() == 2 and logprob.exp().item() == pytest.approx(0.5)


# --------------------------------------------------------------------------------------------- what training sees of it

@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_what_was_recorded_is_what_training_computes(lively, tokenizer, temperature):
    """The ratio of the first update is 1: Policy.forward finds the log-probabilities and values of the record again."""
    local = agent.LocalAgent(lively, tokenizer, "lively", 3, max_tokens=5, temperature=temperature, seed=1)
    flats = [buffer.flatten(t) for t in talk_all(local, SCRIPTS, IDS)]
    width = max(len(f["tokens"]) for f in flats)
    padded = {name: torch.tensor([f[name] + [0] * (width - len(f[name])) for f in flats])
              for name in ("tokens", "mask", "logprobs", "values")}
    keep = padded["mask"] == OWN
    with torch.no_grad():
        logits, values = lively(padded["tokens"], keep)
    logp = torch.log_softmax(logits / (temperature or 1), -1).gather(-1, padded["tokens"][keep][:, None])[:, 0]
    assert (logp - padded["logprobs"][keep]).abs().max() < 2e-5                  # floats of seven digits, added in another order
    assert (values - padded["values"][keep]).abs().max() < 2e-5
    assert len(logp) == sum(f["mask"].count(OWN) for f in flats) and all(f["recorded"] for f in flats)


EXPECTED = [                   # text, source, reward, reward after it moved to where it can teach
    ("do", 0, 0, 0), ("one", 0, 0, 0), ("task", 0, 0, 0), ("<end>", 0, 0, 0),
    ("you see", 0, 0, 0), ("mug 1", 0, 0, 0), ("desk 2", 0, 0, 0), ("<end>", 0, 0, 0),
    ("thought", 0, 0, 0), ("i", 1, 0, 0), ("see", 1, 0, 0), ("mug 1", 1, 0, 0), ("<end>", 1, 0, 0),
    ("action", 0, 0, 0), ("go to", 1, 0, 0), ("desk 1", 1, 0, 0), ("<end>", 1, 0, 0),
    ("nothing happens", 0, 0, 0), ("<end>", 0, 0, 0),
    ("thought", 0, 0, 0), ("i", 1, 0, 0), ("see", 1, 0, 0), ("mug 1", 1, 0, 0), ("<end>", 1, 0, 0),
    ("action", 0, 0, 0), ("take", 1, 0, 0), ("mug 2", 1, 0, 0), ("from", 1, 0, 0), ("shelf 1", 1, 0, 0), ("<end>", 1, 0, 1),
    ("you", 0, 0, 0), ("won", 0, 0, 0), ("<end>", 0, 1, 0)]


class Room:
    """Two steps, then you have won."""
    truncated = False

    def parses(self, action):
        return True

    def reset(self):
        self.steps = 0
        return "You see a mug 1 and a desk 2."

    def step(self, action):
        self.steps += 1
        return ("You won!", 1.0, True) if self.steps == 2 else ("Nothing happens.", 0.0, False)


def rendered(trajectory, tokenizer):
    flat = buffer.flatten(trajectory)
    moved = buffer.effective_rewards(flat["mask"], flat["rewards"])
    words = [tokenizer.decode([i]) for i in flat["tokens"]]
    return list(zip(words, flat["mask"], flat["rewards"], moved, strict=True))


def monologue(speaker):
    trajectory = buffer.Trajectory(id="a", task="a")
    trajectory.add("Do one task.", SYSTEM, "instruction")
    asyncio.run(patterns.monologue(Room(), speaker, trajectory))
    speaker.close(trajectory)
    return trajectory


def test_mask_and_rewards_of_a_local_agents_record(tokenizer, monkeypatch):
    says(monkeypatch, tokenizer, [text for text, source, _, _ in EXPECTED if source == OWN])
    trajectory = monologue(agent.LocalAgent(make_lively(tokenizer), tokenizer, "scripted", 1))
    assert rendered(trajectory, tokenizer) == EXPECTED
    flat = buffer.flatten(trajectory)
    assert flat["recorded"] and [x < 0 for x in flat["logprobs"]] == [source == OWN for _, source, _, _ in EXPECTED]
    assert all(s.role == "prompt" for s in trajectory.segments if s.text in patterns.PROMPTS.values())


def test_mask_and_rewards_of_an_experts_record(tokenizer):
    """The expert's words are encoded when somebody trains on them, and give the very same sequences."""
    def player(first, steps, careless):
        return "I see a mug 1.", ("take mug 2 from shelf 1" if steps else "go to desk 1")
    trajectory = monologue(Expert(Namespace(expert=player)))
    speech.encode_all(speech.speech_of(tokenizer), trajectory)
    assert rendered(trajectory, tokenizer) == EXPECTED
    assert not buffer.flatten(trajectory)["recorded"]


def test_the_record_survives_the_file(lively, tokenizer, tmp_path):
    trajectories = talk_all(agent.LocalAgent(lively, tokenizer, "lively", 2, max_tokens=5), SCRIPTS[:2], IDS[:2])
    buffer.write(tmp_path / "t.jsonl", trajectories)
    assert buffer.read(tmp_path / "t.jsonl") == trajectories


# --------------------------------------------------------------------------------------------------------------- overflow

def test_reply_fills_the_context_and_then_overflows(lively, tokenizer, monkeypatch):
    """10 tokens of room, 6 of them read: a reply gets 4, and the next finds none."""
    says(monkeypatch, tokenizer, ["pen"] * 4)
    local = agent.LocalAgent(lively, tokenizer, "long", 1, max_length=10, max_tokens=9)

    async def talk():
        trajectory = buffer.Trajectory(id="a", task="a")
        trajectory.add("mug book pen desk", SYSTEM, "observation")                                   # 4 and the end mark
        assert len((await patterns.ask(local, trajectory, "act")).tokens) == 4                       # after "Action:"
        with pytest.raises(agent.Overflow):
            await patterns.ask(local, trajectory, "think")
        local.close(trajectory)
        assert all(s.tokens is not None for s in trajectory.segments) and local.free == [0]
    asyncio.run(talk())


def test_an_overflowing_episode_ends_truncated_with_reward_minus_one(student):
    policy, tokenizer = agent.load(str(student))
    local = agent.LocalAgent(policy.eval(), tokenizer, "student", 1, max_length=80, max_tokens=20)
    args = Namespace(**{**explore.ALONE, "pattern": "monologue"}, env="alfworld", seed=0, max_steps=50, overflow_reward=-1.0,
                     temperature=1.0, keep_invalid=False)
    trajectory = asyncio.run(explore.episode(envs.tasks("alfworld", "train", limit=1)[0], local, None, args))
    assert trajectory.truncated and not trajectory.success
    assert trajectory.reward == trajectory.segments[-1].reward == -1
    flat = buffer.flatten(trajectory, 80)
    last = max(t for t, m in enumerate(flat["mask"]) if m == OWN)
    assert buffer.effective_rewards(flat["mask"], flat["rewards"])[last] == -1


# ------------------------------------------------------------------------------------------------------------- value head

@pytest.mark.parametrize("layer", [-1, -2, 0])
def test_value_reads_the_layer_it_says(tokenizer, layer):
    policy = make_lively(tokenizer, layer)
    found, tokens = [], torch.tensor([tokenizer.encode("go to desk 1 take mug 2 from shelf 1")])
    policy.model.model.layers[layer].register_forward_hook(lambda module, inputs, output: found.append(output))
    with torch.no_grad():
        _, values = policy(tokens, torch.ones_like(tokens, dtype=torch.bool))
        hidden = found[-1][0] if isinstance(found[-1], tuple) else found[-1]
        wanted = torch.tanh(policy.value_head(hidden[0, :-1]))[:, 0]
    assert values.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
    assert values.abs().max() <= 1


def test_layers_minus_two_and_minus_one_differ(tokenizer):
    tokens = torch.tensor([tokenizer.encode("go to desk 1 take mug 2 from shelf 1")])
    one, two = [make_lively(tokenizer, layer)(tokens, torch.ones_like(tokens, dtype=torch.bool))[1] for layer in (-1, -2)]
    assert (one - two).abs().max() > 1e-3


def test_value_starts_at_zero(tokenizer):
    policy, tokens = agent.make_tiny(tokenizer, 32, 2, 2), torch.tensor([tokenizer.encode("go to desk 1")])
    assert policy(tokens, torch.ones_like(tokens, dtype=torch.bool))[1].tolist() == [0.0] * (tokens.shape[1] - 1)


# --------------------------------------------------------------------------------------------------------- tiny tokenizer

def test_phrases_and_entities_are_one_token(tokenizer):
    tokens = tokenizer.encode("Go to the desk 1, you see a mug 2!")
    assert tokenizer.convert_ids_to_tokens(tokens) == ["go to", "desk 1", "you see", "mug 2"]


def test_a_number_beyond_the_known_ones_is_two_tokens(tokenizer):
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("mug 2 mug 31")) == ["mug 2", "mug", "31"]


@pytest.mark.parametrize("text", [
    "go to desk 1", "take mug 31 from shelf 1", "xylophone", "a1b2 zz", "you won [now] don't", "mug 100"])
def test_unknown_words_are_spelled_not_lost(tokenizer, text):
    clean = tokenizer.backend_tokenizer.normalizer.normalize_str(text)
    tokens = tokenizer.encode(text)
    assert tokenizer.unk_token_id not in tokens
    assert tokenizer.decode(tokens).replace(" ", "") == clean.replace(" ", "")                  # "[now]" comes back as "[ now ]"
    assert tokenizer.encode(tokenizer.decode(tokens)) == tokens


def test_an_entity_starts_as_the_sum_of_its_kind_and_its_number(tokenizer):
    policy = agent.make_tiny(tokenizer, 32, 2, 2)
    table, of = policy.model.get_input_embeddings().weight, tokenizer.get_vocab()
    for kind, number in [("mug", 1), ("mug", 2), ("desk", 1), ("desk", 2), ("book", 3), ("shelf", 1)]:
        assert torch.allclose(table[of[f"{kind} {number}"]], table[of[kind]] + table[of[str(number)]])


def test_all_other_tokens_start_small_and_alike(tokenizer):
    table, of = agent.make_tiny(tokenizer, 32, 2, 2).model.get_input_embeddings().weight, tokenizer.get_vocab()
    others = [i for word, i in of.items() if not word[-1:].isdigit() or word.isdigit()]
    assert 0.018 < table[[i for i in others if i != tokenizer.pad_token_id]].std() < 0.022
    assert "" not in of                            # the phrase "On the" has no word left


def test_same_seed_same_start(tokenizer):
    first, *others = [agent.make_tiny(tokenizer, 32, 2, 2, seed=seed).state_dict() for seed in (0, 0, 0, 1)]
    assert [all(torch.equal(first[k], other[k]) for k in first) for other in others] == [True, True, False]


# ------------------------------------------------------------------------------------------------------------ checkpoints

def outputs(policy, tokenizer):
    tokens = torch.tensor([tokenizer.encode("go to desk 1 take mug 2 from shelf 1")])
    with torch.no_grad():
        return policy.eval()(tokens, torch.ones_like(tokens, dtype=torch.bool))


def test_a_full_checkpoint_comes_back(tokenizer, tmp_path):
    from transformers import AutoModelForCausalLM
    policy = make_lively(tokenizer, value_layer=-1)
    agent.save(policy, tokenizer, str(tmp_path), {"step": 3})
    back, words = agent.load(str(tmp_path))
    for x, y in zip(outputs(policy, tokenizer), outputs(back, words), strict=True):
        assert (x - y).abs().max() < 1e-6
    assert back.value_layer == -1 and json.load(open(tmp_path / "state.json")) == {"step": 3, "value_layer": -1, "squash": True}
    assert words.get_vocab() == tokenizer.get_vocab() and words.encode("go to mug 1") == tokenizer.encode("go to mug 1")
    other = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = torch.tensor([tokenizer.encode("go to desk 1 take mug 2 from shelf 1")])
    assert (other(tokens).logits[0, :-1] - outputs(policy, tokenizer)[0]).abs().max() < 1e-6


def test_an_argument_overrules_the_checkpoints_value_layer(tokenizer, tmp_path):
    agent.save(make_lively(tokenizer, value_layer=-1), tokenizer, str(tmp_path), {})
    assert agent.load(str(tmp_path), value_layer=-2)[0].value_layer == -2


@pytest.fixture
def lora(tokenizer, tmp_path):
    """(policy with a LoRA adapter that does something, folder of its base model)."""
    agent.save(make_lively(tokenizer, value_layer=-1), tokenizer, str(tmp_path / "base"), {})
    policy = agent.add_lora(agent.load(str(tmp_path / "base"))[0], 4, 8, 0.1, ["q_proj", "v_proj", "down_proj"])
    with torch.no_grad():
        for name, p in policy.named_parameters():
            if "lora_B" in name:
                p.normal_(0, 0.2, generator=torch.Generator().manual_seed(len(name)))
    return policy, tmp_path / "base"


def test_a_lora_checkpoint_comes_back_and_opens_in_plain_peft(lora, tokenizer, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    policy, base = lora
    with torch.no_grad():
        policy.value_head.weight.normal_(generator=torch.Generator().manual_seed(1))
    agent.save(policy, tokenizer, str(tmp_path / "lora"), {})
    back, words = agent.load(str(tmp_path / "lora"))
    for x, y in zip(outputs(policy, tokenizer), outputs(back, words), strict=True):
        assert (x - y).abs().max() < 1e-6
    assert back.value_layer == -1 and not (tmp_path / "lora" / "model.safetensors").exists()
    other = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "lora").eval()
    tokens = torch.tensor([tokenizer.encode("go to desk 1 take mug 2 from shelf 1")])
    assert (other(tokens).logits[0, :-1] - outputs(policy, tokenizer)[0]).abs().max() < 1e-6
    unchanged, _ = agent.load(str(base))
    assert (outputs(unchanged, tokenizer)[0] - outputs(policy, tokenizer)[0]).abs().max() > 1e-2


def test_a_lora_trains_the_adapter_and_the_value_head_alone(lora):
    trained = {name for name, p in lora[0].named_parameters() if p.requires_grad}
    assert trained and all("lora_" in name or "value_head" in name for name in trained)
    assert {"value_head.weight", "value_head.bias"} <= trained


def test_a_loaded_lora_can_be_trained_on(lora, tokenizer, tmp_path):
    agent.save(lora[0], tokenizer, str(tmp_path / "lora"), {})
    trained = {name for name, p in agent.load(str(tmp_path / "lora"))[0].named_parameters() if p.requires_grad}
    assert any("lora_" in name for name in trained) and not any("embed" in name or "norm" in name for name in trained)


def test_a_lora_keeps_the_value_head_of_its_base(lora):
    base, _ = agent.load(str(lora[1]))
    assert torch.equal(lora[0].value_head.weight, base.value_head.weight)


# ---------------------------------------------------------------------------------------------------- vocabularies differ

def test_tokens_of_another_vocabulary_are_noticed(lively, tokenizer):
    trajectory = talk_all(agent.LocalAgent(lively, tokenizer, "lively", 1, max_tokens=5), SCRIPTS[:1], IDS[:1], set())[0]
    other = words.tokenizer_for(WORDS + ["apple 1"], PHRASES, [*KINDS, "apple"])
    assert speech.check_tokens(tokenizer, trajectory) and not speech.check_tokens(other, trajectory)


def test_the_tiny_agent_reads_the_expert_word_by_word(student, demos):
    """No word of the demonstrations is unknown to the agent made for them, and its replies would be read as the same text."""
    _, tokenizer = agent.load(str(student))
    for t in buffer.read(demos):
        for s in t.segments:
            tokens = tokenizer.encode(s.text)
            assert tokenizer.unk_token_id not in tokens
            clean = tokenizer.backend_tokenizer.normalizer.normalize_str(s.text)
            assert tokenizer.decode(tokens).replace(" ", "") == clean.replace(" ", "")


def test_same_seed_same_tiny_agent(student, demos, tmp_path):
    run_train(*TINY, "--loss", "lm", "--data", demos, "--batch-size", 8, "--lr", 1e-2, "--out", tmp_path / "again")
    for file in ("model.safetensors", "value_head.safetensors", "tokenizer.json"):
        assert (tmp_path / "again" / file).read_bytes() == (student / file).read_bytes()


def test_an_unparsable_action_is_skipped_and_nothing_is_learnt_from_it():
    """LTC A.2: what cannot be parsed as an action stays in the record as system text. What merely does nothing is an action."""
    import patterns

    class Script:
        def __init__(self, actions):
            self.actions = iter(actions)

        async def reply(self, trajectory, role, source=buffer.OWN):
            return trajectory.add("a thought" if role == "think" else next(self.actions), source, role)

    env = envs.tasks("alfworld", "train", limit=1)[0].make(max_steps=3)
    trajectory = buffer.Trajectory(id="a", task="a")
    asyncio.run(patterns.monologue(env, Script(["dance", "look", "go to moon 7"]), trajectory))
    assert [(s.text, s.source) for s in trajectory.segments if s.role in ("think", "act")] == [
        ("a thought", 0), ("dance", 0), ("a thought", 1), ("look", 1),
        ("a thought", 1), ("go to moon 7", 1)]
    assert trajectory.segments[-1].text == "Nothing happens."
