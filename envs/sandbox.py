"""The sandbox: where code that an agent wrote is run. Nothing an agent writes runs anywhere else.

    from envs.sandbox import Sandbox
    with Sandbox() as sandbox:
        outcome = sandbox.run("def f(x): return x + 1", ["assert f(1) == 2", "assert f(1) == 3"])
    outcome.passed                                          # [True, False]
    outcome.reason                                          # "", or why it stopped before the last test, e.g. "out of time"

One server process, which never runs anything foreign itself, forks a child for each run. The child has a session and an empty
temporary folder of its own, no environment variables, and limits: processor and wall time, memory, processes, open files, size
of files. Where the platform allows it (`Sandbox().layers` says which of these are there) it also has
    nobody        if the server is root: the rights of user 65534 instead
    namespaces    Linux, without privileges: no network, no other process to see or kill, a small memory disk as its folder
    seccomp       Linux: no sockets, no change of modes, owners and times of files, no shared memory that outlives its owner
    landlock      Linux: nothing but its folder can be written, nothing but Python and its libraries read
After a run all that the child has started is killed.

**Not covered.** Without seccomp and namespaces: network. Without namespaces: signals to the user's other processes, disks that
fill up. Without landlock: the user's files. In all cases: code that is written to deceive its tests, in whose process it runs (an
object that equals everything; the mark, which is in the frames of its callers; a module of the standard library that it changes);
holes in the kernel; time and memory (processes x memory_mb; the number of processes of a root that cannot become nobody is not
limited) taken from others. On other systems than Linux only the limits hold. Run nothing there that you would not run yourself.
"""
import builtins
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

