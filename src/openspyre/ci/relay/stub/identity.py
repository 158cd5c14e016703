"""Tokens: a local issuer with its RSA key, and the check that the relay makes of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.types import Options

from openspyre.ci.relay.stub.clock import Clock
from openspyre.ci.relay.wire import AUDIENCE, BUILDKITE_ISSUER, GITHUB_ISSUER, TOKEN_SECONDS


class Refused(Exception):
    """A token that proves no identity. `status` is what the relay answers."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass(frozen=True, slots=True)
class Issuer:
    """Mints tokens as a CI's token service does; `name` stands in them as issuer."""

    clock: Clock
    name: str = GITHUB_ISSUER
    key: rsa.RSAPrivateKey = field(default_factory=_new_key)
    key_id: str = "local"

    def token(self, repository: str, /, **claims: object) -> str:
        """A token for a repository; `claims` replace what it usually says, None leaves it out."""
        now = int(self.clock.now())
        said: dict[str, object] = {
            "iss": self.name,
            "aud": AUDIENCE,
            "sub": f"repo:{repository}:ref:refs/heads/main",
            "repository": repository,
            "iat": now,
            "nbf": now,
            "exp": now + int(TOKEN_SECONDS),
            **claims,
        }
        kept = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(kept, self.key, algorithm="RS256", headers={"kid": self.key_id})

    def jwks(self) -> dict[str, Any]:
        """The public key, as the issuer publishes it."""
        public: dict[str, Any] = json.loads(
            jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key())
        )
        return {"keys": [{**public, "kid": self.key_id, "alg": "RS256", "use": "sig"}]}


@dataclass(frozen=True, slots=True)
class Verifier:
    """Tells whose token it is.

    Attributes:
        keys: what each issuer publishes (JWKS), by name.
        pipelines: organization_id/pipeline_id of Buildkite -> repository.
        required: claims that a token of a repository must also have.
    """

    clock: Clock
    keys: Mapping[str, Mapping[str, Any]]
    pipelines: Mapping[str, str] = field(default_factory=dict)
    required: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def repository(self, authorization: str) -> str:
        """The repository that a header proves.

        Raises:
            Refused: 401 where it proves nothing, 403 for a pipeline without a repository.
        """
        scheme, _, rest = authorization.partition(" ")
        token = rest.strip() if scheme.lower() == "bearer" else authorization.strip()
        if not token:
            raise Refused(401, "Missing authorization token")
        claims = self._claims(token)
        repository = self._identity(claims)
        for name, value in self.required.get(repository, {}).items():
            if claims.get(name) != value:
                raise Refused(401, f"claim {name} is not as required")
        return repository

    def _claims(self, token: str) -> dict[str, Any]:
        try:
            issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
            published = self.keys.get(issuer) if isinstance(issuer, str) else None
            if published is None:
                raise Refused(401, "Unsupported OIDC issuer")
            wanted = jwt.get_unverified_header(token).get("kid")
            keys = jwt.PyJWKSet.from_dict(dict(published)).keys
            key = next((key for key in keys if key.key_id == wanted), None)
            if key is None:
                raise Refused(401, "Unknown signing key")
            # The times are checked against our own clock, below.
            off: Options = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
            claims: dict[str, Any] = jwt.decode(
                token, key, algorithms=["RS256"], audience=AUDIENCE, issuer=issuer, options=off
            )
        except jwt.PyJWTError:
            raise Refused(401, "Invalid authorization token") from None
        if not self._timely(claims):
            raise Refused(401, "Invalid authorization token")
        return claims

    def _timely(self, claims: Mapping[str, Any]) -> bool:
        now = self.clock.now()
        moments = (claims.get("exp"), claims.get("nbf", 0), claims.get("iat", 0))
        if not all(type(moment) in (int, float) for moment in moments):
            return False
        expires, *begins = map(float, moments)
        return expires > now and all(begin <= now for begin in begins)

    def _identity(self, claims: Mapping[str, Any]) -> str:
        if claims["iss"] != BUILDKITE_ISSUER:
            repository = claims.get("repository")
            if not isinstance(repository, str) or not repository:
                raise Refused(401, "GitHub OIDC token missing 'repository' claim")
            return repository
        organization, pipeline = claims.get("organization_id"), claims.get("pipeline_id")
        if not organization or not pipeline:
            raise Refused(401, "Buildkite OIDC token missing its pipeline")
        mapped = self.pipelines.get(f"{organization}/{pipeline}")
        if mapped is None:
            raise Refused(403, "Buildkite pipeline is not registered")
        return mapped
