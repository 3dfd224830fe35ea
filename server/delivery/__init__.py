"""The client's connection: the only place that calls ASGI's `receive` and `send`.

Never an encoder and never an engine: bytes go out, a disconnect comes back. Waiting for the client is bounded.
"""

from server.delivery.client_socket import CONNECTION, PIECE_BYTES, ClientSocket, connection_of
from server.delivery.departures import ClientGoneError, SlowClientError, asking_on, run_while_connected
from server.delivery.identity import RequestIdentity, client_request_id, identity_headers
from server.delivery.request_body import BodyLimits, read_body

__all__ = [
    "CONNECTION",
    "PIECE_BYTES",
    "BodyLimits",
    "ClientGoneError",
    "ClientSocket",
    "RequestIdentity",
    "SlowClientError",
    "asking_on",
    "client_request_id",
    "connection_of",
    "identity_headers",
    "read_body",
    "run_while_connected",
]