SECONDS, MEMORY_MB, PROCESSES, FILE_MB, OPEN_FILES = 2.0, 512, 16, 1, 64
LONGEST = 100_000                                 # characters of a report
NAMESPACES = 0x10000000 | 0x40000000 | 0x20000000 | 0x08000000 | 0x00020000   # user, network, processes, messages, mounts
WRITING = (1 << 1) | sum(1 << i for i in range(4, 13)) | (1 << 14)    # Landlock: write a file, remove, make; truncate
NOBODY = 65534
# System calls that are refused: sockets; ptrace, foreign memory; shared memory; modes, owners, times and attributes of files;
# mounts, namespaces; io_uring (which goes round this list), keys, bpf, userfaultfd
REFUSED = {
    "x86_64": (0xC000003E, (41, 42, 49, 101, 311, 29, 90, 91, 268, 452, 92, 93, 94, 260, 132, 235, 261, 280, 188, 189, 190, 197,
                            198, 199, 463, 165, 166, 155, 272, 308, 425, 250, 248, 321, 323)),
    "aarch64": (0xC00000B7, (198, 203, 200, 117, 271, 194, 52, 53, 452, 54, 55, 88, 5, 6, 7, 14, 15, 16, 463, 40, 39, 41, 97, 268,
                             425, 219, 217, 280, 282))}


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
        """Stop the server: it ends with its input, and what runs with it."""
        if self.process:
            self.process.stdin.close()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
            self.process = None

    @property
    def layers(self):
        """What this platform has of "nobody", "namespaces", "seccomp" and "landlock"."""
        return self.ask({"layers": True})["layers"]

    def run(self, code, tests=(), keep=()):
        """Run code, then each test (Python statements, an assertion among them) in a copy of what it has defined, but for names
        of builtins, which stay what they were, except those in `keep`. Raises OSError where a layer that is there fails."""
        said = self.ask({"code": code, "tests": list(tests), "keep": list(keep), "seconds": self.seconds,
                         "memory_mb": self.memory_mb})
        if "failed" in said:
            raise OSError(f"the sandbox does not work here: {said['failed']}")
        errors = said["errors"] + [said["reason"] or "not reached"] * (len(tests) - len(said["errors"]))
        return Outcome([error is None for error in errors], errors, said["reason"])

    def value(self, code, expression):
        """Run code, then an expression. Returns (its repr, at most 1,000 characters of it; "") or ("", what went wrong). What the
        code prints is not kept. Raises OSError where a layer that is there fails."""
        said = self.ask({"code": code, "tests": [], "keep": [], "expression": expression, "seconds": self.seconds,
                         "memory_mb": self.memory_mb})
        if "failed" in said:
            raise OSError(f"the sandbox does not work here: {said['failed']}")
        return said.get("value", ""), "" if "value" in said else said.get("error") or said["reason"] or "it gave no value"

    def ask(self, request):
        """The server's answer; a server that is gone (its child had it killed) is started again for the next one."""
        if self.process is None:
            self.process = subprocess.Popen([sys.executable, "-I", "-S", os.path.abspath(__file__)], env={}, text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            ready, _, _ = select.select([self.process.stdout], [], [], request.get("seconds", 10) + 20)
            return json.loads(self.process.stdout.readline() if ready else "")
        except (BrokenPipeError, ValueError):
            self.process.kill()
            self.process.wait()
            self.process = None
            return {"errors": [], "reason": "the server was killed", "layers": []}
        except BaseException:                               # an answer that nobody has read would be taken for the next one
            self.process.kill()
            self.process.wait()
            self.process = None
            raise


# ---------------------------------------------------------------- the server

def serve():
    """Answer requests, one a line, until the input ends."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    layers = ["nobody"] * (os.geteuid() == 0 and in_child(nobody_can_read))
    if libc is not None:
        libc.prctl(36, 1, 0, 0, 0)                          # orphans come to the server, which kills them
        layers += ["namespaces"] * in_child(lambda: enter_namespaces(libc, tempfile.gettempdir(), dry=True))
        layers += ["seccomp"] * in_child(lambda: refuse_calls(libc))
        layers += ["landlock"] * (libc.syscall(444, None, 0, 1) > 0)
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"layers": layers} if "layers" in request else supervise(request, libc, layers)
        print(json.dumps(answer), flush=True)


def in_child(attempt):
    """Does it work? Tried in a child, which it may change."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            attempt()
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def nobody_can_read():
    """Become nobody and read Python's library. (A Python in the home of root is nobody's.)"""
    become_nobody()
    with open(contextlib.__file__) as file:
        file.read(1)


def become_nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def supervise(request, libc, layers):
    """Fork a child for a request, read its reports, and kill what is left of it at the end or when the time is over."""
    folder = tempfile.mkdtemp(prefix="parley-")
    os.chmod(folder, 0o777)
    mine, its = os.pipe()
    mark = os.urandom(16).hex()
    child = os.fork()
    if child == 0:
        os.close(mine)
        try:                                                # whatever happens here, the child must not go on as a server
            imprison(request, folder, libc, layers)
            execute(request, its, mark)
        except BaseException as error:
            os.write(its, f"{mark}prison {type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os.close(its)
    text, over = "", time.monotonic() + request["seconds"]
    while (left := over - time.monotonic()) > 0 and len(text) < LONGEST and f"\n{mark}done " not in f"\n{text}":
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
    kill_orphans()
    subprocess.run(["rm", "-rf", folder], stderr=subprocess.DEVNULL, env={"PATH": os.defpath})      # it does not mind the depth
    return read_report(text, mark, request, status, timed_out)


def kill_orphans():
    """Kill and bury the processes that have become the server's own because who started them is gone."""
    listed = f"/proc/self/task/{os.getpid()}/children"
    while os.path.exists(listed):
        with open(listed) as file:
            children = [int(pid) for pid in file.read().split()]
        if not children:
            return
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def read_report(text, mark, request, status, timed_out):
    """{"errors": of each test that was reached, None for a passed one; "reason"}. Only whole lines with the mark count, and each
    test once, in order."""
    reports = [line.removeprefix(mark).partition(" ") for line in text.split("\n")[:-1] if line.startswith(mark)]
    errors = [None if kind == "passed" else said for kind, _, said in reports if kind in ("passed", "failed")]
    errors = errors[:len(request["tests"])]
    said = {kind: words for kind, _, words in reversed(reports)}
    if "prison" in said:
        return {"failed": said["prison"]}
    if "value" in said and "done" in said:
        return {"value": said["value"], "errors": [], "reason": ""}
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else max(0, os.WEXITSTATUS(status) - 128)
    if "done" in said:
        reason = ""
    elif "broken" in said:
        reason = said["broken"]
    elif timed_out or killed == signal.SIGXCPU:
        reason = f"out of time ({request['seconds']:g} s)"
    elif len(text) >= LONGEST:
        reason = "too much output"
    else:
        reason = f"killed by signal {killed}" if killed and killed != signal.SIGKILL else "it ended its process"
    return {"errors": errors, "reason": reason, **({"error": said.get("failed")} if "expression" in request else {})}


# ---------------------------------------------------------------- the child

def imprison(request, folder, libc, layers):
    """Give up all that the code is not to have. Raises OSError where a layer that is there fails."""
    server = os.getppid()
    if libc is not None:
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)              # end with the server
    if os.getppid() != server:
        os._exit(1)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.environ.clear()
    tempfile.tempdir = folder
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")                                  # if memory is short, this goes first
    if "nobody" in layers:
        become_nobody()
    if "namespaces" in layers:
        enter_namespaces(libc, folder)
    os.chdir(folder)
    mega, seconds = 1 << 20, int(request["seconds"]) + 1
    for what, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, request["memory_mb"] * mega),
                        (resource.RLIMIT_NPROC, PROCESSES), (resource.RLIMIT_FSIZE, FILE_MB * mega),
                        (resource.RLIMIT_NOFILE, OPEN_FILES), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(what)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (limit, limit))
    if "landlock" in layers:
        lock_files(libc, folder)
    if "seccomp" in layers:
        refuse_calls(libc)


