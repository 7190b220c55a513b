"""Identity: resource attributes, ranks and run ids of this process, and the environment that they are read from.

Its face: ``rank``, ``run_id``, ``resource`` and ``program`` identify this process, with the ``process_group`` that it
has joined; ``environment`` reads settings;
``masking`` leaves secrets out of configurations and command lines; ``launch`` is how a run was started;
``import_hooks`` waits for modules; ``torch_compile`` keeps recording functions uncompiled; ``extra`` says how to
install what is missing. ``detectors`` is for programs that make their own providers.
"""
