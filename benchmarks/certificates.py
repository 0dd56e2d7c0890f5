"""Certificates for a day, made where they are needed: for measuring with TLS, and for tests."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """Files in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Vouches for whoever it is asked to."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}.crt"
        self.file.write_bytes(certificate.public_bytes(Encoding.PEM))

    def vouch(self, name: str, address: str = "127.0.0.1", roles: tuple[str, ...] = ()) -> Pair:
        """A certificate of that name, for servers at that address and for clients; on links, for
        these roles alone."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(name), x509.IPAddress(ip_address(address))]
        names += [x509.DNSName(f"{name}-{role}") for role in roles]
        certificate = (
            _builder(_named(name), self._name, key)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = "-".join((name, *roles))
        pair = Pair(self.folder / f"{stem}.crt", self.folder / f"{stem}.key")
        pair.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        form = PrivateFormat.PKCS8
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
        return pair


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
    )
