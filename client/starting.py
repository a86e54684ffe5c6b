"""The commands ``up``, ``down`` and ``demo``: they start and stop processes, and so need the service's own code beside them."""

import subprocess
import sys
from pathlib import Path

from client import commands, service
from client.api import DriftlineClient
from client.errors import StartError
from client.following import accompany, post
from client.place import Server, home_of, usable
from core.settings import Settings

DEMO_RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "demo-cpu.json"


def up(*, background: bool, as_json: bool) -> int:
    """Start the service here, or detached with ``background``; one that runs already is enough."""
    settings = service.settings_from_env()
    say = _say(as_json=as_json)
    if background:
        server, fresh = service.up_background(settings, say)
        _tell(server, settings, fresh=fresh, as_json=as_json)
        return 0
    running = service.up_foreground(settings, say)
    if running is not None:
        _tell(running, settings, fresh=False, as_json=as_json)
    return 0


def down(*, as_json: bool) -> int:
    """Stop the service of the home folder."""
    home = home_of()
    was_running = service.down(home, _say(as_json=as_json))
    if as_json:
        commands.print_json({"home": str(home), "stopped": was_running})
    else:
        print("stopped" if was_running else f"nothing runs in {home}")
    return 0


def demo(*, as_json: bool) -> int:
    """Start the service if needed, train the demo recipe, follow it, and show what came out."""
    settings = service.settings_from_env()
    say = _say(as_json=as_json)
    if not DEMO_RECIPE.is_file():
        raise StartError(
            f"the demo recipe is not at {DEMO_RECIPE}", hint="run the demo from a checkout of the repository"
        )
    _prepare_model(settings, say)
    server, fresh = service.up_background(settings, say)
    if not as_json:
        _tell(server, settings, fresh=fresh, as_json=False)
    with DriftlineClient(server.url) as client:
        run = post(client, DEMO_RECIPE.read_bytes())
        words = "The service goes on; `driftline down` stops it, and another `driftline demo` starts at once."
        return accompany(client, run, as_json=as_json, last_words=words)


def _prepare_model(settings: Settings, say: service.Say) -> None:
    """Dequantise the small model once, in a process of its own, since that needs torch."""
    if (settings.smollm2_dir / "config.json").is_file():
        return
    with usable(settings.home):
        settings.home.mkdir(parents=True, exist_ok=True)
    say(f"preparing SmolLM2-135M-Instruct in {settings.smollm2_dir} (once; under a minute)")
    command = [sys.executable, "-P", "-m", "core.engines.smollm2", str(settings.smollm2_dir)]
    # Our own program; its output is kept for the error message.
    done = subprocess.run(command, env=service.child_environment(), capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise StartError(
            f"the model could not be prepared: {lines[-1] if lines else f'exit status {done.returncode}'}",
            hint="`make setup` fetches and prepares it",
        )


def _tell(server: Server, settings: Settings, *, fresh: bool, as_json: bool) -> None:
    if as_json:
        commands.print_json({"started": fresh} | server.document(settings.home))
        return
    what = "is ready" if fresh else "already runs"
    print(f"Driftline {what} at {server.url}  (home {settings.home}, pid {server.supervisor.pid})", flush=True)


def _say(*, as_json: bool) -> service.Say:
    """Notes go to standard output for a person, and beside a JSON document to standard error."""
    stream = sys.stderr if as_json else sys.stdout

    def say(text: str) -> None:
        stream.write(f"{text}\n")
        stream.flush()

    return say
