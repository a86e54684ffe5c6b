"""The worker: claims runs, pins the card, starts a runner process for each attempt and supervises it to its end.

Here live the Celery app, the doorbell, the supervisor, the sweeper, GPU pinning, the embedded broker and the runner's
entry point. Training, evaluation and statistics may not live here, nor any SQL; nothing in this folder imports torch
(the runner's own process does, inside the job it dispatches).
"""
