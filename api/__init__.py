"""The HTTP interface: a FastAPI application with one endpoint module per resource.

What lives here: endpoints (they parse), ``services`` (they decide), ``schemas`` (what goes over the wire), authentication,
limits, errors and the plain page under ``web``. What may not: SQL (that is ``core.store``), training or anything that
imports torch, and Celery's workings (that is ``worker``).
"""
