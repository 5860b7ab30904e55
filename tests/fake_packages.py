"""Distributions that a test installs into a folder of its own, as pip would."""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path


class FakeSite:
    """A folder of installed packages.

    Attributes:
        path: what to put into `sys.path` or `PYTHONPATH`.
    """

    def __init__(self, parent: Path) -> None:
        self.path = parent / "site-packages"
        self.path.mkdir(parents=True)

    def install(
        self,
        name: str,
        version: str,
        files: Mapping[str, str],
        *,
        compiled: str = "",
        requires: Sequence[str] = (),
    ) -> Path:
        """Puts files and their metadata there; returns the folder of the metadata.

        Args:
            name: of the distribution.
            version: as the metadata says it.
            files: content by path below the folder.
            compiled: differs between two environments with the same wheel.
            requires: distributions that the metadata says it needs.
        """
        self.uninstall(name)
        rows = [self._write(path, text) for path, text in files.items()]
        info = self.path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needs = "".join(f"Requires-Dist: {each} >=0.1\n" for each in requires)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}\nWords.\n"
        rows.append(self._write(f"{info.name}/METADATA", metadata))
        rows.append(f"../../../bin/{name},sha256={compiled},{len(compiled)}")
        rows.append(f"{name}/__pycache__/__init__.cpython-{compiled or '3'}.pyc,,")
        rows.append(f"{info.name}/RECORD,,")
        (info / "RECORD").write_text("\n".join(rows) + "\n")
        return info

    def uninstall(self, name: str) -> None:
        """Takes the metadata away, and with it what it says is installed."""
        for info in self.path.glob(f"{name.replace('-', '_')}-*.dist-info"):
            for row in (info / "RECORD").read_text().splitlines():
                path = row.split(",")[0]
                if not path.startswith(".."):
                    (self.path / path).unlink(missing_ok=True)
            shutil.rmtree(info, ignore_errors=True)

    def _write(self, path: str, text: str) -> str:
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        return f"{path},sha256={digest.decode()},{len(text)}"
