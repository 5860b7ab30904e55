"""One principal with a worker of its own: the user that it runs as, and its options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from jaxd_server.config.options import ServerOptions

REST_AFTER_S: Final = 600.0
"""The worker of one principal ends after so long without a call, if it holds no values."""

_SECRETS: Final = frozenset({"JAXD_TOKEN", "JAXD_TOKEN_FILE"})

_PASSED_ON: Final = frozenset(
    {
        *("PATH", "TZ", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE"),
        # no secrets, although their names contain KEY
        *("JAX_LEGACY_PRNG_KEY", "JAX_DEBUG_KEY_REUSE", "JAX_MTLS_KEY_FILE"),
        "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY",
        "JAX_REMOVE_CUSTOM_PARTITIONING_PTR_FROM_CACHE_KEY",
    }
)
_PASSED_PREFIXES: Final = (
    *("PYTHON", "LC_", "JAX_", "XLA_", "LIBTPU", "TPU_", "CUDA", "NCCL_", "ROCM_", "HIP_", "HSA_"),
    *("TF_CPP_", "TF_XLA_", "TF_GPU_", "TF_CUDNN_", "TF_FORCE_GPU_", "TF_DETERMINISTIC_"),
    *("OMP_", "MKL_", "OPENBLAS_", "MALLOC_"),
)
"""The variables that another user's worker gets from the server; others may be secrets ..."""

_SECRET: Final = re.compile("KEY|TOKEN|SECRET|PASSW")
"""... and so may variables with such names, whatever their prefix."""


@dataclass(frozen=True, slots=True)
class User:
    """A user of this machine.

    Attributes:
        uid: its number.
        gid: the number of its primary group.
        groups: the numbers of the others.
        name: its name on this machine, otherwise its number.
        home: its home folder.
    """

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


@dataclass(frozen=True, slots=True)
class Tenant:
    """A principal that has a worker of its own.

    Attributes:
        principal: its name.
        folder: its cache folder; `none`: nothing is kept.
        user: the user that its worker runs as; None: the server's own.
    """

    principal: str
    folder: str
    user: User | None = None

    def options(self, options: ServerOptions) -> ServerOptions:
        """The options of its worker, without those for authentication."""
        rest_after_s = options.rest_after_s
        return replace(
            options,
            token_file=None,
            token_dir="none",  # noqa: S106  the word for no folder
            tls_cert=None,
            tls_key=None,
            allow_uids=(),
            worker_uids=None,
            cache_dir=self.folder,
            rest_after_s=REST_AFTER_S if rest_after_s is None else rest_after_s,
        )

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The environment of its worker, without the secrets of the server."""
        if self.user is None:
            return {name: value for name, value in inherited.items() if name not in _SECRETS}
        user = {"HOME": self.user.home, "USER": self.user.name, "LOGNAME": self.user.name}
        if not self.principal.startswith("uid:"):  # nothing is installed in its home folder
            user["PYTHONNOUSERSITE"] = "1"
        return {name: value for name, value in inherited.items() if _is_passed_on(name)} | user

    def process(self) -> dict[str, Any]:
        """The arguments of `subprocess.Popen` for its worker."""
        if self.user is None:
            return {}
        return {
            "user": self.user.uid,
            "group": self.user.gid,
            "extra_groups": list(self.user.groups),
            "umask": 0o077,
            "cwd": os.sep,  # the server's may be a folder that the user cannot enter
        }


def _is_passed_on(name: str) -> bool:
    if name in _PASSED_ON:
        return True
    return name.startswith(_PASSED_PREFIXES) and not _SECRET.search(name.upper())