def enter_namespaces(libc, folder, dry=False):
    """New namespaces, with a memory disk in place of the folder; go on in a process that is not their first. The first one waits
    for it, and when it ends all others do, too. dry: only see whether it works."""
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(NAMESPACES):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)
    if libc.mount(b"parley", folder.encode(), b"tmpfs", 0b110, b"size=16m,nr_inodes=1000,mode=777"):      # no devices, no suid
        raise OSError(ctypes.get_errno(), "mount")
    if dry:
        return
    for first in (False, True):                             # this process, then the first one of the new world, stay behind
        child = os.fork()
        if child == 0:
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)
            continue
        while True:
            pid, status = os.wait()
            if pid == child:
                os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def lock_files(libc, folder):
    """Landlock: all below the folder, reading of Python and its libraries, nothing else."""
    def call(number, *arguments):
        result = libc.syscall(number, *arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), "Landlock")
        return result
    rights = (1 << 13) - 1
    if call(444, None, 0, 1) >= 3:
        rights |= 1 << 14
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


def refuse_calls(libc):
    """seccomp: a filter program that answers REFUSED system calls with "not permitted"."""
    architecture, numbers = REFUSED[os.uname().machine]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    steps = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, 0x80000000), (load, 0, 0, 0),
             (at_least, len(numbers) + 1, 0, 0x40000000)]   # calls of another convention: refused
    steps += [(equal, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    steps += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050001)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
    libc.prctl(38, 1, 0, 0, 0)
    if libc.prctl(22, 2, header, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def execute(request, report_to, mark):
    """Run the code and the tests, and report each result at once. What the code may put in the place of builtins or of this
    module's functions is not asked: all that decides is at hand before, or is syntax."""
    write, run, make, leave, name_of, process = os.write, exec, compile, os._exit, type, os.getpid
    run_expression, repr = eval, builtins.repr
    me, saved, keep = process(), {**vars(builtins)}, request["keep"]

    def report(kind, said=""):
        if process() != me:                                 # a fork of the code would report twice
            leave(1)
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
    if "expression" in request:
        try:
            shown = repr(run_expression(make(request["expression"], "<expression>", "eval"), space))[:1000]
        except BaseException as error:
            report("failed", say(error))
        else:
            report("value", shown.replace("\n", " "))
    seen = {name: value for name, value in space.items() if name not in saved or name in keep} | {"__builtins__": saved}
    for test in request["tests"]:
        try:
            run(make(test, "<test>", "exec"), {**seen})
        except BaseException as error:                      # SystemExit is a failure, too
            report("failed", say(error))
        else:
            report("passed")
    report("done")
    leave(0)


if __name__ == "__main__":
    serve()
