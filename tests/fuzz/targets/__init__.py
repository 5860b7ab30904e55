"""All that parses: one target for each thing, by its name.

A target returns, or raises one of its own errors. Anything else is a finding.
"""

from __future__ import annotations

from typing import Final

from tests.fuzz.target import Target
from tests.fuzz.targets.arguments import ARGUMENTS
from tests.fuzz.targets.connections import CONNECTIONS
from tests.fuzz.targets.ends import ENDS
from tests.fuzz.targets.files import FILES
from tests.fuzz.targets.hostile import HOSTILE
from tests.fuzz.targets.literals import LITERALS

TARGETS: Final[dict[str, Target]] = {**CONNECTIONS, **ARGUMENTS, **LITERALS, **FILES, **ENDS}

ALONE: Final[dict[str, Target]] = HOSTILE
"""What has to be the last that a process does: its oracle stays, and stops what others do."""
