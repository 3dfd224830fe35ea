"""The requests that can be named by a response's id: those being answered now, and for a while those that ended.

Never one key's request to another key: for that one it does not exist.
"""

from __future__ import annotations

from typing import Any

from server.account import Account
from server.answer import Answer
from server.auth import ApiKey
from server.usage import UsageRecords, request_id_of
from server.wire.errors import WireError

SHOWN_CHARACTERS = 64
"""Of an id that a client made up, in an error."""


class KnownRequests:
    """What `/v1/usage` and `/v1/streams` ask."""

    def __init__(self, ended: UsageRecords) -> None:
        self._ended = ended
        self._open: dict[str, Answer] = {}

    def opened(self, answer: Answer) -> None:
        self._open[answer.account.request_id] = answer

    def closed(self, account: Account, record: dict[str, Any]) -> Answer | None:
        """Keeps the complete account's record; returns the answer, where there was one."""
        self._ended.add(account.request_id, account.key_name, record)
        return self._open.pop(account.request_id, None)

    def blocked(self) -> int:
        """Answers whose client does not take what there is."""
        return sum(answer.blocked for answer in self._open.values())

    def usage(self, response_id: str, key: ApiKey | None) -> dict[str, Any]:
        """The account's record of an open or an ended request. 404 where this key knows none of that id."""
        answer = self._answer(response_id, key)
        if answer is not None:
            return answer.measured().as_record()
        record = self._ended.find(request_id_of(response_id), name_of(key))
        if record is None:
            shown = response_id[:SHOWN_CHARACTERS]
            message = f"no request {shown!r} is known to this key: it never was, or it ended too long ago"
            raise WireError(404, message, code="response_not_found")
        return record

    def open_records(self, key: ApiKey | None) -> list[dict[str, Any]]:
        """The records so far of all open requests of this key."""
        accounts = [answer.account for answer in self._open.values()]
        mine = [account.request_id for account in accounts if account.key_name == name_of(key)]
        return [self.usage(request_id, key) for request_id in mine]

    def cancel(self, response_id: str, key: ApiKey | None) -> dict[str, Any]:
        """Ends a request's generation; its connected client still gets what there is, and a good end. Idempotent."""
        answer = self._answer(response_id, key)
        cancelled = answer is not None and answer.cancel()
        usage = self.usage(response_id, key)
        return {"id": response_id, "object": "stream.cancel", "cancelled": cancelled, "usage": usage}

    def _answer(self, response_id: str, key: ApiKey | None) -> Answer | None:
        answer = self._open.get(request_id_of(response_id))
        return answer if answer is not None and answer.account.key_name == name_of(key) else None


def name_of(key: ApiKey | None) -> str | None:
    return None if key is None else key.name
