"""Certificates of a test's own authority, and a proxy that opens tunnels, for https on 127.0.0.1."""

from __future__ import annotations

import contextlib
import ipaddress
import select
import socket
import ssl
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NAMES = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Authority:
    """Issues certificates; ``file`` is what a client trusts, SSL_CERT_FILE."""

    file: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, folder: Path, name: str = "an authority of the tests") -> Authority:
        """One whose certificate is written into ``folder``."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = dict.fromkeys(
            (
                "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
                "encipher_only", "decipher_only",
            ),
            False,
        )  # fmt: skip
        certificate = (
            _builder(subject, subject, key, timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        file = folder / f"{name.replace(' ', '-')}.pem"
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cls(file, certificate, key)

    def server(self, *names: str, ends: timedelta = timedelta(days=1)) -> ssl.SSLContext:
        """What a server needs to speak https as one of ``names`` until ``ends`` from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        hosts = [
            x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name) for name in names
        ]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        certificate = (
            _builder(subject, self.certificate.subject, key, ends)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        file = self.file.with_name(f"{x509.random_serial_number():x}.pem")
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file.write_bytes(key.private_bytes(*form) + certificate.public_bytes(serialization.Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, ends: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


class Tunnels:
    """A proxy that connects to whatever a CONNECT names. ``asked``: the head of each request to it."""

    def __init__(self, password: str = "") -> None:
        self.asked: list[str] = []
        self._password = password
        self._socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def __enter__(self) -> Tunnels:
        return self

    def __exit__(self, *problem: object) -> None:
        self._socket.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(65536) or b"\r\n\r\n"
            self.asked.append(head.decode("latin-1"))
            method, place = head.decode("latin-1").split(" ")[:2]
            if method != "CONNECT" or self._password not in self.asked[-1]:
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                return
            host, _, port = place.rpartition(":")
            with socket.create_connection((host, int(port))) as other:
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                pairs = {connection: other, other: connection}
                while True:
                    for one in select.select(list(pairs), [], [])[0]:
                        data = one.recv(65536)
                        if not data:
                            return
                        pairs[one].sendall(data)
