"""The database's schema, revision by revision (Alembic). Only DDL and data moves live here; nothing imports application code
except the engine's settings, so that an old revision keeps meaning what it meant. `core.store.migrations_api` runs them.
"""
