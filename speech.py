"""How texts become tokens: what stands before each text of a conversation, and what ends it.

A plain model reads one text after the other; a line ends with a line break, and so does a reply. A chat model's template puts
marks between the speakers: system (the instruction), user (tasks and observations), assistant (prompts such as "Thought:", and
all replies). What a conversation holds is never read again in another form, so the marks must depend on nothing but the two
speakers they stand between. `speech_of` takes them from the template by rendering marked texts, and refuses a template for which
that is not so.

Tokens of a text are made once, here. A text that spells a mark ("<|im_end|>" in an observation) is read as letters.
"""
from dataclasses import dataclass, field

from errors import BadInput

WHOLE = ("completion", "propose")       # roles whose replies may have several lines
TURNS = (*WHOLE, "act", "answer")       # replies after which it is another's turn
PROMPTED = ("prompt", "think", "act", "judge", "pose", "reason", "score", "value", *WHOLE)       # what the assistant says


@dataclass
class Speech:
    """begin: ids before everything; marks: (speaker before, speaker now) -> text, None for a plain model; line: ids that end a
    line; turn: the id that ends an assistant's turn."""
    tokenizer: object
    begin: list
    marks: dict | None
    line: list
    turn: int
    known: dict = field(default_factory=dict)

    def tokens(self, segments, i, last=None):
        """The ids of segment i of a conversation whose last id so far is `last`: marks, text, end."""
        return self.before(segments, i, last) + self.said(segments[i])

    def before(self, segments, i, last):
        """The ids of the marks before segment i."""
        if i == 0:
            start = self.marks[None, speaker(segments[0])] if self.marks else ""
            return self.begin + self.ids(start)
        if not self.marks:
            return []
        one, two = speaker(segments[i - 1]), speaker(segments[i])
        if last == self.turn and one == "assistant":                # its turn is closed: not once more
            closed = self.ids(self.marks[one, "user"])[1:]
            return closed if two == "user" else closed + self.ids(self.marks["user", two])
        return self.ids(self.marks[one, two])

    def said(self, segment):
        """The ids of a text and of its end. A prompt has none, for the reply continues it."""
        key = segment.role, segment.text
        if key not in self.known:
            text = self.tokenizer.encode(segment.text, add_special_tokens=False, split_special_tokens=True)
            who, turn = speaker(segment), segment.role in WHOLE or (self.marks and segment.role in TURNS)
            open_end = segment.role == "prompt" or (self.marks and who != "assistant")
            self.known[key] = text + ([] if open_end else [self.turn] if turn else self.line)
        return self.known[key]

    def ids(self, marks):
        """The ids of marks."""
        return self.tokenizer.encode(marks, add_special_tokens=False)

    def stop(self, role):
        """Ids that end a reply: those of a turn, and, but for replies of several lines, every token with a line break in it."""
        ends = {self.turn, self.tokenizer.eos_token_id}
        if role in WHOLE:
            return ends
        if "breaks" not in self.known:
            vocabulary = self.tokenizer.get_vocab().items()
            self.known["breaks"] = {i for text, i in vocabulary if "\n" in text or "Ċ" in text or text == "<0x0A>"}
        return ends | self.known["breaks"]


def speaker(segment):
    """Who says it, to a chat template."""
    if segment.role == "instruction":
        return "system"
    return "assistant" if segment.role in PROMPTED else "user"


def speech_of(tokenizer, plain=False):
    """How to speak with this tokenizer's model: by its chat template, if it has one and not `plain`. Raises BadInput for a
    template that changes what was said before when more is said."""
    if tokenizer.eos_token_id is None:
        raise BadInput("--agent: its tokenizer has no end-of-text token, so no reply could end; choose another model")
    line = tokenizer.encode("\n", add_special_tokens=False) or [tokenizer.eos_token_id]
    if plain or not tokenizer.chat_template:
        begin = tokenizer.encode("a")[:1]
        return Speech(tokenizer, begin if begin == [tokenizer.bos_token_id] else [], None, line, tokenizer.eos_token_id)
    marks = marks_of(tokenizer)
    return Speech(tokenizer, [], marks, line, tokenizer.encode(marks["assistant", "user"], add_special_tokens=False)[0])


def marks_of(tokenizer):
    """(speaker before, speaker now) -> what a chat template writes between them."""
    from jinja2 import TemplateError
    rewrites = BadInput("--agent: its chat template writes what was said before in another form once more is said, and what was "
                        "fed cannot be unsaid; give --plain")

    def render(*said):
        roles = ("system", "user", "assistant") if said[0] == "SYSTEM" else ("user", "assistant")
        first = len(roles) - 2
        messages = [{"role": "system", "content": "SYSTEM"}][:first]
        messages += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said[first:])]
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def cut(text, *words):
        parts = []
        for word in words:
            part, found, text = text.partition(word)
            if not found:
                raise rewrites
            parts.append(part)
        return [*parts, text]
    try:
        begin, system_user, header = cut(render("SYSTEM", "FIRST"), "SYSTEM", "FIRST")
        head = ("SYSTEM",)
    except (TemplateError, BadInput):               # no system role: the instruction begins the first message
        (begin, header), system_user, head = cut(render("FIRST"), "FIRST"), "\n\n", ()
    user_begin = cut(render("FIRST"), "FIRST")[0]
    for reply in ("REPLY", "<think>\nWHY\n</think>\n\nREPLY"):
        whole = render(*head, "FIRST", reply, "SECOND", reply, "THIRD")
        start = f"{begin}SYSTEM{system_user}FIRST{header}" if head else f"{begin}FIRST{header}"
        blank, found, rest = whole.removeprefix(start).partition(reply)             # some set a blank before what is answered
        turn = rest.partition("SECOND")[0]
        if not found or blank.strip() or whole != f"{start}{blank}{reply}{turn}SECOND{header}{blank}{reply}{turn}THIRD{header}":
            raise rewrites
    header += blank
    return {(None, "system"): begin, (None, "user"): user_begin, (None, "assistant"): user_begin + header,
            ("system", "system"): "\n", ("system", "user"): system_user, ("system", "assistant"): system_user + header,
            ("user", "system"): "\n", ("user", "user"): "\n", ("user", "assistant"): header,
            ("assistant", "assistant"): "", ("assistant", "user"): turn, ("assistant", "system"): turn}


def decode(tokenizer, tokens, role):
    """The text of a reply: up to its end mark."""
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    return (text if role in WHOLE else text.split("\n")[0]).strip()


def check_tokens(tokenizer, trajectory):
    """Were the tokens that this trajectory's agent sampled made by this tokenizer? Otherwise training would be on nonsense."""
    for s in trajectory.segments:
        if s.values and s.tokens:
            return max(s.tokens) < len(tokenizer) and decode(tokenizer, s.tokens, s.role) == s.text
    return True


def encode_all(speech, trajectory):
    """Make the tokens of all segments that have none."""
    last = None
    for i, segment in enumerate(trajectory.segments):
        if segment.tokens is None:
            segment.tokens = speech.tokens(trajectory.segments, i, last)
        last = segment.tokens[-1] if segment.tokens else last
