"""Certificates for TLS listeners, made by the program ``openssl``: valid ones, expired ones, and ones from another
authority."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

from reliamsg.lab.brokers.base import TlsFiles
from reliamsg.lab.process import LabError, program

__all__ = ["Authority"]

_ADDRESS = "127.0.0.1"


class Authority:
    """A certificate authority that keeps its files in a directory of its own."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory: Path = directory / name
        self.directory.mkdir(parents=True)
        self.certificate: Path = self.directory / "ca.pem"
        self._key = self.directory / "ca.key"
        (self.directory / "index").touch()
        (self.directory / "serial").write_text("01\n")
        (self.directory / "ca.cnf").write_text(
            "[ca]\ndefault_ca = lab\n[lab]\n"
            f"dir = {self.directory}\ndatabase = $dir/index\nserial = $dir/serial\nnew_certs_dir = $dir\n"
            f"certificate = {self.certificate}\nprivate_key = {self._key}\ndefault_md = sha256\n"
            "policy = any\nunique_subject = no\nx509_extensions = server\n"
            f"[any]\ncommonName = supplied\n[server]\nsubjectAltName = IP:{_ADDRESS}\n"
            "basicConstraints = critical,CA:FALSE\nauthorityKeyIdentifier = keyid\n"
        )
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
            "-subj", f"/CN=authority {name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
            "-keyout", str(self._key), "-out", str(self.certificate),
        )  # fmt: skip

    def issue(self, name: str, *, expired: bool = False, common_name: str = _ADDRESS) -> TlsFiles:
        """Issue a certificate for 127.0.0.1 that is valid for a day, or that expired an hour ago."""
        key, request, certificate = (self.directory / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        self._openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", f"/CN={common_name}", "-keyout", str(key), "-out", str(request),
        )  # fmt: skip
        end = datetime.now(UTC) + (timedelta(hours=-1) if expired else timedelta(days=1))
        begin = end - timedelta(days=2)
        self._openssl(
            "ca", "-batch", "-notext", "-config", str(self.directory / "ca.cnf"),
            "-startdate", f"{begin:%Y%m%d%H%M%SZ}", "-enddate", f"{end:%Y%m%d%H%M%SZ}",
            "-in", str(request), "-out", str(certificate),
        )  # fmt: skip
        return TlsFiles(certificate, key, self.certificate)

    @staticmethod
    def _openssl(*arguments: str) -> None:
        command = [program("openssl", "openssl"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise LabError(f"openssl {arguments[0]} failed: {done.stderr.strip()[-300:]}")
