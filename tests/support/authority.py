"""A certificate authority for tests, and the files that it makes."""

import ssl
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import trustme

from api.web.certificates import Certificates, TlsFiles

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

    def certificates(self, *, is_client_needed: bool | None = None) -> Certificates:
        """A server's. `is_client_needed`: None asks clients for nothing."""
        files = self.issue()
        if is_client_needed is None:
            return Certificates(files)
        return Certificates(TlsFiles(files.cert, files.key, self.ca_file, is_client_needed=is_client_needed))

    def client(self, shown: TlsFiles | None = None) -> ssl.SSLContext:
        """A client that trusts it, and shows this certificate, if any."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if shown is not None:
            context.load_cert_chain(shown.cert, shown.key)
        return context
