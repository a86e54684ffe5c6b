"""A real Celery worker process whose runners are `fake_runner.py`."""

import sys
from pathlib import Path

from worker.__main__ import main


def command(claim):
    script = Path(__file__).with_name("fake_runner.py")
    return [
        sys.executable, str(script),
        "--run", claim.run_id, "--attempt", str(claim.attempt), "--fence", str(claim.fence.token),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], command))
