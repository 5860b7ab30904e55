"""Tests of the frames and of the only access to rpyc."""
