"""Prints what a server with one accelerator needs, as lines for pip: jaxd's own, but not jaxd.

So the layer of an image that holds jax changes with pyproject.toml, and not with every commit.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, accelerator: str) -> list[str]:
    """The client's and the server's packages, and jax's plugin for the accelerator.

    Args:
        pyproject: the text of pyproject.toml.
        accelerator: `cpu`, or an extra of the project: `cuda12`, `cuda13`, `tpu`.

    Raises:
        KeyError: when there is no such extra.
    """
    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"]
    plugin = [] if accelerator == "cpu" else extras[accelerator]
    return [*project["dependencies"], *extras["server"], *plugin]


if __name__ == "__main__":
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    sys.stdout.write("\n".join(requirements(text, sys.argv[1])) + "\n")
