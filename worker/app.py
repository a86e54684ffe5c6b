"""The Celery app ``worker.app:app`` of this process's broker. Tasks and life cycle are loaded with it; torch never is."""

from celery import Celery

from core.settings import Settings
from worker.broker import make_app

app: Celery = make_app(Settings.from_env().broker_url)
app.set_current()
app.conf.imports = ("worker.tasks", "worker.lifecycle")
