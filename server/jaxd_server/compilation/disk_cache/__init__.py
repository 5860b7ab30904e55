"""Functions and programs in the cache, as the compiler knows them; found without the code."""
