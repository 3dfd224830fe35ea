"""The detokenizer: token ids in, exactly the right text out, at every cut; and the stop matcher that reads this text.

Never any I/O but reading a tokenizer file, never a clock, never a model.
"""

from engine.detokenizer.incremental import IncrementalDetokenizer
from engine.detokenizer.stop import StopMatcher, StopOutcome
from engine.detokenizer.vocabulary import Vocabulary

__all__ = ["IncrementalDetokenizer", "StopMatcher", "StopOutcome", "Vocabulary"]
