"""OpenAI's (legacy) Completions."""
