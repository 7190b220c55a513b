"""Who is speaking: resource attributes, ranks and run ids."""
