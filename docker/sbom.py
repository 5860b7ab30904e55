"""Writes what an environment holds as a bill of materials: CycloneDX 1.6, JSON.

    python docker/sbom.py docker/locks/cpu.txt /opt/jaxd/lib/python3.12/site-packages

Every image has its own in /opt/jaxd/sbom.cdx.json; `make sbom` copies it beside the image.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any


def hashes(lock: str) -> dict[str, list[str]]:
    """SHA-256 digests of the files that may have been installed, by `name==version`."""
    entries = re.findall(r"^(\S+==\S+)(.*(?:\n    .*)*)", lock, flags=re.MULTILINE)
    return {name: re.findall(r"sha256:(\w+)", rest) for name, rest in entries}


def components(folders: list[str], digests: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    """Each distribution in these folders, by name.

    A package of which a lock file has one digest is installed from that file. Others have one for
    each kind of processor and Python, and which of them it was is not known any more.
    """
    found = {_name(one): one for one in metadata.distributions(path=folders)}
    for name, one in sorted(found.items()):
        reference = f"pkg:pypi/{name}@{one.version}"
        component: dict[str, Any] = {
            "type": "library",
            "bom-ref": reference,
            "name": name,
            "version": one.version,
            "purl": reference,
        }
        license_ = one.metadata.json.get("license_expression")
        if license_:
            component["licenses"] = [{"expression": license_}]
        known = digests.get(f"{name}=={one.version}", [])
        if len(known) == 1:
            component["hashes"] = [{"alg": "SHA-256", "content": known[0]}]
        yield component


def _name(distribution: metadata.Distribution) -> str:
    """As the index spells it."""
    return re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()


def bill(folders: list[str], lock: str) -> dict[str, Any]:
    """The whole document. The same environment always has the same one."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": "jaxd-image", "name": "jaxd"}},
        "components": list(components(folders, hashes(lock))),
    }


if __name__ == "__main__":
    document = bill(sys.argv[2:], Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
