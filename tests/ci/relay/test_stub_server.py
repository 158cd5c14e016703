"""The stub over HTTP: paths, methods, sizes, pages, tokens, and callers that misbehave."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import httpx2
import jwt
import pytest

from openspyre.ci.relay.message import InvalidMessage
from openspyre.ci.relay.stub.pages import colour, page
from openspyre.ci.relay.stub.server import BODY_LIMIT, Service, served
from openspyre.ci.relay.wire import AUDIENCE, CALLBACK_PATH, WEBHOOK_PATH
from tests.ci.relay.world import (
    TWO,
    World,
    callback,
    hook_headers,
    pull_request,
    world,
)


@pytest.fixture
def made() -> World:
    return world()


@pytest.fixture
def client(made: World) -> Iterator[httpx2.Client]:
    service = Service(made.relay, made.issuer, TWO, "password")
    with served(service) as address, httpx2.Client(base_url=address, timeout=20) as client:
        assert urlsplit(address).hostname == "127.0.0.1"
        yield client


def said(client: httpx2.Client, head: str) -> bytes:
    """The first line that answers a head which no client would send."""
    address = client.base_url
    with socket.create_connection((address.host, address.port), timeout=20) as raw:
        raw.sendall(head.encode())
        return raw.recv(100)


@pytest.mark.parametrize("path", [WEBHOOK_PATH, CALLBACK_PATH])
@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "HEAD", "OPTIONS", "ABC"])
def test_another_method_is_refused(client: httpx2.Client, path: str, method: str) -> None:
    assert client.request(method, path).status_code == 405


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", path) for path in ("/", "/github/webhook/", "/github/callback/x", "/crcr")),
        *((method, "http://[") for method in ("GET", "POST")),
    ],
)
def test_another_path_is_not_found(client: httpx2.Client, method: str, path: str) -> None:
    assert b" 404 " in said(client, f"{method} {path} HTTP/1.1\r\nContent-Length: 0\r\n\r\n")


def test_a_dispatch_and_its_callbacks(client: httpx2.Client, made: World) -> None:
    body = json.dumps(pull_request()).encode()
    headers = hook_headers(body, "pull_request")
    assert client.post(WEBHOOK_PATH, content=body, headers=headers).status_code == 200
    given = client.get(f"/token?audience={AUDIENCE}", headers={"Authorization": "Bearer password"})
    authorized = {"Authorization": f"Bearer {given.json()['value']}"}
    for status in ("in_progress", "completed"):
        answer = client.post(CALLBACK_PATH, json=callback(status), headers=authorized)
        assert (answer.status_code, answer.json()) == (200, {"ok": True, "status": status})
    assert TWO in client.get("/crcr").text


def test_a_token_is_for_who_knows_the_password(client: httpx2.Client, made: World) -> None:
    assert client.get("/token").status_code == 401
    wrong = {"Authorization": "Bearer passwort"}
    assert client.get("/token", headers=wrong).status_code == 401
    right = {"Authorization": "Bearer password"}
    token = client.get("/token?audience=other", headers=right).json()["value"]
    keys = jwt.PyJWKSet.from_dict(client.get("/.well-known/jwks").json())
    unchecked = dict.fromkeys(("verify_aud", "verify_iat", "verify_nbf", "verify_exp"), False)
    claims = jwt.decode(token, keys["local"], algorithms=["RS256"], options=unchecked)
    assert (claims["aud"], claims["repository"]) == ("other", TWO)
    assert claims["exp"] - claims["iat"] == 300


@pytest.mark.parametrize("length", [str(BODY_LIMIT + 1), "9" * 5000])
def test_a_body_over_the_limit_is_refused_before_it_is_sent(
    client: httpx2.Client, length: str
) -> None:
    head = f"POST {CALLBACK_PATH} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n"
    assert b" 413 " in said(client, head)


@pytest.mark.parametrize("length", ["", "Content-Length: -1\r\n", "Content-Length: x\r\n"])
def test_a_body_has_a_length(client: httpx2.Client, length: str) -> None:
    assert b" 411 " in said(client, f"POST {CALLBACK_PATH} HTTP/1.1\r\n{length}\r\n")


def test_a_port_that_is_taken_is_told(client: httpx2.Client, made: World) -> None:
    service = Service(made.relay, made.issuer, TWO, "password")
    with pytest.raises(InvalidMessage, match="cannot be served on"):
        served(service, client.base_url.port or 0).__enter__()


def test_callers_that_hang_or_go_away_keep_nobody_waiting(client: httpx2.Client) -> None:
    address = client.base_url
    raws = [socket.create_connection((address.host, address.port)) for _ in range(5)]
    for raw in raws:
        raw.sendall(f"POST {CALLBACK_PATH} HTTP/1.1\r\nContent-Length: 5\r\n\r\nab".encode())
    raws.pop().close()
    assert client.get("/crcr").status_code == 200
    for raw in raws:
        raw.close()


def test_callbacks_at_the_same_time_take_one_step(client: httpx2.Client, made: World) -> None:
    made.hook(pull_request())
    headers = {"Authorization": f"Bearer {made.issuer.token(TWO)}"}
    statuses: list[int] = []

    def call() -> None:
        answer = httpx2.post(
            client.base_url.join(CALLBACK_PATH), json=callback(), headers=headers, timeout=20
        )
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200, *[400] * 5]


def test_the_pages_show_what_was_received(client: httpx2.Client, made: World) -> None:
    made.hook(pull_request())
    made.clock.time += 3
    made.call(callback())
    made.clock.time += 61
    counts = {"passed": 9, "failed": 1, "skipped": 2}
    made.call(callback("completed", conclusion="failure", test_results=counts))
    everybody = client.get("/crcr").text
    assert f'href="/crcr/{TWO}"' in everybody
    assert '<span class="red">0 of 1</span>' in everybody
    own = client.get(f"/crcr/{TWO}").text
    for text in ("upstream / leg", "failure", "passed 9, failed 1", "total 12", "3.0 s", "61.0 s"):
        assert text in own
    metrics = client.get("/crcr/metrics").text
    assert "<td>3.0 s</td><td>61.0 s</td><td>0.0%</td>" in metrics
    assert client.get("/crcr/no/body").status_code == 404
    assert client.get("/crcr/metrics/x/y").status_code == 404


def test_a_page_shows_hostile_text_as_text(client: httpx2.Client, made: World) -> None:
    made.hook(pull_request())
    script = "<script>alert(1)</script>"
    made.call(callback(name=script, job_name='"><img src=x>', url="javascript:alert(1)"))
    answer = client.get(f"/crcr/{TWO}")
    assert "&lt;script&gt;" in answer.text
    assert "<script" not in answer.text
    assert "<img" not in answer.text
    assert "javascript:" not in answer.text
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("share", "name"),
    [(1.0, "green"), (0.95, "green"), (0.949, "yellow"), (0.8, "yellow"), (0.799, "red")],
)
def test_chips_have_the_published_colours(share: float, name: str) -> None:
    assert colour(share) == name


def test_a_page_without_rows_says_so() -> None:
    assert "Nothing was reported yet" in str(page("/crcr", ()))


def test_a_repository_that_has_ended_nothing_has_no_chip(made: World) -> None:
    made.hook(pull_request())
    made.call(callback())
    rows = tuple(made.hud.rows.values())
    assert "none yet" in str(page("/crcr", rows))
    stuck = (replace(rows[0], status="completed", conclusion="timed_out"),)
    assert "100.0%" in str(page("/crcr/metrics", stuck))
