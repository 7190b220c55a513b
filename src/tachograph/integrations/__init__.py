"""Callbacks, loggers and trackers for training libraries, for programs that add them explicitly.

There is one module per library: ``transformers``, ``lightning``, ``accelerate``, ``ray`` and ``torchtitan``. Each class
is a subclass of the library's own class. The libraries are not dependencies of Tachograph: importing a module without
its library raises an ImportError that names the package to install.

Values are exported like all values of the process: under ``tachograph run``, after :func:`tachograph.start`, or through
the program's own OpenTelemetry. If the library's bridge is on as well, each value is recorded once.
"""
