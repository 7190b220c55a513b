"""OTLP: protobuf messages built directly, over HTTP and gRPC."""
