from __future__ import annotations

import jax
import pytest

from jaxd_protocol.network.addresses import Address
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes.supervision.tenant_settings import REST_AFTER_S, Tenant, User
from tests.ids import row

ALICE = User(70000, 70000, (), "70000", "/kept/alice")
OPTIONS = ServerOptions(
    listen=(Address.tls("0.0.0.0", 1),),
    token_file="/secret/token",
    token_dir="/secret/tokens",
    tls_cert="/secret/tls.pem",
    tls_key="/secret/tls.pem",
    allow_uids=(7,),
    worker_per_principal=True,
    worker_uids=(70000, 61009),
)
INHERITED = {
    "JAXD_TOKEN": "secret",
    "JAXD_TOKEN_FILE": "/secret/token",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "HOME": "/root",
    "XDG_RUNTIME_DIR": "/run/user/0",
    "PATH": "/bin",
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "0",
    "LC_ALL": "C",
}


def test_a_worker_is_not_told_how_clients_prove_who_they_are() -> None:
    """Nor where that is kept: the gateway authenticates for it."""
    options = Tenant("account:alice", "/kept/alice", ALICE).options(OPTIONS)
    assert "secret" not in str(options.to_json())
    assert options.token_folder is None
    assert options.allow_uids == ()
    assert options.cache_dir == "/kept/alice"


def test_a_worker_rests_after_a_while_unless_another_time_is_given() -> None:
    """So that somebody who is away holds neither memory nor a place."""
    tenant = Tenant("account:alice", "none")
    assert tenant.options(OPTIONS).rest_after_s == REST_AFTER_S
    assert tenant.options(ServerOptions(rest_after_s=3.0)).rest_after_s == 3.0
    assert tenant.options(ServerOptions(rest_after_s=0.0)).rest_after_s == 0.0


def test_another_user_gets_what_jax_needs_of_the_environment_and_no_more() -> None:
    """What is not known to be harmless may be a secret."""
    environment = Tenant("account:alice", "/kept/alice", ALICE).environment(INHERITED)
    assert environment == {
        "HOME": "/kept/alice",
        "USER": "70000",
        "LOGNAME": "70000",
        "PYTHONNOUSERSITE": "1",
        "PATH": "/bin",
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "0",
        "LC_ALL": "C",
    }


def test_what_may_be_a_secret_is_not_passed_on() -> None:
    """Also when it begins as something does that jax reads."""
    rows: list[tuple[str, bool]] = [
        ("NVIDIA_API_KEY", False),
        ("NVIDIA_VISIBLE_DEVICES", True),
        ("TF_VAR_db", False),
        ("TF_CPP_MIN_LOG_LEVEL", True),
        ("TF_XLA_FLAGS", True),
        ("JAX_LEGACY_PRNG_KEY", True),
        ("JAX_SERVICE_KEY", False),
        ("PYTHON_INDEX_Password", False),
        ("XLA_TOKEN", False),
        ("CUDA_SECRET", False),
    ]
    for name, is_passed_on in rows:
        with row((name, is_passed_on)):
            environment = Tenant("account:alice", "none", ALICE).environment({name: "x"})
            assert (name in environment) == is_passed_on


def test_a_user_of_the_machine_has_what_it_has_installed() -> None:
    """As after any login; an account has nothing that was put into its folder by code."""
    environment = Tenant("uid:7", "none", ALICE).environment({})
    assert "PYTHONNOUSERSITE" not in environment


def test_all_that_jax_can_be_told_is_passed_on() -> None:
    """A worker that computes by other rules than the operator's would be a surprise."""
    names = (name.upper() for name in jax.config.values)
    told = {name: "x" for name in names if name.startswith("JAX_")}
    assert "JAX_LEGACY_PRNG_KEY" in told
    environment = Tenant("account:alice", "none", ALICE).environment(told)
    assert told.keys() - environment.keys() == set()


def test_the_same_user_gets_all_but_the_token() -> None:
    """Which it could read anyway, if it set out to."""
    environment = Tenant("uid:7", "none").environment(INHERITED)
    assert environment.keys() == INHERITED.keys() - {"JAXD_TOKEN", "JAXD_TOKEN_FILE"}


@pytest.mark.parametrize(("user", "keys"), [(None, set()), (ALICE, {"user", "group", "umask"})])
def test_only_another_user_changes_how_a_process_is_started(
    user: User | None, keys: set[str]
) -> None:
    """With its own group, none of ours, and files that nobody else can read."""
    words = Tenant("account:alice", "none", user).process()
    assert keys <= words.keys()
    assert words.get("extra_groups", []) == []
    assert words.get("umask", 0o077) == 0o077
