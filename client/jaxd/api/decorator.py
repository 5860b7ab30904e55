"""The decorator `@persistent_call`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, overload

from jaxd.api.function import FunctionBinding, PersistentFunction
from jaxd.api.options import (
    check_arguments,
    check_function,
    check_option_values,
    inline_of,
    names_of,
    packed_shardings,
    positions_of,
)
from jaxd.connection.settings import Fallbacks, Places, Settings
from jaxd.dispatch.caller import Caller, CallerLookup, HasCaller
from jaxd.request.call_request import CallSettings
from jaxd.request.function_snapshot import SnapshotCache
from jaxd.results.reader import ResultsAs
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.jit.options import Options, Ship, StaticRule
from jaxd_protocol.network.addresses import Address

if TYPE_CHECKING:
    from jaxd_protocol.pytree.padding import BucketOption

P = ParamSpec("P")
R = TypeVar("R")


class CallOptions(TypedDict, total=False):
    """The options of `persistent_call`.

    `static_argnums`, `static_argnames`, `donate_argnums`, `donate_argnames`, `keep_unused`,
    `inline`, `in_shardings`, `out_shardings` and `compiler_options` are those of `jax.jit`.

    Attributes:
        static: `"auto"`: what jax cannot trace, such as text, members of enums, configurations and
            functions, is static by its content wherever in the arguments it stands. `"jax"`: as in
            `jax.jit`, it is an error unless its argument is declared static, and objects of flax
            nnx are trees, whose changes reach nobody.
        server: an address, such as `unix:///path`, `tls://host:port#sha256=…` or `ssh://host`; or
            that of a pool of servers, `pool://host:port#sha256=…`.
        host: a TCP host instead of `server`; localhost when only `port` is given.
        port: a TCP port instead of `server`; 18861 when only `host` is given.
        token: what a server over TCP asks for; else `JAXD_TOKEN` or `JAXD_TOKEN_FILE`.
        client: use this client's server, instead of the four above; made by `jaxd.connect`.
        results: `"auto"` gives jax arrays in a process that has imported jax, numpy arrays in one
            that has imported numpy, else arrays that import numpy when touched; `"numpy"` and
            `"jax"` decide it.
        config: jax settings for this function, such as `{"jax_enable_x64": True}`; those of a
            process that has imported jax travel by themselves.
        timeout_s: seconds after which a call raises `DeadlineExceeded`.
        strict: raise `PackageMismatch` where the server has a package that the function needs in
            another version, or with other files; by default that is a `SkewWarning`.
        ignore: what the function reads and its key leaves out, as the code writes it:
            `"CONFIG['stream']"`. If it changes, the old program still answers.
        ship: how code of your own travels. `"value"`: what the function reaches, as it is now.
            `"source"`: what it has from your packages is named, and these travel as files, so that
            `importlib.import_module` with a computed name works. The server runs them; what was
            changed in a module after its import (`cfg.lr = args.lr`) is not in them and is not
            seen, but for plain values that the function itself reads, which are an error then.
        callbacks: functions, and methods of objects, that programs may call back in this process
            although the function's code does not give them to `jax.debug.callback` or
            `io_callback` itself, but by way of a helper. They are not in the key.
        fallback: what happens with a call that the server cannot answer because something cannot
            be sent, be hashed or be traced there. `"local"`: it runs under plain `jax.jit` in this
            process, with a `FallbackWarning`; `"error"`: an error. By default as `jaxd.connect` or
            `JAXD_FALLBACK` say, else local where this process has imported jax, and jax's default
            device is of the server's kind.
        verify: trace and lower the function once more in this process for each new signature, and
            raise `StaleProgramError` where the server's program is another one; runs the function's
            code twice. By default as `jaxd.connect` or `JAXD_VERIFY` say, else off.
        place: where calls run once their program is known. `"server"`: there. `"here"`: in this
            process, which has the server's jax and is beside it; an error where no program may be
            taken from the server. `"auto"`: here where that may be and jax is imported, else on
            the server. By default as `jaxd.connect` or `JAXD_PLACE` say, else on the server.
        bucket: pads arrays, so that a few programs serve many sizes: the sizes of axes, by the
            names of parameters, such as `{"tokens": {1: (128, 256, 512)}}`. Zeros are put at the
            end, up to the next of these sizes; larger arrays stay as they are. With
            `jaxd.Bucket((128, 256, 512), length="n")` in place of the sizes the function's
            parameter `n` is given the size before that.
        extra_key: a plain value; functions with different ones never share an executable.
    """

    static_argnums: int | Sequence[int] | None
    static_argnames: str | Iterable[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Iterable[str] | None
    keep_unused: bool
    inline: Any
    in_shardings: Any
    out_shardings: Any
    compiler_options: Mapping[str, Any] | None
    static: StaticRule
    server: str | Address | None
    host: str | None
    port: int | None
    token: str | None
    client: HasCaller | None
    results: ResultsAs
    config: Mapping[str, Any] | None
    timeout_s: float | None
    strict: bool
    ignore: str | Iterable[str]
    ship: Ship
    callbacks: Sequence[Callable[..., Any]]
    fallback: Fallbacks
    verify: bool | None
    place: Places
    bucket: BucketOption | None
    extra_key: Any


@overload
def persistent_call(
    function: Callable[P, R], /, **options: Unpack[CallOptions]
) -> PersistentFunction[P, R]: ...
@overload
def persistent_call(
    function: None = None, /, **options: Unpack[CallOptions]
) -> Callable[[Callable[P, R]], PersistentFunction[P, R]]: ...


def persistent_call(
    function: Callable[..., Any] | None = None, /, **options: Unpack[CallOptions]
) -> Any:
    """Makes a function run on a server that keeps it compiled, as `jax.jit` would compile it.

    Nothing happens until the first call: then the server is found (argument, environment, config
    file, local socket) or started, and the function is packed.

    Args:
        function: the function; without it, a decorator with these options is returned.
        **options: see `CallOptions`.

    Returns:
        The function with the same signature, and with `submit`, `call_async`, `map` and
        `fingerprint`.

    Raises:
        ConfigurationError: when an option's value or an address is not usable.
        TypeError: for an option that does not exist, and as `jax.jit` for what is no function.
        ValueError: as `jax.jit`, for positions and names that the function does not have.
    """
    check_options(options)  # an error here, not at the first call
    if function is None:
        return functools.partial(persistent_call, **options)
    binding = bind(function, options)
    bucket = options.get("bucket")
    if not bucket:
        return PersistentFunction(binding)
    from jaxd.api.bucketing import BucketedFunction  # few functions have this option
    from jaxd_protocol.jit.static_args import infer_static_args
    from jaxd_protocol.pytree.padding import padding_of

    statics = infer_static_args(function, binding.options).names
    return BucketedFunction(binding, padding_of(function, bucket, statics))


def check_options(options: CallOptions) -> None:
    """Returns when options can be used.

    Raises:
        TypeError: for an option that does not exist.
        ConfigurationError: for a value that is not usable.
    """
    unknown = sorted(options.keys() - CallOptions.__annotations__.keys())
    if unknown:
        raise TypeError(
            f"persistent_call has no option {unknown[0]!r}. Its options are: "
            f"{', '.join(CallOptions.__annotations__)}."
        )
    check_option_values(options)


def bind(
    function: Callable[..., Any],
    options: CallOptions,
    lookup: type[CallerLookup] = CallerLookup,
) -> FunctionBinding:
    """A function and how it is called, of options that were checked.

    Args:
        function: the function.
        options: see `CallOptions`.
        lookup: finds what makes its calls.

    Raises:
        ConfigurationError, TypeError, ValueError: as `persistent_call`.
    """
    check_function(function)
    jit_options = _jit_options(function, options)
    ignored, callbacks = names_of(options.get("ignore")) or (), options.get("callbacks") or ()
    ship = options.get("ship", "value")
    settings = CallSettings(
        tuple(sorted((options.get("config") or {}).items())),
        options.get("results", "auto"),
        options.get("timeout_s"),
        options.get("strict", False),
        options.get("fallback"),
    )
    client, token = options.get("client"), options.get("token")
    address = options.get("server"), options.get("host"), options.get("port")
    verify, place = options.get("verify"), options.get("place")
    known = None if client is None else _caller_of(client, verify, place)
    caller = lookup(*address, token, known, verify, new_caller, place)
    snapshots = SnapshotCache(function, jit_options, ignored, ship, tuple(callbacks))
    return FunctionBinding(function, jit_options, caller, settings, snapshots)


def new_caller(settings: Settings) -> Caller:
    """What makes the calls of a client with these settings."""
    return _kind(settings)(settings)


def _caller_of(client: HasCaller, verify: bool | None, place: str | None) -> Caller:
    """What makes calls on the server of a client, as the options of a function say."""
    caller = client.caller
    settings = caller.settings.replaced(verify=verify, place=place)
    return caller if settings == caller.settings else _kind(settings)(settings, caller)


def _kind(settings: Settings) -> type[Caller]:
    if settings.server is not None and settings.server.is_pool:
        from jaxd.pool.caller import PoolCaller  # few processes use a pool

        return PoolCaller
    if settings.verify or settings.place == "here":  # few processes trace
        from jaxd.tracing.second_trace import keep_calls_inside

        keep_calls_inside(PersistentFunction)
    if settings.verify:
        from jaxd.tracing.verification import VerifyingCaller

        return VerifyingCaller
    if settings.place == "server":
        return Caller
    from jaxd.tracing.here import HereCaller  # most processes run nothing themselves

    return HereCaller


def _jit_options(function: Callable[..., Any], given: CallOptions) -> Options:
    options = Options(
        static_argnums=positions_of(given.get("static_argnums")),
        static_argnames=names_of(given.get("static_argnames")),
        donate_argnums=positions_of(given.get("donate_argnums")),
        donate_argnames=names_of(given.get("donate_argnames")),
        keep_unused=given.get("keep_unused", False),
        inline=inline_of(given.get("inline", False)),
        in_shardings=packed_shardings("in_shardings", given.get("in_shardings")),
        out_shardings=packed_shardings("out_shardings", given.get("out_shardings")),
        static=given.get("static", "auto"),
        compiler_options=tuple(sorted((given.get("compiler_options") or {}).items())),
        extra_key=given.get("extra_key"),
    )
    try:
        options.to_bytes()
    except TypeError as error:
        raise ConfigurationError(
            f"an option cannot be part of a key: {error}. Use numbers, text and tuples of them."
        ) from error
    check_arguments(function, options)
    return options


if "JAXD_TRACE" in os.environ:  # `jaxd trace` has started this process, or one before it
    from jaxd.api.recording import begin

    begin()
