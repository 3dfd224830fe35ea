"""What an answer may know of its client's connection. Never how it is known: that is the connection's own.

Every server's connections can be asked; those that tell nothing are as this class stands.
"""

from __future__ import annotations

from collections.abc import Callable


class ClientConnection:
    """What an answer may know of the connection below it; as it stands, of a server that tells nothing.

    ASGI's `send` returns in silence when nobody is there: `lost` tells. An answer sees its own connection alone, which
    may have carried others before: its byte counts begin with the connection.
    """

    lost = False
    stalled = False
    """Lost since the client's side took nothing for longer than it may."""
    shut = False
    """Lost since the server ends and could not wait for the client any longer."""
    closed_well = False
    """Lost since an answer ended it, all of which the kernel has taken; how much of it arrived is not told then."""
    watches_stalls = False
    """Whether a client that takes nothing for too long is cut below us; else whoever sends must bound its waiting."""
    on_half_close: Callable[[], None] | None = None
    """Called once when the client sends no more: it left, or it still reads. Writing something at once tells which.

    Where the running answer has not set it, such a client is lost.
    """

    @property
    def congested(self) -> bool:
        """Whether a send may have to wait."""
        return True

    @property
    def given_bytes(self) -> int:
        """Bytes on the wire so far, HTTP's own included, sent or waiting."""
        return 0

    @property
    def taken_bytes(self) -> int | None:
        """A figure that grows whenever the client's side takes something; None where that is not told."""
        return None

    @property
    def acknowledged_bytes(self) -> int | None:
        """How many of `given_bytes` the client's kernel has, or had when the connection was lost; None: not told."""
        return None

    def write_part(self, data: bytes) -> bool:
        """Writes a part of the body of the answer that is being given, past ASGI's messages; False: nothing was done.

        Where it is done the client gets, byte for byte, what it would get by way of the messages.
        """
        return False

    def abort(self) -> None:
        """Cuts it at once, with what was not sent yet. A server that tells nothing closes what was left unfinished."""
