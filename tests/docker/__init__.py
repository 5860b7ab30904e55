"""The image, built and run for real: `make test-docker`."""
