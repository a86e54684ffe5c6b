"""Live linearity of a train run (``linearity: live``): where the trainer's loop touches :mod:`core.dynamics.live`.

It records the curves and the warning of each step, and keeps the state beside the checkpoints. Nothing is measured here.
"""

from pathlib import Path

from core.dynamics.live import LiveLinearity
from core.dynamics.target import drive_of
from core.jobs import RunContext
from core.recipes import TrainRecipe
from core.store import events, metrics
from core.train.policy import Policy

WARNING = "early_warning"


class Follower:
    """Follows the policy's masters through one attempt; does nothing for a run that is not followed."""

    def __init__(self, context: RunContext, recipe: TrainRecipe, policy: Policy, begins_at: int) -> None:
        self._context = context
        self._masters = policy.optimizer.masters
        self._live = None
        if recipe.linearity == "live":
            drive = drive_of(recipe, recipe.max_steps)
            self._live = LiveLinearity(self._masters, drive, seed=recipe.seed, begins_at=begins_at)

    def observe(self, step: int) -> None:
        """Measure a finished step, before anything jumps."""
        if self._live is None:
            return
        curves = self._live.observe(step, self._masters)
        warned = self._live.warned
        if not curves:
            return
        context = self._context
        with context.db.fenced(context.fence) as session:
            metrics.record(session, context.fence, step, curves)
            if warned is not None:
                events.append(session, context.run_id, WARNING, warned, context.attempt)

    def jumped(self) -> None:
        """The weights were replaced without training."""
        if self._live is not None:
            self._live.jumped(self._masters)

    def save(self, folder: Path) -> None:
        """Write the state into the folder of a checkpoint."""
        if self._live is not None:
            self._live.save(folder)

    def restore(self, folder: Path, step: int) -> None:
        """Go on from a checkpoint whose weights have been restored."""
        if self._live is not None:
            self._live.restore(folder, step, self._masters)
