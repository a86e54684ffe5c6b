"""The rules as one type, for modules that work with any of them. To build one, see ``rules``."""

from core.damage.eprocess import EProcess
from core.damage.mcnemar import McNemarSpending
from core.damage.threshold import Threshold

Rule = EProcess | McNemarSpending | Threshold
