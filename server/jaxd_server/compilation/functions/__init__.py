"""Known functions: from the key on the wire to the checked, unpacked callable."""
