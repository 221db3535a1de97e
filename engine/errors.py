"""Every error of the engine process that has a foreseeable cause; its message is one line for a person.

EngineError
├── SettingsError    a setting is wrong: mend the file or the environment
├── ModelError       the model cannot be served: choose another, or mend its files
└── StepsFailed      step after step fails: the device is lost, say; start the process anew
"""


class EngineError(Exception):
    """The engine cannot start or go on, for a reason that the message tells."""


class SettingsError(EngineError):
    """A setting has a wrong value; the message names the key."""


class ModelError(EngineError):
    """The model's files are missing, damaged or of a kind that is not supported."""


class StepsFailed(EngineError):
    """Several steps in a row could not be computed, with whatever requests."""
