from __future__ import annotations

import pytest

from jaxd_protocol.addresses import Address
from jaxd_server.options import ServerOptions
from jaxd_server.tenant import REST_AFTER_S, Tenant, User

ALICE = User(61000, 61000, (), "61000", "/kept/alice")
OPTIONS = ServerOptions(
    listen=(Address.tls("0.0.0.0", 1),),
    token_file="/secret/token",
    token_dir="/secret/tokens",
    tls_cert="/secret/tls.pem",
    tls_key="/secret/tls.pem",
    allow_uids=(7,),
    worker_per_principal=True,
    worker_uids=(61000, 61009),
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
    """Nor where that is kept: its door has seen to it."""
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
        "USER": "61000",
        "LOGNAME": "61000",
        "PATH": "/bin",
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "0",
        "LC_ALL": "C",
    }


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
