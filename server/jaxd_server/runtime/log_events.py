"""The events of a server's log: the name, level, occasion and fields of each.

`log_event` takes no other; docs/log-events.md is made of this
(`python -m tests.server.log_event_table`), and a test compares each call with it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Level = Literal["info", "warning", "error"]


class Event(NamedTuple):
    """One kind of line.

    Attributes:
        level: of all such lines; those of errors have the traceback.
        when: what has happened.
        fields: the names of what it says, any of which may be left out; see `FIELDS`.
    """

    level: Level
    when: str
    fields: tuple[str, ...] = ()


EVENTS: Final[dict[str, Event]] = {
    "accepting": Event("info", "The worker accepts clients.", ("epoch",)),
    "account_added": Event("info", "A named token has appeared.", ("principal",)),
    "account_ignored": Event("warning", "A token file lets nobody in.", ("account", "reason")),
    "account_replaced": Event("info", "A name has another token.", ("principal",)),
    "account_revoked": Event(
        "info",
        "A named token is gone: its connections end, and what it had there goes.",
        ("principal",),
    ),
    "accounts_share_a_worker": Event(
        "warning",
        "A second account has come to a server on which all share a process.",
        ("accounts", "means"),
    ),
    "alarm_failed": Event("error", "A job that was due at a time has failed."),
    "built": Event(
        "info",
        "A call has had its program made, or loaded from disk.",
        ("call", "function", "principal", "verdict", "seconds"),
    ),
    "builder_ended": Event("info", "A builder has ended.", ("how", "pid", "why")),
    "builder_lost": Event(
        "info",
        "A builder ended during a build, which another one repeats.",
        ("deaths", "function", "how"),
    ),
    "builder_not_started": Event("warning", "A builder could not be started.", ("reason",)),
    "builder_not_understood": Event(
        "warning", "A builder has answered what is no answer, and is ended."
    ),
    "builder_outdated": Event(
        "info",
        "A builder is replaced: packages that it imported have changed on disk.",
        ("changes",),
    ),
    "builder_ready": Event("info", "A builder has started.", ("pid",)),
    "builder_refused": Event(
        "info",
        "A function cannot be built in a builder: the worker builds it.",
        ("function", "reason"),
    ),
    "builder_replaced": Event(
        "info",
        "A builder has made as many programs as one may, and is replaced.",
        ("builds", "pid"),
    ),
    "builder_too_slow": Event(
        "warning", "A builder has not become ready in time, and is ended.", ("pid",)
    ),
    "builder_unreadable": Event("error", "The channel of a builder has failed."),
    "builders_do_not_start": Event("warning", "No builder starts: the worker builds for now."),
    "builders_start_again": Event("info", "A builder has started after `builders_do_not_start`."),
    "builders_unsupported": Event(
        "warning", "`--build-in builder` is not possible here: the worker builds.", ("platform",)
    ),
    "cache_broken": Event(
        "warning", "A file of the cache is damaged, and is not used.", ("path", "reason")
    ),
    "cache_failed": Event(
        "warning", "Writing to the cache failed in an unexpected way.", ("reason",)
    ),
    "cache_not_written": Event(
        "warning", "The cache cannot be written, as when the disk is full.", ("reason",)
    ),
    "cache_of_another_user": Event(
        "info",
        "The folder of a worker belongs to another user than its own.",
        ("folder", "owner", "user"),
    ),
    "cache_refused": Event("warning", "The folder of the cache is not used.", ("reason",)),
    "cache_spoilt": Event(
        "warning",
        "A record of the cache does not say what its name does, and is removed.",
        ("kind", "name"),
    ),
    "cache_too_slow": Event(
        "warning",
        "More is to be written to the cache than the disk takes: some is not kept.",
        ("waiting",),
    ),
    "cache_unreadable": Event("warning", "A file of the cache cannot be read.", ("reason",)),
    "call_failed": Event(
        "info",
        "A call was answered with an error. Of each principal a hundred at once, and one a second.",
        (
            "call",
            "function",
            "principal",
            "error",
            "blame",
            "phase",
            "seconds",
            "not_logged",
        ),
    ),
    "cannot_accept": Event(
        "warning",
        "A connection could not be accepted: there may be no file descriptors left.",
        ("reason",),
    ),
    "cannot_refuse": Event(
        "warning", "While no worker starts, clients cannot be told.", ("reason",)
    ),
    "cannot_serve": Event(
        "warning", "There is no thread for a client, which is told to come again.", ("reason",)
    ),
    "cannot_wait": Event(
        "warning",
        "An idle connection could not be left to the thread that waits for all: it keeps its own.",
        ("reason",),
    ),
    "client_admitted": Event("info", "A client has proved a token.", ("peer", "principal")),
    "client_failed": Event("error", "Serving a client failed in an unexpected way.", ("peer",)),
    "client_left_early": Event(
        "info", "A client has gone during the handshake.", ("not_logged", "peer", "reason")
    ),
    "client_refused": Event(
        "warning", "A client was refused in the handshake.", ("not_logged", "peer", "reason")
    ),
    "client_shown_out": Event(
        "warning", "The connections of a revoked account were closed.", ("principal", "connections")
    ),
    "checkpoint_failed": Event("warning", "A checkpoint could not be written.", ("path", "reason")),
    "checkpoint_saved": Event("info", "A checkpoint is complete.", ("path", "bytes", "seconds")),
    "connection_dropped": Event(
        "warning", "A connection was closed: what came over it was no message.", ("reason",)
    ),
    "door_exited": Event(
        "info",
        "The gateway has ended.",
        ("pid", "epoch", "principal", "exit_code", "signal", "lived_s", "restart_in_s"),
    ),
    "door_ready": Event("info", "The gateway accepts clients.", ("epoch", "after_s", "principal")),
    "door_started": Event(
        "info", "The process of the gateway has started.", ("pid", "epoch", "principal")
    ),
    "drain_timed_out": Event(
        "info",
        "A worker did not finish its calls within `--drain-timeout-s`, and is ended.",
        ("pid",),
    ),
    "drained": Event("info", "The worker has finished its calls, and ends.", ("calls",)),
    "drained_in_part": Event(
        "info",
        "The worker has finished its calls but for those that cannot be stopped, and ends.",
        ("calls",),
    ),
    "draining": Event(
        "info",
        "The server stops: calls under way are finished, and no more are taken.",
        ("running_calls",),
    ),
    "folder_not_removed": Event(
        "warning",
        "The folder of a revoked account could not be removed; it is not used again.",
        ("folder", "why"),
    ),
    "fork_server_ended": Event(
        "info", "What forks builders has ended: each is a new interpreter from now on.", ("pid",)
    ),
    "fork_server_not_started": Event(
        "info", "There is none that forks builders: each is a new interpreter.", ("reason",)
    ),
    "fork_server_started": Event("info", "The process that forks builders has started.", ("pid",)),
    "function_quarantined": Event(
        "warning",
        "A function has ended workers repeatedly: its calls are refused.",
        ("function", "fingerprint", "workers_ended", "how"),
    ),
    "function_released": Event(
        "info",
        "`jaxd functions --release` has taken a function out of quarantine.",
        ("function", "fingerprint"),
    ),
    "function_suspected": Event(
        "warning",
        "A worker ended during the call of a function, which runs alone from now on.",
        ("function", "fingerprint", "workers_ended", "how"),
    ),
    "heartbeat_failed": Event("error", "Checking the worker failed in an unexpected way."),
    "idle": Event("info", "The server ends: it was idle for `--idle-timeout-s`.", ("idle_s",)),
    "jax_cache_off": Event("warning", "jax's own cache on disk is not used.", ("reason", "jax")),
    "jax_programs_limited": Event(
        "warning",
        "This version of jax does not let programs be treated as usual.",
        ("cannot", "jax"),
    ),
    "job_failed": Event("error", "A job in the background has failed."),
    "left_behind": Event(
        "warning", "A cancelled call goes on, because it cannot be stopped.", ("function", "reason")
    ),
    "listening": Event("info", "The server has opened an address.", ("address", "control")),
    "log_shortened": Event(
        "info", "The log was long: what it held is in another file now.", ("earlier",)
    ),
    "memory_relieved": Event(
        "info", "There is room again after `memory_short`.", ("host", "dropped")
    ),
    "memory_short": Event(
        "warning", "Memory runs short: idle programs are dropped.", ("host", "device", "dropped")
    ),
    "metrics_served": Event("info", "Metrics for Prometheus are served.", ("address",)),
    "native_code_unchecked": Event(
        "warning",
        "`--allow-target` lets programs call native code that nobody checks.",
        ("target",),
    ),
    "not_accepting": Event(
        "error", "The server does not accept clients at an address, and is replaced.", ("address",)
    ),
    "not_done": Event("error", "A request of a worker to its host has failed.", ("pid",)),
    "out_of_memory": Event(
        "warning",
        "The device had no room: idle programs are dropped, and it is tried again.",
        ("reason", "dropped"),
    ),
    "packages_changed": Event(
        "info", "Packages have changed on disk: a worker that does not start is tried again."
    ),
    "peer_away": Event(
        "warning",
        "Another member of the pool does not answer this one, which goes on without it.",
        ("member", "reason"),
    ),
    "pool_cluster_ready": Event(
        "info", "The Ray cluster of a pool has started on this machine.", ("address", "pid")
    ),
    "pool_cluster_starting": Event("info", "A Ray cluster for a pool is started."),
    "pool_member_lost": Event(
        "warning",
        "A member of the pool does not answer, or has ended.",
        ("member", "epoch", "state", "reason"),
    ),
    "pool_member_not_ended": Event(
        "warning",
        "Ray does not end the actor of a member, which is to end. It is tried again.",
        ("member", "reason"),
    ),
    "pool_member_removed": Event("info", "A member is no part of the pool any more.", ("member",)),
    "pool_member_started": Event("info", "The director has Ray start a member.", ("member",)),
    "pool_member_state": Event(
        "info",
        "A member of the pool takes calls (`ready`), none for now (`starting`), or is to be left.",
        ("member", "epoch", "state", "reason"),
    ),
    "pool_member_unreachable": Event(
        "warning",
        "A client cannot reach a member of the pool.",
        ("member", "epoch", "principal", "reason", "not_logged"),
    ),
    "pool_message_refused": Event(
        "warning",
        "What came as the report of a member is not sealed with the pool's key, or is an old one.",
        ("member", "reason"),
    ),
    "pool_scaled": Event(
        "info",
        "The pool is to have more members, or fewer, as its load asks for.",
        ("members", "wanted", "load"),
    ),
    "pool_scaling_waits": Event(
        "info",
        "The load asks for fewer members, but clients have arrays on each of them.",
        ("held",),
    ),
    "pool_taken_over": Event(
        "info",
        "A director goes on with the members of the one before it.",
        ("epoch", "members"),
    ),
    "preload_ended": Event(
        "warning", "`--preload` has ended before everything was loaded.", ("reason",)
    ),
    "preload_refused": Event("warning", "`--preload` does nothing.", ("reason",)),
    "preloaded": Event(
        "info", "`--preload` has loaded programs from disk.", ("programs", "seconds")
    ),
    "processes_not_ended": Event(
        "error", "Processes of a revoked account are still there.", ("principal", "user", "why")
    ),
    "profile_started": Event(
        "info", "A profile of jax and XLA in the worker was started.", ("principal",)
    ),
    "program_broken": Event(
        "warning", "A program cannot be run: it is dropped and made again.", ("function", "reason")
    ),
    "program_not_kept": Event(
        "info",
        "A program cannot be written: each new worker makes it again.",
        ("function", "reason"),
    ),
    "program_not_loaded": Event(
        "warning", "A program on disk cannot be loaded: it is made again.", ("reason",)
    ),
    "program_not_moved": Event(
        "info",
        "A program cannot be moved to another device: it is compiled for that.",
        ("program", "device", "reason"),
    ),
    "program_not_written": Event(
        "error", "Keeping a program on disk failed in an unexpected way.", ("function",)
    ),
    "quarantine_not_kept": Event(
        "warning", "The file of the quarantine cannot be written.", ("reason",)
    ),
    "quarantine_not_read": Event(
        "warning", "The file of the quarantine cannot be read.", ("reason",)
    ),
    "recycling_refused": Event(
        "info", "A worker that is due to be replaced was not.", ("reason", "why")
    ),
    "renewal_failed": Event(
        "warning", "The next worker did not start: the present one stays.", ("reason",)
    ),
    "reply_failed": Event("error", "A reply could not be sent in an unexpected way."),
    "restart_failed": Event(
        "error", "Replacing the worker of a principal has failed.", ("principal",)
    ),
    "session_not_ended": Event(
        "error", "Releasing what a session had failed in an unexpected way.", ("principal",)
    ),
    "signal": Event("info", "The server was sent a signal to stop.", ("name", "second")),
    "socket_lost": Event(
        "warning",
        "The file of a Unix socket is gone: no client finds the server there.",
        ("reason",),
    ),
    "status_failed": Event(
        "error", "The worker of a principal could not be described.", ("principal",)
    ),
    "stopped": Event("info", "The server ends.", ("exit_code",)),
    "store_entry_refused": Event(
        "warning", "An entry of a shared store is not used.", ("path", "reason")
    ),
    "store_not_written": Event("warning", "A shared store cannot be written.", ("reason",)),
    "store_opened": Event("info", "A shared store is used.", ("folder", "read_only")),
    "store_refused": Event("warning", "A shared store is not used.", ("folder", "reason")),
    "store_unreadable": Event("warning", "A shared store cannot be read.", ("reason",)),
    "supervision_failed": Event(
        "error",
        "Supervising the worker of a principal failed in an unexpected way.",
        ("principal",),
    ),
    "tether_unreadable": Event(
        "info",
        "A worker has sent its host what is no message: the channel is closed.",
        ("epoch", "error"),
    ),
    "unexplained_build": Event("error", "The reason of a build could not be found.", ("function",)),
    "unreachable": Event(
        "warning",
        "No client finds the server any more: it ends when nobody is connected.",
        ("reason",),
    ),
    "use_not_kept": Event(
        "warning",
        "What was saved for whom cannot be written: it is counted in memory.",
        ("reason",),
    ),
    "values_limited": Event(
        "warning",
        "Arrays took the machine's memory and ended a worker: the next one takes fewer.",
        ("value_bytes", "held"),
    ),
    "view_not_collected": Event(
        "error", "What there is to see of a server could not be collected; logged once."
    ),
    "vital_thread_ended": Event(
        "error",
        "A thread without which a process cannot work has ended, and so does that process.",
        ("thread",),
    ),
    "worker_answers_again": Event("info", "A worker answers after `worker_stuck`.", ("pid",)),
    "worker_broken": Event(
        "error", "No worker starts: calls are refused until one does.", ("reason", "retry_in_s")
    ),
    "worker_dismissed": Event(
        "warning",
        "The worker of an account is ended: its token was revoked or replaced.",
        ("principal",),
    ),
    "worker_exited": Event(
        "info",
        "A worker has ended.",
        ("pid", "epoch", "principal", "exit_code", "signal", "lived_s", "restart_in_s"),
    ),
    "worker_gave_way": Event(
        "info", "A worker lets the next one take over.", ("pid", "epoch", "changes")
    ),
    "worker_given_up": Event(
        "warning", "The worker of a principal does not start.", ("principal", "reason")
    ),
    "worker_lost": Event(
        "warning", "A worker has ended that nothing had asked to.", ("pid", "principal", "how")
    ),
    "worker_not_reached": Event(
        "info", "The gateway could not hand a client over to its worker.", ("principal", "reason")
    ),
    "worker_not_started": Event(
        "info", "The process of a worker could not be started.", ("epoch", "error")
    ),
    "worker_outdated": Event(
        "info",
        "Packages that a worker imported have changed on disk: it is replaced.",
        ("pid", "epoch", "changes"),
    ),
    "worker_prepared": Event(
        "info", "The next worker is complete, and waits to take over.", ("pid", "epoch", "changes")
    ),
    "worker_ready": Event("info", "A worker answers calls.", ("epoch", "after_s", "principal")),
    "worker_recycled": Event(
        "info", "A worker was replaced because it was due.", ("reason", "why")
    ),
    "worker_refused": Event("warning", "A principal gets no worker.", ("principal", "why")),
    "worker_restarted": Event(
        "info", "A worker was replaced by another one.", ("epoch", "seconds")
    ),
    "worker_resting": Event(
        "info",
        "A worker was idle for `--rest-after-s`, and ends until the next call.",
        ("pid", "epoch", "changes"),
    ),
    "worker_says_too_much": Event(
        "warning",
        "The worker of a principal sends its host too many messages, and is ended.",
        ("pid", "principal"),
    ),
    "worker_stale": Event(
        "info",
        "A worker that stands by ends: packages that it imported have changed on disk.",
        ("pid", "epoch", "changes"),
    ),
    "worker_standing_by": Event(
        "info", "A worker has imported jax, and waits to be needed.", ("pid", "epoch", "changes")
    ),
    "worker_started": Event(
        "info", "The process of a worker has started.", ("pid", "epoch", "principal")
    ),
    "worker_stuck": Event(
        "warning", "A worker does not answer.", ("pid", "silent_s", "state", "running")
    ),
    "workers_share_user": Event(
        "warning", "The workers of all principals run as one user.", ("reason",)
    ),
}
"""By name."""

COMMON: Final[dict[str, str]] = {
    "time": "when, in UTC",
    "level": "`info`, `warning` or `error`",
    "process": "of the server: `host`, `worker`, `builder`, or `door` for the gateway",
    "event": "what has happened",
    "principal": "whom it concerns, as `uid:1000`; or whose worker it is that says so",
    "traceback": "of an error",
}
"""Fields of every line, or of any."""

FIELDS: Final[dict[str, str]] = {
    "account": "the file of a token, or its name",
    "accounts": "the principals that share a process",
    "address": "of a listener",
    "after_s": "seconds from its start",
    "blame": "who has to act; see docs/errors.md",
    "builds": "how many it has made",
    "bytes": "of the arrays in it",
    "call": "the id of the call, which its error has as `call_id`",
    "calls": "how many it has answered",
    "cannot": "what is not possible",
    "changes": "the packages, with their versions before and now",
    "connections": "how many",
    "control": "the path of the control socket",
    "deaths": "how many builders have ended during this build",
    "device": "the device, or how much of its memory is in use",
    "dropped": "how many programs were dropped",
    "earlier": "the file that has what was in the log before",
    "epoch": "the number of the worker, of a server of a pool, or of a director",
    "error": "why; of a call the type of the error, without its text",
    "exit_code": "of the process",
    "fingerprint": "of the function",
    "folder": "which one",
    "function": "the name of the function",
    "held": "the bytes that arrays took",
    "host": "how much of the machine's memory is in use",
    "how": "how the process ended",
    "idle_s": "seconds without work",
    "jax": "the version of jax",
    "kind": "of the record",
    "lived_s": "seconds from start to end",
    "load": "the open calls of all members",
    "means": "what follows from that",
    "member": "the name of the member of the pool",
    "members": "how many",
    "name": "of the signal, or of the record",
    "not_logged": "how many such lines were left out before",
    "owner": "the user whose folder it is",
    "path": "of the file",
    "peer": "where the client is",
    "phase": "how far the call had come: `building` or `running`",
    "pid": "of the process that it is about",
    "platform": "what jax computes on",
    "program": "the id of the program",
    "programs": "how many",
    "read_only": "whether nothing is added to it",
    "reason": "why",
    "restart_in_s": "seconds until the next one starts",
    "retry_in_s": "seconds until it is tried again",
    "running": "the calls that it was running",
    "running_calls": "how many calls it was running",
    "second": "true for the second signal, which ends the server at once",
    "seconds": "how long it took",
    "signal": "that ended the process",
    "silent_s": "seconds since its last message",
    "state": "what the system says of the process; of a member, as clients see it",
    "target": "the name of the native code",
    "thread": "its name",
    "user": "of the machine",
    "value_bytes": "the limit for arrays",
    "verdict": "`compile` or `load`",
    "waiting": "how many records wait",
    "wanted": "how many there are to be",
    "why": "why",
    "workers_ended": "how many workers have ended during its calls",
}
"""What the fields mean."""
