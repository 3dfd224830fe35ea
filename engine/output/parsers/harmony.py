"""The channels of gpt-oss (harmony): messages of a header and a body, in two stages as for any other model.

Never token ids: the special tokens must be shown in the text. `openai-harmony` fetches its vocabulary from the network,
so it can't serve a server that needs none.

The first stage makes reasoning of `analysis` and content of all other channels, without their headers; a message to a
function passes whole, for the second stage to make a call of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from engine.detokenizer.stop_automaton import compile_stops
from engine.output.parsers.named_calls import Header, read_arguments
from engine.output.parsers.parser import Grammar
from engine.output.parsers.parts import ContentText, ReasoningText
from engine.output.parsers.scanner import Scanner, Wait

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
CONSTRAIN: Final = "<|constrain|>"
MESSAGE: Final = "<|message|>"
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
MARKERS: Final = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
_BODY_ENDS: Final = compile_stops((*ENDS, START, CHANNEL), False)
_HEADER_STARTS: Final = compile_stops((START, CHANNEL), False)
_HEADER: Final = re.compile(r"[^<\n]*+")
_FUNCTIONS: Final = "functions."
_RECIPIENT_FIRST: Final = " to="
"""How an answer begins whose header the prompt began, where the recipient stands before the channel."""
_RECIPIENT: Final = re.compile(r"\bto=(\S+?)(?=<|\s|$)")


def read_header(scan: Scanner) -> Wait[str]:
    """Reads on to the body, after a header's first marker; "" where it is no header. All of it is undecided."""
    while True:
        yield from scan.run(_HEADER)
        found = yield from scan.read(CHANNEL, CONSTRAIN, MESSAGE)
        if found == MESSAGE:
            return scan.text[: scan.at]
        if not found:
            return ""


def reasoning_grammar(body: type[ContentText | ReasoningText] | None) -> Grammar:
    """`body`: what the message is that the prompt has begun, if it ends in a header."""

    def read(scan: Scanner) -> Wait[None]:
        if body is not None:
            yield from _read_body(scan, body)
        elif (yield from scan.ahead(_RECIPIENT_FIRST)):
            yield from _read_message(scan)
        while (yield from scan.until(_HEADER_STARTS, ContentText)):
            yield from _read_message(scan)

    return read


def tool_grammar(_: Collection[str]) -> Grammar:
    """Makes calls of the messages whose recipient is a function."""

    def read(scan: Scanner) -> Wait[None]:
        if (yield from scan.ahead(_RECIPIENT_FIRST)):
            yield from _read_call(scan)
        while (yield from scan.content_until(_HEADER_STARTS)):
            yield from _read_call(scan)

    return read


def _read_message(scan: Scanner) -> Wait[None]:
    header = yield from read_header(scan)
    if not header or _RECIPIENT.search(header):
        scan.as_content()
    else:
        scan.drop()
        yield from _read_body(scan, ReasoningText if _channel(header) == "analysis" else ContentText)


def _read_body(scan: Scanner, body: type[ContentText | ReasoningText]) -> Wait[None]:
    """A message that the next one's header ends leaves that header to be read."""
    end = yield from scan.until(_BODY_ENDS, body)
    if end in ENDS:
        scan.drop()
    else:
        scan.at = 0


def _read_call(scan: Scanner) -> Wait[None]:
    header = yield from read_header(scan)
    recipient = _RECIPIENT.search(header)
    name = recipient[1].removeprefix(_FUNCTIONS) if recipient and recipient[1].startswith(_FUNCTIONS) else ""
    if name:
        yield from read_arguments(scan, Header(name), ENDS)
        yield from scan.markup(*ENDS)
    else:
        scan.as_content()


def _channel(header: str) -> str:
    words = header.partition(CHANNEL)[2].partition("<")[0].split()
    return words[0] if words else ""
