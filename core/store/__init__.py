"""The service's memory: SQLAlchemy models, migrations and repositories for SQLite and PostgreSQL.

Here live all tables (`models`), the engine and its transactions (`database`), the run's state machine (`states`), the
fencing of attempts (`fencing`), and one repository module per noun (`runs`, `queue`, `metrics`, `looks` ...), each a set
of plain functions that take a session first. All SQL of the service is in this folder and in `migrations/`.

What may not live here: HTTP, Celery, torch, files other than the database's own, and decisions that need more than a row
(statistics, plans, rules). Repositories never commit; whoever opened `Database.write()` or `Database.fenced()` does.
Times are seconds since 1970 in UTC as floats, taken from the database's clock and from no other.
"""
