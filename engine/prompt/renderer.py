"""From a conversation to the prompt's token ids, through the model's own chat template; and from raw text to ids.

Never lets the client's text become a control token of a chat prompt; never raises anything but `InvalidRequestError`.

A prompt whose client texts spell no control token is encoded exactly as transformers' `apply_chat_template` encodes it.
Whether they do is seen by running the template once more, on guarded texts (see control_tokens): what spells a control
token in that rendering is the template's own, and where the two disagree the ids are made from the guarded one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from engine.errors import ContextLengthError, InvalidRequestError
from engine.prompt.control_tokens import ControlTokens, absent_characters, without
from engine.prompt.conversation import Conversation
from engine.prompt.scaffold_encoder import ScaffoldEncoder
from engine.prompt.template import ChatTemplate
from engine.prompt.template_input import MessageShape, Rewrite, probe, takes_system_turns, template_variables, texts_in
from engine.tokenizer import Tokenizer, refuse_lone_surrogates

_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})
_ENCODERS_KEPT = 4
"""Scaffold encoders kept, one a mark; only a text that holds private-use characters needs a second."""


class PromptRenderer:
    """A tokenizer and a chat template (None: the model has none). Keeps nothing of a conversation.

    `now` tells templates the date. A tokenizer's own second template, for conversations with tools, is used for those;
    not if `template` is another than the tokenizer's.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str | None,
        now: Callable[[], datetime],
        max_prompt_tokens: int | None = None,
    ) -> None:
        """`max_prompt_tokens`: a text that can't be so few tokens is refused before it is tokenized; None: no bound."""
        self._tokenizer = tokenizer
        self._max_characters = None if max_prompt_tokens is None else max_prompt_tokens * tokenizer.longest_token
        sources = {} if template is None else {"default": template}
        if template is not None and template == tokenizer.chat_template and "tool_use" in tokenizer.chat_templates:
            sources["tool_use"] = tokenizer.chat_templates["tool_use"]
        templates = {name: ChatTemplate(source, now) for name, source in sources.items()}
        self._templates = {name: (compiled, probe(compiled)) for name, compiled in templates.items()}
        self.takes_system_turns = "default" not in templates or takes_system_turns(templates["default"])
        """The default template shows the model a system prompt."""
        self._control = ControlTokens(tokenizer, tuple(sources.values()))
        self._own_text = "\n".join([*sources.values(), *(token.content for token in tokenizer.added_tokens)])
        self._encoders: dict[str, ScaffoldEncoder] = {}

    def encode_text(self, text: str) -> list[int]:
        """Ids of a raw prompt, BOS added where the model has one. Control tokens that it spells are control tokens."""
        refuse_lone_surrogates(text, "prompt")
        self._refuse_hopeless(text, "prompt")
        return self._tokenizer.encode(text)

    def reads(self, variable: str) -> bool:
        """A variable of this name makes a difference to the chat template: its text and comments do not count."""
        return any(variable in template.variables for template, _ in self._templates.values())

    def shown_text(self, token_ids: Sequence[int]) -> str:
        """What these ids of a prompt look like, special tokens shown."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def encode_piece(self, text: str) -> list[int]:
        """Ids of a piece of an answer's text: nothing is put before it."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def render(self, conversation: Conversation) -> str:
        """The prompt's text, the client's texts as they are. `InvalidRequestError` names the field at fault."""
        variables = self._variables(conversation, lambda text, _: text)
        return self._run(conversation, variables, self._private_characters(variables)[0])

    def encode(self, conversation: Conversation) -> list[int]:
        """The prompt's token ids. `InvalidRequestError` names the field at fault."""
        variables = self._variables(conversation, lambda text, _: text)
        tail, guard, mark = self._private_characters(variables)
        text = self._run(conversation, variables, tail)
        self._refuse_hopeless(text, "messages")
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        guarded = self._variables(conversation, lambda text, role: self._control.guard(text, role, guard))
        if guarded == variables and not self._control.any_normalized:
            return token_ids
        scaffold = self._run(conversation, guarded, tail)
        if without(scaffold, guard) == text and self._control.agree(scaffold, text, token_ids):
            return token_ids
        return self._encoder(mark).encode(without(self._control.mark(scaffold, mark), guard))

    def _variables(self, conversation: Conversation, rewrite: Rewrite) -> dict[str, Any]:
        template, shape = self._template_for(conversation)
        reserved = _OWN_VARIABLES | template.reserved_names | self._tokenizer.named_tokens.keys()
        for name in conversation.chat_template_kwargs:
            if name in reserved:
                raise InvalidRequestError(f"chat_template_kwargs can't set {name!r}", param="chat_template_kwargs")
        return {**self._tokenizer.named_tokens, **template_variables(conversation, shape, rewrite)}

    def _template_for(self, conversation: Conversation) -> tuple[ChatTemplate, MessageShape]:
        name = "tool_use" if conversation.tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            message = "this model has no chat template: send a prompt to /v1/completions instead"
            raise InvalidRequestError(message, param="messages")
        return self._templates[name]

    def _private_characters(self, variables: Mapping[str, Any]) -> tuple[str, ...]:
        """Three characters that no text holds: the tail of a continued message, the guard, and control tokens' mark."""
        for name, value in variables.items():
            for text in texts_in(value):
                refuse_lone_surrogates(text, name if name in _OWN_VARIABLES else "chat_template_kwargs")
        return absent_characters([*texts_in(variables), self._own_text], 3)

    def _run(self, conversation: Conversation, variables: dict[str, Any], tail: str) -> str:
        """The template's output; with `continue_final_message` only up to the end of the final message's content."""
        template, _ = self._template_for(conversation)
        if conversation.continue_final_message:
            *earlier, final = variables["messages"]
            variables = {**variables, "messages": [*earlier, {**final, "content": f"{final['content']}{tail} "}]}
        try:
            text = template.render(variables)
        except InvalidRequestError as error:
            param = _at_fault(template, variables, conversation)
            raise InvalidRequestError(error.message, param=param) from error
        return _cut_at(text, tail) if conversation.continue_final_message else text

    def _refuse_hopeless(self, text: str, param: str) -> None:
        """What is too long however it is tokenized is not tokenized, which would take seconds and gigabytes."""
        if self._max_characters is not None and len(text) > self._max_characters:
            message = f"the prompt has {len(text)} characters, which can't fit the model's context"
            raise ContextLengthError(message, param=param)

    def _encoder(self, mark: str) -> ScaffoldEncoder:
        encoder = self._encoders.get(mark)  # threads come here too: what is looked up once may be gone the next time
        if encoder is None:
            encoder = ScaffoldEncoder(self._tokenizer, self._control, mark)
            if len(self._encoders) < _ENCODERS_KEPT:
                self._encoders[mark] = encoder
        return encoder


def _cut_at(text: str, tail: str) -> str:
    """What stands before the tail. Where the space behind it is gone, the template strips content: so does this."""
    before, found, after = text.rpartition(tail)
    if not found:
        message = "the model's chat template leaves out the final message's content, so it can't be continued"
        raise InvalidRequestError(message, param="continue_final_message")
    return before if after.startswith(" ") else before.rstrip()


def _at_fault(template: ChatTemplate, variables: Mapping[str, Any], conversation: Conversation) -> str:
    """Which field a failed rendering is owed to: the one without which it succeeds, else the messages."""
    given = conversation.chat_template_kwargs
    fewer = {name: value for name, value in variables.items() if name not in given}
    attempts = {"chat_template_kwargs": {"documents": None, **fewer}, "tools": {**variables, "tools": None}}
    present = {"chat_template_kwargs": bool(given), "tools": conversation.tools is not None}
    return next((param for param, less in attempts.items() if present[param] and _succeeds(template, less)), "messages")


def _succeeds(template: ChatTemplate, variables: Mapping[str, Any]) -> bool:
    try:
        template.render(variables)
    except InvalidRequestError:
        return False
    return True
