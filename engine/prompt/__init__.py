"""Chat template to token ids: a conversation's records, and what renders and encodes them.

Never any I/O, clock or backend: a renderer is given its tokenizer and the time.
"""

from engine.prompt.conversation import Conversation, Message, Role, ToolCall
from engine.prompt.renderer import PromptRenderer

__all__ = ["Conversation", "Message", "PromptRenderer", "Role", "ToolCall"]
