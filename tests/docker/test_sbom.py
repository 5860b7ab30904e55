"""The bill of materials of an image."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from runpy import run_path

import pytest

from tests.docker.container import Container
from tests.docker.engine import ROOT

SCRIPT = ROOT / "docker" / "sbom.py"
LOCK = ROOT / "docker" / "locks" / "cpu.txt"


def test_it_lists_what_is_installed_and_nothing_else() -> None:
    """Each distribution once, by the name and address that all tools know it by."""
    folders = [path for path in sys.path if path.endswith("site-packages")]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(LOCK), *folders],
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(done.stdout)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    found = {one["name"]: one["version"] for one in document["components"]}
    assert len(found) == len(document["components"])
    wanted = {one.metadata["Name"]: one.version for one in metadata.distributions(path=folders)}
    assert len(found) == len(wanted)
    assert found["numpy"] == wanted["numpy"]
    assert all(one["purl"].startswith("pkg:pypi/") for one in document["components"])


def test_a_package_of_one_file_has_its_hash() -> None:
    """That of the file from which it was installed; where there are several, nobody knows."""
    digests = run_path(str(SCRIPT))["hashes"](LOCK.read_text())
    (pure,) = digests["cloudpickle==3.1.2"]
    assert len(pure) == 64
    assert len(digests[f"numpy=={metadata.version('numpy')}"]) > 1
    folders = [path for path in sys.path if path.endswith("site-packages")]
    bill = run_path(str(SCRIPT))["bill"](folders, LOCK.read_text())
    (one,) = (each for each in bill["components"] if each["name"] == "cloudpickle")
    assert one["hashes"] == [{"alg": "SHA-256", "content": pure}]


@pytest.mark.docker
def test_an_image_has_a_list_of_just_what_it_holds(container: Container) -> None:
    """jaxd, and what its lock file says; no builder, no pip."""
    document = json.loads(container.execute("cat", "/opt/jaxd/sbom.cdx.json"))
    program = (
        "import importlib.metadata as m; print(*{d.metadata['Name'] for d in m.distributions()})"
    )
    names = container.execute("/opt/jaxd/bin/python", "-I", "-c", program).split()
    found = {one["name"] for one in document["components"]}
    assert len(found) == len(names)
    assert {"jaxd", "jax", "jaxlib", "rpyc"} <= found
    assert not {"hatchling", "pip"} & found
    assert Path(LOCK).read_text().count("jax==") == 2
