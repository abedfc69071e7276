"""An identity provider for tests and trials: keys made here, their public halves as a key set, and tokens signed with
them. Not part of the broker."""

import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from partibus.clock import SystemClock

ISSUER = "https://issuer.test/tenant"
AUDIENCE = "https://servicebus.azure.net"


class Issuer:
    """Signs tokens with RS256."""

    def __init__(self, key_id: str = "key-1", bits: int = 2_048) -> None:
        self.key_id = key_id
        self._bits = bits

    @cached_property
    def private(self) -> rsa.RSAPrivateKey:
        """The key, made when a test first needs it: collecting tests makes none."""
        return rsa.generate_private_key(public_exponent=65_537, key_size=self._bits)

    @property
    def public(self) -> dict[str, Any]:
        """The public half as a JSON web key."""
        key: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        return {**key, "kid": self.key_id, "use": "sig", "alg": "RS256"}

    def token(self, *, roles: Iterable[Any] = (), headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """Sign a token that is good for an hour, unless ``claims`` say something else; None leaves a claim out."""
        now_s = SystemClock().now_ms() // 1000
        said = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "the-app",
            "nbf": now_s - 5,
            "exp": now_s + 3_600,
            "roles": list(roles),
            **claims,
        }
        said = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(said, self.private, "RS256", {"kid": self.key_id, **(headers or {})})

    def write(self, folder: Path, **settings: Any) -> Path:
        """Write the key set and the file for ``partibus serve --identity``; returns the latter."""
        (folder / "keys.jwks").write_text(json.dumps({"keys": [self.public]}))
        path = folder / "identity.json"
        path.write_text(json.dumps({"issuer": ISSUER, "audiences": [AUDIENCE], "keys": "keys.jwks", **settings}))
        return path
