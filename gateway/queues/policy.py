"""Which class of requests is served next. Pure."""

from engine.protocol import RequestClass


def next_class(*, num_interactive: int, num_offline: int) -> RequestClass | None:
    """The class whose turn it is, given how many wait of each.

    A person who waits comes before every job, even when the engine has room for jobs only: what it gives to
    jobs now it lacks for people a moment later.
    """
    if num_interactive:
        return RequestClass.INTERACTIVE
    return RequestClass.OFFLINE if num_offline else None
