"""The sibling process that traces and lowers so that warm calls are not held up."""
