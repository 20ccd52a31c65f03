"""From your code to production: `check` and `debug`; and from production into the tests: `record`."""
