"""Tests of the frames and of rpyc's door."""
