"""A teacher behind a server: a small local one that answers well, late, wrongly, or not at all."""
import asyncio
import http.server
import json
import threading
import time

import pytest
from conftest import TINY, run_explore, run_train

import buffer
from buffer import OTHER, SYSTEM
from errors import BadInput
from others.remote import RemoteAgent


class Server:
    """Plays `faults` one after the other (None: a good answer), then only good answers. Good answers are `say(messages)`."""

    def __init__(self, say, faults=()):
        self.asked, self.keys, faults = [], [], list(faults)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((self.path, body))
                outer.keys.append(self.headers["Authorization"])
                fault = faults.pop(0) if faults else None
                if fault == "cut":
                    self.connection.close()
                    return
                if fault == "slow":
                    time.sleep(0.6)
                message = {"role": "assistant", "content": say(body["messages"])}
                good = {"choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}, "id": "1", "created": 1,
                        "model": "m"}
                broken = {"broken": b'{"choices": [', "empty": b'{"choices": []}', "strange": b"[1, 2]",
                          "silent": json.dumps({**good, "choices": [{**good["choices"][0],
                                                                     "message": {"role": "assistant"}}]}).encode()}
                answer = broken.get(fault, json.dumps(good).encode())
                try:
                    self.send_response(fault if isinstance(fault, int) else 200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except BrokenPipeError:             # the client did not wait
                    pass

            def log_message(self, *args):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/v1#teacher-1"


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    servers = []

    def start(say=lambda messages: "I would look.", faults=()):
        servers.append(Server(say, faults))
        return servers[-1]
    yield start
    for s in servers:
        s.server.shutdown()
        s.server.server_close()


def remote(server, tmp_path, **options):
    return RemoteAgent(server.address, "Solve it.", 20, 1.0, str(tmp_path / "replies.jsonl"), pause=0.0, timeout=0.3,
                             **options)


def talk(speaker, role="think", number=0):
    """One reply in a fresh conversation."""
    trajectory = buffer.Trajectory(id=f"t{number}", task="t")
    trajectory.add("Solve it.", SYSTEM, "instruction")
    trajectory.add("What is 3?", SYSTEM, "task")
    trajectory.add("Thought:" if role == "think" else "Action:", SYSTEM, "prompt")
    return asyncio.run(speaker.reply(trajectory, role, OTHER))


def test_a_reply_and_its_cost(serve, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PARLEY_API_KEY", "sesame-123")
    server = serve(lambda messages: "Thought: it is\n 3, I think. ")
    speaker = remote(server, tmp_path)
    segment = talk(speaker)
    assert (segment.text, segment.source, segment.role, segment.tokens) == ("it is 3, I think.", OTHER, "think", None)
    path, body = server.asked[0]
    assert path == "/v1/chat/completions" and body["model"] == "teacher-1" and body["max_tokens"] == 20 \
        and body["temperature"] == 1
    assert body["messages"][0]["role"] == "system" and body["messages"][0]["content"].startswith("Solve it.")
    assert body["messages"][1] == {"role": "user", "content": "What is 3?\nThought:"}
    assert speaker.asked == 1 and speaker.tokens == {"prompt": 10, "reply": 3}
    assert server.keys == ["Bearer sesame-123"]
    assert "sesame" not in (tmp_path / "replies.jsonl").read_text() + "".join(capsys.readouterr())


def test_a_key_is_not_shown(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("PARLEY_API_KEY", "sesame\r\n123")
    with pytest.raises(BadInput, match="PARLEY_API_KEY: it has a line break") as error:
        RemoteAgent("http://127.0.0.1:9/v1#m", "Solve it.", 20, 1.0, str(tmp_path / "r.jsonl"))
    assert "sesame" not in str(error.value)
    monkeypatch.delenv("PARLEY_API_KEY")
    with pytest.raises(BadInput, match="no address"):
        RemoteAgent("http://host:port/v1#m", "Solve it.", 20, 1.0, str(tmp_path / "r.jsonl"))


def test_a_broken_file_of_replies_is_named(serve, tmp_path):
    (tmp_path / "replies.jsonl").write_text('{"request": "a", "text": "b"}\n{"request"}\n')
    with pytest.raises(BadInput, match="replies.jsonl: no file of replies .*; delete it"):
        remote(serve(), tmp_path)


def test_an_action_is_one_line(serve, tmp_path):
    assert talk(remote(serve(lambda m: "\nAction: finish[3]\nBecause it is."), tmp_path), "act").text == "finish[3]"


@pytest.mark.parametrize("fault", ["slow", "cut", "broken", "empty", "strange", "silent", 429, 500, 503])
def test_a_passing_fault_is_tried_again(serve, tmp_path, fault):
    server = serve(faults=[fault, fault])
    assert talk(remote(server, tmp_path)).text == "I would look." and len(server.asked) == 3


@pytest.mark.parametrize("fault, reason", [
    ("slow", "Timeout"), ("cut", "Error"), ("broken", "JSON"), (500, "status 500"), (429, "status 429")])
def test_the_last_try_ends_in_one_line(serve, tmp_path, fault, reason):
    server = serve(faults=[fault] * 9)
    with pytest.raises(BadInput, match=r"http://127.0.0.1:\d+/v1#teacher-1: no answer in 2 tries \(.*" + reason) as error:
        talk(remote(server, tmp_path, tries=2))
    assert len(server.asked) == 2 and "\n" not in str(error.value)


def test_a_refusal_is_not_tried_again(serve, tmp_path):
    server = serve(faults=[401])
    with pytest.raises(BadInput, match="the server refuses .*PARLEY_API_KEY"):
        talk(remote(server, tmp_path))
    assert len(server.asked) == 1


def test_offline_mode_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match="HF_HUB_OFFLINE forbids"):
        talk(RemoteAgent("http://127.0.0.1:9/v1#m", "Solve it.", 20, 1.0, str(tmp_path / "r.jsonl")))


def test_nobody_there(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    speaker = RemoteAgent("http://127.0.0.1:9/v1#m", "Solve it.", 20, 1.0, str(tmp_path / "r.jsonl"), tries=2, pause=0.0)
    with pytest.raises(BadInput, match="no answer in 2 tries"):
        talk(speaker)


def test_nothing_is_asked_twice(serve, tmp_path):
    """By request: another conversation, or another text in it, is another request. A torn line of a killed run is cut."""
    server = serve(lambda m: f"reply {len(server.asked)}")
    first = [talk(remote(server, tmp_path), number=n).text for n in (0, 1)]
    with open(tmp_path / "replies.jsonl", "a") as file:
        file.write('{"request": "abc", "te')
    again = remote(server, tmp_path)
    assert [talk(again, number=n).text for n in (1, 0)] == first[::-1] == ["reply 2", "reply 1"] and len(server.asked) == 2
    assert talk(again, number=2).text == "reply 3" and again.asked == 1


def solve(messages):
    """A teacher of word problems that knows its task."""
    from envs import gsm8k
    lines = messages[1]["content"].split("\n")
    question = next(line for line in reversed(lines) if "How many" in line).removeprefix("Question: ")
    thought, action = gsm8k.expert(question, ())
    return {"Thought:": thought, "Action:": action, "Question:": gsm8k.pose("", question, len(lines))}[lines[-1]]


def test_an_exploration_with_a_remote_teacher_survives_and_loses_nothing(serve, tmp_path, capsys):
    """Analogue with a server that fails now and then, then dies for good, then is back: the run goes on, and asks nothing
    twice."""
    run_explore("--agent", "expert", "--env", "gsm8k", "--limit", 8, "--out", tmp_path / "demos.jsonl")
    run_train(*TINY, "--loss", "lm", "--data", tmp_path / "demos.jsonl", "--lr", 1e-2, "--out", tmp_path / "student")
    server = serve(solve, faults=[None, 500, None, "broken", None, None, None, None, 403])
    words = ["--agent", tmp_path / "student", "--env", "gsm8k", "--limit", 6, "--pattern", "analogue", "--teacher",
             server.address,
             "--slots", 2, "--out", tmp_path / "a.jsonl", "--max-tokens", 8]
    with pytest.raises(BadInput, match="refuses"):
        run_explore(*words)
    assert not (tmp_path / "a.jsonl").exists()
    kept, known = len(buffer.read(tmp_path / "a.jsonl.part")), len((tmp_path / "a.jsonl.replies.jsonl").read_text().splitlines())
    capsys.readouterr()
    run_explore(*words)
    trajectories = buffer.read(tmp_path / "a.jsonl")
    assert len(trajectories) == 6 and 0 < kept < 6
    corrections = [s for t in trajectories for s in t.segments if s.source == OTHER and s.role == "act"]
    assert len(corrections) == 6 and all(s.reward == 1 and s.logprobs for s in corrections)
    bodies = [json.dumps(body) for (_, body) in server.asked]
    # Three replies a task; the three faults are asked again, and perhaps one whose answer came after the end.
    assert len(set(bodies)) == 18 and len(bodies) in (18 + 3, 18 + 4)
    assert f"{18 - known} requests" in capsys.readouterr().err
    run_train("--agent", tmp_path / "student", "--data", tmp_path / "a.jsonl", "--out", tmp_path / "trained")
