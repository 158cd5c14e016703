"""The error tree.

SpyreError                  what a user can do something about
├── Unsupported             an op, dtype or form that this version cannot run on the card
├── InvalidKernel           kernel text that does not parse or breaks a rule of the IR
├── InvalidProgram          program bytes that are malformed, corrupted or of another version
├── CardError               the card stopped: an index out of range, an access outside its memory
├── InvalidSetting          a setting (mostly an environment variable) that means nothing
└── InvalidHint             a hint (`openspyre.hint`) that a kernel cannot follow
BrokenInvariant             a mistake of ours; carries the kernel text and asks for a report
"""

from __future__ import annotations


class SpyreError(RuntimeError):
    """A problem with the input. Says what happened, why, and what to try.

    Args:
        what: the thing that failed, named as the user would name it.
        why: the reason.
        hint: what to try next.
        at: the user's line or op, where it is known.
    """

    def __init__(self, what: str, *, why: str = "", hint: str = "", at: str = "") -> None:
        self.what, self.why, self.hint, self.at = what, why, hint, at
        parts = [f"{at}: {what}" if at else what]
        parts += [f"why: {why}"] if why else []
        parts += [f"try: {hint}"] if hint else []
        super().__init__("\n  ".join(parts))


class Unsupported(SpyreError, NotImplementedError):
    """An op, dtype or form that cannot run on the card."""


class InvalidKernel(SpyreError, ValueError):
    """Kernel text that does not parse, or a kernel that breaks a rule of the IR."""


class InvalidProgram(SpyreError, ValueError):
    """Program bytes that are malformed, corrupted or of another version."""


class CardError(SpyreError):
    """The card stopped while running a program."""


class InvalidSetting(SpyreError, ValueError):
    """A setting, mostly an environment variable, whose value means nothing."""


class InvalidHint(SpyreError, ValueError):
    """A hint that means nothing, or that a kernel cannot follow."""


class BrokenInvariant(AssertionError):
    """A stage of ours produced something it must not. Please report it with the text."""

    def __init__(self, what: str, *, text: str = "") -> None:
        self.what, self.text = what, text
        super().__init__(
            f"{what}\nThis is a mistake in openspyre, not in your code; please report it."
            + (f"\n{text}" if text else "")
        )
