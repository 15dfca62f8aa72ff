"""Who can speak: a local language model that answers a crowd of conversations at once.

An agent is anything with these; patterns know no more of it than this:

    await agent.reply(trajectory, role, source)    speak next in `trajectory`: adds a segment to it and returns the segment
    agent.unsay(trajectory, n)                     cut it back to its first n segments, as if nothing had been said since
    agent.close(trajectory)                        the conversation is over: forget it
    agent.name                                     what the record calls it

Agents that cannot be trained, a model behind a server and scripted ones, live in others/. Here are
    tiny           a small Llama from scratch; train.py makes it, with a tokenizer for the words of the demonstrations
    DIRECTORY      a checkpoint of train.py: a plain Transformers model or a PEFT adapter, with value head and tokenizer
    a hub name     any Llama-like causal language model

**Generation** (LTC A.6). A batch of slots, each with the key/value cache of one conversation. A reply feeds only what the
conversation does not hold yet (the last observation), then all live rows decode together, each at its own position; a row whose
reply is complete waits for its next turn with its cache in place, and the slot of a finished conversation is taken over at once.
Positions that a row has not really reached hold rubbish; it is never attended to (mask: column <= position) and is overwritten
when the row gets there. Chance is drawn per conversation, so a result does not depend on who else is in the batch.

**Values** (LTC A.2): tanh of a linear layer on the hidden state after the second-to-last decoder layer; without the tanh for
IAC and MAAC, whose returns may be above 1.
"""
import asyncio
import json
import logging
import os
import random

import torch
from torch import nn

from buffer import OTHER, OWN
from errors import BadInput
from speech import decode, encode_all, speech_of

logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)      # at every start it misses a kernel of the hub


class Overflow(Exception):
    """The conversation has no room left in the model's context (LTC A.2: "overflowed")."""


# ------------------------------------------------------------------------------------------------------------ local model

class Policy(nn.Module):
    """A causal language model and a value head in one module, so that training is one forward."""

    def __init__(self, model, value_layer=-2, squash=True):
        """value_layer: which decoder layer's output the value is read from; -2 as the paper, -1 as the authors' program (L15).
        squash: tanh of the value."""
        super().__init__()
        self.model, self.value_layer, self.squash = model, value_layer, squash
        self.adapter = None                 # its name, where several policies are adapters on one model
        if not -(layers := model.config.num_hidden_layers) <= value_layer < layers:
            raise BadInput(f"--value-layer {value_layer}: the model has {layers} layers; give one of {-layers} to {layers - 1}")
        self.trunk, self.lm_head = model.get_decoder(), model.get_output_embeddings()
        self.value_head = nn.Linear(model.config.hidden_size, 1, device=self.lm_head.weight.device)
        nn.init.zeros_(self.value_head.weight), nn.init.zeros_(self.value_head.bias)     # V = 0 until trained
        self.trunk.layers[value_layer].register_forward_hook(self._keep_hidden)

    def _keep_hidden(self, layer, inputs, output):
        self.hidden = output[0] if isinstance(output, tuple) else output

    def read(self, tokens, **how):
        """Hidden states [B, T, D] of the last layer (normed) and of the value layer."""
        if self.adapter and self.adapter != self.model.active_adapter:
            self.model.set_adapter(self.adapter)
        last = self.trunk(input_ids=tokens, use_cache=False, **how).last_hidden_state
        return last, self.hidden

    def speak(self, last, hidden):
        """Logits [..., V] and values [...] of what comes after these states, in float32."""
        value = self.value_head(hidden.float()).squeeze(-1)
        return self.lm_head(last).float(), torch.tanh(value) if self.squash else value

    def forward(self, tokens, keep):
        """Logits [n, V] and values [n] for the n tokens of `tokens` [B, T] that `keep` [B, T] marks, row by row.

        Token t is predicted from the states before it, at t - 1; index 0 can not be kept. Only these n go through the head.
        """
        last, hidden = self.read(tokens)
        return self.speak(last[:, :-1][keep[:, 1:]], hidden[:, :-1][keep[:, 1:]])


class Conversation:
    """One trajectory in one slot: `tokens` is all that it holds, the first `fed` of them are in the slot's cache."""

    def __init__(self, slot, seed):
        self.slot, self.random = slot, random.Random(seed)
        self.tokens, self.fed, self.segments_read = [], 0, 0
        self.unmeasured = []        # (segment of another agent, where its tokens begin)


