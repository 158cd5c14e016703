"""The stub over HTTP, on loopback only: both endpoints, the pages, and a token service."""

from __future__ import annotations

import hmac
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs

from openspyre.ci.relay.message import InvalidMessage
from openspyre.ci.relay.stub.identity import Issuer
from openspyre.ci.relay.stub.pages import page
from openspyre.ci.relay.stub.relay import Answer, Relay
from openspyre.ci.relay.wire import AUDIENCE, CALLBACK_PATH, WEBHOOK_PATH

HOST = "127.0.0.1"
BODY_LIMIT = 6 * 1024 * 1024  # that the service in front of the relay takes
IDLE_SECONDS = 30.0  # without a byte, after which a caller is dropped
TOKEN_PATH, KEYS_PATH = "/token", "/.well-known/jwks"
_ENDPOINTS = (WEBHOOK_PATH, CALLBACK_PATH)


@dataclass(frozen=True, slots=True)
class Service:
    """What the server serves. `repository` is whose tokens it mints, for whom knows `password`."""

    relay: Relay
    issuer: Issuer
    repository: str
    password: str


@contextmanager
def served(service: Service, port: int = 0) -> Iterator[str]:
    """The address of a stub that runs until the block ends; port 0 takes a free one.

    Raises:
        InvalidMessage: another program has the port.
    """
    try:
        server = _Server((HOST, port), _Handler)
    except OSError as error:
        raise InvalidMessage(
            f"port {port} cannot be served on", why=error.strerror or "", hint="use --port 0"
        ) from None
    server.service = service
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a caller that hangs does not keep the stub
    service: Service

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that went away is no event; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    timeout = IDLE_SECONDS
    server: _Server

    def do_POST(self) -> None:
        path, _, _ = self.path.partition("?")
        if path not in _ENDPOINTS:
            return self._answer(Answer(404, {"detail": "Not found"}))
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            return self._answer(Answer(411, {"detail": "Length required"}))
        if len(length) > len(str(BODY_LIMIT)) or int(length) > BODY_LIMIT:
            return self._answer(Answer(413, {"detail": "Too large"}))
        body = self.rfile.read(int(length))
        headers = {name.lower(): value for name, value in self.headers.items()}
        relay = self.server.service.relay
        handle = relay.webhook if path == WEBHOOK_PATH else relay.callback
        self._answer(handle(headers, body))

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        match path:
            case path if path in _ENDPOINTS:
                self._answer(Answer(405, {"detail": "Method not allowed"}))
            case path if path == KEYS_PATH:
                self._answer(Answer(200, self.server.service.issuer.jwks()))
            case path if path == TOKEN_PATH:
                self._answer(self._token(parse_qs(query).get("audience", [AUDIENCE])[0]))
            case path:
                self._show(path)

    def __getattr__(self, name: str) -> Callable[[], None]:
        """The handler of any method of HTTP: the endpoints refuse all but POST alike."""
        if not name.startswith("do_"):
            raise AttributeError(name)
        return self.do_GET

    def _token(self, audience: str) -> Answer:
        service = self.server.service
        given = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {service.password}".encode()):
            return Answer(401, {"message": "not authorized"})
        return Answer(200, {"value": service.issuer.token(service.repository, aud=audience)})

    def _show(self, path: str) -> None:
        text = page(path, tuple(self.server.service.relay.hud.rows.values()))
        if text is None:
            return self._answer(Answer(404, {"detail": "Not found"}))
        self._send(200, "text/html; charset=utf-8", text.encode())

    def _answer(self, answer: Answer) -> None:
        self._send(answer.status, "application/json", json.dumps(answer.body).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: what callers send is not for a terminal."""
