"""What a user of these stages can do something about."""

from __future__ import annotations


class SelectionError(ValueError):
    """Bad input. Says what happened, why, and what to try."""

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        self.what, self.why, self.hint = what, why, hint
        parts = [what, *([f"why: {why}"] if why else []), *([f"try: {hint}"] if hint else [])]
        super().__init__("\n  ".join(parts))