class LocalAgent:
    """A local language model as an agent. See the module's docstring for how it generates.

    slots: conversations at once; max_length: tokens a conversation may hold; max_tokens: longest reply; temperature 0: greedy.
    student: its tokens are those of the record, and it measures the log-probabilities of what other agents say (L7). A teacher
    reads and speaks with its own tokenizer, and leaves the record its text. plain: without the chat template, if there is one.
    """

    def __init__(self, policy, tokenizer, name, slots=64, max_length=1024, max_tokens=40, temperature=1.0, seed=0, student=True,
                 plain=False):
        self.policy, self.tokenizer, self.name, self.student = policy, tokenizer, name, student
        self.slots, self.max_length, self.max_tokens = slots, max_length, max_tokens
        config = policy.model.config.to_dict()
        if (window := config.get("sliding_window")) and config.get("use_sliding_window", True) and window < max_length:
            raise BadInput(f"--max-length {max_length}: {name} looks back {window} tokens only, the slot cache all; give "
                           f"at most {window}")
        self.temperature, self.seed = temperature, seed
        self.speech = speech_of(tokenizer, plain)
        self.cache = SlotCache(policy.model.config.num_hidden_layers)
        self.device = next(policy.parameters()).device
        self.free, self.conversations, self.requests, self.loop = list(range(slots))[::-1], {}, [], None
        self.tokens_sampled = 0

    async def reply(self, trajectory, role, source=OWN):
        """Sample a reply. Raises Overflow when the context has no room for one more token than is to be read."""
        talk = self.conversations.get(id(trajectory))
        if talk is None:
            talk = Conversation(self.free.pop(), f"{self.seed} {trajectory.id}")
            self.conversations[id(trajectory)] = talk
        for i in range(talk.segments_read, len(trajectory.segments)):
            self.hear(talk, trajectory.segments, i)
        room = self.max_length - len(talk.tokens)
        if room < 1:
            raise Overflow
        request = Request(talk, min(room, self.max_tokens), self.speech.stop(role), asyncio.get_running_loop().create_future())
        self.requests.append(request)
        if self.loop is None or self.loop.done():
            self.loop = asyncio.create_task(self.serve())
        await request.future
        segment = trajectory.add(decode(self.tokenizer, request.tokens, role), source, role)
        if self.student:
            segment.tokens, segment.logprobs, segment.values = request.tokens, request.logprobs, request.values
        talk.segments_read = len(trajectory.segments)
        return segment

    def hear(self, talk, segments, i):
        """Take segment i into the conversation, to be fed with the next step."""
        segment = segments[i]
        tokens = segment.tokens if self.student else None
        if tokens is None:
            tokens = self.speech.tokens(segments, i, talk.tokens[-1] if talk.tokens else None)
        if self.student:
            segment.tokens = tokens
            if segment.source == OTHER:
                talk.unmeasured.append((segment, len(talk.tokens)))
        talk.tokens += tokens

    def unsay(self, trajectory, n):
        """Take the conversation back: its cache beyond `fed` is never looked at. The last token is fed again, so that what
        others say next can be measured from it. Rewards must not have been given since."""
        del trajectory.segments[n:]
        talk = self.conversations[id(trajectory)]
        talk.tokens = [token for segment in trajectory.segments for token in segment.tokens]
        talk.segments_read, talk.fed = n, min(talk.fed, len(talk.tokens) - 1)

    def close(self, trajectory):
        """Give the slot back. What was said last and never read is encoded now, so that the record is whole. Words of another
        agent that were never read have no log-probability: --loss ltc cannot learn from them."""
        if self.student:
            encode_all(self.speech, trajectory)
        if talk := self.conversations.pop(id(trajectory), None):
            self.free.append(talk.slot)

    async def serve(self):
        """Answer requests until none is left. Rows that still have to read wait until they are as many as those that decode:
        reading few rows at a time would double the number of steps."""
        while self.requests:
            readers = [r for r in self.requests if len(r.talk.tokens) - r.talk.fed > 1]
            decoders = [r for r in self.requests if len(r.talk.tokens) - r.talk.fed == 1]
            try:
                self.step(readers if len(readers) >= len(decoders) else decoders)
            except Exception as error:      # whoever waits for a reply must hear of it, or it would wait for ever
                for request in self.requests:
                    if not request.future.done():
                        request.future.set_exception(error)
                self.requests = []
                return
            self.requests = [r for r in self.requests if not r.future.done()]
            await asyncio.sleep(0)          # let the answered conversations act in their environments and ask again

    @torch.inference_mode()
    def step(self, requests):
        """Feed each request's unread tokens (the last one sampled, or what the others said) and sample one token for each. Of new
        conversations that begin alike, as G completions of one prompt do, one is read, and its cache copied."""
        firsts, alike = {}, {}                     # beginning -> the slot that reads it; slot -> the slot that reads for it
        for r in requests:
            slot = r.talk.slot
            alike[slot] = firsts.setdefault(tuple(r.talk.tokens), slot) if r.talk.fed == 0 else slot
        talks = {r.talk.slot: r.talk for r in requests if alike[r.talk.slot] == r.talk.slot}
        width = max(len(talk.tokens) - talk.fed for talk in talks.values())
        whole = width == 1 and 2 * len(talks) >= self.slots          # nearly all rows: cheaper to run all than to pick them out
        rows = range(self.slots) if whole else list(talks)
        fed = dict.fromkeys(rows, 0) | {t.slot: t.fed for t in self.conversations.values()}
        tokens = [(talks[s].tokens[fed[s]:] if s in talks else [0]) for s in rows]
        tokens = torch.tensor([unread + [0] * (width - len(unread)) for unread in tokens])                  # [R, W]
        last, hidden = self.cache.read(self.policy, tokens.to(self.device),
                                       None if whole else torch.tensor(rows, device=self.device),
                                       torch.tensor([fed[s] for s in rows], device=self.device), self.slots)
        self.cache.copy({slot: first for slot, first in alike.items() if slot != first})
        row_of = {slot: row for row, slot in enumerate(rows)}
        at = (torch.tensor([row_of[alike[r.talk.slot]] for r in requests], device=self.device),
              torch.tensor([len(r.talk.tokens) - r.talk.fed - 1 for r in requests], device=self.device))
        for r in requests:
            if r.talk.unmeasured:
                self.measure(r.talk, last[row_of[alike[r.talk.slot]]])
        logits, values = self.policy.speak(last[at], hidden[at])                                           # [R, V], [R]
        picked, logprobs = sample(logits, self.temperature, [r.talk.random.random() for r in requests])
        self.tokens_sampled += len(requests)
        for r, token, logprob, value in zip(requests, picked.tolist(), logprobs.tolist(), values.tolist()):
            r.talk.fed = len(r.talk.tokens)
            r.add(token, logprob, value)

    def measure(self, talk, last):
        """The log-probabilities of what others said, from the hidden states [W, D] of what is just being fed. A token is
        predicted by the state before it, which is fed with it: a prompt comes before every speech."""
        for segment, start in talk.unmeasured:
            first, n = start - 1 - talk.fed, len(segment.tokens)
            logits = self.policy.lm_head(last[first:first + n]).float() / (self.temperature or 1.0)            # [n, V]
            spoken = torch.tensor(segment.tokens, device=logits.device)[:, None]
            logprobs = torch.log_softmax(logits, -1).gather(-1, spoken)[:, 0].tolist()
            segment.logprobs = [float(f"{x:.7g}") for x in logprobs]
        talk.unmeasured.clear()


