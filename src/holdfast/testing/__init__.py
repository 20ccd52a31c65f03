"""What helps to test workflows and stores; import the modules you need."""
