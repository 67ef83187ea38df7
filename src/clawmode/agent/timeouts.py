"""How long a model may be silent before its request is given up."""

from clawmode.models.base import ModelLimits

IDLE_SECONDS = 120.0


def idle_window(limits: ModelLimits, *, run_seconds: float, run_is_set: bool) -> float:
    """Seconds without a chunk after which a request is given up.

    Args:
        limits: The model's; its provider's own time, if it has one, is the window.
        run_seconds: What the whole run may take: the window is never longer.
        run_is_set: Whether somebody said so; then it is the window, up to the usual one.
    """
    if limits.timeout_seconds is not None:
        return min(limits.timeout_seconds, run_seconds)
    return min(IDLE_SECONDS, run_seconds) if run_is_set else IDLE_SECONDS
