"""The tiers of a namespace."""

from enum import Enum


class Tier(Enum):
    """The values are what the catalog, the command line and our own requests say."""

    BASIC = "basic"
    STANDARD = "standard"
    PREMIUM = "premium"
