"""The client's half: which object is written in which way."""
