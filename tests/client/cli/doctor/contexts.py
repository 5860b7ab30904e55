"""Machines for `jaxd doctor`: with a GPU or without, all of them made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxd.cli.doctor.context import DoctorContext


@dataclass(frozen=True)
class FakeContext(DoctorContext):
    """As `DoctorContext`, with what it says.

    Attributes:
        installed: versions of distributions; all others are missing.
        says: what programs print, by a word of their command.
    """

    installed: Mapping[str, str] = field(default_factory=dict)
    says: Mapping[str, str] = field(default_factory=dict)

    def version(self, package: str) -> str | None:
        return self.installed.get(package)

    def run(self, command: Sequence[str], **environment: str) -> str | None:
        words = " ".join(command)
        return next((said for part, said in self.says.items() if part in words), None)


def gpu_machine(root: Path, *, driver: str = "580.65.06", given: bool = True) -> str:
    """A folder that looks like the root of a machine with an NVIDIA GPU; no driver: without one."""
    device = root / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    (root / "dev").mkdir()
    if driver:
        (root / "proc/driver/nvidia").mkdir(parents=True)
        text = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Sun\nGCC version: 12\n"
        (root / "proc/driver/nvidia/version").write_text(text)
        if given:
            (root / "dev/nvidiactl").touch()
    return str(root)
