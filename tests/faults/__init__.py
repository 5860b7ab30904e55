"""The fault matrix: each row breaks something on purpose; see docs/reliability.md."""
