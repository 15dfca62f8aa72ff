"""torchrun on two ranks: the same trajectories, losses and weights as one process; uneven shares; a rank that dies."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import SHORT, run_evaluate, run_explore, run_train
from safetensors.torch import load_file

import buffer

ROOT = Path(__file__).parent.parent


def torchrun(*words, ranks=2, ok=True, **environment):
    """Run a stage on several ranks, offline, without a GPU; returns what it said."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", ranks, *words]
    done = subprocess.run([str(word) for word in command], cwd=ROOT, text=True, capture_output=True, timeout=300,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **environment})
    assert (done.returncode == 0) == ok, done.stderr[-3000:]
    return done


def spoken(path):
    return [(t.id, t.reward, [s.tokens for s in t.segments]) for t in buffer.read(path)]


def test_two_ranks_explore_what_one_would(student, played, tmp_path):
    """Eight episodes, four slots a rank; the file is in the order of the tasks, and no part is left."""
    torchrun("explore.py", "--agent", student, "--limit", 8, "--temperature", 0.7, *SHORT, "--out", tmp_path / "r.jsonl")
    assert spoken(tmp_path / "r.jsonl") == spoken(played)
    assert os.listdir(tmp_path) == ["r.jsonl"]


def test_a_rank_that_dies_leaves_what_can_be_gone_on_with(student, played, tmp_path):
    """Rank 1 is killed in its second episode. What was played is kept, and the same command goes on, on one rank as on two."""
    killer = tmp_path / "killer.py"
    killer.write_text("import os, sys\nsys.path.insert(0, os.getcwd())\nimport explore, errors, ranks\nwhole, seen = explore.episode, []\n"
                      "async def episode(*given):\n    seen.append(1)\n    if ranks.RANK and len(seen) > 1:\n        os._exit(9)\n"
                      "    return await whole(*given)\nexplore.episode = episode\nerrors.run(explore.main)\n")
    words = ["--agent", student, "--limit", 8, "--temperature", 0.7, *SHORT, "--slots", 1, "--out", tmp_path / "r.jsonl"]
    torchrun(killer, *words, ok=False)
    assert not (tmp_path / "r.jsonl").exists() and any(name.endswith(".part") for name in os.listdir(tmp_path))
    shutil.copytree(tmp_path, tmp_path / "again")
    run_explore(*words)
    assert spoken(tmp_path / "r.jsonl") == spoken(played)
    torchrun("explore.py", *words[:-1], tmp_path / "again" / "r.jsonl")
    assert spoken(tmp_path / "again" / "r.jsonl") == spoken(played)


def steps_of(folder):
    return [{k: v for k, v in json.loads(line).items() if k not in ("tokens_per_s", "peak_memory_mb")} for line in
            open(folder / "metrics.jsonl")]


def near(one, two, tolerance=1e-6):
    assert one.keys() == two.keys()
    for name in one:
        assert torch.allclose(one[name], two[name], rtol=0, atol=tolerance), name


@pytest.mark.parametrize("loss, ranks", [("lm", 2), ("ltc", 2), ("ltc", 3), ("contrast", 2)])
def test_ranks_train_as_one_process(student, demos, played, tmp_path, loss, ranks):
    """Seven trajectories an update: shares are uneven, and with three ranks the last update leaves one with nothing."""
    words = ["train.py", "--agent", student, "--data", played if loss == "ltc" else demos, "--loss", loss, "--batch-size", 7, "--lr", 1e-4]
    run_train(*words[1:], "--out", tmp_path / "one")
    torchrun(*words, "--out", tmp_path / "many", ranks=ranks)
    for one, many in zip(steps_of(tmp_path / "one"), steps_of(tmp_path / "many"), strict=True):
        assert {k: pytest.approx(v, abs=2e-5, rel=1e-4) for k, v in one.items()} == many
    near(*(load_file(tmp_path / name / "model.safetensors") for name in ("one", "many")), tolerance=1e-5)
    assert sorted(os.listdir(tmp_path)) == ["many", "one"]


def test_ranks_train_an_adapter(student, demos, tmp_path):
    words = ["train.py", "--agent", student, "--data", demos, "--loss", "lm", "--lora-rank", 2, "--lora-dropout", 0, "--lora-target",
             "q_proj", "--batch-size", 5]
    run_train(*words[1:], "--out", tmp_path / "one")
    torchrun(*words, "--out", tmp_path / "two")
    near(*(load_file(tmp_path / name / "adapter_model.safetensors") for name in ("one", "two")), tolerance=1e-5)


def test_gradients_of_two_ranks_are_those_of_one(tmp_path):
    """To 1e-6 in float32; a parameter that no rank has a gradient of has none."""
    program = tmp_path / "g.py"
    program.write_text("import os, sys\nsys.path.insert(0, os.getcwd())\nimport torch, ranks\nranks.start()\n"
                       "w, v, u = (torch.nn.Parameter(torch.arange(3.) + i) for i in range(3))\nx = [torch.tensor([1., 2., 3.]) * (i + 1) for i in range(5)]\n"
                       "for s in ranks.share(x):\n    (w * s).pow(2).sum().backward()\nif ranks.RANK == 0:\n    v.sum().backward()\n"
                       "ranks.add_up([w, v, u])\nwhole = torch.nn.Parameter(torch.arange(3.))\nsum((whole * s).pow(2).sum() for s in x).backward()\n"
                       "assert torch.allclose(w.grad, whole.grad, atol=1e-6) and u.grad is None and v.grad.tolist() == [1, 1, 1]\n"
                       "assert ranks.together(ranks.RANK) == [0, 1]\ndraw = ranks.counter('c')\nmine = [draw() for _ in range(4)]\n"
                       "assert sorted(sum(ranks.together(mine), [])) == list(range(8))\nprint('fine')\nranks.end()\n")
    assert torchrun(program).stdout.count("fine") == 2


def test_two_ranks_evaluate_as_one(student, tmp_path):
    words = ["--agent", f"A={student}", "--limit", 5, "--max-steps", 3, "--max-tokens", 6, "--split", "train"]
    run_evaluate(*words, "--out", tmp_path / "one")
    said = torchrun("evaluate.py", *words, "--out", tmp_path / "two").stdout
    one, two = (json.loads((tmp_path / name / "metrics.json").read_text())["agents"] for name in ("one", "two"))
    assert one == two and len(re.findall("^all", said, re.MULTILINE)) == 1


def test_what_is_wrong_is_said_by_one_rank(tmp_path):
    done = torchrun("explore.py", "--agent", "expert", "--env", "nowhere", "--out", tmp_path / "x.jsonl", ok=False)
    assert "error: --env nowhere" in done.stderr
