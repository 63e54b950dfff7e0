"""Exit statuses of the command, beside 0."""

from __future__ import annotations

from typing import Final

CANNOT_RUN: Final = 1
"""`wager doctor` alone: wager does not run on this machine."""
USER_ERROR: Final = 2
INTERRUPTED: Final = 130
"""128 + SIGINT, as shells have it."""