class Request:
    """A reply in the making."""

    def __init__(self, talk, room, stop, future):
        self.talk, self.room, self.stop, self.future = talk, room, stop, future
        self.tokens, self.logprobs, self.values = [], [], []

    def add(self, token, logprob, value):
        """Take one sampled token; seven digits are what float32 holds."""
        self.talk.tokens.append(token)
        self.tokens.append(token)
        self.logprobs.append(float(f"{logprob:.7g}"))
        self.values.append(float(f"{value:.7g}"))
        if token in self.stop or len(self.tokens) == self.room:
            self.future.set_result(None)


def sample(logits, temperature, chances):
    """One token per row and its log-probability under the distribution that sampled it (temperature included; L17).

    logits [R, V]; chances: R uniform numbers in [0, 1), one a row, inverted through the cumulative distribution.
    Greedy (temperature 0) takes the best token and reports its log-probability at temperature 1.
    """
    logp = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    if temperature == 0:
        picked = logp.argmax(-1)
    else:
        total = logp.exp().cumsum(-1)                                                        # [R, V]
        chance = torch.tensor(chances, device=logits.device, dtype=total.dtype)[:, None] * total[:, -1:]
        last = (total < total[:, -1:]).sum(-1)               # the last token that has any chance: rounding may not go past it
        picked = torch.minimum((total <= chance).sum(-1), last)
    return picked, logp.gather(-1, picked[:, None]).squeeze(-1)


AT_ONCE = 16384     # tokens in one forward pass of an exploration


