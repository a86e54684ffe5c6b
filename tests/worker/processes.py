"""Looking at processes from outside."""

import psutil


def gone(pid):
    """Whether no living process has this pid (a zombie counts as gone)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
