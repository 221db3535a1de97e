"""Why a change to the store was not made; each message is one line for the operator who asked.

AdministrationError
├── AlreadyExists   choose another name
├── NoSuchThing     name one that exists
└── BadValue        give another value
"""


class AdministrationError(Exception):
    """A change that was not made, and nothing with it."""


class AlreadyExists(AdministrationError):
    """The name is taken."""


class NoSuchThing(AdministrationError):
    """What the operator names does not exist."""


class BadValue(AdministrationError):
    """The value cannot be stored."""
