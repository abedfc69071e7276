"""A certificate authority for development, and server certificates from it.

Clients trust ``FOLDER/ca.pem``. ``FOLDER/server.pem`` holds the server's key, its certificate and the authority's in
one file, so that it is replaced at once. Files with a key are readable by their owner only. `cryptography` takes 50 ms
and 9 MiB to import, so only users of this module import it.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from partibus.durable import replace_file
from partibus.errors import ArgumentError, UnusableFile

AUTHORITY: Final = "ca.pem"
AUTHORITY_KEY: Final = "ca-key.pem"
SERVER: Final = "server.pem"

_AUTHORITY_LIFE: Final = timedelta(days=3650)
# The longest life that browsers and phones accept:
_SERVER_LIFE: Final = timedelta(days=397)
RENEW_BEFORE: Final = timedelta(days=30)
_NEW_ONES: Final = f"Bring back what was there, or delete {AUTHORITY} and {AUTHORITY_KEY} for new ones."
_DNS_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*"
    r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
)
# For clients whose clock is behind:
_SKEW: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Facts:
    """The host names, addresses and validity of a certificate."""

    names: tuple[str, ...]
    begins: datetime
    ends: datetime


@dataclass(frozen=True, slots=True)
class Development:
    """The development certificates of a folder, and whether they were made now."""

    authority: Path
    server: Path
    facts: Facts
    new_authority: bool
    new_server: bool


def default_names(*more: str) -> tuple[str, ...]:
    """Return this machine's names as its own clients use them, and ``more``, without wildcard addresses."""
    names = ("localhost", socket.gethostname().lower(), "127.0.0.1", "::1", *more)
    return tuple(dict.fromkeys(name for name in names if name and name not in ("0.0.0.0", "::")))


def read_facts(path: Path) -> Facts:
    """Return the facts of the first certificate in a file. Raises `UnusableFile`."""
    try:
        certificate = x509.load_pem_x509_certificates(path.read_bytes())[0]
        return _facts(certificate)
    except (OSError, ValueError) as error:
        raise UnusableFile(str(path), _reason(error), "Give a file with a certificate in PEM.") from error


def ensure_development(folder: Path, names: Sequence[str], now: datetime, *, renew: bool = False) -> Development:
    """Return the certificate if it covers ``names`` and is valid for a while; otherwise make one.

    A valid authority is kept, so that clients need not get a new one. ``renew``: make the server's certificate in any
    case. Raises `UnusableFile`.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority_path, server_path = folder / AUTHORITY, folder / SERVER
        authority = _load_authority(folder, now)
        new_authority = authority is None
        if authority is None:
            authority = _make_authority(now)
            _write_private(folder / AUTHORITY_KEY, _key_pem(authority[1]))
            _write(authority_path, _pem(authority[0]), 0o644)
        known = None if new_authority or not server_path.exists() else _facts_of_ours(server_path, authority[0])
        good = known is not None and known.begins <= now < known.ends - RENEW_BEFORE
        if known is not None and good and not renew and {name.lower() for name in names} <= set(known.names):
            return Development(authority_path, server_path, known, new_authority=False, new_server=False)
        # Names that were asked for once stay.
        names = tuple(dict.fromkeys([*map(str.lower, names), *(known.names if known is not None else ())]))
        certificate, key = _make_server(names, authority, now)
        _write_private(server_path, _key_pem(key) + _pem(certificate) + _pem(authority[0]))
        return Development(authority_path, server_path, _facts(certificate), new_authority, new_server=True)
    except OSError as error:
        raise UnusableFile(str(folder), _reason(error), "Make it a directory that can be written.") from error


_Pair = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def _load_authority(folder: Path, now: datetime) -> _Pair | None:
    """Load the authority; None when there is none that outlives a server's certificate.

    A damaged one is not replaced, because no client would trust the new one.
    """
    certificate_path, key_path = folder / AUTHORITY, folder / AUTHORITY_KEY
    if not certificate_path.exists() and not key_path.exists():
        return None
    try:
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise UnusableFile(str(folder), f"{AUTHORITY}, {AUTHORITY_KEY}: {_reason(error)}", _NEW_ONES) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        raise UnusableFile(str(folder), f"{AUTHORITY} is not the certificate of the key in {AUTHORITY_KEY}", _NEW_ONES)
    return (certificate, key) if certificate.not_valid_after_utc > now + _SERVER_LIFE else None


def _facts_of_ours(path: Path, authority: x509.Certificate) -> Facts | None:
    """Return the facts of a server's certificate if this authority has signed it."""
    try:
        certificate = x509.load_pem_x509_certificates(path.read_bytes())[0]
        certificate.verify_directly_issued_by(authority)
        return _facts(certificate)
    except Exception:  # noqa: BLE001  a certificate with any fault is replaced
        return None


def _make_authority(now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"partibus development, {socket.gethostname()}"[:64])])
    builder = (
        _builder(name, name, key, now, _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    return builder.sign(key, hashes.SHA256()), key


def _make_server(names: Sequence[str], authority: _Pair, now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "partibus development server")])
    issuer = authority[1].public_key()
    builder = (
        _builder(subject, authority[0].subject, key, now, _SERVER_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        .add_extension(x509.SubjectAlternativeName(_general_names(names)), critical=False)
    )
    return builder.sign(authority[1], hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now - _SKEW + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_names(names: Iterable[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(_dns_name(name))
    return found


def _dns_name(name: str) -> x509.DNSName:
    if not _DNS_NAME.fullmatch(name):
        raise ArgumentError(
            "name", name, "a host name of letters, digits, - and dots, perhaps behind *., or an address"
        )
    return x509.DNSName(name.lower())


def _facts(certificate: x509.Certificate) -> Facts:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        shown = (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))
    except x509.ExtensionNotFound:
        shown = ()
    return Facts(shown, certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_private(path: Path, content: bytes) -> None:
    _write(path, content, 0o600)


def _write(path: Path, content: bytes, mode: int) -> None:
    replace_file(path, content, mode)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def now_utc() -> datetime:
    """Return the time of the machine's clock, with which clients compare."""
    return datetime.now(UTC)
