"""The sandbox: where code that an agent wrote is run. Nothing an agent writes runs anywhere else.

    from envs.sandbox import Sandbox
    with Sandbox() as sandbox:
        outcome = sandbox.run("def f(x): return x + 1", ["assert f(1) == 2", "assert f(1) == 3"])
    outcome.passed                                          # [True, False]
    outcome.reason                                          # "", or why it stopped before the last test, e.g. "out of time"

One server process, which never runs anything foreign itself, forks a child for each run. The child has a session and an empty
temporary folder of its own, no environment variables, and limits: processor and wall time, memory, processes, open files, size
of files. Where the platform allows it (Linux, without privileges) it also has namespaces of its own, so that there is no network
and no other process to see or kill, and Landlock, so that nothing but its folder can be written, and nothing but Python and its
libraries read. `Sandbox().layers` says which of the two are there. After a run all that the child has started is killed.

**Not covered.** Without namespaces: network, and signals to the user's other processes. Without Landlock: the user's files (a
server that is root becomes nobody first). In all cases: code that is written to deceive its tests, in whose process it runs (an
object that equals everything, a search for the mark in memory); holes in the kernel; time stolen from others by what is within
the limits. On other systems than Linux only the limits hold. Do not run code there that you would not run yourself.
"""
import contextlib
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

SECONDS, MEMORY_MB, PROCESSES, FILE_MB, OPEN_FILES = 2.0, 512, 16, 1, 64
LONGEST = 100_000                                 # characters of a report
NAMESPACES = 0x10000000 | 0x40000000 | 0x20000000 | 0x08000000        # user, network, processes, messages
WRITING = (1 << 1) | sum(1 << i for i in range(4, 13))                # Landlock: write a file, remove, make, refer
ALL_OF_ABI_1 = (1 << 13) - 1


@dataclass(frozen=True)
class Outcome:
    """Which tests passed, in order (False for those that were not reached); the error of each failed one; why a run ended before
    its last test ("" if it did not)."""
    passed: list
    errors: list
    reason: str


class Sandbox:
    """A server process that runs code. Use it as a context manager, or `close` it."""

    def __init__(self, seconds=SECONDS, memory_mb=MEMORY_MB):
        self.seconds, self.memory_mb, self.process = seconds, memory_mb, None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        """Stop the server."""
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None

    @property
    def layers(self):
        """Of "namespaces" and "landlock", those that this platform has."""
        return self.ask({"layers": True})["layers"]

    def run(self, code, tests=()):
        """Run code, then each test (Python statements, an assertion among them) in a copy of what it has defined."""
        said = self.ask({"code": code, "tests": list(tests), "seconds": self.seconds, "memory_mb": self.memory_mb})
        errors = said["errors"] + [said["reason"] or "not reached"] * (len(tests) - len(said["errors"]))
        return Outcome([error is None for error in errors], errors, said["reason"])

    def ask(self, request):
        """The server's answer; a server that is gone (its child had it killed) is started again for the next one."""
        if self.process is None:
            self.process = subprocess.Popen([sys.executable, "-I", "-S", os.path.abspath(__file__)], env={}, text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], request.get("seconds", 10) + 20)
        line = self.process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        self.close()
        return {"errors": [], "reason": "the server was killed", "layers": []}


# ---------------------------------------------------------------- the server