class SlotCache:
    """Key/value memory [slots, heads, length, size] a layer, written at each row's own positions. Speaks the part of the
    Transformers cache protocol that a decoder uses: `update` and the two size questions."""

    def __init__(self, layers):
        self.keys, self.values = [None] * layers, [None] * layers
        self.is_compileable = False

    def read(self, policy, tokens, rows, fed, slots):
        """Run the trunk over tokens [R, W] in the slots `rows` (None: all), whose caches hold `fed` tokens [R] each. Returns its
        hidden states. A row with nothing to say may be fed anything: what it writes lies beyond its `fed` and is overwritten.
        Long prompts are read in pieces, so that activations are those of AT_ONCE tokens at the most."""
        self.rows, self.slots, read = rows, slots, []
        width = max(1, AT_ONCE // len(tokens))
        for start in range(0, tokens.shape[1], width):
            piece = tokens[:, start:start + width]
            self.positions = (fed + start)[:, None] + torch.arange(piece.shape[1], device=tokens.device)     # [R, W]
            self.length = int(self.positions.max()) + 1
            column = torch.arange(self.length, device=tokens.device)
            mask = (column <= self.positions[:, :, None])[:, None]                                           # [R, 1, W, length]
            read.append(policy.read(piece, attention_mask=mask, position_ids=self.positions, cache=self))
        return [torch.cat(pieces, 1) for pieces in zip(*read)]

    def update(self, keys, values, layer, **ignored):
        """Store keys and values [R, H, W, D]; return all that the rows may attend to, [R, H, length, D] (a view, if all rows)."""
        found = []
        for memory, new in ((self.keys, keys), (self.values, values)):
            if memory[layer] is None or memory[layer].shape[2] < self.length:
                memory[layer] = grown(memory[layer], self.slots, self.length, new)
            rows = torch.arange(self.slots, device=new.device) if self.rows is None else self.rows
            memory[layer][rows[:, None], :, self.positions] = new.transpose(1, 2)
            held = memory[layer][:, :, :self.length]
            found.append(held if self.rows is None else held.index_select(0, self.rows))
        return found

    def copy(self, sources):
        """sources: slot -> the slot whose memory it gets, all of what was just read."""
        if sources:
            to, of = list(sources), list(sources.values())
            for memory in (*self.keys, *self.values):
                memory[to, :, :self.length] = memory[of, :, :self.length]

    def get_seq_length(self, layer=0):
        """Asked by models that want to know where they are; the positions are given, so nobody uses the answer."""
        return 0

    def get_mask_sizes(self, query_length, layer=0):
        """(columns, offset) of the attention mask."""
        return self.length, 0


def grown(memory, slots, length, like):
    """Room for `length` tokens a slot, in steps of a quarter more, old content kept."""
    bigger = like.new_zeros(slots, like.shape[1], length + length // 4 + 32, like.shape[3])
    if memory is not None:
        bigger[:, :, :memory.shape[2]] = memory
    return bigger


# ------------------------------------------------------------------------------------------------- making, loading, saving

def make_tiny(tokenizer, width=128, layers=3, heads=8, value_layer=-2, seed=0):
    """A small Llama from scratch. The embedding of "mug 1" starts as that of "mug" plus that of "1"."""
    from transformers import LlamaConfig, LlamaForCausalLM
    if width % (2 * heads):
        raise BadInput(f"--heads {heads}: --width {width} must be a multiple of twice as many")
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=heads, max_position_embeddings=4096, tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None))
    vocabulary, table = tokenizer.get_vocab(), model.get_input_embeddings().weight.data
    for word, i in vocabulary.items():
        kind, _, number = word.rpartition(" ")
        if number.isdigit() and kind in vocabulary and number in vocabulary:
            table[i] = table[vocabulary[kind]] + table[vocabulary[number]]
    return Policy(model, value_layer)


