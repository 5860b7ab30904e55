"""The timers of this process."""

from __future__ import annotations

import logging
from typing import Final

from jaxd_protocol.base.timers import TimerThread
from jaxd_server.runtime.logs import log_event

process_timers: Final = TimerThread(
    "jaxd-clock", lambda: log_event("alarm_failed", level=logging.ERROR)
)
