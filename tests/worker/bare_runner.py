"""A runner of the standard library alone, which starts at once: it knows no store and only behaves.

Usage: bare_runner.py BEHAVIOUR JOURNAL ATTEMPT
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

behaviour, journal, attempt = sys.argv[1:]


def write(line):
    with Path(journal).open("a") as file:
        file.write(line + "\n")


write(f"{attempt} started {os.getpid()}")
match behaviour:
    case "deaf":
        threading.Event().wait()
    case "crash":
        sys.exit("the tensor fell over")
    case "disk_full":
        sys.stderr.write('  File "loop.py", line 1\nOSError: [Errno 28] No space left on device\n')
        sys.exit(70)
    case "say_nothing":
        sys.exit(0)
    case "stale":
        sys.exit(75)
    case "busy":
        sys.exit(4)
    case "parent" | "parent_then_hang":
        child = subprocess.Popen([sys.executable, "-S", "-c", "import threading; threading.Event().wait()"])
        write(f"child {child.pid}")
        if behaviour == "parent_then_hang":
            threading.Event().wait()
    case "echo":
        for word in sys.stdin:
            write(f"{attempt} asked {word.strip()}")
