"""Starts the api: ``python -m api``. Host and port come from the settings; it refuses to be open to a network unguarded."""

import sys

import uvicorn

from api.app import create_app
from api.origin import LOOPBACK_NAMES
from core.settings import Settings, SettingsError
from core.store import tokens
from core.store.database import Database
from core.store.errors import SchemaMismatch
from core.store.migrations_api import require_head


def main() -> int:
    """Serve until told to stop; returns the exit status."""
    try:
        settings = Settings.from_env()
        require_head(settings.database_url)
    except (SettingsError, SchemaMismatch, ValueError) as exc:
        sys.stderr.write(f"driftline api: {exc}\n")
        return 2
    if settings.host not in LOOPBACK_NAMES and not _has_tokens(settings):
        sys.stderr.write(
            f"driftline api: DRIFTLINE_HOST is {settings.host}, but no token exists; anybody there could start runs. "
            "Make a token first, or use 127.0.0.1\n"
        )
        return 2
    uvicorn.run(create_app(settings), host=settings.host, port=settings.port, log_level="info", access_log=False)
    return 0


def _has_tokens(settings: Settings) -> bool:
    db = Database(settings.database_url)
    try:
        with db.read() as session:
            return tokens.any_exist(session)
    finally:
        db.dispose()


if __name__ == "__main__":
    sys.exit(main())
