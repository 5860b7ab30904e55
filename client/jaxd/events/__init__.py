"""Events of open calls: progress, output, warnings, callbacks that run here."""
