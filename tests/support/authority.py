"""A certificate authority for tests, and the files that it makes."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from api.web.transports import Certificates, TlsFiles

FOR_CLIENTS, FOR_SERVERS = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
_NUMBERS = count()
NAMES = ("127.0.0.1", "localhost", "::1")


@dataclass(slots=True)
class Authority:
    """One that signs, and its files in a folder."""

    folder: Path
    ca: trustme.CA = field(default_factory=trustme.CA)

    @property
    def ca_file(self) -> Path:
        """What trusts it."""
        path = self.folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(path))
        return path

    def issue(self, *names: str, at: str = "server", not_after: datetime | None = None) -> TlsFiles:
        """A new pair, in the files of this name, which are replaced."""
        made = self.ca.issue_cert(*names or NAMES, not_after=not_after)
        files = TlsFiles(self.folder / f"{at}.pem", self.folder / f"{at}.key")
        files.cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        files.key.write_bytes(made.private_key_pem.bytes())
        return files

    def issue_client(
        self, *names: x509.GeneralName, life_s: float = 3_600, purpose: x509.ObjectIdentifier = FOR_CLIENTS
    ) -> TlsFiles:
        """A pair with just these names, beside its subject's."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.load_pem_x509_certificate(self.ca.cert_pem.bytes())
        signer = serialization.load_pem_private_key(self.ca.private_key_pem.bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shop.example")]))
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(seconds=life_s))
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        )
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        files = TlsFiles(self.folder / f"client-{next(_NUMBERS)}.pem", self.folder / f"client-{next(_NUMBERS)}.key")
        files.cert.write_bytes(made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8
        files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        return files

    def certificates(
        self, *, is_client_needed: bool | None = None, principals: Mapping[str, str] | None = None
    ) -> Certificates:
        """A server's. `is_client_needed`: None asks clients for nothing."""
        files = self.issue()
        if is_client_needed is None:
            return Certificates(files)
        asking = TlsFiles(files.cert, files.key, self.ca_file, is_client_needed=is_client_needed)
        return Certificates(asking, principals)

    def client(self, shown: TlsFiles | None = None) -> ssl.SSLContext:
        """A client that trusts it, and shows this certificate, if any."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if shown is not None:
            context.load_cert_chain(shown.cert, shown.key)
        return context
