"""Identity: resource attributes, ranks and run ids of this process, and the environment that they are read from."""