def serve():
    """Answer requests, one a line, until the input ends."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    layers = []
    if libc is not None:
        layers = ["namespaces"] * can_unshare(libc) + ["landlock"] * (landlock_version(libc) > 0)
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"layers": layers} if "layers" in request else supervise(request, libc, layers)
        print(json.dumps(answer), flush=True)


def can_unshare(libc):
    """Try it in a child."""
    child = os.fork()
    if child == 0:
        os._exit(libc.unshare(NAMESPACES) != 0)
    return os.waitpid(child, 0)[1] == 0


def landlock_version(libc):
    """0 where there is no Landlock."""
    return max(0, libc.syscall(444, None, 0, 1))


def supervise(request, libc, layers):
    """Fork a child for a request, read its reports, and kill what is left of it at the end or when the time is over."""
    folder = tempfile.mkdtemp(prefix="parley-")
    mine, its = os.pipe()
    mark = os.urandom(16).hex()
    child = os.fork()
    if child == 0:
        os.close(mine)
        with contextlib.suppress(BaseException):            # whatever happens here, the child must not go on as a server
            imprison(request, folder, libc, layers)
            execute(request, its, mark)
        os._exit(1)
    os.close(its)
    text, over = "", time.monotonic() + request["seconds"]
    while (left := over - time.monotonic()) > 0 and len(text) < LONGEST:
        ready, _, _ = select.select([mine], [], [], left)
        part = os.read(mine, 65536) if ready else b""
        if ready and not part:
            break
        text += part.decode("utf-8", "replace")
    timed_out = left <= 0
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(mine)
    shutil.rmtree(folder, ignore_errors=True)
    return read_report(text, mark, request, status, timed_out)


def read_report(text, mark, request, status, timed_out):
    """{"errors": of each test that was reached, None for a passed one; "reason"}. Only whole lines with the mark count."""
    reports = [line.removeprefix(mark).partition(" ") for line in text.split("\n")[:-1] if line.startswith(mark)]
    errors = [None if kind == "passed" else said for kind, _, said in reports if kind in ("passed", "failed")]
    if any(kind == "done" for kind, _, _ in reports):
        return {"errors": errors, "reason": ""}
    broken = next((said for kind, _, said in reports if kind == "broken"), None)
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if broken:
        reason = broken
    elif timed_out or killed == signal.SIGXCPU:
        reason = f"out of time ({request['seconds']:g} s)"
    elif len(text) >= LONGEST:
        reason = "too much output"
    else:
        reason = f"killed by signal {killed}" if killed and killed != signal.SIGKILL else "it ended its process"
    return {"errors": errors, "reason": reason}


# ---------------------------------------------------------------- the child

def imprison(request, folder, libc, layers):
    """Give up all that the code is not to have. Raises OSError where a layer that is there fails."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.chmod(folder, 0o777)
    os.chdir(folder)
    os.environ.clear()
    tempfile.tempdir = folder
    if "landlock" not in layers and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534), os.setuid(65534)
    if "namespaces" in layers:
        if libc.unshare(NAMESPACES):
            raise OSError(ctypes.get_errno(), "unshare")
        child = os.fork()                                   # the first process of the new world: with it all others end
        if child:
            _, status = os.waitpid(child, 0)
            killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            if killed:
                signal.signal(killed, signal.SIG_DFL) if killed not in (signal.SIGKILL, signal.SIGSTOP) else None
                os.kill(os.getpid(), killed)
            os._exit(1)
        libc.prctl(1, signal.SIGKILL)                       # and it ends with its parent
    mega, seconds = 1 << 20, int(request["seconds"]) + 1
    for what, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, request["memory_mb"] * mega),
                        (resource.RLIMIT_NPROC, PROCESSES), (resource.RLIMIT_FSIZE, FILE_MB * mega),
                        (resource.RLIMIT_NOFILE, OPEN_FILES), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (limit, limit))
    if "landlock" in layers:
        lock_files(libc, folder)


def lock_files(libc, folder):
    """Landlock: all below the folder, reading of Python and its libraries, nothing else."""
    def call(number, *arguments):
        result = libc.syscall(number, *arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), "Landlock")
        return result
    rights = ALL_OF_ABI_1
    attributes = ctypes.create_string_buffer(struct.pack("Q", rights), 8)
    ruleset = call(444, attributes, 8, 0)
    places = {os.path.realpath(p) for p in (sys.base_prefix, sys.prefix, "/usr", "/lib", "/lib64", "/bin") if os.path.exists(p)}
    for place, allowed in [(folder, rights), (os.devnull, 0b110), *((p, rights & ~WRITING) for p in places)]:
        handle = os.open(place, os.O_PATH)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, handle), 12)
        call(445, ruleset, 1, rule, 0)
        os.close(handle)
    libc.prctl(38, 1, 0, 0, 0)                              # no new privileges, which Landlock wants
    call(446, ruleset, 0)
    os.close(ruleset)


def execute(request, report_to, mark):
    """Run the code and the tests, and report each result at once. What the code may put in the place of builtins or of this
    module's functions is not asked: all that decides is at hand before, or is syntax."""
    write, run, make, leave, name_of = os.write, exec, compile, os._exit, type

    def report(kind, said=""):
        write(report_to, f"{mark}{kind} {said}\n".encode("utf-8", "replace"))

    def say(error):
        try:
            return f"{name_of(error).__name__}: {error}".replace("\n", " ").strip()[:200]
        except BaseException:
            return "an error that cannot be printed"
    sys.modules.pop("__main__")
    space = {"__name__": "__sandbox__"}
    try:
        run(make(request["code"], "<code>", "exec"), space)
    except BaseException as error:
        report("broken", say(error))
        leave(0)
    for test in request["tests"]:
        try:
            run(make(test, "<test>", "exec"), {**space})
        except BaseException as error:                      # SystemExit is a failure, too
            report("failed", say(error))
        else:
            report("passed")
    report("done")
    leave(0)


if __name__ == "__main__":
    serve()
