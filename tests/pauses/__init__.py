"""For `make pauses`; only this folder itself is on its path."""
