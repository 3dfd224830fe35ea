"""From token ids to what the model said: pure, synchronous, one choice at a time."""
