"""A chat model behind an OpenAI-compatible server as an agent, in any role."""
import asyncio
import functools
import hashlib
import json
import os
import urllib.parse

from buffer import OWN, cut_torn_line
from envs.functions import tools
from errors import BadInput

DUTIES = {      # what a chat model is told about a role; the transcript and the role's prompt follow
    "think": "You write the next thought: what is known, what is missing, and what to do next. One or two sentences on one line.",
    "act": "You write the next command or answer in the form asked for above, and nothing else.",
    "reason": "You explain the last action: write the thought that leads to it, as if it had come first. One or two sentences.",
    "judge": "Was the last answer right? You reply with yes or no first.",
    "score": "You judge the work of an assistant, as you are asked to at the end.",
    "completion": "You do your part, as the last message asks you to, and nothing else.",
    "propose": "You improve the functions that another agent solves problems with, as you are asked to at the end.",
    "pose": "You teach the student whose work you read. Invent one new question of the same kind, with other names and numbers, "
            "that can be answered in the same way. On one line write the question, then the word Answer: and the right answer.",
}


class RemoteAgent:
    """A chat model behind an OpenAI-compatible server, named http://HOST:PORT/v1#MODEL.

    The key is read from the environment variable PARLEY_API_KEY and never written anywhere. Replies are kept in the file `cache`,
    by request: a run that is resumed asks for nothing twice. What a server gets wrong for a moment (no answer in `timeout`
    seconds, a cut connection, 429, 5xx, no JSON) is tried again, `tries` times in all, `pause` seconds later, doubling.
    """

    def __init__(self, name, instruction, max_tokens, temperature, cache, tries=5, timeout=120.0, pause=1.0):
        from huggingface_hub import AsyncInferenceClient
        self.name, self.instruction = name, instruction
        self.max_tokens, self.temperature, self.tries, self.pause = max_tokens, temperature, tries, pause
        address, _, self.model = name.partition("#")
        key = os.environ.get("PARLEY_API_KEY", "").strip() or "none"
        if not key.isprintable():               # the client's complaint about it would show it
            raise BadInput("PARLEY_API_KEY: it has a line break or another control character in it; set it again")
        try:
            place = urllib.parse.urlsplit(address)
            if not place.hostname or place.port == 0:           # (reading a port that is no number raises, too)
                raise ValueError("no host or port")
        except ValueError as error:
            raise BadInput(f"{name}: no address ({error}); write http://HOST:PORT/v1#MODEL") from None
        self.client, self.loop = functools.partial(AsyncInferenceClient, base_url=address, api_key=key, timeout=timeout), None
        self.cache, self.asked, self.tokens = cache, 0, {"prompt": 0, "reply": 0}
        self.known = {}
        if os.path.exists(cache):
            cut_torn_line(cache)
            with open(cache, encoding="utf-8") as file:
                try:
                    self.known = {entry["request"]: entry["text"] for entry in map(json.loads, file)}
                except (ValueError, TypeError, KeyError) as error:
                    raise BadInput(f"{cache}: no file of replies ({type(error).__name__}: {error}); delete it") from None

    async def reply(self, trajectory, role, source=OWN):
        """Ask the server. Raises BadInput after the last try, or when the server refuses the request for good."""
        messages = [{"role": "system", "content": f"{self.instruction}\n\n{DUTIES[role]}"},
                    {"role": "user", "content": transcript(trajectory)}]
        offered = tools() if role == "propose" else None
        request = json.dumps([self.name, self.max_tokens, self.temperature, trajectory.id, messages])
        request = hashlib.sha256(request.encode()).hexdigest()
        if request not in self.known:
            self.known[request] = await self.ask(messages, offered)
            with open(self.cache, "a", encoding="utf-8") as file:
                file.write(json.dumps({"request": request, "text": self.known[request]}) + "\n")
        text = self.known[request].strip().removeprefix(trajectory.segments[-1].text).strip()      # some repeat the prompt
        if role not in ("completion", "propose"):                           # a reply is one line
            text = text.split("\n")[0] if role == "act" else " ".join(text.split())
        return trajectory.add(text.strip(), source, role)

    async def ask(self, messages, offered=None):
        """One reply, with its retries. offered: tools that may be called; the calls are then its text, as JSON."""
        import httpx2
        if self.loop is not asyncio.get_running_loop():             # a client's connections live as long as their event loop
            self.loop, self.connected = asyncio.get_running_loop(), self.client()
        from huggingface_hub.errors import HfHubHTTPError, InferenceTimeoutError, OfflineModeIsEnabled
        for attempt in range(1, self.tries + 1):
            try:
                answer = await self.connected.chat_completion(messages, model=self.model or None, max_tokens=self.max_tokens,
                                                           temperature=self.temperature, tools=offered)
                message = answer.choices[0].message
                text = message.content
                if offered and message.tool_calls:
                    text = json.dumps([{"name": c.function.name, "arguments": c.function.arguments} for c in message.tool_calls])
                if not isinstance(text, str):
                    raise ValueError("a reply without text")
                self.asked += 1
                if answer.usage:
                    self.tokens["prompt"] += answer.usage.prompt_tokens
                    self.tokens["reply"] += answer.usage.completion_tokens
                return text
            except HfHubHTTPError as error:
                code, reason = error.response.status_code, f"status {error.response.status_code}"
                if code != 429 and code < 500:
                    said = " ".join(error.response.text.split())[:200]
                    raise BadInput(f"{self.name}: the server refuses ({reason}: {said}); look at the address, the "
                                   "model's name after # and PARLEY_API_KEY") from None
            except OfflineModeIsEnabled:
                raise BadInput(f"{self.name}: the variable HF_HUB_OFFLINE forbids the client to ask; unset it") from None
            except (InferenceTimeoutError, httpx2.HTTPError, ValueError, TypeError, AttributeError, LookupError) as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
            if attempt < self.tries:
                await asyncio.sleep(self.pause * 2 ** (attempt - 1))
        raise BadInput(f"{self.name}: no answer in {self.tries} tries ({reason[:200]}); what is finished is kept, give the same "
                       "command again when the server is back")

    def unsay(self, trajectory, n):
        """Nothing to forget: each request has the whole transcript."""
        del trajectory.segments[n:]

    def close(self, trajectory):
        """Nothing to forget."""


def transcript(trajectory):
    """What was said, for a reader: one line a text, each after its prompt; the last line is the prompt that waits for a reply."""
    lines, prompt = [], ""
    for s in trajectory.segments:
        if s.role == "prompt":
            prompt = f"{s.text} "
        elif s.role != "instruction":
            lines.append(prompt + s.text.strip())
            prompt = ""
    return "\n".join([*lines, prompt.strip()])
