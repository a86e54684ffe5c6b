"""What the store refuses, as exception types; messages name the thing that was asked for. No HTTP status lives here."""

# ruff: noqa: N818 - the names say what happened; "Error" would add nothing


class StoreError(Exception):
    """Base of everything the store raises on purpose; the message can be shown to a user."""


class NotFound(StoreError):
    """No row with this id (or id prefix) exists, or it was deleted."""


class RecordsDeleted(StoreError):
    """The row is there, but its records went when its run was deleted."""


class Ambiguous(StoreError):
    """An id prefix fits several rows; give more characters."""


class IllegalTransition(StoreError):
    """The state machine has no such step from the row's present state (`states.TRANSITIONS`)."""


class StaleAttempt(StoreError):
    """The fence is no longer valid: the run ended, or its lease was taken back. The attempt must stop and write nothing."""


class BadCursor(StoreError):
    """The page cursor is not one that this listing handed out."""


class BadFilter(StoreError):
    """A filter cannot be applied: its value is not one of the allowed ones, or it needs another filter beside it."""


class FrozenTooLate(StoreError):
    """A prespecification was to be frozen for a run that already has a look."""


class SchemaMismatch(StoreError):
    """The database's schema revision is not the one this code needs; the message says which way it differs."""
