"""Moving runs to another runtime, in the middle of their code: at most one side acts, and no run is lost."""
