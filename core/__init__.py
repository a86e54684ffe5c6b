"""Everything that is neither web nor queue: recipes, store, tasks, engines, training, evaluation, analysis.

Nothing below this package imports FastAPI or Celery. Each sub-package says in its own ``__init__`` what lives there.
"""
