"""The errors that users meet. Each carries one clear line; the CLI prints it and exits with 2.

WagerError
|-- ConfigError      an option or a combination of options that cannot work
|-- ModelError       a model that cannot be used
|   |-- CorruptFile        a file whose bytes contradict themselves
|   `-- UnsupportedModel   a sound file of a kind that is not supported
|-- RequestError     one request that cannot be served; others go on
`-- Unavailable      what a request needs cannot be had now, for no fault of its own
"""

from __future__ import annotations


class WagerError(Exception):
    """Base of all errors that are the user's to solve. ``str(error)`` is one line."""


class ConfigError(WagerError):
    """An option, or a combination of options, that cannot work; names the option."""


class ModelError(WagerError):
    """A model that cannot be used; names the file."""


class CorruptFile(ModelError):
    """A file whose bytes contradict themselves (truncated, lying offsets, bad magic)."""


class UnsupportedModel(ModelError):
    """A sound model of a kind that is not supported; the message lists what is."""


class RequestError(WagerError):
    """A request that cannot be served (too long, bad sampling option); names the field."""


class Unavailable(WagerError):
    """What a request needs cannot be had now, for no fault of its own; names the field."""


class NoTokenLeft(ValueError):
    """The options of a request exclude every token at some place of its answer."""


class FormFault(NoTokenLeft):
    """The form that an answer has to have allows no way on, or cannot be followed."""


class FormLost(ValueError):
    """What follows the form of an answer is gone, for no fault of the form."""
