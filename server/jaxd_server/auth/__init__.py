"""Who may come in: listeners, accepting, authenticating, accounts, handing over."""
