"""What can go wrong on the way to a page, named by what the browser is told.

    Exception
    ├── SignInNeeded     303  to the sign-in page, and back afterwards
    └── FormRefused      403  the form did not come from a page of ours that is still valid

`app.py` turns these, and the gateway's errors, into pages.
"""

from typing import Final


class SignInNeeded(Exception):
    """No live session came with the request. `wanted` is the path to return to, or None."""

    def __init__(self, wanted: str | None) -> None:
        super().__init__("sign in first")
        self.wanted = wanted


class FormRefused(Exception):
    """A POST without a valid form token, or from another site; the message is one sentence."""


STALE_FORM: Final = "This form is out of date. Go back, reload the page and send it again."
FOREIGN_FORM: Final = (
    "This form came from another address than these pages. Open them at their own address and try again; "
    "behind a proxy, set [admin] public_url."
)
