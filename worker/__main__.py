"""``python -m worker``: pin the card, then run a Celery worker with fixed arguments (one prefork process, nothing optional)."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from core.settings import Settings, SettingsError
from core.store.errors import SchemaMismatch
from core.store.migrations_api import require_head
from worker import node
from worker.broker import QUEUE
from worker.control import die_with_parent
from worker.pinning import PinningError
from worker.supervisor import Command

_USAGE_ERROR = 2


def main(argv: Sequence[str], command: Command = node.runner_command) -> int:
    """Run a worker until it is told to stop; return its exit status. Refuses to start without its card or on another schema."""
    parser = argparse.ArgumentParser(prog="python -m worker", description="Run one Driftline worker on one device.")
    parser.add_argument("--follow-parent", action="store_true", help="drain and end when the starting process dies")
    if parser.parse_args(argv).follow_parent:
        die_with_parent(signal.SIGTERM)
    try:
        settings = Settings.from_env()
        require_head(settings.database_url)
        worker = node.Node.register(settings, command)
    except (PinningError, SettingsError, SchemaMismatch) as error:
        sys.stderr.write(f"driftline worker: {error}\n")
        return _USAGE_ERROR
    node.configure(worker)
    from worker.app import app

    arguments = ["worker", "--pool=prefork", "--concurrency=1", "--loglevel=INFO", f"--queues={QUEUE}"]
    arguments += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    arguments += [f"--hostname=driftline-{worker.worker_id}@%h"]
    pid = os.getpid()
    try:
        app.worker_main(arguments)
    finally:
        # Pool processes are forked inside the call above.
        if os.getpid() == pid:
            worker.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
