"""Files that outlive the server, and that are verified before they are used."""
