"""An api on a loopback port in a thread of the test's process, for tests that need real sockets and a real browser."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import uvicorn
from fastapi import FastAPI

from core.settings import Settings
from core.store.database import Database
from tests.worker.waiting import wait_until


@dataclass(frozen=True)
class Served:
    """An api that is served once for many tests; each test gives it a home of its own."""

    app: FastAPI
    url: str

    def move_to(self, settings: Settings) -> None:
        """Serve another home from now on."""
        self.app.state.service.db.dispose()
        self.app.state.service = replace(self.app.state.service, settings=settings, db=Database(settings.database_url))


@contextmanager
def serve(app: FastAPI) -> Iterator[Served]:
    """Serve ``app`` until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started, what="the api to serve")
    try:
        yield Served(app, f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