def load(name, value_layer=None, shared=None, dtype=None, four_bit=False):
    """(policy, tokenizer) of a checkpoint directory, a hub name or a .gguf file, by default in float32 on a CPU and in bfloat16
    on a GPU.

    value_layer: default the checkpoint's own, else -2. shared: base model -> what was loaded of it; an adapter whose base is in
    it is put on that, others are noted there. four_bit: the weights in NF4, doubly quantised, computing in bfloat16 (QLoRA).
    Raises BadInput for what is no model, or a broken checkpoint.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer
    state, adapter, shared = read_state(name), None, {} if shared is None else shared
    cuda = torch.cuda.is_available()
    how = {"dtype": vars(torch)[dtype] if dtype else torch.bfloat16 if cuda else torch.float32,
           **(in_four_bits() if four_bit else {}), **({"device_map": {"": torch.cuda.current_device()}} if cuda else {})}
    folder, file = name, {}
    if str(name).endswith(".gguf"):
        how, folder, file = {**how, **dequantized()}, os.path.dirname(name) or ".", {"gguf_file": os.path.basename(name)}
    try:
        if is_adapter(name):
            from peft import AutoPeftModelForCausalLM, PeftConfig
            base, adapter = PeftConfig.from_pretrained(name).base_model_name_or_path, "default"
            if base in shared:
                adapter = f"adapter_{len(shared[base].peft_config)}"
                shared[base].load_adapter(name, adapter)
            else:
                shared[base] = AutoPeftModelForCausalLM.from_pretrained(name, is_trainable=True, **how)
            model = shared[base]
        else:
            model = AutoModelForCausalLM.from_pretrained(folder, **how, **file)
        tokenizer = AutoTokenizer.from_pretrained(folder, **file)
    except (OSError, ValueError, SafetensorError) as error:
        raise BadInput(f"--agent {name}: no model there ({str(error).splitlines()[0][:160]}); give a directory that train.py "
                       "wrote, a hub name or a .gguf file") from None
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        raise BadInput(f"--agent {name}: its tokenizer has {len(tokenizer)} tokens, its model "
                       f"{model.get_input_embeddings().weight.shape[0]}; they belong to different checkpoints")
    try:
        layer = state.get("value_layer", -2) if value_layer is None else value_layer
        policy = Policy(model, layer, state.get("squash", True))
        policy.adapter = adapter
        keep_gradients(model)
    except AttributeError as error:
        raise BadInput(f"--agent {name}: a {type(model).__name__} is not built like a Llama ({error}); choose another") from None
    head = os.path.join(name, "value_head.safetensors")
    if os.path.exists(head):
        from safetensors.torch import load_file
        try:
            policy.value_head.load_state_dict(load_file(head))
        except (SafetensorError, RuntimeError) as error:
            raise BadInput(f"{head}: no value head of this model ({error}); train the checkpoint again") from None
    return policy, tokenizer


def in_four_bits():
    """How to load QLoRA's weights: NF4, double quantisation, computing in bfloat16."""
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        raise BadInput("--load-4bit: it needs a package; pip install bitsandbytes==0.50.2") from None
    from transformers import BitsAndBytesConfig
    return {"quantization_config": BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16)}


def dequantized():
    """How to load a .gguf file so that it can be trained and saved."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise BadInput("--agent: a .gguf file needs a package; pip install gguf==0.19.0") from None
    from transformers import GgufConfig
    return {"quantization_config": GgufConfig(dequantize=True)}


def keep_gradients(model):
    """On CPUs with avx512_bf16 one forward without gradients packs 4-bit weights anew, and training then loses gradients without
    a word: forbid it."""
    for module in model.modules():
        if type(module).__name__ == "Linear4bit":
            module.support_avx512bf16_for_cpu = False


def is_adapter(name):
    """Is this checkpoint a PEFT adapter?"""
    return os.path.exists(os.path.join(name, "adapter_config.json"))


def read_state(name):
    """state.json of a checkpoint; {} where there is none (a plain model)."""
    path = os.path.join(name, "state.json")
    if not os.path.exists(path):
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except ValueError as error:
        raise BadInput(f"{path}: no JSON ({error}); this checkpoint is broken, train it again") from None


def save(policy, tokenizer, folder, state):
    """Write a checkpoint that plain Transformers or PEFT opens: model or adapter, tokenizer, value head, state.json (last:
    a folder that has it is complete)."""
    from safetensors.torch import save_file
    policy.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_file(policy.value_head.state_dict(), os.path.join(folder, "value_head.safetensors"))
    state_file = os.path.join(folder, "state.json")
    with open(f"{state_file}.tmp", "w", encoding="utf-8") as file:
        json.dump({**state, "value_layer": policy.value_layer, "squash": policy.squash}, file, indent=1)
    os.replace(f"{state_file}.tmp", state_file)


def add_lora(policy, rank, alpha, dropout, target):
    """The same policy with a LoRA adapter on the named projections; everything but the adapter and the value head is frozen."""
    from peft import LoraConfig, get_peft_model
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=target, task_type="CAUSAL_LM")
    try:
        adapted = Policy(get_peft_model(policy.model, config), policy.value_layer, policy.squash)
    except ValueError as error:
        raise BadInput(f"--lora-target {' '.join(target)}: {error}") from None
    adapted.value_head = policy.value_head
    return adapted
