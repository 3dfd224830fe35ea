"""What the core keeps of one sequence between its submission and its end.

Never outlives the sequence.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from engine.output.processor import SequenceProcessor
from engine.stream import SequenceStream
from engine.types import FinishReason

logger = logging.getLogger(__name__)
FAULTY_TEXT = "the server could not turn this answer's tokens into text"


@dataclass(slots=True)
class LiveSequence:
    """A sequence that was submitted and has neither ended nor been aborted."""

    processor: SequenceProcessor
    stream: SequenceStream
    last_token_at: float | None = None
    """When its latest token was sampled, in seconds on the monotonic clock."""

    def end(self, finish: FinishReason, message: str | None = None) -> None:
        """Delivers the last step, with what was held back. A fault of its text is this sequence's alone."""
        try:
            step = self.processor.end(finish, message)
        except Exception:
            logger.exception("the end of a sequence could not be processed")
            step = self.processor.fail(message or FAULTY_TEXT)
        self.stream.deliver(step)
