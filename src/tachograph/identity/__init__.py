"""Identity: resource attributes, ranks and run ids of this process, and the environment that they are read from.

Its face: ``rank``, ``run_id``, ``resource`` and ``program`` say what this process is; ``environment`` reads settings;
``masking`` leaves secrets out of what they are told;
``import_hooks`` waits for modules. ``detectors`` is for programs that make their own providers.
"""
