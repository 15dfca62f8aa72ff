"""Real models' ways of loading: 4 bits, dtypes, gradient checkpointing, windows, files that are none. What a package is missing for is said."""
import builtins
import json

import pytest
import torch
from conftest import SHORT, run_explore, run_train, train_args

import agent
import buffer
import train
from errors import BadInput

TOKENS = torch.tensor([[5, 6, 7, 8, 9, 10]])


def gradients(policy):
    """Of the trained parameters after one backward of the same loss."""
    policy.zero_grad()
    logits, values = policy(TOKENS, torch.tensor([[False] + [True] * 5]))
    (torch.log_softmax(logits, -1)[:, 7].sum() + values.sum()).backward()
    return {name: p.grad.clone() if p.grad is not None else None for name, p in policy.named_parameters() if p.requires_grad}


def test_bfloat16_speaks_and_trains(student, tmp_path):
    policy, tokenizer = agent.load(student, dtype="bfloat16")
    assert policy.lm_head.weight.dtype == torch.bfloat16
    run_explore("--agent", student, "--dtype", "bfloat16", "--limit", 2, *SHORT, "--out", tmp_path / "r.jsonl")
    run_train("--agent", student, "--dtype", "bfloat16", "--data", tmp_path / "r.jsonl", "--loss", "ltc", "--lora-rank", 2, "--out",
              tmp_path / "x")
    logits, _ = agent.load(tmp_path / "x", dtype="float32")[0](TOKENS, torch.ones_like(TOKENS).bool() & (TOKENS > 5))
    assert logits.isfinite().all() and logits.dtype == torch.float32


def test_gradient_checkpointing_changes_no_gradient(student, demos, tmp_path):
    found = []
    for words in ([], ["--gradient-checkpointing"]):
        run_train("--agent", student, "--data", demos, "--loss", "lm", "--lr", 1e-3, *words, "--out", tmp_path / f"x{len(words)}")
        found.append(agent.load(tmp_path / f"x{len(words)}")[0].state_dict())
    assert all(torch.allclose(found[0][name], found[1][name], atol=1e-6) for name in found[0])


def test_dropout_is_off_where_ratios_count(student, demos, tmp_path):
    """Also with checkpointing, for which the model is in training mode: the first ratio is 1. (A new adapter has nothing to drop.)"""
    run_train("--agent", student, "--data", demos, "--loss", "lm", "--lora-rank", 2, "--lora-dropout", 0.5, "--lr", 1e-2, "--out",
              tmp_path / "lora")
    run_explore("--agent", tmp_path / "lora", "--limit", 4, *SHORT, "--out", tmp_path / "r.jsonl")
    run_train("--agent", tmp_path / "lora", "--data", tmp_path / "r.jsonl", "--loss", "ltc", "--gradient-checkpointing", "--out",
              tmp_path / "x")
    first = json.loads(open(tmp_path / "x" / "metrics.jsonl").readline())
    assert first["ratio_error"] < 1e-4


def test_a_window_is_refused_where_it_would_matter(student, monkeypatch):
    policy, tokenizer = agent.load(student)
    monkeypatch.setattr(type(policy.model.config), "to_dict", lambda self: {"sliding_window": 64})
    agent.LocalAgent(policy, tokenizer, "x", max_length=64)
    with pytest.raises(BadInput, match="--max-length 65: x looks back 64 tokens only"):
        agent.LocalAgent(policy, tokenizer, "x", max_length=65)


@pytest.mark.parametrize("name, words, says", [
    ("bitsandbytes", {"four_bit": True}, "--load-4bit: it needs a package; pip install bitsandbytes"),
    ("gguf", {}, "a .gguf file needs a package; pip install gguf")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, name, words, says):
    whole = builtins.__import__

    def without(module, *rest, **more):
        if module == name:
            raise ImportError(module)
        return whole(module, *rest, **more)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=says):
        agent.load(str(tmp_path / "model.gguf"), **words)


def test_four_bits_are_trained_by_an_adapter(student, demos, tmp_path):
    with pytest.raises(BadInput, match="give --lora-rank"):
        run_train("--agent", student, "--data", demos, "--loss", "lm", "--load-4bit", "--out", tmp_path / "x")


def test_four_bits_keep_their_gradients(student):
    """On some CPUs a forward without gradients would take them away."""
    pytest.importorskip("bitsandbytes", reason="pip install bitsandbytes")
    policy, _ = agent.load(student, four_bit=True)
    policy = agent.add_lora(policy, 2, 4, 0.0, ["q_proj", "v_proj"])
    torch.manual_seed(0)
    for name, p in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.1)
    before = gradients(policy)
    policy.eval()
    with torch.no_grad():
        policy.read(TOKENS)
    policy.train()
    after = gradients(policy)
    assert any("lora_A" in name for name in before)
    for name, grad in before.items():
        assert grad is not None and after[name] is not None and torch.allclose(grad, after[name], atol=1e-3), name


def test_four_bits_explore_train_and_come_back(student, tmp_path):
    pytest.importorskip("bitsandbytes", reason="pip install bitsandbytes")
    run_explore("--agent", student, "--load-4bit", "--limit", 2, *SHORT, "--out", tmp_path / "r.jsonl")
    run_train("--agent", student, "--load-4bit", "--data", tmp_path / "r.jsonl", "--loss", "ltc", "--lora-rank", 2, "--out", tmp_path / "x")
    assert agent.is_adapter(str(tmp_path / "x"))
    run_explore("--agent", tmp_path / "x", "--load-4bit", "--limit", 2, *SHORT, "--out", tmp_path / "r2.jsonl")
    assert len(buffer.read(tmp_path / "r2.jsonl")) == 2


def test_the_start_is_what_was_asked_for(student, monkeypatch):
    asked = []
    monkeypatch.setattr(agent, "load", lambda *given, **how: asked.append(how) or (None, None))
    args = train_args("--agent", student, "--data", "x", "--out", "x", "--dtype", "bfloat16", "--load-4bit", "--lora-rank", 2)
    monkeypatch.setattr(agent, "add_lora", lambda *given: None)
    train.start(args, None)
    assert asked == [{"dtype": "bfloat16", "four_bit": True}]
