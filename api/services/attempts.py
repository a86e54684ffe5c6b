"""Whether a run has the attempt that a request names. Reading what the attempt wrote is the endpoints' own business."""

from sqlalchemy.orm import Session

from api.errors import NotFound
from core.store import runs


def require(session: Session, run_id: str, number: int) -> None:
    """Raise :class:`NotFound`, naming the attempts that there are, unless the run has attempt ``number``."""
    known = [attempt.number for attempt in runs.attempts(session, run_id)]
    if number in known:
        return
    there = f"it has {', '.join(map(str, known))}" if known else "it has had none yet"
    raise NotFound(f"run {run_id} has no attempt {number}", param="attempt", hint=there)
