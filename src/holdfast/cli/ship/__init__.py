"""From the code at hand to production: `check` and `debug`; and from production into the tests: `record`."""
