"""TLS: the same server under https. Streams, refusals and departures are as without; who speaks no TLS harms nobody."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest
import trustme

from tests.running_server import RunningServer, poll_until
from tests.server.replies import COMPLETIONS, DONE, chunks_of, streamed, whole

LONG = {"prompt": [905], "ignore_eos": True, "max_tokens": 8_000, "stream": True}
SHORT = {"prompt": [905, 906], "max_tokens": 20}


@pytest.fixture(scope="module")
def trusted() -> tuple[trustme.CA, ssl.SSLContext]:
    """An authority made for these tests, and what a client needs to believe it."""
    authority = trustme.CA()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return authority, context


@pytest.fixture(scope="module")
def tls_flags(
    demo_model: Path, tmp_path_factory: pytest.TempPathFactory, trusted: tuple[trustme.CA, ssl.SSLContext]
) -> list[str]:
    """A server with a certificate for this machine; a step every 5 ms."""
    folder = tmp_path_factory.mktemp("certificate")
    certificate = trusted[0].issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    for part in certificate.cert_chain_pems:
        part.write_to_path(str(folder / "certificate.pem"), append=True)
    named = {"tls_key": folder / "key.pem", "tls_certificate": folder / "certificate.pem"}
    settings = [part for name, file in named.items() for part in ("--set", f"server.{name}={file}")]
    return ["--engine", "simulated", "--model", str(demo_model), "--set", "engine.step_interval_ms=5", *settings]


@pytest.fixture(scope="module")
def tls_server(
    tls_flags: list[str], tmp_path_factory: pytest.TempPathFactory, trusted: tuple[trustme.CA, ssl.SSLContext]
) -> Iterator[RunningServer]:
    with RunningServer(*tls_flags, log_folder=tmp_path_factory.mktemp("tls"), verify=trusted[1]) as server:
        yield server


@pytest.fixture
def https(tls_server: RunningServer, trusted: tuple[trustme.CA, ssl.SSLContext]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tls_server.url, verify=trusted[1], timeout=10) as client:
        yield client


def address_of(server: RunningServer) -> tuple[str, int]:
    url = httpx.URL(server.url)
    assert url.port is not None
    return url.host, url.port


def tracebacks(server: RunningServer) -> int:
    """How many the log holds: each test adds none, whatever another one did."""
    return server.log_file.read_text().count("Traceback")


def test_answers_are_the_same(tls_server: RunningServer, https: httpx.Client) -> None:
    """The ready line says https, and a stream and a whole answer arrive over it."""
    assert tls_server.url.startswith("https://")
    assert streamed(https, COMPLETIONS, SHORT) == whole(https, COMPLETIONS, SHORT)
    assert https.get("/ready").status_code == 200


def test_a_stream_trickles(https: httpx.Client) -> None:
    """Events come one by one, not at the end."""
    with https.stream("POST", COMPLETIONS, json=SHORT | {"stream": True, "ignore_eos": True}) as response:
        parts = list(response.iter_raw())
    assert len(parts) > 10
    assert len(chunks_of(b"".join(parts))) > 10


def test_a_client_that_leaves_frees_its_slot(
    tls_server: RunningServer, trusted: tuple[trustme.CA, ssl.SSLContext]
) -> None:
    """Closed in the middle of a stream: aborted, counted as the client's, and no token for nobody."""
    with ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(httpx.Client(base_url=tls_server.url, verify=trusted[1], timeout=10))
            response = stack.enter_context(client.stream("POST", COMPLETIONS, json=LONG))
            assert next(response.iter_raw())
    tls_server.wait_idle()
    ends = [record["end_state"] for record in tls_server.log_records(event="request")]
    assert ends.count("client_cancelled") >= 20


def test_a_refusal_arrives(tls_server: RunningServer, trusted: tuple[trustme.CA, ssl.SSLContext]) -> None:
    """Bytes that are no HTTP are answered under TLS as well, and the connection ends."""
    before = tracebacks(tls_server)
    with (
        closing(socket.create_connection(address_of(tls_server), timeout=10)) as plain,
        trusted[1].wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(b"GARBAGE\r\n\r\n")
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"invalid_http" in answer
    assert tracebacks(tls_server) == before


def test_who_speaks_no_tls_harms_nobody(tls_server: RunningServer, https: httpx.Client) -> None:
    """Plain HTTP and noise are closed without an answer, and the log holds no traceback."""
    before = tracebacks(tls_server)
    for spoken in (b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n", b"\x16\x03\x01\x00\x02\xff\xff", b""):
        with closing(socket.create_connection(address_of(tls_server), timeout=10)) as connection:
            connection.sendall(spoken)
            connection.shutdown(socket.SHUT_WR)
            assert b"200" not in _rest(connection)
    assert https.get("/health").status_code == 200
    assert tracebacks(tls_server) == before


def _rest(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65_536)
    except ConnectionResetError:
        return b""


def test_an_untrusted_certificate_is_the_clients_to_refuse(tls_server: RunningServer) -> None:
    """The certificate is the one that was configured: a client that does not trust its authority goes no further."""
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{tls_server.url}/health")


def test_a_drain_under_tls(tls_flags: list[str], tmp_path: Path, trusted: tuple[trustme.CA, ssl.SSLContext]) -> None:
    """Accepted streams end well; idle connections, and one that began no handshake, do not hold the process."""
    with (
        RunningServer(*tls_flags, log_folder=tmp_path, verify=trusted[1]) as server,
        closing(socket.create_connection(address_of(server))),
        httpx.Client(base_url=server.url, verify=trusted[1], timeout=10) as client,
        httpx.Client(base_url=server.url, verify=trusted[1], timeout=10) as idle,
    ):
        assert idle.get("/health").status_code == 200
        with client.stream("POST", COMPLETIONS, json=LONG | {"max_tokens": 100}) as response:
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            poll_until(lambda: idle.get("/ready").status_code == 503, 1, lambda: "still ready")
            *_, last = response.read().removesuffix(b"\n\n").split(b"\n\n")
        assert last == DONE
        assert server.process.wait(10) == 0
        assert time.monotonic() - began < 5
    assert "Traceback" not in server.log_file.read_text()
