"""A whole stub, put together from a few names: for the command, and for tests."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openspyre.ci.relay.allowlist import read_allowlist
from openspyre.ci.relay.message import InvalidMessage
from openspyre.ci.relay.stub.clock import Clock, HostClock
from openspyre.ci.relay.stub.hud import Fault, Hud
from openspyre.ci.relay.stub.identity import Issuer, Verifier
from openspyre.ci.relay.stub.relay import Dispatch, NotDispatched, Relay
from openspyre.ci.relay.stub.server import KEYS_PATH, TOKEN_PATH, Service, served
from openspyre.ci.relay.stub.store import Store
from openspyre.ci.relay.wire import CALLBACK_PATH, DELIVERY, REPOSITORY, WEBHOOK_PATH

SWEEP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A stub that is ready to be served."""

    service: Service

    @contextmanager
    def served(self, port: int = 0) -> Iterator[Mapping[str, str]]:
        """Serves until the block ends; gives the addresses and secrets that a caller needs."""
        with served(self.service, port) as address:
            yield {
                "webhook": address + WEBHOOK_PATH,
                "webhook_secret": self.service.relay.secret.decode(),
                "callback": address + CALLBACK_PATH,
                "dashboard": address + "/crcr",
                "keys": address + KEYS_PATH,
                "ACTIONS_ID_TOKEN_REQUEST_URL": address + TOKEN_PATH + "?api-version=1",
                "ACTIONS_ID_TOKEN_REQUEST_TOKEN": self.service.password,
            }

    def sweep_for(self, seconds: float) -> None:
        """Ends what is stuck, once a minute, for so long."""
        clock = self.service.relay.clock
        end = clock.now() + seconds
        while (left := end - clock.now()) > 0:
            clock.sleep(min(left, SWEEP_SECONDS))
            self.service.relay.sweep()


def rehearsal(
    *,
    upstream: str,
    allowlist: str,
    repository: str,
    dispatches: Path,
    faults: Sequence[str] = (),
    clock: Clock | None = None,
) -> Rehearsal:
    """A stub with secrets of its own.

    Args:
        upstream: owner/name, whose hooks it forwards.
        allowlist: YAML.
        repository: owner/name, whose tokens it mints.
        dispatches: folder in which it leaves each dispatch, as DELIVERY.OWNER.NAME.json.
        faults: of the dashboard's next calls: 4xx, 5xx or hang.
        clock: the host's by default.

    Raises:
        InvalidMessage: the allowlist or a repository is none, or a fault is unknown.
    """
    clock = clock or HostClock()
    unknown = sorted(set(faults) - set(Fault))
    if unknown:
        raise InvalidMessage(f"there is no fault {unknown[0]!r}", hint=f"use {', '.join(Fault)}")
    for name in (upstream, repository):
        if not REPOSITORY.fullmatch(name):
            raise InvalidMessage(f"{name!r:.120} is no repository", hint="write it as owner/name")
    issuer = Issuer(clock)
    relay = Relay(
        upstream=upstream,
        secret=secrets.token_hex(16).encode(),
        allowlist=read_allowlist(allowlist),
        verifier=Verifier(clock, {issuer.name: issuer.jwks()}),
        hud=Hud(clock, [Fault(fault) for fault in faults]),
        store=Store(clock),
        clock=clock,
        dispatch=_into(dispatches),
    )
    return Rehearsal(Service(relay, issuer, repository, secrets.token_hex(16)))


def _into(folder: Path) -> Dispatch:
    def dispatch(repository: str, client_payload: bytes) -> None:
        delivery = _delivery(client_payload)
        name = f"{delivery}.{repository.replace('/', '.')}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f"{name}.part"  # so that what is killed leaves no half of a dispatch
            part.write_bytes(client_payload)
            part.replace(folder / name)
        except OSError as error:
            raise NotDispatched(error.strerror or "the folder cannot be written") from None

    return dispatch


def _delivery(client_payload: bytes) -> str:
    delivery = str(json.loads(client_payload)["delivery_id"])
    if not DELIVERY.fullmatch(delivery):
        raise NotDispatched("the delivery has no id that can name a file")
    return delivery
