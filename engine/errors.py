"""Everything that can go wrong in the engine, and whose fault it is.

Never an HTTP status: the server's wire gives each error its shape.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors raised by the engine's rooms."""


class InvalidRequestError(EngineError):
    """The client asked for something that can't be: its fault, and `param` names the field."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class UnsupportedParameterError(InvalidRequestError):
    """A known field that this engine or server can't honour: refused by name, never ignored."""

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"{param} is not supported: {reason}", param=param, code="unsupported_parameter")


class ContextLengthError(InvalidRequestError):
    """The prompt, or prompt and output together, do not fit the model's context."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class EngineOverloadedError(EngineError):
    """No room for one more request now: nobody's fault, try again after `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: float, code: str = "engine_overloaded") -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.code = code


class EngineUnavailableError(EngineError):
    """The engine is not up: starting, draining, stopped or dead. The server's fault."""

    def __init__(self, message: str, *, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class GenerationFailedError(EngineError):
    """The engine failed while this request ran. The server's fault."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class EngineControlError(EngineError):
    """An operator's request that the engine can't fulfil, in its own words: theirs to mend."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ModelLoadError(EngineError):
    """A model folder, tokenizer or template that can't be used: the operator's to mend."""


class ConfigError(EngineError):
    """A setting that can't be used: the operator's to mend; the message names the key."""
