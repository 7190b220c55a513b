"""Callbacks, loggers and trackers that trainers take, for programs that name them.

Each is a subclass of its library's own, in a module that is named after the library and loads it: ``transformers``,
``lightning``, ``accelerate``, ``ray``, ``torchtitan``. No library is a dependency of ours; a missing one is an
ImportError that says what to install.

Values go where all values of the process go: under ``tachograph run``, after :func:`tachograph.start`, or into the
program's own OpenTelemetry. If the library's bridge is on as well, each value counts once.
"""
