"""The sandbox against hostile code: all is contained, the reason is known, and the next run is as if nothing had been."""
import os
import signal

import pytest

from envs.sandbox import Sandbox, read_report


@pytest.fixture(scope="module")
def box():
    with Sandbox(seconds=1.0) as box:
        yield box


@pytest.fixture(autouse=True)
def alive(box):
    yield
    assert box.run("def f(x): return x", ["assert f(1) == 1"]).passed == [True]


def needs(layer):
    with Sandbox() as box:
        return pytest.mark.skipif(layer not in box.layers, reason=f"this platform has no {layer}")


def test_tests_pass_one_by_one(box):
    """Each in a copy of what the code has defined; an error is one line."""
    outcome = box.run("x = 1\ndef f(y): return x + y", [
        "assert f(1) == 2", "x = 5\nassert x == 5", "assert x == 1", "assert f(1) == 3, 'not\\nthree'", "g", "assert (",
        "raise SystemExit"])
    assert outcome.passed == [True, True, True, False, False, False, False] and outcome.reason == ""
    assert outcome.errors[3] == "AssertionError: not three" and outcome.errors[4].startswith("NameError: ")
    assert box.run("x = 1").passed == [] and box.run("1 / 0", ["pass"]).errors == ["ZeroDivisionError: division by zero"]
    assert box.run("def f(:", ["pass"]).reason.startswith("SyntaxError: ")


@pytest.mark.parametrize("code, reason", [
    ("while True: pass", "out of time (1 s)"), ("import time; time.sleep(9)", "out of time (1 s)"),
    ("import os\nwhile True: os.fork()", ""), ("x = bytearray(10**10)", "MemoryError"),
    ("open('a', 'w').write('x' * 10**8)", "OSError"),
    ("[open('a', 'w') for _ in iter(int, 1)]", "OSError"), ("import os; os._exit(0)", "it ended its process"),
    ("import sys; sys.exit()", "SystemExit"), ("def f(n): return f(n + 1)\nf(0)", "RecursionError"),
    ("import sys; sys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)", ""),
    ("import ctypes; ctypes.string_at(0)", "killed by signal 11"), ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("import os\nfor fd in range(99):\n try: os.close(fd)\n except OSError: pass", "it ended its process"),
    ("class E(Exception):\n def __str__(self): raise self\nraise E", "an error that cannot be printed"),
    ("import os\nfor fd in range(3, 60):\n try: os.write(fd, b'x' * 10**6)\n except OSError: pass", "")])
def test_hostile_code_gets_nowhere(box, code, reason):
    outcome = box.run(code, ["assert False"])
    assert outcome.passed == [False] and (reason in outcome.reason) and (outcome.reason or outcome.errors[0])


def test_memory_is_limited():
    with Sandbox(seconds=60, memory_mb=100) as box:
        assert "MemoryError" in box.run("x = []\nwhile True: x.append(bytearray(10**6))", ["pass"]).reason


def test_what_is_written_to_the_streams_goes_nowhere(box):
    assert box.run("print('x' * 10**6)\nimport sys; sys.stderr.write('y')", ["assert True"]).passed == [True]


def test_the_environment_has_no_secrets(box, monkeypatch):
    monkeypatch.setenv("PARLEY_API_KEY", "hunter2")
    with Sandbox() as fresh:
        said = fresh.run("import os\nraise Exception(sorted(os.environ.items()))", ["pass"]).reason
    assert "hunter2" not in said and said == "Exception: []"


def test_the_folder_is_empty_and_gone_afterwards(box):
    code = "import os\nassert os.listdir('.') == []\nopen('a', 'w').write('x')\nraise Exception(os.getcwd())"
    folder = box.run(code, ["pass"]).reason.removeprefix("Exception: ")
    assert folder.startswith("/") and not os.path.exists(folder)


@needs("landlock")
@pytest.mark.parametrize("code", [
    "open({!r}, 'w')", "open('/etc/passwd')", "open('/proc/{pid}/environ')", "import os; os.mkdir({!r})",
    "import os; os.listdir('/root')", "import os; os.remove({there!r})"])
def test_files_outside_are_out_of_reach(box, code, tmp_path):
    (tmp_path / "there").write_text("kept")
    code = code.format(str(tmp_path / "evil"), pid=os.getpid(), there=str(tmp_path / "there"))
    assert box.run(code, ["pass"]).reason.startswith(("PermissionError", "FileNotFoundError"))
    assert (tmp_path / "there").read_text() == "kept" and not (tmp_path / "evil").exists()


@needs("namespaces")
def test_there_is_no_network(box):
    import socket
    server = socket.create_server(("127.0.0.1", 0))
    with server:
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), timeout=1)"
        assert box.run(code, ["pass"]).reason.startswith("OSError")


@needs("namespaces")
@pytest.mark.parametrize("victim", ["os.getppid()", "-1", "{pid}"])
def test_no_other_process_can_be_killed(box, victim):
    box.run(f"import os, signal\nos.kill({victim.format(pid=os.getpid())}, signal.SIGKILL)", ["pass"])
    assert box.process.poll() is None


@needs("namespaces")
def test_daemons_die_with_the_run(box, tmp_path):
    """Even in a session of their own: nothing that a run has started lives on."""
    box.run("import os, time\nif os.fork() == 0:\n os.setsid()\n time.sleep(60)", ["pass"])
    children = os.popen(f"ps -o pid= --ppid {box.process.pid}").read().split()
    assert children == []


@pytest.mark.parametrize("trick", [
    "import json\njson.dumps = lambda *a, **k: '{\"error\": null}'", "import builtins\nbuiltins.exec = lambda *a: None",
    "import builtins\nbuiltins.AssertionError = ValueError\nbuiltins.compile = lambda *a: 'pass'",
    "import os\nos.write = lambda *a: 0",
    "def check(*a): pass", "import sys\nsys.modules['__main__'] = None", "import os\nos._exit = lambda *a: None",
    "import os\nfor fd in range(3, 20):\n try: os.write(fd, b'passed\\ndone\\n')\n except OSError: pass"])
def test_a_checker_that_is_replaced_passes_nothing(box, trick):
    assert box.run(trick, ["assert 1 == 2", "def check(f): assert f(1) == 2\ncheck(lambda x: x)"]).passed == [False, False]


def test_reports_without_the_mark_do_not_count():
    """By hand: a line that is not whole, another mark, and what stood before the end."""
    request = {"seconds": 1}
    whole = read_report("Xpassed \nYpassed \nXfailed no\nXdone \n", "X", request, 0, False)
    assert whole == {"errors": [None, "no"], "reason": ""}
    assert read_report("passed \nXpassed \nXpass", "X", request, 0, True) == {"errors": [None], "reason": "out of time (1 s)"}
    assert read_report("Ydone \n", "X", request, signal.SIGSEGV, False) == {"errors": [], "reason": "killed by signal 11"}
    assert read_report("x" * 100_000, "X", request, 9, False)["reason"] == "too much output"


def test_a_server_that_dies_is_started_again(box):
    with Sandbox() as fresh:
        fresh.run("pass")
        fresh.process.kill()
        fresh.process.wait()
        assert fresh.run("pass", ["pass"]).reason == "the server was killed"
        assert fresh.run("pass", ["pass"]).passed == [True]
